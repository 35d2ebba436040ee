"""`fifo`: every subscriber is notified of one publisher's events in the order they were published.

`publisher-order` asks the same of each topic by itself.
"""

from collections.abc import Callable

from unisono.audit.trace import Trace
from unisono.audit.verdict import Verdict, failed, nothing, passed

Line = tuple[str, ...]
"""Events with the same line are compared; the publisher stands last."""
Latest = dict[str, dict[Line, tuple[int, str, int]]]
"""Subscriber -> line -> the latest number it was notified of, with the event and its position."""

NO_AUTHOR = "nobody was notified of an event whose publisher and number are known"
NO_TOPIC = "nobody was notified of an event whose topic, publisher and number are known"


def judge_fifo(trace: Trace, before: Latest | None = None) -> Verdict | None:
    """Violations: notifications that came after a later event of the same publisher. Needs publisher, publisher_seq.

    If the trace is the next part of a longer one, `before` is how the part before it ended, and is kept up to date.
    """
    return _judge(trace, "fifo", lambda event, publisher: (publisher,), before)


def judge_publisher_order(trace: Trace, before: Latest | None = None) -> Verdict | None:
    """Violations: the same among the events of one topic. Needs topic, publisher, publisher_seq."""
    if trace.deliveries and not trace.topics:
        return None
    topics = trace.topics
    return _judge(
        trace,
        "publisher-order",
        lambda event, publisher: None if (topic := topics.get(event)) is None else (topic, publisher),
        before,
    )


def _judge(
    trace: Trace, judge: str, line_of: Callable[[str, str], Line | None], before: Latest | None
) -> Verdict | None:
    """`line_of` gives the line of an event of a publisher; None is in none."""
    authors = trace.authors
    if trace.deliveries and not authors:
        return None

    def place_of(event: str) -> tuple[Line, int] | None:
        author = authors.get(event)
        line = None if author is None else line_of(event, author[0])
        return None if author is None or line is None else (line, author[1])

    places = [place_of(event) for event in trace.events]
    if not any(places) and not any(map(place_of, trace.notified())):
        return nothing(judge, NO_AUTHOR if judge == "fifo" else NO_TOPIC)
    violations = 0
    witness = ""
    for stream in trace.streams:
        latest = before.setdefault(stream.subscriber, {}) if before is not None else {}
        for event, position in zip(stream.events, stream.positions):
            place = places[event]
            if place is None:
                continue
            line, number = place
            top = latest.get(line)
            if top is None or number >= top[0]:
                latest[line] = (number, trace.events[event], position)
                continue
            violations += 1
            witness = witness or (
                f"{line[-1]} published {trace.events[event]} as its number {number} and {top[1]} as its number "
                f"{top[0]}; {stream.subscriber} was notified of number {top[0]} at position {top[2]}, of number "
                f"{number} at {position}"
            )
    return failed(judge, violations, witness) if violations else passed(judge)
