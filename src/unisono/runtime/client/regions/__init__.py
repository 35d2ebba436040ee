"""Clients of hierarchies of brokers: the way in, sessions, and the service that sequencers stand on."""

from unisono.runtime.client.regions.session import EntourageView, RegionsSession

__all__ = ["EntourageView", "RegionsSession"]
