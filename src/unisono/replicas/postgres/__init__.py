"""A replica's database in PostgreSQL."""
