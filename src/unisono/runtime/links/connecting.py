"""A TCP connection for a protocol, which hears of its end also when nobody waits for it any more."""

import asyncio
import ssl
from typing import TypeVar

Dialer = TypeVar("Dialer", bound=asyncio.Protocol)


async def connected(protocol: Dialer, host: str, port: int, tls: ssl.SSLContext | None) -> Dialer:
    """`protocol`, connected.

    Under uvloop a connection that is cancelled while it is made is closed without a word: `connection_lost` is not
    called, `is_closing` says no, and a write raises. So the protocol is told here, perhaps twice.
    """
    try:
        await asyncio.get_running_loop().create_connection(lambda: protocol, host, port, ssl=tls)
    except asyncio.CancelledError:
        protocol.connection_lost(None)
        raise
    return protocol
