"""Content matching: an event against many filters (specs: matching, sections 4 and 5)."""

from unisono.structures.matching.index import EngineName, MatchingIndex

__all__ = ["EngineName", "MatchingIndex"]
