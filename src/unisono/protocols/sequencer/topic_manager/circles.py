"""Short timestamps: in a large group that is all at home here, an event names the last event of the group alone.

A *circle* is a set of topics at home at one node, each of which has all the others in its group. This node numbers
their events one after the other, so whoever has processed the last event before this one has processed all that the
whole timestamp of this one names: that event waited for the one before it, and so on. A subscriber who can not tell,
since it has begun to listen in between, or does not hear that topic, asks for the whole timestamp. So events are told
in short only while everybody who hears a topic hears all of its group; nothing but the number of questions depends on
that.

The home keeps in which order the events of a circle were numbered, and tells from that what a short timestamp stands
for. All circles begin anew, with a whole timestamp, whenever somebody joins or leaves, and topics are created or move:
what is known here of groups holds only until then, and whoever joins has to hear what has gone on since.
"""

from typing import TYPE_CHECKING, Any

from unisono.model.ids import Topic
from unisono.protocols.sequencer.messages import Entries, Topics

if TYPE_CHECKING:
    from unisono.protocols.sequencer.topic_manager.topic import HostedTopic


class Circle:
    """The events of a group, in the order in which they were numbered: each topic with its last number."""

    __slots__ = ("is_whole", "links", "members", "start", "topics")

    def __init__(self, topics: Topics, start: Entries) -> None:
        """`start`: how far its topics were before the first event."""
        self.topics, self.members, self.start = topics, frozenset(topics), start
        self.links: list[tuple[Topic, int]] = []
        self.is_whole = True
        """No event of its topics was numbered outside of it, since it began."""

    def entries(self, index: int) -> Entries:
        """How far its topics were when the event at `index` was numbered."""
        entries = self.start | dict(self.links[:index])
        return {x: number for x, number in entries.items() if number}


Place = tuple[Circle, int]
"""An event of a circle, and its index there."""


class Circles:
    """The circles among the topics at home at one node."""

    def __init__(self, hosted: "dict[Topic, HostedTopic]", clock: dict[Topic, int], short_from: int) -> None:
        """`short_from`: how many topics make a circle worth it; 0: none do."""
        self._hosted, self._clock, self._short_from = hosted, clock, short_from
        self._circles: dict[frozenset[Topic], Circle] = {}
        self._placed: dict[Topic, Circle | None] = {}  # topics that were numbered since circles began

    @property
    def are_used(self) -> bool:
        return bool(self._circles)

    def begin_anew(self) -> None:
        self._circles.clear()
        self._placed.clear()

    def follow(self, home: "HostedTopic", number: int) -> Place | None:
        """Where in a circle the event comes that is numbered now; None: it follows no event of one."""
        try:
            circle = self._placed[home.topic]
        except KeyError:
            circle = self._placed[home.topic] = self._place(home)
        if circle is None or not circle.is_whole:
            return None
        if len(circle.links) >= len(circle.topics):
            circle = self._go_on(circle)
        index = len(circle.links)
        circle.links.append((home.topic, number))
        return (circle, index) if index else None

    def _go_on(self, circle: Circle) -> Circle:
        """As another, that begins with its last event. So what is kept for one event of a quiet topic that may still be
        asked for is no more than a few timestamps of it would be."""
        another = Circle(circle.topics, circle.entries(len(circle.links) - 1))
        another.links.append(circle.links[-1])
        self._circles[another.members] = another
        for topic in circle.topics:
            if self._placed.get(topic) is circle:
                self._placed[topic] = another
        return another

    def _place(self, home: "HostedTopic") -> Circle | None:
        circle = self._circle_of(home)
        for other in self._circles.values():
            if other is not circle and home.topic in other.members:
                other.is_whole = False
        return circle

    def _circle_of(self, home: "HostedTopic") -> Circle | None:
        others = home.group.listed()
        if not 0 < self._short_from <= len(others) + 1 or home.told_whole or not home.group.is_heard_whole:
            return None
        if not all(x in self._hosted for x in others):
            return None
        topics = (home.topic, *others)
        members = frozenset(topics)
        circle = self._circles.get(members)
        if circle is None:
            circle = self._circles[members] = Circle(topics, {x: self._clock[x] for x in topics})
            circle.is_whole = not any(x in self._placed for x in topics)
        return circle

    def snapshot(self) -> Any:
        """The circles, also those that events are still told of; which topics are in them, and which events."""
        known: dict[int, Circle] = {id(circle): circle for circle in self._circles.values()}
        for home in self._hosted.values():
            known.update((id(circle), circle) for circle, _ in home.places.values())
        at = {of: place for place, of in enumerate(known)}
        return [
            [[of.topics, of.start, list(of.links), of.is_whole] for of in known.values()],
            len(self._circles),
            {topic: at[id(circle)] if circle is not None else -1 for topic, circle in self._placed.items()},
            {
                topic: [[first, at[id(circle)], index] for first, (circle, index) in home.places.items()]
                for topic, home in self._hosted.items()
                if home.places
            },
        ]

    def restore(self, snapshot: Any) -> None:
        self.begin_anew()
        if not snapshot:
            return
        packed, current, placed, places = snapshot
        known: list[Circle] = []
        for topics, start, links, is_whole in packed:
            circle = Circle(tuple(topics), dict(start))
            circle.links, circle.is_whole = [(topic, number) for topic, number in links], is_whole
            known.append(circle)
        self._circles = {circle.members: circle for circle in known[:current]}
        self._placed = {topic: known[place] if place >= 0 else None for topic, place in placed.items()}
        for topic, rows in places.items():
            self._hosted[topic].places = {first: (known[circle], index) for first, circle, index in rows}
