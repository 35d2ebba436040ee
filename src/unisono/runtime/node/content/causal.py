"""The causal role of a node: one broker of a causal mesh on a host, its datagrams, its clients.

Members gossip in datagrams, at the port of the node; clients publish over their connections. A broker keeps nothing:
one that comes back is a new incarnation, and no member has to be told.
"""

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any

from unisono.errors import InvariantError
from unisono.machine import Broadcast, Heard, Restarted
from unisono.model.deployment import Deployment
from unisono.model.ids import Address, Topic
from unisono.model.settings import NodeSpec
from unisono.protocols.causal.broker import BROKERS, CausalBroker
from unisono.protocols.causal.deployed import causal_config, causal_groups, incarnation_of, seeds_at
from unisono.protocols.causal.messages import (
    CausalEnter,
    CausalGoodbye,
    CausalPublication,
    CausalSeeds,
    FrameFate,
    FromMember,
)
from unisono.runtime.driver.clock import Clock
from unisono.runtime.driver.host import Host
from unisono.runtime.links.links import Links
from unisono.runtime.mesh.datagrams import MeshSocket, resolve, resolve_all
from unisono.turns import TurnBounds

FATES = tuple(fate.value.replace("-", "_") for fate in FrameFate)
"""As counters are called."""
LOOK_UP_AGAIN_S = 5.0
"""Brokers whose names were not known are looked up again after this."""


class CausalRole:
    """A running broker; the outside of its machine and the sink of what comes for it."""

    said = (CausalEnter, CausalPublication)
    host: Host
    broker: CausalBroker

    def __init__(
        self,
        deployment: Deployment,
        spec: NodeSpec,
        links: Links,
        bounds: TurnBounds,
        token: str,
        refused: Callable[[str], None],
        failed: Callable[[Exception], None],
    ) -> None:
        self.me = Address(spec.name)
        self._deployment, self._spec, self._links, self._bounds = deployment, spec, links, bounds
        self.refused, self.failed = refused, failed
        self._socket = MeshSocket(deployment, token, spec.region, self._hear, self._region_of, refused)
        self._looking: asyncio.Task[None] | None = None

    async def start(self) -> None:
        spec, deployment = self._spec, self._deployment
        host, port = await resolve(spec.listen)
        called = await resolve(spec.reached_at) if spec.advertise is not None else None
        self._socket.open(host, port, called, multicasts=True)
        found = {**await resolve_all(deployment), spec.name: self._socket.address}
        self.broker = CausalBroker(
            self._socket.address,
            incarnation_of(deployment, spec.name, Clock().now()),
            causal_groups(deployment),
            causal_config(deployment),
            Random(),
            region=spec.region,
            seeds=seeds_at(deployment, found),
            multicast=deployment.causal.multicast is not None,
        )
        self.host = Host(spec.name, self.broker, self, bounds=self._bounds)
        await self.host.start()
        self.host.post(Restarted())
        if len(found) < len(deployment.nodes):
            self._looking = asyncio.create_task(self._look_up(), name="look brokers up")

    async def _look_up(self) -> None:
        """A name may not be known before its host is up; who knows us tells us of others meanwhile."""
        found: dict[str, Address] = {}
        while len(found) < len(self._deployment.nodes):
            await asyncio.sleep(LOOK_UP_AGAIN_S)
            found = {**await resolve_all(self._deployment), self.me: self._socket.address}
            self.host.post(CausalSeeds(seeds_at(self._deployment, found)))

    async def stop(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
        self.host.post(CausalGoodbye())
        await self.host.stop()
        self._socket.close()

    # connections, as the node hears of them: a broker keeps nothing of its clients

    def up(self, peer: Address) -> None:
        pass

    def down(self, party: Address) -> None:
        pass

    def forget(self, client: Address) -> None:
        pass

    # what comes

    def post(self, message: Any) -> None:
        """From a client, over its connection."""
        self.host.post(message)

    def _hear(self, message: FromMember, is_multicast: bool) -> None:
        self.host.post(Heard(BROKERS, message) if is_multicast else message)

    def _region_of(self, address: Address) -> str | None:
        return self.broker.mesh.region_of(address)

    @property
    def why_idle(self) -> str | None:
        """Why it takes no publications, if it does not."""
        return self.broker.why_idle

    def report(self) -> dict[str, int]:
        """Counters of the broker, of its host and of its socket, as one table."""
        return {"inputs": self.host.counters.inputs, **self.broker.report(), **self._socket.counters}

    # the outside of the machine

    def send(self, to: Address, message: Any) -> None:
        if isinstance(message, FromMember):
            self._socket.send(to, message)
        else:
            self._links.send(to, message)

    def broadcast(self, effect: Broadcast) -> None:
        self._socket.multicast(effect.message)

    def join(self, topic: Topic) -> None:
        """Its socket has joined when it was opened."""

    def leave(self, topic: Topic) -> None:
        raise InvariantError("a causal broker never leaves the others")

    def deliver(self, item: Any) -> None:
        pass

    def end_turn(self) -> None:
        pass
