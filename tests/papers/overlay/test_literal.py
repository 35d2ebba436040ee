"""The algorithm as printed misorders: W1 to W8 of specs: content-order, section 11, and ours does not.

W5 (what is in flight) is T8 to T10 in `test_cases`, with the mutants that leave out the handshakes.
"""

import random
from collections import deque
from typing import Any, Literal

import pytest

from tests.papers.overlay.fuzz import random_tree
from tests.papers.overlay.net import Net, fifo, pairwise, span
from unisono.experiments.baselines.lamport_overlay import LamportBroker
from unisono.experiments.baselines.literal_overlay import LiteralBroker, Mode
from unisono.machine import Refuse, Send
from unisono.model.event import Event
from unisono.model.ids import Address
from unisono.model.predicate import Filter
from unisono.model.time import Micros
from unisono.protocols.overlay.messages import Ack, LinkUp, OverlayDelivery, Pub
from unisono.protocols.overlay.tables import Tables

RULES = ("W1",)

ALL = span(0, 9)


class Printed:
    """Brokers of the printed algorithm, or of Lamport's, on FIFO links; everybody knows everything from the start."""

    def __init__(
        self,
        parents: list[int],
        ads: list[tuple[str, int, Filter]],
        subs: list[tuple[str, int, Filter]],
        mode: Mode | Literal["lamport"],
    ) -> None:
        self.names = [Address(f"B{i}") for i in range(len(parents))]
        near: dict[int, list[int]] = {i: [] for i in range(len(parents))}
        for child, parent in enumerate(parents):
            if parent >= 0:
                near[child].append(parent)
                near[parent].append(child)
        self.channels: dict[tuple[Address, Address], deque[Any]] = {}
        self.brokers: dict[Address, LiteralBroker | LamportBroker] = {}
        self.homes = {name: self.names[at] for name, at, _ in [*ads, *subs]}
        self.heard: dict[str, list[Event]] = {name: [] for name, _, _ in subs}
        self.counts: dict[str, int] = {}
        self.acks = 0
        for i, name in enumerate(self.names):
            tables = Tables()
            for ad, at, filter in ads:
                tables.add_ad(ad, f"pub:{ad}" if at == i else self.names[towards(near, i, at)], ad, filter)
            for sub, at, filter in subs:
                tables.add_sub(sub, f"sub:{sub}" if at == i else self.names[towards(near, i, at)], sub, filter)
            links = [self.names[j] for j in near[i]]
            self.brokers[name] = (
                LamportBroker(name, links, tables) if mode == "lamport" else LiteralBroker(name, links, tables, mode)
            )
            for j in near[i]:
                self.channels[name, self.names[j]] = deque()

    def publish(self, publisher: str, x: int = 1) -> None:
        self.counts[publisher] = self.counts.get(publisher, 0) + 1
        event = Event(publisher, self.counts[publisher], "t", attributes={"x": x})
        self.tell(self.homes[publisher], Pub(Address(publisher), event))

    def tell(self, name: Address, message: Any) -> None:
        for effect in self.brokers[name].handle(message, Micros(0)):
            assert isinstance(effect, Send)
            if isinstance(effect.message, OverlayDelivery):
                self.heard[effect.to].append(effect.message.event)
            else:
                self.acks += isinstance(effect.message, Ack)
                self.channels[name, effect.to].append(effect.message)

    def read(self, source: int, to: int) -> None:
        self.tell(self.names[to], self.channels[self.names[source], self.names[to]].popleft())

    def settle(self, dice: random.Random | None = None) -> None:
        while waiting := [link for link, channel in self.channels.items() if channel]:
            source, to = dice.choice(waiting) if dice else waiting[0]
            self.tell(to, self.channels[source, to].popleft())

    def order(self, client: str) -> str:
        return " ".join(f"{event.publisher}.{event.sequence - 1}" for event in self.heard[client])


def towards(near: dict[int, list[int]], here: int, there: int) -> int:
    """The neighbour of `here` on the way to `there`."""
    for first in near[here]:
        seen, frontier = {here: None, first: None}, [first]
        while frontier:
            node = frontier.pop()
            if node == there:
                return first
            for other in near[node]:
                if other not in seen:
                    seen[other] = None
                    frontier.append(other)
    raise AssertionError("not connected")


def two(mode: Mode, *more: tuple[str, int, Filter]) -> Printed:
    return Printed([-1, 0], [("a", 0, ALL), ("b", 1, ALL), *more], [("S0", 0, ALL), ("S1", 1, ALL)], mode)


@pytest.mark.parametrize("mode", ["batch", "sorted"])
def test_w1_and_w3_a_later_publication_is_sorted_in_front_of_one_already_delivered(mode: Mode) -> None:
    net = two(mode)
    net.publish("a")
    net.publish("b")
    net.read(0, 1)  # B1 reads a.0 and acknowledges
    net.read(1, 0)  # B0 reads b.0 and acknowledges
    net.read(0, 1)  # B1 reads ack(b.0)
    net.publish("a")
    net.settle()
    assert net.order("S1") == "a.0 b.0 a.1"
    assert net.order("S0") == "a.0 a.1 b.0"


def test_w2_progressive_delivery_misorders_too() -> None:
    net = two("progressive")
    net.publish("a")
    net.publish("b")
    net.read(1, 0)  # B0 reads b.0
    net.publish("b")
    net.read(0, 1)  # B1 reads a.0, queued after b.1
    net.read(0, 1)  # ack(b.0)
    net.settle()
    assert pairwise(net.heard) != []


def test_w4_natural_order_and_id_order_do_not_compose() -> None:
    net = two("batch", ("c", 0, ALL))
    net.publish("c")
    net.publish("a")
    net.settle()
    assert net.order("S1") == "c.0 a.0"
    assert net.order("S0") == "a.0 c.0"


def test_w6_a_queue_that_waits_for_all_starves_while_an_item_here_waits_for_its_own_echo_only() -> None:
    printed = two("batch")
    ours = Net([-1, 0], "exact")
    for publisher, at in (("a", 0), ("b", 1)):
        ours.advertise(publisher, at, ALL)
    ours.settle()
    for client, at in (("S0", 0), ("S1", 1)):
        ours.subscribe(client, at, ALL)
    ours.settle()
    printed.publish("b")
    ours.publish("b", x=1)
    for _ in range(30):  # the next one always comes before the acknowledgement of the last one is read
        printed.publish("b")
        ours.publish("b", x=1)
        printed.read(1, 0)
        ours.read(1, 0, 1)
        printed.read(0, 1)
        ours.read(0, 1, 1)
    assert len(printed.heard["S0"]) == len(ours.heard["S0"]) == 30
    assert len(printed.heard["S1"]) == 0
    assert len(ours.heard["S1"]) == 30


def test_w7_a_broker_with_two_arbiters_would_obey_two_orders_so_a_second_parent_is_refused() -> None:
    net = Net([-1, -1, 0])
    effects = net.broker(2).handle(LinkUp(Address("B1"), True), Micros(0))
    assert [type(effect) for effect in effects] == [Refuse]
    assert net.broker(2).parent == "B0"


def random_run(mode: Mode | Literal["lamport"], seed: int, filters: bool = False) -> list[str]:
    dice = random.Random(seed)

    def some() -> Filter:
        low = dice.randrange(6)
        return span(low, low + dice.randrange(4)) if filters else ALL

    parents = random_tree(dice, dice.randint(2, 5))
    ads = [(f"p{i}", dice.randrange(len(parents)), some()) for i in range(3)]
    subs = [(f"s{i}", dice.randrange(len(parents)), some()) for i in range(4)]
    net = Printed(parents, ads, subs, mode)
    for _ in range(12):
        publisher, _, filter = dice.choice(ads)
        net.publish(publisher, next(x for x in dice.sample(range(10), 10) if filter.matches({"x": x})))
        for _ in range(dice.randrange(4)):
            waiting = [link for link, channel in net.channels.items() if channel]
            if waiting:
                source, to = dice.choice(waiting)
                net.tell(to, net.channels[source, to].popleft())
    net.settle(dice)
    stuck = [name for broker in net.brokers.values() for name in broker.pending]
    return [*pairwise(net.heard), *fifo(net.heard), *stuck]


@pytest.mark.parametrize("mode", ["plain", "batch", "progressive", "sorted"])
def test_random_runs_of_the_printed_algorithm_are_often_misordered(mode: Mode) -> None:
    assert sum(bool(random_run(mode, seed)) for seed in range(40)) >= 8


@pytest.mark.parametrize("filters", [False, True], ids=["all overlap", "some overlap"])
def test_lamport_keys_keep_the_order_and_come_to_rest(filters: bool) -> None:
    assert [seed for seed in range(150) if random_run("lamport", seed, filters)] == []


def test_w8_the_printed_algorithm_acknowledges_every_edge_where_two_echoes_suffice() -> None:
    """Four core brokers in a chain, five edge brokers each, everything overlaps with everything."""
    parents = [1, -1, 1, 2, *(core for core in range(4) for _ in range(5))]
    edges = range(4, 24)
    printed = Printed(parents, [(f"p{i}", i, ALL) for i in edges], [(f"s{i}", i, ALL) for i in edges], "progressive")
    ours = Net(parents, "exact")
    for i in edges:
        ours.advertise(f"p{i}", i, ALL)
    ours.settle()
    for i in edges:
        ours.subscribe(f"s{i}", i, ALL)
    ours.settle()
    before = ours.messages
    printed.publish("p4")
    printed.settle()
    ours.publish("p4", x=1)
    ours.settle()
    assert ours.problems() == []
    assert printed.acks > 40
    assert ours.messages - before == 23 + 2  # every link once, and the echo to core 0 and to its edge
