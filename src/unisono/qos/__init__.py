"""From a promise to the stack of protocols that keeps it, or to the reason why none does."""

from unisono.qos.table import STACKS, Ground, Stack, choose

__all__ = ["STACKS", "Ground", "Stack", "choose"]
