"""For users' own tests: a deployment in memory whose broker and home misbehave on demand.

    async with unisono.testing.deployment(loss=0.1, delay="5ms", reorder=True, seed=7) as world:
        async with world.connect() as session, session.subscribe("trades", deadline="200ms") as stream:
            await session.publish("trades", 1)
            world.take_home_away()
            ...
            world.bring_home_back()

Faults are drawn from the seed. Nothing leaves the process: no port, no file.
"""

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import count
from types import NoneType
from typing import Any

from msgspec import structs

from unisono.model.arguments import expect
from unisono.model.time import Micros, parse_span
from unisono.runtime.brokers.memory.adapter import DeliveryFaults, HubConfig
from unisono.runtime.client.session import Session
from unisono.runtime.connect import connect, hold_memory
from unisono.runtime.node.node import Node

_numbers = count(1)


class MemoryDeployment:
    """A deployment of one node in memory. Made by `deployment`."""

    def __init__(self, url: str, node: Node) -> None:
        self.url = url
        """Give it to the program under test; `memory://…` works in this event loop only."""
        self._node = node

    def connect(self, **options: Any) -> AbstractAsyncContextManager[Session]:
        """A session, as by `unisono.connect(world.url)`."""
        return connect(self.url, **options)

    def set_faults(self, loss: float = 0.0, delay: str | None = None, reorder: bool = False, seed: int = 0) -> None:
        """What happens to events and stamps from now on: a share lost, each delayed by up to `delay`."""
        hub = self._node.hub
        hub.config = structs.replace(hub.config, faults=_faults(loss, delay, reorder, seed))

    def take_home_away(self) -> None:
        """The node is not reachable until `bring_home_back`: publications wait, streams stall at their deadline."""
        self._node.links.detach(self._node.me)

    def bring_home_back(self) -> None:
        self._node.links.attach(self._node.me, self._node.letters)


@asynccontextmanager
async def deployment(
    loss: float = 0.0, delay: str | None = None, reorder: bool = False, seed: int = 0
) -> AsyncGenerator[MemoryDeployment, None]:
    """A deployment in memory with faults; see the module."""
    name = f"testing-{next(_numbers)}"
    async with hold_memory(name, HubConfig(faults=_faults(loss, delay, reorder, seed))) as node:
        yield MemoryDeployment(f"memory://{name}", node)


def _faults(loss: float, delay: str | None, reorder: bool, seed: int) -> DeliveryFaults:
    expect("loss", loss, (int, float), "a share of what is sent, like 0.1")
    expect("delay", delay, (str, NoneType), 'text with a unit, like "5ms"')
    expect("reorder", reorder, bool, "True or False")
    expect("seed", seed, int, "a number")
    longest = parse_span(delay, "delay") if delay is not None else Micros(0)
    return DeliveryFaults((0, longest), reorder, loss, seed)
