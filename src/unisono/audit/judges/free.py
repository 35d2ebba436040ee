"""`free`: an order that somebody saw must be forced on everybody, not met by luck (specs: ordering.md, section 12).

For the sequencer. A subscriber's broker may delay any event for any time, so two subscribers agree on a pair for
certain only if timestamps, numbers and gates leave the other one no choice. Sharper than comparing deliveries: it finds
a missing entry even in runs where every event happened to arrive in order.

Read from the journal: `timestamp` records (topic, number, event; `clock` = the complete entries of the timestamp,
topic -> number; several records of one number are merged) and `subscribe` records (topic; number = base; `clock` = the
gate; `published_us` as for `complete`). Judged is every subscriber that never unsubscribed, against every pair of
events owed to it that another subscriber was notified of, tags aside.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from unisono.audit.trace import Trace
from unisono.audit.verdict import Verdict, failed, nothing, passed

JUDGE = "free"
Item = tuple[str, int]
"""A topic and a number: an event, or a void, which has its turn like an event."""


@dataclass(slots=True)
class _Subscriber:
    """What the delivery rule lets one subscriber do: its bases and gates, and what is forced before each item."""

    bases: dict[str, int] = field(default_factory=dict)
    gates: dict[str, dict[str, int]] = field(default_factory=dict)
    starts_us: dict[str, int | None] = field(default_factory=dict)
    """Topic -> what was published before is not owed: the subscriber could not hear it yet."""
    numbers: dict[str, list[int]] = field(default_factory=dict)
    """Topic -> the numbers above the base that have a timestamp, ascending."""
    past: dict[str, list[dict[str, int]]] = field(default_factory=dict)
    """Topic -> in parallel: topic -> the highest number that must be processed before."""

    def is_owed(self, item: Item, published_us: int | None) -> bool:
        topic, number = item
        if number <= self.bases.get(topic, number):
            return False
        start = self.starts_us[topic]
        return published_us is None or start is None or published_us >= start

    def next_number(self, topic: str) -> int | None:
        """The first whose past is not worked out yet."""
        done, numbers = len(self.past[topic]), self.numbers[topic]
        return numbers[done] if done < len(numbers) else None

    def forces(self, first: Item, second: Item) -> bool:
        if first[0] == second[0]:
            return first[1] < second[1]
        before = self.past[second[0]][bisect_left(self.numbers[second[0]], second[1])]
        return before.get(first[0], 0) >= first[1]


def judge_free(trace: Trace) -> Verdict | None:
    """Violations: neighbours in somebody's stream that nothing forces on somebody else; circles of waiting."""
    entries: dict[Item, dict[str, int]] = {}
    item_of: dict[str, Item] = {}
    subscribers: dict[str, _Subscriber] = {}
    left: dict[str, None] = {}
    for record in trace.records:
        if record.kind == "timestamp" and record.clock is not None:
            assert record.topic is not None
            assert record.number is not None
            assert record.event is not None
            item = (record.topic, record.number)
            item_of[record.event] = item
            merged = entries.setdefault(item, {})
            for topic, number in record.clock.items():
                merged[topic] = max(merged.get(topic, 0), number)
        elif record.kind == "subscribe" and record.subscriber is not None and record.topic is not None:
            subscriber = subscribers.setdefault(record.subscriber, _Subscriber())
            subscriber.bases.setdefault(record.topic, record.number or 0)
            subscriber.starts_us.setdefault(record.topic, record.published_us)
            subscriber.gates.setdefault(record.topic, record.clock or {})
        elif record.kind == "unsubscribe" and record.subscriber is not None:
            left[record.subscriber] = None
    if not entries or not subscribers:
        return None
    streams = [
        (stream.subscriber, [item_of[name] for event in stream.events if (name := trace.events[event]) in item_of])
        for stream in trace.streams
    ]
    names = {item: event for event, item in item_of.items()}
    violations = 0
    witness = ""
    for name, subscriber in subscribers.items():
        if name in left:
            continue
        circle = _work_out(subscriber, entries)
        if circle is not None:
            violations += 1
            witness = witness or f"{name} waits in a circle: {circle}"
            continue
        for other, items in streams:
            if other == name:
                continue
            owed = [item for item in items if subscriber.is_owed(item, trace.published_us.get(names[item]))]
            for first, second in pairwise(owed):  # forced pairs are transitive: neighbours are enough
                if not subscriber.forces(first, second):
                    violations += 1
                    witness = witness or _explain(name, other, first, second, subscriber, entries, names)
    if not violations and not trace.deliveries:
        return nothing(JUDGE, "nobody was notified of anything")
    return failed(JUDGE, violations, witness) if violations else passed(JUDGE)


def _work_out(subscriber: _Subscriber, entries: Mapping[Item, Mapping[str, int]]) -> str | None:
    """Fills `past` for every item; says how the subscriber waits for itself, if it does."""
    subscriber.numbers = {topic: [] for topic in subscriber.bases}
    subscriber.past = {topic: [] for topic in subscriber.bases}
    for topic, number in sorted(entries):
        if topic in subscriber.bases and number > subscriber.bases[topic]:
            subscriber.numbers[topic].append(number)
    for topic, numbers in subscriber.numbers.items():
        waiting = [(topic, numbers[-1])] if numbers else []
        while waiting:
            current, upto = waiting[-1]
            following = subscriber.next_number(current)
            if following is None or following > upto:
                waiting.pop()
                continue
            needs = _needs(subscriber, (current, following), entries)
            blocked = next((item for item in needs.items() if _is_behind(subscriber, item)), None)
            if blocked is None:
                subscriber.past[current].append(_past(subscriber, (current, following), needs))
            elif any(blocked[0] == under for under, _ in waiting):
                chain = [f"{under} {subscriber.next_number(under)}" for under, _ in waiting]
                return " waits for ".join([*chain, f"{blocked[0]} {blocked[1]}"])
            else:
                waiting.append(blocked)
    return None


def _is_behind(subscriber: _Subscriber, need: Item) -> bool:
    following = subscriber.next_number(need[0])
    return following is not None and following <= need[1]


def _needs(subscriber: _Subscriber, item: Item, entries: Mapping[Item, Mapping[str, int]]) -> dict[str, int]:
    """Rules 2 and 4 of delivery (specs: ordering.md, section 5): entries and gate, of own topics, above the base."""
    topic = item[0]
    needs: dict[str, int] = {}
    wanted = [entries[item]]
    if not subscriber.past[topic]:  # the topic's later numbers come after this one anyway
        wanted.append(subscriber.gates[topic])
    for asked in wanted:
        for other, least in asked.items():
            if other != topic and least > subscriber.bases.get(other, least):
                needs[other] = max(needs.get(other, 0), least)
    return needs


def _past(subscriber: _Subscriber, item: Item, needs: Mapping[str, int]) -> dict[str, int]:
    topic = item[0]
    own = subscriber.past[topic]
    past = dict(own[-1]) if own else {}
    if own:
        past[topic] = subscriber.numbers[topic][len(own) - 1]
    for other, least in needs.items():
        if past.get(other, 0) >= least:
            continue  # and so is everything before it
        known = bisect_right(subscriber.numbers[other], least)
        if known:
            for further, count in subscriber.past[other][known - 1].items():
                past[further] = max(past.get(further, 0), count)
        past[other] = least
    return past


def _explain(
    name: str,
    other: str,
    first: Item,
    second: Item,
    subscriber: _Subscriber,
    entries: Mapping[Item, Mapping[str, int]],
    names: Mapping[Item, str],
) -> str:
    return (
        f"{other} was notified of {names[first]} ({first[0]} {first[1]}) before {names[second]} "
        f"({second[0]} {second[1]}), but nothing forces {name} to: the timestamp of {names[second]} is "
        f"{_spell(entries[second])}, the gate of {second[0]} at {name} is {_spell(subscriber.gates[second[0]])}, its "
        f"bases are {_spell(subscriber.bases)}, and no chain of timestamps leads from one to the other"
    )


def _spell(numbers: Mapping[str, int]) -> str:
    return "{" + ", ".join(f"{topic}: {number}" for topic, number in numbers.items()) + "}"
