"""Authors and emitters: what shares a frame, what is refused, and what a client still knows."""

import pytest
from msgspec.structs import replace

from unisono.errors import InvariantError
from unisono.model.event import Event
from unisono.model.ids import Address
from unisono.model.time import Micros
from unisono.protocols.causal.config import CausalConfig
from unisono.protocols.causal.messages import CausalEmitted, CausalPublication, CausalRefused
from unisono.protocols.causal.order import CausalOrder
from unisono.protocols.causal.publishing import FRAME_BYTES, CausalAuthor, CausalEmitter

RULES = ("CLIENT",)
CONFIG = CausalConfig(
    tick_us=Micros(1000), eps_ticks=2, life_ticks=20, spread_ticks=5, deadline_ticks_max=50, delay_ticks=10,
    publish_ticks=8, waiting_max=3,
)  # fmt: skip
B, G = 2, 7


def emitter() -> CausalEmitter:
    return CausalEmitter(CausalOrder(CONFIG, B))


def author(broker: int | None = B) -> CausalAuthor:
    made = CausalAuthor(Address("c"), CausalOrder(CONFIG), lambda topic: (int(topic),))
    made.broker = broker
    return made


def publication(
    client: str, until: int = 20, high: int = 0, deadline: int = 0, size: int = 1, request: int = 1
) -> CausalPublication:
    return CausalPublication(
        Address(client), B, request, (G,), (Event(client, 1, "7", bytes(size)),), (), high, until, deadline
    )


def test_what_is_published_in_a_tick_shares_a_frame() -> None:
    b = emitter()
    for client in "cde":
        assert b.ask(publication(client), 10) is None
    (frame,), answers = b.emit(10)
    assert [event.publisher for event in frame.body] == ["c", "d", "e"]
    assert len(answers) == 3
    assert b.ask(publication("f"), 10) is None
    assert b.emit(10) == ([], [])
    assert b.wakes_at() == 11
    assert [frame.stamp for frame in b.emit(11)[0]] == [11]


def test_deadlines_of_their_own_have_frames_of_their_own() -> None:
    b = emitter()
    for client, deadline in (("c", 0), ("d", 40), ("e", 0)):
        b.ask(publication(client, deadline=deadline), 10)
    frames, _ = b.emit(10)
    assert [(len(frame.body), frame.stamp, frame.deadline) for frame in frames] == [(2, 10, 30), (1, 11, 40)]


def test_what_does_not_fit_a_frame_leaves_with_the_next_stamp() -> None:
    b = emitter()
    for client in "cd":
        b.ask(publication(client, size=FRAME_BYTES - 1000), 10)
    assert [frame.stamp for frame in b.emit(10)[0]] == [10, 11]


@pytest.mark.parametrize(
    ("deadline", "why"), [(14, "of its deadline are left"), (61, "ms ahead"), (15, None), (60, None)]
)
def test_a_deadline_that_cannot_be_met_is_refused(deadline: int, why: str | None) -> None:
    b = emitter()
    b.ask(publication("c", deadline=deadline), 10)
    frames, (answer,) = b.emit(10)
    if why is None:
        assert isinstance(answer, CausalEmitted)
        assert frames[0].deadline == deadline
    else:
        assert isinstance(answer, CausalRefused)
        assert why in answer.reason
        assert frames == []


def test_a_broker_has_room_for_so_many_and_believes_no_stamp_from_afar() -> None:
    b = emitter()
    for client in "cde":
        assert b.ask(publication(client), 10) is None
    for refused, words in (
        (b.ask(publication("f"), 10), "3 publications wait"),
        (emitter().ask(publication("f", high=23), 10), "clock of this client"),
        (emitter().ask(CausalPublication(Address("f"), B, 1, (), (), (), 0, 20), 10), "no groups"),
    ):
        assert refused is not None
        assert words in refused.reason


def test_what_a_client_has_heard_by_clocks_within_eps_is_believed() -> None:
    """A sender's clock is ahead by eps, its stamp by eps more; a broker whose clock is right waits for it."""
    config = replace(CONFIG, eps_ticks=12)
    b = CausalEmitter(CausalOrder(config, B))
    high = 10 + 2 * config.eps_ticks
    assert b.ask(publication("f", high=high, until=high + config.publish_ticks), 10) is None
    assert b.emit(10) == ([], [])
    assert [frame.stamp for frame in b.emit(b.wakes_at() or 0)[0]] == [high + 1]


def test_a_vector_that_fits_no_frame_is_not_sent() -> None:
    """Rather than a frame that nobody can be told of: what was known is over soon."""
    order = CausalOrder(CONFIG, B)
    b = CausalEmitter(order)
    order.learn({(sender, G): (9, 20) for sender in range(2000)}, 9)
    b.ask(publication("c"), 10)
    frames, (answer,) = b.emit(10)
    assert frames == []
    assert isinstance(answer, CausalRefused)
    assert "more are known here" in answer.reason
    b.ask(publication("d", until=35), 24)
    assert [frame.past for frame in b.emit(24)[0]] == [{}]


def test_a_client_whose_clock_is_ahead_forgets_nothing() -> None:
    c = author()
    c._order.learn({(1, G): (10, 30)}, 10)
    c.put(1, Event("c", 1, "7"))
    made = c.next(100)
    assert made is not None
    assert made.past == ((1, G, 10, 30),)


def test_one_publication_is_under_way_and_takes_what_waits_along() -> None:
    c = author()
    for i in (1, 2, 3):
        c.put(i, Event("c", i, "7"), lasts=30 if i == 3 else 0)
    first = c.next(10)
    assert first is not None
    assert len(first.events) == 2
    assert c.next(11) is None
    assert c.emitted(CausalEmitted(Address("c"), 1, (), 10)) == (1, 2)
    second = c.next(12)
    assert second is not None
    assert second.deadline == 29  # its end is 30 ticks after the birth
    assert c.requests == (3,)


def test_who_has_no_broker_waits() -> None:
    c = author(None)
    c.put(5, Event("c", 1, "7"))
    assert c.next(10) is None
    assert len(c) == 1


def test_a_refusal_teaches_nothing() -> None:
    c = author()
    c.put(1, Event("c", 1, "7"))
    c.next(10)
    assert c.refused(CausalRefused(Address("c"), 2, "")) == ()
    assert c.refused(CausalRefused(Address("c"), 1, "")) == (1,)
    assert c._order.known == {}


def test_nobody_sends_before_its_time() -> None:
    order = CausalOrder(CONFIG, B)
    order.learn({}, 30)
    with pytest.raises(InvariantError):
        order.send((G,), 60, (), 10)


def test_a_publication_that_comes_again_is_emitted_once() -> None:
    b = emitter()
    for _ in range(2):
        assert b.ask(publication("c"), 10) is None
    assert [len(frame.body) for frame in b.emit(10)[0]] == [1]
    assert b.ask(publication("c"), 11) is None
    assert b.emit(11) == ([], [])
    assert b.ask(publication("c", request=2), 12) is None
    assert len(b.emit(12)[0]) == 1
