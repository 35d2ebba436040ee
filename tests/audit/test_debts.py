"""`complete`, `exactly-once` and `deadline`: what they must say no to, and what settles a debt."""

import msgspec
import pytest

from unisono.audit import Verdict, judge
from unisono.model.journal import Header, Journal, Record

SUBSCRIBED = Record(kind="subscribe", subscriber="s", topic="T", number=0)
END = Record(kind="end")


def verdict(name: str, *records: Record) -> Verdict:
    (only,) = judge(Journal(Header(), list(records)), [name])
    return only


def numbered(number: int) -> Record:
    return Record(kind="timestamp", topic="T", number=number, event=f"e{number}")


def delivered(number: int, position: int) -> Record:
    return Record(subscriber="s", event=f"e{number}", topic="T", number=number, position=position)


def test_a_number_that_never_comes_is_lost() -> None:
    found = verdict("complete", SUBSCRIBED, numbered(1), numbered(2), delivered(1, 1), END)
    assert (found.holds, found.violations) == (False, 1)
    assert found.witness.startswith("e2 (number 2 of T) was never notified to s")
    assert found.witness.endswith("there is no word of its arrival")


def test_what_arrived_and_was_never_notified_is_stuck() -> None:
    arrival = Record(kind="arrive", at_us=7, who="s", event="e1")
    found = verdict("complete", SUBSCRIBED, numbered(1), arrival, END)
    assert (found.holds, found.violations) == (False, 1)
    assert found.witness.endswith("it arrived at 7 us and is stuck")


def test_without_an_end_only_holes_are_lost() -> None:
    assert verdict("complete", SUBSCRIBED, numbered(1), numbered(2), delivered(1, 1)).holds
    found = verdict("complete", SUBSCRIBED, numbered(1), numbered(2), delivered(2, 1))
    assert (found.holds, found.violations) == (False, 1)
    assert "e1 (number 1 of T)" in found.witness


SETTLED = {
    "by a notification": [delivered(1, 1)],
    "by a tagged notification": [Record(kind="tag", subscriber="s", event="e1", topic="T")],
    "by a gap notice": [Record(kind="gap", subscriber="s", topic="T", number=1, last_number=3)],
    "by a gap notice that names the event": [Record(kind="gap", subscriber="s", event="e1")],
    "by a void": [Record(kind="void", topic="T", number=1)],
    "by a stall that lasts": [Record(kind="stalled", subscriber="s", topic="T")],
    "by leaving": [Record(kind="unsubscribe", subscriber="s", topic="T")],
    "by leaving everything": [Record(kind="unsubscribe", subscriber="s")],
    "by being down at the end": [Record(kind="crash", who="s")],
}
OWED = {
    "after a gap of other numbers": [Record(kind="gap", subscriber="s", topic="T", number=2, last_number=3)],
    "after a gap notice to somebody else": [Record(kind="gap", subscriber="t", topic="T", number=1)],
    "after a void of another topic": [Record(kind="void", topic="X", number=1)],
    "after a stall that ended": [Record(kind="stalled", subscriber="s", topic="T"), numbered(2), delivered(2, 1)],
    "after leaving another topic": [Record(kind="unsubscribe", subscriber="s", topic="X")],
    "after coming back": [Record(kind="crash", who="s"), Record(kind="restart", who="s")],
}


@pytest.mark.parametrize("how", SETTLED)
def test_a_debt_is_settled(how: str) -> None:
    assert not verdict("complete", SUBSCRIBED, numbered(1), *SETTLED[how], END).is_violated


@pytest.mark.parametrize("how", OWED)
def test_a_debt_stands(how: str) -> None:
    assert verdict("complete", SUBSCRIBED, numbered(1), *OWED[how], END).violations == 1


def test_nothing_up_to_the_base_is_owed() -> None:
    late = msgspec.structs.replace(SUBSCRIBED, number=1)
    assert not verdict("complete", numbered(1), late, END).is_violated
    assert not verdict("complete", numbered(1), numbered(2), late, END).holds


def test_a_payload_from_before_the_topic_could_be_heard_is_not_owed() -> None:  # specs: ordering.md 14, skip
    published = Record(kind="publish", at_us=5, event="e1", topic="T")
    heard = msgspec.structs.replace(SUBSCRIBED, published_us=6)
    assert not verdict("complete", published, heard, numbered(1), END).is_violated
    heard = msgspec.structs.replace(SUBSCRIBED, published_us=5)
    assert not verdict("complete", published, heard, numbered(1), END).holds


def test_accepted_events_are_owed_refused_and_unknown_ones_are_not() -> None:
    published = Record(kind="publish", event="e", topic="T")
    for note, is_owed in (("accepted", True), ("refused", False), ("unknown", False)):
        outcome = Record(kind="outcome", event="e", note=note)
        assert verdict("complete", SUBSCRIBED, published, outcome, END).is_violated == is_owed
    assert not verdict("complete", SUBSCRIBED, published, END).holds, "a journal without outcomes"
    assert not verdict("complete", published, SUBSCRIBED, END).is_violated, "published before the subscription"


def test_an_accepted_event_without_a_number_is_lost_though_others_have_one() -> None:
    published = Record(kind="publish", event="x", topic="T")
    accepted = Record(kind="outcome", event="x", note="accepted")
    found = verdict("complete", SUBSCRIBED, numbered(1), delivered(1, 1), published, accepted, END)
    assert "x (published on T, never numbered)" in found.witness


def test_a_plain_file_shows_the_hole_between_the_first_and_the_last() -> None:
    def row(subscriber: str, number: int) -> Record:
        return Record(
            subscriber=subscriber, event=f"p:{number}", position=number, topic="T", publisher="p", publisher_seq=number
        )

    found = verdict("complete", row("s", 1), row("s", 3), row("t", 1), row("t", 2), row("t", 3))
    assert (found.holds, found.violations) == (False, 1)
    assert found.witness.startswith("p:2 (number 2 of p on T) was never notified to s")
    assert verdict("complete", row("s", 1), row("s", 3)).holds, "a number nobody was notified of proves nothing"
    assert verdict("complete", row("s", 2), row("s", 3), row("t", 1), row("u", 4)).holds, (
        "before the first, after the last"
    )


def test_a_plain_file_with_gap_rows_counts_them() -> None:
    rows = [delivered(1, 1), delivered(3, 2), msgspec.structs.replace(delivered(2, 1), subscriber="t")]
    assert not verdict("complete", *rows).holds
    assert verdict("complete", *rows, Record(kind="gap", subscriber="s", topic="T", number=2)).holds


def test_an_event_notified_twice_is_not_exactly_once() -> None:
    found = verdict("exactly-once", delivered(1, 1), delivered(2, 2), delivered(1, 3))
    assert (found.holds, found.violations) == (False, 1)
    assert found.witness == "e1 twice at s: at position 1 and again at position 3"


def test_a_tagged_copy_of_a_delivered_event_is_not_exactly_once() -> None:
    tag = Record(kind="tag", subscriber="s", event="e1", position=2)
    assert verdict("exactly-once", delivered(1, 1), tag).violations == 1
    assert verdict("exactly-once", tag, tag).violations == 1
    assert verdict("exactly-once", tag).holds


def test_a_replay_after_a_restart_keeps_its_position() -> None:
    restart = Record(kind="restart", who="s")
    assert verdict("exactly-once", delivered(1, 1), restart, delivered(1, 1)).holds
    assert verdict("exactly-once", delivered(1, 1), delivered(1, 1)).violations == 1
    assert verdict("exactly-once", delivered(1, 1), restart, delivered(1, 2)).violations == 1
    assert verdict("exactly-once", delivered(1, 1), Record(kind="restart", who="t"), delivered(1, 1)).violations == 1


def test_a_refused_event_is_notified_to_nobody() -> None:
    refused = Record(kind="outcome", event="e1", note="refused: topic unknown")
    found = verdict("exactly-once", refused, delivered(1, 1))
    assert (found.holds, found.violations) == (False, 1)
    assert found.witness == "e1 was notified to s at position 1, but its publisher was told that it is refused"
    assert verdict("exactly-once", Record(kind="outcome", event="e1", note="unknown"), delivered(1, 1)).holds


def test_a_position_names_one_event() -> None:
    found = verdict("exactly-once", delivered(1, 1), delivered(2, 1))
    assert (found.holds, found.violations) == (False, 1)
    assert found.witness == "position 1 of s was given to e1 and to e2"


def test_an_answer_after_its_deadline_is_late() -> None:
    timely = Record(subscriber="s", event="a", position=1, delivered_us=10, deadline_us=10)
    late = Record(subscriber="s", event="b", position=2, delivered_us=15, deadline_us=12)
    found = verdict("deadline", timely, late)
    assert (found.holds, found.violations) == (False, 1)
    assert found.witness == "s had b at 15 us, 3 us after its deadline of 12 us"
    assert verdict("deadline", timely).holds


def test_a_notice_keeps_a_deadline_as_well_as_an_event_does() -> None:
    published = Record(kind="publish", at_us=1, event="a", deadline_us=9)
    assert verdict("deadline", published, Record(kind="gap", at_us=9, subscriber="s", event="a")).holds
    found = verdict("deadline", published, Record(kind="gap", at_us=11, subscriber="s", event="a"))
    assert found.witness == "s had the gap notice for a at 11 us, 2 us after its deadline of 9 us"
