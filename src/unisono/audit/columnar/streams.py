"""Streams in arrays: the order of deliveries, first deliveries, and their neighbours."""

from typing import NamedTuple

import numpy as np

from unisono.audit.columnar.log import ColumnarLog, Flags, Ints
from unisono.audit.columnar.sorting import has_repeats, order_by, order_by_both


class Streams(NamedTuple):
    """First untagged deliveries, stream after stream; the first three run in parallel."""

    subscribers: Ints
    """Whose stream, as a number of `ColumnarLog.subscribers`; streams stand in the order in which `Trace` has them."""
    events: Ints
    rows: Ints
    starts: Ints
    """Where each stream begins; one more at the end."""
    surplus: Ints
    """Rows that deliver an event its subscriber already had."""


def streams_of(log: ColumnarLog) -> Streams:
    rows = log.delivered
    order = _order(_in_trace_order(log)[_at(log.subscribers.codes, rows)], _positions(log, rows))
    rows = rows if order is None else rows[order]
    del order
    subscribers, events = log.subscribers.codes[rows], log.events.codes[rows]
    again = _again(subscribers, events)
    surplus = np.empty(0, np.int64)
    if again is not None:
        surplus, kept = rows[again], ~again
        rows, subscribers, events = rows[kept], subscribers[kept], events[kept]
    borders = np.flatnonzero(subscribers[1:] != subscribers[:-1]) + 1
    starts = np.concatenate([[0], borders, [len(rows)]]) if len(rows) else np.zeros(1, np.int64)
    return Streams(subscribers, events, rows, starts, surplus)


def _positions(log: ColumnarLog, rows: Ints) -> Ints:
    numbers = log.numbers("position")
    return _at(numbers.values, rows) if numbers is not None else np.empty(0, np.int64)


def _at(values: Ints, rows: Ints) -> Ints:
    """`values[rows]` for ascending rows, without a copy where they are all."""
    return values if len(rows) == len(values) else values[rows]


def _in_trace_order(log: ColumnarLog) -> Ints:
    """Subscriber -> which stream it has: they are numbered as they are first notified, tagged or not."""
    codes = log.subscribers.codes
    first = np.full(len(log.subscribers.names), log.size)
    rows = log.told[::-1]
    first[codes[rows]] = rows
    place = np.empty(len(first), np.int64)
    place[np.argsort(first, kind="stable")] = np.arange(len(first))
    return place


def _order(streams: Ints, positions: Ints) -> Ints | None:
    """The order by (stream, position, row), None if the rows stand in it."""
    if len(streams) < 2:
        return None
    rising = (streams[1:] > streams[:-1]) | ((streams[1:] == streams[:-1]) & (positions[1:] >= positions[:-1]))
    if rising.all():
        return None
    dense = _dense(streams, positions)
    return dense if dense is not None else order_by_both(streams, positions)


def _dense(streams: Ints, positions: Ints) -> Ints | None:
    """Where positions count the deliveries of a stream, each row's place is known without a sort."""
    sizes = np.bincount(streams)
    least = np.full(len(sizes), positions.max())
    np.minimum.at(least, streams, positions)
    if positions.min() < -(2**62) or positions.max() > 2**62:
        return None
    place = positions - least[streams]
    if (place >= sizes[streams]).any():
        return None
    starts = np.cumsum(sizes) - sizes
    place += starts[streams]
    order = np.full(len(streams), -1)
    order[place] = np.arange(len(streams))
    return order if (order >= 0).all() else None


def _again(subscribers: Ints, events: Ints) -> Flags | None:
    """Which deliveries are of an event the stream has had before; None if there is none, which a sort tells."""
    if not len(events):
        return None
    keys = subscribers * (int(events.max()) + 1)
    keys += events
    if not has_repeats(keys):
        return None
    order = order_by(keys)
    again = np.zeros(len(keys), bool)
    again[order[1:]] = keys[order[1:]] == keys[order[:-1]]
    return again
