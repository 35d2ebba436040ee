"""COUNT against a function of the whole hierarchy, and what a publisher makes of the answers (sections 2 to 5)."""

import random
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from tests.papers.regions.net import QUIET, RegionNet
from unisono.model.ids import Address
from unisono.model.predicate import EVERY_EVENT, Filter, parse
from unisono.model.time import Micros
from unisono.protocols.regions.closeness import closeness, has_measure
from unisono.protocols.regions.graph import best_frontier, combine, frontier, leaves, size, split, truncate
from unisono.protocols.regions.messages import (
    CountEntourage,
    CountReply,
    CountRound,
    GraphEntry,
    GraphReport,
    RegionMeasured,
    Tally,
)

RULES = ("R-COUNT", "R-MATCH", "R-FRONTIER", "R-SPLIT")
PUBLISHED = parse("x between 0 and 99")
P, ROOT = Address("p"), Address("root")


def asked(number: int = 1, psi: float = 0.4, advertised: Filter = PUBLISHED) -> CountRound:
    return CountRound(number, advertised, psi)


# -- interest match


def test_r_match_is_the_share_of_the_publishers_events() -> None:
    """T10: the paper's formula gives 1."""
    assert closeness(parse("x between 0 and 9"), asked()) == pytest.approx(0.1)


def test_r_match_never_grows_towards_the_leaves() -> None:
    """T11: a broker with a wide summary is as close as its closest subscriber."""
    narrow = asked(advertised=parse("x between 0 and 9"))
    assert closeness(parse("x between 0 and 9"), narrow) == 1.0
    assert closeness(parse("x between 0 and 9 or x between 100 and 199"), narrow) == 1.0
    dice = random.Random(1)
    for _ in range(300):
        a, b = (
            f"x between {low} and {low + dice.randint(0, 30)}" for low in (dice.randint(0, 90), dice.randint(0, 90))
        )
        both = closeness(parse(f"{a} or {b}"), asked())
        assert 0 <= max(closeness(parse(a), asked()), closeness(parse(b), asked())) <= both <= 1


def test_r_match_is_taken_from_a_sample_where_there_is_no_measure() -> None:
    free = EVERY_EVENT
    assert not has_measure(free)
    samples = tuple({"name": name} for name in ("ann", "anton", "bob", "carl"))
    by_sample = CountRound(1, free, 0.4, samples)
    assert closeness(parse("name >= 'an' and name < 'ao'"), by_sample) == 0.5
    assert closeness(parse("x > 3"), CountRound(1, PUBLISHED, 0.4)) == pytest.approx(0.96)


# -- against the whole hierarchy


class Tree:
    """A hierarchy as it is, and the report it must give."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.net = RegionNet(msgspec.structs.replace(QUIET, connections_max=64))
        self.children: dict[Address, list[Address]] = {}
        self.wanted: dict[Address, Filter] = {}
        self.direct: dict[Address, bool] = {}
        self.home = self.net.broker("home", root=True)
        self.root = self.net.broker("root", root=True)
        self.net.link(self.home, self.root, is_peer=True)
        self.net.link(self.net.client("p"), self.home)
        self.psi = self.dice.choice([0.05, 0.2, 0.4, 0.8])
        self.grow(self.root, self.dice.randint(0, 3))
        self.net.pass_time(10_000_000)

    def grow(self, above: Address, levels: int) -> None:
        self.children[above] = []
        for _ in range(self.dice.randint(1, 3)):
            name = f"n{len(self.children)}.{len(self.wanted)}"
            if levels and self.dice.random() < 0.8:
                child = self.net.broker(name)
                self.net.link(child, above)
                self.grow(child, levels - 1)
            else:
                low = self.dice.randint(0, 120)
                where = f"x between {low} and {low + self.dice.choice([5, 30, 90, 120])}"
                child = self.net.client(name, where, accepts_direct=self.dice.random() < 0.9)
                subscriber: Any = self.net.nodes[child]
                self.direct[child] = subscriber.subscriber._accepts_direct
                self.wanted[child] = parse(where)
                self.net.subscribe(child)
                self.net.link(child, above)
            self.children[above].append(child)

    def below(self, node: Address) -> list[Filter]:
        if node in self.wanted:
            return [self.wanted[node]]
        return [each for child in self.children[node] for each in self.below(child)]

    def match(self, node: Address) -> float:
        filters = self.below(node)
        boxes = tuple(box for each in filters for box in each.boxes)
        return closeness(Filter(boxes), asked(psi=self.psi))

    def counts(self, node: Address) -> tuple[int, int, int]:
        """Subscribers, hops to them, brokers: below and including."""
        if node in self.wanted:
            return 1, 0, 0
        parts = [self.counts(child) for child in self.children[node]]
        subscribers = sum(part[0] for part in parts)
        return subscribers, sum(p[1] + p[0] for p in parts), 1 + sum(p[2] for p in parts)

    def report(self, node: Address) -> list[GraphEntry] | None:
        """None: refuses; specs, section 3."""
        if node in self.wanted:
            return [GraphEntry(node, 0, 1, 0, 0)] if self.direct[node] else None
        close = {child: self.match(child) for child in self.children[node] if self.match(child) > 0}
        alone = [GraphEntry(node, 0, *self.counts(node))]
        if not close:
            return []
        if any(match < self.psi for match in close.values()):
            return alone
        reports = [self.report(child) for child in close]
        if any(report is None for report in reports):
            return alone
        return list(combine(node, [GraphReport(tuple(report)) for report in reports if report is not None]).entries)

    def expected(self) -> tuple[GraphEntry, ...]:
        if self.match(self.root) < self.psi:
            return ()
        return tuple(self.report(self.root) or ())

    def count(self, number: int = 1) -> tuple[GraphEntry, ...]:
        """What the publisher hears of the root."""
        net = self.net
        heard: list[CountReply] = []
        client: Any = net.nodes[P]
        before = client.entourage.on_reply
        client.entourage.on_reply = heard.append
        net.now = Micros(net.now + 2_000_000)
        net.tell(self.home, CountEntourage(P, P, asked(number, self.psi), 1_000_000, is_climbing=True))
        net.settle()
        client.entourage.on_reply = before
        return next(reply.report.entries for reply in heard if reply.root == self.root)


def test_discovery_finds_the_graph_of_the_definition() -> None:
    found = deep = 0
    for seed in range(300):
        tree = Tree(seed)
        # p has published once, so that answers find it.
        tree.net.publish(P, x=1)
        tree.net.settle()
        expected = tree.expected()
        assert tree.count() == expected, seed
        found += bool(expected)
        deep += any(entry.children for entry in expected)
    assert found > 150
    assert deep > 40


def test_a_round_is_answered_once_and_a_later_one_anew() -> None:
    """T7 and T9: nothing of an earlier round is left over; the same round again gets the same answer."""
    tree = Tree(7)
    tree.net.publish(P, x=1)
    tree.net.settle()
    first = tree.count(1)
    for child in list(tree.children[tree.root]):
        tree.net.crash(child)
    tree.children[tree.root] = []
    tree.net.settle()
    tree.net.pass_time(10_000_000)
    assert tree.count(2) == ()
    assert first != ()


def test_a_silent_broker_costs_the_budget_and_its_parent_answers_for_it() -> None:
    """T15."""
    net = RegionNet()
    root = net.broker("root", root=True)
    home = net.broker("home", root=True)
    net.link(home, root, is_peer=True)
    net.link(net.client("p"), home)
    for name in ("one", "two"):
        net.link(net.broker(name), root)
        net.subscribe(net.client(f"s-{name}"))
        net.link(Address(f"s-{name}"), Address(name))
    net.settle()
    net.publish(P, x=1)
    net.settle()
    heard: list[Any] = []
    client: Any = net.nodes[P]
    client.entourage.on_reply = heard.append
    net.tell(home, CountEntourage(P, P, asked(), 1_000_000, is_climbing=True))
    for wire, end in net.waiting():
        net.step(wire, end)
    net.wire(Address("one"), root).queues[Address("one")].clear()
    net.settle()
    assert [reply.root for reply in heard] == [home]
    net.pass_time(2_000_000)
    assert [e.node for reply in heard if reply.root == root for e in reply.report.entries] == [root]


def one_region_below(net: RegionNet) -> Address:
    """p at the root of its region; another root with a broker and a subscriber to everything below."""
    home, root = net.broker("home", root=True), net.broker("root", root=True)
    net.link(home, root, is_peer=True)
    net.link(net.client("p"), home)
    net.link(net.broker("one"), root)
    net.link(net.client("s"), Address("one"))
    net.subscribe(Address("s"))
    net.publish(P, x=1)
    net.settle()
    return root


def answers(net: RegionNet, root: Address, psi: float) -> list[list[Address]]:
    """What one round is told by a root, each time it is told something; and nobody else was asked."""
    heard: list[Any] = []
    machine: Any = net.nodes[P]
    machine.entourage.on_reply = heard.append
    net.messages.clear()
    net.tell(Address("home"), CountEntourage(P, P, asked(psi=psi), 1_000_000, is_climbing=True))
    net.pass_time(5_000_000)
    return [[entry.node for entry in reply.report.entries] for reply in heard if reply.root == root]


def test_whoever_is_the_last_close_enough_asks_nobody() -> None:
    """T5: one below is close and one is not; the broker knows the answer before it asks."""
    net = RegionNet(QUIET)
    root = one_region_below(net)
    far = net.client("d", "x between 0 and 9")
    net.link(far, root)
    net.subscribe(far)
    net.settle()
    assert answers(net, root, psi=0.5) == [[root]]
    assert net.messages["CountEntourage"] == 1  # home asks the root


def test_a_broker_that_refuses_asks_nobody() -> None:
    """T7 and T8: one answer, and no question below it."""
    net = RegionNet(QUIET)
    root = one_region_below(net)
    below = net.broker("two")
    net.link(below, Address("one"))
    net.link(net.client("t"), below)
    net.subscribe(Address("t"))
    net.settle()
    refusing: Any = net.nodes[Address("one")]
    refusing.willing(False)
    assert answers(net, root, psi=0.5) == [[root]]
    assert net.messages["CountEntourage"] == 2  # home asks the root, the root asks one


def test_two_publishers_do_not_get_in_each_others_way() -> None:
    """T6."""
    tree = Tree(11)
    other = tree.net.client("q")
    tree.net.link(other, tree.home)
    for client in (P, other):
        tree.net.publish(client, x=1)
    tree.net.settle()
    expected = tree.expected()
    answers: dict[Address, Any] = {}
    for client in (P, other):
        machine: Any = tree.net.nodes[client]
        machine.entourage.on_reply = lambda reply, client=client: (
            answers.update({client: reply.report.entries}) if reply.root == tree.root else None
        )
        tree.net.tell(tree.home, CountEntourage(client, client, asked(1, tree.psi), 1_000_000, is_climbing=True))
    tree.net.settle()
    assert answers == {P: expected, other: expected}


def test_own_region_brokers_above_the_publisher_are_no_targets() -> None:
    net = RegionNet()
    root = net.broker("root", root=True)
    for name in ("mine", "beside"):
        net.link(net.broker(name), root)
    for client, broker in (("p", "mine"), ("s", "mine"), ("t", "beside"), ("u", "beside")):
        net.link(net.client(client), Address(broker))
        if client != "p":
            net.subscribe(Address(client))
    net.settle()
    net.publish(P, x=1)
    net.settle()
    heard: list[Any] = []
    machine: Any = net.nodes[P]
    machine.entourage.on_reply = heard.append
    net.tell(Address("mine"), CountEntourage(P, P, asked(), 1_000_000, is_climbing=True))
    net.settle()
    (reply,) = heard
    assert {entry.node for entry in reply.report.entries} == {"s", "beside"}


# -- choosing


def entry(node: str, *children: GraphEntry, subscribers: int = 1, hops: int = 1) -> GraphEntry:
    total = sum(child.subscribers for child in children) or subscribers
    distance = sum(c.distance + c.hops * c.subscribers for c in children)
    return GraphEntry(Address(node), hops, total, distance, 1 + sum(c.brokers for c in children), children)


def test_r_frontier_leaves_nobody_out() -> None:
    """T13: a leaf above the level is part of it."""
    graph = entry("root", entry("A"), entry("B", entry("C"), entry("D")))
    assert [node.node for node in frontier([graph], 2)] == ["A", "C", "D"]


def test_r_frontier_of_the_root_alone_is_affordable_with_one_connection() -> None:
    """T14."""
    graph = entry("root", entry("A"), entry("B"))
    found = best_frontier([graph], 1, 0.0, 3)
    assert found is not None
    assert found.nodes == (Address("root"),)
    deeper = best_frontier([graph], 2, 0.0, 3)
    assert deeper is not None
    assert deeper.nodes == (Address("A"), Address("B"))


def test_r_frontier_stays_higher_where_subscribers_come_and_go() -> None:
    leaf = [GraphEntry(Address(f"s{i}"), 1, 1, 0, 0) for i in range(2)]
    graph = entry("root", *leaf)
    calm, busy = (best_frontier([graph], 9, changes, 1) for changes in (0.0, 50.0))
    assert calm is not None
    assert busy is not None
    assert (calm.depth, busy.depth) == (1, 0)


def frontier_after(net: RegionNet, publisher: Address, changes_per_s: float, *nodes: GraphEntry) -> tuple[str, ...]:
    """Whom it would connect to, once its root has answered this."""
    machine: Any = net.nodes[publisher]
    entourage = machine.entourage
    machine._out.begin(net.now)
    tally = Tally(brokers=1, changes=round(changes_per_s * 3600))
    entourage.on_reply(CountReply(ROOT, publisher, entourage._round, GraphReport(nodes), ROOT, tally))
    chosen: tuple[str, ...] = entourage._regions[ROOT].frontier.nodes
    return chosen


def test_r_frontier_is_moved_from_only_for_a_gain_and_not_soon() -> None:
    """Of two subscribers that come and go, (changes + 1) / 2 speaks for their broker, and 1 for them."""
    net = RegionNet(QUIET)
    publisher = net.client("p")
    graph = entry("root", *(GraphEntry(Address(f"s{i}"), 1, 1, 0, 0) for i in range(2)))
    below, above = ("s0", "s1"), ("root",)
    assert frontier_after(net, publisher, 0.0, graph) == below
    net.now = Micros(net.now + QUIET.hold_us)
    assert frontier_after(net, publisher, 1.1, graph) == below  # a gain of 5 %
    assert frontier_after(net, publisher, 1.3, graph) == above
    assert frontier_after(net, publisher, 0.0, graph) == above  # it has just been moved to
    net.now = Micros(net.now + QUIET.hold_us)
    assert frontier_after(net, publisher, 0.9, graph) == above
    assert frontier_after(net, publisher, 0.0, graph) == below
    other = entry("root", *(GraphEntry(Address(f"t{i}"), 1, 1, 0, 0) for i in range(2)))
    assert frontier_after(net, publisher, 0.0, other) == ("t0", "t1")  # those it had are not there any more


def test_r_frontier_truncation_keeps_siblings_together() -> None:
    """T12."""
    graph = GraphReport((entry("root", entry("A"), entry("B", entry("C"), entry("D"))),))
    cut = truncate(graph, 3)
    assert [node.node for node in frontier(cut.entries, 9)] == ["A", "B"]
    assert sum(size(e) for e in truncate(graph, 1).entries) == 1


def test_r_split_never_gives_more_than_there_are_connections_or_leaves() -> None:
    dice = random.Random(3)
    for _ in range(5000):
        regions = [Address(f"r{i}") for i in range(dice.randint(0, 6))]
        sizes: Mapping[Address, int] = {region: dice.randint(0, 30) for region in regions}
        most_of = {region: dice.randint(0, max(0, sizes[region])) for region in regions}
        most = dice.randint(0, 20)
        given = split(most, sizes, most_of)
        able = [region for region in regions if sizes[region] and most_of[region]]
        assert sum(given.values()) == min(most, sum(most_of[r] for r in able))
        assert all(given[region] <= most_of[region] for region in regions)
        assert sum(1 for region in able if given[region]) == min(most, len(able))


def test_what_a_publisher_can_afford_follows_its_rate_from_the_start() -> None:
    """K_p at 200 events per second and 0.15 ms each; the first second must not look like a tenth of it."""
    config = msgspec.structs.replace(QUIET, copy_us=150.0, cpu_share_max=1.0, bandwidth_bytes_per_s=None)
    net = RegionNet(config)
    publisher = net.client("p")
    for _ in range(200):
        net.now = Micros(net.now + 5_000)
        net.publish(publisher, x=1)
    machine: Any = net.nodes[publisher]
    assert machine.entourage._most() in (32, 33)
    poor = RegionNet(msgspec.structs.replace(config, bandwidth_bytes_per_s=64 * 200 * 4.0))
    poor.client("p")
    for _ in range(200):
        poor.now = Micros(poor.now + 5_000)
        poor.publish(publisher, x=1)
    machine = poor.nodes[publisher]
    assert machine.entourage._most() in (3, 4)


def test_leaves_are_counted() -> None:
    assert leaves([entry("root", entry("A"), entry("B", entry("C"), entry("D")))]) == 3
    assert Tally() == Tally(0, 0, 0, 0)


def test_connections_grow_when_copies_turn_out_to_be_cheap_and_shrink_when_they_are_dear() -> None:
    """K_p is measured again while it is in use (paper, 3.6.2)."""
    config = msgspec.structs.replace(
        QUIET, discovery_us=Micros(30_000_000), copy_us=2_000.0, closeness=0.3, hold_us=Micros(0)
    )
    net = RegionNet(config)
    top = net.broker("top", root=True)
    far = net.broker("far", root=True)
    net.mesh()
    publisher = net.client("p")
    net.link(publisher, top)
    for name in "abc":
        below = net.broker(f"far-{name}")
        net.link(below, far)
        client = net.client(f"s-{name}", accepts_direct=False)
        net.link(client, below)
        net.subscribe(client)
    net.settle()
    machine: Any = net.nodes[publisher]
    for n in range(250):
        net.now = Micros(net.now + 5_000)
        net.publish(publisher, x=n % 10)
        net.settle()
    net.pass_time(2_000_000)
    assert machine.entourage.most in (1, 2)  # too few for all three brokers at the bottom
    assert list(machine.publisher.sessions) == ["far"]
    for _ in range(20):
        net.tell(publisher, RegionMeasured(20.0))
        net.publish(publisher, x=1)
        net.settle()
    net.pass_time(2_000_000)
    assert machine.entourage.most >= 3
    assert sorted(machine.publisher.sessions) == ["far-a", "far-b", "far-c"]
    for _ in range(20):
        net.tell(publisher, RegionMeasured(5_000.0))
        net.settle()
    net.pass_time(5_000_000)
    assert machine.entourage.most in (1, 2)  # less than three, though three would be nearer
    assert list(machine.publisher.sessions) == ["far"]
    for _ in range(20):
        net.tell(publisher, RegionMeasured(1_000_000.0))
        net.settle()
    net.pass_time(5_000_000)
    assert machine.entourage.most == 0
    assert not machine.publisher.sessions
