"""An application over a named publisher: it keeps what it has to say, and says it again after a crash or a doubt.

As a task of a pipeline does: it hands over a batch, waits for all outcomes, and hands over the next. What has no
certain outcome is said again, in its place and with some that were accepted before it, by this life or the next.
"""

from typing import Any

from msgspec import Struct

from unisono.machine import Accepted, Publish, Refused, Unknown
from unisono.model.event import Event
from unisono.model.ids import Topic
from unisono.protocols.sequencer.named import PublishInLine
from unisono.sim.host import SimulatedHost

OVERLAP = 3
"""Events that were accepted before, and are said again with those that were not."""
AGAIN_US = 200_000


class _Entry(Struct):
    topic: Topic
    event: Event
    outcome: str = ""


class NamedFeed:
    """What one host has to say, in order. It survives the host's crashes."""

    def __init__(self, host: SimulatedHost) -> None:
        self._host = host
        self._entries: list[_Entry] = []
        self._open: dict[int, _Entry] = {}  # handed over in this life, by sequence number
        host.feed, host.on_deliver, host.keeps_name = self.say, self._settle, True

    def say(self, topic: Topic, event: Event) -> None:
        self._entries.append(_Entry(topic, event))
        self._hand_over()

    def begin_life(self) -> None:
        """The host is up again; nobody knows what became of what it had under way."""
        self._open.clear()
        self._host.world.after(AGAIN_US, self._hand_over)

    def _hand_over(self) -> None:
        uncertain = [i for i, entry in enumerate(self._entries) if entry.outcome in ("", "unknown")]
        if self._open or not uncertain or not self._host.is_up:
            return
        batch = [entry for entry in self._entries[max(0, uncertain[0] - OVERLAP) :] if entry.outcome != "refused"]
        self._open = {entry.event.sequence: entry for entry in batch}
        publications = [Publish(entry.topic, entry.event, request=entry.event.sequence) for entry in batch]
        self._host.tell(PublishInLine(tuple(publications)))

    def _settle(self, item: Any) -> None:
        if not isinstance(item, Accepted | Refused | Unknown):
            return
        entry = self._open.pop(item.request)
        if entry.outcome != "accepted":
            entry.outcome = type(item).__name__.lower()
        if not self._open:
            self._host.world.after(AGAIN_US if isinstance(item, Unknown) else 0, self._hand_over)
