"""Figures of content-based overlays: what total order costs, and what covering saves."""
