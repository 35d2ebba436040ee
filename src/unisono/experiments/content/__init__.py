"""Figures of content filters over topic brokers: how finely a grid should be cut."""
