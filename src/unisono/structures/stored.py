"""Publications over a broker that keeps what it confirms: `stored` is what has its number and is kept, no sooner.

`StoredPublications` stands around the machine of a publishing client; over a broker that keeps nothing the machine
stands alone, and a number is all that can be had. The broker confirms payloads in the order in
which they left; what it rejects it counts in that order too, and does not keep. So what is confirmed is found by
counting what left, not by what was asked to be published: what the machine refuses never leaves, and what it publishes
once more counts once more.

Numbers are asked for when all payloads that left before are kept: a publisher that is killed between both would leave
a number for which there is nothing, and whoever may miss nothing would stop there for ever.

Every publication has one outcome. What has its number and is not confirmed for `patience_us` is Unknown; a rejection
that comes later still withdraws the number, so that nobody waits for the payload.
"""

from collections import deque
from itertools import islice
from typing import Any

from msgspec.structs import replace

from unisono.machine import (
    Accepted,
    Broadcast,
    Deliver,
    Effect,
    Fired,
    Machine,
    NotTaken,
    Publish,
    Refused,
    Send,
    SetTimer,
    Unknown,
)
from unisono.model.event import Event, Payload, Payloads
from unisono.model.ids import Topic
from unisono.model.time import Micros
from unisono.structures.sessions import BroadcastsDone

WATCH = "confirm"
REQUESTS_MAX = 1000
"""When so many requests wait for the broker, those that are made again are not kept twice."""
STORED = "stored"

_WAITS, _NUMBERED, _TOLD = range(3)
"""Of a payload that has left and is not confirmed: it has no number yet; it has one; its outcome was told."""


class StoredPublications:
    """A publishing client whose events are accepted when they are numbered and kept, whichever comes last."""

    def __init__(self, inside: Machine, patience_us: Micros, requests: frozenset[type]) -> None:
        """`patience_us`: how long the broker may take to confirm what has its number. `requests`: what asks for one."""
        self.inside, self._asks = inside, requests
        self._patience_us = patience_us
        self._open: dict[int, int] = {}  # in the order in which they left
        self._rows: dict[Topic, deque[tuple[int, range]]] = {}  # of the same: first request, names of outcomes
        self._rejected: dict[int, None] = {}  # of the open ones those that the broker has said that it does not keep
        self._last = 0  # that has left
        self._left = self._done = 0  # payloads that have left, and those of which the broker has said what it does
        self._requests: deque[tuple[int, Send]] = deque()  # what is asked when so many are done
        self._again = 0  # payloads that have left a second time have names below zero
        self._watched = 0  # the last that had left when we last looked
        self._watches = False

    def handle(self, message: Any, now: Micros) -> list[Effect]:
        match message:
            case BroadcastsDone(count=count):
                return self._confirmed(count)
            case Fired(key=key) if key == WATCH:
                return self._look(now)
            case NotTaken(topic=topic, request=request):
                name = self._reject(topic, request)
                inner = self.inside.handle(replace(message, outcome=name), now) if name else []
            case _:
                inner = self.inside.handle(message, now)
        self._note_sent(_names(message, inner), inner)
        return self._pass_on(inner, now)

    def _note_sent(self, names: list[int], inner: list[Effect]) -> None:
        """What has left, in that order, under the names of its outcomes; what has none left before, and has left
        again."""
        for effect in inner:
            if not isinstance(effect, Broadcast) or not isinstance(left := effect.message, Payload | Payloads):
                continue
            length = len(left.events) if isinstance(left, Payloads) else 1
            self._left += length
            sent, names = names[:length], names[length:]
            if not sent:
                self._open.update(dict.fromkeys(range(self._again - length, self._again), _TOLD))
                self._again -= length
                continue
            self._open.update(dict.fromkeys(sent, _WAITS))
            self._last = sent[-1]
            rows = self._rows.setdefault(effect.topic, deque())
            while rows and rows[0][1][-1] not in self._open:
                rows.popleft()
            rows.append((left.request, range(sent[0], sent[-1] + 1)))

    def _reject(self, topic: Topic, request: int) -> int:
        """The broker has not taken this payload: whatever else is said of it, it is not kept. Returns the name of its
        outcome, once; 0 if nobody waits for it."""
        for first, names in self._rows.get(topic, ()):
            if first <= request < first + len(names):
                name = names[request - first]
                if name in self._open and name not in self._rejected:
                    self._rejected[name] = None
                    return name
        return 0

    def _confirmed(self, count: int) -> list[Effect]:
        """The broker has taken the oldest `count` payloads, but for those it has rejected."""
        out: list[Effect] = []
        self._done += count
        while self._requests and self._requests[0][0] <= self._done:
            out.append(self._requests.popleft()[1])
        for name in list(islice(self._open, count)):
            is_numbered = self._open.pop(name) == _NUMBERED
            if name in self._rejected:
                del self._rejected[name]
            elif is_numbered:
                _accept(name, out)
        return out

    def _pass_on(self, inner: list[Effect], now: Micros) -> list[Effect]:
        out: list[Effect] = []
        for effect in inner:
            match effect:
                case Deliver(item=Accepted(request=first, count=count)):
                    self._numbered(first, count, now, out)
                case Send(message=message) if type(message) in self._asks and self._done < self._left:
                    is_full = len(self._requests) >= REQUESTS_MAX
                    if not is_full or all(effect != request for _, request in self._requests):
                        self._requests.append((self._left, effect))
                case Deliver(item=Refused(request=name) | Unknown(request=name)) if name in self._open:
                    if self._open[name] != _TOLD:
                        self._open[name] = _TOLD
                        out.append(effect)
                case _:
                    out.append(effect)
        return out

    def _numbered(self, first: int, count: int, now: Micros, out: list[Effect]) -> None:
        """These have their numbers; are they kept?"""
        for name in range(first, first + count):
            state = self._open.get(name)
            if state is None:
                _accept(name, out)
            elif state == _WAITS and name not in self._rejected:
                self._open[name] = _NUMBERED
                self._watch(now, out)

    def _watch(self, now: Micros, out: list[Effect]) -> None:
        if not self._watches:
            self._watches, self._watched = True, self._last
            out.append(SetTimer(WATCH, Micros(now + self._patience_us)))

    def _look(self, now: Micros) -> list[Effect]:
        """What has a number, and had left when we last looked, and still waits for the broker is unknown."""
        out: list[Effect] = []
        self._watches = False
        for name, state in self._open.items():
            if state == _NUMBERED and name <= self._watched and name not in self._rejected:
                self._open[name] = _TOLD
                out.append(
                    Deliver(Unknown(name, "it has its number, but the broker has not confirmed that it keeps it"))
                )
        if _NUMBERED in self._open.values():
            self._watch(now, out)
        return out


def _names(message: Any, inner: list[Effect]) -> list[int]:
    """Of the outcomes of what is published, but for what the machine refuses at once."""
    if not isinstance(message, Publish):
        return []
    refused = {e.item.request: None for e in inner if isinstance(e, Deliver) and isinstance(e.item, Refused)}
    count = 1 if isinstance(message.message, Event) else len(message.message)
    return [name for name in range(message.request, message.request + count) if name not in refused]


def _accept(name: int, out: list[Effect]) -> None:
    """Those in a row are told as one."""
    last = out[-1] if out else None
    if isinstance(last, Deliver) and isinstance(row := last.item, Accepted) and row.request + row.count == name:
        out[-1] = Deliver(Accepted(row.request, STORED, row.count + 1))
    else:
        out.append(Deliver(Accepted(name, STORED)))
