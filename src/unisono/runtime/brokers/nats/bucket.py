"""A JetStream key-value bucket: one value per key, changed by compare-and-set only."""

import base64
import logging
from typing import Any

import msgspec
from msgspec import Struct

from unisono.errors import TransportError
from unisono.runtime.brokers.nats.client import NatsClient
from unisono.runtime.brokers.nats.codec import Msg, NatsOptions
from unisono.runtime.brokers.nats.jetstream_api import ApiError, JetStreamApi, StreamConfig

logger = logging.getLogger(__name__)

WRONG_LAST = 10071
"""JetStream's code for: the last sequence is not the one expected."""
REQUEST_S = 2.0


class Kept(Struct, frozen=True):
    """What stands under a key; `revision` 0: nothing."""

    revision: int = 0
    data: bytes = b""


class NatsBucket:
    """A connection to one bucket."""

    def __init__(self, name: str, options: NatsOptions, replicas: int) -> None:
        self.name, self._replicas = name, replicas
        self._client = NatsClient(options, self, 500_000)
        self._api = JetStreamApi(self._client, StreamConfig())
        self._is_dialled = False

    async def open(self) -> None:
        """The bucket is there on return; raises TransportError if no server lets us in or keeps it, and may be called
        again."""
        if not self._is_dialled:
            await self._client.open()
            self._is_dialled = True
        stream = f"KV_{self.name}"
        try:
            await self._api.state(stream)
        except ApiError:
            body = {
                "name": stream,
                "subjects": [f"$KV.{self.name}.>"],
                "retention": "limits",
                "storage": "file",
                "discard": "new",
                "max_msgs_per_subject": 1,
                "num_replicas": self._replicas,
                "max_msgs": -1,
                "max_bytes": -1,
                "max_consumers": -1,
                "deny_delete": True,
                "allow_rollup_hdrs": True,
            }
            await self._api.call(f"STREAM.CREATE.{stream}", body)

    async def close(self) -> None:
        if self._is_dialled:
            await self._client.close()

    async def get(self, key: str) -> Kept:
        """Read from the stream's leader."""
        try:
            answer = await self._api.call(f"STREAM.MSG.GET.KV_{self.name}", {"last_by_subj": f"$KV.{self.name}.{key}"})
        except ApiError as error:
            if not error.is_absent:
                raise
            return Kept()
        return Kept(int(answer["message"]["seq"]), base64.b64decode(answer["message"].get("data", "")))

    async def put(self, key: str, data: bytes, revision: int) -> int | None:
        """The new revision; None if the key has another one than this. TransportError: it may or may not be taken."""
        head = f"NATS/1.0\r\nNats-Expected-Last-Subject-Sequence: {revision}\r\n\r\n".encode("latin-1")
        reply = await self._client.request(f"$KV.{self.name}.{key}".encode(), data, REQUEST_S, head)
        try:
            answer: dict[str, Any] = msgspec.json.decode(reply[4])
        except msgspec.DecodeError as error:
            raise TransportError(f"bucket {self.name}: {error}") from None
        problem = answer.get("error")
        if problem is None:
            return int(answer["seq"])
        if problem.get("err_code") == WRONG_LAST:
            return None
        raise TransportError(f"bucket {self.name}: {problem.get('description')}")

    # the NATS client calls these

    def on_messages(self, messages: list[Msg]) -> None: ...

    def on_error(self, text: str) -> None:
        logger.warning("bucket %s: %s", self.name, text)

    def on_failed(self, error: Exception) -> None:
        """From now on nobody answers, and whoever asks is told so."""
        logger.error("bucket %s: %r", self.name, error)

    def on_down(self, reason: str) -> None:
        logger.info("bucket %s: lost its server: %s", self.name, reason)

    def on_back(self) -> None: ...
