"""All interleavings of small stars (spec section 12, [X]): hub, X at one region, T at the other.

To keep the spaces small, requests are put before the homes directly, a payload arrives with the first word about its
number, and static subscribers are registrations only: what the dynamic ones were notified of must be *forced* upon
them by numbers and entries, since their broker could have delayed everything.
"""

from typing import Any

import pytest
from msgspec.structs import replace

from unisono.machine import Effect, Heard, Subscribe, Unsubscribe
from unisono.model.event import Event
from unisono.model.ids import Address, Topic
from unisono.model.time import Micros
from unisono.protocols.sequencer.client import OrderingClient
from unisono.protocols.sequencer.config import SequencerConfig
from unisono.protocols.sequencer.messages import Creates, Install, Payload, Stamps, Wanted
from unisono.protocols.sequencer.node import TopicManager
from unisono.sim.explore import Explored, Situation, explore, settle

X, T = Topic(1), Topic(2)
HUB, R1, R2 = Address("hub"), Address("r1"), Address("r2")
HOMES = {X: R1, T: R2}
STAMP = SequencerConfig(early=False)
MODES = {
    "full": replace(STAMP, encoding="full"),
    "delta": STAMP,
    "delta sgmin 1": replace(STAMP, sgmin=1),
    "early full": SequencerConfig(encoding="full"),
    "early delta": SequencerConfig(),
}
JOIN_T, JOIN_X, LEAVE_X = Subscribe((T,)), Subscribe((X,)), Unsubscribe((X,))


class Whole:
    """A client to whom every payload comes together with the first word about its number."""

    def __init__(self, name: str, config: SequencerConfig) -> None:
        self.inside = OrderingClient(Address(name), HOMES, config)

    def handle(self, message: Any, now: Micros) -> list[Effect]:
        effects: list[Effect] = []
        if isinstance(message, Heard):
            topic = message.topic
            feed = self.inside.subscriber.feeds.get(topic)
            inner = message.message
            runs = inner.runs if isinstance(inner, Stamps) else [piece.run for piece in inner.pieces]
            for run in runs if feed is not None else ():
                if run.first not in feed.items and run.last > self.inside.subscriber.hold.local.get(topic, 0):
                    payload = Payload(run.publisher, run.request, Event("p", run.first, str(topic)))
                    effects += self.inside.handle(Heard(topic, payload), now)
        return effects + self.inside.handle(message, now)


def request(topic: Topic, number: int = 1) -> Creates:
    return Creates(Address(f"p{topic}"), (Wanted(topic, number, 1, 1),))


def star(config: SequencerConfig, static: tuple[tuple[Topic, ...], ...], movers: dict[str, tuple[Topic, ...]]) -> Any:
    machines: dict[str, Any] = {
        HUB: TopicManager(HUB, None, (R1, R2), (), {X: R1, T: R2}, config),
        R1: TopicManager(R1, HUB, (), (X,), {}, config),
        R2: TopicManager(R2, HUB, (), (T,), {}, config),
    } | {name: Whole(name, config) for name in movers}
    situation = Situation.of(machines, fifo=lambda source, to: source in (HUB, R1, R2) and to in (HUB, R1, R2))
    for i, topics in enumerate(static):
        for topic in topics:
            situation = situation.tell(HOMES[topic], Install(Address(f"z{i}"), 1, topic, topics))
    for name, topics in movers.items():
        situation = settle(situation.tell(name, Subscribe(topics)))
    return situation


def forced(final: Situation) -> dict[tuple[int, int], set[tuple[int, int]]]:
    """What must come before each event, at a subscriber of both topics from the beginning."""
    direct = {}
    for topic, node in HOMES.items():
        for run in final.machine(node).hosted[topic].issued.values():
            direct[topic, run.first] = {(topic, run.first - 1), *run.entries.items()}
    done: dict[tuple[int, int], set[tuple[int, int]]] = {}
    for _ in direct:
        for key, before in direct.items():
            done[key] = before.union(*(done.get(other, direct.get(other, set())) for other in before))
    for key, before in done.items():
        assert key not in before, f"{key} waits for itself"
    return done


def check(movers: list[str], static: bool) -> Any:
    def at_end(final: Situation) -> None:
        before = forced(final)
        orders = {}
        for name in movers:
            subscriber = final.machine(name).inside.subscriber
            assert not subscriber.joining
            assert not any(feed.items for feed in subscriber.feeds.values()), f"{name} is stuck"
            order = orders[name] = [(i.topic, i.number) for i in final.delivered(name) if isinstance(i, Heard)]
            for i, late in enumerate(order if static else ()):
                for early in order[:i]:
                    assert early in before[late], f"{name} heard {order}, and nothing forces {early} before {late}"
        for a in movers:
            for b in movers:
                common = [key for key in orders[a] if key in orders[b]]
                assert common == [key for key in orders[b] if key in orders[a]], orders

    return at_end


def run(
    config: SequencerConfig,
    static: tuple[tuple[Topic, ...], ...],
    movers: dict[str, tuple[Topic, ...]],
    scripts: dict[str, list[Any]],
    states_max: int = 20_000,
) -> Explored:
    return explore(star(config, static, movers), scripts, check(list(movers), bool(static)), states_max)


PAIR = ((X, T),)


ONE_EACH = {R1: [request(X)], R2: [request(T)]}


@pytest.mark.parametrize("mode", MODES)
def test_a_join_and_two_events(mode: str) -> None:
    assert run(MODES[mode], PAIR, {"s": (X,)}, ONE_EACH | {"s": [JOIN_T]}).is_complete


@pytest.mark.parametrize("mode", MODES)
def test_leaving_one_topic_and_joining_the_other(mode: str) -> None:
    assert run(MODES[mode], PAIR, {"s": (X,)}, ONE_EACH | {"s": [LEAVE_X, JOIN_T]}).is_complete


LARGER = {
    "leave and come back": ({"s": (X, T)}, {"s": [LEAVE_X, JOIN_X]}),
    "leave and join both": ({"s": (X,)}, {"s": [LEAVE_X, Subscribe((X, T))]}),
    "two who join crosswise": ({"s": (X,), "r": (T,)}, {"s": [JOIN_T], "r": [JOIN_X]}),
    "a join and three events": ({"s": (X,)}, {R1: [request(X, 1), request(X, 2)], "s": [JOIN_T]}),
}


@pytest.mark.campaign
@pytest.mark.parametrize("case", LARGER)
@pytest.mark.parametrize("mode", MODES)
def test_larger_spaces(mode: str, case: str) -> None:
    movers, scripts = LARGER[case]
    assert run(MODES[mode], PAIR, movers, ONE_EACH | scripts, states_max=300_000).is_complete
