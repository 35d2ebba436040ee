"""What stampers and clients of the clock order merge within one turn, and in which order it leaves (`unisono.turns`).

At a stamper what subscribers wait for leaves first: the stamps of a turn, those of a lane as one message. At a client
what is asked of the stamper leaves before the payloads, as one request.
"""

from typing import Any

from msgspec.structs import replace

from unisono.machine import Broadcast, Deliver, Effect, Fired, Send
from unisono.protocols.clock.messages import Create, Granted, LaneName, LaneStamps, OpenLane, Stamped
from unisono.structures.sessions import Frame, PeerReborn

BEAT = Fired("beat")
MERGED_MAX = 200
"""Entries in one message; about 10 kB."""


class StamperArrangement:
    """The turns of a stamper. A turn that may stamp ends with a beat, which is durable with it: what waits for the
    promise need not wait for the next turn, and its commit."""

    def gather(self, inputs: list[Any]) -> list[Any]:
        return [*inputs, BEAT] if any(map(_may_stamp, inputs)) else inputs

    def arrange(self, effects: list[Effect]) -> list[Effect]:
        """What stays in the node, then broadcasts, merged, each lane's in order, then letters."""
        others: list[Effect] = []
        broadcasts: list[Effect] = []
        letters: list[Effect] = []
        waiting: dict[LaneName, LaneStamps] = {}
        for effect in effects:
            if type(effect) is Send:
                letters.append(effect)
            elif type(effect) is Broadcast and type(effect.message) is LaneStamps:
                stamps = effect.message
                before = waiting.get(stamps.lane)
                if before is not None and _follows(before, stamps):
                    waiting[stamps.lane] = replace(before, entries=before.entries + stamps.entries)
                else:
                    if before is not None:
                        broadcasts.append(_broadcast(before))
                    waiting[stamps.lane] = stamps
            else:
                (broadcasts if type(effect) is Broadcast else others).append(effect)
        return others + broadcasts + [_broadcast(stamps) for stamps in waiting.values()] + letters


def _may_stamp(message: Any) -> bool:
    return type(message) is Create or (type(message) is Frame and isinstance(message.message, Granted | OpenLane))


def _follows(before: LaneStamps, stamps: LaneStamps) -> bool:
    end = before.first + sum(entry.count if type(entry) is Stamped else 1 for entry in before.entries)
    return stamps.first == end and len(before.entries) < MERGED_MAX


def _broadcast(stamps: LaneStamps) -> Broadcast:
    return Broadcast(stamps.lane.topic, stamps, control=True)


class ClockClientArrangement:
    """The turns of whoever publishes."""

    def gather(self, inputs: list[Any]) -> list[Any]:
        return inputs

    def arrange(self, effects: list[Effect]) -> list[Effect]:
        """What is neither a request nor a payload as it stands, then the requests, then the payloads.

        What was asked before the machine knew that a stamper is reborn leaves before we say that we know.
        """
        others: list[Effect] = []
        broadcasts: list[Effect] = []
        request: Send | None = None
        for effect in effects:
            if type(effect) is Broadcast:
                broadcasts.append(effect)
            elif type(effect) is Send and type(effect.message) is Create:
                if request is not None and request.to == effect.to and _continues(request.message, effect.message):
                    joined = replace(effect.message, first=request.message.first, runs=_joined(request, effect))
                    effect = Send(request.to, joined)
                elif request is not None:
                    others.append(request)
                request = effect
            else:
                if request is not None and type(effect) is Deliver and type(effect.item) is PeerReborn:
                    others.append(request)
                    request = None
                others.append(effect)
        return others + ([request] if request is not None else []) + broadcasts


def _continues(before: Create, create: Create) -> bool:
    return create.first == before.first + sum(count for _, count in before.runs)


def _joined(before: Send, after: Send) -> tuple[tuple[Any, int], ...]:
    one, two = before.message.runs, after.message.runs
    if one[-1][0] == two[0][0]:
        return (*one[:-1], (one[-1][0], one[-1][1] + two[0][1]), *two[1:])
    return (*one, *two)
