"""`timely`: what a subscriber is notified of comes before the event's own deadline, or is marked, or told of instead.

The deadline of an event is in the record of its publication, a moment counted from then. It was set by the clock of one
host and is judged by that of another: what the header says of how far apart they may be is allowed for.
"""

from unisono.audit.trace import Trace
from unisono.audit.verdict import Verdict, failed, nothing, passed

JUDGE = "timely"


def judge_timely(trace: Trace) -> Verdict | None:
    """Violations: untagged notifications after the deadline of their event."""
    deadlines = {
        record.event: record.deadline_us
        for record in trace.records
        if record.kind == "publish" and record.event is not None and record.deadline_us is not None
    }
    skew = trace.header.skew_us
    judged = violations = worst = 0
    witness = ""
    for record in trace.records:
        if record.kind != "deliver" or record.event is None:
            continue
        deadline, told = deadlines.get(record.event), trace.delivered_us(record)
        if deadline is None or told is None:
            continue
        judged += 1
        late = told - deadline
        if late > skew:
            violations += 1
            if late > worst:
                worst = late
                witness = (
                    f"{record.subscriber} was notified of {record.event} at {told} us, {late} us after its deadline of"
                    f" {deadline} us, and unmarked; clocks may be {skew} us apart"
                )
    if violations:
        return failed(JUDGE, violations, witness)
    if not judged:
        return None if not deadlines else nothing(JUDGE, "nobody was notified of an event with a deadline")
    return passed(JUDGE, f"clocks may be {skew} us apart" if skew else "")
