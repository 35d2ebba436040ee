"""Mechanisms that two or more protocols use; none of them knows a protocol."""
