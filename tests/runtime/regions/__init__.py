"""Hierarchies of brokers as real nodes on sockets."""
