"""Members of a causal deployment on UDP: a socket each, and where the others are."""
