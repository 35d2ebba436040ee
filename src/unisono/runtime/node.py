"""A node: one process, the roles its deployment gives it, its links, its log.

    async with Node(load_deployment(path), "eu-1") as node:
        await node.wait()

The sequencer role numbers and orders events (`runtime.sequencer`); the broker role is the embedded broker; the overlay
role is a broker of a content-based overlay (`runtime.overlay`); the archive role keeps what was delivered
(`runtime.archivist`).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, get_args

import msgspec
from msgspec import structs

from unisono.errors import MisuseError, PeerError, UnisonoError
from unisono.model.deployment import Deployment, for_clients
from unisono.model.ids import Address
from unisono.model.interest import covers
from unisono.model.journal import Header, Record
from unisono.model.limits import Limits
from unisono.protocols.overlay.messages import BrokerMessage as OverlayMessage
from unisono.protocols.overlay.messages import Said
from unisono.protocols.sequencer.inputs import Forget, Lapse
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
from unisono.runtime.clients import Clients
from unisono.runtime.clock import Clock
from unisono.runtime.desk import Desk
from unisono.runtime.discovery import Beacon
from unisono.runtime.ens.broker import Broker, BrokerConfig
from unisono.runtime.ens.guard import Guard
from unisono.runtime.ens.memory import Hub
from unisono.runtime.ens.udp import UdpEns
from unisono.runtime.fetching import Fetch, Follow, Locate, ToArchive
from unisono.runtime.frames import Codec, Hello, Rejected
from unisono.runtime.ground import GroundCounters
from unisono.runtime.groups import Commit, Enlist, Resign
from unisono.runtime.holding import LOCK, Holding, Identity
from unisono.runtime.homes import check_slots, home_of
from unisono.runtime.host import Host, HostConfig
from unisono.runtime.journal import JournalFile, Level
from unisono.runtime.links import Links, LinksConfig, Sink, owner
from unisono.runtime.lives import Height, Reminds
from unisono.runtime.overlay.role import OverlayRole
from unisono.runtime.refusals import Refusals
from unisono.runtime.security import client_context, server_context, tokens_of
from unisono.runtime.sequencer import SequencerRole
from unisono.runtime.wal import LogConfig
from unisono.runtime.witness import Witness
from unisono.structures.sessions import Handled, Reconnected

if TYPE_CHECKING:
    from unisono.runtime.adopt import Adopter
    from unisono.runtime.archivist import Archivist

logger = logging.getLogger(__name__)

TREE_FEATURE = "sequencer"
IN_PROCESS = "memory"
"""Listen address of a node that only its own process reaches."""
SHOW_S = 1.0
"""So often everybody who is connected is told how high the log is, if it has grown."""
SEALING = 5
"""Questions that one counts as which has the archive seal what it has heard: that is a file of its own."""
LISTED = 1_000
"""Topics that an answer may list before it counts as a further question."""
LOCK_OF_STANDBY = "LOCK-standby"
"""A standby has nothing in the directory but its journal, until the log on the stream is its own."""

_FOR_THE_NODE = frozenset(
    (
        edge.Where,
        edge.Inquire,
        edge.Watch,
        edge.Opened,
        edge.NotOpened,
        Forget,
        Height,
        Reminds,
        *get_args(ToArchive | OverlayMessage),
    )
)
"""What the machine need not see; everything else is for it."""


class NodeConfig(msgspec.Struct, frozen=True):
    """What a node does that its deployment does not say."""

    journal: Level = "off"
    standby: bool = False
    """Listen at the standby address; the log decides who of the two works."""
    new_incarnation: bool = False
    """Go on although the log is older than what the node has told others; they are told of it."""
    broker_patience_s: float = 30.0
    """How long a starting node waits for its broker."""
    witness_s: float = 2.0
    """A node that keeps a log numbers nothing for this long after it listens, so that those who know more of it than it
    does itself can say so: peers and clients dial again after at most a second and a half. None know a new directory,
    or an emptied one, from the other, so both wait."""
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
        self.broker: Broker | None = None
        self.sequencer: SequencerRole | None = None
        self.overlay: OverlayRole | None = None
        self._tokens = tokens_of(deployment.security)
        self._token = self._tokens.own
        self.refusals = Refusals()
        self._questions: dict[tuple[Address, type], None] = {}  # of this turn of the loop
        self._adopter: Adopter | None = None
        self._beacon: Beacon | None = None
        self._archivist: Archivist | None = None
        self.guard = Guard(self.failed)
        """What goes wrong in a task or a timer of ours ends us; nothing of it is only a line in a log."""
        self._over = asyncio.Event()
        self._journal: JournalFile | None = None
        self._holding: Holding | None = None
        self._served = False
        self._early: list[Any] | None = None
        """What was said to the machine before it may number anything; None: it may."""
        self._gate: asyncio.TimerHandle | None = None
        self._witness = Witness()
        self._clock = Clock()
        self.links = Links(
            Hello("node", (self.me,), features=(TREE_FEATURE,), deployment=deployment.name),
            Codec(edge.Letters),
            self._admit,
            edge.claims,
            self._up,
            self._down,
            links_config(deployment.limits, config.links),
            server_context(deployment.security, base),
            client_context(deployment.security, base),
            self._tokens,
            self.refusals,
        )
        self.clients = Clients(self.me, self.links.send, self._forget, deployment.limits)

    # life

    async def start(self) -> None:
        """Returns when the node does its work; raises if it cannot, and then `stop` returns.

        Nothing is read before the data directory is ours, and the log is not opened before the port is.
        """
        data = self.base / self.spec.data if self.spec.data is not None else None
        if data is not None:
            self._holding = Holding(data / self.me, LOCK_OF_STANDBY if self.config.standby else LOCK)
            self._holding.identify(Identity(self.deployment.name, self.me), self.config.new_incarnation)
            if not self.config.standby:
                self._witness.keep_in(self._holding.directory)
        if self.config.journal != "off":
            directory = (data or self.base) / "journal"
            name = f"{self.me}-standby" if self.config.standby else self.me
            self._journal = JournalFile(directory, name, Header(note=f"node {self.me}"))
        listen = (self.spec.standby or "127.0.0.1:0") if self.config.standby else self.spec.listen
        if listen != IN_PROCESS:
            self.port = await self.links.bind(*endpoint(listen))
        if "broker" in self.spec.roles and self.deployment.broker.kind == "embedded":
            own = self._tokens.node if self._tokens.node != self._tokens.client else ""
            self.broker = Broker(embedded_config(self.deployment.limits, self._tokens.client, own), self.refusals)
            tls = server_context(self.deployment.security, self.base)
            await self.broker.start(*embedded_endpoint(self.deployment), tls)
        if "sequencer" in self.spec.roles:
            await self._start_sequencer(data)
        if "overlay" in self.spec.roles:
            self.overlay = OverlayRole(
                self.deployment, self.spec, self.links, self.config.host, self.refused, self.failed
            )
            self.links.attach(self.me, self)
            await self.overlay.host.start()
        await self.links.serve()
        if self._early is not None and self.config.witness_s > 0:
            self._gate = self.guard.later(self.config.witness_s, self._begin)
        else:
            self._begin()
        if self.spec.parent is not None:
            dial_node(self.links, self.deployment.node(self.spec.parent))
        await self._start_adopter()
        await self._start_archivist()
        if self.deployment.broker.kind in ("nats", "jetstream"):
            self._beacon = Beacon(
                for_clients(self.deployment), nats_options(self.deployment, self._token, self.spec.region, True)
            )
            await open_patiently(self._beacon, self.config.broker_patience_s)
        self._served = True
        logger.info("node %s listens on port %d", self.me, self.port)

    async def stop(self) -> None:
        """Stops taking work, finishes what has arrived, takes a snapshot; whatever `start` has come to.

        Every part is stopped, whatever becomes of the others; raises what went wrong first, unless the node had failed.
        """
        self.clients.stop()
        if self._gate is not None:
            self._gate.cancel()
        error: Exception | None = None
        for part in self._parts():
            try:
                await part()
            except Exception as problem:  # task boundary: the other parts are stopped all the same
                logger.info("node %s, while stopping: %s", self.me, problem)
                error = error or problem
        self._over.set()
        if error is not None and self.failure is None:
            raise error

    def _parts(self) -> Iterator[Callable[[], Awaitable[None]]]:
        """How to stop what has been started, in this order."""
        if self._beacon is not None:
            yield self._beacon.close
        if self._adopter is not None:
            yield self._adopter.stop
        if self._archivist is not None:
            yield self._archivist.stop
        yield self.links.close
        if self.sequencer is not None:
            yield partial(self.sequencer.stop, self._served)
        if self.overlay is not None:
            yield self.overlay.host.stop
        if self.broker is not None:
            yield self.broker.stop
        yield self._let_go

    async def _let_go(self) -> None:
        journal, self._journal = self._journal, None
        holding, self._holding = self._holding, None
        try:
            if journal is not None:
                journal.close()
        finally:
            if holding is not None:
                holding.release()

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
        level, clients = self.config.journal, self.clients
        role = self.sequencer = SequencerRole(
            self.deployment,
            self.spec,
            self.links,
            self._journal,
            level,
            clients,
            self.refused,
            self.failed,
            self._token,
        )
        where = self.spec.standby if self.config.standby else self.spec.listen
        ens = make_ens(
            self.deployment, self.base, role.ground, self._token, self.spec.region, is_node=True, listen=where
        )
        role.ground.stand_on(ens)
        await open_patiently(ens, self.config.broker_patience_s)
        self.links.attach(self.me, self)
        if data is not None or self.spec.log != "file":
            self._early = []
        await role.start(data, self.config.log, self.config.host, self.config.new_incarnation)

    async def _start_adopter(self) -> None:
        topics = tuple(
            topic.name
            for topic in self.deployment.topics
            if topic.foreign == "adopt" and home_of(self.deployment, topic.name) == self.me
        )
        if topics and self.host is not None:
            from unisono.runtime.adopt import Adopter  # it is a client, and clients know nodes

            self._adopter = Adopter(self.deployment, self.base, self._token, self.links, topics, self.failed)
            await self._adopter.start()

    async def _start_archivist(self) -> None:
        if "archive" not in self.spec.roles:
            return
        from unisono.runtime.archivist import Archivist, archive_directory  # a client, and it needs Arrow

        directory = archive_directory(self.base, self.spec.data, self.me)
        own = self.links if self.spec.listen == IN_PROCESS else None
        refused, reply = self.links.offended, self.links.send
        self._archivist = Archivist(
            self.deployment, self.base, self._token, directory, reply, self._witness, self.guard, own, refused
        )
        self.links.attach(self.me, self)
        await self._archivist.start()

    # a sink for letters: what only this process knows is answered here, the rest is the machine's

    def post(self, message: Any) -> None:
        if type(message) not in _FOR_THE_NODE:
            self._to_machine(message)
            return
        match message:
            case edge.Where(client=client) | edge.Inquire(client=client):
                self._charge(client, self._listing)
                self._answer_soon(client, message)
            case edge.Watch(client=client, pattern=pattern):
                self._charge(client, self._listing)
                self._watch(client, pattern)
            case Fetch() | Locate() | Follow() | Enlist() | Commit() | Resign():
                self._charge(message.client, SEALING if isinstance(message, Fetch) and message.seal else 1)
                if self._archivist is not None:
                    self._archivist.post(message)
            case Said():
                if self.overlay is not None:
                    self.overlay.post(message)
            case Forget(client=client) if self.overlay is not None:
                self.overlay.forget(client)
            case Height():
                self._witness.note(message)
            case Reminds():
                if self.sequencer is not None:
                    self.sequencer.reminded(message)
            case edge.Opened() | edge.NotOpened():
                pass  # the answer to what we asked ourselves at start
            case _:
                self._to_machine(message)

    def _charge(self, client: Address, questions: int) -> None:
        self.links.charge(client, questions / self.deployment.limits.client_questions_per_s)

    @property
    def _listing(self) -> int:
        """What a question costs whose answer goes through all topics that are at home here."""
        return 1 + len(self.desk.mine) // LISTED if self.desk is not None else 1

    def _answer_soon(self, client: Address, message: edge.Where | edge.Inquire) -> None:
        """Who asks the same many times in one turn of the loop is answered once: answers cost more than questions."""
        if not self._questions:
            asyncio.get_running_loop().call_soon(self._answer)
        self._questions[client, type(message)] = None

    def _answer(self) -> None:
        questions, self._questions = self._questions, {}
        answers: dict[type, edge.Directory | edge.Report] = {}
        for client, question in questions:
            if question not in answers:
                is_where = question is edge.Where
                answers[question] = edge.Directory(for_clients(self.deployment)) if is_where else self.report()
            self.links.send(client, answers[question])

    def _to_machine(self, message: Any) -> None:
        host = self.host
        if host is None:
            logger.debug("node %s has no use for %s", self.me, type(message).__name__)
            return
        if type(message) is edge.Open and message.client != self.me:
            unknown = self._unknown(message.names)
            refused = self._full(unknown) or self.clients.asked(message.client, unknown)
            if refused is not None:
                self._tell_refused(message.client, refused)
                self.links.send(message.client, edge.NotOpened(message.request, refused.reason, refused.code))
                return
        refused = self.clients.heard(message)
        if refused is not None:
            self._tell_refused(Address(refused.about), refused)
            self.links.send(owner(Address(refused.about)), refused)
            return
        if self.sequencer is not None and not self.sequencer.is_welcome(message):
            return
        if self._early is None or type(message) is Handled:
            host.post(message)
        elif len(self._early) < self.config.host.queue_max:  # who asked meanwhile asks again
            self._early.append(message)

    def _begin(self) -> None:
        """Whoever could know better has had the time to say so: from now on we number."""
        early, self._early = self._early, None
        if self.sequencer is not None and self.host is not None:
            self.sequencer.bear_planned()
            for message in early or ():
                self.host.post(message)
        self._show()

    def _show(self) -> None:
        if self.sequencer is not None:
            self.sequencer.show_all()
        loop = asyncio.get_running_loop()
        loop.run_in_executor(None, self._witness.save).add_done_callback(self._saved)
        self._gate = self.guard.later(SHOW_S, self._show)

    def _saved(self, done: "asyncio.Future[None]") -> None:
        error = None if done.cancelled() else done.exception()
        if isinstance(error, Exception):
            self.failed(error)

    def _unknown(self, names: tuple[str, ...]) -> list[str]:
        assert self.desk is not None
        return [name for name in names if not self.desk.is_known(name)]

    def _full(self, unknown: list[str]) -> edge.Refused | None:
        most = self.deployment.limits.topics_max
        if unknown and self.desk is not None and len(self.desk.mine) + len(unknown) > most:
            return edge.Refused("topics", f"{most} topics are the most that are born here", unknown[0])
        return None

    def _tell_refused(self, client: Address, refused: edge.Refused) -> None:
        self.links.offended(client, PeerError(refused.reason, refused.code))
        self.refused(refused.reason)

    @property
    def is_full(self) -> bool:
        working = self._working
        if self._early is not None and len(self._early) >= self.config.host.queue_max:
            return True
        return working is not None and working.is_full

    def when_roomy(self, callback: Callable[[], None]) -> None:
        working = self._working
        if working is not None:
            working.when_roomy(callback)
        else:
            callback()

    @property
    def _working(self) -> Sink | None:
        return self.overlay.host if self.overlay is not None else self.sequencer

    @property
    def host(self) -> Host | None:
        """Of the sequencer, once it has its log."""
        return self.sequencer.host if self.sequencer is not None else None

    @property
    def desk(self) -> Desk | None:
        """Topics at home here, and those that others have told of."""
        return self.sequencer.desk if self.sequencer is not None else None

    def _watch(self, client: Address, pattern: str) -> None:
        refused = self.clients.watch(client, pattern)
        if refused is not None:
            self._tell_refused(client, refused)
            self.links.send(owner(client), refused)
        elif self.desk is not None:
            names = tuple(n for n in self.desk.mine if self.desk.is_announced(n) and covers(pattern, n))
            self.links.send(client, edge.Watched(self.me, pattern, names))

    def report(self) -> edge.Report:
        ground = self.sequencer.ground if self.sequencer is not None else None
        broker = ground.counters if ground is not None else GroundCounters()
        counters = {
            "links": _plain(self.links.counters),
            "broker": _plain(broker),
            "refused": dict(self.refusals.counts),
        }
        for code, count in self.overlay.broker.refusals.items() if self.overlay is not None else ():
            counters["refused"][code] = counters["refused"].get(code, 0) + count
        if self.host is not None:
            counters["sequencer"] = _plain(self.host.counters)
        if self.overlay is not None:
            counters["overlay"] = self.overlay.report()
        if self._archivist is not None:
            counters["archive"] = _plain(self._archivist.counters)
        if self.host is not None and ground is not None and isinstance(ground.ens, UdpEns):
            counters["datagrams"] = ground.ens.counters
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

    # what roles tell

    def refused(self, reason: str) -> None:
        logger.debug("%s refused: %s", self.me, reason)
        self._note(Record("refuse", self._clock.now(), who=self.me, note=reason))

    def failed(self, error: Exception) -> None:
        """Nothing of us must be heard any more: the links go down, the log stays."""
        self.failure = error
        self._note(Record("crash", self._clock.now(), who=self.me, note=str(error)))
        self._over.set()

    # the links

    def _admit(self, hello: Hello) -> Rejected | None:
        if hello.deployment and hello.deployment != self.deployment.name:
            return Rejected(f"this is deployment {self.deployment.name!r}, not {hello.deployment!r}", "deployment")
        names = [node.name for node in self.deployment.nodes]
        if hello.kind == "node":
            unknown = [address for address in hello.addresses if address not in names]
            return Rejected(f"{unknown[0]!r} is no node of this deployment", "address") if unknown else None
        for address in hello.addresses:
            if address in names or owner(address) != address:
                return Rejected(f"{address!r} is no address for a client", "address")
            rejected = self.clients.why_not(address, hello.secret)
            if rejected is not None:
                return rejected
        return None

    def _up(self, hello: Hello) -> None:
        for address in hello.addresses:
            if hello.kind == "client":
                self.clients.up(address, hello.secret)
            if self.sequencer is not None and self.host is not None:
                self.sequencer.show(address)
            if hello.kind == "node" and self.host is not None:
                self._witness.remind(hello, self.me, self.links.send)
                self.host.post(Reconnected(address))
            if hello.kind == "node" and self.overlay is not None:
                self.overlay.up(address)

    def _down(self, hello: Hello, error: UnisonoError | None) -> None:
        if error is not None:
            logger.info("node %s lost %s: %s", self.me, ", ".join(hello.addresses), error)
        if self.overlay is not None:
            for address in hello.addresses:
                self.overlay.down(address)
                self.clients.gone(address)
        elif hello.kind == "client":
            for address in hello.addresses:
                self.clients.down(address)

    def _forget(self, lapse: Lapse) -> None:
        if self.host is not None:
            self.host.post(lapse)

    def _note(self, record: Record) -> None:
        if self._journal is not None:
            self._journal.note(record)


def _plain(counters: msgspec.Struct) -> dict[str, int]:
    return {name: getattr(counters, name) for name in counters.__struct_fields__}


def links_config(limits: Limits, base: LinksConfig) -> LinksConfig:
    """The bounds of a node's connections, as its deployment says."""
    return structs.replace(
        base,
        connections_max=limits.connections_max,
        connections_unknown_max=limits.connections_unknown_max,
        hello_addresses_max=limits.hello_addresses_max,
        wire=structs.replace(
            base.wire,
            frame_bytes_max=limits.frame_bytes_max,
            waiting_bytes_max=limits.waiting_bytes_max,
            hello_s=limits.hello_s,
            hello_bytes_max=limits.hello_bytes_max,
        ),
    )


def embedded_config(limits: Limits, client_token: str, node_token: str) -> BrokerConfig:
    """The bounds of an embedded broker, as its deployment says."""
    return BrokerConfig(
        client_token=client_token,
        node_token=node_token,
        channels_max=2 * limits.client_topics_max,
        connections_max=limits.connections_max,
        connections_unknown_max=limits.connections_unknown_max,
        hello_s=limits.hello_s,
        hello_bytes_max=limits.hello_bytes_max,
    )


def check_runnable(deployment: Deployment, name: str) -> None:
    """Says before anything runs what would not work."""
    deployment.node(name)
    if deployment.broker.kind == "memory" and len(deployment.nodes) > 1:
        raise MisuseError("the memory broker lives in one process: use embedded or nats for several nodes")
