"""A host: runs one machine in the world by the planner of turns, keeps its disk, writes its journal.

What is committed together, held back and merged, and in which order it leaves, is decided by `unisono.turns`, as in a
real node; when a turn begins and how long a commit takes is said by `DriverSpec`. A durable machine's disk is a
snapshot and the log of the inputs committed since. A crash may come between any two effects, and before, during or
after a commit. A restart makes a new machine, restores the snapshot, replays the log with the effects ignored, and
gives `Restarted`. The first start of a durable machine is a restart from an empty disk. A machine that is not durable
starts anew, under a new name.

What arrives and cannot be handled at once waits in a `ServiceQueue`.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from unisono.machine import (
    Broadcast,
    Deliver,
    DurableMachine,
    Effect,
    Heard,
    Join,
    Joined,
    Leave,
    Machine,
    Publish,
    Refuse,
    Restarted,
    Select,
    Send,
    Subscribe,
    Unsubscribe,
    one_by_one,
)
from unisono.model.event import Event, Scalar
from unisono.model.ids import Address, Topic
from unisono.model.predicate import Filter, to_text
from unisono.model.time import Micros
from unisono.protocols.sequencer.admission import Reached
from unisono.protocols.sequencer.inputs import HomeReborn, Inherited
from unisono.protocols.sequencer.lives import Began, Lives
from unisono.protocols.sequencer.named import NamedPublications
from unisono.sim.disk import DriverSpec, SimulatedDisk
from unisono.sim.door import SimulatedDoor
from unisono.sim.recording import events_in, write_notice
from unisono.sim.service import ServiceQueue, ServiceSpec
from unisono.structures.sessions import Forgotten, Sessions
from unisono.structures.stored import StoredPublications
from unisono.turns import Arrangement, Logged, TurnBounds, TurnPlanner

if TYPE_CHECKING:
    from unisono.sim.world import World

Build = Callable[[str], Machine]
"""Makes a machine for the name its host now goes by: the address, or `address#2` once its memory was lost."""
Arrange = Callable[[Any], Arrangement | None]
"""What its role merges, for a machine that was built."""


def as_it_is(machine: Machine) -> None:
    """Nothing."""


FOR_THE_DOOR = frozenset((Began, Forgotten, HomeReborn, Inherited))
"""What machines deliver to what stands in front of them."""
_CONFIRMED = object()
"""Waits in line: the service beneath has the oldest broadcast that it had not confirmed."""


class _Letter(Struct, frozen=True):
    """Waits in line before the door."""

    message: Any


class SimulatedHost:
    """One machine, its timers, its disk and its application side."""

    def __init__(
        self,
        world: "World",
        address: Address,
        build: Build,
        region: str,
        service: ServiceSpec | None,
        snapshot_every: int,
        arrange: Arrange,
        driver: DriverSpec,
    ) -> None:
        self.world = world
        self.address = address
        self.name = str(address)
        self.region = region
        self.life = 0
        self.is_up = False
        self.crash_at: int | None = None
        """The machine crashes instead of performing the effect with this number (counted from 1 over all lives; a
        commit counts as one)."""
        self.commit_fails = False
        """The disk refuses the next commit, which ends the process; what of it can be read later, nobody knows."""
        self.commit_extra_us = 0
        """How much longer than usual a commit takes now."""
        self.effects = 0
        self.on_crash: Callable[[], None] | None = None
        """What the world has planned for the moment after the next crash: mostly a restart."""
        self.on_down: Callable[[], None] | None = None
        """An observer of every crash; stages let the peers of a connection notice by it."""
        self.on_forgotten: Callable[[], None] | None = None
        """What a person does who lets it go on with older data than it had; None: its protocol knows no such thing."""
        self.way: Callable[[Address], Address] | None = None
        """To whom it hands a message instead: to one that passes it on while the other is away."""
        self.admits: Callable[[Any], bool] | None = None
        """What its driver lets in; None: everything."""
        self.on_deliver: Callable[[Any], None] | None = None
        """The application: sees every item the machine delivers; may call `publish` and the like."""
        self.on_effect: Callable[[Effect], None] | None = None
        """An observer of every effect performed; stages write records with it that only their protocol knows."""
        self.feed: Callable[[Topic, Event], None] | None = None
        """Who takes what the application publishes, and hands it to the machine; None: the machine gets it at once."""
        self.keeps_name = False
        """It comes back under its name although its machine forgets."""
        self.door: SimulatedDoor | None = None
        """What letters come in by; None: they are inputs of the machine."""
        self.on_start: Callable[[], None] | None = None
        """What the world does at every start after the first."""
        self.subscribed: dict[Topic, int] = {}  # topic -> base, as the machine said
        self.where: str | None = None
        """The filter its subscriptions have, as the journal tells it."""
        self.disk = SimulatedDisk()
        self._build, self._arrange, self._driver = build, arrange, driver
        self._snapshot_every = snapshot_every
        self._skew_us = 0
        self._is_turning = False  # between the decision to take a turn and its last effect
        self._committing: list[Logged] = []
        self._alarm: Micros | None = None
        self._beneath: dict[Topic, int | None] = {}  # topics joined at the ENS; since when in force
        self.known_at: dict[str, int] = {}  # event -> when this life first knew of it; only if a deadline is judged
        self.position = 0  # notifications so far
        self._sequence = 0
        self.queue = ServiceQueue(world, service, self._handle, self._note_dropped)
        self._last_confirm = 0

    # -- life and death

    def start(self) -> None:
        """Makes the machine of this life from what is on the disk."""
        self.life += 1
        self.is_up = True
        machine = self._build(self.name)
        self._is_durable = isinstance(machine, DurableMachine)
        self._confirms = isinstance(machine, Lives | Sessions | NamedPublications | StoredPublications)
        self.turns = TurnPlanner(
            machine,
            is_logged=self._is_durable,
            is_confirmed=self._confirms,
            arrangement=self._arrange(machine),
            bounds=TurnBounds(inputs_max=self._driver.inputs_max, quiet_inputs_max=self._driver.quiet_inputs_max),
        )
        if isinstance(machine, DurableMachine):
            if self.disk.snapshot is not None:
                machine.restore(msgspec.msgpack.decode(self.disk.snapshot, strict=False))
            for then, message in self.disk.log:
                machine.handle(message, then)
            if self.disk.log:  # a clock never goes back before its log
                self._skew_us = max(self._skew_us, self.disk.log[-1][0] + 1 - self.world.now)
        self.turns.last = self.clock()
        if self.door is not None:
            self.door.open()
        if self._is_durable:
            if self.life == 1:
                self.tell(Restarted())  # when the world runs: the hosts it may send to need not be there yet
            else:
                self._handle(Restarted())
        if self.on_start is not None:
            self.on_start()

    @property
    def machine(self) -> Machine:
        return self.turns.machine

    @property
    def skew_us(self) -> int:
        """How far its clock is off."""
        return self._skew_us

    @skew_us.setter
    def skew_us(self, skew_us: int) -> None:
        by, self._skew_us = skew_us - self._skew_us, skew_us
        if self.is_up:
            self.turns.set_clock(by)
            self._alarm = None
            self._arm()

    def clock(self) -> Micros:
        return Micros(self.world.now + self._skew_us)

    def crash(self) -> None:
        if not self.is_up:
            return
        self.is_up = self.commit_fails = False
        self.crash_at = None
        self.life += 1
        if self._committing and self.world.dice("driver").random() < 0.5:
            self.disk.write(self._committing)  # whole, before the power was gone
        self._committing = []
        self._alarm, self._is_turning = None, False
        self.queue.lose_all()
        self._beneath.clear()
        self.subscribed.clear()
        self.known_at.clear()
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
        if not self.keeps_name and (not disk or not self._is_durable):
            self.disk = SimulatedDisk()
            self.name = f"{self.address}#{self.life}"
            self.position = self._sequence = 0
        self.world.note("restart", self.name, note="with its disk" if disk else "without its disk")
        self.start()

    def roll_back(self, disk: SimulatedDisk, words: str) -> None:
        """Comes back with other data than it had, and a person says that it shall go on."""
        assert self.on_forgotten is not None
        if self.is_up:
            self.crash()
        self.disk = disk
        self.world.note("restart", self.name, note=words)
        self.start()
        self.on_forgotten()

    def pause(self) -> None:
        self.queue.pause()

    def resume(self) -> None:
        if self.queue.resume() and self.is_up:
            self._ring(self._alarm, self.life)

    # -- from the application

    def publish(
        self, topic: str, payload: bytes = b"", attributes: dict[str, Scalar] | None = None, deadline_us: int = 0
    ) -> Event | None:
        """Publishes an event, with a deadline of its own if it says one; returns it, or None if the host is down."""
        if not self.is_up:
            return None
        self._sequence += 1
        now = self.world.now
        event = Event(self.name, self._sequence, topic, payload, attributes or {}, Micros(now + self.skew_us))
        life = deadline_us or self.world.life_us
        self.world.note(
            "publish", self.name, event=event.id, topic=topic, publisher=self.name, publisher_seq=self._sequence,
            published_us=now, deadline_us=None if life is None else now + life,
            note=msgspec.json.encode(attributes).decode() if attributes else None,
        )  # fmt: skip
        self.world.published_us[event.id] = now
        if self.feed is not None:
            self.feed(self.world.topic(topic), event)
        else:
            self.tell(Publish(self.world.topic(topic), event, request=self._sequence, deadline_us=deadline_us))
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
        if not self.is_up or (self.admits is not None and not self.admits(message)):
            return
        if self.world.trace:
            letter = message.message if type(message) is _Letter else message
            self.world.note("arrive", self.name, note=_tag_of(letter))
            for event in events_in(letter):
                self.world.note("arrive", self.name, subscriber=self.name, event=event.id)
        if isinstance(message, Joined) and message.topic in self._beneath:
            self._beneath[message.topic] = self.world.now
        self.queue.put(message)

    def _note_dropped(self, message: Any) -> None:
        self.world.note("refuse", self.name, note=f"queue full, {_tag_of(message)} dropped")

    def confirm_broadcast(self, delay: int) -> None:
        """The service beneath has the oldest broadcast of this life that it had not confirmed."""
        if self._confirms:
            self._last_confirm = max(self._last_confirm, self.world.now + delay)
            self.world.at(self._last_confirm, self._confirm, self.life)

    def _confirm(self, life: int) -> None:
        if life != self.life:
            return
        if not self.queue.keeps_up:  # it does not overtake what was said before it
            self.queue.append(_CONFIRMED)
        elif self.turns.confirmed(1):
            self.wake()

    # the door

    def hear(self, letter: Any) -> None:
        """From another host: it comes in by the door, if there is one."""
        self.receive(letter if self.door is None else _Letter(letter))

    def ask_door(self, message: Any) -> None:
        """The machine in front of ours, if there is one."""
        if self.door is not None:
            self.door.ask(message)

    # turns

    def _handle(self, message: Any) -> None:
        if message is _CONFIRMED:
            if self.turns.confirmed(1):
                self.wake()
            return
        if type(message) is _Letter:
            self.ask_door(message.message)
            return
        if self.world.deadline_us is not None and isinstance(message, Heard):
            for event in events_in(message):
                self.known_at.setdefault(event.id, self.world.now)
        self.turns.post(message)
        self.wake()

    def wake(self) -> None:
        """Something waits for a turn."""
        if self._is_turning or not self.turns.waiting:
            return
        self._is_turning = True
        if self._driver.wake_us:
            self.world.after(self.world.dice("driver").randint(0, self._driver.wake_us), self._turn, self.life)
        else:
            self._turn(self.life)

    def _turn(self, life: int) -> None:
        if life != self.life:
            return
        if self.queue.is_postponed(lambda: self._turn(life)):
            return
        commit = self.turns.handle(self.clock())
        self._arm()
        if not commit:
            self._perform()
            self._end_turn(life)
        elif not self._is_last_effect():
            self._commit(commit)

    def _commit(self, commit: list[Logged]) -> None:
        self._committing = commit
        if self.commit_fails:
            self.world.note("fault", self.name, note="the disk refuses a commit")
            self.crash()
            return
        takes = self.commit_extra_us
        if self._driver.commit_us:
            takes += self.world.dice("driver").randint(0, self._driver.commit_us)
        if takes:
            self.world.after(takes, self._committed, self.life)
        else:
            self._committed(self.life)

    def _committed(self, life: int) -> None:
        if life != self.life:
            return
        if self.queue.is_postponed(lambda: self._committed(life)):
            return
        self.disk.write(self._committing)
        self._committing = []
        self._perform()
        if life == self.life and self._snapshot_every and len(self.disk.log) >= self._snapshot_every:
            assert isinstance(self.machine, DurableMachine)
            # Through the codec: a snapshot must be plain data, and must share nothing with the living machine.
            self.disk.save(msgspec.msgpack.encode(self.machine.snapshot()))
        self._end_turn(life)

    def _end_turn(self, life: int) -> None:
        if life == self.life:
            self._is_turning = False
            self.wake()

    def _is_last_effect(self) -> bool:
        """Counts one; tells whether it was to crash instead, and has."""
        self.effects += 1
        if self.effects != self.crash_at:
            return False
        self.crash()
        return True

    def _perform(self) -> None:
        reached: dict[Address, None] = {}
        for effect in self.turns.release():
            if self._is_last_effect():
                return
            if self.on_effect is not None:
                self.on_effect(effect)
            match effect:
                case Send(to=to, message=inner):
                    if self.world.trace:
                        self.world.note("send", self.name, peer=to, note=_tag_of(inner))
                    self.world.network.carry(self, to if self.way is None else self.way(to), inner)
                    reached[to] = None
                case Deliver(item=delivered):
                    life = self.life
                    for item in one_by_one(delivered):
                        write_notice(self, item)
                        if self.on_deliver is not None:
                            self.on_deliver(item)
                        if type(item) in FOR_THE_DOOR:
                            self.ask_door(item)
                    if life != self.life:
                        return
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
        if reached:
            self.ask_door(Reached(tuple(reached)))

    # timers

    def _arm(self) -> None:
        at = self.turns.alarm
        if at is not None and at != self._alarm:
            self._alarm = at
            self.world.at(at - self._skew_us, self._ring, at, self.life)

    def _ring(self, at: Micros | None, life: int) -> None:
        if life != self.life or at is None or at != self._alarm or self.queue.is_paused:
            return
        self._alarm = None
        self.turns.ring(self.clock())
        self._arm()
        self.wake()

    def wants(self, topic: Topic) -> bool:
        """Has joined the topic at the service beneath, or is about to."""
        return topic in self._beneath

    def hears_since(self, topic: Topic) -> int | None:
        """When `Joined` came from beneath: what was published before may not be heard."""
        return self._beneath.get(topic)


def _tag_of(message: Any) -> str:
    """What a message is called on the wire: journals keep their words when classes get other names."""
    return str(type(message).__struct_config__.tag) if isinstance(message, Struct) else type(message).__name__
