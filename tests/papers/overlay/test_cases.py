"""The named cases of specs: content-order, section 11: T0 to T7 in every order in which links can deliver, the others
in the order given.
"""

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any, NamedTuple

import pytest

from tests.papers.overlay.net import Net, before_t8, fifo, pairwise, span
from unisono.model.event import Event
from unisono.model.ids import Address
from unisono.model.predicate import Filter, parse
from unisono.protocols.overlay.detection import Detection
from unisono.protocols.overlay.messages import OverlayDelivery, Pub, Sub
from unisono.sim.explore import Explored, Situation, explore

RULES = ("T0",)

Publisher = tuple[str, int, Filter, list[int]]
Subscriber = tuple[str, int, Filter]


class Case(NamedTuple):
    """Brokers (how many in a chain, or everybody's parent), publishers with what they will say, subscribers."""

    brokers: int | tuple[int, ...]
    publishers: list[Publisher]
    subscribers: list[Subscriber]


ALL = span(0, 9)
CASES = {
    "T0": Case(2, [("a", 0, ALL, [1]), ("c", 0, ALL, [1]), ("b", 1, ALL, [])], [("S0", 0, ALL), ("S1", 1, ALL)]),
    "T0, b speaks": Case(
        2, [("a", 0, ALL, [1]), ("c", 0, ALL, [1]), ("b", 1, ALL, [1])], [("S0", 0, ALL), ("S1", 1, ALL)]
    ),
    "T1": Case(2, [("a", 0, ALL, [1, 1]), ("b", 1, ALL, [1])], [("S0", 0, ALL), ("S1", 1, ALL)]),
    "T2": Case(2, [("a", 0, ALL, [1]), ("b", 1, ALL, [1, 1])], [("S0", 0, ALL), ("S1", 1, ALL)]),
    "T3": Case(2, [("x", 1, span(1, 2), [1, 2]), ("y", 0, span(1), [])], [("s", 1, span(1, 2)), ("t", 0, span(1))]),
    "T4": Case(
        3,
        [("x", 2, span(1, 3), [1, 2, 3]), ("y", 0, span(1), []), ("z", 1, span(3), [3]), ("v", 1, span(2), [])],
        [("s1", 2, span(1, 2)), ("s2", 2, span(2, 3)), ("t", 0, span(1)), ("u", 1, span(3))],
    ),
    "T5": Case(
        3,
        [("x", 2, span(1, 2), [1, 2]), ("w", 0, span(1), [1])],
        [("s", 2, span(2)), ("s0", 2, span(1, 2)), ("t", 1, span(1, 2)), ("u", 0, span(1))],
    ),
    "T6": Case(
        2,
        [("x", 1, span(2), [2]), ("y", 1, span(3), [3]), ("w", 0, span(1), [])],
        [("s", 1, span(2, 3)), ("sp", 1, span(1, 3)), ("t", 0, span(1, 2))],
    ),
    "T7": Case(
        2,
        [("x", 1, span(1), [1]), ("y", 1, span(2), [2]), ("w", 0, span(0), [0])],
        [("s", 1, span(1, 2)), ("s9", 1, span(0, 1)), ("t", 0, span(1, 2)), ("t9", 0, span(0, 1))],
    ),
    # The exact rule splits hops finely; these two make it hold x on a hop where y would be free.
    "T7, subscribers behind a broker": Case(
        3,
        [("x", 1, span(1), [1]), ("y", 1, span(2), [2]), ("w", 0, span(0), [])],
        [("s", 2, span(1, 2)), ("s9", 2, span(0, 1)), ("t", 0, span(1, 2)), ("t9", 0, span(0, 1))],
    ),
    "T7, publishers behind a broker": Case(
        (-1, 0, 1, 1),
        [("x", 2, span(1), [1]), ("y", 2, span(2), [2]), ("w", 0, span(0), [])],
        [("r", 2, span(1, 2)), ("s", 3, span(1, 2)), ("s9", 3, span(0, 1)), ("t9", 0, span(0, 1))],
    ),
}


def prepared(case: Case, detection: Detection, covering: bool = False) -> Net:
    """Everybody has advertised and subscribed, and all is quiet."""
    parents = range(-1, case.brokers - 1) if isinstance(case.brokers, int) else case.brokers
    net = Net(parents, detection, covering=covering)
    for publisher, at, filter, _ in case.publishers:
        net.advertise(publisher, at, filter)
    net.settle()
    for client, at, filter in case.subscribers:
        net.subscribe(client, at, filter)
    net.settle()
    return net


def merges(lists: list[list[Any]]) -> Iterator[list[Any]]:
    """Every order of all members that keeps the order within each list."""
    rest = [i for i, members in enumerate(lists) if members]
    if not rest:
        yield []
    for i in rest:
        for tail in merges([members[1:] if j == i else members for j, members in enumerate(lists)]):
            yield [lists[i][0], *tail]


def all_orders(
    case: Case, detection: Detection, broken: Callable[[dict[str, list[Event]]], None], covering: bool = False
) -> Explored:
    """Every interleaving of links and publishers."""
    net = prepared(case, detection, covering)
    start = Situation.of(net.sites)
    expected = {client: 0 for client, _, _ in case.subscribers}
    said: dict[str, list[list[Any]]] = {}
    for publisher, at, _, values in case.publishers:
        events = [Event(publisher, i + 1, "t", attributes={"x": x}) for i, x in enumerate(values)]
        said.setdefault(net.names[at], []).append([Pub(Address(publisher), event) for event in events])
        for client, _, filter in case.subscribers:
            expected[client] += sum(filter.matches({"x": x}) for x in values)

    def at_end(final: Situation) -> None:
        heard: dict[str, list[Event]] = {client: [] for client in expected}
        for name in net.names:
            for client, item in final.delivered(name):
                if isinstance(item, OverlayDelivery):
                    heard[client].append(item.event)
            assert final.machine(name).broker.is_idle, f"{name} is not at rest"
        assert {client: len(events) for client, events in heard.items()} == expected
        broken(heard)

    hosts = list(said)
    states = finals = 0
    for orders in product(*(merges(said[host]) for host in hosts)):
        found = explore(start, dict(zip(hosts, orders)), at_end)
        assert found.is_complete
        states, finals = states + found.states, finals + found.finals
    return Explored(states, finals, is_complete=True)


def holds(heard: dict[str, list[Event]]) -> None:
    assert [*pairwise(heard), *fifo(heard)] == []


@pytest.mark.parametrize("name", CASES)
def test_every_order_of_arrival_gives_one_order_of_delivery(name: str) -> None:
    found = all_orders(CASES[name], "exact", holds)
    assert found.is_complete
    assert found.finals >= 1
    assert found.states > 5


@pytest.mark.parametrize("detection", ["fast", "clients", "always"])
@pytest.mark.parametrize("name", ["T1", "T3", "T5", "T7"])
def test_the_other_rules_keep_the_order_too(name: str, detection: Detection) -> None:
    assert all_orders(CASES[name], detection, holds).is_complete


def test_t8_a_subscription_in_flight_gets_nothing_it_could_misorder() -> None:
    net = Net([-1, 0])
    before_t8(net)
    net.subscribe("t", 0, span(1, 2))
    net.publish("x", x=1)
    net.publish("y", x=2)
    net.settle()
    assert net.order("t") == ["y:1"]
    assert sorted(net.order("s")) == ["x:1", "y:1"]
    assert net.problems() == []


def test_t9_the_first_publication_waits_until_everybody_knows_the_advertisement() -> None:
    net = Net([-1, 0])
    net.advertise("x", 1, span(1))
    net.advertise("y", 0, span(2))
    net.settle()
    net.subscribe("s", 1, span(1, 2))
    net.subscribe("t", 0, span(1))
    net.settle()
    net.publish("x", x=1)
    net.advertise("z", 0, span(1))
    net.publish("z", x=1)
    net.settle()
    assert net.order("s") == net.order("t") == ["x:1", "z:1"]
    assert net.problems() == []


def test_t10_a_withdrawal_does_not_overtake_a_held_publication() -> None:
    net = Net([-1, 0, 1])
    net.advertise("w", 0, span(4))
    net.advertise("y", 1, span(3))
    net.advertise("x", 2, span(2))
    net.settle()
    net.subscribe("s", 2, span(2, 4))
    net.subscribe("t", 1, span(2, 3))
    net.subscribe("t0", 0, span(3, 4))
    net.settle()
    net.publish("y", x=3)  # pending at B1
    net.unadvertise("y")
    net.read(1, 2)
    net.publish("x", x=2)
    net.read(1, 0)
    net.read(0, 1)  # the echo
    net.settle()
    assert net.order("s") == net.order("t") == ["y:1", "x:1"]
    assert net.problems() == []


@pytest.mark.parametrize(
    ("detection", "agree"), [("exact", False), ("fast", False), ("clients", True), ("always", True)]
)
def test_t12_a_client_with_two_subscriptions_needs_the_rule_for_clients(detection: Detection, agree: bool) -> None:
    net = Net([-1, 0], detection)
    net.advertise("x", 1, span(1))
    net.advertise("y", 0, span(2))
    net.settle()
    net.subscribe("X", 1, span(1), "X.s")
    net.subscribe("X", 1, span(2), "X.s'")
    net.subscribe("t", 0, span(1, 2))
    net.settle()
    net.publish("x", x=1)
    net.publish("y", x=2)
    net.settle()
    assert (net.order("X") == net.order("t")) == agree


def test_t11_a_confirmation_waits_for_what_was_pending_when_the_last_neighbour_confirmed() -> None:
    net = Net([-1, 0, 1])
    net.advertise("w", 0, span(3))
    net.advertise("x", 2, span(1, 2))
    net.settle()
    net.subscribe("u", 0, span(1, 3))
    net.subscribe("t", 1, span(1, 4))
    net.subscribe("s", 2, parse("x in (1, 4)"))  # nothing from above meets it yet
    net.settle()
    net.advertise("z", 1, span(4))
    net.read(1, 0)
    net.publish("x", x=1)  # emitted to s at once: B2 does not know z
    assert net.order("s") == ["x:1"]
    net.read(1, 2)
    net.read(2, 1)  # x:1 pends at B1, and B2's confirmation after it
    net.publish("z", x=4)
    net.read(0, 1)  # B0's confirmation; the echo of x:1 is still to come
    net.settle()
    assert net.order("s") == net.order("t") == ["x:1", "z:1"]
    assert net.problems() == []


def settle_but(net: Net, source: int, to: int, stop: type) -> None:
    """Delivers everything, but leaves a link alone from the first message of a kind on."""
    blocked = (net.names[source], net.names[to])
    while waiting := [
        link for link, queue in net.channels.items() if queue and not (link == blocked and isinstance(queue[0], stop))
    ]:
        net.step(*waiting[0])


def test_a_healed_link_is_not_open_before_everything_decided_without_it_is_done() -> None:
    """T9 over a healed link: x:1 is under way inside the lower part when the upper part's z comes in reach."""
    net = Net([-1, -1, 1])
    net.advertise("x", 2, span(1))
    net.settle()
    net.subscribe("s", 2, span(1, 2))
    net.subscribe("t", 1, span(1))
    net.advertise("z", 0, span(1))
    net.settle()
    net.publish("x", x=1)  # emitted to s, on its way to B1
    net.link(net.names[1], net.names[0])
    settle_but(net, 2, 1, Pub)
    net.publish("z", x=1)
    settle_but(net, 2, 1, Pub)
    net.settle()
    assert net.order("s")[0] == net.order("t")[0] == "x:1"
    assert net.problems(complete=False) == []


def test_a_healed_link_is_deaf_until_its_subscriptions_are_confirmed() -> None:
    """T8 over a healed link: B2 does not know of t yet when x publishes."""
    net = Net([-1, -1, 1])
    net.advertise("x", 2, span(1, 2))
    net.advertise("y", 0, span(2))
    net.settle()
    net.subscribe("s", 2, span(1, 2))
    net.subscribe("u", 1, span(1))
    net.subscribe("t", 0, span(1, 2))
    net.settle()
    net.link(net.names[1], net.names[0])
    settle_but(net, 1, 2, Sub)
    net.publish("y", x=2)
    net.publish("x", x=1)
    assert (net.order("t"), net.order("s")) == (["y:1"], ["x:1"])
    net.settle()
    assert net.order("s") == ["x:1", "y:1"]
    assert net.order("t") == ["y:1"]
    assert net.problems(complete=False) == []
