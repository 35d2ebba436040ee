"""`fifo`: every subscriber is notified of one publisher's events in the order they were published.

`publisher-order` asks the same of each topic by itself.
"""

from collections.abc import Callable

from unisono.audit.trace import Trace
from unisono.audit.verdict import Verdict, failed, passed

Line = tuple[str, ...]
"""Events with the same line are compared."""
Latest = dict[str, dict[Line, tuple[int, str, int]]]
"""Subscriber -> line -> the latest number it was notified of, with the event and its position."""


def judge_fifo(trace: Trace, before: Latest | None = None) -> Verdict | None:
    """Violations: notifications that came after a later event of the same publisher. Needs publisher, publisher_seq.

    If the trace is the next part of a longer one, `before` is how the part before it ended, and is kept up to date.
    """
    return _judge(trace, "fifo", lambda event, publisher: (publisher,), before)


def judge_publisher_order(trace: Trace, before: Latest | None = None) -> Verdict | None:
    """Violations: the same among the events of one topic. Needs topic, publisher, publisher_seq."""
    if trace.deliveries and not trace.topics:
        return None
    topic_of = [trace.topics.get(name) for name in trace.events]
    return _judge(
        trace,
        "publisher-order",
        lambda event, publisher: None if (topic := topic_of[event]) is None else (topic, publisher),
        before,
    )


def _judge(
    trace: Trace, judge: str, line_of: Callable[[int, str], Line | None], before: Latest | None
) -> Verdict | None:
    """`line_of` gives the line of an event; None is in none."""
    if trace.deliveries and not trace.authors:
        return None
    author_of = [trace.authors.get(name) for name in trace.events]
    violations = 0
    witness = ""
    for stream in trace.streams:
        latest = before.setdefault(stream.subscriber, {}) if before is not None else {}
        for event, position in zip(stream.events, stream.positions):
            author = author_of[event]
            if author is None:
                continue
            publisher, number = author
            line = line_of(event, publisher)
            if line is None:
                continue
            top = latest.get(line)
            if top is None or number >= top[0]:
                latest[line] = (number, trace.events[event], position)
                continue
            violations += 1
            witness = witness or (
                f"{publisher} published {trace.events[event]} as its number {number} and {top[1]} as its number "
                f"{top[0]}; {stream.subscriber} was notified of number {top[0]} at position {top[2]}, of number "
                f"{number} at {position}"
            )
    return failed(judge, violations, witness) if violations else passed(judge)
