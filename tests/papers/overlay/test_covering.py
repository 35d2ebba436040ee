"""Covering: a neighbour that knows a wider subscription is not told of a narrower one (specs: content-order, 15)."""

import random
from typing import Any

import pytest

from tests.papers.overlay.net import Net, before_t8, fifo, pairwise, span
from tests.papers.overlay.test_cases import CASES, all_orders, holds, settle_but
from tests.papers.overlay.test_random import FAILING, broken
from unisono.model.event import Event
from unisono.model.ids import Address
from unisono.protocols.overlay.detection import Detection
from unisono.protocols.overlay.messages import OverlayDelivery, Pub, Sub, Unsub
from unisono.sim.explore import Situation, explore

RULES = ("COVER",)


def covering(parents: list[int], detection: Detection = "exact") -> Net:
    return Net(parents, detection, covering=True)


def on_link(net: Net, source: int, to: int) -> list[tuple[type, str]]:
    """The subscriptions that come and go on a link just now."""
    queue = net.channels[net.names[source], net.names[to]]
    return [(type(message), message.sub) for message in queue if isinstance(message, Sub | Unsub)]


def test_a_narrower_subscription_goes_no_further_and_hears_everything() -> None:
    net = covering([-1, 0, 1])
    net.advertise("x", 2, span(0, 9))
    net.settle()
    net.subscribe("wide", 0, span(0, 9))
    net.settle()
    net.subscribe("narrow", 0, span(2, 3))
    assert on_link(net, 0, 1) == []
    assert "narrow" in net.active
    for value in range(5):
        net.publish("x", x=value)
    net.settle()
    assert net.order("narrow") == ["x:3", "x:4"]
    assert net.problems() == []


def test_equal_subscriptions_are_told_once_and_the_widest_of_several() -> None:
    net = covering([-1, 0])
    for client, filter in (("a", span(2, 3)), ("b", span(1, 4)), ("c", span(1, 4)), ("d", span(7))):
        net.subscribe(client, 0, filter)
    net.advertise("x", 1, span(0, 9))
    net.read(1, 0)
    assert on_link(net, 0, 1) == [(Sub, "b"), (Sub, "d")]
    net.settle()
    net.publish("x", x=2)
    net.settle()
    assert [net.order(client) for client in "abcd"] == [["x:1"], ["x:1"], ["x:1"], []]
    assert net.problems() == []


def test_what_a_cover_stood_for_is_told_before_its_end() -> None:
    net = covering([-1, 0, 1])
    net.advertise("x", 2, span(0, 9))
    net.settle()
    for client, filter in (("wide", span(0, 9)), ("middle", span(2, 5)), ("narrow", span(3)), ("other", span(8))):
        net.subscribe(client, 0, filter)
        net.settle()
    net.unsubscribe("wide")
    assert on_link(net, 0, 1) == [(Sub, "middle"), (Sub, "other"), (Unsub, "wide")]
    net.read(0, 1)
    assert on_link(net, 1, 2) == [(Sub, "middle"), (Sub, "other"), (Unsub, "wide")]
    net.publish("x", x=3)
    net.settle()
    net.publish("x", x=8)
    net.settle()
    assert (net.order("narrow"), net.order("middle"), net.order("other")) == (["x:1"], ["x:1"], ["x:2"])
    assert net.problems() == []


def test_a_subscription_whose_cover_is_in_flight_gets_nothing_it_could_misorder() -> None:
    """T8, with a second subscriber that would be in force at once if covering asked for no confirmation."""
    net = covering([-1, 0])
    before_t8(net)
    net.subscribe("cover", 0, span(1, 2))
    net.subscribe("t", 0, span(1, 2))
    assert on_link(net, 0, 1) == [(Sub, "cover")]
    assert "t" not in net.active
    net.publish("x", x=1)
    net.publish("y", x=2)
    net.settle()
    assert net.order("t") == net.order("cover") == ["y:1"]
    assert "t" in net.active
    assert net.problems() == []


def test_a_subscription_waits_on_when_its_cover_ends_unconfirmed() -> None:
    net = covering([-1, 0])
    before_t8(net)
    net.subscribe("cover", 0, span(1, 2))
    net.subscribe("t", 0, span(1, 2))
    net.unsubscribe("cover")
    assert on_link(net, 0, 1) == [(Sub, "cover"), (Sub, "t"), (Unsub, "cover")]
    net.publish("x", x=1)
    net.publish("y", x=2)
    net.settle()
    assert net.order("t") == ["y:1"]
    assert "t" in net.active
    assert net.problems() == []


def test_a_subscription_is_in_force_when_another_cover_is_confirmed_already() -> None:
    net = covering([-1, 0, 1])
    net.advertise("far", 2, span(0, 2))
    net.advertise("near", 1, span(5, 9))
    net.settle()
    net.subscribe("slow", 0, span(0, 5))  # its confirmation has to come from B2
    net.subscribe("quick", 0, span(3, 9))
    net.subscribe("s", 0, span(5))
    net.read(0, 1)
    net.read(1, 0)
    assert ("quick" in net.active, "s" in net.active) == (True, False)
    net.unsubscribe("slow")
    assert "s" in net.active
    net.publish("near", x=5)
    net.settle()
    assert net.order("s") == ["near:1"]
    assert net.problems() == []


def test_a_client_whose_subscription_is_covered_by_anothers_is_not_forgotten_in_decisions() -> None:
    """T12 behind a broker that leaves X's first subscription out: B1 must not think of Y alone when x publishes."""
    net = covering([-1, 0, 1], "clients")
    net.advertise("x", 1, span(1))
    net.advertise("y", 0, span(2))
    net.settle()
    net.subscribe("Y", 2, span(0, 1))
    net.settle()
    net.subscribe("X", 2, span(1), "X.s")
    net.subscribe("X", 2, span(2), "X.s'")
    net.subscribe("t", 0, span(1, 2))
    net.settle()
    net.publish("x", x=1)
    net.publish("y", x=2)
    net.settle()
    assert net.order("X") == net.order("t") == ["y:1", "x:1"]
    assert net.problems() == []


def test_a_healed_link_stays_deaf_when_a_cover_ends_before_it_is_confirmed() -> None:
    """T8 over a healed link: B2 knows neither of t nor of its cover when x publishes."""
    net = covering([-1, -1, 1])
    net.advertise("x", 2, span(1, 2))
    net.advertise("y", 0, span(2))
    net.settle()
    net.subscribe("s", 2, span(1, 2))
    net.subscribe("u", 1, span(1))
    net.subscribe("cover", 0, span(1, 2))
    net.subscribe("t", 0, span(1, 2))
    net.settle()
    net.link(net.names[1], net.names[0])
    settle_but(net, 1, 2, Sub)
    net.unsubscribe("cover")
    settle_but(net, 1, 2, Sub)
    net.publish("y", x=2)
    net.publish("x", x=1)
    assert (net.order("t"), net.order("s")) == (["y:1"], ["x:1"])
    net.settle()
    assert net.order("s") == ["x:1", "y:1"]
    assert net.order("t") == ["y:1"]
    net.publish("x", x=2)
    net.settle()
    assert net.order("t") == ["y:1", "x:2"]
    assert net.problems(complete=False) == []


def test_subscriptions_lost_together_do_not_take_each_others_place() -> None:
    net = covering([-1, 0, 0])
    net.advertise("x", 1, span(0, 9))
    net.settle()
    net.subscribe("wide", 2, span(0, 9))
    net.settle()
    net.subscribe("narrow", 2, span(1, 2))
    net.subscribe("here", 0, span(2))
    net.settle()
    net.cut(net.names[2], random.Random(1))
    net.read(2, 0)
    assert on_link(net, 0, 1) == [(Sub, "here"), (Unsub, "wide")]
    net.settle()
    net.publish("x", x=2)
    net.settle()
    assert net.order("here") == ["x:1"]
    assert net.problems(complete=False) == []


@pytest.mark.parametrize("detection", ["exact", "clients"])
@pytest.mark.parametrize("name", ["T1", "T3", "T4", "T5", "T6", "T7"])
def test_every_order_of_arrival_with_covering(name: str, detection: Detection) -> None:
    assert all_orders(CASES[name], detection, holds, covering=True).is_complete


@pytest.mark.parametrize("detection", ["exact", "clients"])
def test_a_cover_may_end_at_any_moment_and_those_it_stood_for_hear_everything(detection: Detection) -> None:
    """Every interleaving of links, of two publishers and of the end of the cover, over two hops."""
    net = covering([-1, 0, 1], detection)
    net.advertise("x", 2, span(0, 9))
    net.advertise("y", 0, span(0, 9))
    net.settle()
    net.subscribe("cover", 0, span(0, 9))
    net.settle()
    for client, at in (("t", 0), ("s", 2)):
        net.subscribe(client, at, span(1, 5))
    net.settle()
    pub = [Pub(Address(who), Event(who, n, "t", attributes={"x": n})) for who, n in (("x", 1), ("x", 2), ("y", 1))]
    scripts: dict[Address, list[Any]] = {
        net.names[2]: pub[:2],
        net.names[0]: [pub[2], Unsub(Address("cover"), "cover")],
    }

    def at_end(final: Situation) -> None:
        heard: dict[str, list[Event]] = {"t": [], "s": []}
        for name in net.names:
            for client, item in final.delivered(name):
                if isinstance(item, OverlayDelivery) and client in heard:
                    heard[client].append(item.event)
            assert final.machine(name).broker.is_idle
        assert [*pairwise(heard), *fifo(heard)] == []
        assert [len(events) for events in heard.values()] == [3, 3]

    found = explore(Situation.of(net.sites), scripts, at_end)
    assert found.is_complete
    assert found.finals >= 1


@pytest.mark.parametrize("fault", [None, "crash", "cut", "heal"])
@pytest.mark.parametrize(("detection", "subs"), FAILING)
def test_random_runs_with_covering_keep_the_promises(detection: Detection, subs: int, fault: Any) -> None:
    assert broken(range(3000, 3020), detection, subs, churn=0.3, fault=fault, covering=True) == {}


@pytest.mark.campaign
@pytest.mark.parametrize("fault", [None, "crash", "cut", "heal"])
@pytest.mark.parametrize(("detection", "subs"), FAILING)
def test_thousands_of_runs_with_covering(detection: Detection, subs: int, fault: Any) -> None:
    assert broken(range(20_000, 23_000), detection, subs, churn=0.3, fault=fault, covering=True) == {}
