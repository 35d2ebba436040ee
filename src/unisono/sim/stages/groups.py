"""Consumer groups: an archive that coordinates, members that share keys or take turns, and programs that use them.

The agreed order itself is not played here (`sequencer` does that): publishers append to one log that every member
reads at a pace of its own. A program takes what it is shown, works on it for a while, and commits now and then. What
the group as a whole was shown of a key is judged as one subscriber, `billing/3`; the log as another, `log`. An event
may be shown again, at its place, if whoever was shown it before is lost; two members at work on one key break the run.
"""

from typing import Any

from msgspec import Struct

from unisono.errors import InvariantError
from unisono.machine import Subscribe
from unisono.model.event import Event
from unisono.model.ids import Address, Topic
from unisono.model.time import MILLISECOND
from unisono.protocols.fifo.machine import FifoConfig, FifoMachine
from unisono.protocols.groups.coordinator import GroupCoordinator, GroupsConfig
from unisono.protocols.groups.member import (
    BEGUN,
    BeginsAfter,
    Committed,
    GivenUp,
    Hear,
    Processed,
    ShareHolder,
    share_of,
)
from unisono.protocols.groups.messages import SHARES
from unisono.sim.host import SimulatedHost
from unisono.sim.scenario import Scenario
from unisono.sim.spec import Spec
from unisono.sim.stages import Operations
from unisono.sim.world import World

GROUP, ARCHIVE, KEY = "billing", Address("archive"), "key"


class GroupsStageOptions(Spec, frozen=True):
    """What a scenario may say about groups."""

    config: GroupsConfig = GroupsConfig()
    keyed: bool = True
    """Members share keys; else they take turns."""
    commit_every: int = 4
    """A program commits after so many events at most."""
    work_us: int = 40 * MILLISECOND
    """How long a program works on an event at most."""


class _Entry(Struct):
    event: Event
    number: int
    key: str


def build(world: World, scenario: Scenario) -> Operations:
    _Stage(world, scenario)
    return {}


class _Stage:
    """The log, and what the group was shown of it."""

    def __init__(self, world: World, scenario: Scenario) -> None:
        self.world, self.options = world, scenario.config(GroupsStageOptions)
        self.log: list[_Entry] = []
        self.numbers = dict.fromkeys(scenario.topics, 0)
        self.shown: dict[tuple[str, str], tuple[int, _Program, int]] = {}
        """Per subscriber and event its position, and who was shown it last, in which life."""
        self.at_work: dict[str, tuple[_Program, int]] = {}
        self.programs: list[_Program] = []
        config = self.options.config
        world.add(ARCHIVE, lambda name: GroupCoordinator(config), snapshot_every=scenario.snapshot_every)
        self.shares = SHARES if self.options.keyed else 1
        for client in scenario.clients:
            if client.name.startswith("p"):
                host = world.add(client.name, lambda name: FifoMachine(Address(name), FifoConfig()))
                host.feed = self.append
                host.keeps_name = True
            else:
                self.programs.append(_Program(self, client.name))
        self.keys = scenario.workload.attributes.get(KEY, 1) if self.options.keyed else 1
        self.is_begun = False
        for topic in self.numbers:
            world.note("subscribe", "log", subscriber="log", topic=topic, number=0)

    def begin(self, after: dict[str, int]) -> None:
        """The group begins after these numbers, whoever of its members is lost from now on."""
        if self.is_begun:
            return
        self.is_begun = True
        for topic in self.numbers:
            for key in map(str, range(self.keys)):
                where = f"{KEY} = {key}" if self.options.keyed else None
                self.world.note(
                    "subscribe", None, subscriber=f"{GROUP}/{key}", topic=topic, number=after.get(topic, 0),
                    published_us=self.world.now, note=where,
                )  # fmt: skip

    def append(self, topic: Topic, event: Event) -> None:
        name = self.world.topic_name(topic)
        self.numbers[name] += 1
        key = str(event.attributes[KEY]) if self.options.keyed else "0"
        self.log.append(_Entry(event, self.numbers[name], key))
        self._note("log", self.log[-1], len(self.log), None)
        for program in self.programs:
            program.wake()

    def show(self, program: "_Program", entry: _Entry) -> None:
        """Writes that the group is shown an event, by this member; raises if another is at work on its key."""
        subscriber, life = f"{GROUP}/{entry.key}", program.host.life
        worker, its_life = self.at_work.get(subscriber, (program, life))
        if worker is not program and worker.works_on(entry.key, its_life):
            raise InvariantError(
                f"{program.host.name} is shown key {entry.key}, and {worker.host.name} is at work on it"
            )
        self.at_work[subscriber] = (program, life)
        before = self.shown.get((subscriber, entry.event.id))
        position = len(self.shown) + 1
        if before is not None:
            position, former, former_life = before
            if former.host.life != former_life or not former.may_work():  # what it had not committed comes again
                self.world.note("restart", subscriber)
        self.shown[subscriber, entry.event.id] = (position, program, life)
        self._note(subscriber, entry, position, program.host.name)

    def _note(self, subscriber: str, entry: _Entry, position: int, who: str | None) -> None:
        event = entry.event
        self.world.note(
            "deliver", subscriber, subscriber=subscriber, event=event.id, position=position, topic=event.topic,
            number=entry.number, publisher=event.publisher, publisher_seq=event.sequence,
            delivered_us=self.world.now, peer=who,
        )  # fmt: skip


class _Program:
    """What runs over one member: reads, works, commits, and enters again when it is told that it is none any more."""

    def __init__(self, stage: _Stage, name: str) -> None:
        self.stage, self.world = stage, stage.world
        self.dice = stage.world.dice(f"program {name}")
        self.host: SimulatedHost = stage.world.add(name, self._begin)
        self.host.on_deliver = self._told
        self.host.on_down = self._stop

    def _begin(self, name: str) -> ShareHolder:
        """A new life of the host."""
        self.index: int | None = None
        self.begun: list[str] = []
        """Keys of what was shown and is not done."""
        self.is_committing = self.is_waking = False
        stage = self.stage
        self.member = ShareHolder(
            Address(name.partition("#")[0]), name, ARCHIVE, GROUP, stage.shares, stage.options.config
        )
        self.world.after(self.dice.randint(0, 500 * MILLISECOND), self._enter, name)
        return self.member

    def _enter(self, name: str) -> None:
        if self.host.is_up and self.host.name == name:
            self.host.tell(Subscribe(()))

    def _stop(self) -> None:
        self.index, self.begun = None, []

    def works_on(self, key: str, life: int) -> bool:
        """Whether it was shown events of this key that it is not done with, and may think they are its own."""
        return self.host.life == life and key in self.begun and self.may_work()

    def may_work(self) -> bool:
        """Whether it may think that what it holds is its own."""
        return self.host.is_up and self.member.is_fresh(self.host.clock())

    def _told(self, item: Any) -> None:
        match item:
            case Hear(after=None):
                self.index, self.is_committing = len(self.stage.log), True
                self.base = self._numbers(self.index)
                self.host.tell(BeginsAfter(self.base))
            case Hear(after=dict() as after):
                log = self.stage.log
                self.index = next(
                    (at for at, it in enumerate(log) if it.number > after.get(it.event.topic, 0)), len(log)
                )
                self.stage.begin(after)
            case Committed(outcome=outcome, refused=refused):
                self.is_committing = False
                if outcome == BEGUN and refused:
                    self.world.after(0, self._again, self.host.life)
                elif outcome == BEGUN:
                    self.stage.begin(self.base)
            case GivenUp():
                self.world.after(0, self._again, self.host.life)
                return
        self.wake()

    def _again(self, life: int) -> None:
        if self.host.life == life:
            self.host.crash()
            self.host.restart()

    def _numbers(self, index: int) -> dict[str, int]:
        return {**dict.fromkeys(self.stage.numbers, 0), **{it.event.topic: it.number for it in self.stage.log[:index]}}

    def wake(self, within_us: int = 5 * MILLISECOND) -> None:
        if not self.is_waking:
            self.is_waking = True
            self.world.after(self.dice.randint(0, within_us), self._step, self.host.life)

    def _step(self, life: int) -> None:
        """Reads on, until something is shown that takes time."""
        if self.host.life != life:
            return
        self.is_waking = False
        if not self.host.is_up or self.index is None or self.is_committing:
            return
        log, member = self.stage.log, self.member
        if not member.is_fresh(self.host.clock()):
            self.wake(500 * MILLISECOND)
            return
        if self.begun and (self.index >= len(log) or len(self.begun) >= self.stage.options.commit_every):
            self.is_committing, self.begun = True, []
            self.host.tell(Processed(self._numbers(self.index), 1))
            return
        while self.index < len(log):
            entry = log[self.index]
            self.index += 1
            if member.shows(entry.event.topic, entry.number, share_of(entry.key, self.stage.shares)):
                self.begun.append(entry.key)
                self.stage.show(self, entry)
                break
        if self.begun:
            self.wake(self.stage.options.work_us)
