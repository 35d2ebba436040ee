"""Pairs of topics that enough subscribers share, for many rows: sorts and shifted comparisons in numpy.

Rows sorted by subscriber hold the topics of one side by side. Shifted by k, every row meets the one k places further;
where the subscriber is the same, the two topics are a pair. So as many passes as the widest interest has topics count
all pairs without a step of Python per pair, and memory stays bounded: what has been counted is summed in between.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

PENDING_MAX = 16_000_000
"""Pairs that wait to be summed; each takes 8 bytes, and as much again while they are sorted."""


class SubscriptionRows(NamedTuple):
    """Subscriptions as numbers, each once, sorted by subscriber; topics are numbered in the order of their names."""

    subscribers: int
    topics: list[str]
    subscriber: "NDArray[np.int64]"
    topic: "NDArray[np.int64]"


def number_rows(rows: Iterable[tuple[str, str]]) -> SubscriptionRows:
    """`(subscriber, topic)` rows as numbers; a row that comes twice counts once."""
    from array import array

    import numpy as np

    who: dict[str, int] = {}
    what: dict[str, int] = {}
    subscriber, topic = array("q"), array("q")
    for one, other in rows:
        subscriber.append(who.setdefault(one, len(who)))
        topic.append(what.setdefault(other, len(what)))
    names = sorted(what)
    place = np.empty(len(names), np.int64)
    place[[what[name] for name in names]] = np.arange(len(names))
    width = max(1, len(names))
    keys = np.unique(np.frombuffer(subscriber, np.int64) * width + place[np.frombuffer(topic, np.int64)])
    return SubscriptionRows(len(who), names, keys // width, keys % width)


def shared_pairs(rows: SubscriptionRows, shared_min: int) -> list[tuple[str, str]]:
    """The pairs of topics that at least `shared_min` subscribers have, the smaller name first."""
    import numpy as np

    width = max(1, len(rows.topics))
    keys, counts = np.empty(0, np.int64), np.empty(0, np.int64)
    pending: list[NDArray[np.int64]] = []
    waiting = 0

    def settle() -> None:
        nonlocal keys, counts, waiting
        new, times = np.unique(np.concatenate(pending), return_counts=True)
        both = np.concatenate((keys, new))
        keys, inverse = np.unique(both, return_inverse=True)
        # Enough is enough: capped, so that the sums stay exact as floats however many subscribers there are.
        counts = np.bincount(inverse, np.minimum(np.concatenate((counts, times)), shared_min)).astype(np.int64)
        pending.clear()
        waiting = 0

    shift = 1
    while shift < len(rows.topic):
        same = rows.subscriber[shift:] == rows.subscriber[:-shift]
        if not same.any():
            break
        pending.append(rows.topic[:-shift][same] * width + rows.topic[shift:][same])
        waiting += len(pending[-1])
        if waiting >= PENDING_MAX:
            settle()
        shift += 1
    if pending:
        settle()
    chosen = keys[counts >= shared_min]
    names = rows.topics
    return [(names[a], names[b]) for a, b in zip((chosen // width).tolist(), (chosen % width).tolist(), strict=True)]
