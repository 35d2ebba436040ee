"""What is common to all that talks to PostgreSQL: a connection that says plainly what went wrong."""
