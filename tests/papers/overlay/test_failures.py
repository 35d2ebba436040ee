"""What a failure costs is told, and nothing else is touched (specs: content-order, section 8)."""

import random

from tests.papers.overlay.net import Net, before_t8, span
from unisono.machine import Effect, Fired, Refuse, Send
from unisono.model.event import Event
from unisono.model.ids import Address
from unisono.model.predicate import NO_EVENT, parse
from unisono.model.time import Micros
from unisono.protocols.overlay.broker import Broker
from unisono.protocols.overlay.config import BrokerConfig
from unisono.protocols.overlay.messages import (
    Ack,
    Adv,
    LinkDown,
    LinkUp,
    Missing,
    Nack,
    Ok,
    OverlayCut,
    OverlayDelivery,
    OverlayMissed,
    OverlayNotTaken,
    OverlayOpen,
    OverlayTaken,
    Pub,
    Sub,
    Unadv,
)

RULES = ("DOWN", "HEAL")

DICE = random.Random(1)
NOW = Micros(0)


def conflicting(held_us_max: int | None = None) -> Net:
    """x below and y above publish what s below and t above want: x waits for its echo."""
    net = Net([-1, 0], "clients", held_us_max)
    net.advertise("x", 1, span(0, 9))
    net.advertise("y", 0, span(0, 9))
    net.settle()
    net.subscribe("s", 1, span(0, 9))
    net.subscribe("t", 0, span(0, 9))
    net.settle()
    return net


def test_a_publication_waits_for_its_echo_and_no_longer() -> None:
    net = conflicting()
    net.publish("x", x=1)
    assert net.order("s") == []
    net.settle()
    assert net.order("s") == net.order("t") == ["x:1"]


def test_without_anybody_above_nothing_waits() -> None:
    net = Net([-1, 0], "clients")
    net.advertise("x", 1, span(0, 9))
    net.advertise("y", 0, span(0, 9))
    net.settle()
    net.subscribe("s", 1, span(0, 9))
    net.settle()
    before = net.messages
    net.publish("x", x=1)
    assert net.order("s") == ["x:1"]
    assert net.messages == before


def test_a_lost_parent_drops_what_waits_and_tells_who_misses_it() -> None:
    net = conflicting()
    net.publish("x", x=1)
    net.cut(net.names[1], random.Random(3))
    net.channels[net.names[0], net.names[1]].clear()
    net.tell(net.names[1], LinkDown(net.names[0]))
    net.settle()
    assert net.order("s") == []
    missing = [n for n in net.notices["s"] if isinstance(n, Missing)]
    assert [(m.event, m.publisher, m.sequence) for m in missing] == [("x:1", "x", 1)]
    assert "link to B0 was lost" in missing[0].reason


def test_subscribers_behind_a_lost_link_get_one_notice_with_publishers_and_last_events() -> None:
    net = Net([-1, 0, 1, 1], "clients")
    for name in ("x", "y"):
        net.advertise(name, 0, span(0, 9))
    net.settle()
    net.subscribe("s", 2, span(0, 9))
    net.subscribe("other", 3, span(7))
    net.settle()
    net.publish("x", x=1)
    net.publish("x", x=2)
    net.publish("y", x=3)
    net.settle()
    net.cut(net.names[1], DICE)
    net.settle()
    assert [n for n in net.notices["s"] if isinstance(n, OverlayCut)] == [OverlayCut((("x", 2), ("y", 1)))]
    assert len(net.notices["other"]) == 1
    assert net.problems(complete=False) == []


def test_the_orphaned_part_goes_on_and_is_whole_again_after_healing() -> None:
    net = conflicting()
    net.cut(net.names[1], DICE)
    net.settle()
    net.publish("x", x=1)
    net.publish("y", x=2)
    net.settle()
    assert (net.order("s"), net.order("t")) == (["x:1"], ["y:1"])
    net.link(net.names[1], net.names[0])
    net.settle()
    net.publish("x", x=3)
    net.publish("y", x=4)
    net.settle()
    assert net.order("s")[1:] == net.order("t")[1:]
    assert len(net.order("s")) == 3
    assert net.problems(complete=False) == []


def test_a_link_that_heals_before_its_withdrawal_is_done_does_not_echo_advertisements_back() -> None:
    """Found by random runs (healing was not run for the spec): B1 still flushes x's advertisement when B2 is back."""
    net = Net([-1, 0, 1], "exact")
    net.advertise("x", 2, span(0, 9))
    net.advertise("y", 0, span(0, 9))
    net.advertise("z", 1, span(0, 9))
    net.settle()
    for i, name in enumerate(("s0", "s1", "s2")):
        net.subscribe(name, i, span(0, 9))
    net.settle()
    net.publish("z", x=1)  # pends at B1 until B0 echoes it
    net.cut(net.names[2], DICE)
    net.read(2, 1)
    net.read(1, 2)
    net.link(net.names[2], net.names[1])
    net.settle()
    assert net.problems(complete=False) == []
    net.publish("x", x=2)
    net.settle()
    assert [net.order(s)[-1] for s in ("s0", "s1", "s2")] == ["x:1"] * 3


def test_a_deadline_drops_with_a_notice_and_never_emits_early() -> None:
    net = conflicting(held_us_max=1_000)
    net.publish("x", x=1)
    net.now = Micros(1_000)
    net.tell(net.names[1], Fired("held"))
    assert net.order("s") == []
    assert [(n.event, n.reason) for n in net.notices["s"]] == [("x:1", "held longer than 1000 us")]
    net.settle()  # the echo comes too late and is ignored
    assert net.order("s") == []
    assert net.order("t") == ["x:1"]
    net.publish("y", x=2)
    net.settle()
    assert net.order("s") == ["y:1"]
    assert net.problems(complete=False) == []


def test_a_deadline_below_tells_subscribers_further_down() -> None:
    net = Net([-1, 0, 1, 1], "clients", held_us_max=1_000)
    for name, at in (("x", 2), ("y", 0)):
        net.advertise(name, at, span(0, 9))
    net.settle()
    for name, at in (("s2", 2), ("s3", 3), ("t", 0)):
        net.subscribe(name, at, span(0, 9))
    net.settle()
    net.publish("x", x=1)
    net.read(2, 1)  # B1 asks B0 and waits
    net.now = Micros(5_000)
    net.tell(net.names[1], Fired("held"))
    net.settle()
    assert (net.order("s2"), net.order("s3"), net.order("t")) == ([], [], ["x:1"])
    assert [n.event for n in net.notices["s3"]] == ["x:1"]
    assert [n.event for n in net.notices["s2"]] == ["x:1"]


def test_an_event_outside_the_advertisement_is_refused_and_nothing_else_happens() -> None:
    broker = Broker(Address("B"))
    broker.handle(Adv(Address("p"), "p/1", "p", parse("x > 5")), Micros(0))
    effects = broker.handle(Pub(Address("p"), Event("p", 1, "t", attributes={"x": 5})), Micros(0))
    reason = "p:1 lies outside what p has advertised"
    assert effects == [
        Send(Address("p"), OverlayNotTaken(Event("p", 1, "t").id, reason, "advertisement")),
        Refuse(reason),
    ]
    assert broker.is_idle


def test_an_event_waits_for_its_advertisement_and_later_ones_wait_behind_it() -> None:
    net = Net([-1, 0], "clients")
    net.advertise("p", 0, span(1), "p/1")
    net.settle()
    net.subscribe("s", 0, span(0, 9))
    net.settle()
    net.advertise("p", 0, span(2), "p/2")  # wider, not yet confirmed by B1
    net.publish("p", x=2)
    net.publish("p", x=1)
    assert net.order("s") == []
    net.settle()
    assert net.order("s") == ["p:1", "p:2"]


def test_values_no_filter_can_judge_are_refused() -> None:
    broker = Broker(Address("B"))
    broker.handle(Adv(Address("p"), "p/1", "p", parse("true")), Micros(0))
    for attributes, word in (({"x": float("nan")}, "NaN"), ({"$topic": "t"}, "$"), ({"x": "\ud800"}, "surrogate")):
        effects = broker.handle(Pub(Address("p"), Event("p", 1, "t", attributes=attributes)), Micros(0))
        assert [type(effect) for effect in effects] == [Send, Refuse]
        assert word in str(effects[1])


def test_contradictions_and_second_parents_are_refused() -> None:
    broker = Broker(Address("B"))
    assert "contradicts itself" in str(broker.handle(Sub(Address("c"), "c/1", "c", NO_EVENT), Micros(0)))
    broker.handle(LinkUp(Address("P"), True), Micros(0))
    assert "second parent" in str(broker.handle(LinkUp(Address("Q"), True), Micros(0)))
    assert broker.parent == "P"


def test_at_the_bound_publishers_are_refused_and_links_still_read() -> None:
    broker = Broker(Address("B"), BrokerConfig(pending_max=1, buffer_max=2))
    for message in (
        LinkUp(Address("P"), True),
        Adv(Address("p"), "p/1", "p", parse("true")),
        Sub(Address("c"), "c/1", "c", parse("true")),
    ):
        broker.handle(message, Micros(0))
    # P has announced nothing and wants everything: x climbs, and waits if something may come from above
    up = Address("P")
    for message in (
        Ok(up, "A", "p/1", 1),
        OverlayOpen(up),
        Adv(up, "q/1", "q", parse("true")),
        Sub(up, "t", "t", parse("true")),
    ):
        broker.handle(message, Micros(0))
    broker.handle(Ok(up, "S", "c/1", 1), Micros(0))
    outcomes = []
    for i in range(1, 5):
        sent = broker.handle(Pub(Address("p"), Event("p", i, "t")), Micros(0))
        outcomes += [type(e.message) for e in sent if isinstance(e, Send) and e.to == "p"]
    assert outcomes == [OverlayTaken, OverlayNotTaken]
    effects = broker.handle(Ack(up, Event("p", 1, "t").id), Micros(0))
    assert [type(e.message) for e in effects if isinstance(e, Send)] == [OverlayDelivery, OverlayTaken, Pub]


def test_a_broker_counts_what_ordering_costs_it() -> None:
    net = conflicting()
    net.publish("x", x=1)
    net.now = Micros(700)
    net.settle()
    lower, upper = net.broker(1).counters, net.broker(0).counters
    assert (lower.publications, lower.detections, lower.echoes, lower.echo_us, lower.pending_max) == (1, 1, 1, 700, 1)
    assert (lower.false_positives, lower.dropped, upper.detections) == (0, 0, 0)


def test_false_positives_of_the_fast_rule_are_counted() -> None:
    """y above meets s and not t: nothing of y can be ordered differently for the two, but fast waits all the same."""
    net = Net([-1, 0], "fast")
    net.advertise("x", 1, span(1))
    net.advertise("y", 0, span(2))
    net.settle()
    net.subscribe("s", 1, span(1, 2))
    net.subscribe("t", 0, span(1))
    net.settle()
    net.publish("x", x=1)
    net.settle()
    assert (net.broker(1).counters.detections, net.broker(1).counters.false_positives) == (1, 1)


def test_what_only_a_parent_may_say_is_refused_from_others() -> None:
    net = conflicting()
    event = net.publish("x", x=1)
    lower = net.broker(1)
    for word in (
        Ack(Address("x"), event.id),
        Nack(Address("t"), event.id, "no"),
        OverlayMissed(Address("t"), event, "no"),
    ):
        assert [type(effect) for effect in lower.handle(word, Micros(0))] == [Refuse]
    assert lower.pending == [event.id]
    net.settle()
    assert net.order("s") == ["x:1"]


def test_an_old_confirmation_does_not_confirm_a_subscription_made_again_under_its_name() -> None:
    """T8 with a subscription that ends and begins again: B1 has confirmed the first and does not know the second."""
    net = Net([-1, 0])
    before_t8(net)
    net.subscribe("t", 0, span(1, 2))
    net.unsubscribe("t")
    net.read(0, 1)
    net.subscribe("t", 0, span(1, 2))
    net.publish("x", x=1)  # B1 emits it to s at once
    net.read(1, 0, 1)
    assert "t" not in net.active
    net.publish("y", x=2)
    net.settle()
    assert net.order("t") == ["y:1"]
    assert "t" in net.active
    assert net.problems() == []


def test_an_old_confirmation_does_not_confirm_an_advertisement_that_has_come_back() -> None:
    """T9 with a publisher behind a link that is lost and heals: B1 has confirmed its first way, and forgotten it."""
    net = Net([-1, 0, 0])
    net.advertise("x", 1, span(1))
    net.advertise("y", 0, span(2))
    net.settle()
    net.subscribe("s", 1, span(1, 2))
    net.subscribe("t", 0, span(1))
    net.settle()
    net.advertise("z", 2, span(1))
    net.read(2, 0)
    net.read(0, 1)  # B1's confirmation is under way
    net.cut(net.names[2], DICE)
    net.read(0, 2)
    net.read(2, 0)
    net.read(0, 1)  # B1 hears that z is lost
    net.link(net.names[2], net.names[0])
    net.publish("x", x=1)  # B1 emits it to s at once
    for _ in range(6):
        net.read(2, 0)
        net.read(0, 2)
        if net.channels[net.names[1], net.names[0]]:
            net.read(1, 0, 1)  # what B1 said before
            break
    for _ in range(6):
        net.read(2, 0)
        net.read(0, 2)
    net.publish("z", x=1)
    for _ in range(3):
        net.read(2, 0)
    net.settle()
    assert net.order("s")[0] == "x:1"
    assert [name for name in net.order("t") if name in net.order("s")] == net.order("s")
    assert net.problems(complete=False) == []


def joining() -> tuple[Broker, dict[str, int]]:
    """A broker with an advertisement of its own client and one from above, and a lower link that has just come up."""
    net = Net([-1, 0, 1], "clients")
    net.advertise("x", 1, span(0, 9))
    net.advertise("y", 0, span(0, 9))
    net.settle()
    net.subscribe("s", 1, span(0, 9))
    net.settle()
    broker = net.broker(1)
    broker.handle(LinkDown(net.names[2]), NOW)
    return broker, announced(broker.handle(LinkUp(net.names[2], False), NOW))


def announced(effects: list[Effect]) -> dict[str, int]:
    """What B2 is told of, and under which number."""
    adv = [e.message for e in effects if isinstance(e, Send) and e.to == "B2" and isinstance(e.message, Adv)]
    return {message.ad: message.turn for message in adv}


def opens(broker: Broker, ad: str, turn: int) -> bool:
    """Whether a confirmation is what the link has been waiting for."""
    return Send(Address("B2"), OverlayOpen(Address("B1"))) in broker.handle(Ok(Address("B2"), "A", ad, turn), NOW)


def test_a_joining_link_opens_when_all_that_was_announced_meanwhile_is_confirmed_too() -> None:
    broker, turns = joining()
    turns |= announced(broker.handle(Adv(Address("z"), "z/ad", "z", span(0, 9)), NOW))
    assert [opens(broker, ad, turns[ad]) for ad in ("x/ad", "y/ad", "z/ad")] == [False, False, True]


def test_a_joining_link_does_not_open_by_the_confirmation_of_what_was_withdrawn_meanwhile() -> None:
    broker, turns = joining()
    broker.handle(Unadv(Address("x"), ("x/ad",)), NOW)
    again = announced(broker.handle(Adv(Address("x"), "x/ad", "x", span(0, 9)), NOW))
    assert not opens(broker, "y/ad", turns["y/ad"])
    assert not opens(broker, "x/ad", turns["x/ad"])
    assert opens(broker, "x/ad", again["x/ad"])


def test_who_asks_for_an_echo_on_a_link_that_is_being_healed_is_told_that_none_will_come() -> None:
    broker, turns = joining()
    below = Address("B2")
    broker.handle(Adv(below, "z/ad", "z", span(0, 9), 1), NOW)
    for ad, turn in turns.items():
        opens(broker, ad, turn)
    broker.handle(OverlayOpen(below), NOW)  # s is announced there, and not confirmed
    event = Event("z", 1, "t", attributes={"x": 1})
    assert broker.handle(Pub(below, event), NOW) == []
    (answer,) = broker.handle(Pub(below, event, echo=True), NOW)
    assert isinstance(answer, Send)
    assert isinstance(answer.message, Nack)


def test_a_notice_names_the_last_event_though_an_advertisement_is_newer() -> None:
    net = Net([-1, 0], "clients")
    net.advertise("x", 0, span(0, 9))
    net.settle()
    net.subscribe("s", 1, span(0, 9))
    net.settle()
    net.publish("x", x=1)
    net.publish("x", x=2)
    net.advertise("x", 0, span(5, 20), ad="x/wider")
    net.settle()
    net.cut(net.names[1], DICE)
    net.settle()
    assert net.notices["s"] == [OverlayCut((("x", 2),))]
