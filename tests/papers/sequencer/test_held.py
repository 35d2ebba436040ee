"""Payloads that wait: whatever comes in whatever rows, the same is there as if each were kept on its own."""

from hypothesis import given, settings
from hypothesis import strategies as st

from unisono.model.event import Event, EventRow
from unisono.model.ids import Address
from unisono.model.time import Micros
from unisono.protocols.sequencer.ordering_client.held import GONE_MIN, Held

RULES = ("LOSS", "BOUND")

PUBLISHERS = (Address("p"), Address("q"))


def row(publisher: Address, request: int, count: int) -> EventRow:
    return EventRow(publisher, request, "x", tuple(b"%d" % n for n in range(request, request + count)))


puts = st.tuples(st.just("put"), st.sampled_from(PUBLISHERS), st.integers(1, 40), st.integers(1, 12))
takes = st.tuples(st.just("take"), st.sampled_from(PUBLISHERS), st.integers(1, 50), st.integers(1, 12))
looks = st.tuples(st.just("look"), st.sampled_from(PUBLISHERS), st.just(0), st.just(0))
drops = st.tuples(st.just("drop"), st.sampled_from(PUBLISHERS), st.just(0), st.just(0))


@settings(max_examples=300, deadline=None)
@given(st.lists(puts | takes | looks | drops, max_size=30))
def test_rows_are_kept_as_their_events_would_be(steps: list[tuple[str, Address, int, int]]) -> None:
    held = Held()
    known: dict[tuple[Address, int], None] = {}
    seen: dict[Address, tuple[int, int]] = {}  # at the last look: the lowest request, and the highest ever put
    highest: dict[Address, int] = {}
    for now, (what, publisher, request, count) in enumerate(steps):
        if what == "put":
            if count == 1:
                held.put(publisher, request, row(publisher, request, 1)[0])
            else:
                held.put_row(publisher, request, row(publisher, request, count))
            if not any(who == publisher for who, _ in known):
                highest[publisher] = 0
            highest[publisher] = max(highest[publisher], request + count - 1)
            known.update(dict.fromkeys((publisher, n) for n in range(request, request + count)))
        elif what == "take":
            events = held.take(publisher, request, count)
            assert bool(events) == ((publisher, request) in known)
            assert list(events) == list(row(publisher, request, len(events)))
            assert len(events) <= count
            for n in range(request, request + len(events)):
                del known[publisher, n]
        elif what == "look":
            held.look(Micros(now))
            lowest = {who: min(n for other, n in known if other == who) for who, _ in known}
            seen = {
                who: seen[who] if who in seen and seen[who][0] == first else (first, highest[who])
                for who, first in lowest.items()
            }
        else:
            oldest = held.oldest()
            assert (oldest is None) == (not any((who, first) in known for who, (first, _) in seen.items()))
            if oldest is not None:
                who, first, _ = oldest
                assert first == seen[who][0]
                held.drop(who)
                last = seen.pop(who)[1]
                known = {key: None for key in known if key[0] != who or key[1] > last}
        assert held.count == len(known)
        assert all(key in held for key in known)
    left = {(publisher, request): event for publisher, request, event in held.take_all()}
    assert left == {(publisher, n): Event(publisher, n, "x", b"%d" % n) for publisher, n in known}
    assert held.count == 0


def test_many_rows_leave_nothing_behind() -> None:
    held = Held()
    for n in range(1, 20 * GONE_MIN):
        held.put_row(PUBLISHERS[0], n, row(PUBLISHERS[0], n, 1))
        if n > 3:
            assert held.take(PUBLISHERS[0], n - 3, 5) == row(PUBLISHERS[0], n - 3, 1)
    assert held.count == 3
    assert len(held._lines[PUBLISHERS[0]].rows) <= 2 * GONE_MIN


def test_what_came_one_by_one_leaves_in_runs() -> None:
    held = Held()
    for n in (3, 1, 2, 5):
        held.put(PUBLISHERS[0], n, row(PUBLISHERS[0], n, 1)[0])
    assert len(held.take(PUBLISHERS[0], 1, 9)) == 3
    assert held.count == 1
