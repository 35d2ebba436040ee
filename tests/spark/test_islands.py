"""Islands: all of the disorder is in them, each is judged as the Python judges would, and the rest is left out."""

import pyarrow as pa
from pyspark.sql import SparkSession

from unisono.spark.islands import find_islands, tagged
from unisono.spark.order import MOVED, judge_island


def island(*streams: str) -> pa.Table:
    """One island of deliveries `subscriber: events`, each event a letter."""
    rows = [
        {"island": 7, "subscriber": name, "event": event, "position": i, "_at": 0, "place": i / len(events)}
        for name, _, events in (stream.partition(":") for stream in streams)
        for i, event in enumerate(events)
    ]
    return pa.Table.from_pylist(rows)


def found(table: pa.Table) -> dict[str, int]:
    """Per judge, or per subscriber where events have moved, what was counted."""
    return {row["subscriber"] or row["judge"]: row["violations"] for row in judge_island(table).to_pylist()}


def test_spans_that_touch_are_one_island(spark: SparkSession) -> None:
    streams = {
        "a": [3, 1],
        "b": [5, 3],  # a stream that has 1 before 5 closes a cycle over both spans
        "c": [20, 10],
        "d": [12, 11],
        "e": [19, 15],  # behind the end of the span before it, and inside the first
        "f": [40, 30],
        "g": [35, 30],
        "h": [50, 51, 52],
    }
    rows = [(name, f"e{g}", i, 0, g) for name, places in streams.items() for i, g in enumerate(places)]
    placed = spark.createDataFrame(rows, "subscriber STRING, event STRING, position BIGINT, _at BIGINT, g BIGINT")
    spans = find_islands(placed)
    assert list(zip(spans["lo"].to_pylist(), spans["hi"].to_pylist(), strict=True)) == [(1, 5), (10, 20), (30, 40)]


def test_an_island_has_its_ends_and_nothing_beside_them() -> None:
    places = [0, 1, 3, 5, 6, 9, 10, 20, 21]
    names = [f"e{g}" for g in places]
    rows = {"g": places, "subscriber": names, "event": names, "position": places, "_at": places}
    rows["place"] = [0.0] * len(places)
    batch = pa.RecordBatch.from_pydict(rows)
    inside = tagged(batch, pa.table({"lo": [1, 10], "hi": [5, 20]})).to_pydict()
    assert inside["island"] == [0, 0, 0, 1, 1]
    assert inside["event"] == ["e1", "e3", "e5", "e10", "e20"]
    nowhere = pa.table({"lo": pa.array([], pa.int64()), "hi": pa.array([], pa.int64())})
    assert tagged(batch, nowhere).num_rows == 0


def test_an_island_of_one_mind_costs_nothing() -> None:
    assert judge_island(island("p:abc", "q:ac", "r:bc")).num_rows == 0


def test_what_moved_is_what_most_did_not_do() -> None:
    """Per knot, by the mean place: `p` stands against two, and what lies between the knots has not moved."""
    counts = found(island("p:bxdc", "q:bxcd", "r:bxcd"))
    assert {name: counts[name] for name in "pqr" if name in counts} == {"p": 2}
    assert counts["pairwise-order"] == 1
    assert counts["inverted-events"] == 2


def test_every_cycle_of_an_island_counts() -> None:
    counts = found(island("p:abcd", "q:badc"))
    assert (counts["pairwise-order"], counts["acyclic"], counts["inverted-events"]) == (2, 2, 4)
    rows = judge_island(island("p:abcd", "q:badc")).to_pylist()
    assert {row["judge"] for row in rows} >= {"acyclic", MOVED}
    assert {row["island"] for row in rows} == {7}
