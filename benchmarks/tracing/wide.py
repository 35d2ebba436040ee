"""What subscribers in a wide area are told, in one order, as tables of deliveries.

Every topic has one publisher with an uplink of its own, every subscriber a downlink of its own, both of 1 to 100 ms.
Order is kept: a delivery waits for those before it in the stream. So times of delivery differ by far from the order of
publication, and yet one order explains all streams. Rows stand by time of delivery, as collected.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

SPACING_US = 200
"""Between two publications: 5000 events a second."""
LINK_US = (1_000, 100_000)


@dataclass(frozen=True)
class Shape:
    """Who is there, and who subscribes to what."""

    topics: int = 100
    subscribers: int = 200
    interest: int = 10
    presence: float = 1.0
    """Share of the run for which a subscriber is there."""
    groups: int = 1
    """Topics fall into groups; one subscriber in twenty bridges two neighbours, the others stay in one."""
    dominant: bool = False
    """The first subscriber has every topic."""
    step: int = 1
    """Distance of positions: above 1 they are sparse."""
    columns: int = 10


SHAPES = {
    "wide": Shape(),
    "sparse": Shape(step=1000),
    "passing": Shape(presence=0.3),
    "bridged": Shape(groups=10),
    "dominant": Shape(interest=2, dominant=True),
    "three": Shape(columns=3),
}


@dataclass
class Deliveries:
    """Rows by (subscriber, order); attributes by event."""

    subscribers: Any
    events: Any
    topics: Any
    seqs: Any
    topics_of: list[Any]
    """Subscriber -> its topics."""


def deliveries(shape: Shape, count: int, seed: int) -> Deliveries:
    """About `count` deliveries, every stream in the order of events."""
    dice = np.random.default_rng(seed)
    topics_of = [_topics(shape, s, dice) for s in range(shape.subscribers)]
    who = [np.array([s for s in range(shape.subscribers) if t in topics_of[s]], np.int64) for t in range(shape.topics)]
    fan = np.array([len(subscribers) for subscribers in who])
    events = max(shape.topics, int(count / (fan.mean() * shape.presence)))
    topics = dice.integers(0, shape.topics, events)
    counts = fan[topics]
    starts = np.cumsum(fan) - fan
    rows = np.repeat(np.arange(events), counts)
    offsets = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    subscribers = np.concatenate(who)[np.repeat(starts[topics], counts) + offsets]
    if shape.presence < 1:
        first = dice.integers(0, int(events * (1 - shape.presence)) + 1, shape.subscribers)
        here = (rows >= first[subscribers]) & (rows < first[subscribers] + int(events * shape.presence))
        rows, subscribers = rows[here], subscribers[here]
    order = np.lexsort((rows, subscribers))
    seqs = np.empty(events, np.int64)
    by_topic = np.argsort(topics, kind="stable")
    sizes = np.bincount(topics, minlength=shape.topics)
    seqs[by_topic] = np.arange(events) - np.repeat(np.cumsum(sizes) - sizes, sizes) + 1
    return Deliveries(subscribers[order], rows[order], topics, seqs, topics_of)


def _topics(shape: Shape, subscriber: int, dice: np.random.Generator) -> Any:
    if shape.dominant and subscriber == 0:
        return np.arange(shape.topics)
    size = shape.topics // shape.groups
    group = subscriber % shape.groups
    own = np.arange(group * size, (group + 1) * size)
    if shape.groups > 1 and subscriber % 20 == 0:
        own = np.concatenate([own, (own + size) % shape.topics])
    return dice.choice(own, min(shape.interest, len(own)), replace=False)


def table(found: Deliveries, shape: Shape, seed: int, tile: int = 0) -> pa.Table:
    """The rows with names, positions and times; a further `tile` has events of its own, after those before it."""
    dice = np.random.default_rng(seed + 1)
    subscribers, events = found.subscribers, found.events
    starts = np.searchsorted(subscribers, np.arange(int(subscribers.max()) + 2))
    position = (np.arange(len(events)) - starts[subscribers] + 1) + tile * len(events)
    published = (events + tile * len(found.topics)) * SPACING_US
    up = dice.integers(*LINK_US, int(found.topics.max()) + 1)
    down = dice.integers(*LINK_US, int(subscribers.max()) + 1)
    arrived = published + up[found.topics[events]] + down[subscribers]
    span = int(arrived.max() - arrived.min()) + 1
    delivered = np.maximum.accumulate(arrived + subscribers * span) - subscribers * span  # held back, per stream
    columns = {
        "subscriber": _names("s", subscribers),
        "event": _names(f"{tile}." if tile else "e", events),
        "position": pa.array(position * shape.step),
    }
    if shape.columns > 3:
        topics, seqs = found.topics[events], found.seqs[events] + tile * int(found.seqs.max())
        columns |= {
            "topic": _names("t", topics),
            "number": pa.array(seqs),
            "publisher": _names("p", topics),
            "publisher_seq": pa.array(seqs),
            "published_us": pa.array(published),
            "delivered_us": pa.array(delivered),
            "deadline_us": pa.array(published + 10_000_000),
        }
    return pa.table(columns).take(pa.array(np.argsort(delivered, kind="stable")))


def write(path: str, shape: Shape, count: int, seed: int = 1, tiles: int = 1) -> None:
    """A Parquet file of about `count` rows a tile; a subscriber is told of a tile after all of the one before."""
    found = deliveries(shape, count, seed)
    first = table(found, shape, seed)
    with pq.ParquetWriter(path, first.schema) as writer:
        writer.write_table(first, row_group_size=1_000_000)
        for tile in range(1, tiles):
            writer.write_table(table(found, shape, seed, tile), row_group_size=1_000_000)


def _names(prefix: str, codes: Any) -> pa.Array:
    names = pa.array([f"{prefix}{i}" for i in range(int(codes.max()) + 1)])
    return pa.DictionaryArray.from_arrays(pa.array(codes.astype(np.int32)), names).cast(pa.string())
