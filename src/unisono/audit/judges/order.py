"""Judges of order among subscribers: `acyclic`, `pairwise-order`, `local-order` (paper 001, section II).

If the union of all delivery orders is acyclic, one order explains every stream and the other two hold as well. So all
work beyond that one graph pass happens inside its knots.
"""

from unisono.audit.inversions import count_inversions
from unisono.audit.trace import Trace
from unisono.audit.verdict import Verdict, failed, passed

SEARCH_STEPS_MAX = 2_000_000
"""How much work the search for the shortest cycle may cost; beyond it the witness is short, not provably shortest."""


def judge_acyclic(trace: Trace) -> Verdict:
    """No cycle in the union of all delivery orders. Violations: knots, i.e. sets of events that cycles tie together."""
    knots = trace.union.knots
    if not knots:
        return passed("acyclic")
    hops = _shortest_cycle(trace, min(knots, key=len))
    witness = "; ".join(trace.before(stream, first, second) for first, stream, second in hops)
    return failed("acyclic", len(knots), witness)


def judge_pairwise(trace: Trace) -> Verdict:
    """No two subscribers have two common events in opposite order. Violations: distinct inverted pairs of events."""
    pairs = 0
    best: tuple[int, int] | None = None
    for found in trace.inversions:
        pairs += found.pairs
        best = best or found.example
    return _pair_verdict(trace, "pairwise-order", pairs, best)


def judge_local(trace: Trace) -> Verdict:
    """As pairwise, but only between events that went to the same set of subscribers: those notified of them."""
    knot_of = {event: i for i, knot in enumerate(trace.union.knots) for event in knot}
    receivers: dict[int, list[int]] = {event: [] for event in knot_of}
    for s, stream in enumerate(trace.streams):
        for event in stream.events:
            if event in receivers:
                receivers[event].append(s)
    groups: dict[tuple[int, tuple[int, ...]], list[int]] = {}
    for event, who in receivers.items():  # in the order of the knots, which is the reference order
        if len(who) > 1:
            groups.setdefault((knot_of[event], tuple(who)), []).append(event)
    pairs = 0
    best: tuple[int, int] | None = None
    for (_, subscribers), events in groups.items():
        if len(events) > 1:
            places = [trace.places[s] for s in subscribers]
            found = count_inversions(events, [sorted(events, key=place.__getitem__) for place in places])
            pairs += found.pairs
            best = best or found.example
    return _pair_verdict(trace, "local-order", pairs, best)


def _pair_verdict(trace: Trace, judge: str, pairs: int, example: tuple[int, int] | None) -> Verdict:
    if example is None:
        return passed(judge)
    first, second = example
    forward = backward = None
    for s, place in enumerate(trace.places):
        if first in place and second in place:
            if place[first] < place[second]:
                forward = s if forward is None else forward
            else:
                backward = s if backward is None else backward
    assert forward is not None
    assert backward is not None
    return failed(judge, pairs, f"{trace.before(forward, first, second)}; {trace.before(backward, second, first)}")


def _shortest_cycle(trace: Trace, knot: list[int]) -> list[tuple[int, int, int]]:
    """Fewest hops (event, stream, later event of that stream) that come back to where they started."""
    inside = dict.fromkeys(knot)
    streams: list[tuple[int, list[int]]] = []
    visits: dict[int, list[tuple[int, int]]] = {event: [] for event in knot}
    for s, stream in enumerate(trace.streams):
        events = [event for event in stream.events if event in inside]
        if len(events) > 1:
            for i, event in enumerate(events):
                visits[event].append((len(streams), i))
            streams.append((s, events))
    cost = sum(len(events) for _, events in streams)
    starts = knot[: max(1, SEARCH_STEPS_MAX // max(1, cost))]
    best: list[tuple[int, int, int]] = []
    for start in starts:
        hops = _cycle_through(start, streams, visits)
        if not best or len(hops) < len(best):
            best = hops
        if len(best) == 2:
            break
    return best


def _cycle_through(
    start: int, streams: list[tuple[int, list[int]]], visits: dict[int, list[tuple[int, int]]]
) -> list[tuple[int, int, int]]:
    """Breadth first; from an event every later event of the same stream is one hop away, so a stream is walked once."""
    reached: dict[int, tuple[int, int]] = {}
    walked = [len(events) for _, events in streams]
    queue = [start]
    for event in queue:  # grows while it is walked
        for which, index in visits[event]:
            s, events = streams[which]
            for later in events[index + 1 : walked[which]]:
                if later not in reached:
                    reached[later] = (event, s)
                    queue.append(later)
            walked[which] = min(walked[which], index + 1)
        if start in reached:
            break
    hops: list[tuple[int, int, int]] = []
    event = start
    while not hops or event != start:
        previous, s = reached[event]
        hops.append((previous, s, event))
        event = previous
    hops.reverse()
    return hops
