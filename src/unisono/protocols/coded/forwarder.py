"""Inside a multicast tree: forwards every packet at once, and makes up for those that did not reach it (specs 5.3).

A loss near the root is felt by a whole subtree, and without help the redundancy of the publisher has to last for all
hops. A forwarder that can decode an event replaces each packet it missed by a fresh combination, so its children see
one lossy hop. Rows it missed are replaced as soon as it is complete, extras when the event has been quiet.

It needs no state that survives: an event that was passing during a crash is repaired by gossip like any other. It takes
the publisher's redundancy from the shared config; adaptive extras beyond that are forwarded but not replaced.
"""

from random import Random
from typing import Any

from unisono.machine import Broadcast, Effect, Fired, Heard, Refuse, SetTimer
from unisono.model.time import Micros
from unisono.protocols.coded.arrivals import DIRECT, Generation, event_of, timer_of
from unisono.protocols.coded.config import CodedConfig
from unisono.protocols.coded.messages import EventKey, PacketPiece
from unisono.protocols.coded.wire import BadPacket, Packet, pack, unpack
from unisono.structures.decoder import unit


class Passing:
    """A generation on its way through."""

    __slots__ = ("control", "generation", "heard", "last_rx", "made", "spoilt")

    def __init__(self, generation: Generation, control: bool) -> None:
        self.generation = generation
        self.control = control
        self.heard: dict[bytes, None] = {}  # coefficients of the packets that came from upstream
        self.last_rx = Micros(0)
        self.made = 0  # packets put in the place of missing ones
        self.spoilt = False  # its rows have the wrong digest: nothing is made of them


class Forwarder:
    """An interior node of a multicast tree; `Broadcast` goes to its children there."""

    def __init__(self, config: CodedConfig, dice: Random) -> None:
        self._config = config
        self._dice = dice
        self._passing: dict[tuple[EventKey, int], Passing] = {}

    def handle(self, message: Any, now: Micros) -> list[Effect]:
        match message:
            case Heard(topic=topic, message=PacketPiece(data=data) as piece, control=control):
                effects: list[Effect] = [Broadcast(topic, piece, control)]
                packet = unpack(data, self._config.key, self._config.packet_bytes)
                if not isinstance(packet, BadPacket) and packet.topic == topic:
                    self._learn(packet, control, now, effects)
                return effects
            case Heard(topic=topic, message=inner, control=control):
                return [Broadcast(topic, inner, control)]
            case Fired(key=key):
                return self._fired(key, now)
            case _:
                return [Refuse(f"a forwarder does not understand {type(message).__name__}")]

    def _learn(self, packet: Packet, control: bool, now: Micros, effects: list[Effect]) -> None:
        event = EventKey(packet.topic, packet.publisher, packet.sequence)
        key = (event, packet.generation)
        passing = self._passing.get(key)
        if passing is None:
            if len(self._passing) >= self._config.live_max:
                del self._passing[next(iter(self._passing))]
            passing = self._passing[key] = Passing(Generation(packet.geometry, trusted=True), control)
            effects.append(SetTimer(_timer(key), Micros(now + self._config.quiet_us)))
        generation = passing.generation
        if generation.geometry != packet.geometry or packet.coefficients in passing.heard:
            return
        passing.heard[packet.coefficients] = None
        passing.last_rx = now
        if generation.is_done or passing.spoilt:
            return
        generation.decoder.put(packet.coefficients, packet.payload, DIRECT)
        if generation.decoder.is_complete:
            passing.spoilt = not generation.verify(event, packet.generation)
            n = generation.geometry.n
            self._make(key, sum(unit(n, i) not in passing.heard for i in range(n)), effects)

    def _make(self, key: tuple[EventKey, int], count: int, effects: list[Effect]) -> None:
        (event, number), passing = key, self._passing[key]
        generation = passing.generation
        if not generation.is_done or count <= 0 or not self._config.coded:
            return
        passing.made += count
        for coefficients, payload in generation.combinations(count, self._dice):
            packet = Packet(
                event.topic, event.publisher, event.sequence, number, generation.geometry, coefficients, payload
            )
            effects.append(Broadcast(event.topic, PacketPiece(pack(packet, self._config.key)), passing.control))

    def _fired(self, timer: str, now: Micros) -> list[Effect]:
        name, _, number = timer.partition(" ")[2].partition("#")
        key = (event_of(name), int(number))
        passing = self._passing.get(key)
        if passing is None:
            return []
        quiet_at = Micros(passing.last_rx + self._config.quiet_us)
        if now < quiet_at:
            return [SetTimer(timer, quiet_at)]
        effects: list[Effect] = []
        sent = passing.generation.geometry.n + self._config.redundancy
        self._make(key, sent - len(passing.heard) - passing.made, effects)
        del self._passing[key]
        return effects


def _timer(key: tuple[EventKey, int]) -> str:
    return f"{timer_of('forward', key[0])}#{key[1]}"
