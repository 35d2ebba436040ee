"""Exact count of inverted pairs: two events that one stream has in one order and another stream in the other.

Not by comparing pairs of subscribers. With a reference order g (any linear order is correct, a close one is fast) an
inverted pair is out of g's order in exactly one of the two streams, so a partner of event m lies in m's *window*: from
the least g that follows m to the greatest g that precedes m in any stream. The range of g is cut into blocks; in a
block, the partners of m are `after[m] & before[m]`, unions over the streams as bit sets. Cost: deliveries times the
blocks their windows touch, i.e. linear for local disorder.
"""

from collections.abc import Sequence
from dataclasses import dataclass

BLOCK_EVENTS = 4096
"""Bits per set; wider sets mean fewer passes and longer words (512 bytes here)."""


@dataclass(slots=True)
class Inversions:
    """`pairs` distinct inverted pairs; the events that lie in one (ascending g); one pair that is closest in g."""

    pairs: int
    events: list[int]
    example: tuple[int, int] | None


def count_inversions(reference: Sequence[int], streams: Sequence[Sequence[int]]) -> Inversions:
    """Streams may hold only events of the reference, each at most once."""
    place = {event: g for g, event in enumerate(reference)}
    ranked = [[place[event] for event in stream] for stream in streams if len(stream) > 1]
    least, greatest = _windows(len(reference), ranked)
    inverted: dict[int, None] = {}
    twice_pairs = 0
    closest: tuple[int, int, int] | None = None
    for first, queues in _blocks(ranked, least, greatest).items():
        low = first * BLOCK_EVENTS
        before: dict[int, int] = {}
        after: dict[int, int] = {}
        for queue in queues:
            _union(queue, before, low)
            _union(queue[::-1], after, low)
        for g, preceding in before.items():
            partners = preceding & after[g]
            if not partners:
                continue
            twice_pairs += partners.bit_count()
            inverted[g] = None
            if closest is None or closest[0] > 1:
                closest = _closest(closest, g, partners, low)
    example = None if closest is None else (reference[closest[1]], reference[closest[2]])
    return Inversions(twice_pairs // 2, [reference[g] for g in sorted(inverted)], example)


def _windows(size: int, ranked: list[list[int]]) -> tuple[list[int], list[int]]:
    least, greatest = list(range(size)), list(range(size))
    for stream in ranked:
        top = -1
        for g in stream:
            if g > top:
                top = g
            elif top > greatest[g]:
                greatest[g] = top
        bottom = size
        for g in reversed(stream):
            if g < bottom:
                bottom = g
            elif bottom < least[g]:
                least[g] = bottom
    return least, greatest


def _blocks(ranked: list[list[int]], least: list[int], greatest: list[int]) -> dict[int, list[list[int]]]:
    """Block -> per stream, in stream order, the events whose window touches the block."""
    blocks: dict[int, list[list[int]]] = {}
    for stream in ranked:
        queues: dict[int, list[int]] = {}
        for g in stream:
            low, high = least[g], greatest[g]
            if low == high:  # in order everywhere: in no inverted pair
                continue
            for block in range(low // BLOCK_EVENTS, high // BLOCK_EVENTS + 1):
                if block in queues:
                    queues[block].append(g)
                else:
                    queues[block] = [g]
        for block, queue in queues.items():
            blocks.setdefault(block, []).append(queue)
    return blocks


def _union(queue: list[int], passed: dict[int, int], low: int) -> None:
    """Adds to passed[g] the block's events that come before g in the queue."""
    seen = 0
    for g in queue:
        passed[g] = passed.get(g, 0) | seen
        bit = g - low
        if 0 <= bit < BLOCK_EVENTS:
            seen |= 1 << bit


def _closest(best: tuple[int, int, int] | None, g: int, partners: int, low: int) -> tuple[int, int, int]:
    """The pair (distance, g, partner) with the least distance, looking at g's nearest partners on both sides."""
    here = g - low
    candidates = []
    below = partners & ((1 << max(here, 0)) - 1)
    if below:
        candidates.append(low + below.bit_length() - 1)
    above = partners >> max(here, 0)
    if above:
        candidates.append(low + max(here, 0) + (above & -above).bit_length() - 1)
    for partner in candidates:
        if best is None or abs(partner - g) < best[0]:
            best = (abs(partner - g), min(g, partner), max(g, partner))
    assert best is not None
    return best
