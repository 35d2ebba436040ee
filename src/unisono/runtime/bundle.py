"""A node's broadcasts on their way to the broker: the stamps that one turn makes for a topic travel as one message.

Subscribers pay for every control message, so under load this is worth several of them per commit. A broadcast may then
share an item with later ones or leave after them; so the machine is told of a turn's broadcasts together, when the last
item of that turn has been confirmed. After a crash more is broadcast again than strictly needed, never less.
"""

from collections import deque
from collections.abc import Callable
from typing import Any

from unisono.machine import Broadcast
from unisono.model.ids import Topic
from unisono.protocols.sequencer.messages import Piece, Pieces

PIECES_MAX = 200
"""Parts of timestamps in one message; about 10 kB."""


class Bundle:
    """`publish` puts an item on a channel; `done` is told how many of the oldest broadcasts are confirmed."""

    def __init__(self, publish: Callable[[Topic, Any, bool], None], done: Callable[[int], None]) -> None:
        self._publish, self._done = publish, done
        self._pieces: dict[Topic, list[Piece]] = {}
        self._made = 0
        self._items = 0
        self._owed: deque[int] = deque()  # per open item: how many broadcasts are done when it is confirmed

    def add(self, effect: Broadcast) -> None:
        self._made += 1
        if type(effect.message) is Pieces:
            waiting = self._pieces.setdefault(effect.topic, [])
            waiting += effect.message.pieces
            if len(waiting) >= PIECES_MAX:
                self._send_pieces(effect.topic)
            return
        self._send_pieces(effect.topic)
        self._send(effect.topic, effect.message, effect.control)

    def end_turn(self) -> None:
        for topic in list(self._pieces):
            self._send_pieces(topic)
        if self._made:
            self._owed += [0] * (self._items - 1) + [self._made]
            self._made = self._items = 0

    def confirmed(self, count: int) -> None:
        """The broker has taken the oldest `count` items."""
        done = sum([self._owed.popleft() for _ in range(count)])
        if done:
            self._done(done)

    def _send_pieces(self, topic: Topic) -> None:
        pieces = self._pieces.pop(topic, None)
        if pieces:
            self._send(topic, Pieces(topic, tuple(pieces)), True)

    def _send(self, topic: Topic, message: Any, control: bool) -> None:
        self._items += 1
        self._publish(topic, message, control)
