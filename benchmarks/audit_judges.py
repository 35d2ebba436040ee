"""How long the audit of a million deliveries takes, step by step, on an ordered, a jittered and a shuffled trace.

Ordered: every subscriber sees one global order. Jittered: each delivery is displaced by a random delay, as after a
broker without order (almost every event ends in one knot). Shuffled: few events, many subscribers, every stream in an
order of its own, the worst case for pairs of subscribers. CPU seconds of this process.
"""

import gc
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from unisono.audit import JUDGES, Trace, measure, read, write_jsonl
from unisono.model.journal import Header, Journal, Record

TOPICS = 100
"""One publisher per topic, events in turn."""


def deliveries(events: int, subscribers: int, interest: int, jitter: float, seed: int = 1) -> list[Record]:
    """Each subscriber has `interest` random topics; `jitter` in events: how far a delivery may be late."""
    dice = random.Random(seed)
    receivers: list[list[int]] = [[] for _ in range(TOPICS)]
    for subscriber in range(subscribers):
        for topic in dice.sample(range(TOPICS), interest):
            receivers[topic].append(subscriber)
    streams: list[list[tuple[float, int]]] = [[] for _ in range(subscribers)]
    for event in range(events):
        for subscriber in receivers[event % TOPICS]:
            streams[subscriber].append((event + dice.random() * jitter, event))
    records = []
    for subscriber, stream in enumerate(streams):
        stream.sort()
        for i, (moment, event) in enumerate(stream):
            topic, number = event % TOPICS, event // TOPICS
            records.append(
                Record(
                    subscriber=f"s{subscriber}",
                    event=f"p{topic}:{number}",
                    position=i + 1,
                    topic=f"t{topic}",
                    publisher=f"p{topic}",
                    publisher_seq=number,
                    published_us=event * 10,
                    delivered_us=int(moment * 10) + 500,
                    deadline_us=event * 10 + 100_000,
                    depends_on=(f"p{topic}:{number - 1}",) if number else (),
                )
            )
    return records


SHAPES: dict[str, dict[str, Any]] = {
    "ordered": {"events": 100_000, "subscribers": 100, "interest": 10, "jitter": 0.0},
    "jittered": {"events": 100_000, "subscribers": 100, "interest": 10, "jitter": 200.0},
    "shuffled": {"events": 1_000, "subscribers": 1_000, "interest": 100, "jitter": 1e6},
}


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    gc.collect()
    started = time.process_time()
    result = work()
    return result, round(time.process_time() - started, 3)


def run(scale: float = 1.0) -> list[dict[str, Any]]:
    """One row per shape, CPU seconds per step; `scale` shrinks the number of events."""
    rows = []
    for name, shape in SHAPES.items():
        records = deliveries(**{**shape, "events": int(shape["events"] * scale)})
        seconds: dict[str, float] = {}
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "journal.jsonl"
            _, wrote = timed(lambda: write_jsonl(path, Header(), records))  # noqa: B023
            records.clear()
            journal, seconds["read"] = timed(lambda: read(path))  # noqa: B023
        trace = _judged(journal, seconds)
        rows.append(
            {
                "case": name,
                "deliveries": trace.deliveries,
                "knots": len(trace.union.knots),
                "inverted_pairs": sum(found.pairs for found in trace.inversions),
                "write_cpu_s": wrote,
                **{f"{step}_cpu_s": took for step, took in seconds.items()},
                "audit_cpu_s": round(sum(seconds.values()), 3),
            }
        )
    return rows


def _judged(journal: Journal, seconds: dict[str, float]) -> Trace:
    trace, seconds["prepare"] = timed(lambda: Trace(journal))
    _, seconds["union"] = timed(lambda: trace.union)
    _, seconds["inversions"] = timed(lambda: trace.inversions)
    for judge, work in JUDGES.items():
        _, seconds[judge] = timed(lambda: work(trace))  # noqa: B023
    _, seconds["metrics"] = timed(lambda: measure(trace))
    return trace


if __name__ == "__main__":
    print(json.dumps(run(float(sys.argv[1]) if len(sys.argv) > 1 else 1.0), indent=1))
