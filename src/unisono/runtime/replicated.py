"""The log of a durable machine on a replicated JetStream stream: it outlives its machine's machine.

The stream of a node is its log: one message per commit, in the order of sequences. Every append names the sequence it
expects to be last, so of two that write only one can: whoever takes over appends `Claimed` and has fenced the other
off. An append that is not answered may or may not have been taken. It is sent again *with the same expectation* only,
and when that is refused the message behind it is read: it is ours, or we are fenced and stop for good.

Liveness is a matter of time, safety is not: an owner beats, and who waits takes over when nothing was appended for
`patience_s`. An owner that was only slow finds itself fenced at its next append, before anything of it is seen.

Records larger than a message travel in consecutive parts; what a crash left incomplete was never committed. Blocking
calls of the host's thread are carried to a loop of the log's own.
"""

import asyncio
import base64
import logging
import secrets
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from unisono.errors import FormatError, MisuseError, TransportError
from unisono.model.deployment import Deployment
from unisono.model.time import Micros
from unisono.runtime.ens.jetstream_api import ApiError, JetStreamApi, StreamConfig, StreamState, pause_before_retry
from unisono.runtime.ens.nats_client import NatsClient
from unisono.runtime.ens.nats_wire import Msg, NatsOptions
from unisono.runtime.frames import UNREADABLE
from unisono.runtime.wal import LOG_VERSION, LogConfig, Logged

logger = logging.getLogger(__name__)

T = TypeVar("T")
PART_BYTES = 512 << 10
"""A NATS server takes messages up to 1 MiB unless it is told otherwise."""
PULL = 256
WRONG_LAST = 10071
"""JetStream's code for: the last sequence is not the one expected."""
STREAM_SECONDS = 1_000_000_000


class ReplicatedConfig(Struct, frozen=True):
    """Where the stream is, and how long who waits for whom."""

    servers: tuple[str, ...]
    name: str
    """Of the stream; the same for all who may own it."""
    replicas: int = 3
    beat_s: float = 0.5
    """An owner that has nothing to commit says so this often."""
    patience_s: float = 3.0
    """Who waits takes over after this much silence. Price of less: an owner that is slow loses its office."""
    unknown_s: float = 30.0
    """How long an append may stay unanswered before the owner gives up; nothing of it is seen meanwhile."""
    request_s: float = 2.0
    user: str = ""
    password: str = ""


class Part(Struct, frozen=True, array_like=True):
    """One message of the stream: a part of a record."""

    version: int
    machine: str
    owner: str
    """Drawn anew by every process that claims."""
    kind: str
    """`claimed`, `beat`, `released`, `inputs` or `snapshot`."""
    record: int
    """Counts the records of this owner."""
    part: int
    parts: int
    body: bytes = b""


class FencedError(TransportError):
    """Another process owns the log now."""


class ReplicatedLog:
    """The log of one machine, on a stream; has the interface of `wal.Log`."""

    def __init__(self, config: ReplicatedConfig, machine: str, inputs: Any, log: LogConfig = LogConfig()) -> None:
        self.config = config
        self.bytes_since_snapshot = 0
        self.on_lost: Callable[[Exception], None] | None = None
        """Called, from another thread, when a beat finds that the log is not ours any more."""
        self._segment_bytes_max = log.segment_bytes_max
        self._machine, self._owner = machine, secrets.token_hex(8)
        self._decoder = msgspec.msgpack.Decoder(list[tuple[Micros, inputs]])
        self._encoder = msgspec.msgpack.Encoder()
        self._parts = msgspec.msgpack.Decoder(Part)
        self._last = 0  # the last sequence we know of
        self._records = 0
        self._dead: str | None = None
        self._subject = f"_unisono.log.{config.name}"
        self._stream = f"unisono_log-{config.name}"  # topics' streams begin with "unisono-"
        self._pulled: asyncio.Queue[Msg] = asyncio.Queue()
        self._ready: tuple[tuple[Micros, Any] | None, list[Logged]] | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"log {config.name}", daemon=True)
        self._thread.start()
        self._client: NatsClient | None = None
        self._api: JetStreamApi | None = None
        self._appending: asyncio.Lock | None = None
        self._beating: asyncio.Task[None] | None = None

    # from the node, on its own loop

    async def claim(self) -> None:
        """Returns when the log is ours: at once if nobody has it, else when its owner has been silent or has left."""
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._claim(), self._loop))

    # from the host: as wal.Log

    def recover(self) -> tuple[tuple[Micros, Any] | None, Iterator[Logged]]:
        """What the claim has read."""
        assert self._ready is not None, "claim first"
        snapshot, inputs = self._ready
        self._ready = None
        return snapshot, iter(inputs)

    def commit(self, inputs: list[Logged]) -> None:
        """Makes these inputs durable on most replicas; raises TransportError, and then for ever."""
        self._guard()
        self._wait(self._append("inputs", self._encoder.encode(inputs)))

    @property
    def snapshot_is_due(self) -> bool:
        return self.bytes_since_snapshot >= self._segment_bytes_max

    def begin_snapshot(self, at: Micros, state: Any) -> bytes:
        """The snapshot stands in line with the inputs; returns the sequence before it, for `finish_snapshot`."""
        self._guard()
        before = self._wait(self._append("snapshot", self._encoder.encode((at, state))))
        self.bytes_since_snapshot = 0
        return before.to_bytes(8, "big")

    def finish_snapshot(self, block: bytes) -> None:
        """Removes what the snapshot replaces."""
        first = int.from_bytes(block, "big") + 1
        assert self._api is not None
        try:
            self._wait(self._api.call(f"STREAM.PURGE.{self._stream}", {"seq": first}))
        except TransportError as error:  # the stream stays longer than it needs to be; the next snapshot tries again
            logger.warning("%s", error)

    def close(self) -> None:
        """Leaves office: who waits need not wait longer."""
        if self._beating is not None:
            self._loop.call_soon_threadsafe(self._beating.cancel)
        if self._dead is None and self._beating is not None:
            try:
                self._wait(self._append("released", b""))
            except TransportError as error:
                logger.info("%s", error)
        self._dead = self._dead or "it is closed"
        if self._client is not None:
            self._wait(self._client.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _guard(self) -> None:
        if self._dead is not None:
            raise TransportError(f"the log {self.config.name} takes nothing more: {self._dead}")

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    # on the log's own loop

    async def _claim(self) -> None:
        self._appending = asyncio.Lock()
        config = self.config
        options = NatsOptions(config.servers, config.user, config.password)
        self._client = NatsClient(options, self, 500_000)
        self._api = JetStreamApi(self._client, StreamConfig())
        await self._patiently(self._client.open)
        await self._patiently(self._find_stream)
        while True:
            last, snapshot, inputs = await self._patiently(self._read_when_silent)
            self._last = last
            try:
                await self._append("claimed", b"")
            except FencedError:  # somebody appended meanwhile: read again
                self._dead = None
                continue
            self._ready = (snapshot, inputs)
            self._beating = asyncio.create_task(self._keep_beating())
            return

    async def _patiently(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Again until the servers answer: who does not own the log has time."""
        attempt = 0
        while True:
            try:
                return await work()
            except TransportError as error:
                logger.info("log %s: %s", self.config.name, error)
                await pause_before_retry(min(attempt, 3))
                attempt += 1

    async def _find_stream(self) -> None:
        assert self._api is not None
        body = {
            "name": self._stream,
            "subjects": [self._subject],
            "retention": "limits",
            "storage": "file",
            "discard": "new",
            "num_replicas": self.config.replicas,
            "max_msgs": -1,
            "max_bytes": -1,
            "max_consumers": -1,
        }
        try:
            await self._api.state(self._stream)
        except ApiError:
            await self._api.call(f"STREAM.CREATE.{self._stream}", body)

    async def _silence(self) -> StreamState:
        """The stream's state when nobody has appended for long enough, or its owner has left."""
        assert self._api is not None
        loop = asyncio.get_running_loop()
        state = await self._api.state(self._stream)
        if state.last_seq < max(1, state.first_seq) or await self._is_released(state.last_seq):
            return state
        since = loop.time()
        while loop.time() - since < self.config.patience_s:
            await asyncio.sleep(min(0.25, self.config.patience_s / 4))
            newer = await self._api.state(self._stream)
            if newer.last_seq != state.last_seq:
                state, since = newer, loop.time()
                if await self._is_released(state.last_seq):
                    break
        return state

    async def _is_released(self, sequence: int) -> bool:
        part = await self._get(sequence)
        return part is not None and part.kind == "released"

    async def _get(self, sequence: int) -> Part | None:
        """One message of the stream, read from its leader."""
        assert self._api is not None
        try:
            answer = await self._api.call(f"STREAM.MSG.GET.{self._stream}", {"seq": sequence})
        except ApiError:
            return None
        return self._decode(sequence, base64.b64decode(answer["message"].get("data", "")))

    async def _begins_behind(self, sequence: int) -> bool:
        """Whether somebody has taken a snapshot since and removed this message."""
        assert self._api is not None
        return (await self._api.state(self._stream)).first_seq > sequence

    def _decode(self, sequence: int, data: bytes) -> Part:
        where = f"log {self.config.name}, message {sequence}"
        try:
            part = self._parts.decode(data)
        except UNREADABLE as error:
            raise FormatError(where, f"not a log of unisono: {error}") from None
        check_part(where, part, self._machine)
        return part

    async def _read_when_silent(self) -> tuple[int, tuple[Micros, Any] | None, list[Logged]]:
        """The last sequence, the newest snapshot that is whole, and the inputs behind it."""
        state = await self._silence()
        reading = _Reading(self._decoder)
        if state.last_seq >= max(1, state.first_seq):
            async for sequence, data in self._pull(state.first_seq, state.last_seq):
                reading.add(self._decode(sequence, data), f"log {self.config.name}, message {sequence}")
        self.bytes_since_snapshot = reading.size
        return state.last_seq, reading.snapshot, reading.inputs

    async def _pull(self, first: int, last: int) -> AsyncIterator[tuple[int, bytes]]:
        """Messages `first` to `last` of the stream, by a consumer of our own."""
        assert self._api is not None
        assert self._client is not None
        name, inbox = secrets.token_hex(8), f"_INBOX.{secrets.token_hex(8)}"
        config = {
            "name": name,
            "deliver_policy": "by_start_sequence",
            "opt_start_seq": first,
            "ack_policy": "none",
            "replay_policy": "instant",
            "inactive_threshold": 30 * STREAM_SECONDS,
            "mem_storage": True,
            "num_replicas": 1,
        }
        await self._api.call(f"CONSUMER.CREATE.{self._stream}.{name}", {"stream_name": self._stream, "config": config})
        sid = self._client.subscribe(inbox.encode())
        try:
            done = first - 1
            while done < last:
                wanted = min(PULL, last - done)
                body = msgspec.json.encode({"batch": wanted, "expires": 2 * STREAM_SECONDS})
                subject = f"$JS.API.CONSUMER.MSG.NEXT.{self._stream}.{name}".encode()
                self._client.send(b"PUB %b %b %d\r\n%b\r\n" % (subject, inbox.encode(), len(body), body))
                for _ in range(wanted):
                    try:
                        message = await asyncio.wait_for(self._pulled.get(), 4.0)
                    except TimeoutError:
                        raise TransportError(f"the stream {self._stream} stopped at {done} of {last}") from None
                    if not message[2].startswith(b"$JS.ACK."):
                        raise TransportError(f"the stream {self._stream}: {message[3].decode().strip()}")
                    done = int(message[2].split(b".")[-4])
                    yield done, message[4]
                    if done >= last:
                        break
        finally:
            self._client.unsubscribe(sid)
            while not self._pulled.empty():
                self._pulled.get_nowait()

    async def _append(self, kind: str, body: bytes) -> int:
        """Appends a record; returns the sequence before it. Whatever fails here ends this owner."""
        assert self._appending is not None
        async with self._appending:
            self._guard()
            before = self._last
            self._records += 1
            pieces = [body[at : at + PART_BYTES] for at in range(0, len(body), PART_BYTES)] or [b""]
            try:
                for i, piece in enumerate(pieces):
                    part = Part(LOG_VERSION, self._machine, self._owner, kind, self._records, i, len(pieces), piece)
                    await self._append_part(part)
            except TransportError as error:
                self._dead = str(error)
                raise
            self.bytes_since_snapshot += len(body)
            return before

    async def _append_part(self, part: Part) -> None:
        assert self._client is not None
        loop = asyncio.get_running_loop()
        data, until = self._encoder.encode(part), loop.time() + self.config.unknown_s
        headers = b"NATS/1.0\r\nNats-Expected-Last-Sequence: %d\r\n\r\n" % self._last
        while True:
            try:
                reply = await self._client.request(self._subject.encode(), data, self.config.request_s, headers)
                answer: dict[str, Any] = msgspec.json.decode(reply[4])
            except (TransportError, msgspec.DecodeError) as error:
                if loop.time() >= until:
                    raise TransportError(f"an append to {self._stream} is unknown: {error}") from None
                await asyncio.sleep(0.05)
                continue  # the same message with the same expectation: it cannot be taken twice
            problem = answer.get("error")
            if problem is None:
                self._last = int(answer["seq"])
                return
            if problem.get("err_code") != WRONG_LAST:
                if loop.time() >= until:
                    raise TransportError(f"an append to {self._stream} is unknown: {problem.get('description')}")
                await asyncio.sleep(0.05)
                continue
            # Refused: an earlier try of ours was taken after all, or somebody else's was.
            try:
                found = await self._get(self._last + 1)
                is_gone = found is None and await self._begins_behind(self._last + 1)
            except TransportError:
                await asyncio.sleep(0.05)
                continue
            if found == part:
                self._last += 1
                return
            if found is not None or is_gone:
                raise FencedError(f"the log {self.config.name} belongs to another process now")
            if loop.time() >= until:
                raise TransportError(f"an append to {self._stream} is unknown: it is refused, and nothing is there")
            await asyncio.sleep(0.05)  # an earlier try is still on its way through the servers

    async def _keep_beating(self) -> None:
        seen = self._last
        while self._dead is None:
            await asyncio.sleep(self.config.beat_s)
            if self._last == seen and self._dead is None:
                try:
                    await self._append("beat", b"")
                except TransportError as error:
                    if self.on_lost is not None:
                        self.on_lost(error)
                    return
            seen = self._last

    # the NATS client calls these

    def on_messages(self, messages: list[Msg]) -> None:
        for message in messages:
            self._pulled.put_nowait(message)

    def on_error(self, text: str) -> None:
        logger.warning("log %s: %s", self.config.name, text)

    def on_down(self, reason: str) -> None:
        logger.info("log %s: lost its server: %s", self.config.name, reason)

    def on_back(self) -> None:
        pass


class _Reading:
    """Puts records together; what is incomplete was never committed."""

    def __init__(self, decoder: "msgspec.msgpack.Decoder[list[tuple[Micros, Any]]]") -> None:
        self.snapshot: tuple[Micros, Any] | None = None
        self.inputs: list[Logged] = []
        self.size = 0
        self._decoder = decoder
        self._pieces: list[Part] = []

    def add(self, part: Part, where: str) -> None:
        held = self._pieces
        if (
            part.part == 0
            or not held
            or (held[-1].owner, held[-1].record, held[-1].part + 1)
            != (
                part.owner,
                part.record,
                part.part,
            )
        ):
            held.clear()
            if part.part != 0:
                return  # the rest of a record whose beginning was removed
        held.append(part)
        if len(held) < part.parts:
            return
        body = b"".join(piece.body for piece in held)
        held.clear()
        try:
            if part.kind == "inputs":
                self.inputs += [Logged(*item) for item in self._decoder.decode(body)]
                self.size += len(body)
            elif part.kind == "snapshot":
                at, state = msgspec.msgpack.decode(body)
                self.snapshot, self.inputs, self.size = (Micros(at), state), [], 0
        except UNREADABLE as error:
            raise FormatError(where, f"the record is whole but not readable: {error}") from None


def check_part(where: str, part: Part, machine: str) -> None:
    """Refuses what another version or another machine wrote."""
    if part.version != LOG_VERSION:
        raise FormatError(where, f"log version {part.version} is unknown, this is version {LOG_VERSION}")
    if part.machine != machine:
        raise FormatError(where, f"belongs to {part.machine!r}, not to {machine!r}")


def replicated_config(deployment: Deployment, node: str, token: str) -> ReplicatedConfig:
    """The stream of one node, as its deployment says."""
    spec = deployment.log
    servers = spec.servers or deployment.broker.servers
    if not servers:
        raise MisuseError(f"node {node!r} keeps its log on JetStream, and neither [log] nor [broker] names a server")
    name = f"{deployment.name}-{node}".replace(".", "_")
    beat_s = min(0.5, spec.patience_s / 4)
    user, password = ("node", token) if token else ("", "")
    return ReplicatedConfig(servers, name, spec.replicas, beat_s, spec.patience_s, user=user, password=password)
