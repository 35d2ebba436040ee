"""`fifo`: every subscriber is notified of one publisher's events in the order they were published.

`publisher-order` asks the same of each topic by itself.
"""

from collections.abc import Callable, Hashable

from unisono.audit.trace import Trace
from unisono.audit.verdict import Verdict, failed, passed


def judge_fifo(trace: Trace) -> Verdict | None:
    """Violations: notifications that came after a later event of the same publisher. Needs publisher, publisher_seq."""
    return _judge(trace, "fifo", lambda event, publisher: publisher)


def judge_publisher_order(trace: Trace) -> Verdict | None:
    """Violations: the same among the events of one topic. Needs topic, publisher, publisher_seq."""
    if trace.deliveries and not trace.topics:
        return None
    topic_of = [trace.topics.get(name) for name in trace.events]
    return _judge(
        trace,
        "publisher-order",
        lambda event, publisher: None if (topic := topic_of[event]) is None else (topic, publisher),
    )


def _judge(trace: Trace, judge: str, line_of: Callable[[int, str], Hashable | None]) -> Verdict | None:
    """`line_of` says which events are compared: those with the same line; None is in none."""
    if trace.deliveries and not trace.authors:
        return None
    author_of = [trace.authors.get(name) for name in trace.events]
    violations = 0
    witness = ""
    for stream in trace.streams:
        latest: dict[Hashable, tuple[int, int]] = {}
        for i, event in enumerate(stream.events):
            author = author_of[event]
            if author is None:
                continue
            publisher, number = author
            line = line_of(event, publisher)
            if line is None:
                continue
            top = latest.get(line)
            if top is None or number >= top[0]:
                latest[line] = (number, i)
                continue
            violations += 1
            witness = witness or (
                f"{publisher} published {trace.events[event]} as its number {number} and "
                f"{trace.events[stream.events[top[1]]]} as its number {top[0]}; {stream.subscriber} was notified of "
                f"number {top[0]} at position {stream.positions[top[1]]}, of number {number} at {stream.positions[i]}"
            )
    return failed(judge, violations, witness) if violations else passed(judge)
