"""Sequencer node: timestamps per CPU second through `TopicManager.handle`, groups of 17 and 46 topics.

One node hosts all topics of a group, and every topic is ordered against all others. A publisher sends batches
(`Creates`) of single requests, each on a topic drawn at random: what one turn of a busy client's loop sends. Between
two numbers of a topic nearly all others have moved, so delta timestamps save next to nothing: the hard case. Every
tenth batch is sent a second time and must get no numbers. Counted are numbers issued, each with its timestamp;
timed are `handle` with everything it returns (Persist, Taken, the stamps to broadcast) and the encoding of the input
as the record that Persist asks for. Requests of one batch on one topic share a timestamp, so the rate depends on how
many there are; `requests_per_run` says it. With few busy topics (exponential, mean 3) little changes between two
numbers of a topic, which is what popular topics with their large groups see.
"""

import os
import random
import time
from typing import Any

import msgspec

from unisono.machine import PERSIST
from unisono.model.ids import Address, Topic
from unisono.model.time import Micros
from unisono.protocols.sequencer.config import SequencerConfig
from unisono.protocols.sequencer.messages import Creates, Install, Wanted
from unisono.protocols.sequencer.node import TopicManager

NOW = Micros(1)
CHUNKS = 30  # timed apart; each has 20 batches or 1000 requests at least
PUBLISHER = Address("publisher")


def node_with_group(size: int, config: SequencerConfig) -> TopicManager:
    """A root that hosts `size + 1` topics which two subscribers share."""
    topics = tuple(Topic(number) for number in range(size + 1))
    node = TopicManager(Address("node"), None, (), topics, {}, config)
    for sid in ("one", "two"):
        for topic in topics:
            node.handle(Install(Address(sid), 1, topic, topics), NOW)
    return node


def make_batches(topics: int, size: int, number: int, skewed: bool) -> list[Creates]:
    dice, following = random.Random(17), [1] * topics
    batches: list[Creates] = []
    for index in range(number):
        items = []
        for _ in range(size):
            topic = min(int(dice.expovariate(1 / 3)), topics - 1) if skewed else dice.randrange(topics)
            items.append(Wanted(Topic(topic), following[topic], 1, following[topic]))
            following[topic] += 1
        batches.append(Creates(PUBLISHER, tuple(items)))
        if index % 10 == 9:
            batches.append(batches[-1])
    return batches


def measure(group: int, size: int, config: SequencerConfig, skewed: bool = False) -> dict[str, Any]:
    node = node_with_group(group, config)
    in_chunk = max(20, 1000 // size)
    batches = make_batches(group + 1, size, in_chunk * CHUNKS, skewed)
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
    expected = {(item.topic, item.first) for batch in batches[: in_chunk * CHUNKS] for item in batch.items}
    if sum(clock.values()) != len(expected):
        raise SystemExit("a request got no number, or two")
    runs = len({(index, item.topic) for index, batch in enumerate(batches[:100]) for item in batch.items})
    stamps, busy = "early" if config.early else "whole", ", few busy topics" if skewed else ""
    return {
        "case": f"group of {group}, batches of {size}, {config.encoding}, {stamps} stamps{busy}",
        "timestamps_per_cpu_second": round(issued / spent),
        "best_chunk_per_cpu_second": round(best),
        "requests_per_run": round(100 * size / runs, 2),
        "load": round(os.getloadavg()[0], 1),
    }


def run() -> list[dict[str, Any]]:
    rows = [measure(group, size, SequencerConfig()) for group in (17, 46) for size in (1, 64, 256, 1000)]
    rows += [measure(group, size, SequencerConfig(), skewed=True) for group in (46, 600) for size in (1, 256)]
    return rows + [measure(group, 256, SequencerConfig(early=False, encoding="full")) for group in (17, 46)]
