"""What a session is, whatever carries its events: an identity, links to nodes, a journal, and what people call.

`SequencedSession` stands on sequencer nodes and a broker, `OverlaySession` on the brokers of an overlay.
"""

import asyncio
import logging
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import NoneType, TracebackType
from typing import Any, Literal, Self

from msgspec import Struct

from unisono.errors import MisuseError, PeerError, TransportError, UnisonoError, said
from unisono.model.arguments import ATTRIBUTES, TOPIC, expect
from unisono.model.deployment import Deployment
from unisono.model.event import Event, Scalar
from unisono.model.ids import Address, Topic
from unisono.model.journal import Header, Record
from unisono.model.limits import FINAL
from unisono.model.metrics import expose
from unisono.model.promise import Order, Reliability
from unisono.model.settings import Right
from unisono.model.time import Micros, parse_span
from unisono.runtime.client.measures import of_publishing, of_streams
from unisono.runtime.client.publishing.publications import SessionPublications
from unisono.runtime.client.publishing.publisher import Publisher
from unisono.runtime.client.publishing.topic_window import Outcome
from unisono.runtime.client.subscription.event_stream import EventStream
from unisono.runtime.client.subscription.request import SubscribeRequest, subscribe_request
from unisono.runtime.client.subscription.stream import OnStall, Stream
from unisono.runtime.client.tracing import event_tracing
from unisono.runtime.driver.clock import Clock
from unisono.runtime.driver.journal import JournalFile, publication
from unisono.runtime.driver.shown_heights import ShownHeights
from unisono.runtime.links import control
from unisono.runtime.links.frames import Codec, Hello, nodes_only
from unisono.runtime.links.greeting import hello_of
from unisono.runtime.links.links import Links
from unisono.runtime.links.security import Tokens, client_context

logger = logging.getLogger(__name__)


Recorded = Literal["deliveries", "all"]
"""What a session writes into its journal."""


class SessionConfig(Struct, frozen=True):
    """How a session waits."""

    open_s: float = 10.0
    """How long opening a topic or connecting may take before TransportError."""
    ask_again_s: float = 0.25
    """Unanswered questions to nodes are repeated after this."""
    journal: Path | None = None
    """A directory for the journal of what this session publishes and is told; None writes none."""
    record: Recorded = "deliveries"
    """`all`: the journal also has the moments at which events leave, and arrive."""
    region: str | None = None
    """Where this client is: of several broker servers the one there is preferred, and topics it uses first are created
    there. None: in the region of the node that answers soonest."""
    state: Path | None = None
    """A directory for committed positions of named subscriptions."""


class Session(ABC):
    """A connected client. Made by `unisono.connect`."""

    ends_lives = False
    """Whether the kind itself ends the life of an event at its deadline; else it is carried, and who is told later is
    told so."""

    def __init__(
        self, deployment: Deployment, base: Path, token: str, config: SessionConfig, links: Links | None = None
    ) -> None:
        """`links` are those of a node in this process; without them the session has its own."""
        self.deployment, self.config = deployment, config
        self.address = Address(f"c{secrets.token_hex(5)}")
        self._topics: dict[str, Topic] = {}
        self._names: dict[Topic, str] = {}
        self._reports: dict[Address, asyncio.Future[control.NodeReport]] = {}
        self.witness = ShownHeights()
        self._clock = Clock()
        self._failure: UnisonoError | None = None
        self._right: Right | None = None
        self._publications: SessionPublications | None = None
        self.tracing = event_tracing()
        """Spans for OpenTelemetry, if the program uses it."""
        self._is_open = False
        self._loop: asyncio.AbstractEventLoop | None = None
        """The one that it was opened in; nothing of it works in another."""
        self._owns_links = links is None
        self.links = links or Links(
            hello_of("client", self.address, deployment),
            Codec(control.Letters),
            nodes_only,
            control.claims,
            self._up,
            self._down,
            client_tls=client_context(deployment.security, base),
            tokens=Tokens(own=token),
        )
        self._journal = self._make_journal(config.journal) if config.journal is not None else None

    def _make_journal(self, directory: Path) -> JournalFile:
        try:
            return JournalFile(directory, self.address, self._header())
        except OSError as error:
            raise MisuseError(f"journal: no file can be written to the directory {directory}: {said(error)}") from None

    def _header(self) -> Header:
        """What its journal claims."""
        tolerance_us = round(self.deployment.sequencing.tolerance_ms * 1000)
        return Header(note="client", tolerance_us=tolerance_us or None)

    # life

    @abstractmethod
    async def open(self) -> None: ...

    def _begin(self) -> None:
        self._is_open, self._loop = True, asyncio.get_running_loop()

    async def close(self) -> None:
        """Waits for outcomes still under way, ends streams, says goodbye."""
        if not self._is_open:
            return
        try:
            async with asyncio.timeout(self.config.open_s):
                await self.drain()
        except TimeoutError:
            self.give_up("the session was closed")
        for stream in self._open_streams():
            await stream.close()
        self._is_open = False
        if self._publications is not None:
            self._publications.end()
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
        self.check_alive()
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
        if asyncio.get_running_loop() is not self._loop:
            raise MisuseError(
                "this session was opened in another event loop: connect in the loop (and the thread) that uses it, "
                "or use unisono.connect_sync, which has its own"
            )

    def fail(self, error: Exception) -> None:
        """A machine of ours has stopped."""
        self._failure = error if isinstance(error, UnisonoError) else TransportError(f"the session broke: {error!r}")
        self.give_up(str(error))
        if self._publications is not None:
            self._publications.end()
        for stream in self._open_streams():
            stream.fail(self._failure)

    @abstractmethod
    def _open_streams(self) -> Sequence[EventStream]: ...

    def give_up(self, reason: str) -> None:
        """Publications that have no outcome yet are `Unknown` now, and nobody waits for them any more."""
        if self._publications is not None:
            self._publications.give_up(reason)

    @abstractmethod
    def _up(self, hello: Hello) -> None: ...

    @abstractmethod
    def _down(self, hello: Hello, error: UnisonoError | None) -> None: ...

    # what people call

    async def publish(
        self, topic: str, data: Any, attributes: dict[str, Scalar] | None = None, *, deadline: str | None = None
    ) -> Outcome:
        """Publishes one event and waits for its outcome: `Accepted`, `Refused` or `Unknown`.

        outcome = await session.publish("trades", {"sym": "IBM", "px": 101.2})

        Filters look at the attributes; without any, at the scalars of the data. `deadline="300ms"`: how long after now
        the event is of use; who is told later is told so (`event.overdue`).
        """
        if not isinstance(topic, str):
            expect("publish: the first argument", topic, str, TOPIC)
        if attributes is not None:
            expect("attributes", attributes, dict, ATTRIBUTES)
        deadline_us = self.check_deadline(deadline) if deadline is not None else Micros(0)
        publications = await self._publishing()
        topic_window, data = publications.cell(await publications.topic_window(topic), data, attributes)
        await publications.room(topic_window)
        answer: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        with self.tracing.publishing(topic) if self.tracing is not None else nullcontext() as span:
            publications.put((topic_window, answer), data, attributes, deadline_us)
            outcome = await answer
            if span is not None:
                span.set_attribute("unisono.outcome", type(outcome).__name__.lower())
        return outcome

    async def publisher(self, topic: str, advertise: str | None = None) -> Publisher:
        """A publisher that does not wait for each outcome; `advertise` tells an overlay what it will publish."""
        expect("publisher: the first argument", topic, str, TOPIC)
        expect("advertise", advertise, (str, NoneType), "the text of a filter")
        publications = await self._publishing()
        publisher = Publisher(publications, await publications.topic_window(topic))
        if advertise is not None:
            publisher.advertise(advertise)
        return publisher

    async def drain(self) -> None:
        """Returns when everything published has its outcome."""
        if self._publications is not None:
            await self._publications.drain()

    @abstractmethod
    async def _publishing(self) -> SessionPublications:
        """Where publications go; raises if they cannot go anywhere."""

    def subscribe(
        self,
        *topics: str,
        order: Order = "total",
        tolerance: str | None = None,
        deadline: str | None = None,
        start: str = "latest",
        reliability: Reliability = "best-effort",
        on_stall: OnStall = "wait",
        type: Any = None,
        name: str | None = None,
        buffer: int = 65_536,
        latest_only: bool = False,
        group: str | None = None,
        share: str | None = None,
        where: str | None = None,
    ) -> EventStream:
        """A subscription to topics or patterns (`trades.*`), to be entered with `async with` and iterated.

        async with session.subscribe("trades", "quotes", order="total", deadline="500ms") as stream:
            async for event in stream: ...

        `where` selects by content (docs/reference/filters.md): where="px > 100 and sym = 'IBM'".
        With `group` one member is active: entering waits until it is this one's turn, and `commit` says how far the
        group is. With `share="key"`, too, members share the values of that attribute, and order holds for each of them.
        """
        self.check_alive()
        request = subscribe_request(
            *topics,
            order=order,
            tolerance=tolerance,
            deadline=deadline,
            start=start,
            reliability=reliability,
            on_stall=on_stall,
            type=type,
            name=name,
            buffer=buffer,
            latest_only=latest_only,
            group=group,
            share=share,
            where=where,
        )
        return self._stream(request)

    @abstractmethod
    def _stream(self, request: SubscribeRequest) -> EventStream:
        """The stream that was wished for; raises PlanError if it cannot be had here."""

    def metrics(self) -> str:
        """What was published and delivered so far, as text that Prometheus reads (docs/reference/metrics.md).

        body = session.metrics()  # to be served by the program itself
        """
        publications = self._publications
        samples = of_publishing(publications.outcomes, publications.in_flight) if publications is not None else ()
        streams = [stream for stream in self._open_streams() if isinstance(stream, Stream)]
        return expose([*samples, *of_streams(streams)])

    async def status(self, node: str) -> control.NodeReport:
        """How a node is; raises TransportError if it does not answer."""
        expect("status: the argument", node, str, "a node's name")
        self.check_alive()
        self.deployment.node(node)  # raises for a name that nobody has
        address = Address(node)
        future = self._reports.setdefault(address, asyncio.get_running_loop().create_future())
        report: control.NodeReport = await self.ask(
            address, control.AskReport(self.address), future, f"node {node} does not answer"
        )
        return report

    async def ask(self, node: Address, question: Any, future: "asyncio.Future[Any]", silence: str) -> Any:
        """Repeats the question until the answer is there; raises TransportError after `open_s`, and PeerError at once
        if the node has turned us away for a reason that stays."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self.config.open_s
        while True:
            self.links.send(node, question)
            pause = self.config.ask_again_s if self.links.is_up(node) else 0.02
            done, _ = await asyncio.wait([future], timeout=pause)
            if done:
                return future.result()
            rejected = self.links.rejections.get(node)
            if rejected is not None and rejected.code in FINAL:
                raise PeerError(f"node {node}: {rejected}", rejected.code)
            if loop.time() >= until:
                why = self.links.problems.get(node) if not self.links.is_up(node) else None
                raise TransportError(silence if why is None else f"{silence}: {why}")

    # a sink for letters to the session itself

    def post(self, message: Any) -> None:
        if isinstance(message, control.NodeReport):
            report = self._reports.pop(Address(message.node), None)
            if report is not None and not report.done():
                report.set_result(message)
        elif isinstance(message, control.YourRights):
            self._right = Right("ours", publish=message.publish, subscribe=message.subscribe)
        elif isinstance(message, control.OverLimit):
            self._refused(message)

    def _refused(self, message: control.OverLimit) -> None:
        """A node will not do more for us: whoever waits for it is told, and nobody asks again."""
        error = MisuseError(f"{message.reason} ({message.code})")
        logger.warning("%s", error)
        streams = {stream.sid: stream for stream in self._open_streams()}
        if message.about in streams:
            streams[Address(message.about)].fail(error)
        elif message.about == self.address:
            self.fail(error)
        elif message.about == f"{self.address}/p" and self._publications is not None:
            self._publications.give_up(str(error))

    def check_publish(self, topic: str) -> None:
        """Raises MisuseError if a node has told us that we may not."""
        if self._right is not None and not self._right.may_publish(topic):
            allowed = ", ".join(self._right.publish) or "nothing"
            raise MisuseError(f"your token may not publish on {topic!r}, only on: {allowed} ([[rights]])")

    def check_deadline(self, deadline: str) -> Micros:
        """An event's own deadline."""
        expect("deadline", deadline, str, 'text with a unit, like "300ms"')
        deadline_us = parse_span(deadline, "deadline")
        if not deadline_us:
            raise MisuseError(f"deadline={deadline!r} would be over at once: give a longer one, or leave it out")
        return deadline_us

    def check_subscribe(self, topics: list[str]) -> None:
        """The same for what a stream wants to hear."""
        denied = [topic for topic in topics if self._right is not None and not self._right.may_subscribe(topic)]
        if denied and self._right is not None:
            allowed = ", ".join(self._right.subscribe) or "nothing"
            raise MisuseError(f"your token may not subscribe to {denied[0]!r}, only to: {allowed} ([[rights]])")

    @property
    def is_full(self) -> bool:
        return False

    def when_roomy(self, callback: Callable[[], None]) -> None:
        callback()

    # names and time

    @property
    def open_s(self) -> float:
        return self.config.open_s

    @property
    def ask_again_s(self) -> float:
        return self.config.ask_again_s

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

    @property
    def records_all(self) -> bool:
        """Whether each event is noted as it leaves, and as it arrives."""
        return self._journal is not None and self.config.record == "all"

    def note(self, record: Record) -> None:
        if self._journal is not None:
            self._journal.note(record)

    def note_publish(self, event: Event, deadline_us: Micros = Micros(0)) -> None:
        self.note(publication(event, self.now(), deadline_us))

    def flush_journal(self) -> None:
        if self._journal is not None:
            self._journal.flush()
