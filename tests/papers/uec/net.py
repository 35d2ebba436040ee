"""Sites on a network that delays, loses, repeats and parts, and a total order of cuts: for tests of the protocol."""

from collections import Counter
from heapq import heappop, heappush
from random import Random
from typing import Any

from unisono.machine import Broadcast, CancelTimer, Deliver, Fired, Heard, Publish, Restarted, Send, SetTimer
from unisono.model.event import Event
from unisono.model.ids import Address, Topic
from unisono.model.time import Micros
from unisono.protocols.uec.config import UecConfig
from unisono.protocols.uec.messages import Placed, SettledOrder
from unisono.protocols.uec.site import UecSite

CUTS = Topic(0)


class Net:
    """Time, links, and what every site told its database."""

    def __init__(self, seed: int, count: int, config: UecConfig, loss: float = 0.0, repeat: float = 0.0) -> None:
        self.dice = Random(seed)
        self.now = 0
        self.loss, self.repeat = loss, repeat
        self.parts: list[set[Address]] = []  # those of different parts do not hear each other
        self.down: set[Address] = set()
        names = tuple(Address(f"s{i}") for i in range(count))
        self.sites = {name: UecSite(name, names, CUTS, Random(f"{seed}/{name}"), config) for name in names}
        self.settled: dict[Address, list[str]] = {name: [] for name in names}
        self.log: dict[Address, list[str]] = {name: [] for name in names}  # as a database would have applied it
        self.keys: dict[Address, list[Any]] = {name: [] for name in names}
        self.told: Counter[str] = Counter()
        self._cuts: list[Any] = []
        self._cut_at: dict[Address, int] = dict.fromkeys(names, 0)
        self._heap: list[tuple[int, int, Address, Any]] = []
        self._count = 0
        self._timers: dict[tuple[Address, str], int] = {}
        self._sequence: Counter[str] = Counter()
        for name in names:
            self.give(name, Restarted())

    def give(self, site: Address, message: Any, after: int = 0) -> None:
        self._count += 1
        heappush(self._heap, (self.now + after, self._count, site, message))

    def come_back(self, site: Address) -> None:
        """With the log of its inputs, so with its state; what was on its way to it is lost, but for cuts: they wait."""
        self.give(site, Restarted())
        for _ in range(len(self._cuts) - self._cut_at[site] - self._waiting_cuts(site)):
            self.give(site, Heard(CUTS, None))

    def _waiting_cuts(self, site: Address) -> int:
        return sum(to == site and isinstance(message, Heard) for _, _, to, message in self._heap)

    def publish(self, site: str, after: int = 0) -> str:
        self._sequence[site] += 1
        event = Event(site, self._sequence[site], "t")
        self.give(Address(site), Publish(Topic(1), event, self._sequence[site]), after)
        return event.id

    def run(self, until: int) -> None:
        while self._heap and self._heap[0][0] <= until:
            self.now, _, site, message = heappop(self._heap)
            if site in self.down:
                continue
            if isinstance(message, Fired) and self._timers.get((site, message.key)) != self.now:
                continue
            if isinstance(message, Heard):  # the next cut of this site
                message = Heard(CUTS, self._cuts[self._cut_at[site]])
                self._cut_at[site] += 1
            for effect in self.sites[site].handle(message, Micros(self.now)):
                self._perform(site, effect)
        self.now = until

    def _perform(self, site: Address, effect: Any) -> None:
        match effect:
            case Send(to=to, message=message):
                apart = any((site in part) != (to in part) for part in self.parts)
                if not apart and self.dice.random() >= self.loss:
                    for _ in range(1 + (self.dice.random() < self.repeat)):
                        self.give(to, message, self.dice.randrange(500, 60_000))
            case Broadcast(message=cut):
                self._cuts.append(cut)
                for each in self.sites:
                    self.give(each, Heard(CUTS, None), self.dice.randrange(1_000, 90_000))
            case SetTimer(key=key, at=at):
                self._timers[site, key] = at = Micros(max(at, self.now + 1))
                self.give(site, Fired(key), at - self.now)
            case CancelTimer(key=key):
                self._timers.pop((site, key), None)
            case Deliver(item=Placed(key=key, event=event)):
                self._place(site, key, event.id)
            case Deliver(item=SettledOrder(events=events)):
                self._settle(site, [event.id for event in events])
            case _:
                self.told[type(effect).__name__] += 1

    def _place(self, site: Address, key: Any, operation: str) -> None:
        log, keys = self.log[site], self.keys[site]
        if operation in log:  # it is moved ahead
            at = log.index(operation)
            del log[at], keys[at]
        at = sum(other < key for other in keys)
        log.insert(at, operation)
        keys.insert(at, key)

    def _settle(self, site: Address, operations: list[str]) -> None:
        self.settled[site] += operations
        left = [(o, k) for o, k in zip(self.log[site], self.keys[site]) if o not in set(operations)]
        self.log[site], self.keys[site] = [o for o, _ in left], [k for _, k in left]
