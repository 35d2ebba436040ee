"""Publishers that do not wait for each outcome: they count."""

import asyncio
from collections.abc import Iterable
from itertools import islice
from typing import Any

from unisono.machine import Accepted, Refused, Unknown
from unisono.model.arguments import ATTRIBUTES, expect
from unisono.model.event import Scalar
from unisono.model.payload import check_batch, encode_payload
from unisono.model.time import Micros
from unisono.runtime.client.publishing.publications import SessionPublications
from unisono.runtime.client.publishing.topic_window import Asker, Outcome, TopicWindow


class Publisher:
    """Publishes on one topic without waiting for each outcome.

    publisher = await session.publisher("trades")
    for trade in trades:
        await publisher.send(trade)      # waits only when the window is full
    await publisher.drain()              # publisher.accepted, .refused, .unknown, .failures
    """

    def __init__(self, publications: SessionPublications, topic_window: TopicWindow) -> None:
        self.accepted = self.refused = self.unknown = 0
        self.failures: list[Refused | Unknown] = []
        """What was not accepted, at most the last 1000."""
        self._publications, self._topic_window = publications, topic_window
        self._asker: Asker = (topic_window, self)
        self._open = 0
        self._drainers: list[asyncio.Future[None]] = []

    @property
    def topic(self) -> str:
        return self._topic_window.name

    async def send(
        self, data: Any, attributes: dict[str, Scalar] | None = None, *, deadline: str | None = None
    ) -> None:
        """`deadline="300ms"`: how long after now the event is of use."""
        deadline_us = self._publications.check_deadline(deadline) if deadline is not None else Micros(0)
        if attributes is not None:
            expect("attributes", attributes, dict, ATTRIBUTES)
        asker = self._asker
        topic_window = asker[0]
        if topic_window.grid is not None:
            topic_window, data = self._publications.cell(topic_window, data, attributes)
            asker = (topic_window, self)
        if not self._publications.has_room(topic_window):
            await self._publications.room(topic_window)
        self._put(asker, data, attributes, deadline_us)

    def try_send(self, data: Any, attributes: dict[str, Scalar] | None = None) -> bool:
        """Sends if there is room in the window; False if there is none, and then nothing was sent."""
        if attributes is not None:
            expect("attributes", attributes, dict, ATTRIBUTES)
        topic_window, data = self._publications.cell(self._topic_window, data, attributes)
        if not self._publications.has_room(topic_window):
            self._publications.check_alive()
            return False
        self._put(self._asker if topic_window is self._topic_window else (topic_window, self), data, attributes)
        return True

    def _put(
        self, asker: Asker, data: Any, attributes: dict[str, Scalar] | None, deadline_us: Micros = Micros(0)
    ) -> None:
        self._open += 1
        tracing = self._publications.tracing
        try:
            if tracing is None:
                self._publications.put(asker, data, attributes, deadline_us)
            else:
                with tracing.publishing(self.topic):  # until it is on its way: outcomes are counted
                    self._publications.put(asker, data, attributes, deadline_us)
        except Exception:  # it cannot be published: nothing was sent, so nothing has to be waited for
            self._open -= 1
            raise

    async def send_all(self, batch: Iterable[Any]) -> None:
        """Sends many, at less than the cost of each on its own; `batch` is read as far as there is room."""
        check_batch(batch)
        publications, topic_window, rest = self._publications, self._topic_window, iter(batch)
        while publications.is_plain(topic_window):
            if not publications.has_room(topic_window):
                await publications.room(topic_window)
                continue
            payloads: list[bytes] = []
            size, size_max, payload_max = 0, publications.bytes_left(topic_window), publications.payload_bytes_max()
            try:
                for each in islice(rest, publications.window - topic_window.in_flight):
                    payload = encode_payload(each, payload_max)
                    payloads.append(payload)
                    size += len(payload)
                    if size >= size_max:
                        break
            finally:  # what comes before one that cannot be published is sent
                if payloads:
                    self._open += len(payloads)
                    publications.put_all(self._asker, payloads)
            if not payloads:
                return
        for each in rest:
            await self.send(each)

    def advertise(self, where: str) -> None:
        """Says anew what this publisher will publish, to the brokers of an overlay; the narrower, the less they wait.

        What lies outside is published all the same, as soon as every broker knows that it may come.
        """
        self._publications.advertise(self._topic_window, where)

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
        self.refused += isinstance(outcome, Refused)
        self.unknown += isinstance(outcome, Unknown)
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
