"""Brokers to run the contract over: each world starts one, connects to it, kills it and starts it again."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from unisono.model.deployment import Deployment
from unisono.model.settings import NodeSpec, Region
from unisono.model.time import Micros
from unisono.protocols.coded.channel import Channel
from unisono.runtime.brokers.contract import AdapterLimits, Ens, EnsNotice, Item, Lost, Parcel, unpack
from unisono.runtime.brokers.embedded.adapter import EmbeddedEns
from unisono.runtime.brokers.embedded.server import EmbeddedBroker, EmbeddedBrokerConfig
from unisono.runtime.brokers.memory.adapter import Hub, HubConfig, MemoryEns
from unisono.runtime.brokers.nats.adapter import NatsEns
from unisono.runtime.brokers.nats.codec import NatsOptions
from unisono.runtime.brokers.nats.jetstream import JetStreamEns
from unisono.runtime.brokers.udp.adapter import UdpEns, UdpOptions
from unisono.runtime.brokers.udp.node import UdpConfig
from unisono.runtime.client.regions.ens import RegionsEns
from unisono.runtime.node.node import Node
from unisono.runtime.tools.nats_server import NatsCluster, NatsServer, NatsServerConfig
from unisono.runtime.tools.ports import free_ports

PATIENCE_S = 20.0
"""Bound of every wait in these tests; reaching it is a failure."""


SMALL = NatsServerConfig(
    jetstream_sync="2m",  # these tests pull no plug, and a sync per message would be most of their time
    node_password="n0de",
    max_pending_bytes=2 * 1024 * 1024,
    write_deadline_us=1_000_000,
)


class Ear:
    """A listener that remembers."""

    def __init__(self) -> None:
        self.items: list[Item] = []
        self.confirmed = 0
        self.notices: list[EnsNotice] = []
        self.failure: Exception | None = None
        self._changed = asyncio.Event()

    def on_items(self, items: Sequence[Parcel]) -> None:
        self.items += unpack(items)
        self._changed.set()

    def on_confirmed(self, count: int) -> None:
        self.confirmed += count
        self._changed.set()

    def on_notice(self, notice: EnsNotice) -> None:
        self.notices.append(notice)
        self._changed.set()

    def on_failed(self, error: Exception) -> None:
        self.failure = error
        self._changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not condition():
                if self.failure is not None:
                    raise self.failure
                self._changed.clear()
                await self._changed.wait()

    def payloads(self, topic: str | None = None) -> list[bytes]:
        return [item.payload for item in self.items if topic in (None, item.topic)]

    def heard(self, kind: type[Any]) -> list[Any]:
        return [notice for notice in self.notices if isinstance(notice, kind)]

    def lost_count(self) -> int:
        return sum(notice.count or 0 for notice in self.heard(Lost))


class MemoryWorld:
    """A hub in this loop; it cannot crash."""

    places = 1
    flood = 9_000
    """Items of 2 kB that are more than any queue on the way holds, or many."""
    survives_kill = False
    queue_items = 2_000

    async def __aenter__(self) -> "MemoryWorld":
        self.hub = Hub(HubConfig(inbox_items_max=self.queue_items, slow="gap"))
        return self

    async def __aexit__(self, *_: object) -> None: ...

    async def connect(self, ear: Ear, place: int = 0, limits: AdapterLimits = AdapterLimits()) -> Ens:
        ens = MemoryEns(self.hub, ear, limits)
        await ens.open()
        return ens


class EmbeddedWorld:
    """A broker on a loopback port."""

    places = 1
    flood = 9_000
    survives_kill = True

    async def __aenter__(self) -> "EmbeddedWorld":
        self._stack = AsyncExitStack()
        self.port = 0
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()
        await self.kill()

    async def start(self) -> None:
        self.broker = EmbeddedBroker(EmbeddedBrokerConfig(queue_bytes_max=64 * 1024, patience_us=0, node_token="n0de"))
        self.port = await self.broker.start(port=self.port)

    async def kill(self) -> None:
        await self.broker.stop()

    async def connect(self, ear: Ear, place: int = 0, limits: AdapterLimits = AdapterLimits()) -> Ens:
        ens = EmbeddedEns("127.0.0.1", self.port, ear, token="n0de", limits=limits)
        await ens.open()
        self._stack.push_async_callback(ens.close)
        return ens


class NatsWorld:
    """One nats-server, killed with kill -9; a slow reader is cut off early."""

    places = 1
    flood = 9_000
    survives_kill = True

    async def __aenter__(self) -> "NatsWorld":
        self._stack = AsyncExitStack()
        directory = self._stack.enter_context(TemporaryDirectory())
        self.servers = await self.start_servers(Path(directory))
        return self

    async def start_servers(self, directory: Path) -> list[NatsServer]:
        server = NatsServer(directory / "n1", SMALL)
        self._stack.callback(server.kill)
        await server.start()
        return [server]

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def start(self) -> None:
        await self.servers[0].start()

    async def kill(self) -> None:
        self.servers[0].kill()

    async def connect(self, ear: Ear, place: int = 0, limits: AdapterLimits = AdapterLimits()) -> Ens:
        ens = NatsEns(NatsOptions((self.servers[place].node_url,)), ear, limits)
        await ens.open()
        self._stack.push_async_callback(ens.close)
        return ens


class NatsClusterWorld(NatsWorld):
    """Two nats-servers, 20 ms apart; clients know one and find the other."""

    places = 2

    async def start_servers(self, directory: Path) -> list[NatsServer]:
        self.cluster = NatsCluster(directory, 2, Micros(20_000), SMALL)
        self._stack.push_async_callback(self.cluster.stop)
        await self.cluster.start()
        return self.cluster.servers


class JetStreamWorld(NatsWorld):
    """One nats-server that keeps what is published."""

    async def start_servers(self, directory: Path) -> list[NatsServer]:
        server = NatsServer(directory / "n1", msgspec.structs.replace(SMALL, jetstream=True))
        self._stack.callback(server.kill)
        await server.start()
        return [server]

    async def connect(self, ear: Ear, place: int = 0, limits: AdapterLimits = AdapterLimits()) -> Ens:
        ens = JetStreamEns(NatsOptions((self.servers[place].node_url,)), ear, limits)
        await ens.open()
        self._stack.push_async_callback(ens.close)
        return ens


class UdpWorld:
    """A seed, and participants on sockets of their own; nobody is the broker."""

    places = 1
    flood = 1_200
    survives_kill = False
    loss: Channel | None = None

    async def __aenter__(self) -> "UdpWorld":
        self._stack = AsyncExitStack()
        self._count = 0
        self.seeds: tuple[str, ...] = ()
        seed = await self.connect(Ear())
        self.seeds = (seed.address,)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def connect(self, ear: Ear, place: int = 0, limits: AdapterLimits = AdapterLimits()) -> UdpEns:
        self._count += 1
        options = UdpOptions(self.seeds, udp=UdpConfig(loss=self.loss, seed=self._count), inbox_items_max=500)
        ens = UdpEns(options, ear, limits)
        await ens.open()
        self._stack.push_async_callback(ens.close)
        return ens


class LossyUdpWorld(UdpWorld):
    """A fifth of all datagrams is dropped, in bursts."""

    loss = Channel(0.2, 2.0)


class RegionsWorld:
    """A broker of each of two regions; whoever misses something when one dies asks its publisher."""

    places = 2
    flood = 9_000
    survives_kill = True

    async def __aenter__(self) -> "RegionsWorld":
        self._stack = AsyncExitStack()
        nodes = tuple(
            NodeSpec(name, name, f"127.0.0.1:{port}", None, ("regions",), observe="off")
            for name, port in zip(("eu", "us"), free_ports(2), strict=True)
        )
        regions = (Region("eu"), Region("us"))
        self.deployment = Deployment(1, "regions-world", kind="regions", regions=regions, nodes=nodes)
        self.nodes: list[Node] = []
        for spec in nodes:
            self.nodes.append(Node(self.deployment, spec.name))
            await self.nodes[-1].start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()
        for node in self.nodes:
            await node.stop()

    async def start(self) -> None:
        self.nodes[0] = Node(self.deployment, "eu")
        await self.nodes[0].start()

    async def kill(self) -> None:
        await self.nodes[0].stop()

    async def connect(self, ear: Ear, place: int = 0, limits: AdapterLimits = AdapterLimits()) -> Ens:
        node = self.deployment.nodes[place]
        ens = RegionsEns(self.deployment, Path(), ear, "", node.region, node.reached_at, limits=limits)
        await ens.open()
        self._stack.push_async_callback(ens.close)
        return ens


WORLDS: dict[str, Callable[[], Any]] = {
    "memory": MemoryWorld,
    "embedded": EmbeddedWorld,
    "nats": NatsWorld,
    "nats-cluster": NatsClusterWorld,
    "jetstream": JetStreamWorld,
    "udp": UdpWorld,
    "regions": RegionsWorld,
}
