"""The requests that wait at a busy node become one input: what they ask for on one topic costs one timestamp.

They come from different publishers, so nobody can tell in which order they were handled. A node that sees large turns
again and again has the kernel compiled that makes their timestamps; one that does not never pays for it.
"""

from typing import Any

from unisono.protocols.sequencer.messages import Creates, Turn
from unisono.protocols.sequencer.node import TopicManager
from unisono.protocols.sequencer.numbering import BULK_TOPICS_MIN

LARGE_TURNS = 200
"""So many large turns make a busy node; loading the compiler costs about as much as several thousand of them."""


class Turns:
    """What a node's host does with the inputs of a turn before it handles them."""

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
        gathered: list[Any] = []
        turn: Turn | None = None
        for message in inputs:
            if type(message) is not Creates:
                gathered.append(message)
            elif turn is None:
                turn = Turn(tuple(creates))
                gathered.append(turn)
        return gathered

    def _watch(self, creates: list[Creates]) -> None:
        items = [item.topic for message in creates for item in message.items]
        if len(items) < BULK_TOPICS_MIN or len(set(items)) < BULK_TOPICS_MIN:
            return
        self._large += 1
        if self._large < LARGE_TURNS:
            return
        try:
            from unisono.protocols.sequencer.changes import KERNEL
        except ImportError:
            self._settled = True
            return
        if self._large == LARGE_TURNS:
            KERNEL.warm_up()
        self._settled = self._manager.quicken()
