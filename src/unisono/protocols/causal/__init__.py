"""Deadline-constrained causal order, brokers to subscribers by gossip (paper 003; specs/causal-deadline.md, section
0)."""
