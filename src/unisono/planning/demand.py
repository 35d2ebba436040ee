"""What each node sees of the demand for its topics, taken once a period: who asks from where, and who listens where.

A home counts nothing for this: it remembers per publisher which request it numbers next, and that has grown since the
last look. Who subscribes to what is in its registrations; each is told of by one home, that of its first topic.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta, Struct

from unisono.model.ids import Address, Topic
from unisono.model.numbers import Number, Span, TopicNumber

if TYPE_CHECKING:
    from unisono.protocols.sequencer.topic_manager.topic import HostedTopic

HOSTED_MAX = 20_000
"""Topics that one view names; what is beyond stays where it is."""
RegionOf = Callable[[Address], str | None]
Microshift = Annotated[int, Meta(ge=-(2**40), le=2**40)]


class Audience(Struct, frozen=True):
    """So many subscribers in a region hear just these topics."""

    region: str
    topics: tuple[TopicNumber, ...]
    count: Number


class Asked(Struct, frozen=True):
    """So many requests for numbers came from a region in the period."""

    topic: TopicNumber
    region: str
    count: Number


class DemandView(Struct, frozen=True, tag="DemandView"):
    """One node's view of one period; on its way to the root."""

    node: Address
    hosted: tuple[TopicNumber, ...]
    asked: tuple[Asked, ...] = ()
    audiences: tuple[Audience, ...] = ()
    round_trips_us: dict[str, dict[str, Span]] = {}
    """Region of clients -> region of a node -> the least that was measured."""
    leans: tuple[tuple[TopicNumber, Microshift], ...] = ()
    """By clock: by how many microseconds the node's lanes lean, where they do."""


class DemandCounter:
    """Looks at the homes of one node, period by period."""

    def __init__(self, node: Address) -> None:
        self._node = node
        self._next: dict[tuple[Topic, Address], int] = {}

    def look(
        self,
        hosted: Mapping[Topic, "HostedTopic"],
        region_of: RegionOf,
        round_trips_us: dict[str, dict[str, int]] | None = None,
    ) -> DemandView:
        """What has been asked for since the last look. Clients whose region nobody knows are not counted."""
        following: dict[tuple[Topic, Address], int] = {}
        asked: dict[tuple[Topic, str], int] = {}
        audiences: dict[tuple[str, tuple[Topic, ...]], int] = {}
        for topic, home in hosted.items():
            for publisher, number in home.requests.items():
                following[topic, publisher] = number
                grown, region = number - self._next.get((topic, publisher), number), region_of(publisher)
                if grown > 0 and region is not None:
                    asked[topic, region] = asked.get((topic, region), 0) + grown
            for sid, (_, topics) in home.group.registrations.items():
                region = region_of(sid) if topics and topics[0] == topic else None
                if region is not None:
                    audiences[region, topics] = audiences.get((region, topics), 0) + 1
        self._next = following
        return DemandView(
            self._node,
            tuple(hosted)[:HOSTED_MAX],
            tuple([Asked(topic, region, count) for (topic, region), count in asked.items()]),
            tuple([Audience(region, topics, count) for (region, topics), count in audiences.items()]),
            round_trips_us or {},
        )


class LaneCounter:
    """Looks at the lanes of one stamper, period by period: what it stamped, and who hears of clocks from it."""

    def __init__(self, node: Address, region: str) -> None:
        self._node, self._region = node, region
        self._lasts: dict[tuple[Topic, int], int] = {}

    def look(
        self,
        lanes: Iterable[tuple[Topic, bool, int, int]],
        listening: Iterable[tuple[Topic, ...]],
        leans: Mapping[Topic, int],
        round_trips_us: dict[str, dict[str, int]] | None = None,
    ) -> DemandView:
        """`lanes` are topic, whether it is kept here, epoch and last entry; `listening` are topics, per client."""
        lasts: dict[tuple[Topic, int], int] = {}
        asked: list[Asked] = []
        hosted: list[Topic] = []
        for topic, is_kept, epoch, last in lanes:
            lasts[topic, epoch] = last
            if grown := last - self._lasts.get((topic, epoch), last if is_kept else 0):
                asked.append(Asked(topic, self._region, grown))
            if is_kept:
                hosted.append(topic)
        self._lasts = lasts
        audiences = Counter(tuple(sorted(set(topics))) for topics in listening if topics)
        return DemandView(
            self._node,
            tuple(hosted[:HOSTED_MAX]),
            tuple(asked),
            tuple([Audience(self._region, topics, count) for topics, count in audiences.items()]),
            round_trips_us or {},
            tuple([(topic, lean) for topic, lean in leans.items() if lean]),
        )
