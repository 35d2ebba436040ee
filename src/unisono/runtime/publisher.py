"""Publishers that do not wait for each outcome: they count."""

import asyncio
from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING, Any

from unisono.machine import Accepted, Refused, Unknown
from unisono.model.event import Scalar
from unisono.runtime.lane import Asker, Lane, Outcome
from unisono.runtime.payload import encode_payload

if TYPE_CHECKING:
    from unisono.runtime.publish import Outbox


class Publisher:
    """Publishes on one topic without waiting for each outcome.

    publisher = await session.publisher("trades")
    for trade in trades:
        await publisher.send(trade)      # waits only when the window is full
    await publisher.drain()              # publisher.accepted, .failures
    """

    def __init__(self, outbox: "Outbox", lane: Lane) -> None:
        self.accepted = 0
        self.failures: list[Refused | Unknown] = []
        """What was not accepted, at most the last 1000."""
        self._outbox, self._lane = outbox, lane
        self._asker: Asker = (lane, self)
        self._open = 0
        self._drainers: list[asyncio.Future[None]] = []

    @property
    def topic(self) -> str:
        return self._lane.name

    async def send(self, data: Any, attributes: dict[str, Scalar] | None = None) -> None:
        asker = self._asker
        lane = asker[0]
        if lane.grid is not None:
            lane, data = self._outbox.cell(lane, data, attributes)
            asker = (lane, self)
        if not self._outbox.has_room(lane):
            await self._outbox.room(lane)
        self._put(asker, data, attributes)

    def try_send(self, data: Any, attributes: dict[str, Scalar] | None = None) -> bool:
        """Sends if there is room in the window; False if there is none, and then nothing was sent."""
        lane, data = self._outbox.cell(self._lane, data, attributes)
        if not self._outbox.has_room(lane):
            return False
        self._put(self._asker if lane is self._lane else (lane, self), data, attributes)
        return True

    def _put(self, asker: Asker, data: Any, attributes: dict[str, Scalar] | None) -> None:
        self._open += 1
        try:
            self._outbox.put(asker, data, attributes)
        except Exception:  # it cannot be published: nothing was sent, so nothing has to be waited for
            self._open -= 1
            raise

    async def send_all(self, batch: Iterable[Any]) -> None:
        """Sends many, at less than the cost of each on its own; `batch` is read as far as there is room."""
        outbox, lane, rest = self._outbox, self._lane, iter(batch)
        while outbox.is_plain(lane):
            if not outbox.has_room(lane):
                await outbox.room(lane)
                continue
            payloads: list[bytes] = []
            size, size_max, payload_max = 0, outbox.bytes_left(lane), outbox.payload_bytes_max()
            try:
                for each in islice(rest, outbox.window - lane.in_flight):
                    payload = encode_payload(each, payload_max)
                    payloads.append(payload)
                    size += len(payload)
                    if size >= size_max:
                        break
            finally:  # what comes before one that cannot be published is sent
                if payloads:
                    self._open += len(payloads)
                    outbox.put_all(self._asker, payloads)
            if not payloads:
                return
        for each in rest:
            await self.send(each)

    def advertise(self, where: str) -> None:
        """Says anew what this publisher will publish, to the brokers of an overlay; the narrower, the less they wait.

        What lies outside is published all the same, as soon as every broker knows that it may come.
        """
        self._outbox.advertise(self._lane, where)

    async def drain(self) -> None:
        """Returns when everything sent has its outcome; look at `failures` then."""
        if self._open:
            drainer = asyncio.get_running_loop().create_future()
            self._drainers.append(drainer)
            await drainer

    def settled(self, outcome: Outcome) -> None:
        if isinstance(outcome, Accepted):
            self.settled_all(1)
            return
        self.failures.append(outcome)
        del self.failures[:-1000]
        self._close(1)

    def settled_all(self, count: int) -> None:
        """As many as this have been accepted."""
        self.accepted += count
        self._close(count)

    def _close(self, count: int) -> None:
        self._open -= count
        if not self._open and self._drainers:
            drainers, self._drainers = self._drainers, []
            for drainer in drainers:
                if not drainer.done():
                    drainer.set_result(None)
