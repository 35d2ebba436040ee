"""Where one machine of a session meets the world: its host, the links, the broker, and the stream that hears it."""

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from unisono.machine import Broadcast, Machine
from unisono.model.ids import Address, Topic
from unisono.model.journal import Record
from unisono.protocols.sequencer.messages import Creates, Wanted
from unisono.protocols.sequencer.topic import as_runs
from unisono.runtime.host import Host
from unisono.runtime.links import Sink
from unisono.runtime.stream import Stream
from unisono.runtime.unordered import Unordered, hears_unordered

if TYPE_CHECKING:
    from unisono.runtime.sequenced import SequencedSession

logger = logging.getLogger(__name__)


class Port:
    """The outside of one machine of a session, and its host."""

    def __init__(self, session: "SequencedSession", address: str, machine: Machine, stream: Stream | None) -> None:
        self.address = Address(address)
        self.host = Host(address, machine, self)
        self._session, self._stream = session, stream
        self._sink: Sink = Unordered(self.host) if hears_unordered(machine) else self.host
        self._creates: dict[Address, list[Wanted]] = {}
        self._waits = False
        # A stream's machine has no outcomes and a publisher's no notices: no detour for either.
        self.deliver: Callable[[Any], None] = session.make_outcome if stream is None else stream.deliver

    async def start(self) -> None:
        self._session.links.attach(self.address, self.host)
        await self.host.start()

    def send(self, to: Address, message: Any) -> None:
        if type(message) is not Creates:
            self._session.links.send(to, message)
            return
        # One publication, one request: those of a turn travel as one, and consecutive ones as a run.
        self._waits = message.wait
        self._creates.setdefault(to, []).extend(message.items)

    def broadcast(self, effect: Broadcast) -> None:
        self._session.broadcast(effect)

    def join(self, topic: Topic) -> None:
        self._session.ground.join(topic, self._sink)

    def leave(self, topic: Topic) -> None:
        self._session.ground.leave(topic, self._sink)

    def refused(self, reason: str) -> None:
        logger.debug("%s refused: %s", self.address, reason)
        self._session.note(Record("refuse", self._session.now(), who=self.address, note=reason))

    def end_turn(self) -> None:
        session = self._session
        if self._creates:
            creates, self._creates = self._creates, {}
            for home, items in creates.items():
                session.links.send(home, Creates(self.address, tuple(as_runs(tuple(items))), self._waits))
                session.links.flush(home)
        if session.ground.has_items:
            # What is asked of a home has the longest way before it: it leaves, then the payloads are written.
            session.ground.guard.soon(session.ground.end_turn)
        session.flush_journal()
        if self._stream is not None:
            self._stream.end_turn()

    def failed(self, error: Exception) -> None:
        self._session.fail(error)
