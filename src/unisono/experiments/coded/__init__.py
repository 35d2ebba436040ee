"""Figures of network-coded dissemination and gossip recovery: what redundancy buys, and an air traffic network."""
