"""A JetStream stream with one writer at a time, for threads that may block.

Every append names the sequence it expects to be last, so of two that write only one can. An append that is not answered
may or may not have been taken. It is sent again *with the same expectation* only, and when that is refused the message
after it is read: it is ours, or we are fenced and stop for good. Calls are carried to a loop of the line's own.
"""

import asyncio
import base64
import logging
import secrets
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from datetime import datetime
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from unisono.errors import TransportError
from unisono.runtime.brokers.nats.client import NatsClient
from unisono.runtime.brokers.nats.codec import Msg, NatsOptions
from unisono.runtime.brokers.nats.jetstream_api import (
    ApiError,
    JetStreamApi,
    StreamConfig,
    StreamState,
    pause_before_retry,
)

logger = logging.getLogger(__name__)

T = TypeVar("T")
PULL = 256
PULL_BYTES = 8 << 20
PULL_S = 4.0
WRONG_LAST = 10071
"""JetStream's code for: the last sequence is not the one expected."""
AGAIN_S = 0.05
SET_BACK_S = 2.0
"""How long a stream must end before what we have appended until that is believed: a new leader may still be reading."""
SECOND_NS = 1_000_000_000


class FencedError(TransportError):
    """Another process owns the stream now."""


class Stored(Struct, frozen=True):
    """A message of a stream."""

    sequence: int
    subject: str
    head: bytes
    data: bytes
    at_ns: int = 0

    def text(self) -> str:
        return self.head.decode("latin-1")

    def headers(self) -> dict[str, str]:
        lines = (line.partition(": ") for line in self.text().split("\r\n")[1:] if line)
        return {name: value for name, _, value in lines}


class FencedStream:
    """A connection to one stream. `last` is the sequence that the next append expects."""

    def __init__(self, stream: str, options: NatsOptions, request_s: float = 2.0, unknown_s: float = 30.0) -> None:
        self.stream = stream
        self.last = 0
        self.problem = ""
        """Why `patiently` last had to try again."""
        self._options, self._request_s, self._unknown_s = options, request_s, unknown_s
        self._pulled: asyncio.Queue[Msg] = asyncio.Queue()
        self._pulling = b""  # the subscription of a pull under way
        self._consumer: tuple[str, int] | None = None  # its name, and the sequence it delivers next
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name=f"stream {stream}", daemon=True)
        self._thread.start()
        self._client: NatsClient | None = None
        self._api: JetStreamApi | None = None

    # from other threads

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs it on the line's loop, and blocks."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result()

    def close(self) -> None:
        if self._client is not None:
            self.wait(self._client.close())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    # on the loop

    @property
    def api(self) -> JetStreamApi:
        assert self._api is not None, "open first"
        return self._api

    async def open(self) -> None:
        """Raises TransportError when no server lets us in; may be called again then."""
        if self._client is None:
            client = NatsClient(self._options, self, 500_000)
            await client.open()
            self._client, self._api = client, JetStreamApi(client, StreamConfig())

    async def patiently(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Again until the servers answer: for those who have time."""
        attempt = 0
        while True:
            try:
                return await work()
            except TransportError as error:
                self.problem = str(error)
                logger.info("stream %s: %s", self.stream, error)
                await pause_before_retry(min(attempt, 3))
                attempt += 1

    async def make(self, subjects: list[str], replicas: int) -> None:
        """The stream is there on return. Nothing leaves it but by `purge`."""
        body = {
            "name": self.stream,
            "subjects": subjects,
            "retention": "limits",
            "storage": "file",
            "discard": "new",
            "num_replicas": replicas,
            "max_msgs": -1,
            "max_bytes": -1,
            "max_consumers": -1,
        }
        try:
            await self.state()
        except ApiError:
            await self.api.call(f"STREAM.CREATE.{self.stream}", body)

    async def state(self) -> StreamState:
        return await self.api.state(self.stream)

    async def purge(self, first: int) -> None:
        """Removes everything before this sequence."""
        await self.api.call(f"STREAM.PURGE.{self.stream}", {"seq": first})

    async def get(self, sequence: int) -> Stored | None:
        """One message, read from the stream's leader."""
        return await self._get({"seq": sequence})

    async def get_next(self, subject: str, sequence: int) -> Stored | None:
        """The first message of a subject at or after a sequence."""
        return await self._get({"seq": sequence, "next_by_subj": subject})

    async def get_last(self, subject: str) -> Stored | None:
        return await self._get({"last_by_subj": subject})

    async def _get(self, which: dict[str, Any]) -> Stored | None:
        try:
            answer = (await self.api.call(f"STREAM.MSG.GET.{self.stream}", which))["message"]
        except ApiError as error:
            if not error.is_absent:
                raise
            return None
        head, data = (base64.b64decode(answer.get(name, "")) for name in ("hdrs", "data"))
        return Stored(int(answer["seq"]), answer["subject"], head, data, _nanoseconds(answer.get("time", "")))

    async def pull(self, first: int, last: int) -> list[Stored]:
        """The beginning of the messages `first` to `last`, at least one of them; what was purged is absent.

        Whoever goes on where the last call ended uses the same consumer.
        """
        assert self._client is not None
        if self._consumer is None or self._consumer[1] != first:
            await self._forget_consumer()
            self._consumer = (await self._consume(first), first)
        name, inbox, wanted = self._consumer[0], f"_INBOX.{secrets.token_hex(8)}".encode(), min(PULL, last - first + 1)
        consumer, self._consumer = self._consumer, None  # until we know where it stands
        self._pulled = asyncio.Queue()
        self._pulling = self._client.subscribe(inbox)
        found: list[Stored] = []
        try:
            ask = {"batch": wanted, "max_bytes": PULL_BYTES, "expires": int(PULL_S / 2 * SECOND_NS)}
            body, subject = msgspec.json.encode(ask), f"$JS.API.CONSUMER.MSG.NEXT.{self.stream}.{name}".encode()
            self._client.send(b"PUB %b %b %d\r\n%b\r\n" % (subject, inbox, len(body), body))
            while len(found) < wanted:
                async with asyncio.timeout(PULL_S):
                    _, at, reply, head, data = await self._pulled.get()
                if not reply.startswith(b"$JS.ACK."):
                    if not found:
                        raise TransportError(f"the stream {self.stream}: {head.decode('latin-1').strip()}")
                    break  # as much as we asked for at once
                words = reply.split(b".")
                found.append(Stored(int(words[-4]), at.decode(), head, data, int(words[-2])))
        except TimeoutError:
            raise TransportError(f"the stream {self.stream} stopped at {first + len(found)} of {last}") from None
        finally:
            self._client.unsubscribe(self._pulling)
            self._pulling = b""
        self._consumer = (consumer[0], found[-1].sequence + 1)
        return [message for message in found if message.sequence <= last]

    async def _consume(self, first: int) -> str:
        name = secrets.token_hex(8)
        config = {
            "name": name,
            "deliver_policy": "by_start_sequence",
            "opt_start_seq": first,
            "ack_policy": "none",
            "replay_policy": "instant",
            "inactive_threshold": 30 * SECOND_NS,
            "mem_storage": True,
            "num_replicas": 1,
        }
        await self.api.call(f"CONSUMER.CREATE.{self.stream}.{name}", {"stream_name": self.stream, "config": config})
        return name

    async def _forget_consumer(self) -> None:
        if self._consumer is not None:
            name, self._consumer = self._consumer[0], None
            with suppress(TransportError):  # the server forgets it by itself
                await self.api.call(f"CONSUMER.DELETE.{self.stream}.{name}", {})

    async def append(self, subject: str, data: bytes, lines: str = "") -> None:
        """Appends one message after `last`; raises FencedError when somebody else has, TransportError when unknown.

        After an error nothing may be appended any more: what is there must be read again first.
        """
        assert self._client is not None
        until, set_back_since = self.loop.time() + self._unknown_s, 0.0
        head = f"NATS/1.0\r\nNats-Expected-Last-Sequence: {self.last}\r\n{lines}\r\n".encode("latin-1")
        while True:
            try:
                reply = await self._client.request(subject.encode(), data, self._request_s, head)
                answer: dict[str, Any] = msgspec.json.decode(reply[4])
            except (TransportError, msgspec.DecodeError) as error:
                await self._again(until, str(error))
                continue  # the same message with the same expectation: it cannot be taken twice
            problem = answer.get("error")
            if problem is None:
                self.last = int(answer["seq"])
                return
            if problem.get("err_code") != WRONG_LAST:
                await self._again(until, str(problem.get("description")))
                continue
            # Refused: an earlier try of ours was taken after all, or somebody else's was.
            try:
                found, state = await self.get(self.last + 1), await self.state()
            except TransportError as error:
                await self._again(until, str(error))
                continue
            if found is not None and (found.subject, found.data) == (subject, data) and lines in found.text():
                self.last += 1
                return
            if found is not None or state.first_seq > self.last + 1:
                raise FencedError(f"the stream {self.stream} belongs to another process now")
            if state.last_seq < self.last:
                set_back_since = set_back_since or self.loop.time()
                if self.loop.time() - set_back_since >= SET_BACK_S:
                    raise TransportError(
                        f"the stream {self.stream} ends at {state.last_seq}, and we have appended {self.last}: "
                        "it was set back, or deleted and made anew; put its newest data back"
                    )
            await self._again(until, "it is refused, and nothing is there")  # an earlier try is still on its way

    async def _again(self, until: float, reason: str) -> None:
        if self.loop.time() >= until:
            raise TransportError(f"an append to {self.stream} is unknown: {reason}")
        await asyncio.sleep(AGAIN_S)

    # the NATS client calls these

    def on_messages(self, messages: list[Msg]) -> None:
        for message in messages:
            if message[0] == self._pulling:
                self._pulled.put_nowait(message)

    def on_error(self, text: str) -> None:
        logger.warning("stream %s: %s", self.stream, text)

    def on_failed(self, error: Exception) -> None:
        """From now on every append is unknown, and its owner ends with that."""
        logger.error("stream %s: %r", self.stream, error)

    def on_down(self, reason: str) -> None:
        logger.info("stream %s: lost its server: %s", self.stream, reason)

    def on_back(self) -> None:
        pass


def _nanoseconds(text: str) -> int:
    """`2026-11-16T06:09:50.123456789Z`"""
    return int(datetime.fromisoformat(text).timestamp() * 1e6) * 1000 if text else 0
