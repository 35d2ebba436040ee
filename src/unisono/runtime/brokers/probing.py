"""Does a server of the broker let us in? Asked of each server by itself, whichever one the node's own connection uses.

A probe is a connection of its own, with the node's credentials: it ends when the server has answered.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from pathlib import Path

from unisono.errors import TransportError, UnisonoError, said
from unisono.model.address import endpoint, host_port
from unisono.model.deployment import Deployment, without_credentials
from unisono.runtime.brokers.contract import EnsNotice, Parcel
from unisono.runtime.brokers.deployed import embedded_endpoint, nats_options, udp_options
from unisono.runtime.brokers.embedded.adapter import EmbeddedEns
from unisono.runtime.brokers.nats.codec import Msg, NatsOptions, NatsWire, dial, normalize, with_credentials_of
from unisono.runtime.brokers.udp.node import CHALLENGE, CONTROL, NO_COOKIE
from unisono.runtime.links.security import client_context

Ask = Callable[[], Awaitable[None]]
"""Returns when the server has let us in; raises TransportError or OSError."""


def probes(deployment: Deployment, base: Path, token: str, is_node: bool = True) -> dict[str, Ask]:
    """Per server of the broker, as `host:port`, how to ask it. Raises MisuseError for what cannot be used at all."""
    match deployment.broker.kind:
        case "memory":
            return {}
        case "embedded":
            host, port = embedded_endpoint(deployment)
            return {host_port(host, port): lambda: _ask_embedded(deployment, base, token, host, port)}
        case "udp":
            seeds = [endpoint(seed) for seed in udp_options(deployment, token, "127.0.0.1:0").seeds]
            return {host_port(host, port): _asking_udp(host, port) for host, port in seeds}
        case "nats" | "jetstream":
            options = nats_options(deployment, token, None, is_node)
            urls = [normalize(url) for url in options.servers]
            ours = with_credentials_of(urls[0], options)

            def asking(url: str) -> Ask:
                return lambda: _ask_nats(url, ours)

            return {shown(url): asking(url) for url in urls}


def shown(url: str) -> str:
    """`host:port` of a server's URL."""
    return without_credentials(url).partition("://")[2] or without_credentials(url)


class _Nobody:
    """Stands above a connection that is only there to be let in."""

    def on_messages(self, messages: list[Msg]) -> None: ...

    def on_error(self, text: str) -> None: ...

    def on_gone(self, wire: NatsWire, reason: str) -> None: ...

    def on_items(self, items: Sequence[Parcel]) -> None: ...

    def on_confirmed(self, count: int) -> None: ...

    def on_notice(self, notice: EnsNotice) -> None: ...

    def on_failed(self, error: Exception, /) -> None: ...


async def _ask_nats(url: str, options: NatsOptions) -> None:
    wire = await dial(url, options, _Nobody())
    wire.close()


async def _ask_embedded(deployment: Deployment, base: Path, token: str, host: str, port: int) -> None:
    ens = EmbeddedEns(host, port, _Nobody(), token=token, tls=client_context(deployment.security, base))
    await ens.open()
    await ens.close()


def _asking_udp(host: str, port: int) -> Ask:
    async def ask() -> None:
        await asyncio.get_running_loop().run_in_executor(None, challenge, host, port)

    return ask


def challenge(host: str, port: int) -> None:
    """Whoever takes part in the broker `udp` answers a datagram without a cookie; raises OSError if nobody does."""
    with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as asking:
        asking.settimeout(0.2)
        asking.connect((host, port))
        for _ in range(8):  # datagrams may be lost
            asking.send(CONTROL + NO_COOKIE + b"?")
            try:
                if asking.recv(64).startswith(CHALLENGE):
                    return
            except TimeoutError:
                continue
    raise OSError("nobody answers datagrams there")


async def probe(ask: Ask, timeout_s: float) -> int:
    """Microseconds until the server had let us in; raises TransportError with what went wrong."""
    loop = asyncio.get_running_loop()
    asked = loop.time()
    try:
        async with asyncio.timeout(timeout_s):
            await ask()
    except TimeoutError:
        raise TransportError(f"no answer within {timeout_s:g} s") from None
    except OSError as error:
        raise TransportError(said(error)) from None
    except TransportError:
        raise
    except UnisonoError as error:
        raise TransportError(str(error)) from None
    return round((loop.time() - asked) * 1e6)
