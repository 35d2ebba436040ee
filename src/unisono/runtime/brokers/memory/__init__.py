"""A broker inside the process, for tests and small programs."""
