"""Inverted pairs on columns: `unisono.audit.inversions` without a Python step per row.

A *run* is what one stream has of one knot, in the order of the stream. Two events are inverted if one run has them in
one order and another run in the other. Knots whose runs are short are counted by listing their pairs and sorting them.
In the others the partners of an event lie in its *window*, from the least place that follows it to the greatest that
precedes it in any run: places are cut into blocks, and in a block the partners of an event are what some run has before
it and some run after it, as rows of bits.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from unisono.audit.columnar.log import Flags, Ints
from unisono.audit.columnar.sorting import distinct

PAIRS_PER_ROW = 24
"""A knot whose runs have fewer pairs than this for each of their rows is listed: a listed pair costs a sort of 8 bytes,
a row of bits some hundred bytes in each block.
"""
CHUNK_PAIRS = 1 << 22
"""Pairs listed at a time: a bound on memory."""
BLOCK_MIN, BLOCK_MAX = 256, 4096
"""Bits of a row. Narrow where windows are narrow: a row costs its bits, whether or not they are in the window."""
_WORD = 64


class Inverted(NamedTuple):
    """How many pairs of events are inverted, which events are in one, and one of the pairs (empty if there is none)."""

    pairs: int
    events: Flags
    example: Ints


def count_inverted(runs: Ints, knots: Ints, places: Ints, size: int) -> Inverted:
    """Rows in the order of runs: `runs` and `knots` are numbers from 0 that do not fall, `places` those of the events
    in any order, less than `size`, each once a run. A close order is fast.
    """
    found = np.zeros(size, bool)
    if len(runs) < 2:
        return Inverted(0, found, np.empty(0, np.int64))
    lengths = np.bincount(runs)
    pairs_of_run = lengths * (lengths - 1) // 2
    knot_of_run = knots[np.cumsum(lengths) - lengths]
    is_listed = np.bincount(knot_of_run, pairs_of_run) <= PAIRS_PER_ROW * np.bincount(knots)
    listed = _listed(runs, places, lengths, np.where(is_listed[knot_of_run], pairs_of_run, 0), size, found)
    others = ~is_listed[knots]
    if not others.any():
        return listed
    blocked = _blocked(runs[others], places[others], size, found)
    return Inverted(listed.pairs + blocked.pairs, found, listed.example if listed.pairs else blocked.example)


def _listed(runs: Ints, places: Ints, lengths: Ints, pairs: Ints, size: int, found: Flags) -> Inverted:
    """By all pairs of the runs that have some to list. Of each chunk only the different ones are kept."""
    starts = np.cumsum(lengths) - lengths
    wanted = np.flatnonzero(pairs)
    chunks = np.cumsum(pairs[wanted]) // CHUNK_PAIRS
    keys = []
    for chunk in np.split(wanted, np.flatnonzero(chunks[1:] != chunks[:-1]) + 1) if len(wanted) else []:
        first, second = _pairs(starts[chunk], lengths[chunk])
        a, b = places[first], places[second]
        # The pair with the smaller place first, and one bit for the direction in which the run has it.
        keys.append(distinct((np.minimum(a, b) * size + np.maximum(a, b)) * 2 + (a > b)))
    if not keys:
        return Inverted(0, found, np.empty(0, np.int64))
    ordered = distinct(np.concatenate(keys)) if len(keys) > 1 else keys[0]
    both = ordered[1:][(ordered[1:] >> 1) == (ordered[:-1] >> 1)] >> 1
    found[both // size] = found[both % size] = True
    return Inverted(len(both), found, np.array([both[0] // size, both[0] % size]) if len(both) else both)


def _pairs(starts: Ints, lengths: Ints) -> tuple[Ints, Ints]:
    """Rows of every pair within each run, the earlier and the later."""
    rows = np.repeat(starts, lengths) + _counting(lengths)
    after = np.repeat(starts + lengths, lengths) - rows - 1  # how many rows of the run come after each
    first = np.repeat(rows, after)
    return first, first + 1 + _counting(after)


def _counting(lengths: Ints) -> Ints:
    """0, 1, 2 … anew for each length."""
    ends = np.cumsum(lengths)
    return np.arange(int(ends[-1]) if len(ends) else 0) - np.repeat(ends - lengths, lengths)


def _blocked(runs: Ints, places: Ints, size: int, found: Flags) -> Inverted:
    least, greatest = _windows(runs, places, size)
    bent = greatest > least  # all else is in order everywhere
    kept = bent[places]
    runs, places = runs[kept], places[kept]
    if not len(places):
        return Inverted(0, found, np.empty(0, np.int64))
    mean = int((greatest[bent] - least[bent]).mean())
    width = min(max(1 << mean.bit_length(), BLOCK_MIN), BLOCK_MAX)
    twice, example = 0, np.empty(0, np.int64)
    rows, blocks = _touched(least[places] // width, greatest[places] // width)
    borders = np.flatnonzero(blocks[1:] != blocks[:-1]) + 1
    index = np.empty(size, np.int64)
    for mine, block in zip(np.split(rows, borders), blocks[np.concatenate([[0], borders])].tolist()):
        low = block * width
        seen = distinct(places[mine])
        index[seen] = np.arange(len(seen))
        partners = _partners(runs[mine], places[mine], index, len(seen), low, width)
        counts = np.bitwise_count(partners).sum(axis=1, dtype=np.int64)
        twice += int(counts.sum())
        some = np.flatnonzero(counts)
        found[seen[some]] = True
        if len(some) and not len(example):
            bits = np.unpackbits(partners[some[0]].view(np.uint8), bitorder="little")
            at = low + np.flatnonzero(bits)
            example = np.array([seen[some[0]], at[np.argmin(np.abs(at - seen[some[0]]))]])
    return Inverted(twice // 2, found, example)


def _windows(runs: Ints, places: Ints, size: int) -> tuple[Ints, Ints]:
    """Place -> the least that follows it and the greatest that precedes it in any run, at most and at least itself."""
    least, greatest = np.arange(size), np.arange(size)
    base = runs * size  # higher in every further run, lower in every further one from the end: both start anew
    top = np.maximum.accumulate(base + places) - base
    bottom = np.minimum.accumulate((base + places)[::-1])[::-1] - base
    np.maximum.at(greatest, places, top)
    np.minimum.at(least, places, bottom)
    return least, greatest


def _touched(first: Ints, last: Ints) -> tuple[Ints, Ints]:
    """Each row once for every block that its window touches, by block, and within one as the rows stand."""
    spans = last - first + 1
    rows = np.repeat(np.arange(len(first)), spans)
    blocks = np.repeat(first, spans) + _counting(spans)
    order = np.argsort(blocks, kind="stable")
    return rows[order], blocks[order]


def _partners(runs: Ints, places: Ints, index: Ints, count: int, low: int, width: int) -> npt.NDArray[np.uint64]:
    """Per event, a row of bits: which places of the block some run has before it and some run after it."""
    before = np.zeros((count, width // _WORD), np.uint64)
    after = np.zeros_like(before)
    own = places - low
    is_in = (own >= 0) & (own < width)
    word, bit = own // _WORD, np.uint64(1) << (own % _WORD).astype(np.uint64)
    borders = np.concatenate([[0], np.flatnonzero(runs[1:] != runs[:-1]) + 1, [len(runs)]])
    for start, end in zip(borders[:-1].tolist(), borders[1:].tolist()):
        if end - start < 2:
            continue
        bits = np.zeros((end - start, width // _WORD), np.uint64)
        here = np.flatnonzero(is_in[start:end])
        bits[here, word[start:end][here]] = bit[start:end][here]
        at = index[places[start:end]]
        passed = np.bitwise_or.accumulate(bits, axis=0)
        before[at[1:]] |= passed[:-1]
        coming = np.bitwise_or.accumulate(bits[::-1], axis=0)[::-1]
        after[at[:-1]] |= coming[1:]
    return before & after
