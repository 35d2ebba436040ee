"""What the home of a topic knows about it. All of it is durable, and all of it moves when the topic moves."""

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from unisono.model.ids import Address, Topic
from unisono.protocols.sequencer.messages import Collect, Entries, Install, Moved, Run, Topics, Update, Wanted
from unisono.protocols.sequencer.topic_manager.circles import Place
from unisono.protocols.sequencer.topic_manager.groups import Lists, SequencingGroup

Accepted = tuple[Address, int, int, bool]
"""Publisher, first request, how many, whether he wants to hear of their completion."""


def total(accepted: list[Accepted]) -> int:
    return accepted[0][2] if len(accepted) == 1 else sum([count for _, _, count, _ in accepted])


def as_runs(items: tuple[Wanted, ...]) -> Sequence[Wanted]:
    """Joins consecutive requests on one topic: those of one message are concurrent, whatever their order in it."""
    if len({item.topic for item in items}) == len(items):
        return items
    runs: list[Wanted] = []
    latest: dict[Topic, int] = {}  # where in `runs` the last one of a topic is
    ends: dict[Topic, int] = {}  # the request after it

    def close(topic: Topic, at: int) -> None:
        run = runs[at]
        if ends[topic] != run.first + run.count:
            runs[at] = Wanted(topic, run.first, ends[topic] - run.first, run.ack, run.since)

    for item in items:
        topic, first = item.topic, item.first
        if ends.get(topic) != first:
            if topic in latest:
                close(topic, latest[topic])
            latest[topic] = len(runs)
            runs.append(item)
        ends[topic] = first + item.count
    for topic, at in latest.items():
        close(topic, at)
    return runs


class HostedTopic:
    """One topic at its home; its last number is in the node's clock."""

    __slots__ = (
        "_early",
        "_firsts",
        "aware",
        "bar",
        "begun_here",
        "finished",
        "floor",
        "group",
        "high_water",
        "hist",
        "issued",
        "open",
        "parked",
        "places",
        "proven",
        "requests",
        "since",
        "told_whole",
        "topic",
        "voids",
        "waiters",
    )

    def __init__(self, topic: Topic, shared_subscriptions_min: int) -> None:
        self.topic = topic
        self.group = SequencingGroup(topic, shared_subscriptions_min)
        self.bar: Entries = {}  # entries the next event must carry, once
        self.hist: Entries = {}  # the highest ever put into bar: the gate of those who join later
        self.requests: dict[Address, int] = {}  # the request we number next, per publisher
        self._early: dict[Address, dict[int, int]] = {}  # requests that overtook their predecessors: first -> count
        self.issued: dict[int, Run] = {}  # by first number; the last `issued_max` numbers
        self.places: dict[int, Place] = {}  # by first number: where in a circle those are that were told in short
        self._firsts: deque[int] = deque()
        self.floor = 1  # the oldest number in `issued`
        self.open: dict[int, int] = {}  # first -> count of the runs whose timestamps are still climbing
        self.high_water = 0  # all numbers up to this are complete
        self.waiters: deque[tuple[int, Address, int]] = deque()  # number, publisher, request: tell when complete
        self.finished: dict[Address, int] = {}  # the last request told complete
        self.proven: Entries = {}  # numbers of other topics that have passed the meeting point with this one
        self.parked: list[Collect | Install | Update] = []
        self.voids: dict[int, None] = {}  # numbers whose payloads were withdrawn
        self.told_whole: dict[Address, None] = {}
        """Subscribers of an earlier release, which cannot read short timestamps."""
        self.begun_here = True
        self.since = 0  # the number with which it was begun again, when its home had forgotten
        self.aware: dict[Address, None] | None = None
        """Since its home has forgotten: publishers that have asked there themselves, let in by a driver because they
        know of it. What others ask again may come by other nodes still. None: nothing was ever forgotten."""

    def accept(self, publisher: Address, item: Wanted, requests_max: int) -> tuple[int, int]:
        """The requests (first, count) that get numbers now: each request once, in the publisher's order."""
        wanted, first = self.requests.get(publisher, 1), item.first
        if item.ack > wanted:
            wanted = self.requests[publisher] = item.ack
        end = first + item.count
        if first > wanted:
            early = self._early.setdefault(publisher, {})
            if end - wanted <= requests_max:
                early[first] = max(item.count, early.get(first, 0))
            return wanted, 0
        if end <= wanted:
            return wanted, 0
        if publisher in self._early:
            end = self._catch_up(publisher, end)
        self.requests[publisher] = end
        return wanted, end - wanted

    def _catch_up(self, publisher: Address, end: int) -> int:
        """Where the requests end when those that came too early are joined to what ends at `end`."""
        early = self._early[publisher]
        while early and min(early) <= end:
            first = min(early)
            end = max(end, first + early.pop(first))
        if not early:
            del self._early[publisher]
        return end

    def take_special(self) -> tuple[Topics, Entries, Entries]:
        """Whose entries must be explicit, and which numbers must be among them: outside the group, and in it."""
        group, full = self.group.members, self.group.take_fresh()
        left = {x: number for x, number in self.bar.items() if x not in group}
        bars = {x: number for x, number in self.bar.items() if x in group}
        self.bar.clear()
        return full, left, bars

    def record(self, run: Run, keep: int) -> None:
        firsts, first = self._firsts, run.first
        self.issued[first] = run
        firsts.append(first)
        oldest_kept = first + run.count - keep  # numbers below need not be known
        while firsts[0] < oldest_kept and firsts[0] != first and firsts[0] not in self.open:
            forgotten = firsts.popleft()
            gone = self.issued.pop(forgotten)
            self.places.pop(forgotten, None)
            if self.voids:
                for number in range(gone.first, gone.last + 1):
                    self.voids.pop(number, None)
            self.floor = firsts[0]

    def complete(self, run: Run, number: int) -> None:
        """The timestamp of a run is known; `number` is the last one issued."""
        if run.first in self.issued:
            self.issued[run.first] = run
        self.open.pop(run.first, None)
        self.high_water = next(iter(self.open)) - 1 if self.open else number

    def whole(self, run: Run) -> Run:
        """What it stands for, if it was told in short."""
        place = self.places.get(run.first)
        if place is None:
            return run
        circle, index = place
        entries = circle.entries(index)
        entries.pop(self.topic, None)
        return Run(run.first, run.count, run.publisher, run.request, tuple(entries), tuple(entries.values()))

    def make_whole(self) -> None:
        """The circles stay here when it moves. Each event then names what has gone on since the one before."""
        last, at, changed = None, 0, Entries()
        for first, (circle, index) in self.places.items():
            if circle is not last:
                last, at, changed = circle, 0, dict(circle.start)
            changed.update(circle.links[at:index])
            entries = {x: number for x, number in changed.items() if number and x != self.topic}
            topics, numbers = tuple(entries), tuple(entries.values())
            self.issued[first] = replace(self.issued[first], topics=topics, numbers=numbers, short=False)
            at, changed = index, {}
        self.places.clear()

    def find(self, number: int) -> Run | None:
        at = bisect_right(self._firsts, number) - 1
        if at < 0:
            return None
        run = self.issued[self._firsts[at]]
        return run if run.last >= number else None

    def find_request(self, publisher: Address, request: int) -> Run | None:
        for run in self.issued.values():
            if run.publisher == publisher and run.request <= request < run.request + run.count:
                return run
        return None

    def void(self, publisher: Address, first: int, count: int) -> list[tuple[Run, int, int]]:
        """Withdraws the numbers of these requests; returns the runs they are in, each with first and count of them."""
        found = []
        for run in self.issued.values():
            begin, end = max(run.request, first), min(run.request + run.count, first + count)
            if run.publisher == publisher and begin < end:
                number = run.first + begin - run.request
                self.voids.update(dict.fromkeys(range(number, number + end - begin)))
                found.append((run, number, end - begin))
        return found

    def voids_of(self, run: Run) -> list[tuple[int, int]]:
        """First and count of the numbers of a run that are void, as far as they are neighbours."""
        rows: list[tuple[int, int]] = []
        for number in range(run.first, run.last + 1):
            if number in self.voids:
                first, count = rows.pop() if rows and sum(rows[-1]) == number else (number, 0)
                rows.append((first, count + 1))
        return rows

    def register(self, sid: Address, version: int, topics: Topics, left: Entries, short: bool) -> None:
        if self.group.register(sid, version, topics):
            self.told_whole.pop(sid, None)
            if topics and not short:
                self.told_whole[sid] = None
        if not topics:
            return
        for x, number in left.items():  # also when the version is stale: the numbers are true all the same
            if x != self.topic and number > self.hist.get(x, 0):
                self.hist[x] = number
                self.bar[x] = number

    def clients(self) -> list[Address]:
        """Everybody this topic remembers."""
        return list(dict.fromkeys([*self.group.registrations, *self.requests, *self._early]))

    def begin_again(self, number: int, shared_subscriptions_min: int) -> None:
        """Whatever was issued up to `number` is forgotten, and so are those who subscribed."""
        self.group = SequencingGroup(self.topic, shared_subscriptions_min)
        self.told_whole.clear()
        self.bar.clear()
        self.proven.clear()
        self.waiters.clear()
        self.give_up_open(number)
        self.issued.clear()
        self.places.clear()
        self._firsts.clear()
        self.voids.clear()
        self.floor = number + 1
        self.aware = {}
        self.since, self.begun_here = number, True

    def may_ask(self, publisher: Address, is_direct: bool, since: int = 0) -> bool:
        """Whoever does not know that its home has forgotten asks again for what was numbered before. Where the topic
        has moved since, to ask directly proves nothing: only the node that has forgotten tells all who connect."""
        if self.aware is not None and ((is_direct and self.begun_here) or since == self.since):
            self.aware[publisher] = None
        return self.aware is None or publisher in self.aware

    def moved_to(self, here: Address) -> Moved:
        """What a client is told that asked elsewhere, or does not know that this topic was begun again."""
        return Moved(self.topic, here, self.since, self.begun_here or not self.since)

    def give_up_open(self, number: int) -> None:
        """Timestamps that are still climbing will never be complete; `number` is the last one issued."""
        if self.open:
            self.floor = max(first + count for first, count in self.open.items())
            while self._firsts and self._firsts[0] < self.floor:
                first = self._firsts.popleft()
                del self.issued[first]
                self.places.pop(first, None)
        self.open.clear()
        self.parked.clear()
        self.high_water = number

    def forget(self, client: Address) -> None:
        self.group.forget(client)
        self.told_whole.pop(client, None)
        self.requests.pop(client, None)
        self._early.pop(client, None)
        self.finished.pop(client, None)
        if self.aware is not None:
            self.aware.pop(client, None)
        self.parked = [message for message in self.parked if message.sid != client]

    @property
    def is_special(self) -> bool:
        """Somebody has joined or left: some entries must be explicit, and some numbers must be among them."""
        return bool(self.bar or self.group.fresh)

    def pack(self, lists: Lists) -> Any:
        return {
            "group": self.group.snapshot(lists),
            "bar": dict(self.bar),
            "hist": dict(self.hist),
            "requests": dict(self.requests),
            "early": {publisher: dict(early) for publisher, early in self._early.items()},
            "issued": [msgspec.to_builtins(run) for run in self.issued.values()],
            "floor": self.floor,
            "open": dict(self.open),
            "high_water": self.high_water,
            "waiters": [list(waiter) for waiter in self.waiters],
            "finished": dict(self.finished),
            "proven": dict(self.proven),
            "parked": [msgspec.to_builtins(message) for message in self.parked],
            "voids": list(self.voids),
            "aware": list(self.aware) if self.aware is not None else None,
            "since": self.since,
            "begun_here": self.begun_here,
            "told_whole": list(self.told_whole),
        }

    def unpack(self, packed: Any, lists: list[Topics]) -> None:
        self.group.restore(packed["group"], lists)
        self.bar = dict(packed["bar"])
        self.hist = dict(packed["hist"])
        self.requests = dict(packed["requests"])
        self._early = {publisher: dict(early) for publisher, early in packed["early"].items()}
        self.issued = {run.first: run for run in msgspec.convert(packed["issued"], list[Run])}
        self._firsts = deque(self.issued)
        self.floor = packed["floor"]
        self.open = dict(packed["open"])
        self.high_water = packed["high_water"]
        self.waiters = deque((number, publisher, request) for number, publisher, request in packed["waiters"])
        self.finished = dict(packed["finished"])
        self.proven = dict(packed["proven"])
        self.parked = msgspec.convert(packed["parked"], list[Collect | Install | Update])
        self.voids = dict.fromkeys(packed["voids"])
        self.aware = dict.fromkeys(packed["aware"]) if packed["aware"] is not None else None
        self.since, self.begun_here = packed["since"], packed["begun_here"]
        # A node of an earlier release says nothing of that, and had no others.
        self.told_whole = dict.fromkeys(packed.get("told_whole", self.group.registrations))
