"""The way into a hierarchy: one broker at a time, direct connections of publishers, and the machines that use both.

When the link to the broker is lost the door goes on at another, and tells its machines: they attach anew, open their
streams anew, and ask publishers for what was missed.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Protocol

from unisono.errors import InvariantError, UnisonoError
from unisono.machine import Broadcast
from unisono.model.deployment import Deployment
from unisono.model.ids import Address, Topic
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
from unisono.runtime.driver.host import Host
from unisono.runtime.links.dialing import dial_node, unanswered
from unisono.runtime.links.frames import Hello
from unisono.runtime.links.links import LetterReceiver, Links

logger = logging.getLogger(__name__)

NEXT_S = 1.0
"""A broker that cannot be reached for this long is given up for the next one."""
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
        self.brokers = brokers_for(deployment, region, near)
        self.broker = self.brokers[0]
        self.ports: list[RegionsPort] = []
        self.on_link: Callable[[str | None], None] = lambda why: None
        """Told when a broker is reached (None), and when it is lost, with the reason."""
        self._place = 0
        self._is_open = False
        self._link: asyncio.Future[None] | None = None  # done while the broker is connected
        self._mover: asyncio.Task[None] | None = None
        self._reached: dict[Address, None] = {}
        self._wanted: dict[Address, list[Any]] = {}  # what waits for a direct connection
        self._dialled: dict[Address, bool] = {}  # for direct connections; whether it was unused when we last looked
        self._looker: asyncio.TimerHandle | None = None

    def open(self) -> None:
        if not self._is_open:
            self._link = asyncio.get_running_loop().create_future()
            self._is_open = True
            self._move()

    async def connected(self, patience_s: float) -> None:
        """Returns when a broker is reached; raises TransportError if none is in time."""
        assert self._link is not None
        await asyncio.wait([self._link], timeout=patience_s)
        if not self._link.done():
            raise unanswered(self.links, self.brokers)

    async def close(self) -> None:
        """Ends all machines, which say goodbye."""
        self._is_open = False
        if self._mover is not None:
            self._mover.cancel()
            await asyncio.gather(self._mover, return_exceptions=True)
        if self._looker is not None:
            self._looker.cancel()
        for port in self.ports:
            port.host.post(RegionLeave())
            await port.host.settle()
            await port.host.stop()
        await asyncio.sleep(0)  # the farewells leave

    @property
    def attached_to(self) -> Address | None:
        """The broker, if it is connected."""
        return Address(self.broker.name) if self._link is not None and self._link.done() else None

    # brokers

    def _move(self) -> None:
        self._mover = asyncio.create_task(self._dial_in_turn(), name="find a broker")

    async def _dial_in_turn(self) -> None:
        """Dials one broker after the other until one answers."""
        assert self._link is not None
        while not self._link.done():
            self.broker = self.brokers[self._place % len(self.brokers)]
            name = Address(self.broker.name)
            dial_node(self.links, self.broker)
            if name in self._reached:
                self._attach(name)
                return
            await asyncio.wait([self._link], timeout=NEXT_S)
            if not self._link.done():
                self.links.hang_up(name)
                self._place += 1

    def up(self, hello: Hello) -> None:
        for name in hello.addresses:
            self._reached[name] = None
            if name in self._dialled:
                self.links.meter(name)
            for message in self._wanted.pop(name, []):
                self.links.send(name, message)
            if name == self.broker.name:
                self._attach(name)

    def _attach(self, name: Address) -> None:
        if self._link is not None and not self._link.done():
            self._link.set_result(None)
            for port in self.ports:
                port.host.post(RegionLinkUp(name, "parent"))
            self.on_link(None)

    def down(self, hello: Hello, error: UnisonoError | None) -> None:
        for name in hello.addresses:
            self._reached.pop(name, None)
            for port in self.ports:
                port.host.post(DirectLost(name))
            if name != self.broker.name or not self._is_open:
                continue
            logger.info("lost broker %s: %s", name, error)
            if self._link is not None and self._link.done():
                self._link = asyncio.get_running_loop().create_future()
                for port in self.ports:
                    port.host.post(RegionLinkDown(name))
                self.on_link(f"lost broker {name}: {error or 'it closed the connection'}")
                self.links.hang_up(name)
                self._place += 1
                self._move()

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
        for to in [to for to in self._dialled if to not in used and to != self.broker.name]:
            if self._dialled[to]:
                del self._dialled[to]
                self._wanted.pop(to, None)
                self.links.hang_up(to)
        self._dialled = {to: to not in used for to in self._dialled}


class RegionsPort:
    """The outside of one client of the protocol, and its host."""

    def __init__(self, door: RegionsDoor, address: Address, machine: RegionClient, ear: RegionsEar) -> None:
        self.address, self.machine = address, machine
        self.host = Host(address, machine, self)
        self._door, self._ear = door, ear
        # No detour for what comes with every event.
        self.deliver, self.end_turn = ear.deliver, ear.end_turn
        self.refused, self.failed = ear.refused, ear.failed
        door.ports.append(self)

    async def start(self, sink: LetterReceiver | None = None) -> None:
        """What is said to it goes to `sink`, if there is one, and from there to the host."""
        self._door.links.attach(self.address, sink or self.host)
        await self.host.start()
        broker = self._door.attached_to
        if broker is not None:
            self.host.post(RegionLinkUp(broker, "parent"))

    def send(self, to: Address, message: Any) -> None:
        if isinstance(message, DirectConnect):
            self._door.direct(to, message)
        else:
            self._door.links.send(to, message)

    def broadcast(self, effect: Broadcast) -> None:
        raise InvariantError("a client of a hierarchy has its broker only")

    def join(self, topic: Topic) -> None:
        raise InvariantError("a client of a hierarchy has its broker only")

    def leave(self, topic: Topic) -> None:
        raise InvariantError("a client of a hierarchy has its broker only")
