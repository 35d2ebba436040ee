"""`causal`: whoever is notified of two events of which one depends on the other is notified of the cause first.

Who depends on whom is taken from the best source in the journal: vector clocks (`clock`: publisher -> how many of its
events came before), lists of direct causes (`depends_on`; exact only when every published event is present), or, in a
full journal, from what each process had published and been notified of (tagged or not) when it published. For the
last, the records of one process must stand in the order they happened; a process is `who`, else the client's name.
"""

from collections.abc import Iterable, Mapping

from unisono.audit.judges.fifo import NO_AUTHOR
from unisono.audit.trace import Trace
from unisono.audit.union import unite
from unisono.audit.verdict import Verdict, failed, nothing, passed

JUDGE = "causal"


def judge_causal(trace: Trace) -> Verdict | None:
    """Violations: notifications that came before one of their causes."""
    clocks = {
        record.event: record.clock for record in trace.records if _is_event(record.kind) and record.clock is not None
    }
    if clocks and trace.authors:
        if not any(name in clocks for name in trace.notified()):
            return nothing(JUDGE, "nobody was notified of an event whose clock is known")
        if not any(name in trace.authors for name in trace.notified()):
            return nothing(JUDGE, NO_AUTHOR)
        return _by_clock(trace, clocks)
    causes = {
        record.event: record.depends_on
        for record in trace.records
        if _is_event(record.kind) and record.event is not None and record.depends_on is not None
    }
    if not causes:
        causes = _causes_from_records(trace)
    if not causes and trace.deliveries:
        return None
    if not any(name in causes for name in trace.notified()):
        return nothing(JUDGE, "nobody was notified of an event whose causes are known")
    return _by_causes(trace, causes)


def _is_event(kind: str) -> bool:
    """Clocks of other kinds mean something else: timestamps and gates of the sequencer."""
    return kind in ("deliver", "tag", "publish")


def _by_clock(trace: Trace, clocks: Mapping[str | None, dict[str, int]]) -> Verdict:
    violations = 0
    witness = ""
    for stream in trace.streams:
        least_later: dict[str, tuple[int, int]] = {}  # publisher -> its least number notified after this point, where
        for i in range(len(stream.events) - 1, -1, -1):
            name = trace.events[stream.events[i]]
            late = [
                (least_later[publisher][1], publisher)
                for publisher, number in clocks.get(name, {}).items()
                if publisher in least_later and least_later[publisher][0] <= number
            ]
            if late:
                violations += 1
                j, publisher = min(late)
                cause = trace.events[stream.events[j]]
                witness = (
                    f"{name} depends on {cause}, because its clock has {publisher}: {clocks[name][publisher]} and "
                    f"{cause} is number {least_later[publisher][0]} of {publisher}; {stream.subscriber} was notified "
                    f"of {name} at position {stream.positions[i]} and of {cause} at position {stream.positions[j]}"
                )
            author = trace.authors.get(name)
            if author is not None and (author[0] not in least_later or author[1] < least_later[author[0]][0]):
                least_later[author[0]] = (author[1], i)
    return failed(JUDGE, violations, witness) if violations else passed(JUDGE)


def _causes_from_records(trace: Trace) -> dict[str, tuple[str, ...]]:
    causes: dict[str, tuple[str, ...]] = {}
    news: dict[str, list[str]] = {}  # process -> what it learnt or said since it last published
    for record in trace.records:
        if record.event is None:
            continue
        if record.kind == "publish":
            process = record.who or record.publisher
            if process is not None and record.event not in causes:
                causes[record.event] = tuple(news.get(process, ()))
                news[process] = [record.event]
        elif record.kind in ("deliver", "tag"):
            process = record.who or record.subscriber
            assert process is not None
            news.setdefault(process, []).append(record.event)
    return causes


def _by_causes(trace: Trace, causes: Mapping[str, Iterable[str]]) -> Verdict:
    names = list(trace.events)
    numbers = {name: event for event, name in enumerate(names)}
    for name in [*causes, *(cause for listed in causes.values() for cause in listed)]:
        if name not in numbers:
            numbers[name] = len(names)
            names.append(name)
    direct: list[list[int]] = [[numbers[cause] for cause in causes.get(name, ()) if cause != name] for name in names]
    edges = [[cause, event] for event, listed in enumerate(direct) for cause in listed]
    # A late cause closes a circle of delivery order and causality, so without knots in their union there is none.
    inside = {event: None for knot in _knots(trace, len(names), edges) for event in knot}
    if not inside:
        return passed(JUDGE)
    direct = [
        [cause for cause in listed if cause in inside] if event in inside else [] for event, listed in enumerate(direct)
    ]
    causality = unite(len(names), [edge for edge in edges if edge[0] in inside and edge[1] in inside])
    if causality.knots:
        circle = ", ".join(names[event] for event in causality.knots[0])
        return failed(JUDGE, len(causality.knots), f"these events depend on each other in a circle: {circle}")
    order = [event for event in causality.order if direct[event]]
    violations = 0
    witness = ""
    for s, stream in enumerate(trace.streams):
        place = [-1] * len(names)
        for i, event in enumerate(stream.events):
            place[event] = i
        last_cause = [-1] * len(names)  # where the last of all causes, direct or not, stands in this stream
        for event in order:
            worst = -1
            for cause in direct[event]:
                worst = max(worst, place[cause], last_cause[cause])
            last_cause[event] = worst
            if worst > place[event] >= 0:
                violations += 1
                witness = witness or _explain(trace, s, event, direct, place, last_cause, names)
    return failed(JUDGE, violations, witness) if violations else passed(JUDGE)


def _knots(trace: Trace, size: int, edges: list[list[int]]) -> list[list[int]]:
    return unite(size, [*(stream.events for stream in trace.streams), *edges]).knots


def _explain(
    trace: Trace, s: int, event: int, direct: list[list[int]], place: list[int], last_cause: list[int], names: list[str]
) -> str:
    stream, path, here = trace.streams[s], [event], event
    while here == event or place[here] != last_cause[event]:
        here = next(c for c in direct[here] if max(place[c], last_cause[c]) == last_cause[event])
        path.append(here)
    through = f" through {', '.join(names[step] for step in path[1:-1])}" if len(path) > 2 else ""
    return (
        f"{names[event]} depends on {names[here]}{through}; {stream.subscriber} was notified of {names[event]} at "
        f"position {stream.positions[place[event]]} and of {names[here]} at position {stream.positions[place[here]]}"
    )
