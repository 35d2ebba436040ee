"""`kept` and `publisher-order`: what they must say no to, clause by clause, and what excuses."""

from pathlib import Path

import pytest

from unisono.audit import Verdict, judge, read, write_jsonl
from unisono.model.journal import Header, Journal, Record

SUBSCRIBED = Record("subscribe", subscriber="s", topic="T", number=0)
PUBLISHED = Record("publish", event="p:1", topic="T", publisher="p", publisher_seq=1)
NUMBERED = Record("timestamp", event="p:1", topic="T", number=1, who="n1")
DELIVERED = Record(subscriber="s", event="p:1", topic="T", number=1, position=1)
SEARCHED = Record("searched", who="archive", topic="T")
END = Record("end")


def told(note: str, event: str = "p:1", at_us: int = 0) -> Record:
    return Record("outcome", at_us, event=event, note=note)


def verdict(*records: Record, name: str = "kept") -> Verdict:
    (only,) = judge(Journal(Header(), list(records)), [name])
    return only


# stored


def test_what_is_stored_and_no_reader_finds_is_a_violation() -> None:
    found = verdict(PUBLISHED, told("accepted stored"), SEARCHED)
    assert (found.holds, found.violations) == (False, 1)
    assert found.witness.startswith(
        "p:1 was accepted as stored on T, and archive, reading everything that is kept of T"
    )


@pytest.mark.parametrize("what", ["accepted ordered", "accepted", "unknown", "refused"])
def test_what_was_not_stored_need_not_be_found(what: str) -> None:
    assert verdict(PUBLISHED, told(what), SEARCHED).holds


def test_what_any_reader_finds_is_kept() -> None:
    elsewhere = Record("kept", who="stream", event="p:1", topic="T")
    assert verdict(PUBLISHED, told("accepted stored"), elsewhere, SEARCHED).holds


def test_what_nobody_looked_for_is_not_missed() -> None:
    other = Record("searched", topic="X")
    found = verdict(PUBLISHED, told("accepted stored"), other)
    assert (found.holds, found.witness) == (
        True,
        "no reader says whether 1 events that were accepted as stored are kept",
    )
    assert verdict(PUBLISHED, told("accepted stored", at_us=6), Record("searched", 5, topic="T")).holds, "too early"
    assert not verdict(PUBLISHED, told("accepted stored", at_us=5), Record("searched", 5, topic="T")).holds


def test_the_topic_of_a_stored_event_is_that_of_its_number() -> None:
    """A topic with a grid is published on by its own name and numbered in a cell."""
    cell = Record("timestamp", event="p:1", topic="T.cell-1", number=1)
    assert verdict(PUBLISHED, told("accepted stored"), cell, SEARCHED).holds
    assert not verdict(PUBLISHED, told("accepted stored"), cell, Record("searched", topic="T.cell-1")).holds


# ordered


@pytest.mark.parametrize("what", ["accepted ordered", "accepted stored", "accepted"])
def test_an_accepted_event_that_a_subscriber_neither_gets_nor_is_told_of(what: str) -> None:
    found = verdict(SUBSCRIBED, PUBLISHED, NUMBERED, told(what), END)
    assert (found.holds, found.violations) == (False, 1)
    assert found.witness == (
        f"p:1 (number 1 of T) has the outcome {what}, and s, subscribed to T from number 0 on, was neither notified of "
        "it nor told that it will not come; there is no word of its arrival"
    )
    without = verdict(SUBSCRIBED, PUBLISHED, told(what), END)
    assert without.witness.startswith("p:1 (without a number on T)")


@pytest.mark.parametrize("what", ["unknown", "refused", "accepted sent"])
def test_other_outcomes_owe_nothing(what: str) -> None:
    assert verdict(SUBSCRIBED, PUBLISHED, NUMBERED, told(what), END).holds


SETTLED = {
    "a notification": [DELIVERED],
    "a tagged notification": [Record("tag", subscriber="s", event="p:1", topic="T")],
    "a gap notice": [Record("gap", subscriber="s", topic="T", number=1, last_number=3)],
    "a gap notice that names the event": [Record("gap", subscriber="s", topic="T", event="p:1")],
    "a stall that lasts": [Record("stalled", subscriber="s", topic="T")],
    "leaving": [Record("unsubscribe", subscriber="s", topic="T")],
    "being down at the end": [Record("crash", who="s")],
    "leaving, and a subscription that begins later": [
        Record("unsubscribe", subscriber="s", topic="T"),
        Record("subscribe", subscriber="s", topic="T", number=1),
    ],
    "a crash, and a subscription that begins later": [
        Record("crash", who="s"),
        Record("restart", who="s"),
        Record("subscribe", subscriber="s", topic="T", number=1),
    ],
}


@pytest.mark.parametrize("how", SETTLED)
def test_a_subscriber_is_told_or_was_not_there(how: str) -> None:
    assert verdict(SUBSCRIBED, PUBLISHED, NUMBERED, told("accepted ordered"), *SETTLED[how], END).holds


@pytest.mark.parametrize("name", ["kept", "complete"])
def test_a_subscription_that_takes_effect_again_is_owed_what_lies_between(name: str) -> None:
    """The home of T is reborn: its numbers go on far above, and what it has forgotten has to be told as a gap."""
    reborn = Record("subscribe", subscriber="s", topic="T", number=4_096, published_us=9)
    journal = (SUBSCRIBED, PUBLISHED, NUMBERED, told("accepted ordered"))
    gap = Record("gap", subscriber="s", topic="T", number=1, last_number=4_096)
    assert not verdict(*journal, reborn, END, name=name).holds
    assert verdict(*journal, gap, reborn, END, name=name).holds
    early = Record("publish", event="q:1", topic="T", publisher="q", publisher_seq=1, published_us=8)
    later = Record("timestamp", event="q:1", topic="T", number=4_097)
    assert verdict(*journal, gap, early, reborn, later, END, name=name).holds, "it could not hear that again yet"


@pytest.mark.parametrize("name", ["kept", "complete"])
def test_what_a_home_forgot_before_anybody_saw_its_number_is_told_with_the_rest(name: str) -> None:
    """It was accepted, and its number died with the home while the subscriber was about to come back."""
    accepted = Record("outcome", event="q:1", note="accepted ordered")
    lost = Record("publish", event="q:1", topic="T", publisher="q", publisher_seq=1, published_us=10)
    gap = Record("gap", subscriber="s", topic="T", number=1, last_number=4_096)
    reborn = Record("subscribe", subscriber="s", topic="T", number=4_096, published_us=9)
    assert verdict(SUBSCRIBED, lost, accepted, gap, reborn, END, name=name).violations == 0
    assert verdict(SUBSCRIBED, lost, accepted, reborn, END, name=name).violations == 1
    assert verdict(SUBSCRIBED, gap, reborn, lost, accepted, END, name=name).violations == 1


def test_a_number_that_was_voided_after_it_was_accepted_is_lost_in_silence() -> None:
    void = Record("void", topic="T", number=1)
    journal = (SUBSCRIBED, PUBLISHED, NUMBERED, told("accepted ordered"), void, END)
    assert verdict(*journal, name="complete").holds, "nobody is owed a void"
    found = verdict(*journal)
    assert (found.holds, found.violations) == (False, 1)
    assert "its number was voided" in found.witness


def test_without_an_end_only_holes_are_lost() -> None:
    later = Record(subscriber="s", event="p:2", topic="T", number=2, position=1)
    assert verdict(SUBSCRIBED, PUBLISHED, NUMBERED, told("accepted ordered")).holds
    assert not verdict(SUBSCRIBED, PUBLISHED, NUMBERED, told("accepted ordered"), later).holds


def test_an_event_that_only_subscribers_tell_of_has_the_number_they_tell() -> None:
    late = Record("subscribe", subscriber="u", topic="T", number=1)
    assert verdict(SUBSCRIBED, late, PUBLISHED, told("accepted ordered"), DELIVERED, END).holds


# refused


@pytest.mark.parametrize("kind", ["deliver", "tag"])
def test_a_refused_event_is_notified_to_nobody(kind: str) -> None:
    notified = Record(kind, subscriber="s", event="p:1", position=1)  # type: ignore[arg-type]
    found = verdict(told("refused"), notified)
    assert (found.holds, found.violations) == (False, 1)
    assert found.witness == "p:1 was notified to s, but its publisher was told that it is refused"
    assert verdict(told("unknown"), notified).holds


# numbers


def test_a_number_names_one_event_over_all_nodes_and_restarts() -> None:
    again = Record("timestamp", event="p:1", topic="T", number=1, who="n1")
    assert verdict(NUMBERED, again, DELIVERED).holds, "a home may say again what it said"
    other = Record("timestamp", event="q:1", topic="T", number=1, who="n2")
    found = verdict(NUMBERED, Record("restart", who="n1"), other)
    assert (found.holds, found.violations) == (False, 1)
    assert found.witness == "number 1 of T names p:1 (timestamp at n1) and q:1 (timestamp at n2)"
    assert verdict(NUMBERED, Record("timestamp", event="q:1", topic="X", number=1)).holds, "of another topic"


@pytest.mark.parametrize(
    "other",
    [
        Record(subscriber="u", event="q:1", topic="T", number=1, position=1),
        Record("tag", subscriber="u", event="q:1", topic="T", number=1),
        Record("kept", who="archive", event="q:1", topic="T", number=1),
    ],
)
def test_subscribers_and_readers_must_know_a_number_by_the_same_event(other: Record) -> None:
    assert verdict(DELIVERED, other).violations == 1


def test_an_event_has_one_number() -> None:
    second = Record("timestamp", event="p:1", topic="T", number=2, who="n1")
    found = verdict(NUMBERED, second)
    assert (found.holds, found.violations) == (False, 1)
    assert found.witness == "p:1 has several numbers on T: 1 (timestamp at n1) and 2 (timestamp at n1)"
    assert verdict(NUMBERED, second, Record("void", topic="T", number=1)).holds, "a void is no number of it"


# what there is to judge


def test_a_journal_with_neither_outcomes_nor_numbers_has_nothing_to_judge() -> None:
    found = verdict(SUBSCRIBED, PUBLISHED, END)
    assert (found.holds, found.judged, found.is_violated) == (False, False, False)
    assert found.witness == "nothing to judge: the journal has neither outcomes nor numbers"


def test_a_journal_with_outcomes_without_strength_still_reads(tmp_path: Path) -> None:
    records = [SUBSCRIBED, PUBLISHED, NUMBERED, told("accepted"), DELIVERED, SEARCHED, END]
    write_jsonl(tmp_path / "old.jsonl", Header(), records)
    (found,) = judge(read(tmp_path / "old.jsonl"), ["kept"])
    assert found.holds


# publisher-order


def said(sequence: int, position: int, topic: str | None = "T", publisher: str = "p") -> Record:
    event = f"{publisher}:{sequence}"
    return Record(
        subscriber="s", event=event, position=position, topic=topic, publisher=publisher, publisher_seq=sequence
    )


def test_one_publishers_events_on_one_topic_are_heard_in_its_order() -> None:
    found = verdict(said(2, 1), said(1, 2), name="publisher-order")
    assert (found.holds, found.violations) == (False, 1)
    assert "p published p:1 as its number 1 and p:2 as its number 2; s was notified of number 2 at" in found.witness
    assert verdict(said(1, 1), said(2, 2), name="publisher-order").holds


def test_publishers_and_topics_are_not_compared_with_each_other() -> None:
    across = (said(2, 1, "X"), said(1, 2, "T"), said(2, 3, "T", "q"), said(1, 4, "X", "q"))
    assert verdict(*across, name="publisher-order").holds
    assert verdict(*across, name="fifo").violations == 2
