"""`connect`: from an address to a session.

unisono://host:port[,host:port]   any node: it tells where the others are
unisono+srv://domain              the same, the nodes being those that DNS names for `_unisono._tcp.domain`
memory://name                     a deployment inside this process and event loop, for tests and small programs
path/to/deployment.toml           the deployment itself
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from types import NoneType, TracebackType
from typing import TYPE_CHECKING, Any, get_args
from urllib.parse import urlsplit

from unisono.errors import MisuseError
from unisono.model.arguments import expect, expect_one_of, expect_path
from unisono.model.deployment import IN_PROCESS, Deployment
from unisono.model.settings import BrokerSpec, NodeSpec
from unisono.runtime.brokers.deployed import set_hub
from unisono.runtime.brokers.memory.adapter import Hub, HubConfig
from unisono.runtime.client.causal import CausalSession
from unisono.runtime.client.finding import check_address, find_deployment
from unisono.runtime.client.overlay import OverlaySession
from unisono.runtime.client.regions import RegionsSession
from unisono.runtime.client.sequenced import SequencedSession
from unisono.runtime.client.session import Recorded, Session, SessionConfig
from unisono.runtime.links.security import token_of
from unisono.runtime.node.node import Node


class _MemoryNode:
    """A node of this loop and how many use it."""

    def __init__(self, name: str) -> None:
        spec = NodeSpec("memory", listen=IN_PROCESS)
        self.deployment = Deployment(1, f"memory-{name}", nodes=(spec,), broker=BrokerSpec("memory"))
        self.node = Node(self.deployment, "memory")
        self.users = 0
        self.starting = asyncio.Lock()


HOW_TO_CONNECT = "use 'async with unisono.connect(…) as session:'"

_memory: dict[tuple[asyncio.AbstractEventLoop, str], _MemoryNode] = {}


class Connecting(AbstractAsyncContextManager[Session]):
    """What `connect` returns: entered with `async with`, it is a session."""

    def __init__(self, opening: AbstractAsyncContextManager[Session]) -> None:
        self._opening = opening

    async def __aenter__(self) -> Session:
        return await self._opening.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._opening.__aexit__(kind, error, trace)

    if not TYPE_CHECKING:  # type checkers say it themselves

        def __await__(self) -> Any:
            raise MisuseError(HOW_TO_CONNECT)

        def __getattr__(self, name: str) -> Any:
            if name.startswith("_") or not hasattr(Session, name):
                raise AttributeError(name)
            raise MisuseError(f"not connected yet, so there is no {name}: {HOW_TO_CONNECT}")


def connect(
    where: str | Path | Deployment,
    *,
    token: str | None = None,
    authority: str | Path | None = None,
    credentials: str | Path | None = None,
    certificate: str | Path | None = None,
    key: str | Path | None = None,
    journal: str | Path | None = None,
    record: Recorded = "deliveries",
    state: str | Path | None = None,
    region: str | None = None,
    timeout: float = 10.0,
) -> Connecting:
    """Connects to a deployment; sessions of all kinds have the same methods.

    async with unisono.connect("unisono://127.0.0.1:7474") as session:
        await session.publish("trades", {"sym": "IBM", "px": 101.2})

    `credentials` (a `.creds` file or an nkey seed), `certificate` and its `key` are shown to NATS servers that ask.
    `journal` is a directory for what is published and told; record="all" adds when each event left and arrived.
    """
    expect("connect: the first argument", where, (str, Path, Deployment), "an address or a deployment file")
    if not isinstance(where, Deployment):
        expect_path("connect: the first argument", where)
    if isinstance(where, str):
        check_address(where)
    expect("token", token, (str, NoneType), "text")
    expect("timeout", timeout, (int, float), "a number of seconds")
    if not timeout > 0:
        raise MisuseError(f"timeout={timeout}: a number of seconds above 0")
    expect_one_of("record", record, get_args(Recorded))
    expect("region", region, (str, NoneType), "the name of a region")
    own: dict[str, str | Path | None] = {"credentials": credentials, "certificate": certificate, "key": key}
    for name, path in (*own.items(), ("authority", authority), ("journal", journal), ("state", state)):
        expect_path(name, path)
    config = SessionConfig(
        open_s=timeout,
        journal=Path(journal) if journal is not None else None,
        record=record,
        region=region,
        state=Path(state) if state is not None else None,
    )
    if isinstance(where, str) and where.startswith("memory://"):
        return Connecting(_in_memory(where.removeprefix("memory://"), config))
    return Connecting(_found(where, token, authority, own, config))


@asynccontextmanager
async def _found(
    where: str | Path | Deployment,
    token: str | None,
    authority: str | Path | None,
    own: dict[str, str | Path | None],
    config: SessionConfig,
) -> AsyncGenerator[Session, None]:
    region = config.region
    deployment, base = await find_deployment(where, token or "", config.open_s, authority, own)
    regions = [each.name for each in deployment.regions]
    if region is not None and regions and region not in regions:
        raise MisuseError(f"region {region!r} is not one of deployment {deployment.name}: {', '.join(regions)}")
    secret = token if token is not None else token_of(deployment.security, base)
    session = _session_of(where, deployment, base, secret, config)
    await session.open()
    try:
        yield session
    finally:
        await session.close()


def _session_of(
    where: str | Path | Deployment, deployment: Deployment, base: Path, token: str, config: SessionConfig
) -> Session:
    if deployment.kind == "sequencer":
        return SequencedSession(deployment, base, token, config)
    asked = urlsplit(where).netloc.split(",")[0] if isinstance(where, str) and "://" in where else None
    return _CONTENT[deployment.kind](deployment, base, token, config, near=asked)


_CONTENT: dict[str, type[OverlaySession] | type[RegionsSession] | type[CausalSession]] = {
    "overlay": OverlaySession,
    "regions": RegionsSession,
    "causal": CausalSession,
}


@asynccontextmanager
async def _in_memory(name: str, config: SessionConfig) -> AsyncGenerator[Session, None]:
    async with hold_memory(name) as node:
        session = SequencedSession(node.deployment, Path(), "", config, node.links)
        await session.open()
        try:
            yield session
        finally:
            await session.close()


@asynccontextmanager
async def hold_memory(name: str, broker: HubConfig | None = None) -> AsyncGenerator[Node, None]:
    """The node of `memory://name` in this loop: started for the first who holds it, stopped by the last."""
    key = (asyncio.get_running_loop(), name)
    shared = _memory.get(key)
    if shared is None:
        shared = _memory[key] = _MemoryNode(name)
        set_hub(shared.deployment.name, Hub(broker or HubConfig()))
    shared.users += 1
    try:
        async with shared.starting:
            if shared.node.host is None:
                await shared.node.start()
        yield shared.node
    finally:
        shared.users -= 1
        if not shared.users:
            del _memory[key]
            await shared.node.stop()
            set_hub(shared.deployment.name, None)
