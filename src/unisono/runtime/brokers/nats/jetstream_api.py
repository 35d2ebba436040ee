"""The part of the JetStream API that the adapter needs: find or make a topic's stream, make ordered consumers."""

import asyncio
import secrets
from typing import Any

import msgspec
from msgspec import Struct

from unisono.errors import TransportError
from unisono.runtime.brokers.contract import is_adopted
from unisono.runtime.brokers.nats.client import NatsClient
from unisono.runtime.brokers.nats.codec import Msg
from unisono.runtime.brokers.nats.items import control_prefix

_AGAIN_S = 0.1
_SECOND_NS = 1_000_000_000
HEARTBEAT_S = 5.0
"""An idle consumer hears from its server this often."""
FORGET_S = 30
"""A consumer whose subscriber is gone is removed by the server after this."""


class StreamConfig(Struct, frozen=True):
    """How topics are kept when the adapter makes their streams; one stream per topic, its control sibling included."""

    replicas: int = 1
    """Servers that hold a copy; an acknowledgement means that most of them have it. Price: a round trip among them."""
    age_s_max: int = 24 * 3600
    """Events older than this are removed."""
    bytes_max: int = -1
    """Beyond this the oldest events of the topic are removed. -1: no bound per topic, only the server's own. A server
    reserves this much for every topic, and refuses topics for which it has no room left."""
    duplicate_window_s: int = 120
    """How long the server knows an item that is published again after a reconnect."""


class ApiError(TransportError):
    """JetStream answered, and the answer is no."""

    def __init__(self, subject: str, code: int, detail: int, text: str) -> None:
        super().__init__(f"JetStream refuses {subject}: {text} ({detail})")
        # 503: not now. 10058, 10059: a stream made or removed by somebody else in between.
        self.is_passing = code == 503 or detail in (10058, 10059)
        self.is_absent = code == 404 and detail != 10059
        """The stream is there, and what was asked for is not in it."""


class StreamState(Struct, frozen=True):
    """Which sequences a stream holds."""

    first_seq: int
    last_seq: int
    bytes: int = 0


class Created(Struct, frozen=True):
    """A consumer that is in force: it delivers what is after `last_seq` of the stream."""

    last_seq: int


def stream_name(deployment: str, topic: str) -> str:
    """Injective: topics have dots and no '=', a deployment's name has neither."""
    return f"unisono-{deployment}={topic.replace('.', '=')}"


class JetStreamApi:
    """Requests to JetStream over one client."""

    def __init__(self, client: NatsClient, config: StreamConfig) -> None:
        self._client = client
        self._config = config
        self._deployment = client.options.deployment
        self._streams: dict[str, str] = {}  # subject -> stream that keeps it
        self._placing = asyncio.Lock()

    async def call(self, subject: str, body: dict[str, Any]) -> dict[str, Any]:
        """One request; raises ApiError for a refusal, TransportError when nobody answers."""
        reply: Msg = await self._client.request(f"$JS.API.{subject}".encode(), msgspec.json.encode(body))
        answer: dict[str, Any] = msgspec.json.decode(reply[4])
        error = answer.get("error")
        if error is not None:
            raise ApiError(subject, error.get("code", 0), error.get("err_code", 0), error.get("description", ""))
        return answer

    def forget_streams(self) -> None:
        """After a reconnect: they may have gone."""
        self._streams.clear()

    def subject_of(self, topic: str, control: bool) -> str:
        return control_prefix(self._deployment) + topic if control else topic

    async def find_stream(self, topic: str, control: bool) -> str:
        """The stream that keeps a channel, made if there is none. A stream that others made for the topic is used."""
        subject = self.subject_of(topic, control)
        async with self._placing:
            if subject not in self._streams:
                found = await self._find(subject)
                if found is None:
                    await self._make(topic)
                    found = await self._find(subject)
                if found is None:
                    raise TransportError(f"no stream keeps {subject}")
                self._streams[subject] = found
        return self._streams[subject]

    async def _find(self, subject: str) -> str | None:
        names = (await self.call("STREAM.NAMES", {"subject": subject})).get("streams") or [None]
        found: str | None = names[0]
        return found

    async def _make(self, topic: str) -> None:
        wanted = [topic] if is_adopted(topic) else [topic, self.subject_of(topic, True)]
        subjects = [subject for subject in wanted if await self._find(subject) is None]
        name, config = stream_name(self._deployment, topic), self._config
        body = {
            "name": name,
            "subjects": subjects,
            "retention": "limits",
            "storage": "file",
            "discard": "old",
            "num_replicas": config.replicas,
            "max_age": config.age_s_max * _SECOND_NS,
            "max_bytes": config.bytes_max,
            "max_msgs": -1,
            "max_consumers": -1,
            "duplicate_window": config.duplicate_window_s * _SECOND_NS,
        }
        await self.call(f"STREAM.CREATE.{name}", body)

    async def state(self, stream: str) -> StreamState:
        answer = await self.call(f"STREAM.INFO.{stream}", {})
        return msgspec.convert(answer["state"], StreamState)

    async def last_of(self, stream: str, subject: str) -> int:
        """The sequence of the last message of a subject, 0 if there is none."""
        try:
            answer = await self.call(f"STREAM.MSG.GET.{stream}", {"last_by_subj": subject})
        except ApiError as error:
            if not error.is_absent:
                raise
            return 0
        return int(answer["message"]["seq"])

    async def consume(self, stream: str, subject: str, deliver_to: str, after: int | None) -> Created:
        """An ordered consumer: no acknowledgements, flow controlled, forgotten when nobody listens."""
        name = secrets.token_hex(8)
        config: dict[str, Any] = {
            "name": name,
            "deliver_policy": "new" if after is None else "by_start_sequence",
            "ack_policy": "none",
            "max_deliver": 1,
            "deliver_subject": deliver_to,
            "filter_subject": subject,
            "replay_policy": "instant",
            "flow_control": True,
            "idle_heartbeat": int(HEARTBEAT_S * _SECOND_NS),
            "inactive_threshold": FORGET_S * _SECOND_NS,
            "mem_storage": True,
            "num_replicas": 1,
        }
        if after is not None:
            config["opt_start_seq"] = after + 1
        body = {"stream_name": stream, "config": config}
        answer = await self.call(f"CONSUMER.CREATE.{stream}.{name}.{subject}", body)
        return Created(int(answer["delivered"]["stream_seq"]))


async def pause_before_retry(attempt: int) -> None:
    """JetStream takes a moment after a server's start, and while a leader is chosen."""
    await asyncio.sleep(min(_AGAIN_S * 2**attempt, 2.0))
