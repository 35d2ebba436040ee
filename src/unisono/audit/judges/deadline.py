"""`deadline`: whoever was promised an answer by a moment got the event, or a notice instead of it, by then."""

from unisono.audit.trace import Trace
from unisono.audit.verdict import Verdict, failed, nothing, passed

JUDGE = "deadline"
ANSWERS = ("deliver", "tag", "gap", "stalled")


def judge_deadline(trace: Trace) -> Verdict | None:
    """Violations: answers after their deadline. `deadline_us` is a moment on the clock of `delivered_us`."""
    deadlines = {
        record.event: record.deadline_us
        for record in trace.records
        if record.kind == "publish" and record.event is not None and record.deadline_us is not None
    }
    judged = violations = worst = 0
    witness = ""
    for record in trace.records:
        if record.kind not in ANSWERS:
            continue
        deadline = record.deadline_us
        if deadline is None and record.event is not None:
            deadline = deadlines.get(record.event)
        answered = trace.delivered_us(record)
        if deadline is None or answered is None:
            continue
        judged += 1
        if answered > deadline:
            violations += 1
            if answered - deadline > worst:
                worst = answered - deadline
                what = record.event if record.event is not None else f"number {record.number} of {record.topic}"
                notice = "" if record.kind in ("deliver", "tag") else f"the {record.kind} notice for "
                witness = (
                    f"{record.subscriber} had {notice}{what} "
                    f"at {answered} us, {worst} us after its deadline of {deadline} us"
                )
    if not judged:
        return None if trace.deliveries else nothing(JUDGE, "nobody was answered by a deadline")
    return failed(JUDGE, violations, witness) if violations else passed(JUDGE)
