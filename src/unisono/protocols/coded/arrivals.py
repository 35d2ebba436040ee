"""Events on their way in and events kept for others: generations, their rows, and the bounds on all of them.

An event is *live* from its first sign until it is complete, expired or evicted; complete ones are *kept* for `keep_us`
to serve others; the names of all that ended are *finished* for twice as long, against delivering twice (J4). Behind a
name that is forgotten a floor remains: nothing that its publisher numbered up to there comes again. A number above all
that were complete leaves no floor: one forged packet shall not silence a publisher.
"""

import struct
from random import Random
from typing import Any

import msgspec
from msgspec import Struct

from unisono.model.ids import Address, Topic
from unisono.model.time import Micros
from unisono.protocols.coded.config import CodedConfig
from unisono.protocols.coded.messages import EventKey
from unisono.protocols.coded.wire import Geometry, Packet, digest, generation_bytes_max, pack, shape
from unisono.structures.decoder import Decoder, encode, split, unit

DIRECT = Address("")
"""The source of packets that came by the publisher's own path."""
ENVELOPE = struct.Struct(">BH")  # see wire.ENVELOPE_BYTES
HELPS_LEAST = 0.5
PATIENCE = 4
"""Packets of a peer before it is judged."""
FLOORS_MAX = 4096
SERVED_MAX = 256
"""Askers remembered per event, for the cap on what each gets."""


def timer_of(kind: str, event: EventKey) -> str:
    return f"{kind} {event.topic}/{event.publisher}/{event.sequence}"


def event_of(name: str) -> EventKey:
    """The event in a timer's key."""
    topic, publisher, sequence = name.split("/")
    return EventKey(Topic(int(topic)), int(publisher), int(sequence))


class Generation:
    """Up to n independent packets of a generation, and its plain rows once they are known to be right."""

    __slots__ = ("decoder", "direct", "failing", "geometry", "rows", "trusted")

    def __init__(self, geometry: Geometry, trusted: bool) -> None:
        self.geometry = geometry
        self.trusted = trusted  # the geometry came by the publisher's own path
        self.decoder: Decoder[Address] = Decoder(geometry.n, geometry.row_bytes)
        self.direct: dict[int, None] = {}  # plain rows heard from the publisher itself
        self.failing: list[tuple[Address, ...]] = []  # the peers whose packets made it fail, each time it failed
        self.rows: list[bytes] = []

    @property
    def is_done(self) -> bool:
        return bool(self.rows)

    @property
    def need(self) -> int:
        return 0 if self.rows else self.geometry.n - self.decoder.rank

    def verify(self, event: EventKey, number: int) -> bool:
        """Decodes and keeps the rows if their digest is right; the packets are no longer needed then (J3)."""
        rows = self.decoder.rows()
        content = b"".join(rows)[: self.geometry.length]
        if digest(event.topic, event.publisher, event.sequence, number, content) != self.geometry.digest:
            return False
        self.finish(rows)
        return True

    def finish(self, rows: list[bytes]) -> None:
        self.rows = rows
        self.decoder = Decoder(self.geometry.n, self.geometry.row_bytes)

    def content(self) -> bytes:
        return b"".join(self.rows)[: self.geometry.length]

    def combinations(self, count: int, dice: Random) -> list[tuple[bytes, bytes]]:
        """Fresh ones of everything that is here; a complete generation and an incomplete one serve alike."""
        if self.rows:
            return encode(self.rows, count, dice)
        return self.decoder.recode(count, dice) if self.decoder.rank else []

    def first_packets(self, order: list[int], extra: int, coded: bool, dice: Random) -> list[tuple[bytes, bytes]]:
        """All rows in their sending order, then the extras: combinations, or copies round and round."""
        plain = [(unit(self.geometry.n, i), self.rows[i]) for i in order]
        return plain + (encode(self.rows, extra, dice) if coded else [plain[i % len(plain)] for i in range(extra)])

    def held_rows(self) -> bytes:
        """A bit for each plain row that is determined here."""
        bits = sum(1 << index for index in self.decoder.determined())
        return bits.to_bytes(-(-self.geometry.n // 8), "little")

    def useful_to(self, need: int, held: bytes) -> int:
        """How many packets from here can help somebody who lacks `need` and holds those rows.

        Neighbours in a tree lose the same packets: what an incomplete node has is often what the asker has. Beyond its
        plain rows the asker holds combinations, which we take for ones that we hold as well.
        """
        if self.rows or len(held) != -(-self.geometry.n // 8):
            return min(need, self.geometry.n if self.rows else self.decoder.rank)
        combinations = self.geometry.n - need - int.from_bytes(held, "little").bit_count()
        return min(need, self.decoder.rank_beyond(held) - max(0, combinations))

    def repairs(
        self, need: int, held: bytes, count: int, config: CodedConfig, dice: Random
    ) -> list[tuple[bytes, bytes]]:
        """Plain rows the asker lacks if they suffice, else combinations of all that is here; only rows if not coded."""
        if count <= 0:
            return []
        coded = config.coded
        if coded and (not held or config.fanout > 1):  # two partners would send the same rows
            return self.combinations(count, dice)
        n = self.geometry.n
        have = range(n) if self.rows else self.decoder.determined()
        lacking = [i for i in have if not (i // 8 < len(held) and held[i // 8] >> i % 8 & 1)]
        if coded and len(lacking) < need:
            return self.combinations(count, dice)
        chosen = lacking[: min(need, count)]
        plain = [(unit(n, i), self.rows[i] if self.rows else self.decoder.plain(i)) for i in chosen]
        return plain + self.combinations(count - len(plain), dice) if coded else plain

    def total(self) -> int:
        """Generations of the event, as generation 0 tells; 0 if it makes no sense."""
        content = self.content()
        return int(ENVELOPE.unpack_from(content)[1]) if len(content) >= ENVELOPE.size else 0


class Question(Struct):
    """Asked of one peer: how many packets it should send, how many came, how many of them helped."""

    expected: int
    arrived: int = 0
    helped: int = 0


class Arrival:
    """An event: its generations, and the state of asking for what it lacks."""

    __slots__ = ("asked_at", "avoid", "event", "first_seen", "generations", "last_rx", "open", "served", "total")

    def __init__(self, event: EventKey, now: Micros) -> None:
        self.event = event
        self.generations: dict[int, Generation] = {}
        self.total = 0  # generations of the event; 0 until generation 0 or an advert has told
        self.first_seen = now
        self.last_rx = now
        self.asked_at: Micros | None = None
        self.open: dict[Address, Question] = {}  # peers asked since the last tick
        self.avoid: dict[Address, None] = {}  # peers that had nothing, sent what did not help, or shared in a failure
        self.served: dict[tuple[Address, int], tuple[Micros, int]] = {}  # since when, packets sent to a peer

    @property
    def is_complete(self) -> bool:
        return (
            self.total > 0
            and len(self.generations) >= self.total
            and all(generation.is_done for generation in self.generations.values())
        )

    def missing(self) -> list[int]:
        """Generations that are not done, as far as we know of them."""
        known = self.total or max(self.generations, default=0) + 1
        return [i for i in range(known) if i not in self.generations or not self.generations[i].is_done]

    @property
    def fill(self) -> float:
        """Share of the packets that are here."""
        size = sum(generation.geometry.n for generation in self.generations.values())
        return 1 - sum(generation.need for generation in self.generations.values()) / size if size else 0.0

    @property
    def held(self) -> int:
        """Generations this takes from the bounds."""
        return max(1, len(self.generations))

    def is_being_served(self, now: Micros, tau: Micros) -> bool:
        """A peer asked in this tau has begun to answer: the last thing to evict.

        Having asked is not enough: every incomplete event is asked for in every tau, and nothing could be evicted.
        """
        return self.asked_at is not None and self.asked_at <= self.last_rx and now - self.asked_at <= tau

    def account(self, peer: Address, helped: bool) -> None:
        """A packet came from a peer; those of whose packets few help are not asked again for this event."""
        question = self.open.get(peer)
        if question is None:
            return
        question.arrived += 1
        question.helped += helped
        if question.arrived >= PATIENCE and question.helped < HELPS_LEAST * question.arrived:
            self.avoid[peer] = None

    def start_over(self) -> bool:
        """After two failures each answer is judged alone, with nothing but the publisher's own packets beside it."""
        twice = [generation for generation in self.generations.values() if len(generation.failing) >= 2]
        for generation in twice:
            generation.decoder = generation.decoder.keep([DIRECT] if any(generation.failing[-2:]) else [])
        return bool(twice)

    def allowance(self, peer: Address, number: int, now: Micros, tau: Micros) -> int:
        """Packets of a generation that a peer may still be sent in this tau: n + 4 in all."""
        since, sent = self.served.get((peer, number), (now, 0))
        if now - since >= tau:
            self.served.pop((peer, number), None)
            sent = 0
        return max(0, self.generations[number].geometry.n + 4 - sent)

    def spend(self, peer: Address, number: int, packets: int, now: Micros) -> None:
        since, sent = self.served.get((peer, number), (now, 0))
        if len(self.served) >= SERVED_MAX:
            del self.served[next(iter(self.served))]
        self.served[peer, number] = (since, sent + packets)

    def packed(self, number: int, coefficients: bytes, payload: bytes, key: bytes) -> bytes:
        """A packet of one of the generations."""
        event, geometry = self.event, self.generations[number].geometry
        packet = Packet(event.topic, event.publisher, event.sequence, number, geometry, coefficients, payload)
        return pack(packet, key)

    def message_bytes(self) -> tuple[int, bytes]:
        """Flags and body of a complete event."""
        content = b"".join(self.generations[i].content() for i in range(self.total))
        flags, _ = ENVELOPE.unpack_from(content)
        return flags, content[ENVELOPE.size :]


def fragment(event: EventKey, flags: int, message: bytes, config: CodedConfig, now: Micros) -> Arrival:
    """An event of our own, complete from the start."""
    size = generation_bytes_max(config.packet_bytes, config.rows_max)
    arrival = Arrival(event, now)
    arrival.total = -(-(len(message) + ENVELOPE.size) // size)
    content = ENVELOPE.pack(flags, arrival.total) + message
    for number in range(arrival.total):
        part = content[number * size : (number + 1) * size]
        n, row_bytes = shape(len(part), config.packet_bytes)
        named = digest(event.topic, event.publisher, event.sequence, number, part)
        generation = arrival.generations[number] = Generation(Geometry(n, row_bytes, len(part), named), trusted=True)
        generation.finish(split(part, n, row_bytes))
    return arrival


class Arrivals:
    """All events of a node, within the bounds of its config."""

    def __init__(self, config: CodedConfig) -> None:
        self._config = config
        self.live: dict[EventKey, Arrival] = {}
        self.kept: dict[EventKey, tuple[Micros, Arrival]] = {}  # by time of completion: until when
        self.finished: dict[EventKey, Micros] = {}  # by time of their end: until when they are remembered
        self._floors: dict[tuple[Topic, int], tuple[int, int]] = {}  # topic, publisher -> forgotten, complete up to
        self._live_generations = 0
        self._live_of: dict[int, int] = {}  # publisher -> live generations
        self._kept_generations = 0

    def find(self, event: EventKey) -> Arrival | None:
        """To serve from: complete if we have it so. Our own events are kept while they are still live."""
        kept = self.kept.get(event)
        return kept[1] if kept is not None else self.live.get(event)

    def is_finished(self, event: EventKey) -> bool:
        return event in self.finished or event.sequence <= self._floors.get((event.topic, event.publisher), (0, 0))[0]

    def count(self, arrival: Arrival, change: int) -> None:
        """Keeps the number of live generations."""
        publisher = arrival.event.publisher
        self._live_generations += change
        left = self._live_of.get(publisher, 0) + change
        if left:
            self._live_of[publisher] = left
        else:
            del self._live_of[publisher]

    def victim(self, publisher: int, now: Micros, asking: Arrival | None) -> tuple[bool, Arrival | None]:
        """Is there room for one more generation of this publisher? If not, who should go; nobody: the newcomer."""
        config = self._config
        crowded = self._live_of.get(publisher, 0) >= config.live_per_publisher_max
        if not crowded and self._live_generations < config.live_max:
            return True, None
        # One source cannot evict others: a publisher at its own bound pays with its own events.
        pool = [
            arrival
            for arrival in self.live.values()
            if (not crowded or arrival.event.publisher == publisher)
            and arrival is not asking
            and not arrival.is_being_served(now, config.ask_every_us)
        ]
        return False, min(pool, key=lambda arrival: (arrival.fill, arrival.last_rx), default=None)

    def open(self, event: EventKey, now: Micros) -> Arrival:
        arrival = self.live[event] = Arrival(event, now)
        self.count(arrival, 1)
        return arrival

    def add_generation(self, arrival: Arrival, number: int, geometry: Geometry, trusted: bool) -> Generation:
        before = arrival.held
        generation = arrival.generations[number] = Generation(geometry, trusted)
        self.count(arrival, arrival.held - before)
        return generation

    def end(self, event: EventKey, now: Micros) -> None:
        """No longer live, and never to be delivered again."""
        arrival = self.live.pop(event, None)
        if arrival is not None:
            self.count(arrival, -arrival.held)
        self.remember(event, now)

    def remember(self, event: EventKey, now: Micros) -> None:
        self.finished[event] = Micros(now + 2 * self._config.keep_us)
        if len(self.finished) > self._config.finished_max:
            self._forget(next(iter(self.finished)))

    def _forget(self, event: EventKey) -> None:
        del self.finished[event]
        stream = (event.topic, event.publisher)
        floor, complete = self._floors.get(stream, (0, 0))
        if floor < event.sequence <= complete:
            self._floors[stream] = (event.sequence, complete)

    def keep(self, arrival: Arrival, now: Micros) -> None:
        """Retained for others, for `keep_us` whatever becomes of its adverts."""
        arrival.open.clear()
        arrival.avoid.clear()
        stream = (arrival.event.topic, arrival.event.publisher)
        floor, complete = self._floors.pop(stream, (0, 0))
        self._floors[stream] = (floor, max(complete, arrival.event.sequence))
        if len(self._floors) > FLOORS_MAX:
            del self._floors[next(iter(self._floors))]
        if arrival.event in self.kept:
            self._drop(arrival.event)
        self.kept[arrival.event] = (Micros(now + self._config.keep_us), arrival)
        self._kept_generations += arrival.held
        while self._kept_generations > self._config.kept_max and len(self.kept) > 1:
            self._drop(next(iter(self.kept)))

    def _drop(self, event: EventKey) -> None:
        self._kept_generations -= self.kept.pop(event)[1].held

    def sweep(self, now: Micros) -> int:
        """Lets go of what has had its time; returns how much that was."""
        gone = 0
        while self.kept and next(iter(self.kept.values()))[0] <= now:
            self._drop(next(iter(self.kept)))
            gone += 1
        while self.finished and next(iter(self.finished.values())) <= now:
            self._forget(next(iter(self.finished)))
            gone += 1
        return gone

    def next_sweep(self) -> Micros | None:
        first_kept = next(iter(self.kept.values()), None)
        first_finished = next(iter(self.finished.values()), None)
        if first_kept is None or first_finished is None:
            return first_finished if first_kept is None else first_kept[0]
        return min(first_kept[0], first_finished)

    def snapshot(self) -> Any:
        return {
            "live": [_plain(arrival) for arrival in self.live.values()],
            "kept": [[until, _plain(arrival)] for until, arrival in self.kept.values()],
            "floors": [[*stream, *floor] for stream, floor in self._floors.items()],
            "finished": [[*msgspec.to_builtins(event), until] for event, until in self.finished.items()],
        }

    def restore(self, snapshot: Any) -> None:
        for plain in snapshot["live"]:
            arrival = _unplain(plain)
            self.live[arrival.event] = arrival
            self.count(arrival, arrival.held)
        for until, plain in snapshot["kept"]:
            arrival = _unplain(plain)
            self.kept[arrival.event] = (until, arrival)
            self._kept_generations += arrival.held
        self._floors = {(topic, publisher): (floor, up_to) for topic, publisher, floor, up_to in snapshot["floors"]}
        self.finished = {EventKey(*event): until for *event, until in snapshot["finished"]}


def _plain(arrival: Arrival) -> list[Any]:
    generations = [
        [
            number,
            msgspec.to_builtins(generation.geometry, builtin_types=(bytes,)),
            generation.trusted,
            generation.rows,
            generation.decoder.packets(),
            list(generation.direct),
            generation.failing,
        ]
        for number, generation in arrival.generations.items()
    ]
    times = [arrival.first_seen, arrival.last_rx, arrival.asked_at]
    return [msgspec.to_builtins(arrival.event), arrival.total, times, generations]


def _unplain(plain: list[Any]) -> Arrival:
    event, total, times, generations = plain
    arrival = Arrival(EventKey(*event), times[0])
    arrival.total = total
    arrival.first_seen, arrival.last_rx, arrival.asked_at = times
    for number, geometry, trusted, rows, packets, direct, failing in generations:
        generation = arrival.generations[number] = Generation(Geometry(**geometry), trusted)
        generation.rows = list(rows)
        for coefficients, payload, source in packets:
            generation.decoder.put(coefficients, payload, source)
        generation.direct = dict.fromkeys(direct)
        generation.failing = [tuple(peers) for peers in failing]
    return arrival
