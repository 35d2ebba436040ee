"""From an address to a deployment.

unisono://host:port[,host:port]   any node: it tells where the others are
unisono+srv://domain              the same, the nodes being those that DNS names for `_unisono._tcp.domain`
nats://host:port                  nodes answer over the NATS server that carries their events
path/to/deployment.toml           the deployment itself
"""

import asyncio
import logging
import os
import ssl
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from urllib.parse import parse_qs, urlsplit

from msgspec import structs

from unisono.errors import MisuseError, TransportError, TurnedAwayError
from unisono.model.address import endpoint
from unisono.model.deployment import Deployment, check_inhabited, load_deployment, without_credentials
from unisono.model.settings import BrokerSpec, Security
from unisono.runtime.brokers.nats.discovery import discover
from unisono.runtime.links import control
from unisono.runtime.links.questions import ask_node
from unisono.runtime.links.security import SYSTEM, client_context
from unisono.runtime.racing import first_of

logger = logging.getLogger(__name__)

TOLD_IF_S = 3.0
"""Who would wait longer than this in vain is told at once what he waits for."""
ASK_S, ASK_S_MIN = 5.0, 0.1
"""How long one node is asked at a time."""
CREDENTIALS = "UNISONO_CREDENTIALS"
"""The variable that names a file with credentials for NATS."""


async def find_deployment(
    where: str | Path | Deployment,
    token: str,
    timeout: float,
    authority: str | Path | None = None,
    own: Mapping[str, str | Path | None] = MappingProxyType({}),
) -> tuple[Deployment, Path]:
    """The deployment that an address or a file leads to, and the directory its paths are relative to.

    Who is given an authority speaks TLS with whoever it says: what a deployment trusts is a file on another machine.
    `own` are files to log in to NATS with, by their names in `[broker]`.
    """
    if isinstance(where, str):
        check_address(where)
    files = {name: str(Path(path).absolute()) for name, path in own.items() if path is not None}
    if "credentials" not in files and (named := os.environ.get(CREDENTIALS)):
        files["credentials"] = str(Path(named).absolute())
    if authority is not None and authority != SYSTEM:
        files["authority"] = str(Path(authority).absolute())
    if isinstance(where, Deployment):
        found, base = where, Path()
    elif isinstance(where, str) and "://" in where:
        found, base = (
            await _find(where, token, timeout, authority, structs.replace(BrokerSpec("nats"), **files)),
            Path(),
        )
    else:
        found, base = load_deployment(Path(where)), Path(where).parent
    check_inhabited(found)
    by_nats = isinstance(where, str) and where.startswith("nats://")
    if authority is not None and not (by_nats and found.security.certificate is None):  # then it is the server's alone
        trusted = SYSTEM if authority == SYSTEM else str(Path(authority).absolute())
        found = structs.replace(found, security=structs.replace(found.security, authority=trusted))
    if files and found.broker.kind in ("nats", "jetstream"):
        found = structs.replace(found, broker=structs.replace(found.broker, **files))
    return found, base


def check_address(where: str) -> None:
    """Raises MisuseError for what nobody can connect to, before anybody tries; a path may be anything."""
    if not where.strip():
        raise MisuseError("the address is empty: write unisono://host:port, or the path of a deployment file")
    if "://" not in where:
        return
    try:
        parts = urlsplit(where)
    except ValueError:
        raise MisuseError(f"{without_credentials(where)!r}: write an IPv6 address as [::1]:7474") from None
    if parts.scheme not in ("unisono", "unisono+srv", "nats", "memory"):
        raise MisuseError(
            f"{without_credentials(where)!r}: connect to unisono://, nats://, unisono+srv:// or memory://, "
            f"or to a deployment file; {parts.scheme}:// is none of them"
        )
    for seed in parts.netloc.split(",") if parts.scheme == "unisono" else ():
        if ":" not in seed:
            raise MisuseError(f"{where}: an address has a host and a port, like unisono://{seed or 'host'}:7474")
        endpoint(seed)


async def _find(where: str, token: str, timeout: float, authority: str | Path | None, broker: BrokerSpec) -> Deployment:
    parts = urlsplit(where)
    match parts.scheme:
        case "nats":
            return await discover(where, timeout, broker)
        case "unisono":
            seeds = parts.netloc.split(",")
        case "unisono+srv":
            try:
                from unisono.runtime.links.srv import NameServer, resolve_srv
            except ModuleNotFoundError:
                problem = "asks DNS by dnspython, which is not installed: pip install 'unisono[dns]'"
                raise MisuseError(f"{where} {problem}") from None
            server = parse_qs(parts.query).get("dns", [None])[0]
            asked = NameServer(*endpoint(server)) if server is not None else None
            seeds = await resolve_srv(parts.netloc, asked, timeout)
        case _:
            raise MisuseError(f"{where} is inside one program: it has no node that could be asked")
    tls = client_context(Security(authority=str(authority)), Path()) if authority is not None else None
    return await _ask_for_deployment(seeds, token, timeout, tls)


async def _ask_for_deployment(
    seeds: list[str], token: str, timeout: float, tls: ssl.SSLContext | None = None
) -> Deployment:
    """Asks the seeds, the first with a head start, until one tells the deployment."""
    loop = asyncio.get_running_loop()
    until = loop.time() + timeout
    problem = "no node given"

    async def ask(seed: str, within_s: float) -> control.RunningDeployment:
        return await ask_node(seed, token, control.AskDeployment, control.RunningDeployment, within_s, tls)

    while True:
        within_s = min(ASK_S, max(until - loop.time(), ASK_S_MIN))
        try:
            return (await first_of([partial(ask, seed, within_s) for seed in seeds])).deployment
        except TurnedAwayError:
            raise
        except TransportError as error:
            if str(error) != problem and until - loop.time() > TOLD_IF_S:
                logger.warning("%s; asking again for %.0f s", error, until - loop.time())
            problem = str(error)
        if loop.time() >= until:
            raise TransportError(f"no node answers: {problem}. Start one with: unisono node FILE NAME")
        await asyncio.sleep(0.1)
