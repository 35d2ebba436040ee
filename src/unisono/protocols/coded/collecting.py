"""From packets to events: rows are collected until an event is complete, or given up at its deadline.

An event is delivered at most once (J4), only with bytes of the digest that its publisher signed (J3), and none of its
timers outlives it (J7). What a packet changes is durable. Who lied about a row is found out and no longer listened to
(specs: coded gossip, 5.8). How what is missing is got from others is `recovery`.
"""

from typing import Any

import msgspec

from unisono.errors import InvariantError
from unisono.machine import PERSIST, CancelTimer, Deliver, Effect, Gap, Heard, SetTimer
from unisono.model.ids import Address, Topic
from unisono.model.time import Micros
from unisono.protocols.coded.arrivals import DIRECT, Arrival, Generation, timer_of
from unisono.protocols.coded.membership import Membership
from unisono.protocols.coded.messages import EventKey
from unisono.protocols.coded.recovery import Recovery
from unisono.protocols.coded.redundancy import sending_order
from unisono.protocols.coded.site import CodedSite
from unisono.protocols.coded.wire import BadPacket, Packet, unpack
from unisono.structures.decoder import Put

ENCODED, CONTROL = 1, 2  # flags of the envelope


class Collector:
    """The events of one node that are not complete yet, and what becomes of them."""

    def __init__(self, site: CodedSite, recovery: Recovery, messages: Any) -> None:
        self._site, self._config, self._recovery, self._message_type = site, site.config, recovery, messages
        self._topics, self._arrivals = site.topics, site.arrivals
        self._sweep_at: Micros | None = None  # the timer, if it is set

    def piece(
        self, data: bytes, source: Address, topic: Topic | None, number: int, now: Micros, effects: list[Effect]
    ) -> None:
        packet = unpack(data, self._config.key, self._config.packet_bytes)
        if isinstance(packet, BadPacket):
            self._site.count(f"bad {packet.value}")
            return
        if packet.topic not in self._site.subscribed or topic not in (None, packet.topic):
            self._site.count("foreign topic")
            return
        membership = self._topics[packet.topic]
        if source in membership.banned:
            self._site.count("banned source")
            return
        event = EventKey(packet.topic, packet.publisher, packet.sequence)
        if self._arrivals.is_finished(event):
            self._site.count("after the end")
            return
        if source == DIRECT:
            self._notice_missing(event, membership, now, effects)
        arrival = self._arrivals.live.get(event)
        if arrival is None:
            arrival = self.open(event, now, effects)
            if arrival is None:
                return
        generation = self._generation(arrival, packet, source, now, effects)
        if generation is None or generation.is_done:
            return
        if generation.failing and source != DIRECT and source not in arrival.open:
            self._site.count("not asked")  # under suspicion only those count that were asked since
            return
        put = generation.decoder.put(packet.coefficients, packet.payload, source)
        if source == DIRECT and packet.coefficients.count(0) == packet.geometry.n - 1 and 1 in packet.coefficients:
            generation.direct[packet.coefficients.index(1)] = None
        arrival.account(source, put is Put.INNOVATIVE)
        if put is Put.USELESS:
            self._site.count("useless")
            return
        effects.append(PERSIST)
        arrival.last_rx = now
        if put is Put.INCONSISTENT:
            self._site.count("inconsistent")
            self._suspect(arrival, generation, (*generation.decoder.sources(), source), now, effects)
        elif generation.decoder.is_complete:
            self._complete(arrival, packet.generation, generation, number, now, effects)

    def _notice_missing(self, event: EventKey, membership: Membership, now: Micros, effects: list[Effect]) -> None:
        """A publisher's numbers have no holes: one that is skipped was lost whole, and is asked for."""
        head = membership.advance(event)
        if not head or event.sequence <= head + 1:
            return
        first = max(head + 1, event.sequence - self._config.behind_max)
        if first > head + 1:
            publisher = f"{event.publisher:016x}"
            reason = f"publisher {publisher} was not heard for too long"
            effects += [PERSIST, Deliver(Gap(event.topic, head + 1, first - 1, reason, publisher))]
        for sequence in range(first, event.sequence):
            missed = EventKey(event.topic, event.publisher, sequence)
            if missed not in self._arrivals.live and not self._arrivals.is_finished(missed):
                self.open(missed, now, effects)

    def open(self, event: EventKey, now: Micros, effects: list[Effect]) -> Arrival | None:
        if not self._make_room(event.publisher, None, now, effects):
            return None
        arrival = self._arrivals.open(event, now)
        effects.append(PERSIST)
        effects.append(SetTimer(timer_of("deadline", event), Micros(now + self._config.deadline_us)))
        if self._config.style == "need":
            effects.append(SetTimer(timer_of("ask", event), Micros(now + self._recovery.quiet())))
        return arrival

    def _make_room(self, publisher: int, asking: Arrival | None, now: Micros, effects: list[Effect]) -> bool:
        has_room, victim = self._arrivals.victim(publisher, now, asking)
        if has_room:
            return True
        if victim is None:
            self._site.count("no room")
            return False
        self._site.count("evicted")
        self.give_up(victim, "no room for more unfinished events", now, effects)
        return True

    def _generation(
        self, arrival: Arrival, packet: Packet, source: Address, now: Micros, effects: list[Effect]
    ) -> Generation | None:
        number, is_direct = packet.generation, source == DIRECT
        generation = arrival.generations.get(number)
        if generation is None:
            if number >= (arrival.total or self._config.generations_max):
                self._site.count("no such generation")
                return None
            if arrival.generations and not self._make_room(arrival.event.publisher, arrival, now, effects):
                return None
            return self._arrivals.add_generation(arrival, number, packet.geometry, is_direct)
        if generation.geometry == packet.geometry:
            generation.trusted = generation.trusted or is_direct
            return generation
        self._site.count("geometry mismatch")
        if not is_direct or generation.trusted:
            return None
        # The first word counts, but for the publisher's own: whoever opened this generation was wrong about it.
        self._site.count("geometry reset")
        arrival.generations[number] = Generation(packet.geometry, trusted=True)
        return arrival.generations[number]

    def _complete(
        self, arrival: Arrival, number: int, generation: Generation, heard: int, now: Micros, effects: list[Effect]
    ) -> None:
        """A generation has full rank; the event may be complete now."""
        event, sources = arrival.event, generation.decoder.sources()
        if not generation.verify(event, number):
            self._site.count("polluted")
            self._suspect(arrival, generation, tuple(sources), now, effects)
            return
        membership = self._topics[event.topic]
        for _ in range(membership.judge(generation.failing, sources)):
            self._site.count("banned")
        if generation.direct:
            membership.estimator.learn(sending_order(event, number, generation.geometry.n), generation.direct)
        if number == 0:
            arrival.total = generation.total()
        if arrival.total and arrival.total <= max(arrival.generations):
            self._site.count("bad envelope")
            self.give_up(arrival, "its envelope makes no sense", now, effects)
            return
        if arrival.is_complete:
            self.deliver(arrival, heard, now, effects)

    def deliver(self, arrival: Arrival, heard: int, now: Micros, effects: list[Effect]) -> None:
        event = arrival.event
        if self._arrivals.is_finished(event):
            raise InvariantError(f"{event} would be delivered twice")  # J4
        flags, message = arrival.message_bytes()
        self.end(event, now, effects)
        try:
            content = msgspec.msgpack.decode(message, type=self._message_type) if flags & ENCODED else message
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            self._site.count("bad envelope")
            effects.append(Deliver(_gap(event, "its content is not what this topic carries")))
            return
        effects.append(Deliver(Heard(event.topic, content, bool(flags & CONTROL), number=heard)))
        self._arrivals.keep(arrival, now)
        self.set_sweep(effects)
        self._recovery.spread(arrival, now, effects)

    def _suspect(
        self, arrival: Arrival, generation: Generation, sources: tuple[Address, ...], now: Micros, effects: list[Effect]
    ) -> None:
        """Some row is not what it says. Keep what the publisher itself sent, if that can be right; ask others."""
        peers = tuple(dict.fromkeys(source for source in sources if source != DIRECT))
        generation.failing.append(peers)
        generation.decoder = generation.decoder.keep([DIRECT] if peers else [])
        for peer in peers:
            arrival.avoid[peer] = None
        if self._config.style == "need":
            effects.append(SetTimer(timer_of("ask", arrival.event), now))

    # -- the end of an event

    def end(self, event: EventKey, now: Micros, effects: list[Effect]) -> None:
        """No timer outlives the event (J7)."""
        self._arrivals.end(event, now)
        effects.append(CancelTimer(timer_of("deadline", event)))
        if self._config.style == "need":
            effects.append(CancelTimer(timer_of("ask", event)))
        self.set_sweep(effects)

    def give_up(self, arrival: Arrival, why: str, now: Micros, effects: list[Effect]) -> None:
        if arrival.event in self._arrivals.kept:  # our own, and the broker has not brought it back
            effects.append(PERSIST)
            self.deliver(self._arrivals.kept[arrival.event][1], 0, now, effects)
            return
        have = sum(g.geometry.n - g.need for g in arrival.generations.values())
        size = sum(g.geometry.n for g in arrival.generations.values())
        self._site.count("gaps")
        self.end(arrival.event, now, effects)
        effects += [PERSIST, Deliver(_gap(arrival.event, f"{why}; {have} of {size or 'unknown'} packets are here"))]

    # -- time

    def set_sweep(self, effects: list[Effect]) -> None:
        at = self._arrivals.next_sweep()
        if at is not None and (self._sweep_at is None or at < self._sweep_at):
            self._sweep_at = at
            effects.append(SetTimer("sweep", at))

    def sweep(self, now: Micros, effects: list[Effect]) -> None:
        self._sweep_at = None
        if self._arrivals.sweep(now):
            effects.append(PERSIST)
        self.set_sweep(effects)

    def wake(self, now: Micros, effects: list[Effect]) -> None:
        """Timers did not survive; the events did."""
        self._sweep_at = None
        for event, arrival in self._arrivals.live.items():
            effects.append(SetTimer(timer_of("deadline", event), Micros(arrival.first_seen + self._config.deadline_us)))
            if self._config.style == "need":
                effects.append(SetTimer(timer_of("ask", event), Micros(now + self._recovery.quiet())))


def _gap(event: EventKey, reason: str) -> Gap:
    publisher = f"{event.publisher:016x}"
    return Gap(event.topic, event.sequence, event.sequence, f"publisher {publisher}: {reason}", publisher)
