"""A whole deployment in one process, with the distances between its regions emulated.

Every node listens on loopback. Whoever is in another region reaches it through a proxy that delays each way by the
one-way latency; so each region has its own view of the deployment, in which far addresses are those of its proxies.
The embedded broker lives at the root, so a payload travels publisher -> root region -> subscriber.
"""

from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from msgspec import structs

from unisono.errors import MisuseError
from unisono.model.address import endpoint
from unisono.model.deployment import Deployment
from unisono.model.mesh import CausalSpec
from unisono.model.region import LatencyTable
from unisono.model.settings import ROLES, BrokerSpec, Kind, NodeSpec, Region, Sequencing
from unisono.model.time import Micros
from unisono.runtime.brokers.deployed import embedded_endpoint
from unisono.runtime.mesh.distances import MeshDistances, emulate_distances
from unisono.runtime.node.node import Node, NodeConfig
from unisono.runtime.tools.delay import DelayProxy


def star_of(
    regions: tuple[str, ...],
    table: LatencyTable,
    ports: list[int],
    data: str | None = "data",
    kind: Kind = "sequencer",
    sequencing: Sequencing = Sequencing(),
) -> Deployment:
    """One node per region around the one that is nearest to all others; a sequencer's broker is there too.

    Brokers of regions are all roots, each connected with all others; those of a causal mesh gossip.
    """
    if len(ports) != len(regions) + 1:
        raise MisuseError(f"{len(regions)} regions and a broker need {len(regions) + 1} ports")
    hub = min(regions, key=lambda name: sum(table.between(name, other) for other in regions))
    nodes = tuple(
        NodeSpec(
            f"{name}-1",
            name,
            f"127.0.0.1:{port}",
            None if name == hub or kind in ("regions", "causal") else f"{hub}-1",
            ("sequencer", "broker") if kind == "sequencer" and name == hub else ROLES[kind][:1],
            data,
        )
        for name, port in zip(regions, ports, strict=False)
    )
    trips = {f"{a} {b}": table.between(a, b) / 500 for i, a in enumerate(regions) for b in regions[i + 1 :]}
    return Deployment(
        1,
        "up",
        kind=kind,
        regions=tuple(Region(name) for name in regions),
        round_trip_ms=trips,
        nodes=nodes,
        broker=BrokerSpec("embedded", (f"127.0.0.1:{ports[-1]}",)),
        causal=CausalSpec(preset="region"),
        sequencing=sequencing,
    )


class Emulation:
    """A running deployment. `async with Emulation(deployment, directory) as world: connect(world.view("eu"))`."""

    def __init__(self, deployment: Deployment, base: Path, config: NodeConfig = NodeConfig()) -> None:
        if deployment.broker.kind != "embedded":
            raise MisuseError(f"an emulated deployment has the embedded broker, not {deployment.broker.kind}")
        self.deployment, self.base, self.config = deployment, base, config
        self.nodes: dict[str, Node] = {}
        self._latencies = deployment.latencies()
        self._distances = MeshDistances(self._latencies)
        self._views: dict[str, Deployment] = {}
        self._stack = AsyncExitStack()

    def view(self, region: str) -> Deployment:
        """The deployment as seen from a region."""
        return self._views[region]

    async def __aenter__(self) -> Self:
        if self.deployment.kind == "causal":
            emulate_distances(self.deployment.name, self._distances)
            self._stack.callback(emulate_distances, self.deployment.name, None)
        try:
            for region in self._latencies.regions:
                self._views[region] = await self._make_view(region)
            order = sorted(self.deployment.nodes, key=lambda node: node.parent is not None)
            for spec in order:
                node = Node(self._views[spec.region], spec.name, self.base, self.config)
                await self._stack.enter_async_context(node)
                self.nodes[spec.name] = node
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def _make_view(self, region: str) -> Deployment:
        nodes = []
        for spec in self.deployment.nodes:
            where = await self._far(region, spec.region, endpoint(spec.reached_at))
            nodes.append(structs.replace(spec, listen=where, advertise=None))
        if self.deployment.kind != "sequencer":
            return structs.replace(self.deployment, nodes=tuple(nodes))
        broker_region = next(spec.region for spec in self.deployment.nodes if "broker" in spec.roles)
        server = await self._far(region, broker_region, embedded_endpoint(self.deployment))
        broker = structs.replace(self.deployment.broker, servers=(server,))
        return structs.replace(self.deployment, nodes=tuple(nodes), broker=broker)

    async def _far(self, here: str, there: str, target: tuple[str, int]) -> str:
        delay = self._latencies.between(here, there)
        if delay == 0:
            return f"{target[0]}:{target[1]}"
        proxy = DelayProxy(Micros(delay))
        port = await proxy.start(target)
        self._stack.push_async_callback(proxy.stop)
        self._distances.stands_for(("127.0.0.1", port), target)
        return f"127.0.0.1:{port}"
