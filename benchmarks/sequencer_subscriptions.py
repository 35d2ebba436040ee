"""Subscriptions: CPU time of one more, when a node has registered 1000 and when it has registered 100 000.

One node hosts 1000 topics; every subscriber takes 10 of them, drawn by popularity (Zipf, exponent 0.9). A subscription
is handled whole: one Install at each of its ten topics, answered by Installed, made durable by Persist. Then it takes
one topic more: a Collect at each of the ten, and an Install. The median of chunks of 50 subscriptions is told, since a
collection of Python's garbage falls into some of them; the mean has it.
"""

import os
import random
import statistics
import time
from typing import Any

from unisono.machine import PERSIST, Send
from unisono.model.ids import Address, Topic
from unisono.model.time import Micros
from unisono.protocols.sequencer.messages import Collect, Collected, Install, Installed
from unisono.protocols.sequencer.node import TopicManager

NOW = Micros(1)
TOPICS, EACH, CHUNK = 1000, 10, 50
MILESTONES = (1_000, 10_000, 100_000)
WEIGHTS = [1 / (rank + 1) ** 0.9 for rank in range(TOPICS)]


def choose(dice: random.Random) -> tuple[Topic, ...]:
    chosen: dict[Topic, None] = {}
    while len(chosen) <= EACH:
        chosen |= dict.fromkeys(Topic(number) for number in dice.choices(range(TOPICS), WEIGHTS, k=EACH))
    return tuple(chosen)[: EACH + 1]


def subscribe(node: TopicManager, sid: Address, topics: tuple[Topic, ...]) -> None:
    first = topics[:EACH]
    for topic in first:
        effects = node.handle(Install(sid, 1, (topic,), first), NOW)
    if effects[0] is not PERSIST or not isinstance(effects[1], Send) or not isinstance(effects[1].message, Installed):
        raise SystemExit("a subscription was not taken")


def extend(node: TopicManager, sid: Address, topics: tuple[Topic, ...]) -> None:
    new = topics[EACH:]
    for topic in topics[:EACH]:
        effects = node.handle(Collect(sid, 2, (topic,), topics, new), NOW)
    if not isinstance(effects[1], Send) or not isinstance(effects[1].message, Collected):
        raise SystemExit("a topic was not collected")
    node.handle(Install(sid, 2, new, topics), NOW)


def run() -> list[dict[str, Any]]:
    dice = random.Random(5)
    node = TopicManager(Address("node"), None, (), tuple(Topic(number) for number in range(TOPICS)), {})
    rows: list[dict[str, Any]] = []
    count = 0
    for milestone in MILESTONES:
        chunks: list[tuple[float, float]] = []
        while count < milestone:
            wanted = [(Address(f"s{count + i}"), choose(dice)) for i in range(CHUNK)]
            started = time.process_time()
            for sid, topics in wanted:
                subscribe(node, sid, topics)
            between = time.process_time()
            if milestone - count <= 500:  # the last ones before the milestone are measured
                for sid, topics in wanted:
                    extend(node, sid, topics)
                chunks.append((between - started, time.process_time() - between))
            count += CHUNK
        whole, more = zip(*chunks)
        rows.append(
            {
                "case": f"subscription number {milestone}",
                "cpu_us_per_subscription": round(statistics.median(whole) / CHUNK * 1e6, 1),
                "mean_cpu_us_per_subscription": round(statistics.mean(whole) / CHUNK * 1e6, 1),
                "cpu_us_per_topic_more": round(statistics.median(more) / CHUNK * 1e6, 1),
                "times_the_first": round(statistics.median(whole) / CHUNK * 1e6 / rows[0]["cpu_us_per_subscription"], 2)
                if rows
                else 1.0,
                "registrations_of_the_busiest_topic": len(node.hosted[Topic(0)].group.registrations),
                "load": round(os.getloadavg()[0], 1),
            }
        )
    return rows
