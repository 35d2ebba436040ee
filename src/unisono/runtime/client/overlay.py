"""A client's session with an overlay: a link to one broker, any number of streams and publishers.

Every stream and every publisher is a client of the protocol, with an address of its own. When the link to the broker is
lost they are cut off for good (streams are told and end, publications without an outcome are unknown); the session
dials on, and what is subscribed and published afterwards begins under new addresses.
"""

import asyncio
import logging
from pathlib import Path
from typing import Any

from unisono.errors import TransportError, UnisonoError
from unisono.model.deployment import Deployment
from unisono.model.ids import Address
from unisono.model.settings import NodeSpec
from unisono.protocols.overlay.client import OverlayClient
from unisono.protocols.overlay.deployed import broker_config
from unisono.protocols.overlay.messages import LinkDown
from unisono.qos import DeploymentOffer
from unisono.runtime.client.content_session import ContentClient, ContentSession
from unisono.runtime.client.publishing.publications import SessionPublications
from unisono.runtime.client.session import SessionConfig
from unisono.runtime.client.subscription.stream import Stream
from unisono.runtime.driver.host import Host
from unisono.runtime.links.dialing import dial_node, unanswered
from unisono.runtime.links.frames import Hello
from unisono.structures.hosting import Forget

logger = logging.getLogger(__name__)

WINDOW = 1_000
"""Publications under way per topic; whoever publishes more waits."""
PAYLOAD_BYTES_MAX = 4 << 20
"""A publication is one letter on every link, and a frame of those holds twice this."""


class OverlaySession(ContentSession):
    """A client of the brokers of an overlay."""

    keeps_nothing = "an overlay keeps"

    def __init__(
        self, deployment: Deployment, base: Path, token: str, config: SessionConfig, near: str | None = None
    ) -> None:
        """`near` is where a broker listens that is preferred to all others."""
        super().__init__(deployment, base, token, config)
        self._broker = broker_for(deployment, config.region, near)
        self._config = broker_config(deployment)
        self._ports: list[_Port] = []
        self._link: asyncio.Future[None] | None = None  # done while the broker is connected

    @property
    def broker(self) -> NodeSpec:
        return self._broker

    # life

    async def open(self) -> None:
        self._link = asyncio.get_running_loop().create_future()
        self.links.attach(self.address, self)
        self._begin()
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

    async def _connected(self) -> None:
        self.check_alive()
        assert self._link is not None
        await asyncio.wait([self._link], timeout=self.config.open_s)
        if not self._link.done():
            raise unanswered(self.links, [self.broker])

    def _offer(self) -> DeploymentOffer:
        return DeploymentOffer(kind="overlay", held_us_max=self._config.held_us_max)

    # for streams and publishers

    async def enter_stream(self, stream: Stream) -> None:
        await self._connected()
        port = self._add_port(stream)
        stream.sid, stream.host = port.address, port.host
        await port.start()
        await stream.join()

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
        port = _Port(self, self._next_address(), stream)
        self._ports.append(port)
        return port

    # the link

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


class _Port(ContentClient):
    """The outside of one client of the protocol, and its host."""

    def __init__(self, session: OverlaySession, address: Address, stream: Stream | None) -> None:
        super().__init__(session, address, stream)
        self.machine = session.machine_for(address, stream)
        self.host = Host(address, self.machine, self)
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

    def end_turn(self) -> None:
        super().end_turn()
        if self.stream is not None and self.machine.is_cut_off and not self._is_told:
            self._is_told = True
            lost = f"the link to broker {self._session.broker.name} was lost, and this subscription ends"
            self.stream.fail(TransportError(f"{lost}: what comes later could contradict what came. Subscribe again"))


def broker_for(deployment: Deployment, region: str | None, near: str | None) -> NodeSpec:
    """The broker that was named, else one of the client's region, else the root."""
    for node in deployment.nodes:
        if near is not None and node.reached_at == near:
            return node
    return next((node for node in deployment.nodes if node.region == region), deployment.root)
