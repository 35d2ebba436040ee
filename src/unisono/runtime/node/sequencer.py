"""The sequencer role of a node: who orders there (`node.ordering`), on a `Host`, with its log and its broker."""

import asyncio
import logging
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from unisono.errors import ForgottenError
from unisono.machine import Broadcast, Restarted
from unisono.model.deployment import Deployment
from unisono.model.ids import Address, Topic, event_id
from unisono.model.journal import Record
from unisono.model.settings import NodeSpec
from unisono.protocols.clock.messages import ClockBound
from unisono.protocols.naming import messages as naming
from unisono.protocols.naming.topic_names import TopicNames
from unisono.protocols.sequencer.admission import Admission, AdmissionConfig, HasForgotten, Reached, Serving
from unisono.protocols.sequencer.inputs import Inherited
from unisono.protocols.sequencer.lives import Began, Lives, Seal, Witness
from unisono.runtime.brokers.connection import BrokerConnection
from unisono.runtime.brokers.contract import EnsNotice, Item
from unisono.runtime.brokers.sequencer_codec import publisher_on
from unisono.runtime.driver.clock import Clock
from unisono.runtime.driver.door import Door
from unisono.runtime.driver.host import Host
from unisono.runtime.driver.journal import JournalFile, Level
from unisono.runtime.driver.log import FileLog, InputLog, LogConfig
from unisono.runtime.links import control
from unisono.runtime.links.links import Links, owner
from unisono.runtime.node.clients import Clients
from unisono.runtime.node.ordering import node_ordering
from unisono.structures.sessions import Forgotten, Reborn
from unisono.turns import TurnBounds

logger = logging.getLogger(__name__)

INCARNATIONS_SINCE_S = 1_735_689_600
"""Incarnations are named by the second, since 2025, in which they begin: one that is forgotten is not repeated."""
BUSY_S = 0.25
"""A node that has numbered nothing for so long creates topics as fast as it can."""


class SequencerRole:
    """A running topic manager or stamper; the outside of its machine."""

    def __init__(
        self,
        deployment: Deployment,
        spec: NodeSpec,
        links: Links,
        journal: JournalFile | None,
        level: Level,
        clients: Clients,
        refused: Callable[[str], None],
        failed: Callable[[Exception], None],
        noticed: Callable[[EnsNotice], None],
        token: str,
    ) -> None:
        """`clients` are told of new topics at home here, and of whom the machine remembers; `token` seals what others
        are shown of the log."""
        self.me = me = Address(spec.name)
        parent = Address(spec.parent) if spec.parent is not None else None
        self.ordering = node_ordering(deployment, me, parent)
        self.topic_names = TopicNames(me, self.ordering.machine, parent, self.ordering.topic_messages)
        self.broker = BrokerConnection(self, self._confirmed, noticed, self._foreign, self._lost)
        self.host: Host | None = None
        self._deployment, self._spec, self._links = deployment, spec, links
        self._journal, self._notes_numbers = journal, journal is not None and level == "all"
        self._clients, self._refused, self._failed, self._token = clients, refused, failed, token
        self._clock = Clock()
        self._reached: dict[Address, None] = {}  # who got letters in this turn
        self.lives: Lives | None = None
        self._log: InputLog | None = None
        self._seal = Seal(deployment.name, me, token)
        self._published, self._busy_until = 0, 0.0
        self._serving: Callable[[], None] = lambda: None
        self.admission: Admission | None = None
        self.door: Door | None = None
        """By it comes in what is said to the machine."""

    # life

    async def start(
        self,
        data: Path | None,
        log_config: LogConfig,
        bounds: TurnBounds,
        new_incarnation: bool,
        admission: AdmissionConfig,
        witness: Witness,
        serving: Callable[[], None],
    ) -> None:
        """Returns when the log has been handled again; a log on a stream is waited for until it is ours.

        A new incarnation begins after everything the log holds, before anything else happens. `witness`: what others
        have shown to this node; `serving` is called when it begins to number.
        """
        self.lives = Lives(self.ordering.sessions(self.topic_names))
        log = self._log = await self._open_log(data, log_config)
        self.host = Host(self.me, self.lives, self, log, bounds, self.ordering.arrangement, is_confirmed=True)
        replayed = await self.host.start()
        self._clients.lapsed_before(self.lives.lapsed)
        self._clients.inherited(self.ordering.clients())
        if replayed:
            logger.info("read %d inputs from the log", replayed)
        if self._journal is not None:
            self._journal.note(Record("restart", self._clock.now(), who=self.me, note=f"{replayed} inputs replayed"))
        if log is None:
            self.host.post(Restarted())  # what has no log begins where a log is empty
        if self.ordering.rules is not None:
            self.host.post(self.ordering.rules)
        if log is not None and new_incarnation:
            since = int(time.time()) - INCARNATIONS_SINCE_S
            self.host.post(Reborn(max(self.lives.incarnation + 1, since)))
        life = secrets.token_hex(6)
        if log is not None:
            self.host.post(Began(life, log.height))

        def height() -> int:
            assert log is not None
            return log.height

        lives, shown, seal = self.lives, height if log is not None else None, self._seal
        self.admission = Admission(lives, seal, life, shown, owner, witness, self._asker, admission)
        self._serving, self.door = serving, Door(self.admission, self._let_in, self._links.send, self._failed)

    def bear_planned(self) -> None:
        """Topics that the deployment gives a home exist from the start; others are created by their first use."""
        planned = tuple(topic.name for topic in self._deployment.topics if topic.home == self.me)
        if planned and self.host is not None:
            self.host.post(naming.OpenTopics(self.me, 0, planned))

    async def _open_log(self, data: Path | None, config: LogConfig) -> InputLog | None:
        """The log in files, or the one on a stream, as soon as it is ours."""
        if self._spec.log == "file":
            return FileLog(data / self.me, self.ordering.log_name, control.Logged, config) if data is not None else None
        from unisono.runtime.driver.replicated import ReplicatedLog, replicated_config

        log = ReplicatedLog(
            replicated_config(self._deployment, self.me, self._token), self.ordering.log_name, control.Logged
        )
        loop = asyncio.get_running_loop()

        def lost(error: Exception) -> None:
            loop.call_soon_threadsafe(self._lost, error)

        log.on_lost = lost
        try:
            await log.claim()
        except BaseException:
            log.close()
            raise
        return log

    def _lost(self, error: Exception) -> None:
        if self.host is not None:
            self.host.fail(error)

    async def stop(self, snapshot: bool) -> None:
        """A process that never served leaves the log as it found it: no snapshot."""
        if self.door is not None:
            self.door.stop()
        try:
            if self.host is not None:
                await self.host.stop(snapshot)
        finally:
            await self.broker.close()

    # a sink for what is said to the machine

    def post(self, message: Any) -> None:
        assert self.host is not None
        self.host.post(message)

    def note_arrival(self, message: Any) -> None:
        """A publisher asks for numbers: that is when an event reaches its home."""
        asked = self.ordering.asked(message) if self._notes_numbers else None
        if asked is None or self._journal is None:
            return
        now, where = self._clock.now(), f"in {self._spec.region}, to be numbered"
        for topic, address, first, count in asked:
            name = self.name_of(topic)
            publisher = publisher_on(address, name or str(topic))
            for request in range(first, first + count):
                event = event_id(publisher, request)
                self._journal.note(Record("arrive", now, self.me, event=event, topic=name, note=where))

    @property
    def is_full(self) -> bool:
        return self.broker.is_full or (self.host is not None and self.host.is_full)

    @property
    def holds_all_it_can(self) -> bool:
        """It listens before it serves, and nothing more is held."""
        return self.admission is not None and self.admission.is_full

    def is_busy(self) -> bool:
        """Whether events are under way, for which topics that are created have to leave time."""
        now, published = asyncio.get_running_loop().time(), self.broker.counters.published
        if published != self._published:
            self._published, self._busy_until = published, now + BUSY_S
        return now < self._busy_until

    def when_roomy(self, callback: Callable[[], None]) -> None:
        if self.broker.is_full or self.host is None:
            asyncio.get_running_loop().call_later(0.05, self._check_room, callback)
        else:
            self.host.when_roomy(callback)

    def _check_room(self, callback: Callable[[], None]) -> None:
        if self.is_full:
            self.when_roomy(callback)
        else:
            callback()

    # names, for the ground

    def name_of(self, topic: Topic) -> str | None:
        return self.topic_names.names.get(topic)

    def topic_of(self, name: str) -> Topic | None:
        return self.topic_names.mine.get(name)

    # the outside of the machine

    def send(self, to: Address, message: Any) -> None:
        if self.broker.has_items:
            self.broker.end_turn()
        self._links.send(to, message)
        self._reached[owner(to)] = None

    def broadcast(self, effect: Broadcast) -> None:
        if self._notes_numbers:
            self._note_numbers(effect.topic, effect.message)
        self.broker.broadcast(effect.topic, effect.message, effect.control)

    def _note_numbers(self, topic: Topic, message: Any) -> None:
        assert self._journal is not None
        name, where = self.name_of(topic), f"in {self._spec.region}"
        for kind, address, request, number in self.ordering.numbered(message):
            event = event_id(publisher_on(address, name or str(topic)), request) if address else None
            note = where if address else None
            self._journal.note(
                Record(kind, self._clock.now(), self.me, event=event, topic=name, number=number, note=note)
            )

    def join(self, topic: Topic) -> None:
        self.broker.join(topic, self)

    def leave(self, topic: Topic) -> None:
        self.broker.leave(topic, self)

    def deliver(self, item: Any) -> None:
        match item:
            case naming.TopicsBorn():
                self._clients.born(item)
            case Inherited():
                self._clients.inherited(item.clients)
            case Began() | Forgotten():
                assert self.door is not None
                self.door.post(item)
            case _:
                pass

    def refused(self, reason: str) -> None:
        self._refused(reason)

    def end_turn(self) -> None:
        self.broker.end_turn()
        if self._reached and self.door is not None:
            self.door.post(Reached(tuple(self._reached)))
            self._reached.clear()
        if self._journal is not None:
            self._journal.flush()

    def failed(self, error: Exception) -> None:
        self._failed(error)

    # what the door delivers

    def _let_in(self, item: Any) -> None:
        assert self.host is not None
        match item:
            case HasForgotten(why=why):
                self.host.fail(self._has_forgotten(why))
            case Serving():
                self._serving()
            case _:
                self.host.post(item)

    def _asker(self, message: Any) -> Address | None:
        asked = self.ordering.asked(message)
        return asked[0][1] if asked else None

    def reading_us(self) -> int | None:
        """By clock: what stamps are made of."""
        return self.ordering.reading(self.host.clock.now()) if self.host is not None else None

    def bound_clock(self, skew: tuple[int, int] | None) -> None:
        """How far our clock is from that of all, as far as it was measured; the operator may know better."""
        if self.host is None or not self._deployment.sequencing.tolerance_ms:
            return
        declared_ms = self._deployment.sequencing.clock_bound_ms
        if declared_ms is not None:
            self.host.post(ClockBound(round(declared_ms * 1000) + self.host.clock.error_us))
        else:
            self.host.post(ClockBound(abs(skew[0]) + skew[1] if skew is not None else -1))

    def _has_forgotten(self, why: str) -> ForgottenError:
        return ForgottenError(
            f"node {self.me} has forgotten what it told others ({why}): its data is older than that. Put the newest "
            f"data back; if there is none, give up what is missing with: unisono node FILE {self.me} --new-incarnation"
        )

    # the broker

    def _confirmed(self, count: int) -> None:
        assert self.host is not None
        self.host.confirmed(count)

    def _foreign(self, item: Item) -> None:
        pass
