"""`connect`: from an address to a session.

unisono://host:port[,host:port]   any node: it tells where the others are
unisono+srv://domain              the same, the nodes being those that DNS names for `_unisono._tcp.domain`
memory://name                     a deployment inside this process and event loop, for tests and small programs
path/to/deployment.toml           the deployment itself
"""

import asyncio
import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from msgspec import structs

from unisono.errors import MisuseError, TransportError
from unisono.model.deployment import BrokerSpec, Deployment, NodeSpec, Security, load_deployment, without_credentials
from unisono.runtime import edge
from unisono.runtime.asking import ask_node
from unisono.runtime.brokers import endpoint, set_hub
from unisono.runtime.discovery import discover
from unisono.runtime.ens.memory import Hub, HubConfig
from unisono.runtime.node import IN_PROCESS, Node
from unisono.runtime.overlay.session import OverlaySession
from unisono.runtime.security import SYSTEM, client_context, token_of
from unisono.runtime.sequenced import SequencedSession
from unisono.runtime.session import Session, SessionConfig
from unisono.runtime.srv import resolve_srv


class _MemoryNode:
    """A node of this loop and how many use it."""

    def __init__(self, name: str) -> None:
        spec = NodeSpec("memory", listen=IN_PROCESS)
        self.deployment = Deployment(1, f"memory-{name}", nodes=(spec,), broker=BrokerSpec("memory"))
        self.node = Node(self.deployment, "memory")
        self.users = 0
        self.starting = asyncio.Lock()


_memory: dict[tuple[asyncio.AbstractEventLoop, str], _MemoryNode] = {}


@asynccontextmanager
async def connect(
    where: str | Path | Deployment,
    *,
    token: str | None = None,
    authority: str | Path | None = None,
    journal: str | Path | None = None,
    state: str | Path | None = None,
    region: str | None = None,
    timeout: float = 10.0,
) -> AsyncGenerator[Session, None]:
    """Connects to a deployment; the session of an overlay has the same methods.

    async with unisono.connect("unisono://127.0.0.1:7474") as session:
        await session.publish("trades", {"sym": "IBM", "px": 101.2})
    """
    config = SessionConfig(
        open_s=timeout,
        journal=Path(journal) if journal is not None else None,
        region=region,
        state=Path(state) if state is not None else None,
    )
    if isinstance(where, str) and where.startswith("memory://"):
        async with _in_memory(where.removeprefix("memory://"), config) as local:
            yield local
        return
    deployment, base = await find_deployment(where, token or "", timeout, authority)
    secret = token if token is not None else token_of(deployment.security)
    session = _session_of(where, deployment, base, secret, config)
    await session.open()
    try:
        yield session
    finally:
        await session.close()


def _session_of(
    where: str | Path | Deployment, deployment: Deployment, base: Path, token: str, config: SessionConfig
) -> Session:
    if not deployment.is_overlay:
        return SequencedSession(deployment, base, token, config)
    asked = urlsplit(where).netloc.split(",")[0] if isinstance(where, str) and "://" in where else None
    return OverlaySession(deployment, base, token, config, near=asked)


async def find_deployment(
    where: str | Path | Deployment, token: str, timeout: float, authority: str | Path | None = None
) -> tuple[Deployment, Path]:
    """The deployment behind an address or a file, and the directory its paths are relative to.

    Who is given an authority speaks TLS with whoever it says: what a deployment trusts is a file on another machine.
    """
    if isinstance(where, Deployment):
        found, base = where, Path()
    elif isinstance(where, str) and "://" in where:
        found, base = await _find(where, token, timeout, authority), Path()
    else:
        found, base = load_deployment(Path(where)), Path(where).parent
    if authority is not None:
        trusted = SYSTEM if authority == SYSTEM else str(Path(authority).absolute())
        found = structs.replace(found, security=structs.replace(found.security, authority=trusted))
    return found, base


async def _find(where: str, token: str, timeout: float, authority: str | Path | None) -> Deployment:
    parts = urlsplit(where)
    match parts.scheme:
        case "nats":
            return await discover(where, timeout)
        case "unisono":
            seeds = parts.netloc.split(",")
        case "unisono+srv":
            server = parse_qs(parts.query).get("dns", [None])[0]
            seeds = await resolve_srv(parts.netloc, endpoint(server) if server is not None else None, timeout)
        case _:
            raise MisuseError(
                f"{without_credentials(where)!r}: connect to unisono://, nats://, unisono+srv:// or memory://, "
                "or to a deployment file"
            )
    tls = client_context(Security(authority=str(authority)), Path()) if authority is not None else None
    return await _ask_for_deployment(seeds, token, timeout, tls)


async def _ask_for_deployment(
    seeds: list[str], token: str, timeout: float, tls: ssl.SSLContext | None = None
) -> Deployment:
    """Asks the seeds in turn until one tells the deployment."""
    loop = asyncio.get_running_loop()
    until = loop.time() + timeout
    problem = "no node given"
    while True:
        for seed in seeds:
            try:
                return (await ask_node(seed, token, edge.Where, edge.Directory, tls=tls)).deployment
            except TransportError as error:
                problem = str(error)
        if loop.time() >= until:
            raise TransportError(f"no node answers: {problem}. Start one with: unisono node FILE NAME")
        await asyncio.sleep(0.1)


@asynccontextmanager
async def _in_memory(name: str, config: SessionConfig) -> AsyncGenerator[SequencedSession, None]:
    async with hold_memory(name) as node:
        session = SequencedSession(node.deployment, Path(), "", config, node.links)
        await session.open()
        try:
            yield session
        finally:
            await session.close()


@asynccontextmanager
async def hold_memory(name: str, broker: HubConfig | None = None) -> AsyncGenerator[Node, None]:
    """The node behind `memory://name` of this loop, started for the first and stopped by the last who holds it."""
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
