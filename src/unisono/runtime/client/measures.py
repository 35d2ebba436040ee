"""The numbers of a session: what was published and delivered, as the metrics of the catalogue."""

from collections.abc import Iterable
from typing import Protocol

from msgspec import Struct

from unisono.model.ids import Address
from unisono.model.metrics import Sample

SUBSCRIPTIONS_MAX = 1_000
"""Subscriptions of one session that have lines of their own."""


class Outcomes(Struct):
    """How publications ended."""

    accepted: int = 0
    refused: int = 0
    unknown: int = 0


class StreamCounters(Struct):
    """What a subscription was told."""

    delivered: int = 0
    late: int = 0
    overdue: int = 0
    gaps: int = 0
    missing: int = 0
    stalls: int = 0


class CountedStream(Protocol):
    """A subscription, as far as it is counted."""

    @property
    def name(self) -> str | None: ...

    @property
    def sid(self) -> Address: ...

    @property
    def told(self) -> StreamCounters: ...

    @property
    def held(self) -> int: ...

    @property
    def waiting(self) -> int: ...


def of_publishing(outcomes: Outcomes, in_flight: int) -> Iterable[Sample]:
    for outcome in outcomes.__struct_fields__:
        yield Sample("unisono_published_total", getattr(outcomes, outcome), (outcome,))
    yield Sample("unisono_publishing", in_flight)


def of_streams(streams: Iterable[CountedStream]) -> Iterable[Sample]:
    """Labelled by their names, or else by the address of this life of theirs."""
    for stream in [*streams][:SUBSCRIPTIONS_MAX]:
        label = (stream.name or str(stream.sid),)
        for field in stream.told.__struct_fields__:
            yield Sample(f"unisono_subscription_{field}_total", getattr(stream.told, field), label)
        yield Sample("unisono_subscription_held", stream.held, label)
        yield Sample("unisono_subscription_unread", stream.waiting, label)
