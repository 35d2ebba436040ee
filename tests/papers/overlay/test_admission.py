"""What a broker takes from clients, and which connection a message belongs to."""

from typing import Any

import pytest

from unisono.machine import Refuse, Send
from unisono.model.event import Event
from unisono.model.ids import Address
from unisono.model.predicate import Box, Filter, Values, parse
from unisono.model.time import Micros
from unisono.protocols.overlay.broker import Broker
from unisono.protocols.overlay.config import BrokerConfig
from unisono.protocols.overlay.messages import (
    Active,
    Adv,
    LinkDown,
    LinkUp,
    Ok,
    OverlayDenied,
    OverlayNotTaken,
    OverlayOpen,
    OverlayTaken,
    Pub,
    Sub,
    Unadv,
    Unsub,
)
from unisono.structures.connections import Carried, Connected, Connections

RULES = ("ADMIT",)

C, NOW = Address("c"), Micros(0)


def broker() -> Broker:
    made = Broker(Address("B"), BrokerConfig(routes_per_client_max=2))
    made.handle(Adv(C, "c/ad", "c.t", parse("true")), NOW)
    return made


def sent(effects: list[Any]) -> list[Any]:
    return [effect.message for effect in effects if isinstance(effect, Send)]


def publish(to: Broker, sequence: int, publisher: str = "c.t", **attributes: Any) -> Any:
    return sent(to.handle(Pub(C, Event(publisher, sequence, "t", attributes=attributes)), NOW))[0]


@pytest.mark.parametrize(
    "filter",
    [
        Filter((Box((("x", Values(numbers=((5, 0), (1, 0)))),)),)),
        Filter((Box((("x", Values(numbers=((float("nan"), 0),))),)),)),
        Filter((Box((("x", Values(numbers=((1, 7),))),)),)),
        Filter((Box((("x", Values(strings=("b", "a"))),)),)),
        Filter((Box((("x", Values(kinds=1 << 20)),)),)),
        Filter((Box((("y", Values(kinds=1)), ("x", Values(kinds=1)))),)),
        Filter((Box(), Box((("x", Values(kinds=1)),)))),
        Filter(()),
    ],
)
def test_filters_not_in_their_one_spelling_are_denied(filter: Filter) -> None:
    effects = broker().handle(Sub(C, "c/1", "c", filter), NOW)
    assert [type(message) for message in sent(effects)] == [OverlayDenied]
    assert isinstance(effects[-1], Refuse)


def test_clients_name_things_after_themselves_and_not_too_many() -> None:
    made = broker()
    everything = parse("true")
    for message in (
        Sub(C, "d/1", "c", everything),
        Sub(C, "c/1", "d", everything),
        Adv(C, "cc", "c", everything),
        Adv(C, "c/2", "d", everything),
        Adv(C, "c/ad", "c", everything),
    ):
        assert [type(answer) for answer in sent(made.handle(message, NOW))] == [OverlayDenied], message
    for number in (3, 4):
        made.handle(Sub(C, f"c/{number}", "c", everything), NOW)
    assert [type(answer) for answer in sent(made.handle(Sub(C, "c/5", "c", everything), NOW))] == [OverlayDenied]
    assert isinstance(publish(made, 1, "d.t"), OverlayNotTaken)


def test_sequences_count_up() -> None:
    made = broker()
    assert [type(publish(made, sequence)) for sequence in (2, 2, 1, 3)] == [
        OverlayTaken,
        OverlayNotTaken,
        OverlayNotTaken,
        OverlayTaken,
    ]


def test_a_publisher_that_is_gone_leaves_nothing_behind() -> None:
    made = broker()
    publish(made, 1)
    made.handle(LinkDown(C), NOW)
    assert len(made._local) == 0
    assert made.is_idle


def test_what_belongs_to_an_older_connection_is_dropped() -> None:
    up, peer = Connections(Broker(Address("B")), Address("B"), LinkDown), Address("P")
    up.handle(Connected(1, peer, LinkUp(peer, is_parent=True)), NOW)
    up.handle(Carried(1, peer, LinkDown(peer)), NOW)
    opened = up.handle(Connected(2, peer, LinkUp(peer, is_parent=True)), NOW)
    assert [effect.message.connection for effect in opened if isinstance(effect, Send)] == [2]
    late = Carried(1, peer, LinkDown(peer))
    assert up.handle(late, NOW) == []
    assert isinstance(up.inside, Broker)
    assert up.inside.parent == peer


def denied(to: Broker, message: Any) -> str:
    (answer,) = sent(to.handle(message, NOW))
    assert isinstance(answer, OverlayDenied), answer
    return answer.code


def sides(count: int, text: str = "x") -> Filter:
    return Filter((Box(tuple((f"a{i:04}", Values(strings=(text, text + "\0"))) for i in range(count))),))


def test_a_filter_of_thousands_of_sides_is_refused_before_it_is_compared_with_anything() -> None:
    made = broker()
    assert denied(made, Sub(C, "c/1", "c", sides(3_200))) == "filter-cost"
    assert denied(made, Adv(C, "c/1", "c", sides(3_200))) == "filter-cost"
    assert made.refusals == {"filter-cost": 2}
    assert isinstance(sent(made.handle(Sub(C, "c/1", "c", sides(300)), NOW))[0], Active)


def test_the_filters_of_one_client_may_take_so_many_bytes_until_it_gives_some_up() -> None:
    made = Broker(Address("B"), BrokerConfig(route_bytes_per_client_max=50_000))
    large = sides(1, "y" * 20_000)
    assert isinstance(sent(made.handle(Sub(C, "c/1", "c", large), NOW))[0], Active)
    assert denied(made, Sub(C, "c/2", "c", large)) == "bytes"
    made.handle(Adv(C, "c/3", "c", large), NOW)  # advertisements count for themselves
    assert denied(made, Adv(C, "c/4", "c", large)) == "bytes"
    made.handle(Unsub(C, "c/1"), NOW)
    made.handle(Unadv(C, ("c/3",)), NOW)
    assert isinstance(sent(made.handle(Sub(C, "c/5", "c", large), NOW))[0], Active)
    made.handle(LinkDown(C), NOW)
    assert made._routes._bytes == {}


def test_what_waits_of_one_publisher_is_bounded_in_bytes() -> None:
    made = Broker(Address("B"), BrokerConfig(buffer_bytes_max=1_000))
    made.handle(LinkUp(Address("P"), True), NOW)
    made.handle(OverlayOpen(Address("P")), NOW)
    for turn, topic in enumerate("tu", 1):
        made.handle(Adv(C, f"c/{topic}", "c", parse(f"`$topic` = '{topic}'")), NOW)  # not confirmed by P: all waits
        answers = [sent(made.handle(Pub(C, Event("c", 10 * turn + i, topic, bytes(400))), NOW)) for i in range(4)]
        assert [[answer.code for answer in some] for some in answers] == [[], [], ["bytes"], ["bytes"]]
        taken = sent(made.handle(Ok(Address("P"), "A", f"c/{topic}", turn), NOW))
        assert [message.event for message in taken] == [f"c:{10 * turn}", f"c:{10 * turn + 1}"]
    assert isinstance(sent(made.handle(Pub(C, Event("c", 50, "t", bytes(4_000))), NOW))[0], OverlayTaken)


def test_an_event_comes_under_a_name_that_has_advertised() -> None:
    made = broker()
    assert isinstance(publish(made, 1, "c.other"), OverlayNotTaken)
    assert made.refusals == {"advertisement": 1}
    assert isinstance(publish(made, 1), OverlayTaken)


def test_subscriptions_and_advertisements_of_a_client_that_has_gone_are_gone_everywhere() -> None:
    made, above = broker(), Address("P")
    made.handle(LinkUp(above, True), NOW)
    made.handle(Ok(above, "A", "c/ad", 1), NOW)
    made.handle(OverlayOpen(above), NOW)
    made.handle(Adv(above, "p/ad", "p", parse("true"), 1), NOW)
    made.handle(Sub(C, "c/1", "c", parse("x > 1")), NOW)
    made.handle(Sub(C, "c/2", "c", parse("x < 1")), NOW)
    assert made.subscriptions == 2
    told = made.handle(LinkDown(C), NOW)
    assert made.subscriptions == 0
    assert [effect.message for effect in told if isinstance(effect, Send) and effect.to == above] == [
        Unsub(Address("B"), "c/1"),
        Unsub(Address("B"), "c/2"),
        Unadv(Address("B"), ("c/ad",)),
    ]
    assert sent(made.handle(Pub(above, Event("p", 1, "t", attributes={"x": 5})), NOW)) == []


def test_what_was_withdrawn_may_be_advertised_again_under_its_name() -> None:
    made = broker()
    for sequence in (1, 2, 3):
        assert isinstance(publish(made, sequence), OverlayTaken)
        made.handle(Unadv(C, ("c/ad",)), NOW)
        assert publish(made, 9).code == "advertisement"
        made.handle(Adv(C, "c/ad", "c.t", parse("true")), NOW)
