"""Knots of the union of all streams, by scipy's strong components, and what the order judges and metrics need of them.

An edge joins neighbours in a stream. Every cycle and every inverted pair lies inside one component of more than one
event, a *knot*, so all further work is on the rows of those alone.
"""

from functools import cached_property
from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from unisono.audit.columnar.inversions import Inverted, count_inverted
from unisono.audit.columnar.log import Flags, Ints
from unisono.audit.columnar.sorting import distinct, order_by_both


def components(size: int, edges: Ints) -> Ints:
    """Event -> its strong component in the graph of these `edges`, each `first * size + second`."""
    edges = distinct(edges)  # scipy 1.17 does not come back from repeated entries
    starts = np.searchsorted(edges, np.arange(size + 1) * size)
    edges %= size
    graph = csr_array((np.ones(len(edges), np.int8), edges, starts), shape=(size, size))
    return np.asarray(connected_components(graph, directed=True, connection="strong")[1], np.int64)


def knotted(labels: Ints) -> Flags:
    """Event -> whether its component has others."""
    return np.asarray(np.bincount(labels)[labels] > 1)


def neighbours(streams: Ints, events: Ints) -> tuple[Ints, Ints]:
    """Events that stand next to each other in a stream, the earlier and the later; rows stand as streams do."""
    same = streams[1:] == streams[:-1]
    return events[:-1][same], events[1:][same]


def edges_of(size: int, streams: Ints, events: Ints) -> Ints:
    """From every event to its neighbour in a stream."""
    edges = events[:-1] * size
    edges += events[1:]
    within: Ints = edges[streams[1:] == streams[:-1]]
    return within


class DeliveryRows(NamedTuple):
    """Deliveries by stream and place."""

    streams: Ints
    """Numbers that do not fall."""
    events: Ints
    places: Ints
    """Where in its stream, from 0."""
    lengths: Ints
    """Of the stream."""
    at: Ints
    """What the rows are called by those who gave them."""


class Knots:
    """The rows that lie in knots, each event with all its rows, and what is counted in them."""

    def __init__(self, rows: DeliveryRows, labels: Ints) -> None:
        """`labels`: event -> its strong component."""
        self.rows = rows
        self._labels = labels[rows.events]
        self.count = len(distinct(self._labels))

    @cached_property
    def _mean(self) -> Ints:
        """Row -> where its event stands on average, as a rank among all events of knots, knot after knot.

        Equal means stand as the streams first have the events, as `Trace` numbers them.
        """
        events = self.rows.events
        share = self.rows.places / self.rows.lengths
        seen, first, inverse = np.unique(events, return_index=True, return_inverse=True)
        mean = np.bincount(inverse, share) / np.bincount(inverse)
        order = np.lexsort((first, mean, self._labels[first]))
        rank = np.empty(len(seen), np.int64)
        rank[order] = np.arange(len(seen))
        return rank[inverse]

    @cached_property
    def inverted(self) -> Inverted:
        """Pairs of events that two streams have in opposite order; events are named by their place in `_mean`."""
        return self._counted(self._labels, self.rows.streams, self._mean)

    @cached_property
    def local(self) -> Inverted:
        """The same among events that have the same subscribers."""
        classes = _same_receivers(self.rows.streams, self._mean)
        groups = classes[self._mean]
        shared = np.flatnonzero(np.bincount(classes)[groups] > 1)
        return self._counted(groups[shared], self.rows.streams[shared], self._mean[shared])

    def _counted(self, knots: Ints, streams: Ints, events: Ints) -> Inverted:
        order = order_by_both(_numbered(knots), streams)  # within a run rows stay as they stand
        knots, streams, events = knots[order], streams[order], events[order]
        fresh = (knots[1:] != knots[:-1]) | (streams[1:] != streams[:-1])
        runs = np.concatenate([np.zeros(min(1, len(order)), np.int64), np.cumsum(fresh)])
        return count_inverted(runs, _numbered(knots), events, int(self._mean.max()) + 1)

    def showing(self, pair: Ints) -> Ints:
        """Four rows that show that two streams have the pair in opposite order."""
        first, second = (np.flatnonzero(self._mean == event) for event in pair.tolist())
        _, a, b = np.intersect1d(self.rows.streams[first], self.rows.streams[second], return_indices=True)
        a, b = first[a], second[b]
        forward, backward = np.flatnonzero(a < b)[0], np.flatnonzero(a > b)[0]
        return np.array([a[forward], b[forward], a[backward], b[backward]])

    def smallest(self) -> Ints:
        """The rows of the knot with the fewest events."""
        first = np.zeros(len(self._mean), bool)
        first[np.unique(self._mean, return_index=True)[1]] = True
        sizes = np.bincount(self._labels[first])
        sizes[sizes == 0] = len(self._mean) + 1
        return np.flatnonzero(self._labels == np.argmin(sizes))

    def showing_cycle(self, rows_max: int) -> Ints:
        """Those of the smallest knot; if it has more rows than that, of a cycle of two subscribers, if there is one."""
        shown = self.smallest()
        return self.showing(self.inverted.example) if len(shown) > rows_max and self.inverted.pairs else shown

    def moved(self) -> tuple[Ints, Ints, Ints]:
        """Streams that have events elsewhere than the means would put them, how far in all, and their lengths.

        A stream has the events of a knot in one piece: only within it do places differ.
        """
        streams, places = self.rows.streams, self.rows.places
        knots = self._labels
        order = np.lexsort((self._mean, knots, streams))
        pieces = np.lexsort((places, knots, streams))
        right = np.empty(len(places), np.int64)
        right[order] = places[pieces]
        starts = np.flatnonzero(np.concatenate([[True], streams[1:] != streams[:-1]]))
        far = np.add.reduceat(np.abs(right - places), starts)
        some = far > 0
        return streams[starts][some], far[some], self.rows.lengths[starts][some]


def tangled(size: int, streams: Ints, events: Ints) -> tuple[Ints, Ints]:
    """Which rows lie in knots, and event -> its strong component. Events are less than `size`."""
    if len(events) < 2:
        return np.empty(0, np.int64), np.arange(size)
    labels = components(size, edges_of(size, streams, events))
    return np.flatnonzero(knotted(labels)[events]), labels


def _numbered(values: Ints) -> Ints:
    """Numbers from 0 on, one for each different value, in their order."""
    return np.unique(values, return_inverse=True)[1].astype(np.int64)


def _same_receivers(streams: Ints, events: Ints) -> Ints:
    """Event -> a number that it shares with exactly the events of the same streams. Each stream parts the classes of
    its events from the rest of those classes.
    """
    classes = np.zeros(int(events.max()) + 1, np.int64)
    count = 1
    borders = np.flatnonzero(streams[1:] != streams[:-1]) + 1
    for own in np.split(events, borders):
        old, inverse = np.unique(classes[own], return_inverse=True)
        classes[own] = count + inverse
        count += len(old)
    return _numbered(classes)
