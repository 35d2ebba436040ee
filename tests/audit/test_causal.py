"""`causal` and `fifo`: what they must say no to, and random histories against a naive happened-before."""

from itertools import combinations
from random import Random

import msgspec
import pytest

from unisono.audit import Verdict, judge
from unisono.errors import MisuseError
from unisono.model.journal import Header, Journal, Record


def verdict(name: str, records: list[Record]) -> Verdict:
    (only,) = judge(Journal(Header(), records), [name])
    return only


def test_two_events_of_one_publisher_out_of_order_are_not_fifo() -> None:
    found = verdict(
        "fifo",
        [
            Record(subscriber="s", event="p:2", position=1, publisher="p", publisher_seq=2),
            Record(subscriber="s", event="q:1", position=2, publisher="q", publisher_seq=1),
            Record(subscriber="s", event="p:1", position=3, publisher="p", publisher_seq=1),
        ],
    )
    assert (found.holds, found.violations) == (False, 1)
    assert "p published p:1 as its number 1 and p:2 as its number 2" in found.witness
    assert "number 2 at position 1, of number 1 at 3" in found.witness


def test_fifo_says_nothing_without_publishers() -> None:
    given = Journal(Header(), [Record(subscriber="s", event="a", position=1)])
    assert "fifo" not in [found.judge for found in judge(given)]
    with pytest.raises(MisuseError, match="no columns to judge 'fifo'"):
        judge(given, ["fifo"])


def test_a_clock_shows_an_answer_before_its_question() -> None:
    found = verdict(
        "causal",
        [
            Record(subscriber="s", event="ans", position=1, publisher="q", publisher_seq=1, clock={"p": 1}),
            Record(subscriber="s", event="ask", position=2, publisher="p", publisher_seq=1, clock={}),
        ],
    )
    assert (found.holds, found.violations) == (False, 1)
    assert found.witness == (
        "ans depends on ask, because its clock has p: 1 and ask is number 1 of p; "
        "s was notified of ans at position 1 and of ask at position 2"
    )


def test_a_clock_that_counts_the_event_itself_is_no_violation() -> None:
    records = [Record(subscriber="s", event="a", position=1, publisher="p", publisher_seq=1, clock={"p": 1})]
    assert verdict("causal", records).holds


def test_dependencies_reach_through_an_event_the_subscriber_never_saw() -> None:
    found = verdict(
        "causal",
        [
            Record(subscriber="s", event="c", position=1, depends_on=("b",)),
            Record(subscriber="s", event="a", position=2, depends_on=()),
            Record(subscriber="t", event="b", position=1, depends_on=("a",)),
        ],
    )
    assert (found.holds, found.violations) == (False, 1)
    assert found.witness == "c depends on a through b; s was notified of c at position 1 and of a at position 2"


def test_events_that_depend_on_each_other_are_refused() -> None:
    found = verdict(
        "causal",
        [
            Record(subscriber="s", event="a", position=1, depends_on=("b",)),
            Record(subscriber="s", event="b", position=2, depends_on=("a",)),
        ],
    )
    assert (found.holds, found.violations) == (False, 1)
    assert "in a circle" in found.witness


def test_a_journal_shows_who_published_after_being_notified() -> None:  # specs: ordering.md E5
    records = [
        Record(kind="publish", publisher="p", event="ask"),
        Record(subscriber="q", event="ask", position=1),
        Record(kind="publish", publisher="q", event="ans"),
        Record(subscriber="z", event="ans", position=1),
        Record(subscriber="z", event="ask", position=2),
    ]
    found = verdict("causal", records)
    assert (found.holds, found.violations) == (False, 1)
    assert found.witness.startswith("ans depends on ask; z was notified")
    records[1], records[2] = records[2], records[1]
    assert verdict("causal", records).holds, "published before it heard: no dependency"


def history(dice: Random) -> tuple[list[Record], dict[str, set[str]]]:
    """Processes publish and are notified at random; and, independently, everything that happened before each event."""
    processes = [f"p{i}" for i in range(dice.randint(1, 4))]
    known: dict[str, set[str]] = {process: set() for process in processes}
    had: dict[str, set[str]] = {process: set() for process in processes}
    said = dict.fromkeys(processes, 0)
    past: dict[str, set[str]] = {}
    records: list[Record] = []
    for _ in range(dice.randint(0, 14)):
        process = dice.choice(processes)
        fresh = sorted(set(past) - had[process])
        if fresh and dice.random() < 0.6:
            event = dice.choice(fresh)
            had[process].add(event)
            records.append(Record(subscriber=process, event=event, position=len(had[process])))
            known[process] |= past[event] | {event}
        else:
            said[process] += 1
            event = f"{process}:{said[process]}"
            past[event] = set(known[process])
            records.append(Record(kind="publish", publisher=process, publisher_seq=said[process], event=event))
            known[process].add(event)
    return records, past


def too_early(records: list[Record], past: dict[str, set[str]]) -> int:
    streams: dict[str, list[str]] = {}
    for record in records:
        if record.kind == "deliver":
            streams.setdefault(record.subscriber or "", []).append(record.event or "")
    late = {(name, a) for name, stream in streams.items() for a, b in combinations(stream, 2) if b in past[a]}
    return len(late)


def test_all_three_sources_of_causality_agree_with_happened_before() -> None:
    dice = Random(2)
    seen_no = 0
    for _ in range(400):
        records, past = history(dice)
        expected = too_early(records, past)
        seen_no += expected > 0
        deliveries = [record for record in records if record.kind == "deliver"]
        clocked = [_with_clock(record, past) for record in deliveries]
        listed = [
            msgspec.structs.replace(record, depends_on=tuple(sorted(past[record.event or ""]))) for record in deliveries
        ]
        for source in (records, clocked, listed):
            assert verdict("causal", source).violations == expected
    assert seen_no > 50


def _with_clock(record: Record, past: dict[str, set[str]]) -> Record:
    event = record.event or ""
    publisher, _, number = event.partition(":")
    clock: dict[str, int] = {}
    for cause in past[event]:
        other, _, count = cause.partition(":")
        clock[other] = max(clock.get(other, 0), int(count))
    return msgspec.structs.replace(record, publisher=publisher, publisher_seq=int(number), clock=clock)
