"""Who is told of which publishers when a link is lost and heals (decision 30)."""

import random

from tests.papers.overlay.net import Net, span
from unisono.model.predicate import Filter, parse
from unisono.protocols.overlay.messages import OverlayCut, Unadv

RULES = ("CUT",)

DICE = random.Random(1)


def on(topic: str, where: str = "true") -> Filter:
    return parse(f"`$topic` = '{topic}' and {where}")


def whole() -> Net:
    """x at B0 publishes small numbers on t; s at B1 and u at B2 below it want large ones there, v other topics."""
    net = Net([-1, 0, 1], "clients")
    net.advertise("x", 0, on("t", "x < 5"))
    net.settle()
    net.subscribe("s", 1, on("t", "x > 5"))
    net.subscribe("u", 2, on("t", "x > 5"))
    net.subscribe("v", 2, on("other"))
    net.settle()
    return net


def lose(net: Net, lower: int = 1) -> None:
    net.cut(net.names[lower], DICE)
    net.settle()


def join(net: Net, lower: int = 1, upper: int = 0) -> None:
    net.link(net.names[lower], net.names[upper])
    net.settle()


def test_a_publisher_is_named_on_its_topic_whatever_it_advertised_there() -> None:
    net = whole()
    net.publish("x", x=1)
    net.settle()
    lose(net)
    assert net.notices["s"] == net.notices["u"] == [OverlayCut((("x", 0),))]


def test_who_wants_nothing_from_behind_a_lost_link_is_told_all_the_same() -> None:
    net = whole()
    lose(net)
    assert net.notices["v"] == [OverlayCut(())]
    lose(net, 2)  # nobody publishes behind it
    assert net.notices["s"][1:] == [OverlayCut(())]


def test_a_publisher_that_began_out_of_reach_is_named_before_it_is_heard() -> None:
    net = whole()
    lose(net)
    net.advertise("y", 0, on("t"))
    net.settle()
    net.publish("y", x=8)
    net.settle()
    join(net)
    assert net.notices["s"][1:] == net.notices["u"][1:] == [OverlayCut((("y", 0),))]
    assert net.notices["v"] == [OverlayCut(())]
    net.publish("y", x=9)
    net.settle()
    assert net.order("s") == net.order("u") == ["y:2"]


def test_a_subscription_made_out_of_reach_is_told_when_it_can_hear_and_others_are_not_told_twice() -> None:
    net = whole()
    net.advertise("x", 0, on("t"), "x/all")
    net.settle()
    net.publish("x", x=8)
    net.settle()
    lose(net)
    net.subscribe("late", 2, on("t"))
    net.settle()
    net.publish("x", x=9)
    join(net)
    assert net.notices["s"] == [OverlayCut((("x", 1),))]
    assert net.notices["late"] == [OverlayCut((("x", 1),))]


def test_a_link_lost_before_it_was_heard_says_nothing_and_later_the_publisher_is_still_named() -> None:
    net = whole()
    lose(net)
    net.subscribe("late", 1, on("t"))
    net.settle()
    net.link(net.names[1], net.names[0])
    net.read(0, 1)  # the advertisement is announced, the link does not open
    lose(net)
    assert [len(net.notices[who]) for who in ("s", "u", "v")] == [1, 1, 1]
    assert "late" not in net.notices
    join(net)
    assert net.notices["late"] == [OverlayCut((("x", 0),))]
    assert [len(net.notices[who]) for who in ("s", "u", "v")] == [1, 1, 1]


def test_who_knew_a_publisher_on_another_topic_only_is_told_when_it_begins_on_this_one() -> None:
    net = whole()
    net.subscribe("w", 1, on("new"))
    net.settle()
    lose(net)
    net.advertise("x", 0, on("new"), "x/new")
    net.settle()
    join(net)
    assert net.notices["w"] == [OverlayCut(()), OverlayCut((("x", 0),))]
    assert net.notices["s"] == [OverlayCut((("x", 0),))]


def test_a_new_way_that_waited_for_the_end_of_the_old_one_is_told_when_it_is_taken() -> None:
    """B0 - B1 and B0 - B2; y at B3, first behind B1, dials B2 before B0 hears that B1 has lost it."""
    net = Net([-1, 0, 0, 1], "clients")
    net.subscribe("s", 0, on("t"))
    net.settle()
    lose(net, 3)
    net.subscribe("late", 0, on("t"))
    net.advertise("y", 3, on("t"))
    net.settle()
    net.link(net.names[3], net.names[1])
    net.read(3, 1)
    net.read(1, 0)  # y's first way, which is never heard
    net.cut(net.names[3], DICE)
    net.read(1, 3)
    net.link(net.names[3], net.names[2])
    for _ in range(8):
        net.read(3, 2)
        net.read(2, 3)
        net.read(2, 0)
        net.read(0, 2)
    net.settle()
    net.publish("y", x=1)
    net.settle()
    assert net.order("s") == net.order("late") == ["y:1"]
    assert net.notices["late"] == [OverlayCut((("y", 0),))]


def test_progress_outlives_every_advertisement_of_a_publisher() -> None:
    net = whole()
    net.advertise("x", 0, on("t"), "x/all")
    net.settle()
    for number in (7, 8, 9):
        net.publish("x", x=number)
    net.settle()
    for ad in ("x/all", "x/ad"):
        net.unadvertise("x", ad)
    net.settle()
    net.advertise("x", 0, on("t", "x > 8"), "x/again")
    net.settle()
    lose(net)
    assert net.notices["s"] == [OverlayCut((("x", 3),))]


def test_no_client_can_have_others_told_of_a_lost_link() -> None:
    net = whole()
    net.tell(net.names[1], Unadv(net.names[1], (), lost=True))
    net.advertise("z", 1, span(0, 9))
    net.tell(net.names[1], Unadv("z", ("z/ad",), lost=True))  # type: ignore[arg-type]
    net.settle()
    assert net.notices == {}
