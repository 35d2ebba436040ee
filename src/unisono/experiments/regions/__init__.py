"""Figures of regional hierarchies: latency, psi, and resources of brokers."""
