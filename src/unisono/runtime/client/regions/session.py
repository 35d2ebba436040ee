"""A client's session with a hierarchy of brokers: a link to one of them, and direct connections of its publishers.

Every stream and every publisher is a client of the protocol, with an address of its own. When the link to the broker is
lost the session goes on at another: subscriptions are attached anew, streams opened anew, and what was missed meanwhile
is asked of its publishers. Nobody has to subscribe again, and no publication is forgotten.
"""

import logging
from pathlib import Path
from typing import Any

from msgspec import Struct, structs

from unisono.errors import UnisonoError
from unisono.machine import CutOff, Heard
from unisono.model.deployment import Deployment
from unisono.model.event import Event
from unisono.model.homes import sequencers, sequencing_part
from unisono.model.ids import Address
from unisono.model.predicate import EVERY_EVENT, Filter
from unisono.model.settings import NodeSpec
from unisono.protocols.regions.client import RegionClient
from unisono.protocols.regions.deployed import regions_config
from unisono.qos import DeploymentOffer
from unisono.runtime.brokers.contract import CONTROL, Ens, Listener
from unisono.runtime.client.content_session import ContentClient, ContentSession
from unisono.runtime.client.publishing.publications import SessionPublications
from unisono.runtime.client.regions.door import RegionsDoor, RegionsPort
from unisono.runtime.client.regions.ens import RegionsEns, as_published, name_as_published
from unisono.runtime.client.sequenced import SequencedSession
from unisono.runtime.client.session import SessionConfig
from unisono.runtime.client.subscription.event_stream import EventStream
from unisono.runtime.client.subscription.request import SubscribeRequest
from unisono.runtime.client.subscription.stream import Stream
from unisono.runtime.links import control
from unisono.runtime.links.frames import Hello
from unisono.structures.hosting import Forget

logger = logging.getLogger(__name__)

WINDOW = 1_000
"""Publications under way per topic; whoever publishes more waits."""
PAYLOAD_BYTES_MAX = 4 << 20


class EntourageView(Struct, frozen=True):
    """Whom the publishers of a session are connected with directly, and why."""

    targets: tuple[str, ...]
    most: int
    reason: str
    copy_us: float = 0.0
    """What one copy costs, as it is reckoned."""


class RegionsSession(ContentSession):
    """A client of the brokers of a hierarchy.

    Where nodes of the deployment are sequencers as well, everything published is numbered, and who wants an order takes
    part in it (`ordered`); each publisher's order comes from the brokers alone, by content, whoever numbers.
    """

    keeps_nothing = "regions keep"

    def __init__(
        self, deployment: Deployment, base: Path, token: str, config: SessionConfig, near: str | None = None
    ) -> None:
        """`near` is where a broker listens that is preferred to all others."""
        super().__init__(deployment, base, token, config)
        self.door = RegionsDoor(deployment, self.links, config.region, near)
        self._config = regions_config(deployment)
        self._streams: dict[Address, Stream] = {}
        self._publishing_port: RegionsPort | None = None
        self._ens: RegionsEns | None = None
        self.ordered: SequencedSession | None = None
        if sequencers(deployment):

            def carrier(listener: Listener) -> Ens:
                self._ens = RegionsEns(deployment, base, listener, token, config.region, near)
                return self._ens

            self.ordered = SequencedSession(sequencing_part(deployment), base, token, config, carrier=carrier)
            self.ordered.publications.on_advertise = self._advertise
            self._publications = self.ordered.publications

    @property
    def broker(self) -> NodeSpec:
        return self.door.search.broker

    # life

    async def open(self) -> None:
        self.links.attach(self.address, self)
        self._begin()
        self.door.open()
        try:
            await self._connected()
            if self.ordered is not None:
                await self.ordered.open()
        except BaseException:
            self._is_open = False
            await self.door.close()
            await self.links.close()
            raise

    async def _leave(self) -> None:
        if self.ordered is not None:
            await self.ordered.close()
        await self.door.close()

    async def _connected(self) -> None:
        self.check_alive()
        await self.door.search.connected(self.config.open_s)

    def _open_streams(self) -> list[EventStream]:
        ordered = self.ordered._open_streams() if self.ordered is not None else []
        return [*self._streams.values(), *ordered]

    def _offer(self) -> DeploymentOffer:
        return DeploymentOffer(kind="regions")

    # what people call

    def entourage(self) -> EntourageView:
        """Whom this session's publishers are connected with directly, and why."""
        machine = self._ens.machine if self._ens is not None else None
        if self._publishing_port is not None:
            machine = self._publishing_port.machine
        if machine is None:
            return EntourageView((), 0, "nothing published yet")
        direct = [to for to, session in machine.publisher.sessions.items() if session.state == "direct"]
        entourage = machine.entourage
        return EntourageView(tuple(sorted(direct)), entourage.most, entourage.reason, entourage.copy_us)

    def _advertise(self, topic: str, publisher: str, where: Filter) -> None:
        if self._ens is not None:
            self._ens.advertise(topic, publisher, where)

    def _stream(self, request: SubscribeRequest) -> EventStream:
        start = request.start if request.name is None else "named"
        asks_more = request.promise.deadline_us is not None or start != "latest" or request.group is not None
        if self.ordered is not None and request.on_stall == "wait" and (request.promise.order != "fifo" or asks_more):
            return self.ordered._stream(request)
        return super()._stream(request)

    async def status(self, node: str) -> control.NodeReport:
        if self.ordered is not None and node in sequencers(self.deployment):
            return await self.ordered.status(node)
        return await super().status(node)

    # for streams and publishers

    async def enter_stream(self, stream: Stream) -> None:
        await self._connected()
        port, _ = self._add_port(stream)
        stream.sid, stream.host = port.address, port.host
        self._streams[port.address] = stream
        await port.start()
        await stream.join()

    async def leave_stream(self, stream: Stream) -> None:
        port = next((port for port in self.door.ports if port.address == stream.sid), None)
        if port is None:
            return
        self.door.ports.remove(port)
        del self._streams[port.address]
        await stream.unsubscribe(*list(stream.topics))
        await port.host.settle()
        port.send(Address(self.broker.name), Forget(port.address))
        await port.host.stop()
        self.links.detach(port.address)

    async def _publishing(self) -> SessionPublications:
        await self._connected()
        if self._publications is None:
            port, client = self._add_port(None)
            self._publishing_port = port
            self._publications = client.publications = SessionPublications(
                self, port.host, port.address, WINDOW, lambda: PAYLOAD_BYTES_MAX, by_content=True
            )
            await port.start()
        return self._publications

    def _add_port(self, stream: Stream | None) -> "tuple[RegionsPort, _RegionsClient]":
        address = self._next_address()
        where = stream.where if stream is not None else EVERY_EVENT
        client = _RegionsClient(self, address, stream)
        machine = RegionClient(address, self.topic_name, self._config, where)
        return RegionsPort(self.door, address, machine, client), client

    # links

    def _up(self, hello: Hello) -> None:
        self.door.up(hello)

    def _down(self, hello: Hello, error: UnisonoError | None) -> None:
        self.door.down(hello, error)


class _RegionsClient(ContentClient):
    """Who hears one machine of a session that may have sequencers beside its brokers."""

    def __init__(self, session: RegionsSession, address: Address, stream: Stream | None) -> None:
        super().__init__(session, address, stream)
        self._is_numbered = session.ordered is not None

    def deliver(self, item: Any) -> None:
        if self.stream is not None and self._is_numbered:
            item = _under_its_name(item)
        if item is not None:
            super().deliver(item)


def _under_its_name(item: Any) -> Any:
    """What sequencers number as well has the name it has there; what they say among themselves is not delivered."""
    match item:
        case Heard(message=Event() as event):
            if event.topic.startswith(CONTROL):
                return None
            return structs.replace(item, message=as_published(event))
        case CutOff(publishers=publishers):
            known = tuple((name_as_published(name), last) for name, last in publishers)
            return structs.replace(item, publishers=known)
        case _:
            return item
