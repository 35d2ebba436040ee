"""The sequencer role of a node: `Sessions(Desk(TopicManager))` on a `Host`, its log, and the broker it stands on.

What subscribers wait for leaves first in every turn: broadcasts, bundled by topic, then letters.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from unisono.errors import ForgottenError
from unisono.machine import Broadcast
from unisono.model.deployment import Deployment, NodeSpec
from unisono.model.ids import Address, Topic, event_id
from unisono.model.journal import Record
from unisono.protocols.sequencer.inputs import Inherited, Reborn
from unisono.protocols.sequencer.messages import BrokerMessage, Creates, Pieces, Stamps, Void, repeats
from unisono.protocols.sequencer.node import TopicManager
from unisono.runtime import edge
from unisono.runtime.bundle import Bundle
from unisono.runtime.clients import Clients
from unisono.runtime.clock import Clock
from unisono.runtime.desk import Desk
from unisono.runtime.dialect import publisher_on
from unisono.runtime.ens.adapter import EnsNotice, Item
from unisono.runtime.ground import Ground
from unisono.runtime.homes import home_of
from unisono.runtime.host import Host, HostConfig
from unisono.runtime.journal import JournalFile, Level
from unisono.runtime.links import Links, owner
from unisono.runtime.lives import Began, Height, Lives, Reminds, Seal
from unisono.runtime.sequencing import sequencer_config
from unisono.runtime.turns import Turns
from unisono.runtime.wal import InputLog, Log, LogConfig
from unisono.structures.sessions import BroadcastsDone, Forgotten, Sessions

logger = logging.getLogger(__name__)

INCARNATIONS_SINCE_S = 1_735_689_600
"""Incarnations are named by the second, since 2025, in which they begin: one that is forgotten is not repeated."""
MACHINE = "sequencer 4"
"""Name and version of what the log replays into; it changes whenever old inputs would lead to another state."""


class SequencerRole:
    """A running topic manager; the outside of its machine."""

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
        token: str,
    ) -> None:
        """`clients` are told of new topics at home here, and of whom the machine remembers; `token` seals what others
        are shown of the log."""
        self.me = me = Address(spec.name)
        parent = Address(spec.parent) if spec.parent is not None else None
        children = tuple(Address(child) for child in deployment.children(me))
        self.manager = TopicManager(me, parent, children, (), {}, sequencer_config(deployment))
        self.desk = Desk(me, self.manager, parent)
        self.ground = Ground(self, self._confirmed, self._noticed, self._foreign, self._lost)
        self.host: Host | None = None
        self._peers = (*((parent,) if parent is not None else ()), *children)
        self._deployment, self._spec, self._links = deployment, spec, links
        self._journal, self._notes_numbers = journal, journal is not None and level == "all"
        self._clients, self._refused, self._failed, self._token = clients, refused, failed, token
        self._clock = Clock()
        self._letters: list[tuple[Address, Any]] = []  # of this turn
        self._bundle = Bundle(self.ground.broadcast, self._broadcasts_done)
        self.lives: Lives | None = None
        self._log: InputLog | None = None
        self._seal = Seal(deployment.name, me, token)
        self._life = ""
        self._is_alive = False  # once our life is in the log
        self._shows = False  # once those who could know better have had the time to say so, too
        self._shown = 0
        self._before: dict[Address, None] = {}  # clients that do not know yet that we have forgotten

    # life

    async def start(self, data: Path | None, log_config: LogConfig, config: HostConfig, new_incarnation: bool) -> None:
        """Returns when the log has been handled again; a log on a stream is waited for until it is ours.

        A new incarnation begins behind everything the log holds, before anything else happens.
        """
        sessions = Sessions(self.desk, self.me, self._peers, edge.NodeMessage, BrokerMessage, repeats=repeats)
        self.lives = Lives(sessions)
        log = self._log = await self._open_log(data, log_config)
        self.host = Host(self.me, self.lives, self, log, config, Turns(self.manager).gather)
        replayed = await self.host.start()
        self._clients.inherited(self.manager.clients())
        if replayed:
            logger.info("node %s handled %d inputs of its log again", self.me, replayed)
        if self._journal is not None:
            self._journal.note(Record("restart", self._clock.now(), who=self.me, note=f"{replayed} inputs replayed"))
        if log is not None and new_incarnation:
            since = int(time.time()) - INCARNATIONS_SINCE_S
            self.host.post(Reborn(max(self.lives.incarnation + 1, since)))
        if log is not None:
            self._life = secrets.token_hex(6)
            self.host.post(Began(self._life, log.height))

    def bear_planned(self) -> None:
        """Topics that the deployment names exist from the start."""
        planned = tuple(t.name for t in self._deployment.topics if home_of(self._deployment, t.name) == self.me)
        if planned and self.host is not None:
            self.host.post(edge.Open(self.me, 0, planned))

    async def _open_log(self, data: Path | None, config: LogConfig) -> InputLog | None:
        """The log in files, or the one on a stream, as soon as it is ours."""
        if self._spec.log == "file":
            return Log(data / self.me, MACHINE, edge.Logged, config) if data is not None else None
        from unisono.runtime.replicated import ReplicatedLog, replicated_config

        log = ReplicatedLog(replicated_config(self._deployment, self.me, self._token), MACHINE, edge.Logged)
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
        try:
            if self.host is not None:
                await self.host.stop(snapshot)
        finally:
            await self.ground.close()

    # a sink for what is said to the machine

    def post(self, message: Any) -> None:
        assert self.host is not None
        self.host.post(message)

    @property
    def is_full(self) -> bool:
        return self.ground.is_full or (self.host is not None and self.host.is_full)

    def when_roomy(self, callback: Callable[[], None]) -> None:
        if self.ground.is_full or self.host is None:
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
        return self.desk.names.get(topic)

    def topic_of(self, name: str) -> Topic | None:
        return self.desk.mine.get(name)

    # the outside of the machine

    def send(self, to: Address, message: Any) -> None:
        self._letters.append((to, message))

    def broadcast(self, effect: Broadcast) -> None:
        if self._notes_numbers:
            self._note_numbers(effect.topic, effect.message)
        self._bundle.add(effect)

    def _note_numbers(self, topic: Topic, message: Any) -> None:
        assert self._journal is not None
        name = self.name_of(topic)
        match message:
            case Stamps(runs=runs):
                pass
            case Pieces(pieces=pieces):
                runs = tuple(piece.run for piece in pieces if piece.missing is not None)
            case Void(first=first, count=count):
                for number in range(first, first + count):
                    self._journal.note(Record("void", self._clock.now(), self.me, topic=name, number=number))
                return
            case _:
                return
        for run in runs:
            publisher = publisher_on(run.publisher, name or str(topic))
            for i in range(run.count):
                event = event_id(publisher, run.request + i)
                self._journal.note(
                    Record("timestamp", self._clock.now(), self.me, event=event, topic=name, number=run.first + i)
                )

    def join(self, topic: Topic) -> None:
        self.ground.join(topic, self)

    def leave(self, topic: Topic) -> None:
        self.ground.leave(topic, self)

    def deliver(self, item: Any) -> None:
        match item:
            case edge.TopicsBorn():
                self._clients.born(item)
            case Inherited():
                self._clients.inherited(item.clients)
            case Began():
                self._is_alive = True
            case Forgotten(peer=peer, what=what):
                raise self._has_forgotten(f"{peer} knows of {what}")
            case _:
                pass

    def refused(self, reason: str) -> None:
        self._refused(reason)

    def end_turn(self) -> None:
        self._bundle.end_turn()
        self.ground.end_turn()
        # Behind what subscribers wait for: whoever published has more time.
        letters, self._letters = self._letters, []
        for to, message in letters:
            self._links.send(to, message)
        if letters and self._shows:
            height = self._height()
            for party in dict.fromkeys([owner(to) for to, _ in letters]):
                self._links.send(party, height)
        if self._journal is not None:
            self._journal.flush()

    def failed(self, error: Exception) -> None:
        self._failed(error)

    # what others have been shown

    def _height(self) -> Height:
        assert self._log is not None
        assert self.lives is not None
        return self._seal.put(self.lives.incarnation, self._life, self._log.height)

    def show_all(self) -> None:
        """Everybody who is connected is told how far we are, if that is news: they know it, should we forget it.

        A life that ends because its data was too old is shown to nobody: the newest data, put back, does not know it.
        """
        self._shows = self._is_alive
        if not self._shows or self._log is None or self._log.height == self._shown:
            return
        self._shown = self._log.height
        height = self._height()
        for hello in self._links.parties():
            self._links.send(hello.addresses[0], height)

    def is_welcome(self, message: Any) -> bool:
        """Whether a message may be handled: a client that asks for what we may have numbered before has to know first
        that we have forgotten it."""
        return type(message) is not Creates or owner(message.publisher) not in self._before

    def show(self, party: Address) -> None:
        """It is connected: from now on it knows how far we are."""
        if self._shows:
            self._links.send(party, self._height())

    def reminded(self, message: Reminds) -> None:
        """Somebody was shown something by us: if our log does not know it, nothing more of us may be seen."""
        if self._log is None or self.lives is None or self.host is None or not self._seal.is_ours(message.shown):
            return
        if message.shown.incarnation < self.lives.incarnation and self._is_alive:
            self._before[owner(message.client)] = None
            self._links.send(message.client, self._height())
            return
        self._before.pop(owner(message.client), None)
        what = self.lives.forgotten(message.shown, self._log.height)
        if what is not None:
            self.host.fail(self._has_forgotten(f"{message.client} was shown {what}"))

    def _has_forgotten(self, why: str) -> ForgottenError:
        return ForgottenError(
            f"node {self.me} has forgotten what it told others ({why}): its data is older than that. Put the newest "
            f"data back; if there is none, give up what is missing with: unisono node FILE {self.me} --new-incarnation"
        )

    # the broker

    def _confirmed(self, count: int) -> None:
        self._bundle.confirmed(count)

    def _broadcasts_done(self, count: int) -> None:
        assert self.host is not None
        self.host.post(BroadcastsDone(count))

    def _noticed(self, notice: EnsNotice) -> None:
        logger.info("node %s, broker: %s", self.me, notice)

    def _foreign(self, item: Item) -> None:
        pass
