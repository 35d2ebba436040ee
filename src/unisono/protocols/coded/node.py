"""The coded node: publishes events as rows and combinations, collects them, and repairs by gossip what was lost.

An independent block of the stack (thesis 5.3, specs: coded gossip, 5): above it looks like the broker it stands on,
beneath it needs any topic broker that may lose, and a way to send to peers that may lose too. It promises to deliver
each event at most once, only with the bytes its publisher signed by digest, and to say `Gap` when an event it knows of
does not become complete by the deadline. It promises no order.

What a packet changes is durable (`Persist`); questions, adverts and views are not, since they decide nothing.
"""

from random import Random
from typing import Any

import msgspec

from unisono.errors import InvariantError
from unisono.machine import (
    PERSIST,
    Accepted,
    Broadcast,
    CancelTimer,
    Deliver,
    Effect,
    Fired,
    Gap,
    Heard,
    Join,
    Joined,
    Leave,
    Publish,
    Refuse,
    Refused,
    Restarted,
    Send,
    SetTimer,
    Stalled,
    Subscribe,
    Unknown,
    Unsubscribe,
)
from unisono.model.ids import Address, Topic
from unisono.model.time import Micros
from unisono.protocols.coded.advertiser import Advertiser
from unisono.protocols.coded.arrivals import (
    DIRECT,
    Arrival,
    Arrivals,
    Generation,
    Question,
    event_of,
    fragment,
    timer_of,
)
from unisono.protocols.coded.config import CodedConfig
from unisono.protocols.coded.membership import Membership
from unisono.protocols.coded.messages import Advert, Adverts, Ask, EventKey, Hello, Members, Nothing, Piece, Seen
from unisono.protocols.coded.peers import View
from unisono.protocols.coded.redundancy import sending_order
from unisono.protocols.coded.wire import Bad, Packet, publisher_id, unpack
from unisono.structures.decoder import Put, unit

ENCODED, CONTROL = 1, 2  # flags of the envelope
ANSWERS_TO_HELLO = 5  # members that answer a newcomer, on average
SAMPLE = 4  # members told about in a message
AT_ONCE = 8  # generations asked for in one go
ANY = 255  # the need for a generation of which nothing is known


class CodedNode:
    """Publisher, subscriber and gossip partner in one machine."""

    def __init__(self, me: Address, config: CodedConfig, dice: Random, messages: Any = bytes, life: str = "") -> None:
        """`messages` is the type (union) of what the layer above publishes; bytes travel as they are.

        `life` tells publishers apart that have the same address one after the other: numbers begin anew with each.
        """
        self._me = me
        self._config = config
        self._dice = dice
        self._message_type = messages
        self._id = publisher_id(Address(f"{me}{life}"))
        self._topics: dict[Topic, Membership] = {}
        self._subscribed: dict[Topic, None] = {}
        self._sequences: dict[Topic, int] = {}
        self._arrivals = Arrivals(config)
        self._adverts = Advertiser(config)
        self._sweep_at: Micros | None = None  # the timer, if it is set
        self.counters: dict[str, int] = {}
        """How often something odd happened, by name; see the reference page."""

    def handle(self, message: Any, now: Micros) -> list[Effect]:
        effects: list[Effect] = []
        match message:
            case Heard(topic=topic, message=Piece(data=data), number=number):
                self._piece(data, DIRECT, topic, number, now, effects)
            case Piece(data=data, source=source):
                self._piece(data, source, None, 0, now, effects)
            case Ask():
                self._serve(message, now, effects)
            case Nothing(source=source, event=event):
                self._told_nothing(source, event, now, effects)
            case (Adverts() as adverts) | Heard(message=Adverts() as adverts):
                self._hear_adverts(adverts, now, effects)
            case Fired(key=key):
                self._fired(key, now, effects)
            case Publish():
                self._publish(message, now, effects)
            case Heard(topic=topic, message=Hello() as hello):
                self._greet(topic, hello, effects)
            case Members(topic=topic, peers=peers):
                if topic in self._topics:
                    self._topics[topic].meet(peers[: SAMPLE + 1])
            case Subscribe(topics=topics):
                for topic in topics:
                    self._subscribed[topic] = None
                    self._membership(topic)
                effects += [PERSIST, *(Join(topic) for topic in topics)]
            case Joined(topic=topic):
                self._membership(topic).since = now
                effects += [PERSIST, Broadcast(topic, Hello(self._me, topic, self._config.depth), control=True)]
                effects.append(Deliver(message))
            case Unsubscribe(topics=topics):
                self._unsubscribe(topics, now, effects)
            case Restarted():
                self._wake(now, effects)
            case Heard() | Gap() | Stalled():
                effects.append(Deliver(message))  # not ours: plain publishers, and notices of the layer beneath
            case Accepted() | Refused() | Unknown():
                pass  # of one packet, from the layer beneath: repair makes up for it
            case _:
                effects.append(Refuse(f"a coded node does not understand {type(message).__name__}"))
        if effects.count(PERSIST) > 1:
            effects = [PERSIST, *(effect for effect in effects if effect != PERSIST)]
        return effects

    # -- members

    def _membership(self, topic: Topic) -> Membership:
        if topic not in self._topics:
            self._topics[topic] = Membership(View(self._me, self._config.view_max, self._dice))
            for seed in self._config.seeds:
                self._topics[topic].view.add(seed, 1)
        return self._topics[topic]

    def _greet(self, topic: Topic, hello: Hello, effects: list[Effect]) -> None:
        if topic not in self._topics or hello.source == self._me:
            return
        view = self._topics[topic].view
        known = (*view.sample(SAMPLE), Seen(self._me, self._config.depth))
        if self._dice.random() * (len(view) + 1) < ANSWERS_TO_HELLO:
            effects.append(Send(hello.source, Members(self._me, topic, known)))
        self._topics[topic].meet((Seen(hello.source, hello.depth),))

    def _unsubscribe(self, topics: tuple[Topic, ...], now: Micros, effects: list[Effect]) -> None:
        effects.append(PERSIST)
        for topic in [topic for topic in topics if topic in self._subscribed]:
            del self._subscribed[topic]
            for event in [event for event in self._arrivals.live if event.topic == topic]:
                self._end(event, now, effects)
            del self._topics[topic]
            effects.append(Leave(topic))

    # -- publishing

    def _publish(self, request: Publish, now: Micros, effects: list[Effect]) -> None:
        topic, message, config = request.topic, request.message, self._config
        flags = CONTROL if request.control else 0
        if not isinstance(message, bytes):
            flags, message = flags | ENCODED, msgspec.msgpack.encode(message)
        if len(message) > config.event_bytes_max:
            reason = f"the event has {len(message)} bytes, more than the {config.event_bytes_max} allowed"
            effects.append(Deliver(Refused(request.request, reason)))
            return
        membership = self._membership(topic)
        sequence = self._sequences[topic] = self._sequences.get(topic, 0) + 1
        arrival = fragment(EventKey(topic, self._id, sequence), flags, message, config, now)
        effects.append(PERSIST)
        if sequence & (sequence - 1) == 0:  # events 1, 2, 4, 8, …: an announcement may be lost, and members come late
            effects.append(Broadcast(topic, Hello(self._me, topic, 0), control=True))
        for number, generation in arrival.generations.items():
            extra = membership.reports.redundancy(generation.geometry.n, config)
            order = sending_order(arrival.event, number, generation.geometry.n)
            for line, payload in generation.first_packets(order, extra, config.coded, self._dice):
                data = arrival.packed(number, line, payload, config.key)
                effects.append(Broadcast(topic, Piece(data), control=request.control))
        self._arrivals.keep(arrival, now)
        if topic not in self._subscribed:
            self._arrivals.remember(arrival.event, now)
        elif self._open(arrival.event, now, effects) is None:  # else heard like everybody's, in the order beneath
            self._deliver(arrival, 0, now, effects)
        self._set_sweep(effects)
        self._adverts.later(arrival.event, now, effects)
        if request.request:
            effects.append(Deliver(Accepted(request.request)))

    # -- receiving

    def _piece(
        self, data: bytes, source: Address, topic: Topic | None, number: int, now: Micros, effects: list[Effect]
    ) -> None:
        packet = unpack(data, self._config.key, self._config.packet_bytes)
        if isinstance(packet, Bad):
            self._count(f"bad {packet.value}")
            return
        if packet.topic not in self._subscribed or topic not in (None, packet.topic):
            self._count("foreign topic")
            return
        membership = self._topics[packet.topic]
        if source in membership.banned:
            self._count("banned source")
            return
        event = EventKey(packet.topic, packet.publisher, packet.sequence)
        if self._arrivals.is_finished(event):
            self._count("after the end")
            return
        if source == DIRECT:
            self._notice_missing(event, membership, now, effects)
        arrival = self._arrivals.live.get(event)
        if arrival is None:
            arrival = self._open(event, now, effects)
            if arrival is None:
                return
        generation = self._generation(arrival, packet, source, now, effects)
        if generation is None or generation.is_done:
            return
        if generation.failing and source != DIRECT and source not in arrival.open:
            self._count("not asked")  # under suspicion only those count that were asked since
            return
        put = generation.decoder.put(packet.coefficients, packet.payload, source)
        if source == DIRECT and packet.coefficients.count(0) == packet.geometry.n - 1 and 1 in packet.coefficients:
            generation.direct[packet.coefficients.index(1)] = None
        arrival.account(source, put is Put.INNOVATIVE)
        if put is Put.USELESS:
            self._count("useless")
            return
        effects.append(PERSIST)
        arrival.last_rx = now
        if put is Put.INCONSISTENT:
            self._count("inconsistent")
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
                self._open(missed, now, effects)

    def _open(self, event: EventKey, now: Micros, effects: list[Effect]) -> Arrival | None:
        if not self._make_room(event.publisher, None, now, effects):
            return None
        arrival = self._arrivals.open(event, now)
        effects.append(PERSIST)
        effects.append(SetTimer(timer_of("deadline", event), Micros(now + self._config.deadline_us)))
        if self._config.style == "need":
            effects.append(SetTimer(timer_of("ask", event), Micros(now + self._quiet())))
        return arrival

    def _make_room(self, publisher: int, asking: Arrival | None, now: Micros, effects: list[Effect]) -> bool:
        has_room, victim = self._arrivals.victim(publisher, now, asking)
        if has_room:
            return True
        if victim is None:
            self._count("no room")
            return False
        self._count("evicted")
        self._give_up(victim, "no room for more unfinished events", now, effects)
        return True

    def _generation(
        self, arrival: Arrival, packet: Packet, source: Address, now: Micros, effects: list[Effect]
    ) -> Generation | None:
        number, is_direct = packet.generation, source == DIRECT
        generation = arrival.generations.get(number)
        if generation is None:
            if number >= (arrival.total or self._config.generations_max):
                self._count("no such generation")
                return None
            if arrival.generations and not self._make_room(arrival.event.publisher, arrival, now, effects):
                return None
            return self._arrivals.add_generation(arrival, number, packet.geometry, is_direct)
        if generation.geometry == packet.geometry:
            generation.trusted = generation.trusted or is_direct
            return generation
        self._count("geometry mismatch")
        if not is_direct or generation.trusted:
            return None
        # The first word counts, but for the publisher's own: whoever opened this generation was wrong about it.
        self._count("geometry reset")
        arrival.generations[number] = Generation(packet.geometry, trusted=True)
        return arrival.generations[number]

    def _complete(
        self, arrival: Arrival, number: int, generation: Generation, heard: int, now: Micros, effects: list[Effect]
    ) -> None:
        """A generation has full rank; the event may be complete now."""
        event, sources = arrival.event, generation.decoder.sources()
        if not generation.verify(event, number):
            self._count("polluted")
            self._suspect(arrival, generation, tuple(sources), now, effects)
            return
        membership = self._topics[event.topic]
        for _ in range(membership.judge(generation.failing, sources)):
            self._count("banned")
        if generation.direct:
            membership.estimator.learn(sending_order(event, number, generation.geometry.n), generation.direct)
        if number == 0:
            arrival.total = generation.total()
        if arrival.total and arrival.total <= max(arrival.generations):
            self._count("bad envelope")
            self._give_up(arrival, "its envelope makes no sense", now, effects)
            return
        if arrival.is_complete:
            self._deliver(arrival, heard, now, effects)

    def _deliver(self, arrival: Arrival, heard: int, now: Micros, effects: list[Effect]) -> None:
        event = arrival.event
        if self._arrivals.is_finished(event):
            raise InvariantError(f"{event} would be delivered twice")  # J4
        flags, message = arrival.message_bytes()
        self._end(event, now, effects)
        try:
            content = msgspec.msgpack.decode(message, type=self._message_type) if flags & ENCODED else message
        except (msgspec.DecodeError, msgspec.ValidationError):
            self._count("bad envelope")
            effects.append(Deliver(_gap(event, "its content is not what this topic carries")))
            return
        effects.append(Deliver(Heard(event.topic, content, bool(flags & CONTROL), number=heard)))
        self._arrivals.keep(arrival, now)
        self._set_sweep(effects)
        self._spread(arrival, now, effects)

    # -- pollution (specs 5.8)

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

    def _end(self, event: EventKey, now: Micros, effects: list[Effect]) -> None:
        """No timer outlives the event (J7)."""
        self._arrivals.end(event, now)
        effects.append(CancelTimer(timer_of("deadline", event)))
        if self._config.style == "need":
            effects.append(CancelTimer(timer_of("ask", event)))
        self._set_sweep(effects)

    def _give_up(self, arrival: Arrival, why: str, now: Micros, effects: list[Effect]) -> None:
        if arrival.event in self._arrivals.kept:  # our own, and the broker has not brought it back
            effects.append(PERSIST)
            self._deliver(self._arrivals.kept[arrival.event][1], 0, now, effects)
            return
        have = sum(g.geometry.n - g.need for g in arrival.generations.values())
        size = sum(g.geometry.n for g in arrival.generations.values())
        self._count("gaps")
        self._end(arrival.event, now, effects)
        effects += [PERSIST, Deliver(_gap(arrival.event, f"{why}; {have} of {size or 'unknown'} packets are here"))]

    def _set_sweep(self, effects: list[Effect]) -> None:
        at = self._arrivals.next_sweep()
        if at is not None and (self._sweep_at is None or at < self._sweep_at):
            self._sweep_at = at
            effects.append(SetTimer("sweep", at))

    # -- recovery: the incomplete node asks

    def _quiet(self) -> int:
        return self._config.quiet_us + self._dice.randrange(self._config.quiet_us // 2 + 1)

    def _tick(self, arrival: Arrival, now: Micros, effects: list[Effect]) -> None:
        """The event has been quiet: ask for what it lacks, and again in every tau."""
        config = self._config
        if now - arrival.last_rx < config.quiet_us and (
            arrival.asked_at is None or arrival.asked_at <= arrival.last_rx
        ):
            effects.append(SetTimer(timer_of("ask", arrival.event), Micros(arrival.last_rx + self._quiet())))
            return
        view = self._topics[arrival.event.topic].view
        for peer, question in arrival.open.items():
            view.learn(peer, question.expected, question.arrived)
            if not question.arrived:
                arrival.avoid[peer] = None
        arrival.open.clear()
        arrival.asked_at = now
        fanout = 1 if arrival.start_over() else config.fanout
        partners = view.draw(fanout, config.polarized, arrival.avoid)
        if not partners:  # everybody has had a turn
            arrival.avoid.clear()
            partners = view.draw(fanout, config.polarized)
        if not partners:
            topic = arrival.event.topic
            effects.append(Broadcast(topic, Hello(self._me, topic, config.depth), control=True))
        effects.append(PERSIST)
        for peer in partners:
            self._ask(peer, arrival, effects)
        effects.append(SetTimer(timer_of("ask", arrival.event), Micros(now + config.ask_every_us)))

    def _ask(self, peer: Address, arrival: Arrival, effects: list[Effect]) -> None:
        config, expected = self._config, 0
        observed = self._topics[arrival.event.topic].estimator.observed
        for number in arrival.missing()[:AT_ONCE]:
            generation = arrival.generations.get(number)
            need, held = (ANY, b"") if generation is None else (generation.need, b"")
            if config.style != "need" and not config.coded:
                need = ANY  # the thesis' plain styles repeat the whole event
            elif generation is not None:
                held = generation.held_rows()
            expected += need + config.extra if need < ANY else 1
            effects.append(Send(peer, Ask(self._me, arrival.event, number, need, held, observed)))
        arrival.open[peer] = Question(expected)

    def _told_nothing(self, source: Address, event: EventKey, now: Micros, effects: list[Effect]) -> None:
        """Somebody we asked knows nothing of it: ask the next one at once."""
        arrival = self._arrivals.live.get(event)
        if arrival is None or source not in arrival.open:
            return
        membership = self._topics[event.topic]
        membership.view.learn(source, 0, 0)
        del arrival.open[source]
        arrival.avoid[source] = None
        for peer in membership.view.draw(1, self._config.polarized, (*arrival.avoid, *arrival.open)):
            self._ask(peer, arrival, effects)

    def _serve(self, ask: Ask, now: Micros, effects: list[Effect]) -> None:
        membership = self._topics.get(ask.event.topic)
        if membership is None or ask.source in membership.banned or not 0 < ask.need <= ANY:
            effects.append(Refuse(f"{ask.source} asks for what is not its to ask for"))
            return
        membership.reports.learn(ask.source, ask.observed)
        if ask.source not in membership.view:
            membership.meet((Seen(ask.source, 1),))
        arrival = self._arrivals.find(ask.event)
        generation = arrival.generations.get(ask.generation) if arrival is not None else None
        useful = generation.useful_to(ask.need, ask.held) if generation is not None else 0
        if arrival is None or generation is None or useful <= 0:
            effects.append(Send(ask.source, Nothing(self._me, ask.event, ask.generation)))
            return
        config = self._config
        cap = arrival.allowance(ask.source, ask.generation, now, config.ask_every_us)
        count = min(useful + config.extra, cap)
        packets = generation.repairs(ask.need, ask.held, count, config, self._dice)
        if len(packets) > min(ask.need + config.extra, cap):
            raise InvariantError(f"{len(packets)} packets for a need of {ask.need}")  # J5
        if cap < useful:
            self._count("over the cap")
        arrival.spend(ask.source, ask.generation, len(packets), now)
        for line, payload in packets:
            data = arrival.packed(ask.generation, line, payload, config.key)
            effects.append(Send(ask.source, Piece(data, self._me)))

    # -- recovery: the complete node begins

    def _spread(self, arrival: Arrival, now: Micros, effects: list[Effect]) -> None:
        config, event = self._config, arrival.event
        match config.style:
            case "push":
                view = self._topics[event.topic].view
                for peer in view.draw(config.fanout, config.polarized):
                    for number, generation in arrival.generations.items():
                        rows = generation.rows
                        packets = [(unit(len(rows), i), row) for i, row in enumerate(rows)]
                        if config.coded:
                            packets = generation.combinations(config.push_packets, self._dice)
                        for line, payload in packets:
                            data = arrival.packed(number, line, payload, config.key)
                            effects.append(Send(peer, Piece(data, self._me)))
            case "push-pull":
                self._send_adverts(event.topic, [event], now, effects)
            case "pull" | "need" | "none":
                self._adverts.later(event, now, effects)

    def _send_adverts(self, topic: Topic, events: list[EventKey], now: Micros, effects: list[Effect]) -> None:
        membership = self._topics.get(topic)
        if membership is None:
            return
        entries = []
        for event in events[: self._config.adverts_max]:
            arrival = self._arrivals.find(event)
            if arrival is not None:
                entries.append(Advert(event, now - arrival.first_seen))
        view, observed = membership.view, membership.estimator.observed
        if not entries:
            return
        news = Adverts(self._me, topic, tuple(entries), view.sample(SAMPLE), self._config.depth, observed)
        effects += [Send(peer, news) for peer in view.draw(self._config.fanout, self._config.polarized)]
        if self._config.style == "need" and any(entry.event.publisher == self._id for entry in entries):
            # One small message for all events of the period: who heard nothing of an event hears of it here first.
            effects.append(Broadcast(topic, news, control=True))

    def _hear_adverts(self, adverts: Adverts, now: Micros, effects: list[Effect]) -> None:
        membership = self._topics.get(adverts.topic)
        if membership is None or adverts.source in membership.banned or adverts.source == self._me:
            return
        membership.reports.learn(adverts.source, adverts.observed)
        membership.meet((Seen(adverts.source, adverts.depth), *adverts.peers[:SAMPLE]))
        if membership.since is None or adverts.topic not in self._subscribed:
            return
        for entry in adverts.entries[: self._config.adverts_max]:
            event = entry.event
            # An event that is older than our subscription is not owed to us.
            is_old = now - entry.age_us < membership.since or event.topic != adverts.topic
            if is_old or self._arrivals.is_finished(event):
                continue
            arrival = self._arrivals.live.get(event) or self._open(event, now, effects)
            if arrival is None:
                continue
            is_due = arrival.asked_at is None or now - arrival.asked_at >= self._config.ask_every_us
            if is_due:
                arrival.open.clear()
            # Whoever asks by itself asks one at a time; the thesis' styles have nothing but adverts to go by.
            if is_due or (self._config.style != "need" and adverts.source not in arrival.open):
                arrival.asked_at = now
                effects.append(PERSIST)
                self._ask(adverts.source, arrival, effects)

    # -- time

    def _fired(self, key: str, now: Micros, effects: list[Effect]) -> None:
        if key == "advert":
            for topic, events in self._adverts.turn(now, effects).items():
                self._send_adverts(topic, events, now, effects)
        elif key == "sweep":
            self._sweep_at = None
            if self._arrivals.sweep(now):
                effects.append(PERSIST)
            self._set_sweep(effects)
        else:
            kind, _, name = key.partition(" ")
            arrival = self._arrivals.live.get(event_of(name))
            if arrival is None:
                return
            is_quiet = now - arrival.last_rx >= self._config.quiet_us
            if kind == "ask" and not (is_quiet and arrival.event in self._arrivals.kept):
                self._tick(arrival, now, effects)
            else:
                self._give_up(arrival, "not complete by its deadline", now, effects)

    def _wake(self, now: Micros, effects: list[Effect]) -> None:
        """Timers and subscriptions did not survive; the events did."""
        self._sweep_at = None
        effects += [Join(topic) for topic in self._subscribed]
        for event, arrival in self._arrivals.live.items():
            effects.append(SetTimer(timer_of("deadline", event), Micros(arrival.first_seen + self._config.deadline_us)))
            if self._config.style == "need":
                effects.append(SetTimer(timer_of("ask", event), Micros(now + self._quiet())))
        self._adverts.wake(now, effects)
        self._set_sweep(effects)

    # -- durability

    def snapshot(self) -> Any:
        return {
            "subscribed": list(self._subscribed),
            "sequences": list(self._sequences.items()),
            "topics": [[topic, m.since, list(m.heads.items()), list(m.banned)] for topic, m in self._topics.items()],
            "arrivals": self._arrivals.snapshot(),
            "adverts": [[*msgspec.to_builtins(event), left] for event, left in self._adverts.left.items()],
        }

    def restore(self, snapshot: Any) -> None:
        self._subscribed = dict.fromkeys(snapshot["subscribed"])
        self._sequences = dict(snapshot["sequences"])
        for topic, since, heads, banned in snapshot["topics"]:
            membership = self._membership(topic)
            membership.since, membership.heads, membership.banned = since, dict(heads), dict.fromkeys(banned)
        self._arrivals.restore(snapshot["arrivals"])
        self._adverts.left = {EventKey(*event): left for *event, left in snapshot["adverts"]}

    def _count(self, what: str) -> None:
        self.counters[what] = self.counters.get(what, 0) + 1


def _gap(event: EventKey, reason: str) -> Gap:
    publisher = f"{event.publisher:016x}"
    return Gap(event.topic, event.sequence, event.sequence, f"publisher {publisher}: {reason}", publisher)
