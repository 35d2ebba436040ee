"""Where one machine of a session meets the world: its host, the links, the broker, and the stream that hears it."""

import logging
from collections.abc import Callable
from typing import Any, Protocol

from unisono.machine import Broadcast, Heard, Machine
from unisono.model.event import Payloads
from unisono.model.ids import Address, Topic
from unisono.model.journal import Record
from unisono.model.time import Micros
from unisono.protocols.content.selector import Selector
from unisono.protocols.fifo.machine import FifoMachine, Numbered
from unisono.runtime.brokers.connection import BrokerConnection
from unisono.runtime.client.ordering import REQUESTS
from unisono.runtime.driver.host import Host
from unisono.runtime.links.links import LetterReceiver, Links, is_named
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


def _hears_unordered(machine: Machine) -> bool:
    return isinstance(machine.inside if isinstance(machine, Selector) else machine, FifoMachine)


class Unordered:
    """What a FIFO machine hears of a topic that sequencers order: the events, and none of the stamps.

    Events of one publisher are in line per topic. What precedes the first one heard is not ours to wait for: it was
    published before we joined, or it would have been handed over first.
    """

    def __init__(self, host: Host) -> None:
        self._host = host
        self._publishers: dict[str, None] = {}

    def post(self, message: Any) -> None:
        if not isinstance(message, Heard):
            self._host.post(message)
        elif isinstance(message.message, Payloads):
            for number, event in enumerate(message.message.events, message.message.request):
                publisher = event.publisher
                # A named publisher skips numbers, so nothing is known of what precedes.
                is_dense = publisher in self._publishers and number > 1 and not is_named(publisher)
                before = {message.topic: number - 1} if is_dense else {}
                self._publishers[publisher] = None
                self._host.post(Heard(message.topic, Numbered(Address(publisher), number, before, event)))

    @property
    def is_full(self) -> bool:
        return self._host.is_full

    def when_roomy(self, callback: Callable[[], None]) -> None:
        self._host.when_roomy(callback)


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
        self.sink: LetterReceiver = Unordered(self.host) if _hears_unordered(machine) else self.host
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
