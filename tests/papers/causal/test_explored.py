"""Small cases in every order in which clocks tick and messages arrive: complete, or to a bound that is said.

Two brokers, a client that publishes through both, a subscriber. Every host has a clock of its own, and ticks are
moves like
any other, so clocks are apart by as much as a case has ticks. An event's payload names what its client had been told
of or had published before: that is the ground truth.
"""

from typing import Any

import pytest
from msgspec.structs import replace

from tests.papers.causal.literal import NoContext
from unisono.machine import Deliver, Effect, Send
from unisono.model.event import Event
from unisono.model.ids import Address
from unisono.model.time import Micros
from unisono.protocols.causal.config import CausalConfig
from unisono.protocols.causal.messages import CausalEmitted, CausalFrame, CausalPublication, CausalRefused, FrameFate
from unisono.protocols.causal.order import CausalOrder
from unisono.protocols.causal.publishing import CausalAuthor, CausalEmitter
from unisono.sim.explore import BrokenError, Explored, Situation, explore

RULES = ("G1-5", "CLIENT")
CONFIG = CausalConfig(eps_ticks=1, life_ticks=2, spread_ticks=1, deadline_ticks_max=6, delay_ticks=4, publish_ticks=1)
BROKERS = {"A": 1, "B": 2}
LIFE = 10
"""Incarnations of a broker are so far apart."""
HEARERS = ("A", "B", "c", "s")
G = 7


class Station:
    """The order, and what its host needs to publish; its clock is its own."""

    def __init__(self, name: str, config: CausalConfig) -> None:
        self.name, self.clock = name, 10
        self.order = CausalOrder(config, BROKERS.get(name))
        self.order.floors = {G: 0}
        self.told: list[str] = []
        self.emitter = CausalEmitter(self.order) if name in BROKERS else None
        self.author = CausalAuthor(Address(name), self.order, _group) if name not in BROKERS else None

    def handle(self, message: Any, now: Micros) -> list[Effect]:
        effects: list[Effect] = []
        match message:
            case CausalFrame():
                self._settle(self.order.receive(message, self.clock), effects)
            case "tick":
                self.clock += 1
                self._settle(self.order.pump(self.clock), effects)
                if self.author is not None and self.clock >= (self.author.overdue_at or self.clock + 1):
                    self.author.give_up()
            case "restart":  # a new incarnation, which knows nothing
                assert self.order.me is not None
                self.order = CausalOrder(self.order.config, self.order.me + LIFE)
                self.order.subscribe((G,), self.clock)
                self.emitter = CausalEmitter(self.order)
            case "leave":
                self._settle(self.order.unsubscribe((G,), self.clock), effects)
            case "join":
                self.order.subscribe((G,), self.clock)
            case ("publish", broker):
                assert self.author is not None
                if (self.author.broker or 0) % LIFE != BROKERS[broker]:
                    self.author.broker = BROKERS[broker]
                event = Event(self.name, len(self.told) + 1, "g", ",".join(self.told).encode())
                self.told.append(event.id)
                self.author.put(1, event)
            case CausalPublication():
                assert self.emitter is not None
                refused = self.emitter.ask(message, self.clock)
                if refused is not None:
                    effects.append(Send(message.client, refused))
            case CausalEmitted():
                assert self.author is not None
                self.author.emitted(message)
            case CausalRefused():
                assert self.author is not None
                if self.author.has_lost(message):
                    self.author.give_up()
                    self.author.broker = (self.author.broker or 0) + LIFE  # a welcome of the new life
                self.author.refused(message)
        self._move(effects)
        return effects

    def _move(self, effects: list[Effect]) -> None:
        if self.author is not None:
            publication = self.author.next(self.clock)
            if publication is not None:
                to = next(name for name, number in BROKERS.items() if number == publication.broker % LIFE)
                effects.append(Send(Address(to), publication))
        if self.emitter is not None:
            frames, answers = self.emitter.emit(self.clock)
            for frame in frames:
                effects += [Send(Address(name), frame) for name in HEARERS if name != self.name]
                self._settle(self.order.receive(frame, self.clock), effects)
            effects += [Send(answer.client, answer) for answer in answers]

    def _settle(self, settled: list[Any], effects: list[Effect]) -> None:
        for each in settled:
            if each.fate is FrameFate.DELIVERED:
                for event in each.frame.body:
                    self.told.append(event.id)
                    effects.append(Deliver(event))


def _group(topic: str) -> tuple[int, ...]:
    return (G,)


def check(final: Situation) -> None:
    for name in HEARERS:
        events = final.delivered(name)
        ids = [event.id for event in events]
        assert len(set(ids)) == len(ids), f"{name} was told twice: {ids}"
        for place, event in enumerate(events):
            causes = [cause for cause in event.payload.decode().split(",") if cause]
            assert not [cause for cause in causes if cause in ids[place:]], f"{name} was told {ids}"


def explored(scripts: dict[str, list[Any]], config: CausalConfig = CONFIG, states_max: int = 200_000) -> Explored:
    stations = {name: Station(name, config) for name in (*HEARERS, "d") if name != "d" or "d" in scripts}
    return explore(Situation.of(stations, fifo=lambda source, to: False), scripts, check, states_max)


CHAIN = {"d": [("publish", "A")], "c": [("publish", "B")], "s": ["tick"] * 3}
"""d publishes at A; c publishes at B, before or after it has heard of that."""
TWO_BROKERS = {"c": [("publish", "A"), *["tick"] * 4, ("publish", "B")], "s": ["tick"] * 3}
"""The answer of A may come too late: then the outcome is unknown, and the next event leaves through B."""


RESTARTS = {"c": [("publish", "A"), ("publish", "A")], "A": ["restart"], "s": ["tick"] * 2}
"""A may have emitted the first event before it ended; the second is meant for either of its lives."""
COMES_BACK = {"d": [("publish", "A")], "c": [("publish", "B")], "s": ["leave", "join", "tick", "tick"]}
"""s leaves the group and subscribes again, while the chain goes on."""
CASES = {"chain": CHAIN, "two brokers": TWO_BROKERS, "restart": RESTARTS, "comes back": COMES_BACK}


@pytest.mark.parametrize("scripts", CASES.values(), ids=CASES)
def test_every_order_of_a_small_case_is_causal(scripts: dict[str, list[Any]]) -> None:
    found = explored(scripts)
    assert found.is_complete, found
    assert found.finals > 10, found


def test_an_exploration_finds_what_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.papers.causal.test_explored.CausalOrder", NoContext)
    with pytest.raises(BrokenError, match="was told"):
        explored(CHAIN)


@pytest.mark.campaign
@pytest.mark.parametrize("late", ["drop", "deliver"])
@pytest.mark.parametrize("scripts", [CHAIN, TWO_BROKERS], ids=["chain", "two brokers"])
def test_every_order_with_ticking_brokers_too(scripts: dict[str, list[Any]], late: Any) -> None:
    """To a bound of three million situations."""
    ticking = {**scripts, "A": ["tick"], "B": ["tick"] * 2}
    found = explored(ticking, replace(CONFIG, late=late), states_max=3_000_000)
    assert found.is_complete or found.states == 3_000_000
