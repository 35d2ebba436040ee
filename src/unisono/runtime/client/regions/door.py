"""The way into a hierarchy: one broker at a time, direct connections of publishers, and the machines that use both.

When the link to the broker is lost the door goes on at another, and tells its machines: they attach anew, open their
streams anew, and ask publishers for what was missed.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Protocol

from unisono.errors import UnisonoError
from unisono.model.deployment import Deployment
from unisono.model.ids import Address
from unisono.protocols.regions.client import RegionClient
from unisono.protocols.regions.deployed import brokers_for
from unisono.protocols.regions.messages import (
    DirectConnect,
    DirectLost,
    RegionLeave,
    RegionLinkDown,
    RegionLinkUp,
    RegionMeasured,
)
from unisono.runtime.client.broker_search import BrokerSearch
from unisono.runtime.driver.host import Host, LinksOnly
from unisono.runtime.links.dialing import dial_node
from unisono.runtime.links.frames import Hello
from unisono.runtime.links.links import LetterReceiver, Links

logger = logging.getLogger(__name__)

UNUSED_S = 5.0
"""A connection for nobody is hung up after this, or twice as long."""
MEASURED_MIN = 50
"""Of fewer copies nothing is learnt about what they cost."""


class RegionsEar(Protocol):
    """Who stands above one machine; calls must not block or raise."""

    def deliver(self, item: Any, /) -> None: ...

    def end_turn(self) -> None: ...

    def refused(self, reason: str) -> None: ...

    def failed(self, error: Exception) -> None: ...


class RegionsDoor:
    """Who is reached, and who waits for it."""

    def __init__(self, deployment: Deployment, links: Links, region: str | None, near: str | None) -> None:
        """`near` is where a broker listens that is preferred to all others."""
        self.deployment, self.links = deployment, links
        self.ports: list[RegionsPort] = []
        self.on_link: Callable[[str | None], None] = lambda why: None
        """Told when a broker is reached (None), and when it is lost, with the reason."""
        self._is_open = False
        self._reached: dict[Address, None] = {}
        self.search = BrokerSearch(
            links, brokers_for(deployment, region, near), self._attach, self._reached.__contains__
        )
        self._wanted: dict[Address, list[Any]] = {}  # what waits for a direct connection
        self._dialled: dict[Address, bool] = {}  # for direct connections; whether it was unused when we last looked
        self._looker: asyncio.TimerHandle | None = None

    def open(self) -> None:
        if not self._is_open:
            self._is_open = True
            self.search.start()

    async def close(self) -> None:
        """Ends all machines, which say goodbye."""
        self._is_open = False
        await self.search.stop()
        if self._looker is not None:
            self._looker.cancel()
        for port in self.ports:
            port.host.post(RegionLeave())
            await port.host.settle()
            await port.host.stop()
        await asyncio.sleep(0)  # the farewells leave

    # brokers

    def up(self, hello: Hello) -> None:
        for name in hello.addresses:
            self._reached[name] = None
            if name in self._dialled:
                self.links.meter(name)
            for message in self._wanted.pop(name, []):
                self.links.send(name, message)
            self.search.answers(name)

    def _attach(self, broker: Address) -> None:
        for port in self.ports:
            port.host.post(RegionLinkUp(broker, "parent"))
        self.on_link(None)

    def down(self, hello: Hello, error: UnisonoError | None) -> None:
        for name in hello.addresses:
            self._reached.pop(name, None)
            for port in self.ports:
                port.host.post(DirectLost(name))
            if name == self.search.attached_to and self._is_open:
                logger.info("lost broker %s: %s", name, error)
                self.search.go_on()
                for port in self.ports:
                    port.host.post(RegionLinkDown(name))
                self.on_link(f"lost broker {name}: {error or 'it closed the connection'}")

    # direct connections

    def direct(self, to: Address, message: DirectConnect) -> None:
        """A publisher connects directly; a target that cannot be dialled never answers."""
        if to in self._reached:
            self.links.send(to, message)
            return
        node = next((node for node in self.deployment.nodes if node.name == to), None)
        if node is not None:
            self._wanted.setdefault(to, []).append(message)
            self._dialled[to] = False
            dial_node(self.links, node)
            if self._looker is None:
                self._looker = asyncio.get_running_loop().call_later(UNUSED_S, self._look)

    def _look(self) -> None:
        self.measure()
        self.hang_up_unused()
        self._looker = asyncio.get_running_loop().call_later(UNUSED_S, self._look) if self._dialled else None

    def measure(self) -> None:
        """What a direct copy has cost since we last looked, for those who choose how many they can afford."""
        letters, cpu_s = 0, 0.0
        for meter in self.links.meters.values():
            letters, cpu_s = letters + meter.letters, cpu_s + meter.cpu_s
            meter.letters, meter.cpu_s = 0, 0.0
        if letters >= MEASURED_MIN:
            for port in self.ports:
                port.host.post(RegionMeasured(cpu_s * 1e6 / letters))

    def hang_up_unused(self) -> None:
        """Connections that no publisher of ours has used since we last looked."""
        used = {to: None for port in self.ports for to in port.machine.publisher.sessions}
        for to in [to for to in self._dialled if to not in used and to != self.search.broker.name]:
            if self._dialled[to]:
                del self._dialled[to]
                self._wanted.pop(to, None)
                self.links.hang_up(to)
        self._dialled = {to: to not in used for to in self._dialled}


class RegionsPort(LinksOnly):
    """The outside of one client of the protocol, and its host."""

    def __init__(self, door: RegionsDoor, address: Address, machine: RegionClient, ear: RegionsEar) -> None:
        self.address, self.machine = address, machine
        self.host = Host(address, machine, self)
        self._door = door
        # No detour for what comes with every event.
        self.deliver, self.end_turn = ear.deliver, ear.end_turn
        self.refused, self.failed = ear.refused, ear.failed
        door.ports.append(self)

    async def start(self, sink: LetterReceiver | None = None) -> None:
        """What is said to it goes to `sink`, if there is one, and from there to the host."""
        self._door.links.attach(self.address, sink or self.host)
        await self.host.start()
        broker = self._door.search.attached_to
        if broker is not None:
            self.host.post(RegionLinkUp(broker, "parent"))

    def send(self, to: Address, message: Any) -> None:
        if isinstance(message, DirectConnect):
            self._door.direct(to, message)
        else:
            self._door.links.send(to, message)
