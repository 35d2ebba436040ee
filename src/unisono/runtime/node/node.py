"""A node: one process, the roles its deployment gives it, its links, its log.

    async with Node(load_deployment(path), "eu-1") as node:
        await node.wait()

The sequencer role numbers and orders events (`node.sequencer`); the broker role is the embedded broker; the overlay
role is a broker of a content-based overlay (`node.overlay`); the archive role keeps what was delivered
(`archiving.archivist`).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import msgspec
from msgspec import structs

from unisono.errors import MisuseError, UnisonoError
from unisono.model.address import endpoint
from unisono.model.agreed import agreed, disagreement
from unisono.model.deployment import IN_PROCESS, Deployment, for_clients
from unisono.model.health import Health
from unisono.model.homes import check_slots, home_of, sequencing_part
from unisono.model.ids import Address
from unisono.model.journal import Header, Record
from unisono.model.time import SECOND, Micros
from unisono.planning.homes import HomesConfig
from unisono.protocols.naming.topic_names import TopicNames
from unisono.protocols.regions.deployed import with_members
from unisono.protocols.regions.groups import GroupView
from unisono.protocols.sequencer.admission import AdmissionConfig, Disconnected, Listens, PartyConnected
from unisono.runtime.brokers.contract import Ens, Listener
from unisono.runtime.brokers.deployed import embedded_listens, hub_of, make_ens, nats_options, open_patiently
from unisono.runtime.brokers.embedded.server import EmbeddedBroker
from unisono.runtime.brokers.guard import Guard
from unisono.runtime.brokers.memory.adapter import Hub
from unisono.runtime.brokers.nats.discovery import Beacon
from unisono.runtime.brokers.probing import probes as make_probes
from unisono.runtime.driver.clock import Clock
from unisono.runtime.driver.data_directory import LOCK, DataDirectory, Identity
from unisono.runtime.driver.host import Host
from unisono.runtime.driver.journal import JournalFile, Level
from unisono.runtime.driver.log import LogConfig
from unisono.runtime.driver.shown_heights import ShownHeights
from unisono.runtime.links import control
from unisono.runtime.links.dialing import dial_node
from unisono.runtime.links.frames import Codec, Hello, Rejected
from unisono.runtime.links.greeting import hello_of
from unisono.runtime.links.links import Links, LinksConfig, owner
from unisono.runtime.links.refusals import Refusals
from unisono.runtime.links.security import client_context, server_context, tokens_of
from unisono.runtime.node.bounds import embedded_config, links_config
from unisono.runtime.node.clients import Clients
from unisono.runtime.node.content import ContentRole, RegionsRole, content_role, dialled_by
from unisono.runtime.node.letters import NodeLetters
from unisono.runtime.node.lookout import Lookout, LookoutConfig, wall_us
from unisono.runtime.node.measuring import metrics, report, survey
from unisono.runtime.node.membership import BrokerMembership
from unisono.runtime.node.ordering import neighbours, rules_of_log
from unisono.runtime.node.pages import Pages
from unisono.runtime.node.placing import Placing
from unisono.runtime.node.questions import NodeQuestions, Told
from unisono.runtime.node.rights import Rights
from unisono.runtime.node.sequencer import SequencerRole
from unisono.structures.sessions import Reconnected
from unisono.turns import TurnBounds

if TYPE_CHECKING:
    from unisono.runtime.archiving.archivist import Archivist
    from unisono.runtime.node.adopt import Adopter

logger = logging.getLogger(__name__)

SAVE_S = 1.0
"""So often what other nodes have shown is saved, if there is news, and the clock is bounded."""
LOCK_OF_STANDBY = "LOCK-standby"
"""A standby has nothing in the directory but its journal, until the log on the stream is its own."""


class NodeConfig(msgspec.Struct, frozen=True):
    """What a node does that its deployment does not say."""

    journal: Level = "off"
    standby: bool = False
    """Listen at the standby address; the log decides who of the two works."""
    new_incarnation: bool = False
    """Go on although the log is older than what the node has told others; they are told of it."""
    broker_patience_s: float = 30.0
    """How long a starting node waits for its broker."""
    observe: str | None = None
    """`host:port` of /healthz, /readyz and /metrics; None serves none."""
    lookout: LookoutConfig = LookoutConfig()
    witness_s: float = 2.0
    """A node that keeps a log numbers nothing for this long after it listens, so that those who know more of it than it
    does itself can say so: peers and clients dial again after at most a second and a half. None know a new directory,
    or an emptied one, from the other, so both wait."""
    homes: HomesConfig = HomesConfig()
    log: LogConfig = LogConfig()
    host: TurnBounds = TurnBounds()
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
        self.broker: EmbeddedBroker | None = None
        self.sequencer: SequencerRole | None = None
        self.overlay: ContentRole | None = None
        self._tokens = tokens_of(deployment.security, base, deployment.rights)
        self._token = self._tokens.own
        self.refusals = Refusals()
        self._adopter: Adopter | None = None
        self._beacon: Beacon | None = None
        self.placing: Placing | None = None
        self.archivist: Archivist | None = None
        self.guard = Guard(self.failed)
        """What goes wrong in a task or a timer of ours ends us; nothing of it is only a line in a log."""
        self._over = asyncio.Event()
        self._journal: JournalFile | None = None
        self._directory: DataDirectory | None = None
        self.membership: BrokerMembership | None = None
        self._served = self._stops = self._serves = False
        self._saver: asyncio.TimerHandle | None = None
        self._saving: asyncio.Future[None] | None = None
        self._heights = ShownHeights()
        self._clock = Clock()
        self._agreed = agreed(deployment)
        self.links = Links(
            hello_of("node", self.me, deployment, (control.PING_FEATURE,)),
            Codec(control.Letters, control.FromClients[deployment.sequencing.by]),
            self._admit,
            control.claims,
            self._up,
            self._down,
            links_config(deployment.limits, config.links),
            server_context(deployment.security, base),
            client_context(deployment.security, base),
            self._tokens,
            self.refusals,
        )
        questions = NodeQuestions(self.links, lambda: self.topic_names, self._look_up, self.say)
        orders = "sequencer" in self.spec.roles
        probes = make_probes(deployment, base, self._token) if orders and deployment.kind == "sequencer" else {}
        self._ordering = sequencing_part(deployment) if orders else deployment
        directory = base / self.spec.data / name if self.spec.data is not None else None
        spec = self._ordering.node(name)
        idle, clock, watched = (self._why_idle, self._why_nothing_is_kept), self._clock_us, config.lookout
        self.lookout = Lookout(self._ordering, spec, self.links, probes, directory, *idle, watched, clock)
        self.pages = Pages(self.health, lambda: metrics(self, self.health()), lambda: self.failure is None)
        ended = self.lookout.lease_ended
        self.links.backlog = lambda: self.host.waiting if self.host is not None else 0
        self.clients = Clients(self.me, self.say, self.to_door, deployment.limits, ended, self.failed)
        self._rights = Rights(
            self.links.right_of, self.links.is_trusted, lambda: self.topic_names.names if self.topic_names else {}
        )
        # Over regions control passes as events do; where nodes have a token of their own, it is asked who sends it.
        guards = deployment.kind == "regions" and self._tokens.node != self._tokens.client
        asks_rights = bool(self._tokens.rights) or guards
        self.letters = NodeLetters(self, self._heights, questions, self._rights, asks_rights)

    # life

    async def start(self) -> None:
        """Returns when the node does its work; raises if it cannot, and then `stop` returns.

        Nothing is read before the data directory is ours, and the log is not opened before the port is.
        """
        data = self.base / self.spec.data if self.spec.data is not None else None
        if data is not None:
            self._directory = DataDirectory(data / self.me, LOCK_OF_STANDBY if self.config.standby else LOCK)
            rules = rules_of_log(self._ordering, self.me)
            mine = Identity(self.deployment.name, self.me, self.deployment.id, rules)
            self._directory.identify(mine, self.config.new_incarnation)
            if not self.config.standby:
                self._heights.keep_in(self._directory.directory)
        if self.config.journal != "off":
            directory = (data or self.base) / "journal"
            name = f"{self.me}-standby" if self.config.standby else self.me
            self._journal = JournalFile(directory, name, Header(note=f"node {self.me}"))
        listen = (self.spec.standby or "127.0.0.1:0") if self.config.standby else self.spec.listen
        if listen != IN_PROCESS:
            self.port = await self.links.bind(*endpoint(listen))
        if self.config.observe is not None:
            await self.pages.start(*endpoint(self.config.observe))
        self.lookout.start(self.guard)
        if "broker" in self.spec.roles and self.deployment.broker.kind == "embedded":
            own = self._tokens.node if self._tokens.node != self._tokens.client else ""
            config = embedded_config(self.deployment.limits, self._tokens.client, own)
            config = structs.replace(config, rights=self._tokens.rights)
            self.broker = EmbeddedBroker(config, self.refusals, self.links.holding)
            tls = server_context(self.deployment.security, self.base)
            await self.broker.start(*embedded_listens(self.deployment), tls)
        if "sequencer" in self.spec.roles:
            await self._start_sequencer(data)
        links, bounds, shared = self.links, self.config.host, self._tokens.client
        role = content_role(self.deployment, self.spec, links, bounds, shared, self.refused, self.failed, self._rights)
        if role is not None:
            self.links.attach(self.me, self.letters)
            await role.start()
            self.overlay = role
            self._look_at_brokers()
        if isinstance(self.overlay, RegionsRole) and self.deployment.membership.servers:
            self.membership = BrokerMembership(self.deployment, self.spec, self._token, self._regroup, self.failed)
            await self.membership.enter(self.config.broker_patience_s)
        await self.links.serve()
        self._serves = True
        self._dial_brokers()
        self.to_door(Listens())
        self._save()
        for node in dialled_by(self.deployment, self._ordering, self.spec, self.overlay):
            dial_node(links, node)
        await self._start_adopter()
        await self._start_archivist()
        if self.deployment.broker.kind in ("nats", "jetstream"):
            self._beacon = Beacon(
                for_clients(self.deployment), nats_options(self.deployment, self._token, self.spec.region, True)
            )
            await open_patiently(self._beacon, self.config.broker_patience_s)
        self._served = True

    async def stop(self) -> None:
        """Stops taking work, finishes what has arrived, takes a snapshot; whatever `start` has come to.

        Every part is stopped, whatever becomes of the others; raises what went wrong first, unless the node had failed.
        """
        self._stops = True
        self.clients.stop()
        if self.placing is not None:
            self.placing.stop()
        if self._saver is not None:
            self._saver.cancel()
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
        yield self.lookout.stop
        if self.membership is not None:
            yield self.membership.leave
        if self._beacon is not None:
            yield self._beacon.close
        if self._adopter is not None:
            yield self._adopter.stop
        if self.archivist is not None:
            yield self.archivist.stop
        yield self.links.close
        if self.sequencer is not None:
            yield partial(self.sequencer.stop, self._served)
        if self.overlay is not None:
            yield self.overlay.stop
        if self.broker is not None:
            yield self.broker.stop
        yield self.pages.stop
        yield self._let_go

    async def _let_go(self) -> None:
        if self._saving is not None:
            await asyncio.wait([self._saving])  # nobody else may have the directory before
        journal, self._journal = self._journal, None
        holding, self._directory = self._directory, None
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
        ordering = self._ordering
        spec = ordering.node(self.me)
        role = self.sequencer = SequencerRole(
            ordering,
            spec,
            self.links,
            self._journal,
            level,
            clients,
            self.refused,
            self.failed,
            self.lookout.broker_said,
            self._token,
        )
        ens = self._make_ens(role.broker)
        role.broker.stand_on(ens)
        await open_patiently(ens, self.config.broker_patience_s)
        self.lookout.broker_opened()
        self.links.attach(self.me, self.letters)
        config, witness, lookout = self.config, self._heights.witness, self.lookout
        admission = AdmissionConfig(Micros(round(config.witness_s * SECOND)), held_max=config.host.queue_max)
        await role.start(data, config.log, config.host, config.new_incarnation, admission, witness, self._serving)
        self.placing = Placing(ordering, spec, self.links, role, clients, self.guard, self._note, lookout, config.homes)

    def _make_ens(self, listener: Listener) -> Ens:
        if self.deployment.kind == "regions":
            from unisono.runtime.client.regions.ens import RegionsEns  # a client of the brokers of regions

            near = self.spec.reached_at
            return RegionsEns(self.deployment, self.base, listener, self._token, self.spec.region, near, is_node=True)
        where = self.spec.standby if self.config.standby else self.spec.listen
        return make_ens(self.deployment, self.base, listener, self._token, self.spec.region, is_node=True, listen=where)

    async def _start_adopter(self) -> None:
        topics = tuple(
            topic.name
            for topic in self.deployment.topics
            if topic.foreign == "adopt" and home_of(self.deployment, topic.name) == self.me
        )
        if topics and self.host is not None:
            from unisono.runtime.node.adopt import Adopter  # it is a client, and clients know nodes

            self._adopter = Adopter(
                self.deployment, self.base, self._token, self.links, topics, self.failed, self.spec.region
            )
            await self._adopter.start()

    async def _start_archivist(self) -> None:
        if "archive" not in self.spec.roles:
            return
        from unisono.runtime.archiving.archivist import Archivist, archive_directory  # a client, and it needs Arrow

        directory = archive_directory(self.base, self.spec.data, self.me)
        own = self.links if self.spec.listen == IN_PROCESS else None
        refused, reply = self.links.offended, self.letters.hand_out
        self.archivist = Archivist(
            self.deployment, self.base, self._token, directory, reply, self._heights, self.guard, own, refused
        )
        self.links.attach(self.me, self.letters)
        await self.archivist.start()

    # the groups of brokers

    def _regroup(self, view: GroupView) -> None:
        assert isinstance(self.overlay, RegionsRole)
        before = dict(self.overlay.dials)
        self.overlay.follow(view)
        for gone in [peer for peer in before if before[peer] != self.overlay.dials.get(peer)]:
            self.links.hang_up(gone)
        self._look_at_brokers()
        self._dial_brokers()

    def _look_at_brokers(self) -> None:
        if isinstance(self.overlay, RegionsRole):
            tree = map(Address, neighbours(self.deployment, self.me))
            self.lookout.follow(dict.fromkeys([*tree, *self.overlay.neighbours]))

    def _dial_brokers(self) -> None:
        if self._serves and isinstance(self.overlay, RegionsRole):
            for peer, address in self.overlay.dials.items():
                self.links.dial(peer, *endpoint(address))

    @property
    def _known(self) -> Deployment:
        """The deployment with the brokers that came after its file was read."""
        return with_members(self.deployment, self.membership.view) if self.membership is not None else self.deployment

    def _look_up(self, question: type | str) -> Told:
        if question is control.AskDeployment:
            return control.RunningDeployment(for_clients(self._known))
        return survey(self, question) if isinstance(question, str) else self.report()

    def _serving(self) -> None:
        """Whoever could know better has had the time to say so: from now on we number."""
        if self.placing is not None:
            self.placing.start()
        if self.sequencer is not None:
            self.sequencer.bear_planned()

    def _save(self) -> None:
        if self.sequencer is not None:
            self.sequencer.bound_clock(self.lookout.skew_us())
        if self._saving is None or self._saving.done():  # one that a slow disk keeps waiting is enough
            self._saving = asyncio.get_running_loop().run_in_executor(None, self._heights.save)
            self._saving.add_done_callback(self._saved)
        self._saver = self.guard.later(SAVE_S, self._save)

    def _saved(self, done: "asyncio.Future[None]") -> None:
        error = None if done.cancelled() else done.exception()
        if isinstance(error, Exception):
            self.failed(error)

    @property
    def host(self) -> Host | None:
        """Of the sequencer, once it has its log."""
        return self.sequencer.host if self.sequencer is not None else None

    @property
    def topic_names(self) -> TopicNames | None:
        """Topics at home here, and those that others have told of."""
        return self.sequencer.topic_names if self.sequencer is not None else None

    def say(self, client: Address, message: Any) -> None:
        """To a client that need not see all of it."""
        self.links.send(client, self._rights.shown(client, message) if self._tokens.rights else message)

    def report(self) -> control.NodeReport:
        return report(self, self.health())

    def health(self) -> Health:
        return self.lookout.health()

    def _clock_us(self) -> int:
        """What neighbours compare with theirs: the system's time, or by clock what stamps are made of."""
        reading = self.sequencer.reading_us() if self.sequencer is not None else None
        return reading if reading is not None else wall_us()

    def _why_idle(self) -> str | None:
        if self.failure is not None:
            return f"has stopped: {self.failure}"
        if self._stops:
            return "is stopping"
        if not self._served:
            return "is starting"
        return self.overlay.why_idle if self.overlay is not None else None

    def _why_nothing_is_kept(self) -> str | None:
        return self.archivist.why_idle if self.archivist is not None else None

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
        if hello.id and self.deployment.id and hello.id != self.deployment.id:
            ids = f"its id is {self.deployment.id!r}, not {hello.id!r}"
            return Rejected(f"this is another deployment {self.deployment.name!r}: {ids}", "deployment")
        differs = disagreement(hello.agreed, self._agreed, self.me)
        if differs is not None:
            return Rejected(differs, "deployment")
        names = [node.name for node in self._known.nodes]
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
        self.lookout.linked(hello)
        for address in hello.addresses:
            if hello.kind == "client":
                self.clients.up(address, hello.secret)
                self._rights.greet(address, self.links.send)
            self.to_door(PartyConnected(address))
            if hello.kind == "node" and self.host is not None:
                self.host.post(Reconnected(address))
            if hello.kind == "node" and self.overlay is not None:
                self.overlay.up(address)

    def _down(self, hello: Hello, error: UnisonoError | None) -> None:
        self.lookout.unlinked(hello, error)
        for address in hello.addresses:
            self.to_door(Disconnected(address))
            if self.overlay is not None:
                self.overlay.down(address)
            if self.overlay is not None and self.sequencer is None:
                self.clients.gone(address)
            elif hello.kind == "client":
                self.clients.down(address)

    def to_door(self, message: Any) -> None:
        if self.sequencer is not None and self.sequencer.door is not None:
            self.sequencer.door.post(message)

    def _note(self, record: Record) -> None:
        if self._journal is not None:
            self._journal.note(record)
