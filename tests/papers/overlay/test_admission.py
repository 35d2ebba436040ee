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
from unisono.protocols.overlay.connections import Carried, Connected, Connections
from unisono.protocols.overlay.messages import Adv, Denied, LinkDown, LinkUp, NotTaken, Pub, Sub, Taken

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
    assert [type(message) for message in sent(effects)] == [Denied]
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
        assert [type(answer) for answer in sent(made.handle(message, NOW))] == [Denied], message
    for number in (3, 4):
        made.handle(Sub(C, f"c/{number}", "c", everything), NOW)
    assert [type(answer) for answer in sent(made.handle(Sub(C, "c/5", "c", everything), NOW))] == [Denied]
    assert isinstance(publish(made, 1, "d.t"), NotTaken)


def test_sequences_count_up() -> None:
    made = broker()
    assert [type(publish(made, sequence)) for sequence in (2, 2, 1, 3)] == [Taken, NotTaken, NotTaken, Taken]


def test_a_publisher_that_is_gone_leaves_nothing_behind() -> None:
    made = broker()
    publish(made, 1)
    made.handle(LinkDown(C), NOW)
    assert len(made._local) == 0
    assert made.is_idle


def test_what_belongs_to_an_older_connection_is_dropped() -> None:
    up, peer = Connections(Broker(Address("B")), Address("B")), Address("P")
    up.handle(Connected(1, peer, LinkUp(peer, is_parent=True)), NOW)
    up.handle(Carried(1, peer, LinkDown(peer)), NOW)
    opened = up.handle(Connected(2, peer, LinkUp(peer, is_parent=True)), NOW)
    assert [effect.message.connection for effect in opened if isinstance(effect, Send)] == [2]
    late = Carried(1, peer, LinkDown(peer))
    assert up.handle(late, NOW) == []
    assert isinstance(up.inside, Broker)
    assert up.inside.parent == peer
