"""Brokers that keep what they confirm: nothing is `stored` on the word that another payload is kept, and all have one
outcome."""

from collections import Counter
from typing import Any

import pytest

from unisono.audit import judge
from unisono.machine import (
    Accepted,
    Deliver,
    Effect,
    Fired,
    NotTaken,
    Publish,
    Refused,
    Send,
    SetTimer,
    Unknown,
)
from unisono.model.event import Event
from unisono.model.ids import Address, Topic
from unisono.model.time import Micros
from unisono.protocols.sequencer.client import OrderingClient
from unisono.protocols.sequencer.config import SequencerConfig
from unisono.protocols.sequencer.messages import Creates, Taken, Withdraw
from unisono.sim.scenario import load, play
from unisono.structures.sessions import BroadcastsDone
from unisono.structures.stored import REQUESTS_MAX, WATCH, StoredPublications

ME, HOME = Address("c1"), Address("home")
T, U = Topic(1), Topic(2)
PATIENCE = Micros(1_000)


class Play:
    """A publishing client over such a broker, and what was told."""

    def __init__(self, window: int = 100) -> None:
        inside = OrderingClient(ME, {T: HOME, U: HOME}, SequencerConfig(window=window))
        self.machine = StoredPublications(inside, PATIENCE, frozenset((Creates,)))
        self.names = 0
        self.now = Micros(0)

    def give(self, *messages: Any) -> list[Effect]:
        return [effect for message in messages for effect in self.machine.handle(message, self.now)]

    def told(self, *messages: Any) -> list[Any]:
        return [effect.item for effect in self.give(*messages) if isinstance(effect, Deliver)]

    def publish(self, topic: Topic, count: int = 1) -> list[Effect]:
        first, self.names = self.names + 1, self.names + count
        events = tuple(Event("c1", first + i, "t", b"x") for i in range(count))
        return self.give(Publish(topic, events[0] if count == 1 else events, first))


def test_payloads_are_confirmed_in_the_order_in_which_they_left() -> None:
    """The home of the second topic may be nearer and number first."""
    play = Play()
    play.publish(T)
    play.publish(U)
    assert play.told(Taken({U: 1}), BroadcastsDone(1)) == [], "it has its number, and nobody has said that it is kept"
    assert play.told(Taken({T: 1})) == [Accepted(1, "stored")]
    assert play.told(BroadcastsDone(1)) == [Accepted(2, "stored")]


def test_what_is_numbered_and_kept_in_a_row_is_told_as_one() -> None:
    play = Play()
    play.publish(T, 5)
    assert play.told(Taken({T: 4}), BroadcastsDone(3)) == [Accepted(1, "stored", 3)]
    assert play.told(BroadcastsDone(2), Taken({T: 5})) == [Accepted(4, "stored"), Accepted(5, "stored")]


def test_what_was_refused_here_never_left_and_is_confirmed_by_nothing() -> None:
    play = Play(window=2)
    play.publish(T)
    play.publish(T)
    effects = play.publish(T)
    assert [e.item for e in effects if isinstance(e, Deliver)] == [
        Refused(3, "2 publications on the topic wait for their numbers")
    ]
    play.publish(U)
    assert play.told(Taken({T: 2, U: 1}), BroadcastsDone(2)) == [Accepted(1, "stored", 2)]
    assert play.told(BroadcastsDone(1)) == [Accepted(4, "stored")]


def test_what_the_broker_has_rejected_is_counted_and_never_stored() -> None:
    """Whether it hears of its number before that, or after it."""
    play = Play()
    play.publish(T, 4)
    play.give(Taken({T: 2}))
    assert play.told(NotTaken(T, 2, "full")) == [Refused(2, "full")]
    assert play.told(NotTaken(T, 3, "full")) == [Refused(3, "full")]
    assert play.told(NotTaken(T, 3, "full")) == [], "once"
    assert play.told(BroadcastsDone(3), Taken({T: 3})) == [Accepted(1, "stored")]
    assert play.told(Taken({T: 4}), BroadcastsDone(1)) == [Accepted(4, "stored")]


def test_a_payload_that_is_not_confirmed_in_time_is_unknown_and_has_no_second_outcome() -> None:
    play = Play()
    play.publish(T, 2)
    watch = [e for e in play.give(Taken({T: 2})) if isinstance(e, SetTimer) and e.key == WATCH]
    assert watch == [SetTimer(WATCH, PATIENCE)]
    assert [type(item) for item in play.told(Fired(WATCH))] == [Unknown, Unknown]
    assert play.told(BroadcastsDone(1)) == []
    effects = play.give(NotTaken(T, 2, "full"))
    assert [e for e in effects if isinstance(e, Deliver)] == []
    assert [e.message for e in effects if isinstance(e, Send)] == [Withdraw(ME, T, 2, 1)], "nobody waits for it"


def requests_in(effects: list[Effect]) -> list[int]:
    return [e.message.items[0].first for e in effects if isinstance(e, Send) and isinstance(e.message, Creates)]


def test_a_number_is_asked_for_when_the_payload_is_kept() -> None:
    """Killed before that, a publisher leaves nothing; after it a payload without a number, which nobody misses."""
    play = Play()
    assert requests_in(play.publish(T)) == []
    assert requests_in(play.publish(T)) == []
    again = play.give(Fired("create"))
    assert requests_in(again) == []
    assert requests_in(play.give(BroadcastsDone(1)))[:1] == [1]
    assert 2 in requests_in(play.give(BroadcastsDone(1)))


def test_requests_that_wait_for_a_broker_that_stands_still_are_bounded() -> None:
    play = Play(window=10_000)
    for _ in range(3):
        play.publish(T)
    for _ in range(5000):
        play.now = Micros(play.now + 60_000_000)
        play.give(Fired("create"))
    assert len(play.machine._requests) <= REQUESTS_MAX + 3


def test_what_left_after_we_looked_has_all_the_time_there_is() -> None:
    play = Play()
    play.publish(T)
    play.give(Taken({T: 1}))
    play.publish(T)
    play.give(Taken({T: 2}))
    told = play.told(Fired(WATCH))
    assert [item.request for item in told] == [1]
    assert [item.request for item in play.told(Fired(WATCH))] == [2]


@pytest.mark.parametrize("seed", range(2))
def test_with_slow_brokers_and_publishers_that_crash_what_is_told_as_stored_is_found(seed: int) -> None:
    scenario = load("sequencer/stored")
    journal = play(scenario, seed)
    outcomes = Counter(record.event for record in journal.records if record.kind == "outcome")
    assert max(outcomes.values()) == 1
    assert {record.note for record in journal.records if record.kind == "outcome"} >= {"accepted stored", "refused"}
    assert [verdict for verdict in judge(journal, scenario.promised) if verdict.is_violated] == []
