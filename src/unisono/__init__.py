"""Quality of service for publish/subscribe across regions: one order, in time, or told what is missing.

async with unisono.connect("memory://") as session:
    async with session.subscribe("trades", "quotes", order="total") as stream:
        await session.publish("trades", {"sym": "IBM", "px": 101.2})
        async for event in stream:
            print(event.topic, event.data)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unisono import testing
    from unisono.errors import (
        DataLossError,
        FormatError,
        InvariantError,
        MisuseError,
        PeerError,
        PlanError,
        TransportError,
        UnisonoError,
    )
    from unisono.machine import Accepted, Gap, Refused, Stalled, Unknown
    from unisono.runtime.app import App
    from unisono.runtime.client.publishing.publisher import Publisher
    from unisono.runtime.client.session import Session
    from unisono.runtime.client.subscription.event_stream import EventStream
    from unisono.runtime.client.subscription.notification import Notification
    from unisono.runtime.client.subscription.stream import Stream
    from unisono.runtime.connect import connect
    from unisono.runtime.sync import SyncSession, SyncStream, connect_sync

__all__ = [
    "Accepted",
    "App",
    "DataLossError",
    "EventStream",
    "FormatError",
    "Gap",
    "InvariantError",
    "MisuseError",
    "Notification",
    "PeerError",
    "PlanError",
    "Publisher",
    "Refused",
    "Session",
    "Stalled",
    "Stream",
    "SyncSession",
    "SyncStream",
    "TransportError",
    "UnisonoError",
    "Unknown",
    "connect",
    "connect_sync",
    "testing",
]

_HOMES = {
    "unisono.errors": (
        "DataLossError",
        "FormatError",
        "InvariantError",
        "MisuseError",
        "PeerError",
        "PlanError",
        "TransportError",
        "UnisonoError",
    ),
    "unisono.machine": (
        "Accepted",
        "Gap",
        "Refused",
        "Stalled",
        "Unknown",
    ),
    "unisono.runtime.app": ("App",),
    "unisono.runtime.client.publishing.publisher": ("Publisher",),
    "unisono.runtime.client.session": ("Session",),
    "unisono.runtime.client.subscription.event_stream": ("EventStream",),
    "unisono.runtime.client.subscription.notification": ("Notification",),
    "unisono.runtime.client.subscription.stream": ("Stream",),
    "unisono.runtime.connect": ("connect",),
    "unisono.runtime.sync": (
        "SyncSession",
        "SyncStream",
        "connect_sync",
    ),
}
"""Imported when they are asked for: a command that needs none of them is quick, and stopped cleanly at any moment."""


def __getattr__(name: str) -> Any:
    if name == "testing":
        return import_module("unisono.testing")
    for module, names in _HOMES.items():
        if name in names:
            found = globals()[name] = getattr(import_module(module), name)
            return found
    raise AttributeError(f"module 'unisono' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
