"""Adoption: events of publishers that do not use unisono get a number, because their home publishes them again.

The home of a topic with `foreign = "adopt"` listens to it and publishes every foreign event under its own name on the
channel of what is adopted (`adopted_channel`), where subscribers of ours listen as well: plain consumers of the topic
hear it once. What is published while the home is away is not adopted.
"""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct

from unisono.errors import MisuseError, TransportError
from unisono.model.deployment import Deployment
from unisono.runtime.brokers.contract import Item
from unisono.runtime.brokers.guard import Guard
from unisono.runtime.client.sequenced import SequencedSession
from unisono.runtime.client.session import SessionConfig
from unisono.runtime.links.links import Links

logger = logging.getLogger(__name__)

WAITING_MAX = 10_000
"""Events to be adopted; beyond it nothing is read from the broker until half of them are."""


class AdoptionCounters(Struct):
    """What has become of the events of strangers."""

    adopted: int = 0
    refused: int = 0


class Adopter:
    """A client inside a node that publishes again what strangers say."""

    def __init__(
        self,
        deployment: Deployment,
        base: Path,
        token: str,
        links: Links,
        topics: tuple[str, ...],
        failed: Callable[[Exception], None],
        region: str,
    ) -> None:
        """`failed` is told what ends the adoption for good; `region` is that of the node."""
        self.counters = AdoptionCounters()
        self._session = SequencedSession(deployment, base, token, SessionConfig(region=region), links)
        self._session.on_foreign = self._hear
        self._session.broker.adopts = True
        self._session.forget_moments()
        self._topics, self._failed = topics, failed
        self._waiting: asyncio.Queue[Item] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self._session.open()
        self._task = Guard(self._failed).spawn(self._keep_adopting(), "adoption")
        for topic in self._topics:
            await self._session.broker.ens.subscribe(topic)

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
        await self._session.close()

    def _hear(self, item: Item) -> None:
        if item.topic in self._topics:
            self._waiting.put_nowait(item)
            if self._waiting.qsize() >= WAITING_MAX:
                self._session.broker.pause(self)

    async def _keep_adopting(self) -> None:
        try:
            await self._adopt()
        except TransportError as error:
            self._failed(error)

    async def _adopt(self) -> None:
        """One task publishes all, in the order in which they came."""
        publishers = {topic: await self._session.publisher(topic) for topic in self._topics}
        while True:
            item = await self._waiting.get()
            self._session.check_alive()
            if 2 * self._waiting.qsize() <= WAITING_MAX:
                self._session.broker.resume(self)
            try:
                await publishers[item.topic].send(item.payload)
                self.counters.adopted += 1
            except MisuseError as error:  # the broker has carried it, but not with what we have to write beside it
                self.counters.refused += 1
                logger.warning("an event of %s is not adopted: %s", item.topic, error)
