"""Small deployments to be explored whole: a hub, a few homes around it, static and dynamic subscribers.

To keep the spaces small, requests are put before the homes directly, static subscribers are registrations only (what
the others were notified of must be *forced* upon them by numbers and entries, since their broker could have delayed
everything), and a payload arrives with the first word about its number, unless publishers take part (`voices`).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from unisono.machine import Effect, Fired, Heard, Publish, Subscribe
from unisono.model.event import Event, Payload
from unisono.model.ids import Address, Topic
from unisono.model.time import Micros
from unisono.protocols.sequencer.client import OrderingClient
from unisono.protocols.sequencer.config import SequencerConfig
from unisono.protocols.sequencer.messages import Creates, Install, Stamps, Wanted
from unisono.protocols.sequencer.node import TopicManager
from unisono.sim.explore import Explored, Situation, explore, settle

X, T, D, Y, V = (Topic(number) for number in range(1, 6))
STAR: dict[str, str | None] = {"hub": None, "r1": "hub", "r2": "hub"}
HOMES = {X: "r1", T: "r2"}
Topics = tuple[Topic, ...]


class Case(NamedTuple):
    """Who is subscribed to what at the beginning, and what happens then: each mover's requests, and the events."""

    movers: dict[str, tuple[Topics, list[Any]]]
    events: str = "xt"
    static: tuple[Topics, ...] = ((X, T),)
    homes: dict[Topic, str] = HOMES
    tree: dict[str, str | None] = STAR
    voices: bool = False
    """The events come from publishers, so that payloads travel on their own."""


class Whole:
    """A client to whom every payload comes together with the first word about its number."""

    def __init__(self, name: str, homes: dict[Topic, Address], config: SequencerConfig) -> None:
        self.inside = OrderingClient(Address(name), homes, config)

    def handle(self, message: Any, now: Micros) -> list[Effect]:
        effects: list[Effect] = []
        if isinstance(message, Heard):
            topic = message.topic
            feed = self.inside.subscriber.feeds.get(topic)
            inner = message.message
            runs = inner.runs if isinstance(inner, Stamps) else [piece.run for piece in inner.pieces]
            for run in runs:
                if (
                    feed is not None
                    and run.first not in feed.items
                    and run.last > self.inside.subscriber.hold.local.get(topic, 0)
                ):
                    payload = Payload(run.publisher, run.request, Event("p", run.first, str(topic)))
                    effects += self.inside.handle(Heard(topic, payload), now)
        return effects + self.inside.handle(message, now)


GIVE_UP = Fired("ask")
"""In a script: from now on no payload comes for the numbers that are here without one."""


class Listener(Whole):
    """A client to whom payloads come as they come, or not at all: those published before it listened."""

    now = Micros(0)

    def handle(self, message: Any, now: Micros) -> list[Effect]:
        if message == GIVE_UP:
            self.now = Micros(self.now + self.inside.subscriber.config.payload_wait_us)
        return self.inside.handle(message, self.now)


def start(case: Case, config: SequencerConfig) -> Situation:
    """Everybody is subscribed, nothing has been published."""
    homes = {topic: Address(node) for topic, node in case.homes.items()}
    machines: dict[str, Any] = {node: _node(case, node, config) for node in case.tree}
    client = Listener if case.voices else Whole
    machines |= {name: client(name, homes, config) for name in case.movers}
    if case.voices:
        # Nobody waits for what a publisher is told: its name is not that of its host.
        machines |= {f"voice{topic}": OrderingClient(Address(f"p{topic}"), homes, config) for topic in homes}
    situation = Situation.of(machines, fifo=lambda source, to: source in case.tree and to in case.tree)
    for i, topics in enumerate(case.static):
        for topic in topics:
            situation = situation.tell(homes[topic], Install(Address(f"z{i}"), 1, (topic,), topics))
    for name, (topics, _) in case.movers.items():
        if topics:
            situation = settle(situation.tell(name, Subscribe(topics)))
    return situation


def _node(case: Case, node: str, config: SequencerConfig) -> TopicManager:
    below: dict[Topic, Address] = {}
    for topic, home in case.homes.items():
        at: str | None = home
        while at is not None and case.tree[at] != node:
            at = case.tree[at]
        if at is not None:
            below[topic] = Address(at)
    parent = case.tree[node]
    children = tuple(Address(other) for other, above in case.tree.items() if above == node)
    hosted = tuple(topic for topic, home in case.homes.items() if home == node)
    return TopicManager(Address(node), None if parent is None else Address(parent), children, hosted, below, config)


def scripts(case: Case) -> dict[str, list[Any]]:
    """What everybody will be told from above."""
    found: dict[str, list[Any]] = {name: requests for name, (_, requests) in case.movers.items()}
    counts: dict[Topic, int] = {}
    for letter in case.events:
        topic = {"x": X, "t": T, "d": D, "y": Y, "v": V}[letter]
        number = counts[topic] = counts.get(topic, 0) + 1
        if case.voices:
            found.setdefault(f"voice{topic}", []).append(Publish(topic, Event("p", number, str(topic)), number))
        else:
            request = Creates(Address(f"p{topic}"), (Wanted(topic, number, 1, 1),))
            found.setdefault(case.homes[topic], []).append(request)
    return found


Key = tuple[int, int]


def forced(case: Case, final: Situation) -> dict[Key, set[Key]]:
    """What must come before each event, at a subscriber of all topics from the beginning."""
    direct: dict[Key, set[Key]] = {}
    for topic, node in case.homes.items():
        for run in final.machine(node).hosted[topic].issued.values():
            direct[topic, run.first] = {(topic, run.first - 1), *run.entries.items()}
    done: dict[Key, set[Key]] = {}
    for _ in direct:
        for key, before in direct.items():
            done[key] = before.union(*(done.get(other, direct.get(other, set())) for other in before))
    for key, before in done.items():
        assert key not in before, f"{key} waits for itself"
    return done


def check(case: Case, shared_subscriptions_min: int) -> Callable[[Situation], None]:
    """Nobody is stuck, no two disagree, and the static subscribers could not have."""
    names = list(case.movers)

    def share(a: int, b: int) -> int:
        return sum(a in topics and b in topics for topics in case.static)

    def at_end(final: Situation) -> None:
        before = forced(case, final)
        for a in before:
            for b in before:
                if a < b and share(a[0], b[0]) >= shared_subscriptions_min:
                    assert a in before[b] or b in before[a], f"nothing orders {a} and {b}"
        orders = {}
        for name in names:
            final = final.tell(name, *[GIVE_UP] * (2 * case.voices))  # the second for what the first has let go
            subscriber = final.machine(name).inside.subscriber
            assert not subscriber.joining
            assert not any(feed.items for feed in subscriber.feeds.values()), f"{name} is stuck"
            heard = [item for item in final.delivered(name) if isinstance(item, Heard) and not item.late]
            order = orders[name] = [(item.topic, item.number) for item in heard]
            for i, late in enumerate(order):
                for early in order[:i]:
                    if share(early[0], late[0]):
                        assert early in before[late], f"{name} heard {order}, and nothing forces {early} before {late}"
        for mine in orders.values():
            for theirs in orders.values():
                assert [key for key in mine if key in theirs] == [key for key in theirs if key in mine], orders

    return at_end


def explored(case: Case, config: SequencerConfig, states_max: int) -> Explored:
    """Checks every end; and that there are ends at which something was heard."""
    passes, most = check(case, config.shared_subscriptions_min), dict.fromkeys(case.movers, 0)

    def at_end(final: Situation) -> None:
        passes(final)
        for name, heard in most.items():
            count = sum(isinstance(item, Heard) for item in final.delivered(name))
            most[name] = max(heard, count)

    found = explore(start(case, config), scripts(case), at_end, states_max)
    assert all(most.values()), f"nobody can have heard so little: {most}"
    return found
