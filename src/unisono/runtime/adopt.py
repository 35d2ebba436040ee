"""Adoption: events of publishers that do not use unisono get a number, because their home publishes them again.

The home of a topic with `foreign = "adopt"` listens to it and publishes every foreign event under its own name;
subscribers leave the original aside. What is published while the home is away is not adopted.
"""

from pathlib import Path

from unisono.model.deployment import Deployment
from unisono.runtime.ens.adapter import Item
from unisono.runtime.links import Links
from unisono.runtime.publisher import Publisher
from unisono.runtime.sequenced import SequencedSession
from unisono.runtime.session import SessionConfig


class Adopter:
    """A client inside a node that publishes again what strangers say."""

    def __init__(self, deployment: Deployment, base: Path, token: str, links: Links, topics: tuple[str, ...]) -> None:
        self.adopted = 0
        self._session = SequencedSession(deployment, base, token, SessionConfig(), links)
        self._session.on_foreign = self._adopt
        self._topics = topics
        self._publishers: dict[str, Publisher] = {}

    async def start(self) -> None:
        await self._session.open()
        for topic in self._topics:
            self._publishers[topic] = await self._session.publisher(topic)
            await self._session.ground.ens.subscribe(topic)

    async def stop(self) -> None:
        await self._session.close()

    def _adopt(self, item: Item) -> None:
        publisher = self._publishers.get(item.topic)
        if publisher is not None and publisher.try_send(item.payload):
            self.adopted += 1
