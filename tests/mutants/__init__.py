"""Bugs that must be noticed: one list per room, and the runner that plants them (`make mutants`)."""
