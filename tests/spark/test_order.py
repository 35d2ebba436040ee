"""Order at any size says what the Python judges say, whatever the reference order."""

import random

from pyspark.sql import DataFrame, SparkSession

from unisono.audit import judge
from unisono.model.journal import Header, Journal, Record
from unisono.spark.order import ORDER_JUDGES, order_verdicts

Row = tuple[str, str, int, int, int]


def random_trace(seed: int) -> list[Row]:
    """One trace of its own events: mostly in order, with neighbours swapped; publication times good or useless."""
    dice = random.Random(seed)
    events = [f"t{seed}e{i:03d}" for i in range(dice.randint(2, 25))]
    useless = dice.random() < 0.3
    times = {event: dice.randint(0, 99) if useless else i for i, event in enumerate(events)}
    found: list[Row] = []
    for s in range(dice.randint(2, 6)):
        seen = [event for event in events if dice.random() < 0.7]
        for _ in range(dice.choice([0, 0, 1, 3])):
            if len(seen) > 1:
                i = dice.randrange(len(seen) - 1)
                seen[i], seen[i + 1] = seen[i + 1], seen[i]
        found += [(f"t{seed}s{s}", event, p, times[event], times[event] + 5) for p, event in enumerate(seen, 1)]
    return found


def frame(spark: SparkSession, rows: list[Row]) -> DataFrame:
    return spark.createDataFrame(
        rows, "subscriber STRING, event STRING, position BIGINT, published_us BIGINT, delivered_us BIGINT"
    )


def verdicts(found: DataFrame) -> dict[str, tuple[bool, int]]:
    return {row.judge: (row.holds, row.violations) for row in found.collect()}


def test_it_agrees_with_the_python_judges_on_random_traces(spark: SparkSession) -> None:
    traces = [random_trace(seed) for seed in range(60)]
    records = [Record(subscriber=s, event=e, position=p) for trace in traces for s, e, p, _, _ in trace]
    expected = {v.judge: (v.holds, v.violations) for v in judge(Journal(Header(), records), ORDER_JUDGES)}
    assert not expected["pairwise-order"][0]
    rows = [row for trace in traces for row in trace]
    assert verdicts(order_verdicts(frame(spark, rows))) == expected
    assert verdicts(order_verdicts(frame(spark, rows).select("subscriber", "event", "position"))) == expected


def test_a_cycle_over_three_subscribers_is_found_though_every_pair_agrees(spark: SparkSession) -> None:
    streams = {"p": "ab", "q": "bc", "r": "ca"}
    rows = [(s, e, i, ord(e), ord(e)) for s, seen in streams.items() for i, e in enumerate(seen)]
    found = verdicts(order_verdicts(frame(spark, rows)))
    assert found["pairwise-order"] == (True, 0)
    assert found["acyclic"] == (False, 1)
