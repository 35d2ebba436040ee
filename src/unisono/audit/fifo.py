"""`fifo`: every subscriber is notified of one publisher's events in the order they were published."""

from unisono.audit.trace import Trace
from unisono.audit.verdict import Verdict, failed, passed

JUDGE = "fifo"


def judge_fifo(trace: Trace) -> Verdict | None:
    """Violations: notifications that came after a later event of the same publisher. Needs publisher, publisher_seq."""
    if trace.deliveries and not trace.authors:
        return None
    author_of = [trace.authors.get(name) for name in trace.events]
    violations = 0
    witness = ""
    for stream in trace.streams:
        latest: dict[str, tuple[int, int]] = {}
        for i, event in enumerate(stream.events):
            author = author_of[event]
            if author is None:
                continue
            publisher, number = author
            top = latest.get(publisher)
            if top is None or number >= top[0]:
                latest[publisher] = (number, i)
                continue
            violations += 1
            witness = witness or (
                f"{publisher} published {trace.events[event]} as its number {number} and "
                f"{trace.events[stream.events[top[1]]]} as its number {top[0]}; {stream.subscriber} was notified of "
                f"number {top[0]} at position {stream.positions[top[1]]}, of number {number} at {stream.positions[i]}"
            )
    return failed(JUDGE, violations, witness) if violations else passed(JUDGE)
