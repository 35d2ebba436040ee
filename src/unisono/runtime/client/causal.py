"""A client's session with a causal mesh: a member of it per stream, a link to one broker for publishing.

What all streams of a session are told of counts as known wherever the session publishes. When the link to the broker is
lost the session goes on at another one: streams do not notice, they stand on gossip; a publication that was under way
is unknown when its time is over, and those that wait are published there.
"""

import asyncio
import logging
from pathlib import Path
from random import Random
from typing import Any

from msgspec import structs

from unisono.errors import TransportError, UnisonoError
from unisono.machine import Restarted
from unisono.model.deployment import Deployment
from unisono.model.event import Event
from unisono.model.ids import Address
from unisono.model.journal import Header, Record
from unisono.model.settings import NodeSpec
from unisono.model.time import Micros
from unisono.protocols.causal.client import CausalClient, CausalVia
from unisono.protocols.causal.config import PAYLOAD_BYTES_MAX
from unisono.protocols.causal.deployed import brokers_near, causal_config, causal_groups, seeds_at
from unisono.protocols.causal.knowledge import CausalKnowledge
from unisono.protocols.causal.messages import CausalGoodbye, FromMember
from unisono.qos import DeploymentOffer
from unisono.runtime.client.broker_search import BrokerSearch
from unisono.runtime.client.content_session import ContentClient, ContentSession
from unisono.runtime.client.publishing.publications import SessionPublications
from unisono.runtime.client.session import SessionConfig
from unisono.runtime.client.subscription.stream import Stream
from unisono.runtime.driver.host import Host
from unisono.runtime.links.frames import Hello
from unisono.runtime.mesh.datagrams import MeshSocket, local_host_towards, resolve, resolve_all

logger = logging.getLogger(__name__)

WINDOW = 128
"""Publications under way per topic; whoever publishes more waits. One frame's worth leaves at a time, and what
waits for longer than `queue_ticks` is refused, so more would be."""
LOOK_S = 0.02


class CausalSession(ContentSession):
    """A client of a causal mesh."""

    ends_lives = True
    keeps_nothing = "a causal mesh keeps"
    why_no_stall = "nothing stalls here, waits have deadlines"

    def __init__(
        self, deployment: Deployment, base: Path, token: str, config: SessionConfig, near: str | None = None
    ) -> None:
        """`near` is where a broker listens that is preferred to all others."""
        self.mesh_config = causal_config(deployment)
        super().__init__(deployment, base, token, config)
        self._search = BrokerSearch(self.links, brokers_near(deployment, config.region, near), self._found)
        self.token = token
        self.knowledge = CausalKnowledge()
        self._ports: list[_CausalPort] = []

    @property
    def broker(self) -> NodeSpec:
        return self._search.broker

    @property
    def region(self) -> str:
        """Where this client is: as it says, or with its broker."""
        return self.config.region or self.broker.region

    def _header(self) -> Header:
        skew_us = (self.mesh_config.eps_ticks + 1) * self.mesh_config.tick_us
        return Header(promises=("causal", "timely"), note="client", skew_us=skew_us)

    def note(self, record: Record) -> None:
        """Causality goes through the session: what it is told of and what it publishes happen at one place."""
        is_told = record.kind in ("publish", "deliver", "tag")
        super().note(structs.replace(record, who=self.address) if is_told else record)

    def note_publish(self, event: Event, deadline_us: Micros = Micros(0)) -> None:
        super().note_publish(event, deadline_us or self.mesh_config.publication_us)

    # life

    async def open(self) -> None:
        self.links.attach(self.address, self)
        self._begin()
        self._search.start()
        try:
            await self._connected()
        except BaseException:
            self._is_open = False
            await self._search.stop()
            await self.links.close()
            raise

    async def _leave(self) -> None:
        await self._search.stop()
        for port in self._ports:
            await port.stop()

    def _open_streams(self) -> list[Stream]:
        return [port.stream for port in self._ports if port.stream is not None]

    async def _connected(self) -> None:
        self.check_alive()
        await self._search.connected(self.config.open_s)

    def _offer(self) -> DeploymentOffer:
        return DeploymentOffer(kind="causal")

    # what people call

    def mesh_report(self) -> dict[str, int]:
        """Counters of this session's members: what became of frames, by reason, and datagrams; all streams together."""
        sums: dict[str, int] = {}
        for port in self._ports:
            for name, count in port.report().items():
                sums[name] = sums.get(name, 0) + count
        return sums

    async def move(self, broker: str) -> None:
        """Publishes through another broker from now on; what was heard before stays before what is published there."""
        node = self.deployment.node(broker)
        if node != self.broker:
            if self.attached_to() is not None:
                self._tell_publisher(CausalVia(None))
            await self._search.go_to(node)
        await self._connected()

    # for streams and publishers

    async def enter_stream(self, stream: Stream) -> None:
        await self._connected()
        port = _CausalPort(self, self._next_address(), stream)
        stream.sid = port.address
        await port.join_mesh()
        self._ports.append(port)
        stream.host = port.host
        await stream.join()
        await port.meet()

    async def leave_stream(self, stream: Stream) -> None:
        port = next((port for port in self._ports if port.stream is stream), None)
        if port is None:
            return
        self._ports.remove(port)
        await stream.unsubscribe(*list(stream.topics))
        await port.stop()

    def silence(self, name: str, patience_s: float) -> str:
        return f"{name!r}: the subscription did not begin within {patience_s:g} s"

    async def _publishing(self) -> SessionPublications:
        await self._connected()
        if self._publications is None:
            port = _CausalPort(self, self._next_address(), None)
            self._ports.append(port)
            self._publications = port.publications = SessionPublications(
                self,
                port.host,
                port.address,
                WINDOW,
                lambda: PAYLOAD_BYTES_MAX,
                by_content=True,
                in_one_line=True,
            )
            await port.start()
            port.host.post(CausalVia(self.attached_to()))
        return self._publications

    # the link

    def attached_to(self) -> Address | None:
        """The broker, if it is connected."""
        return self._search.attached_to

    def _up(self, hello: Hello) -> None:
        for name in hello.addresses:
            self._search.answers(name)

    def _found(self, broker: Address) -> None:
        self._tell_publisher(CausalVia(broker))

    def _down(self, hello: Hello, error: UnisonoError | None) -> None:
        name = self.attached_to()
        if self._is_open and name is not None and name in hello.addresses:
            logger.info("lost broker %s: %s", name, error)
            self._search.go_on()
            self._tell_publisher(CausalVia(None))

    def _tell_publisher(self, message: CausalVia) -> None:
        for port in self._ports:
            if port.stream is None:
                port.host.post(message)


class _CausalPort(ContentClient):
    """The outside of one client of the protocol, its host, and its socket if it subscribes."""

    host: Host
    machine: CausalClient

    def __init__(self, session: CausalSession, address: Address, stream: Stream | None) -> None:
        super().__init__(session, address, stream)
        self._mesh = session
        self._socket: MeshSocket | None = None
        if stream is None:
            self._drive(self._make(address))

    def _make(self, member: Address, **more: Any) -> CausalClient:
        session = self._mesh
        return CausalClient(
            member,
            session.topic_name,
            causal_groups(session.deployment),
            session.mesh_config,
            Random(),
            region=session.region,
            called=self.address,
            knowledge=session.knowledge,
            **more,
        )

    def _drive(self, machine: CausalClient) -> None:
        self.machine = machine
        self.host = Host(self.address, machine, self)

    async def start(self) -> None:
        self._mesh.links.attach(self.address, self.host)
        await self.host.start()

    async def join_mesh(self) -> None:
        """Opens a socket on the way to the broker, and begins to gossip."""
        session, stream = self._mesh, self.stream
        assert stream is not None
        towards = await resolve(session.broker.reached_at)
        self._socket = MeshSocket(
            session.deployment, session.token, session.region, self._hear, self._region_of, self.refused
        )
        self._socket.open(local_host_towards(towards), 0)
        seeds = seeds_at(session.deployment, await resolve_all(session.deployment))
        patience = stream.promise.deadline_us
        self._drive(self._make(self._socket.address, seeds=seeds, where=stream.where, patience_us=patience))
        await self.start()
        self.host.post(Restarted())

    async def meet(self) -> None:
        """Returns when some member was heard; raises TransportError if none is: datagrams do not come through."""
        loop, patience_s = asyncio.get_running_loop(), self._mesh.open_s
        until = loop.time() + patience_s
        while not self.machine.has_company:
            if loop.time() > until:
                broker = self._mesh.broker
                raise TransportError(
                    f"no member of the mesh was heard within {patience_s:g} s, though broker {broker.name} answers:"
                    f" do datagrams (UDP) to and from {broker.reached_at} come through, and is the token the same?"
                )
            await asyncio.sleep(LOOK_S)

    async def stop(self) -> None:
        self._mesh.links.detach(self.address)
        if self._socket is not None:
            self.host.post(CausalGoodbye())
        await self.host.stop()
        if self._socket is not None:
            self._socket.close()

    def report(self) -> dict[str, int]:
        return {**self.machine.report(), **(self._socket.counters if self._socket is not None else {})}

    def _hear(self, message: FromMember, is_multicast: bool) -> None:
        self.host.post(message)

    def _region_of(self, address: Address) -> str | None:
        return self.machine.mesh.region_of(address)

    # the outside of the machine

    def send(self, to: Address, message: Any) -> None:
        if not isinstance(message, FromMember):
            self._mesh.links.send(to, message)
        elif self._socket is not None:
            self._socket.send(to, message)
