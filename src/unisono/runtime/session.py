"""What a session is, whatever carries its events: an identity, links to nodes, a journal, and what people call.

`SequencedSession` stands on sequencer nodes and a broker, `OverlaySession` on the brokers of an overlay.
"""

import asyncio
import logging
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self, get_args

from msgspec import Struct

from unisono.errors import MisuseError, TransportError, UnisonoError
from unisono.model.deployment import Deployment
from unisono.model.event import Event, Scalar
from unisono.model.ids import Address, Topic
from unisono.model.interest import check_interest
from unisono.model.journal import Header, Record
from unisono.model.predicate import Filter
from unisono.model.promise import Order, Promise, Reliability
from unisono.model.time import Micros, parse_span
from unisono.runtime import edge
from unisono.runtime.clock import Clock
from unisono.runtime.content import parse_where
from unisono.runtime.frames import Codec, Hello, nodes_only
from unisono.runtime.journal import JournalFile, publication
from unisono.runtime.lane import Outcome
from unisono.runtime.links import Links
from unisono.runtime.payload import payload_decoder
from unisono.runtime.publish import Outbox
from unisono.runtime.publisher import Publisher
from unisono.runtime.security import Tokens, client_context
from unisono.runtime.stream import OnStall, Stream, check_interests
from unisono.runtime.witness import Witness

logger = logging.getLogger(__name__)


class SessionConfig(Struct, frozen=True):
    """How a session waits."""

    open_s: float = 10.0
    """How long opening a topic or connecting may take before TransportError."""
    ask_again_s: float = 0.25
    """Unanswered questions to nodes are repeated after this."""
    journal: Path | None = None
    """A directory for the journal of what this session publishes and is told; None writes none."""
    region: str | None = None
    """Where this client is: of several broker servers the one there is preferred."""
    state: Path | None = None
    """A directory for committed positions of named subscriptions."""


class Wish(Struct, frozen=True):
    """What was asked of `subscribe`, checked as far as it can be without knowing what carries the events."""

    topics: tuple[str, ...]
    promise: Promise
    where: Filter
    selects: bool
    decode: Callable[[bytes], Any]
    start: str
    on_stall: OnStall
    name: str | None
    latest_only: bool
    group: str | None
    parallel: bool


class Session(ABC):
    """A connected client. Made by `unisono.connect`."""

    def __init__(
        self, deployment: Deployment, base: Path, token: str, config: SessionConfig, links: Links | None = None
    ) -> None:
        """`links` are those of a node in this process; without them the session has its own."""
        self.deployment, self.config = deployment, config
        self.address = Address(f"c{secrets.token_hex(5)}")
        self._topics: dict[str, Topic] = {}
        self._names: dict[Topic, str] = {}
        self._reports: dict[Address, asyncio.Future[edge.Report]] = {}
        self.witness = Witness()
        self._clock = Clock()
        self._failure: UnisonoError | None = None
        self._is_open = False
        self._owns_links = links is None
        self.links = links or Links(
            Hello("client", (self.address,), deployment=deployment.name),
            Codec(edge.Letters),
            nodes_only,
            edge.claims,
            self._up,
            self._down,
            client_tls=client_context(deployment.security, base),
            tokens=Tokens(own=token),
        )
        self._journal = (
            JournalFile(config.journal, self.address, Header(note="client")) if config.journal is not None else None
        )

    # life

    @abstractmethod
    async def open(self) -> None: ...

    async def close(self) -> None:
        """Waits for outcomes still under way, ends streams, says goodbye."""
        if not self._is_open:
            return
        try:
            async with asyncio.timeout(self.config.open_s):
                await self.drain()
        except TimeoutError:
            self._give_up("the session was closed")
        for stream in self._open_streams():
            await stream.close()
        self._is_open = False
        await self._leave()
        if self._owns_links:
            await self.links.close()
        if self._journal is not None:
            self._journal.close()
            self._journal = None

    @abstractmethod
    async def _leave(self) -> None:
        """Ends what is neither a stream nor a link."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def check_alive(self) -> None:
        if self._failure is not None:
            raise self._failure
        if not self._is_open:
            raise MisuseError("the session is closed")

    def fail(self, error: Exception) -> None:
        """A machine of ours has stopped."""
        self._failure = error if isinstance(error, UnisonoError) else TransportError(f"the session broke: {error!r}")
        self._give_up(str(error))
        for stream in self._open_streams():
            stream.fail(self._failure)

    @abstractmethod
    def _open_streams(self) -> list[Stream]: ...

    @abstractmethod
    def _give_up(self, reason: str) -> None:
        """Publications without an outcome are unknown."""

    @abstractmethod
    def _up(self, hello: Hello) -> None: ...

    @abstractmethod
    def _down(self, hello: Hello, error: UnisonoError | None) -> None: ...

    # what people call

    async def publish(self, topic: str, data: Any, attributes: dict[str, Scalar] | None = None) -> Outcome:
        """Publishes one event and waits for its outcome: `Accepted`, `Refused` or `Unknown`.

        outcome = await session.publish("trades", {"sym": "IBM", "px": 101.2})

        Filters look at the attributes; without any, at the scalars of the data.
        """
        outbox = await self._publishing()
        lane, data = outbox.cell(await outbox.lane(topic), data, attributes)
        await outbox.room(lane)
        answer: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        outbox.put((lane, answer), data, attributes)
        return await answer

    async def publisher(self, topic: str, advertise: str | None = None) -> Publisher:
        """A publisher that does not wait for each outcome; `advertise` tells an overlay what it will publish."""
        outbox = await self._publishing()
        publisher = Publisher(outbox, await outbox.lane(topic))
        if advertise is not None:
            publisher.advertise(advertise)
        return publisher

    @abstractmethod
    async def drain(self) -> None:
        """Returns when everything published has its outcome."""

    @abstractmethod
    async def _publishing(self) -> Outbox:
        """Where publications go; raises if they cannot go anywhere."""

    def subscribe(
        self,
        *topics: str,
        order: Order = "total",
        deadline: str | None = None,
        start: str = "latest",
        reliability: Reliability = "best-effort",
        on_stall: OnStall = "wait",
        type: Any = None,
        name: str | None = None,
        buffer: int = 65_536,
        latest_only: bool = False,
        group: str | None = None,
        parallel: bool = False,
        where: str | None = None,
    ) -> Stream:
        """A subscription to topics or patterns (`trades.*`), to be entered with `async with` and iterated.

        async with session.subscribe("trades", "quotes", order="total", deadline="500ms") as stream:
            async for event in stream: ...

        `where` selects by content (docs/reference/filters.md): where="px > 100 and sym = 'IBM'".
        With `group`, entering waits until it is this member's turn, and `commit` says how far the group is.
        """
        self.check_alive()
        check_interests(topics)
        for text in topics:
            check_interest(text)
        if on_stall not in get_args(OnStall):
            raise MisuseError(f"on_stall is one of {', '.join(get_args(OnStall))}, not {on_stall!r}")
        promise = Promise(order, parse_span(deadline) if deadline is not None else None, reliability, buffer)
        wanted, decode = parse_where(where), payload_decoder(type)
        selects = where is not None
        return self._stream(
            Wish(topics, promise, wanted, selects, decode, start, on_stall, name, latest_only, group, parallel)
        )

    @abstractmethod
    def _stream(self, wish: Wish) -> Stream:
        """The stream that was wished for; raises PlanError if it cannot be had here."""

    async def status(self, node: str) -> edge.Report:
        """How a node is; raises TransportError if it does not answer."""
        address = Address(node)
        future = self._reports.setdefault(address, asyncio.get_running_loop().create_future())
        report: edge.Report = await self.ask(
            address, edge.Inquire(self.address), future, f"node {node} does not answer"
        )
        return report

    async def ask(self, node: Address, question: Any, future: "asyncio.Future[Any]", silence: str) -> Any:
        """Repeats the question until the answer is there; raises TransportError after `open_s`."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self.config.open_s
        while True:
            self.links.send(node, question)
            pause = self.config.ask_again_s if self.links.is_up(node) else 0.02
            done, _ = await asyncio.wait([future], timeout=pause)
            if done:
                return future.result()
            if loop.time() >= until:
                raise TransportError(silence)

    # a sink for letters to the session itself

    def post(self, message: Any) -> None:
        if isinstance(message, edge.Report):
            report = self._reports.pop(Address(message.node), None)
            if report is not None and not report.done():
                report.set_result(message)
        elif isinstance(message, edge.Refused):
            self._refused(message)

    def _refused(self, message: edge.Refused) -> None:
        """A node will not do more for us: whoever waits for it is told, and nobody asks again."""
        error = MisuseError(f"{message.reason} ({message.code})")
        logger.warning("%s", error)
        streams = {stream.sid: stream for stream in self._open_streams()}
        if message.about in streams:
            streams[Address(message.about)].fail(error)
        elif message.about == self.address:
            self.fail(error)

    @property
    def is_full(self) -> bool:
        return False

    def when_roomy(self, callback: Callable[[], None]) -> None:
        callback()

    # names and time

    def name_of(self, topic: Topic) -> str | None:
        return self._names.get(topic)

    def topic_of(self, name: str) -> Topic | None:
        return self._topics.get(name)

    def now(self) -> Micros:
        return self._clock.now()

    # the journal

    @property
    def journals(self) -> bool:
        return self._journal is not None

    def note(self, record: Record) -> None:
        if self._journal is not None:
            self._journal.note(record)

    def note_publish(self, event: Event) -> None:
        self.note(publication(event, self.now()))

    def flush_journal(self) -> None:
        if self._journal is not None:
            self._journal.flush()
