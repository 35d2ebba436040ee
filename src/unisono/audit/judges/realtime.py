"""`realtime`: who publishes after another's event was accepted is heard after it, by everybody who hears both.

Moments are those of calls: an event is published when its publisher hands it over, and accepted when he is told. What
is that near together may come in either order (`tolerance_us` of the journal's head, and `skew_us` where the clocks of
publishers may differ).
"""

from unisono.audit.trace import Trace
from unisono.audit.verdict import Verdict, failed, nothing, passed

JUDGE = "realtime"


def judge_realtime(trace: Trace) -> Verdict | None:
    """Violations: notifications of an event after one that was published when it had long been accepted."""
    tolerance = trace.header.tolerance_us
    if tolerance is None:
        return None
    published: dict[str, int] = {}
    accepted: dict[str, int] = {}
    kinds: dict[str, None] = {}
    for record in trace.records:
        kinds[record.kind] = None
        if record.event is None:
            continue
        if record.kind == "publish":
            published[record.event] = record.at_us
        elif record.kind == "outcome" and (record.note or "").startswith("accepted"):
            accepted[record.event] = record.at_us
    if not kinds.keys() >= {"publish", "outcome"}:
        return None
    margin = tolerance + trace.header.skew_us
    judged = violations = worst = 0
    witness = ""
    for stream in trace.streams:
        newest, newest_at = "", -1
        for number in stream.events:
            event = trace.events[number]
            if event in accepted and newest_at >= 0:
                judged += 1
                late = newest_at - accepted[event] - margin
                violations += late > 0
                if late > worst:
                    worst = late
                    witness = (
                        f"{stream.subscriber} was notified of {newest} before {event}, which had been accepted"
                        f" {newest_at - accepted[event]} us before {newest} was published; {margin} us are allowed"
                    )
            at = published.get(event, -1)
            if at > newest_at:
                newest, newest_at = event, at
    if violations:
        return failed(JUDGE, violations, witness)
    return passed(JUDGE) if judged else nothing(JUDGE, "nobody was notified of two events whose moments are known")
