"""What is held at a broker, for how long, and what goes on when it is given up (specs: content-order, section 8)."""

from tests.papers.overlay.net import Net, span
from unisono.machine import Effect, Fired, Send, SetTimer
from unisono.model.event import Event
from unisono.model.ids import Address, EventId
from unisono.model.time import Micros
from unisono.protocols.overlay.broker import Broker
from unisono.protocols.overlay.detection import Detection
from unisono.protocols.overlay.messages import (
    Ack,
    LinkDown,
    LinkUp,
    Missing,
    Nack,
    OverlayDelivery,
    OverlayMissed,
    Pub,
    Sub,
)

RULES = ("DOWN",)

ABOVE, BELOW = Address("B0"), Address("B2")
NOW = Micros(0)


def middle(detection: Detection = "clients", wanted_above: int = 9, from_above: int = 0) -> Net:
    """B1 between B0 and B2: x publishes at B1, y above, s listens at B1 and t above; an event of x up to
    `wanted_above` climbs and waits for its echo, the others wait for nothing of their own."""
    net = Net([-1, 0, 1], detection, held_us_max=1_000)
    net.advertise("x", 1, span(0, 9))
    net.advertise("y", 0, span(from_above, 9))
    net.settle()
    net.subscribe("s", 1, span(0, 9))
    net.subscribe("t", 0, span(0, wanted_above))
    net.settle()
    return net


def say(broker: Broker, number: int, value: int, now: int = 0) -> list[Effect]:
    return broker.handle(Pub(Address("x"), Event("x", number, "t", attributes={"x": value})), Micros(now))


def timers(effects: list[Effect]) -> list[Micros]:
    return [effect.at for effect in effects if isinstance(effect, SetTimer)]


def delivered(effects: list[Effect]) -> list[str]:
    return [str(e.message.event.id) for e in effects if isinstance(e, Send) and isinstance(e.message, OverlayDelivery)]


def missing(effects: list[Effect]) -> list[tuple[str, str]]:
    return [(e.to, e.message.event) for e in effects if isinstance(e, Send) and isinstance(e.message, Missing)]


def test_the_oldest_is_watched_and_when_it_is_given_up_the_next_one() -> None:
    broker = middle().broker(1)
    assert timers(say(broker, 1, 1, now=100)) == [1_100]
    assert timers(say(broker, 2, 2, now=600)) == []
    effects = broker.handle(Fired("held"), Micros(1_100))
    assert missing(effects) == [("s", "x:1")]
    assert timers(effects) == [1_600]
    effects = broker.handle(Fired("held"), Micros(1_600))
    assert missing(effects) == [("s", "x:2")]
    assert timers(effects) == []
    assert broker.pending == []


def test_what_waits_only_behind_another_waits_until_that_one_is_given_up() -> None:
    for giving_up in (Fired("held"), Nack(ABOVE, EventId("x:1"), "dropped above")):
        broker = middle(wanted_above=4).broker(1)
        assert delivered(say(broker, 1, 1)) == []
        assert delivered(say(broker, 2, 7, now=500)) == []
        assert delivered(broker.handle(Nack(ABOVE, EventId("z:1"), "of somebody else"), Micros(600))) == []
        assert delivered(broker.handle(giving_up, Micros(1_000))) == ["x:2"]


def test_who_has_had_an_event_is_not_told_that_it_is_missing() -> None:
    net = middle("exact", from_above=5)
    net.subscribe("early", 1, span(0, 4))  # meets nothing from above
    net.settle()
    assert delivered(say(net.broker(1), 1, 1)) == ["x:1"]
    assert missing(net.broker(1).handle(Fired("held"), Micros(1_000))) == [("s", "x:1")]


def test_what_is_missed_from_above_is_not_told_above() -> None:
    broker = middle().broker(1)
    effects = broker.handle(OverlayMissed(ABOVE, Event("y", 1, "t", attributes={"x": 1}), "dropped above"), NOW)
    assert missing(effects) == [("s", "y:1")]
    assert len(effects) == 1


def test_what_waited_for_a_lost_link_does_not_go_out_on_the_next_one_to_the_same_broker() -> None:
    net = middle()
    net.subscribe("below", 2, span(0, 9))
    net.settle()
    broker = net.broker(1)
    say(broker, 1, 1)
    broker.handle(LinkDown(BELOW), NOW)
    broker.handle(LinkUp(BELOW, False), NOW)
    effects = broker.handle(Ack(ABOVE, EventId("x:1")), NOW)
    assert delivered(effects) == ["x:1"]
    assert BELOW not in [effect.to for effect in effects if isinstance(effect, Send)]


def test_a_subscription_that_waits_for_a_lost_broker_is_in_force() -> None:
    net = middle()
    net.subscribe("late", 1, span(0, 9))
    assert "late" not in net.active
    net.tell(net.names[1], LinkDown(ABOVE))
    assert "late" in net.active


def test_what_a_lost_link_has_announced_a_second_time_does_not_wait_for_its_turn() -> None:
    net = middle()
    net.subscribe("below", 2, span(0, 9))
    net.settle()
    broker = net.broker(1)
    broker.handle(Sub(ABOVE, "below", "below", span(0, 9), 1), NOW)
    assert not broker.is_idle
    broker.handle(LinkDown(ABOVE), NOW)
    assert broker.is_idle
