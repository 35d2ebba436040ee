"""Tickets (numbers before payloads) break what the paper promises; that is why they are a baseline and no mode."""

from collections import deque
from typing import Any

from unisono.experiments.baselines.ticket import LEASE_US, Published, TicketClient, Ticketed, TicketGranted, TicketNode
from unisono.machine import Accepted, Broadcast, Deliver, Effect, Fired, Heard, Publish, Send, SetTimer, Subscribe
from unisono.model.event import Event
from unisono.model.ids import Address, Topic
from unisono.model.time import Micros

X, T = Topic(1), Topic(2)


class World:
    """One home for both topics, a publisher, two subscribers; messages of held kinds wait, or are lost."""

    def __init__(self, causal: bool = False) -> None:
        home = Address("n")
        self.now = Micros(0)
        self.machines: dict[str, Any] = {"n": TicketNode(None, (X, T), {}, {X: (T,), T: (X,)})}
        for name in ("p", "s", "z"):
            self.machines[name] = TicketClient(Address(name), {X: home, T: home}, causal)
        self.letters: deque[tuple[str, Any]] = deque()
        self.timers: dict[tuple[str, str], Micros] = {}
        self.heard: dict[str, list[tuple[str, bool]]] = {"s": [], "z": []}
        self.accepted: list[int] = []
        self.void: Ticketed | None = None  # the last one
        for name in self.heard:
            self.tell(name, Subscribe((X, T)))

    def tell(self, who: str, message: Any) -> None:
        for effect in self.machines[who].handle(message, self.now):
            self._perform(who, effect)

    def publish(self, topic: Topic, sequence: int) -> None:
        self.tell("p", Publish(topic, Event("p", sequence, str(topic), b""), sequence))

    def _perform(self, who: str, effect: Effect) -> None:
        match effect:
            case Send(to=to, message=message):
                self.letters.append((to, message))
            case Broadcast(topic=topic, message=message):
                if message.event is None:
                    self.void = message
                self.letters += [(name, Heard(topic, message)) for name in self.heard]
            case SetTimer(key=key, at=at):
                self.timers[who, key] = at
            case Deliver(item=Accepted(request=request)):
                self.accepted.append(request)
            case Deliver(item=Heard(message=event, late=late)):
                self.heard[who].append((event.id, late))

    def run(self, *held: tuple[str, type]) -> list[tuple[str, Any]]:
        """Delivers all but what is held; returns that."""
        kept = []
        while self.letters:
            to, message = self.letters.popleft()
            inner = message.message if isinstance(message, Heard) else message
            if (to, type(inner)) in held:
                kept.append((to, message))
            else:
                self.tell(to, message)
        return kept

    def wait(self, us: int, *held: tuple[str, type]) -> list[tuple[str, Any]]:
        kept, end = self.run(*held), self.now + us
        while self.timers and min(self.timers.values()) <= end:
            (who, key), at = min(self.timers.items(), key=lambda timer: timer[1])
            del self.timers[who, key]
            self.now = max(self.now, at)
            self.tell(who, Fired(key))
            kept += self.run(*held)
        self.now = Micros(end)
        return kept


def test_a_voided_event_is_published_after_younger_ones_of_its_publisher() -> None:
    world = World()
    world.publish(X, 1)
    late = world.wait(LEASE_US // 2 + 1, ("p", TicketGranted))
    world.publish(X, 2)
    world.run()
    world.letters.extend(late)
    world.wait(3 * LEASE_US)
    assert world.accepted == [2, 1]
    assert [event for event, _ in world.heard["s"]] == ["p:2", "p:1"]


def test_with_causal_order_it_comes_after_what_was_published_because_of_it() -> None:
    world = World(causal=True)
    world.publish(X, 1)
    world.publish(T, 2)  # waits until the first is granted, and it is: too late
    late = world.wait(LEASE_US // 2 + 1, ("p", TicketGranted))
    world.letters.extend(late)
    world.wait(3 * LEASE_US)
    assert [event for event, _ in world.heard["s"]] == ["p:2", "p:1"]


def test_a_number_that_was_published_and_accepted_is_voided_and_lost_in_silence() -> None:
    world = World()
    world.publish(X, 1)
    world.wait(LEASE_US + 1, ("n", Published), ("z", Ticketed))  # the home is not told, and the broker is late for z
    assert world.accepted == [1]
    world.publish(X, 2)
    world.wait(LEASE_US)
    assert world.heard == {"s": [("p:1", False), ("p:2", False)], "z": []}
    world.tell("z", Heard(X, world.void))
    assert world.heard["z"] == [("p:2", False)], "it goes on as if nothing had been there"


def test_a_grant_that_was_lost_is_answered_never_when_its_lease_is_over() -> None:
    world = World()
    world.publish(X, 1)
    world.wait(LEASE_US + 1, ("p", TicketGranted))  # all of them are lost
    world.wait(100 * LEASE_US)
    assert world.accepted == []
    assert ("p", "create") in world.timers, "it asks for ever"
