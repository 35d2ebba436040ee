"""Hierarchies of brokers, entourages, and direct connections (paper 004; specs: entourage)."""

from unisono.protocols.regions.broker import RegionBroker
from unisono.protocols.regions.client import RegionClient
from unisono.protocols.regions.config import RegionsConfig

__all__ = ["RegionBroker", "RegionClient", "RegionsConfig"]
