"""A client's session with an overlay: a link to one broker, any number of streams and publishers.

Every stream and every publisher is a client of the protocol, with an address of its own. When the link to the broker is
lost they are cut off for good (streams are told and end, publications without an outcome are unknown); the session
dials on, and what is subscribed and published afterwards begins under new addresses.
"""

import asyncio
import logging
from pathlib import Path
from typing import Any

from unisono.errors import InvariantError, MisuseError, TransportError, UnisonoError
from unisono.machine import Broadcast
from unisono.model.deployment import Deployment
from unisono.model.ids import Address, Topic
from unisono.model.interest import check_topic_name, is_pattern
from unisono.model.journal import Record
from unisono.model.settings import NodeSpec
from unisono.protocols.overlay.client import OverlayClient
from unisono.protocols.overlay.deployed import broker_config
from unisono.protocols.overlay.messages import LinkDown
from unisono.qos import DeploymentOffer, choose
from unisono.runtime.client.publishing.publications import SessionPublications
from unisono.runtime.client.session import Session, SessionConfig
from unisono.runtime.client.subscription.request import SubscribeRequest
from unisono.runtime.client.subscription.stream import Stream
from unisono.runtime.driver.host import Host
from unisono.runtime.links import control
from unisono.runtime.links.dialing import dial_node, unanswered
from unisono.runtime.links.frames import Hello
from unisono.structures.hosting import Forget

logger = logging.getLogger(__name__)

WINDOW = 1_000
"""Publications under way per topic; whoever publishes more waits."""
PAYLOAD_BYTES_MAX = 4 << 20
"""A publication is one letter on every link, and a frame of those holds twice this."""


class OverlaySession(Session):
    """A client of the brokers of an overlay."""

    def __init__(
        self, deployment: Deployment, base: Path, token: str, config: SessionConfig, near: str | None = None
    ) -> None:
        """`near` is where a broker listens that is preferred to all others."""
        super().__init__(deployment, base, token, config)
        self.broker = broker_for(deployment, config.region, near)
        self._config = broker_config(deployment)
        self._ports: list[_Port] = []
        self._port_count = 0
        self._link: asyncio.Future[None] | None = None  # done while the broker is connected

    # life

    async def open(self) -> None:
        self._link = asyncio.get_running_loop().create_future()
        self.links.attach(self.address, self)
        self._is_open = True
        dial_node(self.links, self.broker)
        try:
            await self._connected()
        except BaseException:
            self._is_open = False
            await self.links.close()
            raise

    async def _leave(self) -> None:
        for port in self._ports:
            await port.host.stop()
        await asyncio.sleep(0)  # the farewells leave

    def _open_streams(self) -> list[Stream]:
        return [port.stream for port in self._ports if port.stream is not None]

    def _give_up(self, reason: str) -> None:
        if self._publications is not None:
            self._publications.give_up(reason)

    def check_content(self, stream: Stream) -> None:
        """An overlay always selects by content."""

    async def _connected(self) -> None:
        """Returns when the broker can be reached; raises TransportError if it cannot within `open_s`."""
        self.check_alive()
        assert self._link is not None
        await asyncio.wait([self._link], timeout=self.config.open_s)
        if not self._link.done():
            raise unanswered(self.links, [self.broker])

    # what people call

    async def drain(self) -> None:
        if self._publications is not None:
            await self._publications.drain()

    def _stream(self, request: SubscribeRequest) -> Stream:
        if request.on_stall != "wait":
            raise MisuseError(f"on_stall {request.on_stall!r} is not built: a stalled topic waits, and says so")
        offer = DeploymentOffer(kind="overlay", held_us_max=self._config.held_us_max)
        start = request.start if request.name is None else "named"
        choose(request.promise, offer, start, request.group, content=True)
        return Stream(
            self, request.topics, request.promise, {}, request.decode, None, request.latest_only, request.where
        )

    async def status(self, node: str) -> control.NodeReport:
        """How the session's broker is; raises TransportError if it does not answer."""
        if node != self.broker.name:
            raise MisuseError(f"this session knows {self.broker.name} only: ask with 'unisono status'")
        await self._connected()
        return await super().status(node)

    # for streams and publishers

    async def enter_stream(self, stream: Stream) -> None:
        await self._connected()
        port = self._add_port(stream)
        stream.sid, stream.host = port.address, port.host
        await port.start()
        try:
            await stream.join()
        except BaseException:
            await stream.close()
            raise

    async def leave_stream(self, stream: Stream) -> None:
        port = next((port for port in self._ports if port.stream is stream), None)
        if port is None:
            return
        self._ports.remove(port)
        await stream.unsubscribe(*list(stream.topics))
        await port.host.settle()
        port.send(Address(self.broker.name), Forget(port.address))
        await port.host.stop()
        self.links.detach(port.address)

    async def open_topics(self, names: list[str]) -> dict[str, Topic]:
        """Numbers are this session's own: an overlay knows topics by their names, and none has to be born."""
        for name in names:
            if name not in self._topics:
                if not is_pattern(name):
                    check_topic_name(name)
                topic = Topic(len(self._topics) + 1)
                self._topics[name], self._names[topic] = topic, name
        return {name: self._topics[name] for name in names}

    async def expand(self, patterns: list[str]) -> list[str]:
        """Brokers route by patterns as they are."""
        return patterns

    def introduce(self, stream: Stream, topic: Topic) -> None:
        pass

    async def keep_position(self, name: str, position: str) -> None:
        raise MisuseError("an overlay keeps nothing to resume from, so a position is of no use")

    def pause(self, stream: Stream) -> None:
        pass

    def resume(self, stream: Stream) -> None:
        pass

    def silence(self, name: str, patience_s: float) -> str:
        return f"{name!r}: the brokers did not agree on the subscription within {patience_s:g} s"

    async def _publishing(self) -> SessionPublications:
        await self._connected()
        if self._publications is None:
            port = self._add_port(None)
            self._publications = port.publications = SessionPublications(
                self, port.host, port.address, WINDOW, lambda: PAYLOAD_BYTES_MAX, by_content=True
            )
            await port.start()
        return self._publications

    def _add_port(self, stream: Stream | None) -> "_Port":
        self._port_count += 1
        port = _Port(self, Address(f"{self.address}/{self._port_count}"), stream)
        self._ports.append(port)
        return port

    # the link

    def topic_name(self, topic: Topic) -> str:
        return self._names[topic]

    def machine_for(self, address: Address, stream: Stream | None) -> OverlayClient:
        broker, limits = Address(self.broker.name), self._config.limits
        if stream is None:
            return OverlayClient(address, broker, self.topic_name, limits=limits)
        return OverlayClient(address, broker, self.topic_name, stream.where, limits)

    def _up(self, hello: Hello) -> None:
        if self._link is not None and not self._link.done():
            self._link.set_result(None)

    def _down(self, hello: Hello, error: UnisonoError | None) -> None:
        logger.info("lost broker %s: %s", self.broker.name, error)
        self._link = asyncio.get_running_loop().create_future()
        self._publications = None
        for port in self._ports:
            port.cut()
        self._ports = [port for port in self._ports if port.stream is not None]


class _Port:
    """The outside of one client of the protocol, and its host."""

    def __init__(self, session: OverlaySession, address: Address, stream: Stream | None) -> None:
        self.address, self.stream = address, stream
        self.machine = session.machine_for(address, stream)
        self.host = Host(address, self.machine, self)
        self.publications: SessionPublications | None = None
        self._session = session
        self._is_cut = self._is_told = False

    async def start(self) -> None:
        self._session.links.attach(self.address, self.host)
        await self.host.start()

    def cut(self) -> None:
        """The link is lost: nothing more from the broker, nothing more to it."""
        if not self._is_cut:
            self._is_cut = True
            self._session.links.detach(self.address)
            self.host.post(LinkDown(Address(self._session.broker.name)))

    def send(self, to: Address, message: Any) -> None:
        if not self._is_cut:
            self._session.links.send(to, message)

    def deliver(self, item: Any) -> None:
        if self.stream is not None:
            self.stream.deliver(item)
        elif self.publications is not None:
            self.publications.settle(item)

    def broadcast(self, effect: Broadcast) -> None:
        raise InvariantError("a client of an overlay has its broker only")

    def join(self, topic: Topic) -> None:
        raise InvariantError("a client of an overlay has its broker only")

    def leave(self, topic: Topic) -> None:
        raise InvariantError("a client of an overlay has its broker only")

    def refused(self, reason: str) -> None:
        logger.debug("%s refused: %s", self.address, reason)
        self._session.note(Record("refuse", self._session.now(), who=self.address, note=reason))

    def end_turn(self) -> None:
        self._session.flush_journal()
        if self.stream is None:
            return
        self.stream.end_turn()
        if self.machine.is_cut_off and not self._is_told:
            self._is_told = True
            lost = f"the link to broker {self._session.broker.name} was lost, and this subscription ends"
            self.stream.fail(TransportError(f"{lost}: what comes later could contradict what came. Subscribe again"))

    def failed(self, error: Exception) -> None:
        self._session.fail(error)


def broker_for(deployment: Deployment, region: str | None, near: str | None) -> NodeSpec:
    """The broker that was named, else one of the client's region, else the root."""
    for node in deployment.nodes:
        if near is not None and node.reached_at == near:
            return node
    return next((node for node in deployment.nodes if node.region == region), deployment.root)
