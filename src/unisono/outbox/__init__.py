"""Rows that are committed in a database become events: each once, in the order of their commits."""

from unisono.outbox.relay import Outbox, OutboxConfig, OutboxStatus

__all__ = ["Outbox", "OutboxConfig", "OutboxStatus"]
