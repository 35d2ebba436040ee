"""Audits at any size say what the Python judges say, whatever the reference order."""

import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from unisono.audit import Report, examine, judge, read, write_jsonl
from unisono.audit.columns import write_parquet
from unisono.audit.metrics import percentile
from unisono.cli.main import main
from unisono.errors import MisuseError
from unisono.model.journal import Header, Journal, Record
from unisono.spark import streams
from unisono.spark.audits import audit, report, report_file, said_by
from unisono.spark.limits import RangeLimits
from unisono.spark.streams import metrics

SCHEMA = (
    "subscriber STRING, event STRING, position BIGINT, topic STRING, publisher STRING, publisher_seq BIGINT, "
    "published_us BIGINT, delivered_us BIGINT, deadline_us BIGINT, clock MAP<STRING, BIGINT>, number BIGINT"
)


def random_trace(seed: int) -> list[Record]:
    """A trace of its own events: mostly in order, with swaps, repeats, losses; publication times good or useless."""
    dice = random.Random(seed)
    useless = dice.random() < 0.3
    counts: dict[str, int] = {}
    numbers = {f"t{seed}a": 0, f"t{seed}b": 0}
    published: list[Record] = []
    for i in range(dice.randint(2, 25)):
        publisher = f"t{seed}p{dice.randrange(3)}"
        clock = {name: dice.randint(0, count) for name, count in counts.items() if dice.random() < 0.5}
        counts[publisher] = counts.get(publisher, 0) + 1
        topic = dice.choice(list(numbers))
        numbers[topic] += 1
        published.append(
            Record(
                event=f"{publisher}:{counts[publisher]}",
                topic=topic,
                number=numbers[topic] if dice.random() < 0.8 else None,
                publisher=publisher,
                publisher_seq=counts[publisher],
                published_us=dice.randint(0, 99) if useless else i,
                clock=clock,
            )
        )
    found: list[Record] = []
    for s in range(dice.randint(2, 6)):
        seen = [event for event in published if dice.random() < 0.7]
        for _ in range(dice.choice([0, 0, 1, 3])):
            if len(seen) > 1:
                i = dice.randrange(len(seen) - 1)
                seen[i], seen[i + 1] = seen[i + 1], seen[i]
        if seen and dice.random() < 0.2:
            seen.insert(dice.randrange(len(seen)), dice.choice(seen))
        for position, event in enumerate(seen, 1):
            fields = {name: getattr(event, name) for name in event.__struct_fields__}
            delivered = (event.published_us or 0) + dice.randint(1, 30)
            if event.number is not None and dice.random() < 0.02:
                fields["number"] = event.number + 1
            found.append(
                Record(
                    **fields
                    | {
                        "subscriber": f"t{seed}s{s}",
                        "position": position,
                        "delivered_us": delivered,
                        "deadline_us": (event.published_us or 0) + 25,
                    }
                )
            )
    return found


def frame(spark: SparkSession, records: list[Record], columns: int = 11) -> DataFrame:
    names = [part.split()[0] for part in SCHEMA.replace("MAP<STRING, BIGINT>", "MAP").split(", ")]
    rows = [(*(getattr(record, name) for name in names), i) for i, record in enumerate(records)]
    return spark.createDataFrame(rows, f"{SCHEMA}, _at BIGINT").select(*names[:columns], "_at")


def verdicts(found: DataFrame) -> dict[str, tuple[bool, int]]:
    return {row.judge: (row.holds, row.violations) for row in found.collect()}


def test_they_agree_with_the_python_judges_on_random_traces(spark: SparkSession) -> None:
    records = [record for seed in range(25) for record in random_trace(seed)]
    expected = {v.judge: (v.holds, v.violations) for v in judge(Journal(Header(), records))}
    assert not any(holds for holds, _ in expected.values()), "every judge has something to find"
    parts = RangeLimits(anchors=200, bucket_rows=100, task_rows=300)
    found = report(frame(spark, records), parts).verdicts
    assert {v.judge: (v.holds, v.violations) for v in found} == expected
    assert verdicts(audit(frame(spark, records))) == expected, "as one part"
    plain = [Record(subscriber=r.subscriber, event=r.event, position=r.position) for r in records]
    expected = {v.judge: (v.holds, v.violations) for v in judge(Journal(Header(), plain))}
    assert verdicts(audit(frame(spark, records, columns=3))) == expected


def test_a_clean_trace_holds_everywhere(spark: SparkSession) -> None:
    records = [
        Record(
            subscriber=s,
            event=f"p:{n}",
            position=n,
            topic="t",
            publisher="p",
            publisher_seq=n,
            published_us=n,
            delivered_us=n + 5,
            deadline_us=n + 5,
            clock={"p": n - 1},
        )
        for s in ("a", "b")
        for n in range(1, 50)
    ]
    found = verdicts(audit(frame(spark, records)))
    assert found == {v.judge: (v.holds, v.violations) for v in judge(Journal(Header(), records))}
    assert all(holds for holds, _ in found.values())
    row = metrics(frame(spark, records)).collect()[0]
    assert (row.deliveries, row.timed, row.most) == (98, 98, 5)


@pytest.mark.parametrize("bins", [2, 5])
def test_percentiles_are_exact_however_few_bins_there_are(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, bins: int
) -> None:
    monkeypatch.setattr(streams, "BINS", bins)
    latencies = [-7, -7, 0, 1, 3, 3, 3, 90]
    told = spark.createDataFrame([(0, n) for n in latencies], "published_us BIGINT, delivered_us BIGINT")
    for wide in (False, True):
        found = streams.percentiles(told, (1, 50, 99), len(latencies), -7, 90, wide)
        assert found == [percentile(latencies, percent) for percent in (1, 50, 99)]


def test_what_a_python_worker_raised_is_told_in_one_line(spark: SparkSession) -> None:
    def broken(batches: Iterator[Any]) -> Iterator[Any]:
        raise ValueError("no such thing")

    with pytest.raises(PySparkException) as caught:
        spark.range(1).mapInArrow(broken, "id BIGINT").collect()
    assert said_by(caught.value) == "ValueError: no such thing"


def test_a_cycle_over_three_subscribers_is_found_though_every_pair_agrees(spark: SparkSession) -> None:
    streams = {"p": "ab", "q": "bc", "r": "ca"}
    records = [Record(subscriber=s, event=e, position=i) for s, seen in streams.items() for i, e in enumerate(seen)]
    found = verdicts(audit(frame(spark, records, columns=3)))
    assert found["pairwise-order"] == (True, 0)
    assert found["acyclic"] == (False, 1)


def test_a_file_gets_the_same_report_with_and_without_spark(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Parquet through the command line, with tagged rows and nulls; JSON lines, with a header, through the library."""
    records = [record for seed in range(12) for record in random_trace(seed)]
    records += [Record("tag", subscriber="t0s0", event=f"tagged:{i}", published_us=1, delivered_us=2) for i in range(3)]
    write_parquet(tmp_path / "run.parquet", Header(promises=("fifo",)), records)
    monkeypatch.setattr(sys, "argv", ["unisono", "audit", str(tmp_path / "run.parquet"), "--on", "spark", "--json"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    found = msgspec.json.decode(capsys.readouterr().out, type=Report)
    expected = examine(read(tmp_path / "run.parquet"))
    plain = [(v.judge, v.holds, v.violations) for v in expected.verdicts]
    assert [(v.judge, v.holds, v.violations) for v in found.verdicts] == plain
    assert all(verdict.witness for verdict in found.verdicts if not verdict.holds)
    assert (found.deliveries, found.subscribers) == (expected.deliveries, expected.subscribers)
    # Events that stand equally far on average may be sorted either way; a repeat uses up a position.
    assert found.metrics == pytest.approx(expected.metrics, abs=0.01)
    write_jsonl(tmp_path / "run.jsonl", Header(), records)
    again = report_file(spark, tmp_path / "run.jsonl")
    assert [(v.judge, v.holds, v.violations) for v in again.verdicts] == plain
    assert again.metrics == found.metrics


def test_wrong_columns_are_named(spark: SparkSession) -> None:
    with pytest.raises(MisuseError, match="no column event, position"):
        audit(spark.createDataFrame([("a",)], "subscriber STRING"))
    with pytest.raises(MisuseError, match="column position is string"):
        audit(spark.createDataFrame([("a", "b", "c")], "subscriber STRING, event STRING, position STRING"))
