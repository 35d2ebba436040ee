"""One subscriber by itself: what it has heard, in whatever order, and what of it may be told."""

from typing import Any

from msgspec.structs import replace

from tests.papers.sequencer.pump import STAMP
from unisono.machine import Deliver, Gap, Heard, Joined, Refuse, Send, Subscribe, Unsubscribe
from unisono.model.event import Event, Payload, Payloads
from unisono.model.ids import Address
from unisono.model.time import Micros
from unisono.protocols.sequencer.client import OrderingClient
from unisono.protocols.sequencer.config import SequencerConfig
from unisono.protocols.sequencer.messages import Collected, Installed, Piece, Pieces, Run, Stamps, Update, Void

RULES = ("C7", "V2", "E4", "LEASE")

X, T, U, OTHERS = 1, 2, 3, 9
P = Address("p")


class Alone:
    """A client at one home for all its topics."""

    def __init__(self, config: SequencerConfig = STAMP, *topics: int) -> None:
        self.client = OrderingClient(Address("s"), dict.fromkeys((X, T, U), Address("home")), config)
        self.said: list[Any] = []
        self.feeds = self.client.subscriber.feeds
        if topics:
            self.hear(Subscribe(topics), *map(Joined, topics), *[Installed(topic, 1, 0) for topic in topics])

    def hear(self, *inputs: Any) -> list[tuple[int, int]]:
        """Topic and number of what it is notified of."""
        self.said = [effect for one in inputs for effect in self.client.handle(one, Micros(1))]
        heard = [effect.item for effect in self.said if isinstance(effect, Deliver) and isinstance(effect.item, Heard)]
        return [(item.topic, item.number) for item in heard if not item.late]

    @property
    def late(self) -> list[tuple[int, int]]:
        heard = [effect.item for effect in self.said if isinstance(effect, Deliver) and isinstance(effect.item, Heard)]
        return [(item.topic, item.number) for item in heard if item.late]


def run(first: int, entries: dict[int, int] | None = None) -> Run:
    entries = entries or {}
    return Run(first, 1, P, first, tuple(entries), tuple(entries.values()))


def payload(topic: int, request: int = 1) -> Heard:
    return Heard(topic, Payload(P, request, event(topic, request)))


def event(topic: int, request: int) -> Event:
    return Event("p", request, str(topic), b"")


def stamp(topic: int, first: int = 1, entries: dict[int, int] | None = None) -> Heard:
    return Heard(topic, Stamps(topic, (run(first, entries),)))


def piece(entries: dict[int, int], settled: tuple[int, ...] = (), missing: tuple[int, ...] | None = None) -> Heard:
    return Heard(T, Pieces(T, (Piece(run(1, entries), settled, missing),)))


def test_what_every_node_has_decided_counts_whichever_piece_comes_last() -> None:
    for pieces in ([piece({X: 1}, (), (U,)), piece({U: 1}, (U,))], [piece({U: 1}, (U,)), piece({X: 1}, (), (U,))]):
        alone = Alone(SequencerConfig(), X, T, U)
        assert alone.hear(payload(T), *pieces) == []
        assert alone.hear(payload(U), Heard(U, Pieces(U, (Piece(run(1), (), ()),)))) == [(U, 1)]
        assert alone.hear(payload(X), Heard(X, Pieces(X, (Piece(run(1), (), ()),)))) == [(X, 1), (T, 1)]


def test_whoever_leaves_a_topic_waits_for_it_no_longer() -> None:
    alone = Alone(STAMP, X, T)
    assert alone.hear(payload(T), stamp(T, 1, {X: 1})) == []
    assert alone.hear(Unsubscribe((X,))) == [(T, 1)]


def test_an_event_that_only_waits_for_its_payload_is_held_for_a_topic_joined_meanwhile() -> None:
    """Its number was free to go before X was joined, and is not any more."""
    alone = Alone(STAMP, T)
    assert alone.hear(stamp(T, 1, {X: 5})) == []
    alone.hear(Subscribe((X,)), Joined(X))
    assert alone.hear(payload(T)) == []
    assert alone.hear(Collected(T, 2), Installed(X, 2, 4)) == []
    assert alone.hear(payload(X, 5), stamp(X, 5)) == [(X, 5), (T, 1)]


def test_an_event_whose_payload_comes_while_others_are_joined_is_told_at_once() -> None:
    """The home of T may be silent for long; X has nothing to do with that."""
    alone = Alone(STAMP, X)
    alone.hear(stamp(X))
    alone.hear(Subscribe((T,)), Joined(T))
    assert alone.hear(payload(X)) == [(X, 1)]


def test_after_leaving_nothing_more_is_told_though_others_are_still_being_joined() -> None:
    alone = Alone(STAMP, X)
    alone.hear(stamp(X), Heard(X, Void(X, run(1), 1, 1)), stamp(X, 2))
    alone.hear(Subscribe((T,)), Joined(T), Unsubscribe((X,)))
    assert alone.hear(payload(X, 2)) == []
    assert (alone.hear(payload(X, 1)), alone.late) == ([], [])


def test_what_went_by_without_an_event_is_not_among_what_was_left() -> None:
    """D3: only a number that was notified has surely passed."""
    alone = Alone(STAMP, X, T)
    assert alone.hear(payload(X), stamp(X), stamp(X, 2), Heard(X, Void(X, run(2), 2, 1))) == [(X, 1)]
    alone.hear(Unsubscribe((X,)))
    left = [effect.message.left for effect in alone.said if isinstance(effect, Send) and T in effect.message.here]
    assert left == [{X: 1}]


def test_a_void_that_is_repeated_leaves_nothing_behind() -> None:
    alone = Alone(STAMP, X)
    void = Heard(X, Void(X, run(1), 1, 1))
    alone.hear(void, void)
    assert (alone.feeds[X].lost, alone.feeds[X].items) == ({}, {})


def test_events_of_a_row_whose_numbers_have_gone_by_are_tagged() -> None:
    alone = Alone(STAMP, X)
    alone.hear(Heard(X, Void(X, run(1), 1, 1)), stamp(X, 2))
    row = Payloads(P, 1, (event(X, 1), event(X, 2)))
    assert alone.hear(Heard(X, row)) == [(X, 2)]
    assert alone.late == [(X, 1)]


def test_a_payload_beyond_the_bound_is_refused() -> None:
    alone = Alone(replace(STAMP, buffer_max=2), X)
    alone.hear(payload(X, 1), payload(X, 2))
    alone.hear(payload(X, 3))
    assert any(isinstance(effect, Refuse) for effect in alone.said)
    assert alone.feeds[X].payloads.count == 2


def test_an_open_timestamp_is_closed_by_the_piece_that_settles_it() -> None:
    """Nobody has to ask, whether it is still subscribed or not."""
    for leaves in (False, True):
        alone = Alone(replace(SequencerConfig(), shared_subscriptions_min=1, causal=True), T)
        assert alone.hear(payload(T), piece({}, (), (OTHERS,))) == [(T, 1)]
        assert alone.client.subscriber.open
        if leaves:
            alone.hear(Unsubscribe((T,)))
        alone.hear(piece({OTHERS: 3}, (OTHERS,)))
        assert not alone.client.subscriber.open


def test_a_lease_begins_when_install_leaves_however_late_it_is_answered() -> None:
    config = replace(STAMP, subscriber_lease_us=Micros(1000))
    client = OrderingClient(Address("s"), dict.fromkeys((X, T), Address("home")), config)
    for at, message in [(0, Subscribe((X,))), (100, Joined(X)), (700, Installed(X, 1, 0))]:
        client.handle(message, Micros(at))
    assert client.subscriber.feeds[X].lease_end == 100 + 750


def test_a_joining_that_was_given_up_leaves_nothing_for_the_next() -> None:
    """T was collected at X and given up; X is left; then U is joined, and nobody waits for X."""
    alone = Alone(STAMP, X)
    alone.hear(Subscribe((T,)), Joined(T))
    alone.hear(Unsubscribe((T,)), Unsubscribe((X,)))
    alone.hear(Subscribe((U,)), Joined(U))
    sent = [effect.message for effect in alone.said if isinstance(effect, Send)]
    assert [message.here for message in sent if not isinstance(message, Update)] == [(U,)]
    alone.hear(Installed(U, sent[0].version, 0))
    assert alone.client.subscriber.subscribed == (U,)
    assert not [e for e in alone.said if isinstance(e, Deliver) and isinstance(e.item, Gap)]
