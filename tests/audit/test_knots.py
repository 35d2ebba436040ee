"""Knots on columns: pairs, groups and places are counted as the Python judges count them, however the count is made."""

from random import Random

import pytest

from unisono.audit import JUDGES, Trace, judge_trace
from unisono.audit.inversions import count_inversions
from unisono.audit.judges.table import Judge
from unisono.audit.verdict import Verdict, failed
from unisono.model.journal import Header, Journal, Record

np = pytest.importorskip("numpy")
columnar = pytest.importorskip("unisono.audit.columnar")
inversions = pytest.importorskip("unisono.audit.columnar.inversions")


def drawn(dice: Random) -> list[list[int]]:
    """Streams of the same events: in order, jittered a little, or shuffled."""
    size = dice.choice([2, 5, 20, 200, 700])
    streams = []
    for _ in range(dice.randint(1, 6)):
        share, jitter = dice.choice([0.3, 0.9, 1.0]), dice.choice([0, 1, 3, size])
        events = [event for event in range(size) if dice.random() < share]
        streams.append(sorted(events, key=lambda event: event + dice.random() * jitter))
    return streams


@pytest.mark.parametrize("per_row", [0, 24, 10**9], ids=["blocks", "as it is", "lists"])
@pytest.mark.parametrize("chunk", [3, 1 << 22])
def test_inverted_pairs_are_those_of_the_python_judges(
    monkeypatch: pytest.MonkeyPatch, per_row: int, chunk: int
) -> None:
    """By lists, by blocks, and by what the size of the knot suggests; two knots at a time."""
    monkeypatch.setattr(inversions, "PAIRS_PER_ROW", per_row)
    monkeypatch.setattr(inversions, "CHUNK_PAIRS", chunk)
    for seed in range(40):
        dice = Random(seed)
        knots = [drawn(dice), drawn(dice)]
        expected = [count_inversions(range(1000), streams) for streams in knots]
        flat = [(k, stream) for k, streams in enumerate(knots) for stream in streams if stream]
        lengths = [len(stream) for _, stream in flat]
        found = inversions.count_inverted(
            np.repeat(np.arange(len(flat)), lengths),
            np.repeat([k for k, _ in flat], lengths),
            np.concatenate([np.array(stream) + 1000 * k for k, stream in flat]),
            2000,
        )
        assert found.pairs == sum(one.pairs for one in expected), seed
        events = [event + 1000 * k for k, one in enumerate(expected) for event in sorted(one.events)]
        assert np.flatnonzero(found.events).tolist() == events, seed
        if found.pairs:
            first, second = (found.example % 1000).tolist()
            both = [stream for stream in knots[found.example[0] // 1000] if {first, second} <= {*stream}]
            assert {stream.index(first) < stream.index(second) for stream in both} == {True, False}, seed


@pytest.mark.parametrize("seed", range(20))
def test_a_knot_of_long_streams_is_judged_as_python_judges_it(seed: int) -> None:
    """Counts, events, means and witness of large knots; `dirty` files have small ones."""
    dice = Random(seed)
    size = dice.choice([60, 400])
    records = []
    for s in range(dice.randint(2, 8)):
        own = [event for event in range(size) if dice.random() < 0.8 or event < size // 3]
        own.sort(key=lambda event: event + dice.random() * dice.choice([2, 40]))
        records += [Record(subscriber=f"s{s}", event=f"e{event}", position=i) for i, event in enumerate(own)]
    log = columnar.reading.ColumnarLog(Header())
    log.add(columnar.reading.batch_of(records))
    found = columnar.examine(log)
    trace = Trace(Journal(Header(), records))
    expected = judge_trace(trace)
    assert [(v.judge, v.holds, v.violations) for v in found.verdicts] == [
        (v.judge, v.holds, v.violations) for v in expected
    ]
    assert found.metrics["ordering_degree"] < 1
    assert sum(verdict.witness.count(" before ") == 2 for verdict in found.verdicts) == 3, "two events, two subscribers"


def test_the_witness_of_a_knot_too_large_to_search_is_an_inverted_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columnar.judges, "SEARCHED_ROWS_MAX", 3)
    streams = {"p": "abc", "q": "bca", "r": "cab"}
    records = [Record(subscriber=s, event=e, position=i) for s, events in streams.items() for i, e in enumerate(events)]
    log = columnar.reading.ColumnarLog(Header())
    log.add(columnar.reading.batch_of(records))
    acyclic = {verdict.judge: verdict for verdict in columnar.examine(log).verdicts}["acyclic"]
    assert acyclic.violations == 1
    assert acyclic.witness.count(" before ") == 2


def test_a_further_judge_is_asked_by_every_engine_that_has_its_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """The door: a name and a function, and nothing in any engine. Without its columns no row is made for it."""
    asked: list[int] = []

    def judge_payloads(trace: Trace) -> Verdict | None:
        asked.append(len(trace.records))
        return failed("dense", len(trace.records), "because")

    judges = {**JUDGES, "dense": Judge(judge_payloads, ("deadline_us",))}
    monkeypatch.setattr("unisono.audit.judges.table.JUDGES", judges)
    monkeypatch.setattr(columnar.judges, "JUDGES", judges)
    records = [Record(subscriber="s", event=f"e{i}", position=i) for i in range(4)]
    for told in (None, 5):
        log = columnar.reading.ColumnarLog(Header())
        log.add(
            columnar.reading.batch_of([*records[:3], Record(subscriber="t", event="a", position=1, deadline_us=told)])
        )
        names = [verdict.judge for verdict in columnar.examine(log).verdicts]
        assert ("dense" in names) == (told is not None)
    assert asked == [4]
    assert judge_trace(Trace(Journal(Header(), records)), ["dense"])[0].violations == 4
