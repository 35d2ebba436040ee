"""Figures of replicated databases: rollbacks, latencies and buffers."""
