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

from unisono.errors import InvariantError, MisuseError, TransportError, UnisonoError
from unisono.machine import Broadcast, Restarted
from unisono.model.deployment import Deployment
from unisono.model.event import Event
from unisono.model.ids import Address, Topic
from unisono.model.interest import check_topic_name, is_pattern
from unisono.model.journal import Header, Record
from unisono.model.time import Micros
from unisono.protocols.causal.client import CausalClient, CausalVia
from unisono.protocols.causal.config import PAYLOAD_BYTES_MAX
from unisono.protocols.causal.deployed import brokers_near, causal_config, causal_groups, seeds_at
from unisono.protocols.causal.knowledge import CausalKnowledge
from unisono.protocols.causal.messages import CausalGoodbye, FromMember
from unisono.qos import DeploymentOffer, choose
from unisono.runtime.client.publishing.publications import SessionPublications
from unisono.runtime.client.session import Session, SessionConfig
from unisono.runtime.client.subscription.request import SubscribeRequest
from unisono.runtime.client.subscription.stream import Stream
from unisono.runtime.driver.host import Host
from unisono.runtime.links import control
from unisono.runtime.links.dialing import dial_node, unanswered
from unisono.runtime.links.frames import Hello
from unisono.runtime.mesh.datagrams import MeshSocket, local_host_towards, resolve, resolve_all

logger = logging.getLogger(__name__)

WINDOW = 128
"""Publications under way per topic; whoever publishes more waits. One frame's worth leaves at a time, and what
waits for longer than `queue_ticks` is refused, so more would be."""
NEXT_S = 1.0
"""A broker that cannot be reached for this long is given up for the next one."""
LOOK_S = 0.02


class CausalSession(Session):
    """A client of a causal mesh."""

    ends_lives = True

    def __init__(
        self, deployment: Deployment, base: Path, token: str, config: SessionConfig, near: str | None = None
    ) -> None:
        """`near` is where a broker listens that is preferred to all others."""
        self.mesh_config = causal_config(deployment)
        super().__init__(deployment, base, token, config)
        self.brokers = brokers_near(deployment, config.region, near)
        self.broker = self.brokers[0]
        self.token = token
        self.knowledge = CausalKnowledge()
        self._place = 0
        self._ports: list[_CausalPort] = []
        self._port_count = 0
        self._link: asyncio.Future[None] | None = None  # done while the broker is connected
        self._mover: asyncio.Task[None] | None = None

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
        self._link = asyncio.get_running_loop().create_future()
        self.links.attach(self.address, self)
        self._is_open = True
        self._move()
        try:
            await self._connected()
        except BaseException:
            self._is_open = False
            await self._stop_moving()
            await self.links.close()
            raise

    def _move(self) -> None:
        self._mover = asyncio.create_task(self._dial_in_turn(), name="find a broker")

    async def _dial_in_turn(self) -> None:
        """Dials one broker after the other until one answers."""
        assert self._link is not None
        while not self._link.done():
            self.broker = self.brokers[self._place % len(self.brokers)]
            dial_node(self.links, self.broker)
            await asyncio.wait([self._link], timeout=NEXT_S)
            if not self._link.done():
                self.links.hang_up(Address(self.broker.name))
                self._place += 1

    async def _stop_moving(self) -> None:
        if self._mover is not None:
            self._mover.cancel()
            await asyncio.gather(self._mover, return_exceptions=True)

    async def _leave(self) -> None:
        await self._stop_moving()
        for port in self._ports:
            await port.stop()

    def _open_streams(self) -> list[Stream]:
        return [port.stream for port in self._ports if port.stream is not None]

    def _give_up(self, reason: str) -> None:
        if self._publications is not None:
            self._publications.give_up(reason)

    def check_content(self, stream: Stream) -> None:
        """Every subscriber selects by content for itself."""

    async def _connected(self) -> None:
        """Returns when a broker can be reached; raises TransportError if none can within `open_s`."""
        self.check_alive()
        assert self._link is not None
        await asyncio.wait([self._link], timeout=self.config.open_s)
        if not self._link.done():
            raise unanswered(self.links, self.brokers)

    # what people call

    async def drain(self) -> None:
        if self._publications is not None:
            await self._publications.drain()

    def _stream(self, request: SubscribeRequest) -> Stream:
        if request.on_stall != "wait":
            raise MisuseError(f"on_stall {request.on_stall!r} is not built: nothing stalls here, waits have deadlines")
        start = request.start if request.name is None else "named"
        choose(request.promise, DeploymentOffer(kind="causal"), start, request.group, content=True)
        return Stream(
            self, request.topics, request.promise, {}, request.decode, None, request.latest_only, request.where
        )

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
            old = Address(self.broker.name)
            self._place = self.brokers.index(node)
            if self._link is not None and self._link.done():
                self._lose(old)
            else:  # it looks for one: it shall not find another meanwhile
                await self._stop_moving()
                self.links.hang_up(old)
                self._move()
        await self._connected()

    async def status(self, node: str) -> control.NodeReport:
        """How the session's broker is; raises TransportError if it does not answer."""
        if node != self.broker.name:
            raise MisuseError(f"this session is at {self.broker.name}: ask with 'unisono status'")
        await self._connected()
        return await super().status(node)

    # for streams and publishers

    async def enter_stream(self, stream: Stream) -> None:
        await self._connected()
        port = _CausalPort(self, self._next_address(), stream)
        stream.sid = port.address
        await port.join_mesh()
        self._ports.append(port)
        stream.host = port.host
        try:
            await stream.join()
            await port.meet()
        except BaseException:
            await stream.close()
            raise

    async def leave_stream(self, stream: Stream) -> None:
        port = next((port for port in self._ports if port.stream is stream), None)
        if port is None:
            return
        self._ports.remove(port)
        await stream.unsubscribe(*list(stream.topics))
        await port.stop()

    async def open_topics(self, names: list[str]) -> dict[str, Topic]:
        """Numbers are this session's own: members know topics by their names, and none has to be born."""
        for name in names:
            if name not in self._topics:
                if not is_pattern(name):
                    check_topic_name(name)
                topic = Topic(len(self._topics) + 1)
                self._topics[name], self._names[topic] = topic, name
        return {name: self._topics[name] for name in names}

    async def expand(self, patterns: list[str]) -> list[str]:
        """Subscribers look at the names of topics themselves."""
        return patterns

    def introduce(self, stream: Stream, topic: Topic) -> None:
        pass

    async def keep_position(self, name: str, position: str) -> None:
        raise MisuseError("a causal mesh keeps nothing to resume from, so a position is of no use")

    def pause(self, stream: Stream) -> None:
        pass

    def resume(self, stream: Stream) -> None:
        pass

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

    def _next_address(self) -> Address:
        self._port_count += 1
        return Address(f"{self.address}/{self._port_count}")

    # the link

    def topic_name(self, topic: Topic) -> str:
        return self._names[topic]

    def attached_to(self) -> Address | None:
        """The broker, if it is connected."""
        return Address(self.broker.name) if self._link is not None and self._link.done() else None

    def _up(self, hello: Hello) -> None:
        name = Address(self.broker.name)
        if name in hello.addresses and self._link is not None and not self._link.done():
            self._link.set_result(None)
            self._tell_publisher(CausalVia(name))

    def _down(self, hello: Hello, error: UnisonoError | None) -> None:
        name = Address(self.broker.name)
        if self._is_open and name in hello.addresses and self._link is not None and self._link.done():
            logger.info("lost broker %s: %s", name, error)
            self._place += 1
            self._lose(name)

    def _lose(self, broker: Address) -> None:
        self._link = asyncio.get_running_loop().create_future()
        self._tell_publisher(CausalVia(None))
        self.links.hang_up(broker)
        self._move()

    def _tell_publisher(self, message: CausalVia) -> None:
        for port in self._ports:
            if port.stream is None:
                port.host.post(message)


class _CausalPort:
    """The outside of one client of the protocol, its host, and its socket if it subscribes."""

    host: Host
    machine: CausalClient

    def __init__(self, session: CausalSession, address: Address, stream: Stream | None) -> None:
        self.address, self.stream = address, stream
        self.publications: SessionPublications | None = None
        self._session = session
        self._socket: MeshSocket | None = None
        if stream is None:
            self._drive(self._make(address))

    def _make(self, member: Address, **more: Any) -> CausalClient:
        session = self._session
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
        self._session.links.attach(self.address, self.host)
        await self.host.start()

    async def join_mesh(self) -> None:
        """Opens a socket on the way to the broker, and begins to gossip."""
        session, stream = self._session, self.stream
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
        loop, patience_s = asyncio.get_running_loop(), self._session.open_s
        until = loop.time() + patience_s
        while not self.machine.has_company:
            if loop.time() > until:
                broker = self._session.broker
                raise TransportError(
                    f"no member of the mesh was heard within {patience_s:g} s, though broker {broker.name} answers:"
                    f" do datagrams (UDP) to and from {broker.reached_at} come through, and is the token the same?"
                )
            await asyncio.sleep(LOOK_S)

    async def stop(self) -> None:
        self._session.links.detach(self.address)
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
            self._session.links.send(to, message)
        elif self._socket is not None:
            self._socket.send(to, message)

    def deliver(self, item: Any) -> None:
        if self.stream is not None:
            self.stream.deliver(item)
        elif self.publications is not None:
            self.publications.settle(item)

    def broadcast(self, effect: Broadcast) -> None:
        raise InvariantError("a client of a causal mesh multicasts nothing")

    def join(self, topic: Topic) -> None:
        raise InvariantError("a client of a causal mesh has its socket only")

    def leave(self, topic: Topic) -> None:
        raise InvariantError("a client of a causal mesh has its socket only")

    def refused(self, reason: str) -> None:
        logger.debug("%s refused: %s", self.address, reason)
        self._session.note(Record("refuse", self._session.now(), who=self.address, note=reason))

    def end_turn(self) -> None:
        self._session.flush_journal()
        if self.stream is not None:
            self.stream.end_turn()

    def failed(self, error: Exception) -> None:
        self._session.fail(error)
