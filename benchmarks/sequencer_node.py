"""Sequencer node: timestamps per CPU second through `TopicManager.handle`, groups of 17 and 46 topics.

One node hosts all topics of a group, and every topic is ordered against all others. Requests are on topics drawn at
random, so between two numbers of a topic nearly all others have moved and delta timestamps save little: the hard case.
Shapes of a batch of N requests: `joined`, one publisher whose requests travel as one item per topic, which is what a
session sends at the end of its turn; `single`, the same publisher, an item per request; `N publishers`, each with one
request, gathered by the node's driver into one turn. Every tenth batch is sent a second time and must get no numbers.
Counted are numbers issued, each with its timestamp; timed are `handle` with everything it returns (Persist, Taken,
the stamps to broadcast) and the encoding of the input as the record that Persist asks for. Requests handled together
on one topic share a timestamp; `requests_per_timestamp` says how many. `plain` is Python alone, `fast` the same
handler with the kernel of the `[fast]` extra. With few busy topics (exponential, mean 3) little changes between two
numbers of a topic, which is what popular topics with their large groups see.
"""

import os
import random
import time
from typing import Any, Literal

import msgspec

from unisono.machine import PERSIST
from unisono.model.ids import Address, Topic
from unisono.model.time import Micros
from unisono.protocols.sequencer.config import SequencerConfig
from unisono.protocols.sequencer.messages import Creates, Install, Turn, Wanted
from unisono.protocols.sequencer.node import TopicManager
from unisono.protocols.sequencer.topic_manager.topic import as_runs

NOW = Micros(1)
CHUNKS = 20  # timed apart; each has 20 batches or 1000 requests at least
PUBLISHER = Address("publisher")
Shape = Literal["joined", "single", "publishers"]


def node_with_group(size: int, config: SequencerConfig) -> TopicManager:
    """A root that hosts `size + 1` topics which two subscribers share."""
    topics = tuple(Topic(number) for number in range(size + 1))
    node = TopicManager(Address("node"), None, (), topics, {}, config)
    for sid in ("one", "two"):
        for topic in topics:
            node.handle(Install(Address(sid), 1, topic, topics), NOW)
    return node


def make_batches(topics: int, size: int, number: int, skewed: bool, shape: Shape) -> list[Creates | Turn]:
    dice = random.Random(17)
    following: dict[tuple[Address, int], int] = {}
    batches: list[Creates | Turn] = []
    for index in range(number):
        creates: list[Creates] = []
        items: list[Wanted] = []
        for place in range(size):
            publisher = Address(f"publisher-{place}") if shape == "publishers" else PUBLISHER
            topic = min(int(dice.expovariate(1 / 3)), topics - 1) if skewed else dice.randrange(topics)
            first = following.get((publisher, topic), 1)
            following[publisher, topic] = first + 1
            items.append(Wanted(Topic(topic), first, 1, first))
            if shape == "publishers":
                creates.append(Creates(publisher, (items.pop(),)))
        if shape == "publishers":
            batches.append(Turn(tuple(creates)) if size > 1 else creates[0])
        else:
            batches.append(Creates(PUBLISHER, tuple(as_runs(tuple(items)) if shape == "joined" else items)))
        if index % 10 == 9:
            batches.append(batches[-1])
    return batches


def measure(
    group: int, size: int, shape: Shape = "joined", fast: bool = False, full: bool = False, skewed: bool = False
) -> dict[str, Any]:
    config = SequencerConfig(early=False, encoding="full") if full else SequencerConfig()
    node = node_with_group(group, config)
    if fast and not node.use_compiled_kernel():
        raise SystemExit("the kernel is missing: this needs the [fast] extra")
    in_chunk = max(20, 1000 // size)
    batches = make_batches(group + 1, size, in_chunk * CHUNKS, skewed, shape)
    encode, handle, clock = msgspec.msgpack.Encoder().encode, node.handle, node.clock
    best = spent = 0.0
    issued, handled = 0, iter(batches)
    for chunk in range(CHUNKS):
        some = [next(handled) for _ in range(in_chunk)]
        before = sum(clock.values())
        started = time.process_time()
        for batch in some:
            encode(batch)
            effects = handle(batch, NOW)
        took = time.process_time() - started
        if effects[0] is not PERSIST:
            raise SystemExit("a batch was not made durable")
        if chunk:  # the first one warms up
            new = sum(clock.values()) - before
            best, spent, issued = max(best, new / took), spent + took, issued + new
    asked = [parts(batch) for batch in batches[: in_chunk * CHUNKS]]
    expected = {(publisher, topic, n) for batch in asked for publisher, topic, n in batch}
    if sum(clock.values()) != len(expected):
        raise SystemExit("a request got no number, or two")
    stamps = len({(index, topic) for index, batch in enumerate(asked[:100]) for _, topic, _ in batch})
    shown = f"{size} publishers" if shape == "publishers" else f"batches of {size} {shape}"
    kind, busy = "full, whole stamps" if full else "delta, early stamps", ", few busy topics" if skewed else ""
    return {
        "case": f"group of {group}, {shown}, {kind}{busy}",
        "handler": "fast" if fast else "plain",
        "timestamps_per_cpu_second": round(issued / spent),
        "best_chunk_per_cpu_second": round(best),
        "requests_per_timestamp": round(100 * size / stamps, 2),
        "load": round(os.getloadavg()[0], 1),
    }


def parts(batch: Creates | Turn) -> list[tuple[Address, Topic, int]]:
    """Publisher, topic and request of everything a batch asks for."""
    creates = batch.creates if isinstance(batch, Turn) else (batch,)
    items = [(create.publisher, item) for create in creates for item in create.items]
    return [(who, item.topic, item.first + i) for who, item in items for i in range(item.count)]


def run() -> list[dict[str, Any]]:
    handlers = (False, True) if has_kernel() else (False,)
    rows: list[dict[str, Any]] = []
    for fast in handlers:
        for group in (17, 46):
            rows += [measure(group, size, fast=fast) for size in (64, 256, 1000)]
            rows += [measure(group, size, "publishers", fast) for size in (64, 256)]
    rows += [measure(group, 256, full=True) for group in (17, 46)]
    rows += [measure(group, size, "single") for group in (17, 46) for size in (1, 256)]
    rows += [measure(group, size, skewed=True) for group in (46, 600) for size in (1, 256)]
    return rows


def has_kernel() -> bool:
    try:
        from unisono.protocols.sequencer.topic_manager.changes import KERNEL
    except ImportError:
        return False
    return KERNEL.wait() is not None
