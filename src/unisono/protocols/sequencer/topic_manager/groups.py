"""Sequencing groups: which other topics must be ordered against a topic, computed by its home.

`X` belongs to the group of `T` when at least `shared_subscriptions_min` registered subscriptions contain both. Pair
counters make a change of a registration cost what changes; they are brought up to date when the group is asked for, and
that is when an event gets its timestamp. So whoever joins a thousand topics costs each of their homes one entry, and a
topic that fewer than `shared_subscriptions_min` subscribe to, or that nobody publishes on, counts nothing.
"""

from typing import Any

from unisono.model.ids import Address, Topic
from unisono.protocols.sequencer.messages import Topics


class SequencingGroup:
    """The registrations held by the home of one topic, and the group they make."""

    __slots__ = (
        "_behind",
        "_count",
        "_fresh",
        "_installed",
        "_listed",
        "_live",
        "_members",
        "_sgmin",
        "_topic",
        "registrations",
    )

    def __init__(self, topic: Topic, shared_subscriptions_min: int) -> None:
        self._topic = topic
        self._sgmin = shared_subscriptions_min
        self.registrations: dict[Address, tuple[int, Topics]] = {}
        """Who subscribes to what, with the version; an unsubscribed sid keeps (version, ()) as a tombstone."""
        self._live = 0  # those that are none
        self._behind: dict[Address, Topics] = {}  # registrations that the counters lag behind, as they were counted
        self._installed: list[Topics] = []  # what those hear who have joined since
        self._count: dict[Topic, int] = {}
        self._members: dict[Topic, None] = {}
        self._fresh: dict[Topic, None] = {}
        self._listed: Topics | None = None

    @property
    def members(self) -> dict[Topic, None]:
        """The group without the topic itself, in the order in which members came."""
        self._settle()
        return self._members

    @property
    def fresh(self) -> dict[Topic, None]:
        """Members whose next entry must be explicit: they are new, or somebody who hears them has joined since."""
        self._settle()
        return self._fresh

    def listed(self) -> Topics:
        """The members; the same tuple until they change."""
        if self._behind or self._installed:
            self._settle()
        if self._listed is None:
            self._listed = tuple(self._members)
        return self._listed

    @property
    def is_heard_whole(self) -> bool:
        """Whether everybody who hears the topic hears all members."""
        self._settle()
        return all(self._count[x] == self._live for x in self._members)

    def register(self, sid: Address, version: int, topics: Topics) -> bool:
        """Takes the registration, which names no topic twice, unless a newer one is known; tells whether it did."""
        known, old = self.registrations.get(sid, (0, ()))
        if version <= known:
            return False
        self.registrations[sid] = (version, topics)
        self._live += bool(topics) - bool(old)
        self._behind.setdefault(sid, old)
        return True

    def install(self, topics: Topics) -> None:
        """Somebody who hears these begins, or began, with the number after the last: what was told before, he lacks."""
        if topics not in self._installed[-1:]:
            self._installed.append(topics)

    def _settle(self) -> None:
        if self._live < self._sgmin and not self._count:
            self._installed.clear()  # who becomes a member is fresh
            return
        for sid, counted in self._behind.items():
            _, topics = self.registrations.get(sid, (0, ()))
            if topics[: len(counted)] == counted:
                self._add(topics[len(counted) :])
            else:
                before, after = dict.fromkeys(counted), dict.fromkeys(topics)
                self._add(tuple([x for x in topics if x not in before]))
                self._drop(tuple([x for x in counted if x not in after]))
        self._behind.clear()
        for topics in self._installed:
            self._fresh.update(dict.fromkeys([x for x in topics if x in self._members]))
        self._installed.clear()

    def _add(self, topics: Topics) -> None:
        for x in topics:
            if x != self._topic:
                count = self._count[x] = self._count.get(x, 0) + 1
                if count == self._sgmin:
                    self._members[x] = self._fresh[x] = None
                    self._listed = None

    def _drop(self, topics: Topics) -> None:
        for x in topics:
            if x != self._topic:
                count = self._count[x] = self._count[x] - 1
                if count == self._sgmin - 1:
                    del self._members[x]
                    self._fresh.pop(x, None)
                    self._listed = None
                if not count:
                    del self._count[x]

    def take_fresh(self) -> Topics:
        """The next entry of these is explicit: it is made now."""
        fresh = tuple(self.fresh)
        self._fresh.clear()
        return fresh

    def has(self, sid: Address) -> bool:
        """Whether it is registered as a subscriber of this topic."""
        return bool(self.registrations.get(sid, (0, ()))[1])

    @property
    def subscribers(self) -> int:
        return sum([bool(topics) for _, topics in self.registrations.values()])

    def forget(self, sid: Address) -> None:
        """Drops the sid with its tombstone: its session is closed and the sid will never come back."""
        if sid in self.registrations:
            self.register(sid, self.registrations[sid][0] + 1, ())
            del self.registrations[sid]

    def snapshot(self, lists: "Lists") -> Any:
        """Nothing is brought up to date for it: what nodes send must not depend on when snapshots are taken."""
        return [
            list(self._members),
            [[sid, version, lists.put(topics)] for sid, (version, topics) in self.registrations.items()],
            [[sid, lists.put(topics)] for sid, topics in self._behind.items()],
            [lists.put(topics) for topics in self._installed],
            list(self._fresh),
        ]

    def restore(self, snapshot: Any, lists: list[Topics]) -> None:
        members, registrations, behind, installed, fresh = snapshot
        for sid, version, place in registrations:
            self.registrations[sid] = (version, lists[place])
        self._live = sum(bool(topics) for _, topics in self.registrations.values())
        counted = {sid: topics for sid, (_, topics) in self.registrations.items()}
        self._behind = {sid: lists[place] for sid, place in behind}
        for topics in (counted | self._behind).values():
            self._add(topics)
        self._installed = [lists[place] for place in installed]
        # The order of members shows in what nodes send, so a restored node must keep it.
        self._members, self._fresh, self._listed = dict.fromkeys(members), dict.fromkeys(fresh), None


class Lists:
    """Lists of topics in a snapshot: who joins many topics at once is registered with one list at all of them."""

    def __init__(self) -> None:
        self.all: list[Topics] = []
        self._places: dict[int, int] = {}  # by identity; nothing of it is freed while the snapshot is made

    def put(self, topics: Topics) -> int:
        place = self._places.get(id(topics))
        if place is None:
            place = self._places[id(topics)] = len(self.all)
            self.all.append(topics)
        return place
