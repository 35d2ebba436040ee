"""A node: one process, the roles its deployment gives it, its links, its log.

    async with Node(load_deployment(path), "eu-1") as node:
        await node.wait()

The sequencer role is `Sessions(Desk(TopicManager))` on a `Host`; the broker role is the embedded broker; the overlay
role is a broker of a content-based overlay (`runtime.overlay`). Clients of a sequencer that
stay away for `CLIENT_LEASE_US` are forgotten: their registrations stop costing, and their address is dead.
"""

import asyncio
import logging
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import msgspec

from unisono.errors import MisuseError, UnisonoError
from unisono.machine import Broadcast
from unisono.model.deployment import Deployment, Sequencing
from unisono.model.ids import Address, Topic, event_id
from unisono.model.interest import covers
from unisono.model.journal import Header, Record
from unisono.model.time import SECOND, Micros
from unisono.protocols.overlay.messages import Said
from unisono.protocols.sequencer.config import SequencerConfig, local, planet, region
from unisono.protocols.sequencer.inputs import Forget
from unisono.protocols.sequencer.messages import BrokerMessage, Pieces, Stamps
from unisono.protocols.sequencer.node import TopicManager
from unisono.runtime import edge
from unisono.runtime.brokers import (
    dial_node,
    embedded_endpoint,
    endpoint,
    hub_of,
    make_ens,
    nats_options,
    open_patiently,
)
from unisono.runtime.bundle import Bundle
from unisono.runtime.clock import Clock
from unisono.runtime.desk import Desk
from unisono.runtime.dialect import publisher_on
from unisono.runtime.discovery import Beacon
from unisono.runtime.ens.adapter import EnsNotice, Item
from unisono.runtime.ens.broker import Broker, BrokerConfig
from unisono.runtime.ens.memory import Hub
from unisono.runtime.ens.udp import UdpEns
from unisono.runtime.fetching import Fetch, Follow, Locate
from unisono.runtime.frames import Codec, Hello
from unisono.runtime.ground import Ground
from unisono.runtime.groups import Commit, Enlist, Resign
from unisono.runtime.homes import check_slots, home_of
from unisono.runtime.host import Host, HostConfig
from unisono.runtime.journal import JournalFile, Level
from unisono.runtime.links import Links, LinksConfig, is_named, owner
from unisono.runtime.overlay.role import OverlayRole
from unisono.runtime.security import client_context, server_context, tokens_of
from unisono.runtime.turns import Turns
from unisono.runtime.wal import InputLog, Log, LogConfig
from unisono.structures.sessions import BroadcastsDone, Reconnected, Sessions

if TYPE_CHECKING:
    from unisono.runtime.adopt import Adopter
    from unisono.runtime.archivist import Archivist

logger = logging.getLogger(__name__)

MACHINE = "sequencer 2"
"""Name and version of what the log replays into; it changes whenever old inputs would lead to another state."""
TREE_FEATURE = "sequencer"
CLIENT_LEASE_US = Micros(600 * SECOND)
"""How long a node remembers a client that stays away. One number for all: subscribers count on it (decision 16), and a
node that forgot sooner would let two of them disagree."""
IN_PROCESS = "memory"
"""Listen address of a node that only its own process reaches."""


def sequencer_config(deployment: Deployment) -> SequencerConfig:
    """Waiting times by the longest round trip between regions; the rest as the deployment says."""
    longest_ms = max(deployment.round_trip_ms.values(), default=0.0)
    preset = local() if longest_ms < 5 else region() if longest_ms < 150 else planet()
    how: Sequencing = deployment.sequencing
    return msgspec.structs.replace(
        preset,
        mode=how.mode,
        early=how.early,
        encoding=how.encoding,
        sgmin=2 if how.order == "pairwise" else 1,
        causal=how.order == "causal",
        subscriber_lease_us=CLIENT_LEASE_US,
    )


class NodeConfig(msgspec.Struct, frozen=True):
    """What a node does that its deployment does not say."""

    journal: Level = "off"
    standby: bool = False
    """Listen at the standby address; the log decides who of the two works."""
    broker_patience_s: float = 30.0
    """How long a starting node waits for its broker."""
    log: LogConfig = LogConfig()
    host: HostConfig = HostConfig()
    links: LinksConfig = LinksConfig()


class Node:
    """One running node."""

    def __init__(
        self, deployment: Deployment, name: str, base: Path = Path(), config: NodeConfig = NodeConfig()
    ) -> None:
        """`base` is what relative paths in the deployment are relative to: the directory of its file."""
        check_slots(deployment)
        self.deployment, self.spec, self.base, self.config = deployment, deployment.node(name), base, config
        self.me = Address(name)
        self.port = 0
        self.failure: Exception | None = None
        self.host: Host | None = None
        self.desk: Desk | None = None
        self.broker: Broker | None = None
        self.overlay: OverlayRole | None = None
        self._tokens = tokens_of(deployment.security)
        self._token = self._tokens.node
        self._adopter: Adopter | None = None
        self._beacon: Beacon | None = None
        self._archivist: Archivist | None = None
        self._watchers: dict[Address, list[str]] = {}
        self._sids: dict[Address, dict[Address, None]] = {}
        self._leases: dict[Address, asyncio.TimerHandle] = {}
        self._expired: dict[Address, None] = {}
        self._over = asyncio.Event()
        self._journal: JournalFile | None = None
        self._clock = Clock()
        self.links = Links(
            Hello("node", (self.me,), features=(TREE_FEATURE,), deployment=deployment.name, token=self._token),
            Codec(edge.Letters),
            self._admit,
            edge.claims,
            self._up,
            self._down,
            config.links,
            server_context(deployment.security, base),
            client_context(deployment.security, base),
        )
        self.ground = Ground(self, self._confirmed, self._noticed, self._foreign)
        self._letters: list[tuple[Address, Any]] = []  # of this turn
        self._bundle = Bundle(self.ground.broadcast, self._broadcasts_done)

    # life

    async def start(self) -> None:
        """Returns when the node does its work; raises if it cannot."""
        data = self.base / self.spec.data if self.spec.data is not None else None
        if self.config.journal != "off":
            directory = (data or self.base) / "journal"
            name = f"{self.me}-standby" if self.config.standby else self.me
            self._journal = JournalFile(directory, name, Header(note=f"node {self.me}"))
        if "broker" in self.spec.roles and self.deployment.broker.kind == "embedded":
            own = self._tokens.node if self._tokens.node != self._tokens.client else ""
            self.broker = Broker(BrokerConfig(client_token=self._tokens.client, node_token=own))
            tls = server_context(self.deployment.security, self.base)
            await self.broker.start(*embedded_endpoint(self.deployment), tls)
        if "sequencer" in self.spec.roles:
            where = self.spec.standby if self.config.standby else self.spec.listen
            ens = make_ens(
                self.deployment, self.base, self.ground, self._token, self.spec.region, is_node=True, listen=where
            )
            self.ground.stand_on(ens)
            await open_patiently(ens, self.config.broker_patience_s)
            await self._start_sequencer(data)
        if "overlay" in self.spec.roles:
            self.overlay = OverlayRole(
                self.deployment, self.spec, self.links, self.config.host, self.refused, self.failed
            )
            self.links.attach(self.me, self)
            await self.overlay.host.start()
        listen = (self.spec.standby or "127.0.0.1:0") if self.config.standby else self.spec.listen
        if listen != IN_PROCESS:
            self.port = await self.links.listen(*endpoint(listen))
        if self.spec.parent is not None:
            dial_node(self.links, self.deployment.node(self.spec.parent))
        await self._start_adopter()
        await self._start_archivist()
        if self.deployment.broker.kind in ("nats", "jetstream"):
            self._beacon = Beacon(self.deployment, nats_options(self.deployment, self._token, self.spec.region, True))
            await open_patiently(self._beacon, self.config.broker_patience_s)
        logger.info("node %s listens on port %d", self.me, self.port)

    async def stop(self) -> None:
        """Stops taking work, finishes what has arrived, takes a snapshot."""
        for lease in self._leases.values():
            lease.cancel()
        if self._beacon is not None:
            await self._beacon.close()
        if self._adopter is not None:
            await self._adopter.stop()
        if self._archivist is not None:
            await self._archivist.stop()
        await self.links.close()
        if self.host is not None:
            await self.host.stop()
            await self.ground.close()
        if self.overlay is not None:
            await self.overlay.host.stop()
        if self.broker is not None:
            await self.broker.stop()
        if self._journal is not None:
            self._journal.close()
            self._journal = None
        self._over.set()

    async def wait(self) -> None:
        """Returns when the node has stopped; raises what made it stop, if something did."""
        await self._over.wait()
        if self.failure is not None:
            raise self.failure

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def _start_sequencer(self, data: Path | None) -> None:
        deployment, me = self.deployment, self.me
        parent = Address(self.spec.parent) if self.spec.parent is not None else None
        children = tuple(Address(child) for child in deployment.children(me))
        config = sequencer_config(deployment)
        manager = TopicManager(me, parent, children, (), {}, config)
        self.desk = Desk(me, manager, parent)
        peers = (*((parent,) if parent is not None else ()), *children)
        machine = Sessions(self.desk, me, peers, edge.NodeMessage, BrokerMessage)
        log = await self._open_log(data)
        self.host = Host(me, machine, self, log, self.config.host, Turns(manager).gather)
        self.links.attach(me, self)
        replayed = await self.host.start()
        if replayed:
            logger.info("node %s handled %d inputs of its log again", me, replayed)
        self._note(Record("restart", self._clock.now(), who=me, note=f"{replayed} inputs replayed"))
        planned = tuple(t.name for t in deployment.topics if home_of(deployment, t.name) == me)
        if planned:
            self.host.post(edge.Open(me, 0, planned))

    async def _open_log(self, data: Path | None) -> InputLog | None:
        """The log in files, or the one on a stream, as soon as it is ours."""
        if self.spec.log == "file":
            return Log(data / self.me, MACHINE, edge.Logged, self.config.log) if data is not None else None
        from unisono.runtime.replicated import ReplicatedLog, replicated_config

        log = ReplicatedLog(replicated_config(self.deployment, self.me, self._token), MACHINE, edge.Logged)
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

    async def _start_adopter(self) -> None:
        topics = tuple(
            topic.name
            for topic in self.deployment.topics
            if topic.foreign == "adopt" and home_of(self.deployment, topic.name) == self.me
        )
        if topics and self.host is not None:
            from unisono.runtime.adopt import Adopter  # it is a client, and clients know nodes

            adopter = Adopter(self.deployment, self.base, self._token, self.links, topics)
            self._adopter = await adopter.start()

    async def _start_archivist(self) -> None:
        if "archive" not in self.spec.roles:
            return
        from unisono.runtime.archivist import Archivist, archive_directory  # a client, and it needs Arrow

        directory = archive_directory(self.base, self.spec.data, self.me)
        own = self.links if self.spec.listen == IN_PROCESS else None
        self._archivist = Archivist(self.deployment, self.base, self._token, directory, self.links.send, own)
        self.links.attach(self.me, self)
        await self._archivist.start()

    # a sink for letters: what only this process knows is answered here, the rest is the machine's

    def post(self, message: Any) -> None:
        match message:
            case edge.Where(client=client):
                self.links.send(client, edge.Directory(self.deployment))
            case edge.Inquire(client=client):
                self.links.send(client, self.report())
            case edge.Watch(client=client, pattern=pattern):
                self._watch(client, pattern)
            case Fetch() | Locate() | Follow() | Enlist() | Commit() | Resign():
                if self._archivist is not None:
                    self._archivist.post(message)
            case Said():
                if self.overlay is not None:
                    self.overlay.post(message)
            case Forget(client=client) if self.overlay is not None:
                self.overlay.forget(client)
            case edge.Opened() | edge.NotOpened():
                pass  # the answer to what we asked ourselves at start
            case _ if self.host is None:
                logger.debug("node %s has no use for %s", self.me, type(message).__name__)
            case _:
                sid = edge.claims(message)
                if isinstance(message, Forget):
                    self._sids.get(owner(message.client), {}).pop(message.client, None)
                elif sid is not None and sid != self.me:
                    self._sids.setdefault(owner(sid), {})[sid] = None
                self.host.post(message)

    @property
    def _working(self) -> Host | None:
        return self.overlay.host if self.overlay is not None else self.host

    @property
    def is_full(self) -> bool:
        return self.ground.is_full or (self._working is not None and self._working.is_full)

    def when_roomy(self, callback: Any) -> None:
        if self.ground.is_full or self._working is None:
            asyncio.get_running_loop().call_later(0.05, self._check_room, callback)
        else:
            self._working.when_roomy(callback)

    def _check_room(self, callback: Any) -> None:
        if self.is_full:
            self.when_roomy(callback)
        else:
            callback()

    def _watch(self, client: Address, pattern: str) -> None:
        patterns = self._watchers.setdefault(client, [])
        if pattern not in patterns and len(patterns) < 100:
            patterns.append(pattern)
        if self.desk is not None:
            names = tuple(n for n in self.desk.mine if self.desk.is_announced(n) and covers(pattern, n))
            self.links.send(client, edge.Watched(self.me, pattern, names))

    def report(self) -> edge.Report:
        counters = {"links": _plain(self.links.counters), "broker": _plain(self.ground.counters)}
        if self.host is not None:
            counters["sequencer"] = _plain(self.host.counters)
        if self.overlay is not None:
            counters["overlay"] = self.overlay.report()
        if self._archivist is not None:
            counters["archive"] = _plain(self._archivist.counters)
        if self.host is not None and isinstance(self.ground.ens, UdpEns):
            counters["datagrams"] = self.ground.ens.counters
        return edge.Report(
            self.me,
            counters,
            tuple(self.desk.mine) if self.desk is not None else (),
            tuple(address for hello in self.links.parties() for address in hello.addresses),
            str(self.failure) if self.failure is not None else None,
        )

    @property
    def hub(self) -> Hub:
        """The memory broker of this node."""
        if self.deployment.broker.kind != "memory":
            raise MisuseError(f"the broker is {self.deployment.broker.kind}, not memory")
        return hub_of(self.deployment.name)

    # names, for the ground

    def name_of(self, topic: Topic) -> str | None:
        assert self.desk is not None
        return self.desk.names.get(topic)

    def topic_of(self, name: str) -> Topic | None:
        assert self.desk is not None
        return self.desk.mine.get(name)

    # the outside of the machine

    def send(self, to: Address, message: Any) -> None:
        self._letters.append((to, message))

    def broadcast(self, effect: Broadcast) -> None:
        if self._journal is not None and self.config.journal == "all":
            self._note_numbers(effect.topic, effect.message)
        self._bundle.add(effect)

    def _note_numbers(self, topic: Topic, message: Any) -> None:
        match message:
            case Stamps(runs=runs):
                pass
            case Pieces(pieces=pieces):
                runs = tuple(piece.run for piece in pieces if piece.missing is not None)
            case _:
                return
        name = self.name_of(topic)
        for run in runs:
            publisher = publisher_on(run.publisher, name or str(topic))
            for i in range(run.count):
                event = event_id(publisher, run.request + i)
                self._note(
                    Record("timestamp", self._clock.now(), self.me, event=event, topic=name, number=run.first + i)
                )

    def join(self, topic: Topic) -> None:
        self.ground.join(topic, self)

    def leave(self, topic: Topic) -> None:
        self.ground.leave(topic, self)

    def deliver(self, item: Any) -> None:
        if isinstance(item, edge.TopicsBorn):
            for client, patterns in self._watchers.items():
                if any(covers(pattern, name) for pattern in patterns for name in item.names):
                    self.links.send(client, item)

    def refused(self, reason: str) -> None:
        logger.debug("%s refused: %s", self.me, reason)
        self._note(Record("refuse", self._clock.now(), who=self.me, note=reason))

    def end_turn(self) -> None:
        self._bundle.end_turn()
        self.ground.end_turn()
        # Behind what subscribers wait for: whoever published has more time.
        letters, self._letters = self._letters, []
        for to, message in letters:
            self.links.send(to, message)
        if self._journal is not None:
            self._journal.flush()

    def failed(self, error: Exception) -> None:
        """Nothing of us must be heard any more: the links go down, the log stays."""
        self.failure = error
        self._note(Record("crash", self._clock.now(), who=self.me, note=str(error)))
        self._over.set()

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

    # the links

    def _admit(self, hello: Hello) -> str | None:
        if not self._tokens.admits(hello.token, hello.kind):
            return "wrong token"
        if hello.deployment and hello.deployment != self.deployment.name:
            return f"this is deployment {self.deployment.name!r}, not {hello.deployment!r}"
        names = [node.name for node in self.deployment.nodes]
        if hello.kind == "node":
            unknown = [address for address in hello.addresses if address not in names]
            return f"{unknown[0]!r} is no node of this deployment" if unknown else None
        for address in hello.addresses:
            if address in names or owner(address) != address:
                return f"{address!r} is no address for a client"
            if is_named(address) and self.links.is_up(address):
                return f"somebody is connected as {address[1:]!r}"
            if address in self._expired:
                return "this session has been forgotten: connect again with a new one"
        return None

    def _up(self, hello: Hello) -> None:
        for address in hello.addresses:
            lease = self._leases.pop(address, None)
            if lease is not None:
                lease.cancel()
            if hello.kind == "node" and self.host is not None:
                self.host.post(Reconnected(address))
            if hello.kind == "node" and self.overlay is not None:
                self.overlay.up(address)

    def _down(self, hello: Hello, error: UnisonoError | None) -> None:
        if error is not None:
            logger.info("node %s lost %s: %s", self.me, ", ".join(hello.addresses), error)
        if self.overlay is not None:
            for address in hello.addresses:
                self.overlay.down(address)
        elif hello.kind == "client":
            loop = asyncio.get_running_loop()
            for address in hello.addresses:
                for client in [c for c in self._watchers if owner(c) == address]:
                    del self._watchers[client]
                if not is_named(address):
                    self._leases[address] = loop.call_later(CLIENT_LEASE_US / SECOND, self._forget, address)

    def _forget(self, client: Address) -> None:
        self._leases.pop(client, None)
        self._expired[client] = None
        if len(self._expired) > 100_000:
            del self._expired[next(iter(self._expired))]
        for sid in self._sids.pop(client, {}):
            if self.host is not None:
                self.host.post(Forget(sid))

    def _note(self, record: Record) -> None:
        if self._journal is not None:
            self._journal.note(record)


def _plain(counters: msgspec.Struct) -> dict[str, int]:
    return {name: getattr(counters, name) for name in counters.__struct_fields__}


def check_runnable(deployment: Deployment, name: str) -> None:
    """Says before anything runs what would not work."""
    deployment.node(name)
    if deployment.broker.kind == "memory" and len(deployment.nodes) > 1:
        raise MisuseError("the memory broker lives in one process: use embedded or nats for several nodes")
