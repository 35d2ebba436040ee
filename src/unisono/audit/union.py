"""The union of all delivery orders as a graph, and one linear order that agrees with as much of it as possible.

An edge joins consecutive deliveries of one subscriber, so there are fewer edges than deliveries. Peeling events without
an open predecessor (Kahn) orders everything if there is no cycle; otherwise the rest is cut into strongly connected
components (Tarjan, iterative). Every cycle and every inverted pair lies inside one component: a *knot*.
"""

from dataclasses import dataclass
from itertools import pairwise


@dataclass(slots=True)
class Union:
    """`order` lists all events, component after component; `knots` are the components with more than one event."""

    order: list[int]
    knots: list[list[int]]


def unite(events_count: int, streams: list[list[int]]) -> Union:
    successors: list[list[int]] = [[] for _ in range(events_count)]
    open_before = [0] * events_count
    for stream in streams:
        for first, second in pairwise(stream):
            successors[first].append(second)
            open_before[second] += 1
    order = [event for event in range(events_count) if open_before[event] == 0]
    for event in order:  # grows while it is walked
        for following in successors[event]:
            open_before[following] -= 1
            if open_before[following] == 0:
                order.append(following)
    if len(order) == events_count:
        return Union(order, [])
    components = _components([event for event in range(events_count) if open_before[event]], successors, events_count)
    rank = _mean_rank(streams, components)
    knots = []
    for component in components:
        if len(component) > 1:
            component.sort(key=lambda event: (rank[event], event))
            knots.append(component)
        order += component
    return Union(order, knots)


def _components(roots: list[int], successors: list[list[int]], events_count: int) -> list[list[int]]:
    """Strongly connected components among what the roots reach, in topological order."""
    found = [0] * events_count  # 0 = not seen, else the moment of discovery
    low = [0] * events_count
    on_stack = bytearray(events_count)
    stack: list[int] = []
    components: list[list[int]] = []
    clock = 0
    for root in roots:
        if found[root]:
            continue
        clock += 1
        found[root] = low[root] = clock
        stack.append(root)
        on_stack[root] = 1
        work = [(root, iter(successors[root]))]
        while work:
            event, following = work[-1]
            for child in following:
                if not found[child]:
                    clock += 1
                    found[child] = low[child] = clock
                    stack.append(child)
                    on_stack[child] = 1
                    work.append((child, iter(successors[child])))
                    break
                if on_stack[child] and found[child] < low[event]:
                    low[event] = found[child]
            else:
                work.pop()
                if work and low[event] < low[work[-1][0]]:
                    low[work[-1][0]] = low[event]
                if low[event] == found[event]:
                    component = []
                    while True:
                        member = stack.pop()
                        on_stack[member] = 0
                        component.append(member)
                        if member == event:
                            break
                    components.append(component)
    components.reverse()
    return components


def _mean_rank(streams: list[list[int]], components: list[list[int]]) -> dict[int, float]:
    """Where knotted events stand on average, as a fraction of a stream: any order is correct, a close one is fast."""
    total = {event: 0.0 for component in components if len(component) > 1 for event in component}
    seen = dict.fromkeys(total, 0)
    for stream in streams:
        for i, event in enumerate(stream):
            if event in total:
                total[event] += i / len(stream)
                seen[event] += 1
    return {event: total[event] / seen[event] for event in total}
