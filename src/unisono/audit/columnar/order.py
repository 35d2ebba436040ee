"""Knots of the union of all streams, by scipy's strong components, and what the order judges and metrics need of them.

An edge joins neighbours in a stream. Every cycle and every inverted pair lies inside one component of more than one
event, so the reference judges get the rows of those alone: what they count there is what they would count in all.
"""

from functools import cached_property

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from unisono.audit.columnar.log import Flags, Ints, Log
from unisono.audit.columnar.sorting import distinct
from unisono.audit.columnar.streams import Streams
from unisono.audit.trace import Trace
from unisono.model.journal import Header, Journal


def components(size: int, first: Ints, second: Ints) -> Ints:
    """Event -> its strong component in the graph of these edges."""
    edges = distinct(first * size + second)  # scipy 1.17 does not come back from repeated entries
    tails = edges // size
    heads = edges - tails * size
    starts = np.searchsorted(tails, np.arange(size + 1))
    graph = csr_array((np.ones(len(heads), np.int8), heads, starts), shape=(size, size))
    return np.asarray(connected_components(graph, directed=True, connection="strong")[1], np.int64)


def knotted(labels: Ints) -> Flags:
    """Event -> whether its component has others."""
    return np.asarray(np.bincount(labels)[labels] > 1)


def neighbours(streams: Streams) -> tuple[Ints, Ints]:
    """Events that stand next to each other in a stream: the earlier, the later."""
    same = streams.subscribers[1:] == streams.subscribers[:-1]
    return streams.events[:-1][same], streams.events[1:][same]


class Disorder:
    """What of the streams lies in knots."""

    def __init__(self, log: Log, streams: Streams) -> None:
        self._log = log
        self._streams = streams
        size = len(log.events.names)
        self._labels = components(size, *neighbours(streams)) if len(streams.events) > 1 else np.arange(size)
        self._inside = knotted(self._labels)[streams.events] if size else np.zeros(0, bool)

    @cached_property
    def trace(self) -> Trace | None:
        """The deliveries that lie in knots, None if there are none."""
        if not self._inside.any():
            return None
        rows = np.sort(self._streams.rows[self._inside])
        return Trace(Journal(Header(), self._log.records(rows)))

    def ordering_degree(self) -> float:
        """As `metrics.ordering_degree`. A stream has the events of a knot in one piece: only there do places differ."""
        sizes = np.diff(self._streams.starts)
        if not len(sizes) or not self._inside.any():
            return 1.0
        at = np.flatnonzero(self._inside)
        stream = np.searchsorted(self._streams.starts, at, side="right") - 1
        place = at - self._streams.starts[stream]
        events = self._streams.events[at]
        share = place / sizes[stream]
        count = len(self._labels)
        rank = np.bincount(events, share, count) / np.maximum(np.bincount(events, minlength=count), 1)
        number = np.empty(count, np.int64)  # as `Trace` numbers events: as the streams first have them
        number[self._streams.events[::-1]] = np.arange(len(self._streams.events))[::-1]
        order = np.lexsort((number[events], rank[events], self._labels[events], stream))
        # Within each (stream, knot), a piece of neighbours, the sorted rows stand where the piece does.
        pieces = np.lexsort((place, self._labels[events], stream))
        right = np.empty(len(at), np.int64)
        right[order] = place[pieces]
        moved = np.bincount(stream, np.abs(right - place), len(sizes))
        degrees = [(size * size - int(far)) / size**2 if far else 1.0 for size, far in zip(sizes.tolist(), moved)]
        return sum(degrees) / len(degrees)
