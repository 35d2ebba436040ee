"""Causes on columns: by clocks one sort over deliveries and clock entries, by lists of causes one more graph."""

# pyarrow.compute makes its functions when it is imported, where pyright cannot see them.
# pyright: reportAttributeAccessIssue=false

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from unisono.audit.columnar.log import NONE, Authors, ColumnarLog, Ints
from unisono.audit.columnar.order import components, edges_of, knotted
from unisono.audit.columnar.sorting import distinct, order_by, order_by_both, ranks
from unisono.audit.columnar.streams import Streams
from unisono.model.journal import Record

BLOCK_ENTRIES = 1 << 22
"""Streams are taken together until their deliveries have so many clock entries: a bound on memory."""


def by_clock(log: ColumnarLog, streams: Streams, authors: Authors, tellers: Ints) -> tuple[int, list[Record]]:
    """How many notifications came before one of their causes, and records that show one. `tellers`: event -> the row of
    its clock.

    Event m with clock {x: n} came too early if an event of publisher x with a number up to n was notified later in the
    same stream. So entries and events of one (stream, x) meet in one sort, read from the end.
    """
    starts, sizes, publishers, needs = _entries(log, tellers)
    entries = sizes[streams.events]
    per_stream = np.add.reduceat(entries, streams.starts[:-1]) if len(entries) else np.empty(0, np.int64)
    count = 0
    shown: list[Record] = []
    first = 0
    while first < len(per_stream):
        reach = np.cumsum(per_stream[first:])
        last = first + max(1, int(np.searchsorted(reach, BLOCK_ENTRIES)))
        low, high = int(streams.starts[first]), int(streams.starts[last])
        block = slice(low, high)
        events = streams.events[block]
        asked = np.repeat(np.arange(high - low), entries[block])
        offsets = np.arange(len(asked)) - np.repeat(np.cumsum(entries[block]) - entries[block], entries[block])
        at = starts[events[asked]] + offsets
        early = _early(streams.subscribers[block], asked, publishers[at], needs[at], authors, events)
        count += len(distinct(asked[early]))
        if len(early) and not shown:
            i = asked[early[0]]
            mine = (streams.subscribers[block] == streams.subscribers[low + i]) & (np.arange(high - low) > i)
            mine &= (authors.publishers[events] == publishers[at[early[0]]]) & (
                authors.seqs[events] <= needs[at[early[0]]]
            )
            rows = streams.rows[low + np.array([i, np.flatnonzero(mine)[0]])]
            clock = dict(log.columns["clock"][int(tellers[events[i]])].as_py())
            effect, cause = log.known_records(rows)
            shown = [replace(effect, clock=clock), replace(cause, clock=None)]
            if rows[0] > rows[1]:  # equal positions stand in the order of rows
                shown.reverse()
        first = last
    return count, shown


def _entries(log: ColumnarLog, tellers: Ints) -> tuple[Ints, Ints, Ints, Ints]:
    """Event -> where its clock's entries start and how many it has; the entries' publishers and numbers."""
    known = np.flatnonzero(tellers != NONE)
    clocks = log.columns["clock"].take(pa.array(tellers[known])).combine_chunks()
    offsets: Ints = np.asarray(clocks.offsets, np.int64)
    lengths: Ints = offsets[1:] - offsets[:-1]
    publishers = log.names("publisher")
    assert publishers is not None
    codes = pc.index_in(clocks.keys, publishers.names)
    keys = np.asarray(codes.fill_null(NONE), np.int64)
    numbers = np.asarray(clocks.items, np.int64)
    owners = np.repeat(known, lengths)
    # Of an entry that stands twice the last counts; nobody hears of a publisher whose events nobody has.
    pairs = owners * (len(publishers.names) + 1) + keys + 1
    order = order_by(pairs)
    last = np.concatenate([pairs[order][1:] != pairs[order][:-1], np.ones(min(1, len(order)), bool)])
    kept = np.sort(order[last & (keys[order] != NONE)])
    sizes = np.bincount(owners[kept], minlength=len(tellers)).astype(np.int64)
    return np.cumsum(sizes) - sizes, sizes, keys[kept], numbers[kept]


def _early(subscribers: Ints, asked: Ints, publishers: Ints, needs: Ints, authors: Authors, events: Ints) -> Ints:
    """Which needs are not met: an event of the publisher, up to the number, comes later in the stream."""
    size = len(events)
    gives = np.flatnonzero(authors.publishers[events] != NONE)
    lines = np.concatenate(
        [
            subscribers[asked] * authors.publishers_count + publishers,
            subscribers[gives] * authors.publishers_count + authors.publishers[events[gives]],
        ]
    )
    rank = ranks(np.concatenate([needs, authors.seqs[events[gives]]]))
    places = np.concatenate([asked, gives])
    is_give = np.arange(len(places)) >= len(asked)
    # From the end of the stream; an event is not later than itself, so its needs come first.
    order = order_by_both(lines, (size - 1 - places) * 2 + is_give)
    rank, is_give, lines = rank[order], is_give[order], lines[order]
    line = np.concatenate([np.zeros(min(1, len(order)), np.int64), np.cumsum(lines[1:] != lines[:-1])])
    above = int(rank.max(initial=0)) + 2
    floor = (int(line.max(initial=0)) - line) * above  # lower in every further line: the minimum starts anew
    least = np.minimum.accumulate(floor + np.where(is_give, rank, above - 1)) - floor
    met = is_give | (least > rank)
    return np.sort(order[~met])


def by_causes(log: ColumnarLog, streams: Streams, tellers: Ints) -> list[Record]:
    """The records among which the reference finds all late causes, empty if there are none. `tellers`: event -> the row
    of its list.

    A late cause closes a circle of delivery order and causality: only what lies in their knots is looked at.
    """
    known = np.flatnonzero(tellers != NONE)
    lists = log.columns["depends_on"].take(pa.array(tellers[known])).combine_chunks()
    effects = np.repeat(known, np.asarray(pc.list_value_length(lists), np.int64))
    causes = np.asarray(pc.index_in(lists.flatten(), log.events.names).fill_null(NONE), np.int64)
    use = (causes != NONE) & (causes != effects)
    size = len(log.events.names)
    along = edges_of(size, streams.subscribers, streams.events)
    labels = components(size, np.concatenate([along, causes[use] * size + effects[use]]))
    inside = knotted(labels)
    if not inside.any():
        return []
    others = np.flatnonzero(log.is_kind("tag", "publish"))
    rows = np.sort(np.concatenate([streams.rows, others]))
    rows = rows[inside[log.events.codes[rows]]]
    found = log.records(rows)
    by_event = {int(event): tuple(told) for event, told in zip(known, lists.to_pylist())}
    return [
        replace(record, depends_on=by_event.get(int(event), ())) for record, event in zip(found, log.events.codes[rows])
    ]
