"""What nodes and clients merge within one turn, and in which order it leaves (`unisono.turns`).

At a node the requests that wait together become one input: what they ask for on one topic costs one timestamp. They
come from different publishers, so nobody can tell in which order they were handled. What subscribers wait for leaves
first: broadcasts, the stamps that one turn makes for a topic as one message, since subscribers pay for every control
message; then letters, since whoever published has more time.

At a client what is asked of a home leaves before the payloads: it has the longest way before it. The publications of
one turn are one request, consecutive ones a run.
"""

from typing import Any

from unisono.machine import Broadcast, Deliver, Effect, Send
from unisono.model.ids import Address, Topic
from unisono.protocols.sequencer.inputs import HomeReborn
from unisono.protocols.sequencer.messages import Creates, Piece, Pieces, Turn, Wanted
from unisono.protocols.sequencer.node import TopicManager
from unisono.protocols.sequencer.topic_manager.numbering import BULK_TOPICS_MIN
from unisono.protocols.sequencer.topic_manager.topic import as_runs

LARGE_TURNS = 200
"""So many large turns make a busy node; loading the compiler costs about as much as several thousand of them."""
PIECES_MAX = 200
"""Parts of timestamps in one message; about 10 kB."""


class NodeArrangement:
    """The turns of a topic manager. A node that sees large ones again and again has the kernel compiled that makes
    their timestamps; one that does not, or whose groups are told in short, never pays for it."""

    def __init__(self, manager: TopicManager) -> None:
        self._manager = manager
        self._large = 0
        self._settled = False  # the kernel is in use, or there is none

    def gather(self, inputs: list[Any]) -> list[Any]:
        """The inputs, with all requests in the place of the first."""
        creates = [message for message in inputs if type(message) is Creates]
        if creates and not self._settled:
            self._watch(creates)
        if len(creates) < 2:
            return inputs
        turn: Turn | None = None
        gathered: list[Any] = []
        for message in inputs:
            if type(message) is not Creates:
                gathered.append(message)
            elif turn is None:
                turn = Turn(tuple(creates))
                gathered.append(turn)
        return gathered

    def arrange(self, effects: list[Effect]) -> list[Effect]:
        """What stays in the node, then broadcasts, merged, each topic's in order, then letters."""
        others: list[Effect] = []
        broadcasts: list[Effect] = []
        letters: list[Effect] = []
        pieces: dict[Topic, list[Piece]] = {}
        for effect in effects:
            if type(effect) is Send:
                letters.append(effect)
            elif type(effect) is not Broadcast:
                others.append(effect)
            elif type(effect.message) is Pieces:
                waiting = pieces.setdefault(effect.topic, [])
                waiting += effect.message.pieces
                if len(waiting) >= PIECES_MAX:
                    broadcasts.append(_joined(effect.topic, pieces.pop(effect.topic)))
            else:
                if effect.topic in pieces:
                    broadcasts.append(_joined(effect.topic, pieces.pop(effect.topic)))
                broadcasts.append(effect)
        broadcasts += [_joined(topic, waiting) for topic, waiting in pieces.items()]
        return others + broadcasts + letters

    def _watch(self, creates: list[Creates]) -> None:
        items = [item.topic for message in creates for item in message.items]
        if len(items) < BULK_TOPICS_MIN or len(set(items)) < BULK_TOPICS_MIN or self._manager.tells_in_short:
            return
        self._large += 1
        if self._large < LARGE_TURNS:
            return
        try:
            from unisono.protocols.sequencer.topic_manager.changes import KERNEL
        except ImportError:
            self._settled = True
            return
        if self._large == LARGE_TURNS:
            KERNEL.warm_up()
        self._settled = self._manager.use_compiled_kernel()


def _joined(topic: Topic, pieces: list[Piece]) -> Broadcast:
    return Broadcast(topic, Pieces(topic, tuple(pieces)), True)


class ClientArrangement:
    """The turns of whoever publishes."""

    def gather(self, inputs: list[Any]) -> list[Any]:
        return inputs

    def arrange(self, effects: list[Effect]) -> list[Effect]:
        """What is neither a request nor a payload as it stands, then the requests, then the payloads.

        What was asked before the machine knew that a home is reborn leaves before we say that we know: handled after
        that, it could be numbered a second time.
        """
        others: list[Effect] = []
        broadcasts: list[Effect] = []
        asked: dict[Address, list[Wanted]] = {}
        request: Creates | None = None
        for effect in effects:
            if type(effect) is Broadcast:
                broadcasts.append(effect)
            elif type(effect) is Send and type(effect.message) is Creates and not effect.message.in_line:
                request = effect.message
                asked.setdefault(effect.to, []).extend(request.items)
            else:
                if request is not None and type(effect) is Deliver and type(effect.item) is HomeReborn:
                    others += _requests(request, asked)
                    asked, request = {}, None
                others.append(effect)
        if request is not None:
            others += _requests(request, asked)
        return others + broadcasts


def _requests(like: Creates, asked: dict[Address, list[Wanted]]) -> list[Effect]:
    return [
        Send(home, Creates(like.publisher, tuple(as_runs(tuple(items))), like.wait)) for home, items in asked.items()
    ]
