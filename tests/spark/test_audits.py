"""Audits at any size say what the Python judges say, whatever the reference order."""

import random

import pytest
from pyspark.sql import DataFrame, SparkSession

from unisono.audit import judge
from unisono.errors import MisuseError
from unisono.model.journal import Header, Journal, Record
from unisono.spark.audits import audit
from unisono.spark.streams import metrics

SCHEMA = (
    "subscriber STRING, event STRING, position BIGINT, topic STRING, publisher STRING, publisher_seq BIGINT, "
    "published_us BIGINT, delivered_us BIGINT, deadline_us BIGINT, clock MAP<STRING, BIGINT>"
)


def random_trace(seed: int) -> list[Record]:
    """A trace of its own events: mostly in order, with swaps, repeats, losses; publication times good or useless."""
    dice = random.Random(seed)
    useless = dice.random() < 0.3
    counts: dict[str, int] = {}
    published: list[Record] = []
    for i in range(dice.randint(2, 25)):
        publisher = f"t{seed}p{dice.randrange(3)}"
        clock = {name: dice.randint(0, count) for name, count in counts.items() if dice.random() < 0.5}
        counts[publisher] = counts.get(publisher, 0) + 1
        published.append(
            Record(
                event=f"{publisher}:{counts[publisher]}",
                topic=f"t{seed}",
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


def frame(spark: SparkSession, records: list[Record], columns: int = 10) -> DataFrame:
    names = [part.split()[0] for part in SCHEMA.replace("MAP<STRING, BIGINT>", "MAP").split(", ")]
    rows = [tuple(getattr(record, name) for name in names) for record in records]
    return spark.createDataFrame(rows, SCHEMA).select(*names[:columns])


def verdicts(found: DataFrame) -> dict[str, tuple[bool, int]]:
    return {row.judge: (row.holds, row.violations) for row in found.collect()}


def test_they_agree_with_the_python_judges_on_random_traces(spark: SparkSession) -> None:
    records = [record for seed in range(60) for record in random_trace(seed)]
    expected = {v.judge: (v.holds, v.violations) for v in judge(Journal(Header(), records))}
    assert not any(holds for holds, _ in expected.values()), "every judge has something to find"
    assert verdicts(audit(frame(spark, records))) == expected
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
    assert (row.deliveries, row.subscribers, row.events, row.latency_p99_us) == (98, 2, 49, 5)


def test_a_cycle_over_three_subscribers_is_found_though_every_pair_agrees(spark: SparkSession) -> None:
    streams = {"p": "ab", "q": "bc", "r": "ca"}
    records = [Record(subscriber=s, event=e, position=i) for s, seen in streams.items() for i, e in enumerate(seen)]
    found = verdicts(audit(frame(spark, records, columns=3)))
    assert found["pairwise-order"] == (True, 0)
    assert found["acyclic"] == (False, 1)


def test_wrong_columns_are_named(spark: SparkSession) -> None:
    with pytest.raises(MisuseError, match="no column event, position"):
        audit(spark.createDataFrame([("a",)], "subscriber STRING"))
    with pytest.raises(MisuseError, match="column position is string"):
        audit(spark.createDataFrame([("a", "b", "c")], "subscriber STRING, event STRING, position STRING"))
