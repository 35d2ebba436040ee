"""Numbered lines on columns: a topic's numbers, or a publisher's on a topic, and what is missing from them."""

from bisect import bisect_left, bisect_right
from typing import NamedTuple

import numpy as np
import pyarrow.compute as pc
from msgspec.structs import replace

from unisono.audit.columnar.log import NONE, ColumnarLog, Ints
from unisono.audit.columnar.sorting import distinct, order_by, order_by_both, ranks
from unisono.audit.judges.kept import NUMBERED
from unisono.model.journal import Record


class Lines(NamedTuple):
    """Event -> its line (`NONE`: in none) and its number there."""

    lines: Ints
    numbers: Ints
    publishers_count: int


def lines_of(log: ColumnarLog) -> Lines | None:
    """As `complete` reads a plain file: the topic's own number, else the publisher's; None if no event has one."""
    if log.topics is None:
        return None
    topic = log.topics.codes
    publisher = np.full(len(topic), NONE)
    numbers = np.zeros(len(topic), np.int64)
    count = 0
    if log.authors is not None:
        count = log.authors.publishers_count
        names = log.names("publisher")
        assert names is not None
        unnamed = pc.index(names.names, "").as_py()  # the line of a topic is that of the publisher without a name
        known = log.authors.publishers != NONE
        publisher[known] = log.authors.publishers[known]
        publisher[known & (publisher == unnamed)] = count
        numbers = np.where(known, log.authors.seqs, 0)
    own = log.numbers("number")
    if own is not None:
        tellers = log.last_telling(own.known)
        numbers = np.where(tellers != NONE, own.values[tellers], numbers)
        publisher[tellers != NONE] = count
    lines = np.where((topic != NONE) & (publisher != NONE), topic * (count + 1) + publisher, NONE)
    return Lines(lines, numbers, count) if (lines != NONE).any() else None


def missing(log: ColumnarLog) -> tuple[int, list[Record]] | None:
    """How many numbers somebody lacks that others had between its first and last, and records that show one.

    The numbers of a line are ranked once: a subscriber lacks what lies between neighbours among its own ranks.
    """
    found = lines_of(log)
    if found is None:
        return None
    events = log.events.codes[log.told]
    is_told = np.zeros(len(found.lines), bool)
    is_told[events] = True
    ranked = np.flatnonzero(is_told & (found.lines != NONE))
    if not len(ranked):
        return None
    order = ranked[order_by_both(found.lines[ranked], found.numbers[ranked])]
    line, number = found.lines[order], found.numbers[order]
    fresh = np.concatenate([[True], (line[1:] != line[:-1]) | (number[1:] != number[:-1])])
    rank = np.full(len(found.lines), NONE)
    rank[order] = np.cumsum(fresh) - 1
    line, number = line[fresh], number[fresh]  # by rank
    rows = log.told[rank[events] != NONE]
    own = distinct(log.subscribers.codes[rows] * len(line) + rank[log.events.codes[rows]])
    subscribers, ranks = own // len(line), own % len(line)
    hole = (subscribers[1:] == subscribers[:-1]) & (line[ranks[1:]] == line[ranks[:-1]]) & (ranks[1:] - ranks[:-1] > 1)
    at = np.flatnonzero(hole)
    holes = np.stack([subscribers[at], ranks[at], ranks[at + 1]], axis=1)
    count, example = _uncovered(log, found, holes, line, number)
    if example is None:
        return count, []
    subscriber, before, lacking, after = example
    return count, _shown(log, found, rank, subscriber, before, lacking, after)


def _uncovered(
    log: ColumnarLog, found: Lines, holes: Ints, line: Ints, number: Ints
) -> tuple[int, tuple[int, int, int, int] | None]:
    """How many ranks in the holes no gap notice covers; one of them: subscriber, rank before, itself, rank after."""
    gaps = _gaps(log, found) if "gap" in log.kinds else {}
    sizes = holes[:, 2] - holes[:, 1] - 1
    if not gaps:
        if not len(holes):
            return 0, None
        subscriber, before, after = (int(x) for x in holes[0])
        return int(sizes.sum()), (subscriber, before, before + 1, after)
    count, example = 0, None
    for subscriber, before, after in holes.tolist():
        numbers = number[before + 1 : after].tolist()
        covered = np.zeros(len(numbers), bool)
        for first, last in gaps.get((subscriber, int(line[before])), ()):
            covered[bisect_left(numbers, first) : bisect_right(numbers, last)] = True
        open_ = np.flatnonzero(~covered)
        count += len(open_)
        if len(open_) and example is None:
            example = (subscriber, before, before + 1 + int(open_[0]), after)
    return count, example


def _gaps(log: ColumnarLog, found: Lines) -> dict[tuple[int, int], list[tuple[int, int]]]:
    """(subscriber, line) -> the ranges that gap notices tell."""
    rows = np.flatnonzero(log.is_kind("gap"))
    topics, publishers = log.names("topic"), log.names("publisher")
    assert topics is not None
    gaps: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for row, record in zip(rows.tolist(), log.records(rows)):
        place = None
        if record.topic is not None:
            topic = int(topics.codes[row])
            if record.number is not None:
                place = (topic * (found.publishers_count + 1) + found.publishers_count, record.number)
            elif record.publisher is not None and record.publisher_seq is not None:
                assert publishers is not None
                code = int(publishers.codes[row]) if record.publisher else found.publishers_count
                place = (topic * (found.publishers_count + 1) + code, record.publisher_seq)
        if place is None and record.event is not None:
            event = int(log.events.codes[row])
            if found.lines[event] != NONE:
                place = (int(found.lines[event]), int(found.numbers[event]))
        if place is not None:
            last = record.last_number if record.last_number is not None else place[1]
            gaps.setdefault((int(log.subscribers.codes[row]), place[0]), []).append((place[1], last))
    return gaps


def _shown(
    log: ColumnarLog, found: Lines, rank: Ints, subscriber: int, before: int, lacking: int, after: int
) -> list[Record]:
    """Three notifications: of the number, to somebody else, and of its neighbours to the subscriber that lacks it."""
    ranks = rank[log.events.codes[log.told]]
    mine = log.subscribers.codes[log.told] == subscriber
    rows = log.told[
        [
            np.flatnonzero(mine & (ranks == before))[0],
            np.flatnonzero(ranks == lacking)[0],
            np.flatnonzero(mine & (ranks == after))[0],
        ]
    ]
    events = log.events.codes[rows]
    is_numbered = found.lines[events] % (found.publishers_count + 1) == found.publishers_count
    return [
        replace(record, number=int(number) if numbered else None, publisher=None if numbered else record.publisher)
        for record, number, numbered in zip(log.known_records(rows), found.numbers[events], is_numbered)
    ]


def ambiguous(log: ColumnarLog) -> tuple[int, list[Record]] | None:
    """How many names numbers of topics have beyond one, and events beyond one number; records that show one.

    As `kept` reads a journal without outcomes and voids; None if no row tells a number.
    """
    numbers, topics = log.numbers("number"), log.names("topic")
    rows = np.flatnonzero(log.is_kind(*NUMBERED))
    if numbers is None or not numbers.known[rows].any():
        return None
    if topics is None:
        return 0, []
    rows = rows[numbers.known[rows] & (topics.codes[rows] != NONE)]
    rows = _once(rows, len(log.events.names), log.events.codes, topics.codes, numbers.values)
    topic, event = topics.codes[rows], log.events.codes[rows]
    number = ranks(numbers.values[rows])
    count, shown = 0, np.empty(0, np.int64)
    for key, name in ((number, event), (event, number)):
        order = order_by(name)
        order = order[order_by_both(topic[order], key[order])]
        same = (topic[order][1:] == topic[order][:-1]) & (key[order][1:] == key[order][:-1])
        more = np.flatnonzero(same & (name[order][1:] != name[order][:-1]))
        count += len(more)
        if len(more) and not len(shown):
            shown = np.sort(rows[order[[more[0], more[0] + 1]]])
    return count, log.records(shown) if count else []


def _once(rows: Ints, size: int, events: Ints, topics: Ints, numbers: Ints) -> Ints:
    """These rows without those that say of their event what the first one says. There are few others."""
    first = np.zeros(size, np.int64)
    first[events[rows[::-1]]] = rows[::-1]  # of several rows of an event the last is written last
    told = first[events[rows]]
    says_more = (told == rows) | (topics[rows] != topics[told]) | (numbers[rows] != numbers[told])
    kept: Ints = rows[says_more]
    return kept
