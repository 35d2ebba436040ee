"""Small cases of the clock order in every order in which messages arrive, clocks tick and beats are told.

Two stampers that keep a topic each, two subscribers of both, publishers. Every host has a clock of its own, and moves
it by itself, so clocks are apart by as much as a case has ticks. Links between nodes, and from a node to its clients,
keep their order; what the broker carries comes in any. In the end beats and ticks go on until nothing waits: then
nothing may be missing.
"""

from typing import Any

import pytest
from msgspec import structs

from unisono.machine import (
    Accepted,
    Effect,
    Fired,
    Gap,
    Heard,
    Joined,
    Persist,
    Publish,
    Restarted,
    SetTimer,
    Subscribe,
    one_by_one,
)
from unisono.model.event import Event
from unisono.model.ids import Address, Topic
from unisono.model.time import Micros
from unisono.protocols.clock.client import ClockClient
from unisono.protocols.clock.config import ClockConfig
from unisono.protocols.clock.messages import KeyRules, Nearest, PeerMessage, SetLean
from unisono.protocols.clock.stamper import StamperMachine
from unisono.sim.explore import ENS, Explored, Situation, explore, settle

RULES = ("K0",)
NODES = (Address("n0"), Address("n1"))
A, B = Topic(0), Topic(1)
HOMES = {A: 0, B: 1}
CONFIG = ClockConfig(warm_up_us=Micros(10))
LEANING = structs.replace(CONFIG, causal=False)
TICK = 1_000_000
NEAR = {"p": 0, "q": 1, "s": 0, "t": 1}
LATER = 40 * TICK


class Host:
    """A machine, its clock, its timers, and for a stamper its log."""

    def __init__(self, name: str, config: ClockConfig) -> None:
        self.name, self.config, self.clock = name, config, 1_000 * TICK
        self.log: list[tuple[int, Any]] = []
        self.timers: dict[str, int] = {}
        self._make()
        self.begun = self._say(Restarted()) if name in NODES else []

    def _make(self) -> None:
        if self.name in NODES:
            me = NODES.index(Address(self.name))
            kept = tuple(topic for topic, home in HOMES.items() if home == me)
            self.machine: Any = StamperMachine(me, NODES, HOMES.get, kept, self.config)
        else:
            self.machine = ClockClient(Address(self.name), NEAR[self.name], NODES, HOMES.get, self.config)

    def handle(self, message: Any, now: Micros) -> list[Effect]:
        begun, self.begun = self.begun, []
        match message:
            case "begin":
                return begun
            case "beat":
                return self._say(Fired("beat"))
            case ("tick", by):
                self.clock += by
                due = [key for key, at in self.timers.items() if at <= self.clock]
                effects: list[Effect] = []
                for key in due:
                    del self.timers[key]
                    effects += self._say(Fired(key))
                return effects
            case "crash":
                log = self.log
                self._make()
                self.timers.clear()
                for then, logged in log:
                    self.machine.handle(logged, Micros(then))
                return self._say(Restarted())
            case _:
                return self._say(message)

    def _say(self, message: Any) -> list[Effect]:
        effects = self.machine.handle(message, Micros(self.clock))
        if self.name in NODES and (isinstance(message, PeerMessage) or any(isinstance(e, Persist) for e in effects)):
            self.log.append((self.clock, message))
        for effect in effects:
            if isinstance(effect, SetTimer):
                self.timers[effect.key] = effect.at
        return [effect for effect in effects if not isinstance(effect, SetTimer | Persist)]


def in_line(source: str, to: str) -> bool:
    return source != ENS


def world(*subscribed: str, config: ClockConfig = CONFIG) -> Situation:
    """Everybody is there; these subscribers have joined both topics."""
    hosts = {name: Host(name, config) for name in (*NODES, *NEAR)}
    begun = Situation.of(hosts, fifo=in_line)
    for node in NODES:
        begun = begun.tell(node, "begin")
    begun = settle(begun)
    for name in subscribed:
        begun = settle(begun.tell(name, Subscribe((A, B))))
    return quiet(begun)


def quiet(situation: Situation, by: int = TICK) -> Situation:
    """Nobody publishes any more; clocks and beats go on for a while."""
    for _ in range(3):
        for name in (*NODES, *NEAR):
            situation = settle(situation.tell(name, ("tick", by)))
        for node in NODES:
            situation = settle(situation.tell(node, "beat"))
    return situation


def events(final: Situation, name: str) -> list[tuple[int, str]]:
    heard = [one for item in final.delivered(name) for one in one_by_one(item) if isinstance(one, Heard)]
    return [(one.number, one.message.id) for one in heard]


def check(final: Situation, causal: bool) -> None:
    told = {name: events(final, name) for name in ("s", "t")}
    for name, own in told.items():
        numbers, ids = [number for number, _ in own], [event for _, event in own]
        assert numbers == sorted(numbers), f"{name} was told {own}"
        assert len(set(ids)) == len(ids), f"{name} was told twice: {own}"
    keys = dict.fromkeys(told["s"] + told["t"])
    assert len(keys) == len({event for _, event in keys}), f"an event has two keys: {told}"
    for who in "pq":  # what it published first is a cause of what it published then; without causes, on each topic
        for topics in ("ab",) if causal else ("a", "b"):
            own = sorted(key for key in keys if key[1][0] in topics and key[1][1] == who)
            requests = [int(event.partition(":")[2]) for _, event in own]
            assert requests == sorted(requests), f"{who} was told of as {own}"


def check_all(owed: tuple[str, ...], late: tuple[str, ...], causal: bool) -> Any:
    """In the end those who were there hear everything that was accepted; who joins hears what comes after its cut."""

    def at_end(final: Situation) -> None:
        check(final, causal)
        final = quiet(quiet(final), LATER)
        check(final, causal)
        gaps = {name: [item for item in final.delivered(name) if isinstance(item, Gap)] for name in ("s", "t")}
        assert not any(gaps[name] for name in owed)
        accepted = sum(
            len([one for item in final.delivered(name) for one in one_by_one(item) if isinstance(one, Accepted)])
            for name in ("p", "q")
        )
        for name in owed:
            assert len(events(final, name)) == accepted, f"{name} was told {events(final, name)} of {accepted}"
        for name in late:
            joined = {item.topic: item.base for item in final.delivered(name) if isinstance(item, Joined)}
            assert set(joined) == {A, B}
            theirs = events(final, name)
            for number, event in events(final, owed[0]):
                topic = A if event.startswith("a") else B
                # Its payload may have left before the join, and its key be given after it: then that is said.
                is_told = (number, event) in theirs or any(gap.first <= number <= gap.last for gap in gaps[name])
                assert (number > joined[topic]) == is_told, f"{name}: {event} of {theirs}"

    return at_end


def publish(who: str, topic: Topic, number: int) -> Publish:
    return Publish(topic, Event("ab"[topic] + who, number, "ab"[topic]), number)


def explored(start: Situation, scripts: dict[str, list[Any]], at_end: Any, states_max: int = 150_000) -> Explored:
    return explore(start, scripts, at_end, states_max)


def opened(config: ClockConfig = CONFIG) -> Situation:
    """n1 has a lane on A already."""
    start = settle(world("s", "t", config=config).tell("q", publish("q", A, 1)))
    return quiet(start)


CASES: dict[str, tuple[Any, dict[str, list[Any]], tuple[str, ...], tuple[str, ...]]] = {
    "two stampers": (opened, {"p": [publish("p", A, 2)], "q": [publish("q", A, 2)]}, ("s", "t"), ()),
    "two topics": (opened, {"p": [publish("p", A, 2)], "q": [publish("q", B, 2)], "n0": [("tick", 7)]}, ("s", "t"), ()),
    "ticks": (
        opened,
        {"p": [publish("p", A, 2)], "q": [publish("q", A, 2)], "n1": [("tick", 5_000), ("tick", 5_000)]},
        ("s", "t"),
        (),
    ),
    "opening": (lambda: world("s"), {"q": [publish("q", A, 1)], "p": [publish("p", A, 1)]}, ("s",), ()),
    "closing": (opened, {"n1": [("tick", 61 * TICK)], "p": [publish("p", A, 2)]}, ("s", "t"), ()),
    "crash": (opened, {"q": [publish("q", A, 2)], "n1": ["crash", ("tick", 20)]}, ("s", "t"), ()),
    "keeper crashes": (lambda: world("s"), {"q": [publish("q", A, 1)], "n0": ["crash", ("tick", 20)]}, ("s",), ()),
    "lean": (opened, {"n1": [SetLean(A, 5_000), SetLean(A, -5_000)], "q": [publish("q", A, 2)]}, ("s", "t"), ()),
    "lean, no causes": (
        lambda: opened(LEANING),
        {
            "n1": [SetLean(A, 5_000), SetLean(A, -5_000)],
            "q": [publish("q", A, 2), publish("q", B, 3), publish("q", A, 4)],
        },
        ("s", "t"),
        (),
    ),
    "other rules": (
        opened,
        {
            "n1": [KeyRules(False, 0), SetLean(A, 5_000), "crash", KeyRules(True, 0), ("tick", 20)],
            "q": [publish("q", A, 2), publish("q", B, 3)],
        },
        ("s", "t"),
        (),
    ),
    "keeper is slow": (
        lambda: world("s"),
        {"q": [publish("q", A, 1), publish("q", B, 2)], "n1": [("tick", TICK), ("tick", 9 * TICK), ("tick", TICK)]},
        ("s",),
        (),
    ),
    "both crash": (
        lambda: world("s"),
        {
            "q": [publish("q", A, 1), publish("q", B, 2)],
            "n0": ["crash", ("tick", 20)],
            "n1": ["crash", ("tick", 20)],
        },
        ("s",),
        (),
    ),
    "all of it": (
        lambda: opened_for("s"),
        {
            "n1": [SetLean(A, 5_000), "crash", ("tick", 20)],
            "q": [publish("q", A, 2), publish("q", B, 3)],
            "p": [publish("p", B, 1)],
            "t": [Subscribe((A, B))],
        },
        ("s",),
        ("t",),
    ),
    "publisher moves": (
        lambda: world("s"),
        {"p": [publish("p", A, 1), Nearest(NODES[1]), publish("p", A, 2)], "n0": [("tick", 400_000)]},
        ("s",),
        (),
    ),
    "clock ahead": (
        opened,
        {"n1": [("tick", 7 * TICK), "crash", ("tick", 20)], "q": [publish("q", A, 2)], "p": [publish("p", A, 2)]},
        ("s", "t"),
        (),
    ),
    "join": (lambda: opened_for("s"), {"q": [publish("q", A, 2)], "t": [Subscribe((A, B))]}, ("s",), ("t",)),
}


WITHOUT_CAUSES = ("lean, no causes", "other rules")


def opened_for(name: str) -> Situation:
    return quiet(settle(world(name).tell("q", publish("q", A, 1))))


@pytest.mark.parametrize("name", CASES)
def test_every_order_of_a_small_case_is_one_order(name: str) -> None:
    start, scripts, owed, late = CASES[name]
    found = explored(start(), scripts, check_all(owed, late, name not in WITHOUT_CAUSES), states_max=3_000)
    assert found.states > 100


@pytest.mark.campaign
@pytest.mark.parametrize("name", CASES)
def test_campaign_small_cases_to_the_end_or_to_a_bound(name: str) -> None:
    start, scripts, owed, late = CASES[name]
    found = explored(start(), scripts, check_all(owed, late, name not in WITHOUT_CAUSES), states_max=300_000)
    print(f"{name}: {found.states} states, {found.finals} ends, {'all' if found.is_complete else 'to the bound'}")
    assert found.is_complete or found.states == 300_000
