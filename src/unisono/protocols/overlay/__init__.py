"""A content-based broker overlay with pairwise total order (paper 001; specs: content-order)."""

from unisono.protocols.overlay.broker import Broker
from unisono.protocols.overlay.config import BrokerConfig

__all__ = ["Broker", "BrokerConfig"]
