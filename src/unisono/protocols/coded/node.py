"""The coded node: publishes events as rows and combinations, collects them, and repairs by gossip what was lost.

An independent block of the stack (thesis 5.3, specs: coded gossip, 5): above it looks like the broker it stands on,
beneath it needs any topic broker that may lose, and a way to send to peers that may lose too. It promises to deliver
each event at most once, only with the bytes its publisher signed by digest, and to say `Gap` when an event it knows of
does not become complete by the deadline. It promises no order.

What a packet changes is durable (`Persist`); questions, adverts and views are not, since they decide nothing. Here are
members, publications and time; packets become events in `collecting`, and what is missing is got in `recovery`.
"""

from random import Random
from typing import Any

import msgspec

from unisono.machine import (
    PERSIST,
    Accepted,
    Broadcast,
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
    Stalled,
    Subscribe,
    Unknown,
    Unsubscribe,
)
from unisono.model.ids import Address, Topic
from unisono.model.time import Micros
from unisono.protocols.coded.arrivals import DIRECT, event_of, fragment
from unisono.protocols.coded.collecting import CONTROL, ENCODED, Collector
from unisono.protocols.coded.config import CodedConfig
from unisono.protocols.coded.messages import (
    SAMPLE,
    Adverts,
    AskPackets,
    EventKey,
    MemberHello,
    Members,
    Nothing,
    PacketPiece,
    Seen,
)
from unisono.protocols.coded.recovery import Recovery
from unisono.protocols.coded.redundancy import sending_order
from unisono.protocols.coded.site import CodedSite

ANSWERS_TO_HELLO = 5  # members that answer a newcomer, on average


class CodedNode:
    """Publisher, subscriber and gossip partner in one machine."""

    def __init__(self, me: Address, config: CodedConfig, dice: Random, messages: Any = bytes, life: str = "") -> None:
        """`messages` is the type (union) of what the layer above publishes; bytes travel as they are.

        `life` tells publishers apart that have the same address one after the other: numbers begin anew with each.
        """
        self._site = CodedSite(me, config, dice, life)
        self._config, self._topics, self._arrivals = config, self._site.topics, self._site.arrivals
        self._recovery = Recovery(self._site)
        self._collector = Collector(self._site, self._recovery, messages)
        self._sequences: dict[Topic, int] = {}

    @property
    def counters(self) -> dict[str, int]:
        """How often something odd happened, by name; see the reference page."""
        return self._site.counters

    def handle(self, message: Any, now: Micros) -> list[Effect]:
        effects: list[Effect] = []
        match message:
            case Heard(topic=topic, message=PacketPiece(data=data), number=number):
                self._collector.piece(data, DIRECT, topic, number, now, effects)
            case PacketPiece(data=data, source=source):
                self._collector.piece(data, source, None, 0, now, effects)
            case AskPackets():
                self._recovery.serve(message, now, effects)
            case Nothing(source=source, event=event):
                self._recovery.told_nothing(source, event, now, effects)
            case (Adverts() as adverts) | Heard(message=Adverts() as adverts):
                self._hear_adverts(adverts, now, effects)
            case Fired(key=key):
                self._fired(key, now, effects)
            case Publish():
                self._publish(message, now, effects)
            case Heard(topic=topic, message=MemberHello() as hello):
                self._greet(topic, hello, effects)
            case Members(topic=topic, peers=peers):
                if topic in self._topics:
                    self._topics[topic].meet(peers[: SAMPLE + 1])
            case Subscribe(topics=topics):
                for topic in topics:
                    self._site.subscribed[topic] = None
                    self._site.membership(topic)
                effects += [PERSIST, *(Join(topic) for topic in topics)]
            case Joined(topic=topic):
                self._site.membership(topic).since = now
                effects += [
                    PERSIST,
                    Broadcast(topic, MemberHello(self._site.me, topic, self._config.depth), control=True),
                ]
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

    def _greet(self, topic: Topic, hello: MemberHello, effects: list[Effect]) -> None:
        if topic not in self._topics or hello.source == self._site.me:
            return
        view = self._topics[topic].view
        known = (*view.sample(SAMPLE), Seen(self._site.me, self._config.depth))
        if self._site.dice.random() * (len(view) + 1) < ANSWERS_TO_HELLO:
            effects.append(Send(hello.source, Members(self._site.me, topic, known)))
        self._topics[topic].meet((Seen(hello.source, hello.depth),))

    def _unsubscribe(self, topics: tuple[Topic, ...], now: Micros, effects: list[Effect]) -> None:
        effects.append(PERSIST)
        for topic in [topic for topic in topics if topic in self._site.subscribed]:
            del self._site.subscribed[topic]
            for event in [event for event in self._arrivals.live if event.topic == topic]:
                self._collector.end(event, now, effects)
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
        membership = self._site.membership(topic)
        sequence = self._sequences[topic] = self._sequences.get(topic, 0) + 1
        arrival = fragment(EventKey(topic, self._site.id, sequence), flags, message, config, now)
        effects.append(PERSIST)
        if sequence & (sequence - 1) == 0:  # events 1, 2, 4, 8, …: an announcement may be lost, and members come late
            effects.append(Broadcast(topic, MemberHello(self._site.me, topic, 0), control=True))
        for number, generation in arrival.generations.items():
            extra = membership.reports.redundancy(generation.geometry.n, config)
            order = sending_order(arrival.event, number, generation.geometry.n)
            for line, payload in generation.first_packets(order, extra, config.coded, self._site.dice):
                data = arrival.packed(number, line, payload, config.key)
                effects.append(Broadcast(topic, PacketPiece(data), control=request.control))
        self._arrivals.keep(arrival, now)
        if topic not in self._site.subscribed:
            self._arrivals.remember(arrival.event, now)
        elif (
            self._collector.open(arrival.event, now, effects) is None
        ):  # else heard like everybody's, in the order beneath
            self._collector.deliver(arrival, 0, now, effects)
        self._collector.set_sweep(effects)
        self._recovery.adverts.later(arrival.event, now, effects)
        if request.request:
            effects.append(Deliver(Accepted(request.request)))

    # -- adverts and time

    def _hear_adverts(self, adverts: Adverts, now: Micros, effects: list[Effect]) -> None:
        for event in self._recovery.owed(adverts, now):
            arrival = self._arrivals.live.get(event) or self._collector.open(event, now, effects)
            if arrival is not None:
                self._recovery.ask_advertiser(adverts.source, arrival, now, effects)

    def _fired(self, key: str, now: Micros, effects: list[Effect]) -> None:
        if key == "advert":
            for topic, events in self._recovery.adverts.turn(now, effects).items():
                self._recovery.advertise(topic, events, now, effects)
        elif key == "sweep":
            self._collector.sweep(now, effects)
        else:
            kind, _, name = key.partition(" ")
            arrival = self._arrivals.live.get(event_of(name))
            if arrival is None:
                return
            is_quiet = now - arrival.last_rx >= self._config.quiet_us
            if kind == "ask" and not (is_quiet and arrival.event in self._arrivals.kept):
                self._recovery.tick(arrival, now, effects)
            else:
                self._collector.give_up(arrival, "not complete by its deadline", now, effects)

    def _wake(self, now: Micros, effects: list[Effect]) -> None:
        """Timers and subscriptions did not survive; the events did."""
        effects += [Join(topic) for topic in self._site.subscribed]
        self._collector.wake(now, effects)
        self._recovery.adverts.wake(now, effects)
        self._collector.set_sweep(effects)

    # -- durability

    def snapshot(self) -> Any:
        return {
            "subscribed": list(self._site.subscribed),
            "sequences": list(self._sequences.items()),
            "topics": [[topic, m.since, list(m.heads.items()), list(m.banned)] for topic, m in self._topics.items()],
            "arrivals": self._arrivals.snapshot(),
            "adverts": [[*msgspec.to_builtins(event), left] for event, left in self._recovery.adverts.left.items()],
        }

    def restore(self, snapshot: Any) -> None:
        self._site.subscribed = dict.fromkeys(snapshot["subscribed"])
        self._sequences = dict(snapshot["sequences"])
        for topic, since, heads, banned in snapshot["topics"]:
            membership = self._site.membership(topic)
            membership.since, membership.heads, membership.banned = since, dict(heads), dict.fromkeys(banned)
        self._arrivals.restore(snapshot["arrivals"])
        self._recovery.adverts.left = {EventKey(*event): left for *event, left in snapshot["adverts"]}
