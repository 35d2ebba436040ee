"""What a publication costs a broker, in lines of Python that are run: the same for any number of advertisements."""

import sys
from types import FrameType
from typing import Any

import pytest

from unisono.machine import Send
from unisono.model.event import Event
from unisono.model.ids import Address
from unisono.model.predicate import parse
from unisono.model.time import Micros
from unisono.protocols.overlay.broker import Broker
from unisono.protocols.overlay.config import BrokerConfig
from unisono.protocols.overlay.detection import Detection
from unisono.protocols.overlay.messages import Ack, Adv, LinkUp, Ok, OverlayOpen, Pub, Sub

RULES = ("TABLE",)

ABOVE, BELOW, NOW = Address("up"), Address("low"), Micros(0)


def steps(broker: Broker, message: Any) -> int:
    count = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        broker.handle(message, NOW)
    finally:
        sys.settrace(before)
    return count


def told(broker: Broker, message: Any) -> None:
    """Says something to a broker; its neighbours confirm what it announces."""
    for effect in broker.handle(message, NOW):
        match effect:
            case Send(to=to, message=Adv(ad=name, turn=turn)):
                told(broker, Ok(to, "A", name, turn))
            case Send(to=to, message=Sub(sub=name, turn=turn)):
                told(broker, Ok(to, "S", name, turn))
            case _:
                pass


def busy(detection: Detection, advertisements: int) -> Broker:
    """A broker between two others, with advertisements of all three, on few topics, and a client that has many."""
    broker = Broker(Address("B"), BrokerConfig(detection=detection, routes_per_client_max=10_000))
    for peer, is_parent in ((ABOVE, True), (BELOW, False)):
        told(broker, LinkUp(peer, is_parent))
        told(broker, OverlayOpen(peer))
    for i in range(advertisements):
        topic = parse(f"`$topic` = 't{i % 7}' and x >= {i % 3}")
        told(broker, Adv(ABOVE, f"u{i}/1", f"u{i}", topic, i + 1))
        told(broker, Adv(BELOW, f"l{i}/1", f"l{i}", topic, i + 1))
        told(broker, Adv(Address("c"), f"c/{i}", "c", parse(f"`$topic` = 'c{i}'")))
    told(broker, Adv(Address("c"), "c/mine", "c", parse("`$topic` = 't1'")))
    for peer in (ABOVE, BELOW):
        told(broker, Sub(peer, f"{peer}/s", "far", parse("`$topic` = 't1'"), 1))
    told(broker, Sub(Address("s"), "s/1", "s", parse("`$topic` = 't1'")))
    assert broker.is_idle
    return broker


def publish_and_echo(broker: Broker, number: int) -> tuple[int, int]:
    event = Event("c", number, "t1", attributes={"x": 1})
    climbs = steps(broker, Pub(Address("c"), event))
    assert len(broker.pending) == 1
    echo = steps(broker, Ack(ABOVE, event.id))
    assert broker.pending == []
    return climbs, echo


@pytest.mark.parametrize("detection", ["clients", "fast", "exact", "always"])
def test_a_publication_costs_the_same_steps_with_few_advertisements_and_with_many(detection: Detection) -> None:
    taken = []
    for count in (100, 400):  # both numbers of the client's own are beyond the first one with an index
        broker = busy(detection, 3 * count)
        publish_and_echo(broker, 1)  # the index of the client's advertisements is made
        down = steps(broker, Pub(ABOVE, Event("u1", 1, "t1", attributes={"x": 1})))
        taken.append((*publish_and_echo(broker, 2), down))
    assert taken[0] == taken[1]


def test_an_echo_costs_the_same_steps_while_much_is_being_agreed_on() -> None:
    taken = []
    for count in (3, 100):
        broker = busy("clients", 3)
        for i in range(count):
            broker.handle(Adv(Address("d"), f"d/{i}", "d", parse(f"`$topic` = 'd{i}'")), NOW)  # nobody confirms them
        taken.append(publish_and_echo(broker, 1)[1])
    assert taken[0] == taken[1]
