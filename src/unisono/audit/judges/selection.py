"""What a filter makes of a debt: which events a subscription selects, and which notices of cut publishers excuse.

A `subscribe` record of a subscription by content has its filter in the note, a `publish` record its attributes as JSON.
A `cut` record names publishers and the last number of each that could be heard. It excuses what they published after
that, up to the first event of theirs that the subscriber was notified of afterwards: from then on they were heard
again. It also excuses publishers that the subscriber never hears: nobody could name them. Whoever is heard in the end
must have been named.
"""

from bisect import bisect_right
from functools import lru_cache
from typing import Any

import msgspec

from unisono.audit.trace import Trace
from unisono.errors import MisuseError
from unisono.model.journal import Record
from unisono.model.predicate import Filter, flatten, parse

_TOPIC = "$topic"


@lru_cache(maxsize=1000)
def filter_of(note: str | None) -> Filter | None:
    """The filter of a subscription, None if it wants everything (words that are no filter narrow nothing)."""
    if note is None:
        return None
    try:
        return parse(note)
    except MisuseError:
        return None


def selects(where: Filter | None, published: Record) -> bool:
    """Whether a subscription wants the event of a `publish` record."""
    if where is None:
        return True
    try:
        attributes: Any = msgspec.json.decode(published.note) if published.note else {}
        return where.matches({**flatten(attributes), _TOPIC: published.topic})
    except (msgspec.DecodeError, MisuseError, AttributeError):
        return True  # unreadable attributes excuse nobody


class Cuts:
    """Every `cut` of a trace, and what the subscribers heard of the publishers before and after."""

    def __init__(self, trace: Trace) -> None:
        self._cuts: dict[str, list[tuple[int, dict[str, int]]]] = {}
        self._heard: dict[tuple[str, str], list[tuple[int, int]]] = {}  # (subscriber, publisher) -> (row, number)
        told = {record.subscriber for record in trace.records if record.kind == "cut"}
        for row, record in enumerate(trace.records):
            if record.subscriber is None or record.subscriber not in told:
                continue
            if record.kind == "cut":
                self._cuts.setdefault(record.subscriber, []).append((row, record.clock or {}))
            elif record.kind in ("deliver", "tag"):
                publisher, number = trace.authors.get(record.event or "", (record.publisher, record.publisher_seq))
                if publisher is not None:
                    self._heard.setdefault((record.subscriber, publisher), []).append((row, number or 0))

    def excuse(self, subscriber: str, published: Record) -> bool:
        """Whether some notice covers that the subscriber was never notified of this event."""
        publisher, number = published.publisher or "", published.publisher_seq or 0
        heard = self._heard.get((subscriber, publisher), [])
        for row, last in self._cuts.get(subscriber, []):
            behind = bisect_right(heard, (row, number))
            if publisher in last:
                if last[publisher] < number and (behind == len(heard) or number < heard[behind][1]):
                    return True
            elif not heard:
                return True
        return False
