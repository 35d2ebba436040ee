"""A host: drives one machine in the world, performs its effects in order, keeps its disk, writes its journal.

A durable machine's disk is a snapshot and the log of the inputs handled since; `Persist` appends the input now being
handled. A crash may come between any two effects, so also before the `Persist`. A restart makes a new machine, restores
the snapshot, replays the log with the effects ignored, and gives `Restarted`. The first start of a durable machine is a
restart from an empty disk. A machine that is not durable starts anew, under a new name.

A host may take time to serve a message and may have a bounded queue (`ServiceSpec`; off by default, then messages cost
nothing and only links and waiting make latency).
"""

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from unisono.machine import (
    Broadcast,
    CancelTimer,
    Deliver,
    DurableMachine,
    Effect,
    Fired,
    Heard,
    Join,
    Joined,
    Leave,
    Machine,
    Persist,
    Publish,
    Refuse,
    Restarted,
    Select,
    Send,
    SetTimer,
    Subscribe,
    Unsubscribe,
    one_by_one,
)
from unisono.model.event import Event, Scalar
from unisono.model.ids import Address, Topic
from unisono.model.predicate import Filter, to_text
from unisono.model.time import Micros
from unisono.sim.chronicle import events_in, write_notice
from unisono.sim.spec import Span, Spec
from unisono.structures.sessions import BroadcastsDone, Sessions

if TYPE_CHECKING:
    from unisono.sim.world import World

Build = Callable[[str], Machine]
"""Makes a machine for the name its host now goes by: the address, or `address#2` once its memory was lost."""


class ServiceSpec(Spec, frozen=True):
    """How a host works off its messages."""

    per_message_us: Span = Span(0)
    queue_max: int = 1_000
    when_full: Literal["drop", "push back"] = "drop"
    """`drop` loses what finds the queue full; `push back` leaves it with its sender until there is room."""


class Disk:
    """What survives a crash."""

    def __init__(self) -> None:
        self.snapshot: bytes | None = None
        self.log: list[tuple[Micros, Any]] = []


class Host:
    """One machine, its timers, its disk and its application side."""

    def __init__(
        self,
        world: "World",
        address: Address,
        build: Build,
        region: str,
        service: ServiceSpec | None,
        snapshot_every: int,
    ) -> None:
        self.world = world
        self.address = address
        self.name = str(address)
        self.region = region
        self.life = 0
        self.is_up = False
        self.skew_us = 0
        self.crash_at: int | None = None
        """The machine crashes instead of performing the effect with this number (counted from 1 over all lives)."""
        self.effects = 0
        self.dropped = 0
        self.on_crash: Callable[[], None] | None = None
        """What the world has planned for the moment after the next crash: mostly a restart."""
        self.on_down: Callable[[], None] | None = None
        """An observer of every crash; stages let the peers of a connection notice by it."""
        self.on_deliver: Callable[[Any], None] | None = None
        """The application: sees every item the machine delivers; may call `publish` and the like."""
        self.on_effect: Callable[[Effect], None] | None = None
        """An observer of every effect performed; stages write records with it that only their protocol knows."""
        self.subscribed: dict[Topic, int] = {}  # topic -> base, as the machine said
        self.where: str | None = None
        """The filter its subscriptions have, as the journal tells it."""
        self.disk = Disk()
        self._build = build
        self._service = service
        self._snapshot_every = snapshot_every
        self._timers: dict[str, int] = {}
        self._timer_count = 0
        self._beneath: dict[Topic, int | None] = {}  # topics joined at the ENS; since when in force
        self.known_at: dict[str, int] = {}  # event -> when this life first knew of it; only if a deadline is judged
        self.position = 0  # notifications so far
        self._sequence = 0
        self._pauses = 0
        self._waiting: deque[Any] = deque()
        self._overflow: deque[Any] = deque()
        self._busy = False
        self._last_confirm = 0

    # -- life and death

    def start(self) -> None:
        """Makes the machine of this life from what is on the disk."""
        self.life += 1
        self.is_up = True
        self.machine = machine = self._build(self.name)
        self._confirms = isinstance(machine, Sessions)
        if isinstance(machine, DurableMachine):
            if self.disk.snapshot is not None:
                machine.restore(msgspec.msgpack.decode(self.disk.snapshot, strict=False))
            for then, message in self.disk.log:
                machine.handle(message, then)
            if self.life == 1:
                self.tell(Restarted())  # when the world runs: the hosts it may send to need not be there yet
            else:
                self._handle(Restarted())

    def crash(self) -> None:
        if not self.is_up:
            return
        self.is_up = False
        self.crash_at = None
        self.life += 1
        self._timers.clear()
        self._waiting.clear()
        self._overflow.clear()
        self._beneath.clear()
        self.subscribed.clear()
        self.known_at.clear()
        self._busy = False
        self.world.ens.forget(self)
        self.world.note("crash", self.name)
        if self.on_down is not None:
            self.on_down()
        planned, self.on_crash = self.on_crash, None
        if planned is not None:
            planned()

    def restart(self, disk: bool = True) -> None:
        """Comes back, with its disk or with an empty one."""
        if self.is_up:
            return
        if not disk or not isinstance(self.machine, DurableMachine):
            self.disk = Disk()
            self.name = f"{self.address}#{self.life}"
            self.position = self._sequence = 0
        self.world.note("restart", self.name, note="with its disk" if disk else "without its disk")
        self.start()

    def pause(self) -> None:
        self._pauses += 1

    def resume(self) -> None:
        self._pauses -= 1
        if not self._pauses and not self._busy:
            self._serve()

    # -- from the application

    def publish(self, topic: str, payload: bytes = b"", attributes: dict[str, Scalar] | None = None) -> Event | None:
        """Publishes an event; returns it, or None if the host is down."""
        if not self.is_up:
            return None
        self._sequence += 1
        now = self.world.now
        event = Event(self.name, self._sequence, topic, payload, attributes or {}, Micros(now + self.skew_us))
        self.world.note(
            "publish", self.name, event=event.id, topic=topic, publisher=self.name, publisher_seq=self._sequence,
            published_us=now, note=msgspec.json.encode(attributes).decode() if attributes else None,
        )  # fmt: skip
        self.world.published_us[event.id] = now
        self.tell(Publish(self.world.topic(topic), event, request=self._sequence))
        return event

    def subscribe(self, *topics: str) -> None:
        self.tell(Subscribe(tuple(self.world.topic(name) for name in topics)))

    def unsubscribe(self, *topics: str) -> None:
        numbers = tuple(self.world.topic(name) for name in topics)
        cells = [cell for name in topics for cell in self.world.cells.get(name, ())]
        for name in (*topics, *cells):
            if self.subscribed.pop(self.world.topic(name), None) is not None:
                self.world.note("unsubscribe", self.name, subscriber=self.name, topic=name)
        self.tell(Unsubscribe(numbers))

    def select(self, where: Filter) -> None:
        """Of all its topics only what matches; nothing is owed while the two filters change places."""
        for topic in self.subscribed:
            self.world.note("unsubscribe", self.name, subscriber=self.name, topic=self.world.topic_name(topic))
        self.where = to_text(where)
        self.tell(Select(where))

    def tell(self, message: Any) -> None:
        """Gives the machine an input from above, after whatever it is doing now."""
        self.world.after(0, self._from_above, message, self.life)

    def _from_above(self, message: Any, life: int) -> None:
        if life == self.life:
            self.receive(message)

    # -- inputs

    def receive(self, message: Any) -> None:
        """An input arrives: handled at once, or queued if the host is paused, busy or slow. Lost if it is down."""
        if not self.is_up:
            return
        if self.world.trace:
            self.world.note("arrive", self.name, note=type(message).__name__)
            for event in events_in(message):
                self.world.note("arrive", self.name, subscriber=self.name, event=event.id)
        if isinstance(message, Joined) and message.topic in self._beneath:
            self._beneath[message.topic] = self.world.now
        if self._service is None and not self._pauses and not self._waiting:
            self._handle(message)
            return
        if self._service is not None and len(self._waiting) >= self._service.queue_max:
            if self._service.when_full == "push back":
                self._overflow.append(message)
            else:
                self.dropped += 1
                self.world.note("refuse", self.name, note=f"queue full, {type(message).__name__} dropped")
            return
        self._waiting.append(message)
        if not self._busy and not self._pauses:
            self._serve()

    def _serve(self) -> None:
        """Works off the queue: all of it at once without service time, else one message per service time."""
        if self._service is None or not self._service.per_message_us:
            while self._waiting and not self._pauses and self.is_up:
                self._handle(self._waiting.popleft())
        elif self._waiting:
            self._busy = True
            self.world.after(self._service.per_message_us, self._served, self.life)

    def _served(self, life: int) -> None:
        if life != self.life:
            return
        self._busy = False
        self._handle(self._waiting.popleft())
        if self.is_up and not self._pauses:
            if self._overflow:
                self._waiting.append(self._overflow.popleft())
            self._serve()

    def _fire(self, key: str, count: int, life: int) -> None:
        if life == self.life and self._timers.get(key) == count:
            del self._timers[key]
            self.receive(Fired(key))

    def confirm_broadcast(self, delay: int) -> None:
        """The service beneath has the oldest broadcast of this life that it had not confirmed."""
        if self._confirms:
            self._last_confirm = max(self._last_confirm, self.world.now + delay)
            self.world.at(self._last_confirm, self._confirm, self.life)

    def _confirm(self, life: int) -> None:
        if life == self.life:
            self.receive(BroadcastsDone(1))

    # -- effects

    def _handle(self, message: Any) -> None:
        now = Micros(self.world.now + self.skew_us)
        if self.world.deadline_us is not None and isinstance(message, Heard):
            for event in events_in(message):
                self.known_at.setdefault(event.id, self.world.now)
        is_logged = False
        for effect in self.machine.handle(message, now):
            self.effects += 1
            if self.effects == self.crash_at:
                self.crash()
                return
            if self.on_effect is not None:
                self.on_effect(effect)
            match effect:
                case Send(to=to, message=inner):
                    if self.world.trace:
                        self.world.note("send", self.name, peer=to, note=type(inner).__name__)
                    self.world.network.carry(self, to, inner)
                case Deliver(item=delivered):
                    for item in one_by_one(delivered):
                        write_notice(self, item)
                        if self.on_deliver is not None:
                            self.on_deliver(item)
                case Persist():
                    if not is_logged:  # several layers may ask for it; the input is one
                        self.disk.log.append((now, message))
                        is_logged = True
                case SetTimer(key=key, at=at):
                    self._timer_count += 1
                    self._timers[key] = self._timer_count
                    self.world.at(at - self.skew_us, self._fire, key, self._timer_count, self.life)
                case CancelTimer(key=key):
                    self._timers.pop(key, None)
                case Broadcast(topic=topic, message=inner, control=control):
                    self.world.ens.publish(self, topic, inner, control)
                case Join(topic=topic):
                    self._beneath[topic] = None
                    self.world.ens.join(self, topic)
                case Leave(topic=topic):
                    self._beneath.pop(topic, None)
                    self.world.ens.leave(self, topic)
                case Refuse(reason=reason):
                    self.world.note("refuse", self.name, note=reason)
        if self._snapshot_every and len(self.disk.log) >= self._snapshot_every:
            assert isinstance(self.machine, DurableMachine)
            # Through the codec: a snapshot must be plain data, and must share nothing with the living machine.
            self.disk.snapshot = msgspec.msgpack.encode(self.machine.snapshot())
            self.disk.log.clear()

    def wants(self, topic: Topic) -> bool:
        """Has joined the topic at the service beneath, or is about to."""
        return topic in self._beneath

    def hears_since(self, topic: Topic) -> int | None:
        """When `Joined` came from beneath: what was published before may not be heard."""
        return self._beneath.get(topic)
