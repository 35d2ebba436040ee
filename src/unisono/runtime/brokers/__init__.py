"""Brokers that carry events: the contract, then one package per broker."""
