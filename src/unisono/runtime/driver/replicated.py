"""The log of a durable machine on a replicated JetStream stream: it outlives its machine's machine.

The stream of a node is its log: one message per commit, in the order of sequences. Of two that write only one can
(`unisono.runtime.brokers.nats.fenced`): whoever takes over appends `claimed` and has fenced the other off.

Liveness is a matter of time, safety is not: an owner beats, and who waits takes over when nothing was appended for
`patience_s`. An owner that was only slow finds itself fenced at its next append, before anything of it is seen.

Records larger than a message travel in consecutive parts; what a crash left incomplete was never committed.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
from msgspec import Struct

from unisono.errors import FormatError, InvariantError, MisuseError, TransportError
from unisono.model.deployment import Deployment
from unisono.model.time import Micros
from unisono.runtime.brokers.deployed import node_options
from unisono.runtime.brokers.nats.codec import NatsOptions
from unisono.runtime.brokers.nats.fenced import FencedError, FencedStream
from unisono.runtime.brokers.nats.jetstream_api import StreamState
from unisono.runtime.driver.forked import ForkedWriter
from unisono.runtime.driver.log import LOG_VERSION, LogConfig, of_another
from unisono.runtime.links.frames import UNREADABLE
from unisono.turns import Logged

logger = logging.getLogger(__name__)

PART_BYTES = 512 << 10
"""A NATS server takes messages up to 1 MiB unless it is told otherwise."""


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
    opening_s: float = 30.0
    """How long a starting node waits for servers that make or know the stream; once they do, it waits for ever."""
    at: NatsOptions | None = None
    """How to log in there; None: as nobody."""


class RecordPart(Struct, frozen=True, array_like=True):
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


class ReplicatedLog:
    """The log of one machine, on a stream; an `InputLog`."""

    def __init__(self, config: ReplicatedConfig, machine: str, inputs: Any) -> None:
        self.config = config
        self.bytes_since_snapshot = 0
        self.on_lost: Callable[[Exception], None] | None = None
        """Called, from another thread, when a beat finds that the log is not ours any more."""
        self._segment_bytes_max = LogConfig().segment_bytes_max
        self._machine, self._owner = machine, secrets.token_hex(8)
        self._decoder = msgspec.msgpack.Decoder(list[tuple[Micros, inputs]])
        self._encoder = msgspec.msgpack.Encoder()
        self._parts = msgspec.msgpack.Decoder(RecordPart)
        self._records = 0
        self._dead: str | None = None
        self._subject = f"_unisono.log.{config.name}"
        self._ready: tuple[tuple[Micros, Any] | None, list[Logged]] | None = None
        options = config.at or NatsOptions(config.servers)
        # Topics' streams begin with "unisono-".
        self._line = FencedStream(f"unisono_log-{config.name}", options, config.request_s, config.unknown_s)
        self._appending: asyncio.Lock | None = None
        self._beating: asyncio.Task[None] | None = None

    # from the node, on its own loop

    async def claim(self) -> None:
        """Returns when the log is ours: at once if nobody has it, else when its owner has been silent or has left."""
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._claim(), self._line.loop))

    # from the host: as of any `InputLog`

    @property
    def height(self) -> int:
        """The last sequence of the stream that we know of."""
        return self._line.last

    def recover(self) -> tuple[tuple[Micros, Any] | None, Iterator[Logged]]:
        """What the claim has read."""
        assert self._ready is not None, "claim first"
        snapshot, inputs = self._ready
        self._ready = None
        return snapshot, iter(inputs)

    def commit(self, inputs: list[Logged]) -> None:
        """Makes these inputs durable on most replicas; raises TransportError, and then for ever."""
        self._guard()
        self._line.wait(self._append("inputs", self._encoder.encode(inputs)))

    @property
    def is_quick(self) -> bool:
        return False  # it waits for other machines

    @property
    def snapshot_is_due(self) -> bool:
        return self.bytes_since_snapshot >= self._segment_bytes_max

    def begin_snapshot(self, at: Micros, state: Any) -> bytes:
        """The snapshot stands in line with the inputs; returns the sequence before it, for `finish_snapshot`."""
        self._guard()
        before = self._line.wait(self._append("snapshot", self._encoder.encode((at, state))))
        self.bytes_since_snapshot = 0
        return before.to_bytes(8, "big")

    def fork_snapshot(self, at: Micros, take: Callable[[], Any]) -> ForkedWriter | None:
        """The connection is ours alone: no other process can put the snapshot into the stream."""
        return None

    def begin_forked(self) -> None:
        raise InvariantError("a log on a stream takes its snapshots itself")

    def finish_forked(self, writer: ForkedWriter) -> bool:
        raise InvariantError("a log on a stream takes its snapshots itself")

    def finish_snapshot(self, block: bytes) -> None:
        """Removes what the snapshot replaces."""
        first = int.from_bytes(block, "big") + 1
        try:
            self._line.wait(self._line.purge(first))
        except TransportError as error:  # the stream stays longer than it needs to be; the next snapshot tries again
            logger.warning("%s", error)

    def close(self) -> None:
        """Leaves office: who waits need not wait longer."""
        if self._beating is not None:
            self._line.loop.call_soon_threadsafe(self._beating.cancel)
        if self._dead is None and self._beating is not None:
            try:
                self._line.wait(self._append("released", b""))
            except TransportError as error:
                logger.info("%s", error)
        self._dead = self._dead or "it is closed"
        self._line.close()

    def _guard(self) -> None:
        if self._dead is not None:
            raise TransportError(f"the log {self.config.name} takes nothing more: {self._dead}")

    # on the line's loop

    async def _claim(self) -> None:
        self._appending = asyncio.Lock()
        line = self._line
        try:
            async with asyncio.timeout(self.config.opening_s):
                await line.patiently(line.open)
                await line.patiently(lambda: line.make([self._subject], self.config.replicas))
        except TimeoutError:
            servers = ", ".join(self.config.servers)
            raise TransportError(f"the log {self.config.name} cannot be opened at {servers}: {line.problem}") from None
        while True:
            last, snapshot, inputs = await line.patiently(self._read_when_silent)
            line.last = last
            try:
                await self._append("claimed", b"")
            except FencedError:  # somebody appended meanwhile: read again
                self._dead = None
                continue
            self._ready = (snapshot, inputs)
            self._beating = asyncio.create_task(self._keep_beating())
            return

    async def _silence(self) -> StreamState:
        """The stream's state when nobody has appended for long enough, or its owner has left."""
        loop = self._line.loop
        state = await self._line.state()
        if state.last_seq < max(1, state.first_seq) or await self._is_released(state.last_seq):
            return state
        since = loop.time()
        while loop.time() - since < self.config.patience_s:
            await asyncio.sleep(min(0.25, self.config.patience_s / 4))
            newer = await self._line.state()
            if newer.last_seq != state.last_seq:
                state, since = newer, loop.time()
                if await self._is_released(state.last_seq):
                    break
        return state

    async def _is_released(self, sequence: int) -> bool:
        message = await self._line.get(sequence)
        return message is not None and self._decode(sequence, message.data).kind == "released"

    def _decode(self, sequence: int, data: bytes) -> RecordPart:
        where = f"log {self.config.name}, message {sequence}"
        try:
            part = self._parts.decode(data)
        except UNREADABLE as error:
            raise FormatError(where, f"not a log of unisono: {error}") from None
        check_part(where, part, self._machine)
        return part

    async def _read_when_silent(self) -> tuple[int, tuple[Micros, Any] | None, list[Logged]]:
        """The last sequence, the newest snapshot that is whole, and the inputs after it."""
        state = await self._silence()
        reading = _Reading(self._decoder)
        at = max(1, state.first_seq)
        while at <= state.last_seq:
            messages = await self._line.pull(at, state.last_seq)
            for message in messages:
                part = self._decode(message.sequence, message.data)
                reading.add(part, f"log {self.config.name}, message {message.sequence}")
            at = messages[-1].sequence + 1 if messages else state.last_seq + 1
        self.bytes_since_snapshot = reading.size
        return state.last_seq, reading.snapshot, reading.inputs

    async def _append(self, kind: str, body: bytes) -> int:
        """Appends a record; returns the sequence before it. Whatever fails here ends this owner."""
        assert self._appending is not None
        async with self._appending:
            self._guard()
            before = self._line.last
            self._records += 1
            pieces = [body[at : at + PART_BYTES] for at in range(0, len(body), PART_BYTES)] or [b""]
            try:
                for i, piece in enumerate(pieces):
                    part = RecordPart(
                        LOG_VERSION, self._machine, self._owner, kind, self._records, i, len(pieces), piece
                    )
                    await self._line.append(self._subject, self._encoder.encode(part))
            except TransportError as error:
                self._dead = str(error)
                raise
            self.bytes_since_snapshot += len(body)
            return before

    async def _keep_beating(self) -> None:
        seen = self._line.last
        while self._dead is None:
            await asyncio.sleep(self.config.beat_s)
            if self._line.last == seen and self._dead is None:
                try:
                    await self._append("beat", b"")
                except TransportError as error:
                    if self.on_lost is not None:
                        self.on_lost(error)
                    return
            seen = self._line.last


class _Reading:
    """Puts records together; what is incomplete was never committed."""

    def __init__(self, decoder: "msgspec.msgpack.Decoder[list[tuple[Micros, Any]]]") -> None:
        self.snapshot: tuple[Micros, Any] | None = None
        self.inputs: list[Logged] = []
        self.size = 0
        self._decoder = decoder
        self._pieces: list[RecordPart] = []

    def add(self, part: RecordPart, where: str) -> None:
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


def check_part(where: str, part: RecordPart, machine: str) -> None:
    """Refuses what another version or another machine wrote."""
    if part.version != LOG_VERSION:
        raise FormatError(where, f"log version {part.version} is unknown, this is version {LOG_VERSION}")
    if part.machine != machine:
        raise FormatError(where, of_another(part.machine, machine))


def replicated_config(deployment: Deployment, node: str, token: str) -> ReplicatedConfig:
    """The stream of one node, as its deployment says."""
    spec = deployment.log
    servers = spec.servers or deployment.broker.servers
    if not servers:
        raise MisuseError(f"node {node!r} keeps its log on JetStream, and neither [log] nor [broker] names a server")
    name = f"{deployment.name}-{node}".replace(".", "_")
    beat_s = min(0.5, spec.patience_s / 4)
    at = node_options(deployment, servers, token)
    return ReplicatedConfig(servers, name, spec.replicas, beat_s, spec.patience_s, at=at)
