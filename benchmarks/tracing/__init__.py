"""Traces of deliveries for benchmarks and campaigns: the same rows every time, as Arrow tables."""
