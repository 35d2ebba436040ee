"""Where one machine of a session meets the world: its host, the links, the broker, and the stream that hears it."""

import logging
from collections.abc import Callable
from typing import Any, Protocol

from unisono.machine import Broadcast, Machine
from unisono.model.ids import Address, Topic
from unisono.model.journal import Record
from unisono.model.time import Micros
from unisono.runtime.brokers.connection import BrokerConnection
from unisono.runtime.client.ordering import REQUESTS
from unisono.runtime.client.unordered import Unordered, hears_unordered
from unisono.runtime.driver.host import Host
from unisono.runtime.links.links import LetterReceiver, Links
from unisono.turns import Arrangement

logger = logging.getLogger(__name__)


class DrivenStream(Protocol):
    """Who hears what a stream's machine, or that of a group's member, delivers."""

    def deliver(self, item: Any, /) -> None: ...

    def end_turn(self) -> None: ...


class DrivenSession(Protocol):
    """A session whose machines stand on a broker."""

    links: Links
    broker: BrokerConnection

    def make_outcome(self, outcome: Any) -> None: ...

    def broadcast(self, effect: Broadcast) -> None: ...

    def now(self) -> Micros: ...

    def note(self, record: Record) -> None: ...

    def flush_journal(self) -> None: ...

    def fail(self, error: Exception) -> None: ...

    def way_to(self, home: Address) -> Address: ...


class ClientDriver:
    """The outside of one machine of a session, and its host."""

    def __init__(
        self,
        session: DrivenSession,
        address: str,
        machine: Machine,
        stream: DrivenStream | None,
        arrangement: Arrangement | None = None,
    ) -> None:
        self.address = Address(address)
        self.host = Host(address, machine, self, arrangement=arrangement)
        self._session, self._stream = session, stream
        self.sink: LetterReceiver = Unordered(self.host) if hears_unordered(machine) else self.host
        """What the broker brings goes there."""
        self._asked: dict[Address, None] = {}  # homes, in this turn
        # A stream's machine has no outcomes and a publisher's no notices: no detour for either.
        self.deliver: Callable[[Any], None] = session.make_outcome if stream is None else stream.deliver

    async def start(self) -> None:
        self._session.links.attach(self.address, self.host)
        await self.host.start()

    def send(self, to: Address, message: Any) -> None:
        to = self._session.way_to(to)
        self._session.links.send(to, message)
        if type(message) in REQUESTS:
            self._asked[to] = None

    def broadcast(self, effect: Broadcast) -> None:
        self._session.broadcast(effect)

    def join(self, topic: Topic) -> None:
        self._session.broker.join(topic, self.sink)

    def leave(self, topic: Topic) -> None:
        self._session.broker.leave(topic, self.sink)

    def refused(self, reason: str) -> None:
        logger.debug("%s refused: %s", self.address, reason)
        self._session.note(Record("refuse", self._session.now(), who=self.address, note=reason))

    def end_turn(self) -> None:
        session = self._session
        if self._asked:
            for home in self._asked:
                session.links.flush(home)
            self._asked.clear()
        if session.broker.has_items:  # written after what is asked of homes
            session.broker.guard.soon(session.broker.end_turn)
        session.flush_journal()
        if self._stream is not None:
            self._stream.end_turn()

    def failed(self, error: Exception) -> None:
        self._session.fail(error)
