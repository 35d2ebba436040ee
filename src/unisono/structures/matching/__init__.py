"""Content matching: an event against many filters (specs: matching, sections 4 and 5)."""

from unisono.structures.matching.index import INDEX_FROM, EngineName, MatchingIndex, warm_up

__all__ = ["INDEX_FROM", "EngineName", "MatchingIndex", "warm_up"]
