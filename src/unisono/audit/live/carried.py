"""What judges carry from one part of a log to the next, so that parts judged one after the other give the whole.

Parts of a live audit are cut so that no stream goes from a later part back into an earlier one. Hence every knot lies
in one part, and `acyclic`, `pairwise-order` and `local-order` carry nothing. The others look back: at the latest number
of a line (`fifo`), at the last position (`exactly-once`), at clocks that wait for a cause (`causal`).
"""

from typing import Any

from unisono.audit.judges.causal import JUDGE as CAUSAL
from unisono.audit.judges.deadline import judge_deadline
from unisono.audit.judges.fifo import judge_fifo, judge_publisher_order
from unisono.audit.judges.once import JUDGE as ONCE
from unisono.audit.judges.once import judge_exactly_once
from unisono.audit.judges.order import judge_acyclic, judge_local, judge_pairwise
from unisono.audit.live.state import LiveState, Sum
from unisono.audit.trace import Trace
from unisono.audit.verdict import Verdict, failed, passed

LIVE = ("pairwise-order", "local-order", "acyclic", "fifo", "publisher-order", "causal", "exactly-once", "deadline")
"""The judges that a live audit asks; `causal` by clocks. The others need the whole log."""


def judge_part(trace: Trace, state: LiveState, causal_window: int) -> list[Verdict]:
    """What each judge with columns finds in the next part; `state` then carries it, and has it in its sums."""
    found: list[Verdict | None] = []
    if trace.deliveries:
        found += [judge_pairwise(trace), judge_local(trace), judge_acyclic(trace)]
        found += [judge_fifo(trace, state.fifo), judge_publisher_order(trace, state.publisher_order)]
        found += [_causal(trace, state, causal_window), _once(trace, state)]
        _touch(trace, state)
    found.append(judge_deadline(trace))
    verdicts = [verdict for verdict in found if verdict is not None and verdict.judged]
    for verdict in verdicts:
        add(state, verdict)
    return verdicts


def _touch(trace: Trace, state: LiveState) -> None:
    """Streams have come further; who was met last is forgotten last."""
    for stream in trace.streams:
        name = stream.subscriber
        if stream.positions:
            state.ends.pop(name, None)
            state.ends[name] = stream.positions[-1]
        tables: list[Any] = [state.fifo, state.publisher_order, state.clocks, state.needs]
        for table in tables:
            if name in table:
                table[name] = table.pop(name)


def add(state: LiveState, verdict: Verdict) -> None:
    """One more finding; the first witness stays."""
    total = state.sums.setdefault(verdict.judge, Sum())
    total.violations += verdict.violations
    total.witness = total.witness or verdict.witness


def _once(trace: Trace, state: LiveState) -> Verdict:
    """With positions that were given before, at the end of the last part."""
    verdict = judge_exactly_once(trace)
    again = [
        stream
        for stream in trace.streams
        if stream.positions and state.ends.get(stream.subscriber) == stream.positions[0]
    ]
    if not again:
        return verdict
    stream = again[0]
    witness = verdict.witness or (
        f"position {stream.positions[0]} of {stream.subscriber} was given to {trace.events[stream.events[0]]} and, "
        "before, to another event"
    )
    return failed(ONCE, verdict.violations + len(again), witness)


def _causal(trace: Trace, state: LiveState, window: int) -> Verdict | None:
    """Notifications that came before one of their causes, by clocks; each counts once, when the first cause comes."""
    clocks = {
        record.event: record.clock
        for record in trace.records
        if record.kind in ("deliver", "tag", "publish") and record.clock is not None
    }
    state.has_clocks = state.has_clocks or any(name in clocks for name in trace.notified())
    state.has_authors = state.has_authors or any(name in trace.authors for name in trace.notified())
    if not state.has_clocks:
        return None
    violations = 0
    witness = ""
    for stream in trace.streams:
        waiting = state.clocks.setdefault(stream.subscriber, [])
        needs = state.needs.setdefault(stream.subscriber, {})
        for event, position in zip(stream.events, stream.positions):
            name = trace.events[event]
            publisher, number = trace.authors.get(name, ("", 0))
            if name in trace.authors and needs.get(publisher, number - 1) >= number:
                early = [item for item in waiting if item[2].get(publisher, number - 1) >= number]
                violations += len(early)
                if early and not witness:
                    first, at, clock = early[0]
                    witness = (
                        f"{first} depends on {name}, because its clock has {publisher}: {clock[publisher]} and {name} "
                        f"is number {number} of {publisher}; {stream.subscriber} was notified of {first} at position "
                        f"{at} and of {name} at position {position}"
                    )
                waiting[:] = [item for item in waiting if item[2].get(publisher, number - 1) < number]
            clock_of = clocks.get(name)
            if clock_of:
                waiting.append((name, position, clock_of))
                for other, need in clock_of.items():
                    needs[other] = max(needs.get(other, need), need)
        state.forgotten += max(0, len(waiting) - window)
        del waiting[: max(0, len(waiting) - window)]
    if not state.has_authors:
        return None
    return failed(CAUSAL, violations, witness) if violations else passed(CAUSAL)
