"""What sessions have in common whose brokers select by content: those of an overlay, of regions, of a causal mesh.

Such brokers know topics by their names and route by patterns as they are. So topics need not be created, their numbers
are the session's own, and nobody keeps a position to resume from. Each stream is a client of the protocol, with an
address of its own, and so are the publications of the session together.
"""

import logging
from abc import abstractmethod
from typing import Any, ClassVar

from unisono.errors import MisuseError
from unisono.model.ids import Address, Topic
from unisono.model.interest import check_topic_name, is_pattern
from unisono.model.journal import Record
from unisono.model.settings import NodeSpec
from unisono.qos import DeploymentOffer, choose
from unisono.runtime.client.publishing.publications import SessionPublications
from unisono.runtime.client.session import Session
from unisono.runtime.client.subscription.event_stream import EventStream
from unisono.runtime.client.subscription.request import SubscribeRequest
from unisono.runtime.client.subscription.stream import Stream
from unisono.runtime.driver.host import LinksOnly
from unisono.runtime.links import control

logger = logging.getLogger(__name__)


class ContentSession(Session):
    """A client of brokers that select by content."""

    keeps_nothing: ClassVar[str]
    """Who it is that keeps nothing, as the error begins."""
    why_no_stall: ClassVar[str] = "a stalled topic waits, and says so"
    _client_count = 0

    @property
    @abstractmethod
    def broker(self) -> NodeSpec:
        """The one it is connected with, or looks for."""

    @abstractmethod
    async def _connected(self) -> None:
        """Returns when a broker can be reached; raises TransportError if none can within `open_s`."""

    @abstractmethod
    def _offer(self) -> DeploymentOffer:
        """What a deployment of this kind can promise."""

    @abstractmethod
    async def enter_stream(self, stream: Stream) -> None:
        """Makes the machine of the stream, and lets it subscribe."""

    @abstractmethod
    async def leave_stream(self, stream: Stream) -> None: ...

    def check_content(self, stream: Stream) -> None:
        """Every stream can select by content."""

    def check_publish(self, topic: str) -> None:
        """No broker of this kind creates topics, so nobody else would refuse a pattern."""
        check_topic_name(topic)
        super().check_publish(topic)

    # what people call

    def _stream(self, request: SubscribeRequest) -> EventStream:
        if request.on_stall != "wait":
            raise MisuseError(f"on_stall={request.on_stall!r} cannot be had here, only 'wait': {self.why_no_stall}")
        start = request.start if request.name is None else "named"
        choose(request.promise, self._offer(), start, request.group, content=True)
        return Stream(
            self, request.topics, request.promise, {}, request.decode, None, request.latest_only, request.where
        )

    async def status(self, node: str) -> control.NodeReport:
        """How the session's broker is; raises TransportError if it does not answer."""
        if node != self.broker.name:
            raise MisuseError(f"this session is at {self.broker.name}: ask with 'unisono status'")
        await self._connected()
        return await super().status(node)

    # for streams and publishers

    async def open_topics(self, names: list[str]) -> dict[str, Topic]:
        for name in names:
            if name not in self._topics:
                if not is_pattern(name):
                    check_topic_name(name)
                topic = Topic(len(self._topics) + 1)
                self._topics[name], self._names[topic] = topic, name
        return {name: self._topics[name] for name in names}

    async def expand(self, patterns: list[str]) -> list[str]:
        """Patterns stay as they are: brokers and members look at the names themselves."""
        return patterns

    def introduce(self, stream: Stream, topic: Topic) -> None:
        """No machine has to learn where a topic lives."""

    async def keep_position(self, name: str, position: str) -> None:
        raise MisuseError(f"{self.keeps_nothing} nothing to resume from, so a position is of no use")

    def pause(self, stream: Stream) -> None:
        """Brokers cannot be asked to wait for one stream."""

    def resume(self, stream: Stream) -> None:
        """Nothing was paused."""

    def silence(self, name: str, patience_s: float) -> str:
        return f"{name!r}: the brokers did not agree on the subscription within {patience_s:g} s"

    def topic_name(self, topic: Topic) -> str:
        return self._names[topic]

    def _next_address(self) -> Address:
        self._client_count += 1
        return Address(f"{self.address}/{self._client_count}")


class ContentClient(LinksOnly):
    """Who hears what one machine of such a session delivers: a stream, or the session's publications."""

    def __init__(self, session: ContentSession, address: Address, stream: Stream | None) -> None:
        self.address, self.stream = address, stream
        self.publications: SessionPublications | None = None
        self._session = session

    def deliver(self, item: Any) -> None:
        if self.stream is not None:
            self.stream.deliver(item)
        elif self.publications is not None:
            self.publications.settle(item)

    def refused(self, reason: str) -> None:
        logger.debug("%s refused: %s", self.address, reason)
        self._session.note(Record("refuse", self._session.now(), who=self.address, note=reason))

    def end_turn(self) -> None:
        self._session.flush_journal()
        if self.stream is not None:
            self.stream.end_turn()

    def failed(self, error: Exception) -> None:
        self._session.fail(error)
