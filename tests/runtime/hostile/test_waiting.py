"""A peer that is away: of what clients repeat a node keeps one, and not more than its bound."""

from typing import Any

import msgspec

from unisono.machine import Refuse
from unisono.model.ids import Address, Topic
from unisono.model.time import Micros
from unisono.protocols.sequencer.config import SequencerConfig
from unisono.protocols.sequencer.messages import (
    Ask,
    BrokerMessage,
    Collect,
    Creates,
    Install,
    Renew,
    Routed,
    Update,
    Wanted,
    repeats,
)
from unisono.protocols.sequencer.node import TopicManager
from unisono.runtime.links import control
from unisono.structures.sessions import Handled, Sessions, SessionsConfig

ME, HUB, FAR = Address("eu"), Address("hub"), Topic(7)
SID = Address("c1/1")


def node(outbox_max: int = 100_000) -> Sessions:
    inside = TopicManager(ME, HUB, (), (Topic(1),), {}, SequencerConfig())
    config = SessionsConfig(outbox_max=outbox_max)
    return Sessions(inside, ME, (HUB,), control.NodeMessage, BrokerMessage, config, repeats)


def waiting(machine: Sessions) -> list[Any]:
    return msgspec.msgpack.decode(machine.snapshot()["links"][HUB][3], type=list[control.NodeMessage])


def questions(number: int) -> list[Any]:
    """What one client says again and again while the home of a topic does not answer."""
    return [
        Collect(SID, 1, (FAR,), (FAR,), (FAR,)),
        Collect(SID, 1, (Topic(1),), (Topic(1), FAR), (FAR,)),
        Install(SID, 1, (FAR,), (FAR,)),
        Update(SID, 2, (FAR,), ()),
        Creates(Address("c1"), (Wanted(FAR, 1, 3),)),
        Ask(SID, FAR, 4),
        Renew(SID, (FAR,), Micros(number)),
    ]


def test_what_is_asked_again_while_a_parent_is_away_for_an_hour_waits_once() -> None:
    machine = node()
    for number in range(1_000):
        for question in questions(number):
            machine.handle(question, Micros(number))
    assert len(waiting(machine)) == len(questions(0))


def test_what_is_asked_again_after_it_was_handled_leaves_again() -> None:
    machine = node()
    ask = Ask(SID, FAR, 4)
    machine.handle(ask, Micros(0))
    machine.handle(Handled(HUB, 1), Micros(1))
    machine.handle(ask, Micros(2))
    assert waiting(machine) == [Routed(FAR, ask)]


def test_what_waits_is_known_after_a_restart() -> None:
    machine, again = node(), node()
    ask = Ask(SID, FAR, 4)
    machine.handle(ask, Micros(0))
    again.restore(msgspec.msgpack.decode(msgspec.msgpack.encode(machine.snapshot()), strict=False))
    again.handle(ask, Micros(1))
    assert waiting(again) == [Routed(FAR, ask)]


def test_forwarded_questions_respect_the_bound_of_the_outbox() -> None:
    machine = node(outbox_max=50)
    refused = 0
    for number in range(1_000):
        effects = machine.handle(Ask(SID, FAR, number), Micros(number))
        refused += any(isinstance(effect, Refuse) for effect in effects)
    assert len(waiting(machine)) == 50
    assert refused == 950
