"""Ordered delivery: events per CPU second through `OrderingClient.handle`, everything shuffled within 1000 events.

A subscriber of ten topics hears payloads and stamps that a real node made for one publisher's turns of N events on
topics drawn at random. Every message is late by 0 to 1000 events, on its own: stamps come before their payloads,
later numbers before earlier ones, topics wait for each other. Payloads of one turn on one topic come in one message or
one by one. Counted are events delivered in order; timed is `handle` for every message, with the Deliver of every event.
"""

import gc
import os
import random
import time
from collections.abc import Callable, Iterator
from typing import Any

from unisono.machine import Broadcast, Deliver, Effect, Heard, Join, Joined, Send, Subscribe, one_by_one
from unisono.model.event import Event, Payload, Payloads
from unisono.model.ids import Address, Topic
from unisono.model.time import Micros
from unisono.protocols.sequencer.client import OrderingClient
from unisono.protocols.sequencer.config import SequencerConfig
from unisono.protocols.sequencer.messages import Creates, Wanted
from unisono.protocols.sequencer.node import TopicManager

NOW = Micros(1)
TOPICS = tuple(Topic(number) for number in range(10))
WINDOW = 1000
EVENTS = 50_000
CHUNKS = 10  # timed apart; each is five windows long, so that what is held back at its ends matters little
NODE, PUBLISHER, SUBSCRIBER = Address("node"), Address("publisher"), Address("subscriber")


def subscribe(node: TopicManager, name: Address, config: SequencerConfig) -> OrderingClient:
    client = OrderingClient(name, dict.fromkeys(TOPICS, NODE), config)
    waiting = client.handle(Subscribe(TOPICS), NOW)
    while waiting:
        match waiting.pop(0):
            case Join(topic=topic):
                waiting += client.handle(Joined(topic), NOW)
            case Send(message=message):
                answers = node.handle(message, NOW)
                waiting += [e for a in answers if isinstance(a, Send) for e in client.handle(a.message, NOW)]
            case _:
                pass
    return client


def messages(node: TopicManager, turn: int, in_one: bool) -> Iterator[tuple[float, Heard]]:
    """What the broker brings, with the place in the stream of events at which it arrives."""
    dice, following = random.Random(3), dict.fromkeys(TOPICS, 1)
    for at in range(0, EVENTS, turn):
        requests: dict[Topic, list[Payload]] = {}
        for number in range(at, at + turn):
            topic = dice.choice(TOPICS)
            event = Event("publisher", number + 1, str(topic), b"x" * 100)
            requests.setdefault(topic, []).append(Payload(PUBLISHER, following[topic], event))
            following[topic] += 1
        for topic, payloads in requests.items():
            row = Payloads(PUBLISHER, payloads[0].request, tuple([payload.event for payload in payloads]))
            for payload in [row] if in_one else payloads:
                yield at + dice.uniform(0, WINDOW), Heard(topic, payload)
        items = tuple(Wanted(topic, p[0].request, len(p), p[0].request) for topic, p in requests.items())
        for effect in node.handle(Creates(PUBLISHER, items), NOW):
            if isinstance(effect, Broadcast):
                yield at + dice.uniform(0, WINDOW), Heard(effect.topic, effect.message, control=True)


def measure(turn: int, in_one: bool) -> dict[str, Any]:
    config = SequencerConfig()
    node = TopicManager(NODE, None, (), TOPICS, {}, config)
    subscribe(node, Address("other"), config)
    handle: Callable[..., Any] = subscribe(node, SUBSCRIBER, config).handle
    arriving = [heard for _, heard in sorted(messages(node, turn, in_one), key=lambda pair: pair[0])]
    gc.collect()
    gc.freeze()  # the messages prepared here are not the machine's garbage
    delivered, best, spent = 0, 0.0, 0.0
    for part in range(CHUNKS):
        chunk = arriving[len(arriving) * part // CHUNKS : len(arriving) * (part + 1) // CHUNKS]
        effects: list[Effect] = []
        started = time.process_time()
        for heard in chunk:
            effects += handle(heard, NOW)
        took = time.process_time() - started
        spent += took
        events = sum(len(one_by_one(effect.item)) for effect in effects if isinstance(effect, Deliver))
        delivered += events
        if 0 < part < CHUNKS - 1:
            best = max(best, events / took)
    if delivered != EVENTS:
        raise SystemExit(f"{delivered} of {EVENTS} events were delivered: the numbers would mean nothing")
    gc.unfreeze()
    together = "together" if in_one else "one by one"
    return {
        "case": f"turns of {turn} events, payloads of a topic {together}",
        "events_per_cpu_second": round(delivered / spent),
        "best_chunk_per_cpu_second": round(best),
        "messages_per_event": round(len(arriving) / EVENTS, 2),
        "load": round(os.getloadavg()[0], 1),
    }


def run() -> list[dict[str, Any]]:
    return [measure(100, True), measure(100, False), measure(20, True), measure(1, False)]
