"""Brokers that keep what they confirm: an event is accepted when it has its number and the broker has said that it
keeps the payload, whichever comes last.

A broker confirms payloads in the order in which they left, which is that of publication; what is refused never leaves,
and that is known before anything later leaves. What the broker rejects is counted in that order too, and is not kept.
"""

import asyncio
from collections import deque
from collections.abc import Callable

from unisono.machine import Accepted, Unknown


class Confirmations:
    """Requests whose payloads the broker has not confirmed yet. `settle` is told what has become of them."""

    def __init__(self, patience_s: float, settle: Callable[[Accepted | Unknown], None]) -> None:
        """`patience_s`: how long the broker may take to confirm what has its number."""
        self._patience_s, self._settle = patience_s, settle
        self._open: dict[int, bool] = {}  # in order of publication: whether it has its number
        self._rows: dict[str, deque[tuple[int, range]]] = {}  # the same, by publisher: first sequence, requests
        self._rejected: dict[int, None] = {}  # by the broker; their outcome is still to come
        self._last = 0
        self._watch: asyncio.TimerHandle | None = None

    def add(self, requests: range, publisher: str, sequence: int) -> None:
        """Published, in a row; `sequence` is that of the first."""
        self._open.update(dict.fromkeys(requests, False))
        rows, oldest = self._rows.setdefault(publisher, deque()), next(iter(self._open))
        while rows and rows[0][1][-1] < oldest:
            rows.popleft()
        rows.append((sequence, requests))
        self._last = requests[-1]

    def refused(self, request: int) -> None:
        """It has its outcome: it will not leave, or the broker has rejected it."""
        if self._rejected.pop(request, 0) == 0:
            self._open.pop(request, None)

    def rejected(self, publisher: str, sequence: int) -> int:
        """The broker has not taken this payload: from now on the event is not accepted, whatever else is said of it.

        Returns its request, or 0 if nothing is waited for.
        """
        for first, requests in self._rows.get(publisher, ()):
            if first <= sequence < first + len(requests):
                request = requests[sequence - first]
                if request in self._open and request not in self._rejected:
                    self._rejected[request], self._open[request] = None, False
                    return request
        return 0

    def confirmed(self, count: int) -> None:
        """The broker has taken the oldest `count` payloads, but for those it has rejected."""
        for _ in range(count):
            request = next(iter(self._open))
            if self._open.pop(request):
                self._settle(Accepted(request, "stored"))

    def numbered(self, request: int) -> None:
        """It has its number; does the broker keep it?"""
        if request in self._rejected:
            return
        if request not in self._open:
            self._settle(Accepted(request, "stored"))
            return
        self._open[request] = True
        if self._watch is None:
            self._look(0)

    def _look(self, overdue: int) -> None:
        """What has a number and was there when we last looked, and still waits for the broker, is unknown."""
        for request in [request for request, is_numbered in self._open.items() if is_numbered and request <= overdue]:
            self._open[request] = False
            self._settle(Unknown(request, "it has its number, but the broker has not confirmed that it keeps it"))
        self._watch = None
        if any(self._open.values()):
            self._watch = asyncio.get_running_loop().call_later(self._patience_s, self._look, self._last)

    def stop(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
