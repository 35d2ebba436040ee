"""Figures of total notification order over topic brokers: delays, timestamp sizes, changes of popularity."""
