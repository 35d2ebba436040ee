"""What a node says over HTTP, to whoever watches it: `/healthz`, `/readyz`, `/metrics`.

Only what probes and Prometheus need: GET and HEAD, one question a connection, no TLS, nothing that changes anything.
So it listens on loopback unless the deployment says otherwise, and what it may cost is bounded.
"""

import asyncio
from collections.abc import Callable

import msgspec

from unisono.errors import TransportError, said
from unisono.model.address import host_port
from unisono.model.health import Health
from unisono.model.metrics import CONTENT_TYPE

ASKING_MAX = 64
"""Connections at a time; further ones are closed at once."""
REQUEST_BYTES_MAX = 8_192
REQUEST_S = 5.0
_JSON = "application/json; charset=utf-8"
_WORDS = {200: "OK", 404: "Not Found", 405: "Method Not Allowed", 503: "Service Unavailable"}


class Pages:
    """Listens and answers."""

    def __init__(self, health: Callable[[], Health], metrics: Callable[[], str], is_alive: Callable[[], bool]) -> None:
        self.port = 0
        self._health, self._metrics, self._is_alive = health, metrics, is_alive
        self._server: asyncio.Server | None = None
        self._asking: dict[asyncio.StreamWriter, None] = {}

    async def start(self, host: str, port: int) -> None:
        """Raises TransportError if the port is taken."""
        try:
            self._server = await asyncio.start_server(self._serve, host, port, limit=REQUEST_BYTES_MAX)
        except OSError as error:
            raise TransportError(
                f"cannot serve health and metrics on {host_port(host, port)} (observe): {said(error)}"
            ) from None
        self.port = int(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            for writer in list(self._asking):
                writer.close()
            await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._asking) >= ASKING_MAX:
            writer.close()
            return
        self._asking[writer] = None
        try:
            async with asyncio.timeout(REQUEST_S):
                head = await reader.readuntil(b"\r\n\r\n")
                method, path = _asked(head)
                status, kind, body = self._answer(method, path)
                lines = (
                    f"HTTP/1.1 {status} {_WORDS[status]}",
                    f"Content-Type: {kind}",
                    f"Content-Length: {len(body)}",
                    "Cache-Control: no-store",
                    "Connection: close",
                )
                writer.write("\r\n".join([*lines, "", ""]).encode() + (body if method != "HEAD" else b""))
                await writer.drain()
        except (OSError, EOFError, TimeoutError, asyncio.LimitOverrunError):
            pass  # whoever asks so, or does not wait, gets no answer
        finally:
            del self._asking[writer]
            writer.close()

    def _answer(self, method: str, path: str) -> tuple[int, str, bytes]:
        if method not in ("GET", "HEAD"):
            return 405, _JSON, b'{"problem":"only GET"}\n'
        match path:
            case "/healthz":
                alive = self._is_alive()
                return 200 if alive else 503, _JSON, msgspec.json.encode({"alive": alive}) + b"\n"
            case "/readyz":
                health = self._health()
                answer = {"ready": health.is_ready, "problems": health.problems(), **msgspec.to_builtins(health)}
                return 200 if health.is_ready else 503, _JSON, msgspec.json.encode(answer) + b"\n"
            case "/metrics":
                return 200, CONTENT_TYPE, self._metrics().encode()
            case _:
                return 404, _JSON, b'{"there are":["/healthz","/readyz","/metrics"]}\n'


def _asked(head: bytes) -> tuple[str, str]:
    words = head.partition(b"\r\n")[0].decode("latin-1").split(" ")
    return (words[0], words[1].partition("?")[0]) if len(words) == 3 else ("", "")
