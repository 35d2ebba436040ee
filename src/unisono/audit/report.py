"""The whole audit of one journal as data: what `unisono audit --json` prints, whoever worked it out."""

from msgspec import Struct

from unisono.audit.judges.table import judge_trace
from unisono.audit.metrics import measure
from unisono.audit.trace import Trace
from unisono.audit.verdict import Verdict
from unisono.model.journal import Journal


class Report(Struct, frozen=True):
    """`deliveries` counts notifications, tagged and untagged; `subscribers` those who had one."""

    deliveries: int
    subscribers: int
    verdicts: list[Verdict]
    metrics: dict[str, float]


def examine(journal: Journal) -> Report:
    """`examine(read("run.jsonl")).verdicts`: every judge the journal has columns for, and the metrics."""
    trace = Trace(journal)
    return Report(trace.deliveries, len(trace.streams), judge_trace(trace), measure(trace))
