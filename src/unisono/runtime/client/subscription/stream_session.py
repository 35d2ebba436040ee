"""What the parts of a stream need of the session it belongs to, and of the stream itself."""

from typing import Any, Protocol

from unisono.errors import UnisonoError
from unisono.model.ids import Address, Topic
from unisono.model.journal import Record
from unisono.model.predicate import Filter
from unisono.model.promise import Promise
from unisono.model.time import Micros
from unisono.runtime.client.subscription.replay import Past
from unisono.runtime.client.tracing import EventTracing
from unisono.runtime.driver.host import Host


class StreamSession(Protocol):
    """A session, whatever carries its events."""

    @property
    def open_s(self) -> float: ...

    @property
    def journals(self) -> bool: ...

    @property
    def tracing(self) -> EventTracing | None: ...

    def check_subscribe(self, topics: list[str]) -> None: ...

    async def open_topics(self, names: list[str]) -> dict[str, Topic]: ...

    async def expand(self, patterns: list[str]) -> list[str]: ...

    def name_of(self, topic: Topic) -> str | None: ...

    def topic_of(self, name: str) -> Topic | None: ...

    def silence(self, name: str, patience_s: float) -> str: ...

    def now(self) -> Micros: ...

    def note(self, record: Record) -> None: ...

    async def keep_position(self, name: str, position: str) -> None: ...


class SubscribedStream(Protocol):
    """A stream, as its parts see it."""

    promise: Promise
    where: Filter
    sid: Address
    host: Host | None
    topics: dict[str, Topic]
    interests: tuple[str, ...]
    cells: dict[str, str]
    archive: Past | None

    def introduce(self, topic: Topic) -> None: ...

    def answered(self, item: Any) -> None: ...

    def fail(self, error: UnisonoError) -> None: ...

    async def unsubscribe(self, *topics: str) -> None: ...
