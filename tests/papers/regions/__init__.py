"""Hierarchies of brokers and entourages (specs: entourage)."""
