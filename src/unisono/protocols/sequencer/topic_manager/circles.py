"""Short timestamps: in a large group that is all at home here, an event names the last event of the group alone.

A *circle* is a set of topics at home at one node, each of which has all the others in its group. This node numbers
their events one after the other, so whoever has processed the last event before this one has processed all that the
whole timestamp of this one names: that event waited for the one before it, and so on. A subscriber who can not tell,
since it has begun to listen in between, or does not hear that topic, asks for the whole timestamp. So events are told
in short only while everybody who hears a topic hears all of its group; nothing but the number of questions depends on
that.

All circles begin anew, with a whole timestamp, whenever somebody joins or leaves, and topics are created or move: what
is known here of groups holds only until then, and whoever joins has to hear what has gone on since.
"""

from typing import Any

from unisono.model.ids import Topic
from unisono.protocols.sequencer.messages import Topics
from unisono.protocols.sequencer.topic_manager.topic import HostedTopic


class _Circle:
    __slots__ = ("is_whole", "last", "members", "topics")

    def __init__(self, topics: Topics) -> None:
        self.topics, self.members = topics, frozenset(topics)
        self.is_whole = True
        """No event of its topics was numbered outside of it, since it began."""
        self.last: tuple[Topic, int] | None = None


class Circles:
    """The circles among the topics at home at one node."""

    def __init__(self, hosted: dict[Topic, HostedTopic], short_from: int) -> None:
        """`short_from`: how many topics make a circle worth it; 0: none do."""
        self._hosted, self._short_from = hosted, short_from
        self._circles: dict[frozenset[Topic], _Circle] = {}
        self._placed: dict[Topic, _Circle | None] = {}  # topics that were numbered since circles began

    def begin_anew(self) -> None:
        self._circles.clear()
        self._placed.clear()

    def last_before(self, home: HostedTopic, number: int) -> tuple[Topic, int] | None:
        """The last event of the circle before this one, which is numbered now; None: there is no such circle."""
        try:
            circle = self._placed[home.topic]
        except KeyError:
            circle = self._placed[home.topic] = self._place(home)
        if circle is None:
            return None
        last, circle.last = circle.last, (home.topic, number)
        return last if circle.is_whole else None

    def _place(self, home: HostedTopic) -> _Circle | None:
        circle = self._circle_of(home)
        for other in self._circles.values():
            if other is not circle and home.topic in other.members:
                other.is_whole = False
        return circle

    def _circle_of(self, home: HostedTopic) -> _Circle | None:
        others = home.group.listed()
        if not 0 < self._short_from <= len(others) + 1 or home.told_whole or not home.group.is_heard_whole:
            return None
        if not all(x in self._hosted for x in others):
            return None
        topics = (home.topic, *others)
        members = frozenset(topics)
        circle = self._circles.get(members)
        if circle is None:
            circle = self._circles[members] = _Circle(topics)
            circle.is_whole = not any(x in self._placed for x in topics)
        return circle

    def snapshot(self) -> Any:
        places = {id(circle): place for place, circle in enumerate(self._circles.values())}
        return [
            [[circle.topics, circle.last, circle.is_whole] for circle in self._circles.values()],
            {topic: places[id(circle)] if circle is not None else -1 for topic, circle in self._placed.items()},
        ]

    def restore(self, snapshot: Any) -> None:
        self.begin_anew()
        if not snapshot:
            return
        circles, placed = snapshot
        known: list[_Circle] = []
        for topics, last, is_whole in circles:
            circle = _Circle(tuple(topics))
            circle.last, circle.is_whole = tuple(last) if last is not None else None, is_whole
            self._circles[circle.members] = circle
            known.append(circle)
        self._placed = {topic: known[place] if place >= 0 else None for topic, place in placed.items()}
