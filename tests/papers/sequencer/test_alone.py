"""One subscriber by itself, over time: what it asks for, how long it trusts its lease, what it forgets on giving up."""

from typing import Any

import pytest
from msgspec.structs import replace

from tests.papers.sequencer.pump import STAMP
from tests.papers.sequencer.test_delivery import T, U, X, payload, run, stamp
from unisono.machine import Deliver, Fired, Gap, Heard, Joined, Send, Stalled, Subscribe, Unsubscribe
from unisono.model.ids import Address
from unisono.model.time import Micros
from unisono.protocols.sequencer.client import OrderingClient
from unisono.protocols.sequencer.config import SequencerConfig
from unisono.protocols.sequencer.messages import (
    Ask,
    Collect,
    Collected,
    Install,
    Installed,
    Piece,
    Pieces,
    Renewed,
)

RULES = ("LEASE", "D1", "V2")

LEASED = replace(STAMP, subscriber_lease_us=Micros(1000))


class Alone:
    """A client at one home for all its topics, and a clock."""

    def __init__(self, config: SequencerConfig, *topics: int) -> None:
        self.client = OrderingClient(Address("s"), dict.fromkeys((X, T, U), Address("home")), config)
        self.feeds = self.client.subscriber.feeds
        self.version = 0
        if topics:
            self.join(*topics)

    def at(self, now: int, *inputs: Any) -> list[Any]:
        """What it sends and tells."""
        effects = [effect for one in inputs for effect in self.client.handle(one, Micros(now))]
        said = [effect for effect in effects if isinstance(effect, Deliver | Send)]
        return [effect.item if isinstance(effect, Deliver) else effect.message for effect in said]

    def join(self, *topics: int) -> None:
        said = self.at(0, Subscribe(topics), *map(Joined, topics))
        self.version = next(message.version for message in said if isinstance(message, Install))
        self.at(0, *[Installed(topic, self.version, 0) for topic in topics])

    def asked(self) -> list[tuple[int, int]]:
        """Topic and number of what it asks for when it has looked twice."""
        self.at(1, Fired("ask"))
        return [(one.topic, one.number) for one in self.at(2, Fired("ask")) if isinstance(one, Ask) and one.number]


def stalls(said: list[Any]) -> list[int]:
    return [item.topic for item in said if isinstance(item, Stalled)]


# What exists is asked for.


def test_numbers_before_a_stamp_that_came_are_asked_for() -> None:
    alone = Alone(STAMP, X)
    alone.at(0, stamp(X, 3))
    assert alone.asked() == [(X, 1), (X, 2)]


def test_a_stamp_for_which_there_is_no_room_is_asked_for_when_its_turn_comes() -> None:
    alone = Alone(replace(STAMP, buffer_max=1), X)
    alone.at(0, stamp(X, 2), stamp(X, 3))
    assert list(alone.feeds[X].items) == [2]
    alone.at(0, payload(X, 2), stamp(X, 1))
    alone.at(0, payload(X, 1))
    assert alone.asked() == [(X, 3)]


def test_numbers_that_only_others_have_named_are_asked_for() -> None:
    """Nothing of X has come but its number in the timestamp of t."""
    alone = Alone(STAMP, X, T)
    alone.at(0, payload(T), stamp(T, 1, {X: 2}))
    assert alone.asked() == [(X, 1), (X, 2)]


# An open timestamp (E5) is closed piece by piece.


def test_a_timestamp_is_open_until_the_last_of_its_topics_is_settled() -> None:
    others = (8, 9)
    for order in (others, others[::-1]):
        alone = Alone(replace(SequencerConfig(), shared_subscriptions_min=1, causal=True), T)
        alone.at(0, payload(T), Heard(T, Pieces(T, (Piece(run(1), (), others),))))
        for settled, is_open in zip(order, (True, False)):
            alone.at(0, Heard(T, Pieces(T, (Piece(run(1, {settled: 1}), (settled,)),))))
            assert bool(alone.client.subscriber.open) == is_open


# A joining that is given up leaves nothing.


@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.parametrize(
    "heard", [(), (Joined(T),), (Joined(T), Joined(U)), (Joined(T), Joined(U), Installed(T, 1, 0))]
)
def test_a_joining_that_is_given_up_at_any_point_says_nothing_to_the_next(
    heard: tuple[Any, ...], is_late: bool
) -> None:
    """The broker may still confirm what was given up, or never."""
    alone = Alone(STAMP)
    alone.at(0, Subscribe((T, U)), *heard)
    alone.at(0, Unsubscribe((T, U)))
    if is_late:
        assert alone.at(0, *[message for message in (Joined(T), Joined(U)) if message not in heard]) == []
    said = alone.at(0, Subscribe((X,)), Joined(X))
    (install,) = [message for message in said if isinstance(message, Collect | Install)]
    assert (install.here, install.topics) == ((X,), (X,))
    told = alone.at(0, Installed(X, install.version, 4))
    assert told == [Joined(X, 4)]
    again = alone.at(0, Fired("subscribe"))
    assert not [message for message in again if isinstance(message, Collect | Install)]


def test_a_topic_that_started_again_and_was_left_tells_no_gap_when_it_is_joined_later() -> None:
    alone = Alone(STAMP, X)
    alone.client.subscriber.subscription.start_again(X, Micros(0), [])
    alone.at(0, Unsubscribe((X,)))
    said = alone.at(0, Subscribe((X,)), Joined(X))
    (install,) = [message for message in said if isinstance(message, Install)]
    told = alone.at(0, Installed(X, install.version, 9))
    assert not [item for item in told if isinstance(item, Gap)]


# The lease.


def lease_ends(alone: Alone, *topics: int) -> list[int]:
    return [alone.feeds[topic].lease_end for topic in topics]


def test_a_lease_begins_with_the_first_install_however_often_it_is_repeated() -> None:
    alone = Alone(LEASED)
    for at, message in [(0, Subscribe((X,))), (100, Joined(X)), (400, Fired("subscribe")), (700, Installed(X, 1, 0))]:
        alone.at(at, message)
    assert lease_ends(alone, X) == [100 + 750]


def test_a_lease_does_not_begin_before_install_leaves() -> None:
    """Collecting may take its time: nobody has registered T meanwhile."""
    alone = Alone(LEASED, X)
    alone.at(100, Subscribe((T,)), Joined(T))
    alone.at(400, Collected(X, 2))
    alone.at(700, Installed(T, 2, 0))
    assert lease_ends(alone, T) == [400 + 750]


def test_an_older_answer_takes_nothing_from_a_lease() -> None:
    alone = Alone(LEASED, X)
    alone.at(500, Renewed((X,), Micros(400), True), Renewed((X,), Micros(200), True))
    assert lease_ends(alone, X) == [400 + 750]


def test_the_end_of_a_lease_is_told_once_and_again_after_it_was_renewed() -> None:
    alone = Alone(LEASED, X)
    assert [stalls(alone.at(at, Fired("lease"))) for at in (500, 750, 1000)] == [[], [X], []]
    alone.at(1100, Renewed((X,), Micros(1000), True))
    assert [stalls(alone.at(at, Fired("lease"))) for at in (1250, 1750, 2000)] == [[], [X], []]


def test_the_end_of_a_lease_is_told_again_to_whoever_left_and_came_back() -> None:
    alone = Alone(LEASED, X)
    assert stalls(alone.at(750, Fired("lease"))) == [X]
    alone.at(800, Unsubscribe((X,)))
    said = alone.at(800, Subscribe((X,)), Joined(X))
    (version,) = [message.version for message in said if isinstance(message, Install)]
    alone.at(900, Installed(X, version, 0))
    assert stalls(alone.at(1550, Fired("lease"))) == [X]


def test_a_lease_that_its_home_has_ended_is_told_once_as_the_end() -> None:
    alone = Alone(LEASED, X)
    told = alone.at(100, Renewed((X,), Micros(50), False), Renewed((X,), Micros(60), False))
    assert [item.ends for item in told if isinstance(item, Stalled)] == [True]
    assert stalls(alone.at(750, Fired("lease"))) == []
