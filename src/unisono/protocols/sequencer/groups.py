"""Sequencing groups: which other topics must be ordered against a topic, computed by its home.

`X` belongs to the group of `T` when at least `sgmin` registered subscriptions contain both. Pair counters make a
registration change cost what changes, however many subscriptions there are.
"""

from typing import Any

from unisono.model.ids import Address, Topic
from unisono.protocols.sequencer.messages import Topics


class SequencingGroup:
    """The registrations held by the home of one topic, and the group they make."""

    __slots__ = ("_count", "_listed", "_sgmin", "_topic", "members", "registrations")

    def __init__(self, topic: Topic, sgmin: int) -> None:
        self._topic = topic
        self._sgmin = sgmin
        self.registrations: dict[Address, tuple[int, Topics]] = {}
        """Who subscribes to what, with the version; an unsubscribed sid keeps (version, ()) as a tombstone."""
        self._count: dict[Topic, int] = {}
        self.members: dict[Topic, None] = {}
        """The group without the topic itself, in the order in which members came."""
        self._listed: Topics | None = None

    def listed(self) -> Topics:
        """The members; the same tuple until they change."""
        if self._listed is None:
            self._listed = tuple(self.members)
        return self._listed

    def register(self, sid: Address, version: int, topics: Topics) -> bool:
        """Takes the registration unless a newer one is known; tells whether it did."""
        known, old = self.registrations.get(sid, (0, ()))
        if version <= known:
            return False
        topics = tuple(dict.fromkeys(topics))  # a client may name one twice, which must count once
        self.registrations[sid] = (version, topics)
        for topic in topics:
            if topic != self._topic and topic not in old:
                count = self._count[topic] = self._count.get(topic, 0) + 1
                if count == self._sgmin:
                    self.members[topic] = None
                    self._listed = None
        for topic in old:
            if topic != self._topic and topic not in topics:
                count = self._count[topic] = self._count[topic] - 1
                if count == self._sgmin - 1:
                    del self.members[topic]
                    self._listed = None
                if not count:
                    del self._count[topic]
        return True

    def has(self, sid: Address) -> bool:
        """Whether it is registered as a subscriber of this topic."""
        return bool(self.registrations.get(sid, (0, ()))[1])

    def forget(self, sid: Address) -> None:
        """Drops the sid with its tombstone: its session is closed and the sid will never come back."""
        version, _ = self.registrations.get(sid, (0, ()))
        self.register(sid, version + 1, ())
        self.registrations.pop(sid, None)

    def snapshot(self) -> Any:
        return [list(self.members), [[sid, version, topics] for sid, (version, topics) in self.registrations.items()]]

    def restore(self, snapshot: Any) -> None:
        members, registrations = snapshot
        for sid, version, topics in registrations:
            self.register(sid, version, tuple(topics))
        # The order of members shows in what nodes send, so a restored node must keep it.
        self.members = dict.fromkeys(members)
        self._listed = None
