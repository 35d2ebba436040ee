"""`free`: luck is not order (specs: ordering.md, section 12)."""

from random import Random

from unisono.audit import Verdict, judge
from unisono.model.journal import Header, Journal, Record


def stamp(topic: str, number: int, **entries: int) -> Record:
    event = f"{topic.lower()}{number}"
    return Record(kind="timestamp", topic=topic, number=number, event=event, clock={topic: number, **entries})


def joined(subscriber: str, topic: str, base: int = 0, **gate: int) -> Record:
    return Record(kind="subscribe", subscriber=subscriber, topic=topic, number=base, clock=gate)


def saw(subscriber: str, *events: str) -> list[Record]:
    return [Record(subscriber=subscriber, event=event, position=i + 1) for i, event in enumerate(events)]


def verdict(*records: Record) -> Verdict:
    (only,) = judge(Journal(Header(), list(records)), ["free"])
    return only


BOTH = [joined("s", "X"), joined("s", "T"), joined("z", "X"), joined("z", "T")]
SAME = [*saw("z", "x1", "t1"), *saw("s", "x1", "t1")]


def test_agreement_by_luck_is_refused() -> None:
    records = [*BOTH, stamp("X", 1, T=0), stamp("T", 1), *SAME]
    pairwise, free = judge(Journal(Header(), records), ["pairwise-order", "free"])
    assert pairwise.holds
    assert (free.holds, free.violations) == (False, 2), "neither forces the other's order"
    assert free.witness.startswith("z was notified of x1 (X 1) before t1 (T 1), but nothing forces s to")
    assert "the timestamp of t1 is {T: 1}" in free.witness


def test_an_entry_forces_a_pair() -> None:
    assert verdict(*BOTH, stamp("X", 1, T=0), stamp("T", 1, X=1), *SAME).holds


def test_an_entry_forces_the_other_way() -> None:
    assert not verdict(*BOTH, stamp("X", 1, T=1), stamp("T", 1, X=0), *SAME).holds


def test_an_entry_of_an_earlier_number_forces_later_ones() -> None:  # delta encoding
    streams = [*saw("z", "x1", "t1", "t2"), *saw("s", "x1", "t1", "t2")]
    assert verdict(*BOTH, stamp("X", 1, T=0), stamp("T", 1, X=1), stamp("T", 2), *streams).holds


def test_an_entry_up_to_the_base_forces_nothing_later() -> None:  # specs: ordering.md D2, fresh
    late = [joined("s", "X"), joined("s", "T", 1), joined("z", "X"), joined("z", "T")]
    streams = [*saw("z", "x1", "t2"), *saw("s", "x1", "t2")]
    stamps = [stamp("X", 1, T=0), stamp("T", 1, X=1)]
    assert not verdict(*late, *stamps, stamp("T", 2), *streams).holds
    assert verdict(*late, *stamps, stamp("T", 2, X=1), *streams).holds


def test_a_gate_forces_what_no_timestamp_repeats() -> None:  # specs: ordering.md D4, hist
    gated = [joined("s", "X"), joined("s", "T", 1, X=1), joined("z", "X"), joined("z", "T")]
    stamps = [stamp("X", 1, T=0), stamp("T", 1, X=1), stamp("T", 2)]
    assert verdict(*gated, *stamps, *saw("z", "x1", "t2"), *saw("s", "x1", "t2")).holds


def test_a_chain_over_a_third_topic_forces_only_those_who_have_it() -> None:
    stamps = [stamp("X", 1), stamp("D", 1, X=1), stamp("T", 1, D=1)]
    third = [joined("s", "D"), joined("z", "D")]
    assert verdict(*BOTH, *third, *stamps, *saw("z", "x1", "d1", "t1"), *saw("s", "x1", "d1", "t1")).holds
    found = verdict(*BOTH, third[0], *stamps, *saw("z", "x1", "t1"), *saw("s", "x1", "d1", "t1"))
    assert found.violations == 1, "s has D and with it the chain, z has not"
    assert "nothing forces z to" in found.witness


def test_what_was_published_before_the_topic_could_be_heard_is_not_owed() -> None:
    records = [*BOTH, Record(kind="publish", at_us=4, event="x1", topic="X"), stamp("X", 1), stamp("T", 1), *SAME]
    records[0] = Record(kind="subscribe", subscriber="s", topic="X", number=0, published_us=5)
    records[2] = Record(kind="subscribe", subscriber="z", topic="X", number=0, published_us=4)
    assert verdict(*records).violations == 1, "z is owed x1, s is not"


def test_who_unsubscribed_is_not_held_to_it() -> None:
    gone = [Record(kind="unsubscribe", subscriber=name, topic="X") for name in "sz"]
    assert verdict(*BOTH, *gone, stamp("X", 1), stamp("T", 1), *SAME).holds


def test_timestamps_that_wait_for_each_other_are_refused() -> None:
    found = verdict(*BOTH, stamp("X", 1, T=1), stamp("T", 1, X=1), *saw("z"), *saw("s"))
    assert (found.holds, found.violations) == (False, 2)
    assert found.witness == "s waits in a circle: X 1 waits for T 1 waits for X 1"


def test_a_number_out_of_all_proportion_costs_nothing() -> None:
    assert verdict(*BOTH, stamp("X", 1, T=0), stamp("T", 1, X=1), stamp("T", 2**60, X=2**60), *SAME).holds


def test_the_judge_is_silent_without_timestamps() -> None:
    assert "free" not in [found.judge for found in judge(Journal(Header(), [*BOTH, *saw("s", "x1")]))]


def naive(
    stamps: dict[tuple[str, int], dict[str, int]], subs: dict[str, dict[str, int]], seen: dict[str, list]
) -> bool:  # type: ignore[type-arg]
    """All pairs, closure by repeated joining."""
    for name, bases in subs.items():
        items = [item for item in stamps if item[0] in bases and item[1] > bases[item[0]]]
        before = {
            (a, b) for a in items for b in items if (a[0] == b[0] and a[1] < b[1]) or a[1] <= stamps[b].get(a[0], 0)
        } - {(a, a) for a in items}
        while longer := {(a, d) for a, b in before for c, d in before if b == c} - before:
            before |= longer
        if any((a, a) in before for a in items):
            return False
        for other, stream in seen.items():
            owed = [item for item in stream if item in items]
            pairs = [(a, b) for i, a in enumerate(owed) for b in owed[i + 1 :]]
            if other != name and any(pair not in before for pair in pairs):
                return False
    return True


def test_random_timestamps_agree_with_all_pairs() -> None:
    dice = Random(5)
    answers = []
    for _ in range(300):
        topics = "XTD"[: dice.randint(2, 3)]
        line = [dice.choice(topics) for _ in range(dice.randint(2, 6))]
        count = dict.fromkeys(topics, 0)
        stamps: dict[tuple[str, int], dict[str, int]] = {}
        order = []
        for topic in line:
            entries = {t: n for t, n in count.items() if t != topic and dice.random() < 0.6}
            count[topic] += 1
            stamps[topic, count[topic]] = entries
            order.append((topic, count[topic]))
        subs = {name: {t: dice.choice([0, 0, 1]) for t in topics if dice.random() < 0.9} for name in "sz"}
        seen = {name: [i for i in order if i[0] in b and i[1] > b[i[0]]] for name, b in subs.items()}
        records = [joined(name, topic, base) for name, bases in subs.items() for topic, base in bases.items()]
        if not records:
            continue
        records += [stamp(topic, number, **entries) for (topic, number), entries in stamps.items()]
        for name, items in seen.items():
            records += saw(name, *(f"{topic.lower()}{number}" for topic, number in items))
        expected = naive(stamps, subs, seen)
        answers.append(expected)
        assert verdict(*records).holds == expected
    assert 30 < sum(answers) < len(answers) - 30
