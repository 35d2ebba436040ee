"""A clean trace with errors planted independently of each other: how many of each the judges must count, no more.

Every error of order has a stretch of the run for itself and subscribers of its own, so that no two tie into one knot:
pairs next to each other and pairs a whole stretch apart, cycles over three to six subscribers of which no two disagree.
Causes and publishers' orders are broken among events that one subscriber alone was told of.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from tracing.wide import SPACING_US, Deliveries, Shape, deliveries


@dataclass(frozen=True)
class Plants:
    """How many of each."""

    near: int = 10
    far: int = 10
    cycles: int = 20
    twice: int = 30
    fifo: int = 15
    causal: int = 15
    lost: int = 25
    late: int = 40


FEW = Plants(2, 2, 4, 6, 3, 3, 5, 8)
"""For traces of some thousand deliveries."""


def planted(count: int, seed: int, plants: Plants = Plants()) -> tuple[pa.Table, dict[str, int]]:
    """About `count` deliveries, and judge -> violations."""
    dice = np.random.default_rng(seed)
    shape = Shape()
    base = deliveries(shape, count, seed)
    streams = _order_plants(base, shape, plants, dice)
    subscribers, events = _lost_and_twice(base, plants, dice)
    topics, seqs = base.topics, base.seqs
    clocks = np.stack([topics, seqs - 1], axis=1)  # publisher (one a topic), and how many of its events came before
    private = len(topics)
    for i in range(plants.fifo + plants.causal):
        line = shape.topics + i
        topics, seqs = np.append(topics, [line, line]), np.append(seqs, [1, 2])
        # As published: 2 before 1. As caused: the first names the second, of the same publisher, as its cause.
        needs = [[-1, 0], [-1, 0]] if i < plants.fifo else [[line, 2], [-1, 0]]
        clocks = np.concatenate([clocks, needs])
        streams.append([private + 1, private] if i < plants.fifo else [private, private + 1])
        private += 2
    own = shape.subscribers + np.repeat(np.arange(len(streams)), [len(stream) for stream in streams])
    subscribers = np.concatenate([subscribers, own])
    events = np.concatenate([events, np.concatenate(streams)])
    late = np.zeros(len(events), bool)
    late[dice.choice(len(base.events) - plants.lost, plants.late, replace=False)] = True
    found = _table(subscribers, events, topics, seqs, clocks, late, dice)
    return found, {
        "pairwise-order": plants.near + plants.far,
        "local-order": 0,
        "acyclic": plants.near + plants.far + plants.cycles,
        "fifo": plants.fifo,
        "publisher-order": plants.fifo,
        "causal": plants.causal,
        "exactly-once": plants.twice,
        "complete": plants.lost,
        "kept": 0,
        "deadline": plants.late,
    }


def _order_plants(base: Deliveries, shape: Shape, plants: Plants, dice: np.random.Generator) -> list[list[int]]:
    """Streams of further subscribers; each plant within its own stretch of events."""
    shared = np.zeros((shape.topics, shape.topics), bool)
    for topics in base.topics_of:
        shared[np.ix_(topics, topics)] = True
    kinds = dice.permutation(["near"] * plants.near + ["far"] * plants.far + ["cycle"] * plants.cycles)
    borders = np.linspace(0, len(base.topics), len(kinds) + 1).astype(int)
    streams: list[list[int]] = []
    for kind, low, high in zip(kinds, borders[:-1], borders[1:], strict=True):
        if kind == "cycle":
            streams += _cycle(base, shared, int(low), int(high), int(dice.integers(3, 7)), dice)
            continue
        first, second = int(low), int(high) - 1
        if kind == "near":
            first = int(dice.integers(low, high - 10))
            second = first + 1
        while base.topics[second] == base.topics[first]:  # of one topic it would break the publisher's order, too
            second += 1 if kind == "near" else -1
        streams += [[first, second], [second, first]]
    return streams


def _cycle(base: Deliveries, shared: Any, low: int, high: int, size: int, dice: np.random.Generator) -> list[list[int]]:
    """Neighbours of a round trip at a subscriber each; nobody else has the two that close it."""
    while True:
        events = np.sort(dice.choice(np.arange(low, high), size, replace=False))
        topics = base.topics[events]
        if len(set(topics.tolist())) == size and not shared[topics[0], topics[-1]]:
            return [[int(a), int(b)] for a, b in zip(events, np.roll(events, -1), strict=True)]


def _lost_and_twice(base: Deliveries, plants: Plants, dice: np.random.Generator) -> tuple[Any, Any]:
    """Some deliveries left out in the middle of what a subscriber was told of a topic; some at the end once more."""
    subscribers, events = base.subscribers, base.events
    lines = subscribers * (int(base.topics.max()) + 1) + base.topics[events]
    order = np.argsort(lines, kind="stable")
    same = (lines[order][1:-1] == lines[order][:-2]) & (lines[order][1:-1] == lines[order][2:])
    inner = order[1:-1][same]
    chosen: dict[int, int] = {}  # one of a line, so that its ends stay
    for row in dice.permutation(inner):
        chosen.setdefault(int(lines[row]), int(row))
        if len(chosen) == plants.lost:
            break
    kept = np.ones(len(events), bool)
    kept[list(chosen.values())] = False
    subscribers, events = subscribers[kept], events[kept]
    again = dice.choice(len(events), plants.twice, replace=False)
    # After everything else: the rows of a subscriber are put together when positions are given.
    return np.concatenate([subscribers, subscribers[again]]), np.concatenate([events, events[again]])


def _table(
    subscribers: Any, events: Any, topics: Any, seqs: Any, clocks: Any, late: Any, dice: np.random.Generator
) -> pa.Table:
    order = np.argsort(subscribers, kind="stable")
    subscribers, events, late = subscribers[order], events[order], late[order]
    starts = np.searchsorted(subscribers, np.arange(int(subscribers.max()) + 1))
    published = events * SPACING_US
    needs = clocks[events]
    has = needs[:, 0] >= 0
    offsets = np.concatenate([[0], np.cumsum(has)]).astype(np.int32)
    publishers = pa.array([f"p{t}" for t in range(int(topics.max()) + 1)])
    keys = publishers.take(pa.array(needs[has, 0]))
    found = pa.table(
        {
            "subscriber": pa.array([f"s{s}" for s in subscribers]),
            "event": pa.array([f"e{e}" for e in events]),
            "position": pa.array(np.arange(len(events)) - starts[subscribers]),
            "topic": pa.array([f"t{t}" for t in topics[events]]),
            "number": pa.array(seqs[events]),
            "publisher": publishers.take(pa.array(topics[events])),
            "publisher_seq": pa.array(seqs[events]),
            "published_us": pa.array(published),
            "delivered_us": pa.array(published + 50_000),
            "deadline_us": pa.array(published + np.where(late, 49_999, 50_000)),
            "clock": pa.MapArray.from_arrays(pa.array(offsets), keys, pa.array(needs[has, 1])),
        }
    )
    return found.take(pa.array(dice.permutation(len(events))))
