"""A content-based broker overlay with pairwise total order (paper 001; specs: content-order)."""

from unisono.protocols.overlay.broker import Broker, BrokerConfig

__all__ = ["Broker", "BrokerConfig"]
