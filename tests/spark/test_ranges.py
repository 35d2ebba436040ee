"""Ranges: no stream goes down across a border, whatever the anchors are worth; each is judged as the whole would be."""

import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from unisono.audit import Report, examine
from unisono.errors import MisuseError
from unisono.model.journal import Header, Journal, Record
from unisono.spark.audits import report
from unisono.spark.limits import RangeLimits
from unisono.spark.order import MOVED, judge_bucket
from unisono.spark.ranges import anchor_places, cut, merge
from unisono.spark.subscribers import judge_streams, sizes_of

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
tracing: Any = pytest.importorskip("tracing.planted")

SMALL = RangeLimits(anchors=40, bucket_rows=30, task_rows=400, stream_rows=25)
"""Everything is too much: buckets are full, streams are walked in pieces."""


def ints(*values: int) -> Any:
    return np.array(values, np.int64)


def test_places_that_a_stream_goes_down_between_are_one_range() -> None:
    found = merge(ints(0, 1, 2, 3, 4, 5, 9), ints(0, 0, 4, 0, 2, 0, 7), ints(10, 1, 1, 1, 1, 5, 6))
    assert [found.first.tolist(), found.last.tolist()] == [[0, 1, 2, 5, 9], [0, 1, 4, 5, 9]]
    assert found.rows.tolist() == [10, 1, 3, 5, 6]
    within = merge(ints(1, 2, 3, 4, 5), ints(5, 3, 0, 0, 0), ints(1, 1, 1, 1, 1))
    assert within.rows.tolist() == [5], "a short way down does not end a long one"
    assert not len(merge(ints(), ints(), ints()).rows)


def test_a_bucket_is_filled_before_the_next_is_begun() -> None:
    found = merge(ints(1, 2, 3, 4), ints(0, 0, 0, 0), ints(3, 3, 9, 1))
    assert found.buckets(5).tolist() == [0, 0, 1, 3]


def test_anchors_stand_as_their_streams_do_and_knots_stand_together() -> None:
    streams = ints(0, 0, 0, 1, 1, 2, 2, 3, 3)
    events = ints(5, 3, 1, 3, 4, 2, 0, 0, 2)
    places = anchor_places(streams, events).tolist()
    assert places[5] < places[3] < min(places[1], places[4])
    assert places[0] == places[2], "a knot"
    assert min(places) == 1


def frame(spark: SparkSession, records: list[Record]) -> DataFrame:
    rows = [(r.subscriber, r.event, r.position, i) for i, r in enumerate(records)]
    return spark.createDataFrame(rows, "subscriber STRING, event STRING, position BIGINT, _at BIGINT")


def muddled(seed: int, count: int = 60) -> list[Record]:
    """Streams that mostly agree, join late and leave early; some have swaps near and far; one has everything."""
    dice = random.Random(seed)
    events = [f"{seed}e{i}" for i in range(count)]
    found = []
    for s in range(7):
        low = 0 if not s else dice.randrange(count // 2)
        seen = [event for event in events[low : count if not s else low + count // 2] if not s or dice.random() < 0.5]
        for _ in range(dice.choice([0, 0, 1, 2])):
            if len(seen) > 2:
                i, far = dice.randrange(len(seen) - 1), dice.random() < 0.2
                j = dice.randrange(len(seen)) if far else i + 1
                seen[i], seen[j] = seen[j], seen[i]
        step = dice.choice([1, 1000])
        found += [Record(subscriber=f"{seed}s{s}", event=e, position=i * step // 2) for i, e in enumerate(seen)]
    return found


def said(found: Report) -> tuple[object, ...]:
    verdicts = [(v.judge, v.holds, v.violations, bool(v.witness)) for v in found.verdicts]
    return found.deliveries, found.subscribers, verdicts, found.metrics


def test_ranges_say_what_the_whole_says(spark: SparkSession) -> None:
    """Many logs in one. Figures too: places within streams and their lengths are known in every range."""
    records = [record for seed in range(10) for record in muddled(seed)]
    assert said(report(frame(spark, records), SMALL)) == said(examine(Journal(Header(), records)))


def test_no_stream_goes_down_across_a_border_and_ranges_are_small(spark: SparkSession) -> None:
    """Anchors only one in ten: the rest is lifted to where its streams have it."""
    records = muddled(0, 900)
    rows, limits = frame(spark, records), SMALL._replace(anchors=len(records) // 10)
    with (
        judge_streams(rows, len(records), [], sizes_of(rows, limits), limits) as streams,
        cut(streams.numbered, len(records), limits) as ranges,
    ):
        found = ranges.collect()
    assert {(row.subscriber, row.event) for row in found} == {(r.subscriber, r.event) for r in records}
    streams: dict[str, list[Any]] = {}
    for row in found:
        streams.setdefault(row.subscriber, []).append(row)
    for rows_of_one in streams.values():
        ordered = sorted(rows_of_one, key=lambda row: row.nth)
        assert [row.nth for row in ordered] == list(range(len(ordered)))
        assert [row.position for row in ordered] == sorted(row.position for row in ordered)
        assert {row.size for row in ordered} == {len(ordered)}
        buckets = [row.bucket for row in ordered]
        assert buckets == sorted(buckets)
    sizes = np.unique([row.bucket for row in found], return_counts=True)[1]
    assert len(found) == len(records)
    assert len(sizes) > 20
    assert sizes.max() < len(found) / 8


def test_a_knot_that_no_task_holds_is_refused_with_its_size(spark: SparkSession) -> None:
    records = [Record(subscriber=s, event=f"e{i}", position=i * d) for s, d in (("s", 1), ("t", -1)) for i in range(50)]
    with pytest.raises(MisuseError, match="100 deliveries are tied together, and one task judges at most 60"):
        report(frame(spark, records), RangeLimits(rows_max=60, bucket_rows=10))


def bucket(*streams: str) -> pa.Table:
    """One bucket of deliveries `subscriber: events`, each event a letter."""
    rows = [
        {"subscriber": name, "event": event, "position": i, "_at": 0, "nth": i, "size": len(events), "bucket": 7}
        for name, _, events in (stream.partition(":") for stream in streams)
        for i, event in enumerate(events)
    ]
    return pa.Table.from_pylist(rows)


def test_in_a_bucket_of_one_mind_there_is_nothing_to_find() -> None:
    (counted,) = judge_bucket(bucket("p:abc", "q:ac", "r:bc")).to_pylist()
    assert (counted["judge"], counted["violations"]) == ("events", 3)


def test_every_cycle_of_a_bucket_counts() -> None:
    found = {row["judge"]: row for row in judge_bucket(bucket("p:abcd", "q:badc")).to_pylist()}
    assert [found[name]["violations"] for name in ("pairwise-order", "acyclic", "inverted-events")] == [2, 2, 4]
    assert found["acyclic"]["witness"].count(" before ") == 2
    assert found[MOVED]["share"] == pytest.approx(4 / 16)


def test_what_was_planted_with_ten_seeds_is_counted(spark: SparkSession, tmp_path: Path) -> None:
    """Ten logs in one: names begin with the seed."""
    total: dict[str, int] = {}
    for seed in range(10):
        found, expected = tracing.planted(2_500, seed, tracing.FEW)
        for name in ("subscriber", "event", "topic", "publisher"):
            renamed = pc.binary_join_element_wise(str(seed), found.column(name), "-")
            found = found.set_column(found.column_names.index(name), name, renamed)
        clocks = [[(f"{seed}-{name}", n) for name, n in clock] for clock in found.column("clock").to_pylist()]
        at = found.column_names.index("clock")
        found = found.set_column(at, "clock", pa.array(clocks, found.schema.field("clock").type))
        pq.write_table(found, tmp_path / f"{seed}.parquet")
        total = {judge: total.get(judge, 0) + count for judge, count in expected.items()}
    rows = spark.read.parquet(str(tmp_path))
    limits = RangeLimits(anchors=2_500, bucket_rows=6_000, task_rows=13_000, stream_rows=2_000)
    assert {v.judge: v.violations for v in report(rows, limits).verdicts} == total
