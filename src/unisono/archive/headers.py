"""Headers of rows that mean something to the archive itself."""

GAP = "unisono-gap"
"""A row that is no event: numbers from this value up to the row's own are missing, and its payload says why."""
