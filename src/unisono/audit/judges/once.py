"""`exactly-once`: nobody is notified of an event twice, nor of a refused one, and a position names one event."""

from unisono.audit.trace import Trace
from unisono.audit.verdict import Verdict, failed, passed
from unisono.model.journal import Record

JUDGE = "exactly-once"


def judge_exactly_once(trace: Trace) -> Verdict:
    """Violations: surplus notifications, those of events their publisher was told are refused, and reused positions.

    After a restart of its own process a subscriber may see an event again at the same position: that is a replay.
    """
    restarts: dict[str, list[int]] = {}
    refused: dict[str | None, None] = {}
    for row, record in enumerate(trace.records):
        if record.kind == "restart" and record.who is not None:
            restarts.setdefault(record.who, []).append(row)
        elif record.kind == "outcome" and (record.note or "").startswith("refused"):
            refused[record.event] = None
    violations = 0
    witness = ""
    for record in trace.records if refused else ():
        if record.kind in ("deliver", "tag") and record.event in refused:
            violations += 1
            witness = witness or (
                f"{record.event} was notified to {record.subscriber} {_where(record)}, but its publisher was told that "
                f"it is refused"
            )
    for repeat in trace.repeats:
        first, again = trace.records[repeat.first], trace.records[repeat.again]
        if _is_replay(first, again, repeat.first, repeat.again, restarts):
            continue
        violations += 1
        witness = witness or f"{again.event} twice at {again.subscriber}: {_where(first)} and again {_where(again)}"
    for stream in trace.streams:
        for i in range(1, len(stream.positions)):
            if stream.positions[i] == stream.positions[i - 1]:
                violations += 1
                witness = witness or (
                    f"position {stream.positions[i]} of {stream.subscriber} was given to "
                    f"{trace.events[stream.events[i - 1]]} and to {trace.events[stream.events[i]]}"
                )
    return failed(JUDGE, violations, witness) if violations else passed(JUDGE)


def _is_replay(first: Record, again: Record, row: int, row_again: int, restarts: dict[str, list[int]]) -> bool:
    if first.position != again.position or first.kind != again.kind:
        return False
    low, high = min(row, row_again), max(row, row_again)
    return any(low < restart < high for restart in restarts.get(again.who or again.subscriber or "", []))


def _where(record: Record) -> str:
    text = f"at position {record.position}" if record.position is not None else "without a position"
    return f"{text}, tagged" if record.kind == "tag" else text
