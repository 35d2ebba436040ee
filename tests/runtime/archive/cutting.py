"""A line to a NATS server that breaks at a chosen append: it does not arrive, or its acknowledgement does not."""

import asyncio
from typing import Literal

APPEND = b"HPUB _unisono."

Moment = Literal["before", "after"]


class CuttingLine:
    """A proxy. Whoever speaks through it is, for everybody else, dead from the cut on, until it is healed."""

    def __init__(self, server_port: int) -> None:
        self.port = 0
        self.is_cut = asyncio.Event()
        self._server_port = server_port
        self._countdown, self._moment = 0, "before"
        self._tail = b""
        self._server: asyncio.Server | None = None
        self._writers: list[asyncio.StreamWriter] = []
        self._pumps: list[asyncio.Task[None]] = []

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    def cut_at(self, append: int, moment: Moment) -> None:
        """Breaks at the so-manieth append from now: 1 is the next."""
        self._countdown, self._moment = append, moment

    def cut(self) -> None:
        """Breaks at once."""
        self._moment = "before"
        self.is_cut.set()

    def heal(self) -> None:
        """Connections through it break, and new ones are whole."""
        self.is_cut.clear()
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        self.heal()
        for pump in self._pumps:
            pump.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_server, to_server = await asyncio.open_connection("127.0.0.1", self._server_port)
        self._writers += [writer, to_server]
        self._pumps += [
            asyncio.create_task(self._pump(reader, to_server, is_upward=True)),
            asyncio.create_task(self._pump(from_server, writer, is_upward=False)),
        ]

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, is_upward: bool) -> None:
        try:
            while data := await reader.read(1 << 20):
                if self.is_cut.is_set() and not (is_upward and self._moment == "after"):
                    continue  # what was let through goes on arriving, and is never answered
                if is_upward and self._countdown:
                    data = self._look(data)
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.transport.abort()

    def _look(self, data: bytes) -> bytes:
        """What still passes."""
        overlap = len(self._tail)
        seen, at = self._tail + data, -1
        while self._countdown and (at := seen.find(APPEND, at + 1)) >= 0:
            self._countdown -= 1
            if self._countdown == 0:
                self.is_cut.set()
                self._tail = b""
                return data[: max(0, at - overlap)] if self._moment == "before" else data
        self._tail = seen[-len(APPEND) + 1 :]
        return data
