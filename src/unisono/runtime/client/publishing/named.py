"""A publisher with a name for ever: it says itself which number its events have, so saying one again changes nothing.

    async with named_publisher("unisono://127.0.0.1:7474", "alerts") as publisher:
        await publisher.publish([NamedEvent("blacklist", 17, b"…"), NamedEvent("blacklist", 23, b"…")])

What is published, when and how often is decided by `protocols.sequencer.named`. Here names become numbers, and a list
of rows becomes publications whose outcomes are waited for. Nodes never forget a name, and refuse a second connection
under it while the first lives.
"""

import asyncio
import logging
import re
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from msgspec import Struct

from unisono.errors import MisuseError, PlanError, TransportError
from unisono.machine import Accepted, Broadcast, NotTaken, Publish, Refused, Unknown
from unisono.model.content import check_attributes
from unisono.model.deployment import Deployment
from unisono.model.event import Event, Scalar
from unisono.model.homes import birthplace, home_of, sequencers
from unisono.model.ids import Address, Topic
from unisono.model.payload import encode_payload
from unisono.model.time import SECOND, Micros
from unisono.protocols.naming import messages as naming
from unisono.protocols.sequencer.inputs import HomeReborn
from unisono.protocols.sequencer.lives import Height
from unisono.protocols.sequencer.named import REPEATED, NamedConfig, NamedPublications, PublishInLine
from unisono.runtime.brokers.connection import BrokerConnection
from unisono.runtime.brokers.contract import EnsNotice, Item, ItemRejected
from unisono.runtime.brokers.deployed import make_ens, open_patiently, publishers_space
from unisono.runtime.brokers.sequencer_codec import check_room_beside, publisher_on
from unisono.runtime.client.client_region import ClientRegion
from unisono.runtime.client.finding import find_deployment
from unisono.runtime.driver.clock import Clock
from unisono.runtime.driver.host import Host
from unisono.runtime.driver.shown_heights import ShownHeights
from unisono.runtime.links import control
from unisono.runtime.links.dialing import dial_node
from unisono.runtime.links.frames import Codec, Hello, nodes_only
from unisono.runtime.links.greeting import hello_of
from unisono.runtime.links.links import Links
from unisono.runtime.links.security import Tokens, client_context, token_of

logger = logging.getLogger(__name__)

ASK_AGAIN_S = 0.25


class NamedEvent(Struct, frozen=True):
    """One event to publish; `request` ascends per topic, from 1, with any gaps."""

    topic: str
    request: int
    payload: bytes
    attributes: dict[str, Scalar] = {}


@asynccontextmanager
async def named_publisher(
    where: str | Path | Deployment,
    name: str,
    *,
    token: str | None = None,
    authority: str | Path | None = None,
    region: str | None = None,
    timeout: float = 30.0,
) -> AsyncGenerator["NamedPublisher", None]:
    """Connects under a name; see the module."""
    deployment, base = await find_deployment(where, token or "", timeout, authority)
    secret = token if token is not None else token_of(deployment.security, base)
    publisher = NamedPublisher(deployment, base, secret, name, timeout, region)
    await publisher.open()
    try:
        yield publisher
    finally:
        await publisher.close()


class NamedPublisher:
    """A connected publisher; `timeout` bounds every wait for nodes and broker."""

    def __init__(
        self, deployment: Deployment, base: Path, token: str, name: str, timeout: float, region: str | None = None
    ) -> None:
        if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name):
            raise MisuseError(f"{name!r} is no name for a publisher: up to 64 letters, digits, - and _")
        if deployment.sequencing.by == "clock":
            raise PlanError('publishers with a name need sequencing.by = "tree": a stamper forgets who has left')
        self.address = Address(f"@{name}")
        self._deployment, self._base, self._token, self._timeout = deployment, base, token, timeout
        self._topics: dict[str, Topic] = {}
        self._names: dict[Topic, str] = {}
        self._answers: dict[int, naming.TopicsAnswer] = {}
        self._clock = Clock()
        self._asked = self._handed_over = 0
        self._open: dict[int, NamedEvent] = {}  # by the name of its outcome
        self._outcomes: list[tuple[NamedEvent, Accepted | Refused | Unknown]] = []
        self._failure: Exception | None = None
        self._news = asyncio.Event()
        self._heights = ShownHeights()
        # Only a complete timestamp of one home is sure to precede what another home numbers afterwards.
        waits = len(sequencers(deployment)) > 1
        config = NamedConfig(deployment.sequencing.order == "causal", patience_us=Micros(round(timeout * SECOND)))
        self._machine = NamedPublications(self.address, {}, waits, config)
        self._host = Host(self.address, self._machine, self, is_confirmed=True)
        self._links = Links(
            hello_of("client", self.address, deployment),
            Codec(control.Letters),
            nodes_only,
            control.claims,
            self._up,
            lambda hello, error: None,
            client_tls=client_context(deployment.security, base),
            tokens=Tokens(own=token),
        )
        self._nearest = ClientRegion(deployment, self._links, region)
        self._broker = BrokerConnection(
            self, self._host.confirmed, self._noticed, self._foreign, self.failed, publishers_space(deployment)
        )

    async def open(self) -> None:
        ens = make_ens(self._deployment, self._base, self._broker, self._token)
        self._broker.stand_on(ens)
        self._links.attach(self.address, self)
        for node in sequencers(self._deployment):
            dial_node(self._links, self._deployment.node(node))
        await open_patiently(ens, self._timeout)
        await self._host.start()

    async def close(self) -> None:
        await self._host.stop()
        await self._broker.close()
        await self._links.close()

    # what people call

    async def publish(self, rows: Sequence[NamedEvent]) -> int:
        """Publishes what was not published before, in this order; returns how many that were. May be repeated.

        Raises MisuseError if one of them cannot be published by anybody, before any is. Raises TransportError when a
        home or the broker does not answer: then some of them may have been published; and when the broker rejects
        one: then those before it have been, and it and those after it can be tried again.
        """
        self._check(rows)
        for name in dict.fromkeys(row.topic for row in rows):
            await self._open_topic(name)
        now = self._clock.now()
        publications: list[Publish] = []
        for row in rows:
            topic = self._topics[row.topic]
            who = publisher_on(self.address, row.topic)
            event = Event(who, row.request, row.topic, row.payload, row.attributes, now)
            self._handed_over += 1
            self._open[self._handed_over] = row
            publications.append(Publish(topic, event, self._handed_over))
        self._host.post(PublishInLine(tuple(publications)))
        await self._until(lambda: not self._open)
        outcomes, self._outcomes = self._outcomes, []
        published = sum(isinstance(one, Accepted) and one.strength != REPEATED for _, one in outcomes)
        for row, outcome in outcomes:
            if isinstance(outcome, Unknown):
                raise TransportError(f"{outcome.reason}; some of these rows may have been published")
            if isinstance(outcome, Refused):
                raise TransportError(
                    f"the broker rejects {row.topic}, request {row.request}: {outcome.reason}. "
                    f"{published} rows were published, neither it nor what follows it was"
                )
        return published

    async def mark(self, topic: str) -> int:
        """The highest request of this name that the home of a topic has numbered, in this life or before; 0: none."""
        await self._open_topic(topic)
        number = self._topics[topic]
        self._handed_over += 1
        self._open[self._handed_over] = NamedEvent(topic, 0, b"")  # no request is 0: nothing is published
        event = Event(publisher_on(self.address, topic), 0, topic, b"", {}, self._clock.now())
        self._host.post(PublishInLine((Publish(number, event, self._handed_over),)))
        await self._until(lambda: not self._open)
        outcomes, self._outcomes = self._outcomes, []
        for _, outcome in outcomes:
            if not isinstance(outcome, Accepted):
                raise TransportError(outcome.reason)
        return self._machine.mark_of(number)

    def _check(self, rows: Sequence[NamedEvent]) -> None:
        last: dict[str, int] = {}
        for row in rows:
            if row.request <= last.get(row.topic, 0):
                raise MisuseError(f"{row.topic}: request {row.request} comes after {last.get(row.topic, 0)}")
            last[row.topic] = row.request
        largest = self._broker.ens.traits.payload_bytes_max
        for row in rows:
            encode_payload(row.payload, largest)
            if row.attributes:
                check_attributes(row.attributes)
                check_room_beside(row.attributes)

    async def _open_topic(self, name: str) -> None:
        """Learns the number of the topic."""
        if name not in self._topics:
            region = await self._nearest.region()
            home, topic = await self._find(name, home_of(self._deployment, name, region, self._links.is_up))
            self._topics[name], self._names[topic] = topic, name
            self._machine.homes.setdefault(topic, home)

    async def _find(self, name: str, home: Address) -> tuple[Address, Topic]:
        self._asked += 1
        request = self._asked
        question = naming.OpenTopics(self.address, request, (name,))
        await self._until(lambda: request in self._answers, home, question)
        answer = self._answers.pop(request)
        if isinstance(answer, naming.TopicsNotOpened):
            raise MisuseError(f"{answer.reason} ({answer.code})")
        if answer.elsewhere:
            return await self._find(name, birthplace(self._deployment, name, answer.elsewhere[0][1]))
        return home, answer.topics[0][1]

    async def _until(self, done: Callable[[], bool], home: Address | None = None, question: Any = None) -> None:
        """Asks, and again after a while, until it is done. Whatever the machine has under way, it ends by itself."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self._timeout
        again = loop.time()
        while not done():
            if self._failure is not None:
                raise TransportError(f"the publisher broke: {self._failure!r}") from self._failure
            now = loop.time()
            if home is not None and now >= until:
                name = self.address[1:]
                raise TransportError(
                    f"node {home} does not answer within {self._timeout:g} s; "
                    f"is another publisher connected as {name!r}?"
                )
            if home is not None and now >= again:
                self._links.send(home, question)
                again = now + ASK_AGAIN_S
            self._news.clear()
            try:
                async with asyncio.timeout(ASK_AGAIN_S):
                    await self._news.wait()
            except TimeoutError:
                continue

    # a sink for letters, and the outside of the machine

    def post(self, message: Any) -> None:
        match message:
            case naming.TopicsOpened(request=request) | naming.TopicsNotOpened(request=request):
                self._answers[request] = message
                self._news.set()
            case Height():
                if self._heights.note(message):
                    self._host.post(HomeReborn(message.node))
                    self._topics.clear()  # it may create them anew
            case _:
                self._host.post(message)

    def send(self, to: Address, message: Any) -> None:
        self._links.send(to, message)

    def broadcast(self, effect: Broadcast) -> None:
        self._broker.broadcast(effect.topic, effect.message, effect.control)

    def join(self, topic: Topic) -> None:
        """We hear no topic."""

    def leave(self, topic: Topic) -> None:
        """We hear no topic."""

    def deliver(self, item: Any) -> None:
        if isinstance(item, Accepted | Refused | Unknown):
            self._outcomes.append((self._open.pop(item.request), item))
        elif isinstance(item, HomeReborn):  # whatever was asked before has left
            self._heights.remind(item.node, self.address, self._links.send)

    def refused(self, reason: str) -> None:
        logger.debug("%s refused: %s", self.address, reason)

    def end_turn(self) -> None:
        self._broker.end_turn()
        self._news.set()

    def failed(self, error: Exception) -> None:
        self._failure = error
        self._news.set()

    def _up(self, hello: Hello) -> None:
        self._nearest.heard()
        for node in hello.addresses:
            self._heights.remind(node, self.address, self._links.send)
        self._news.set()

    @property
    def is_full(self) -> bool:
        return False

    def when_roomy(self, callback: Callable[[], None]) -> None:
        callback()

    def name_of(self, topic: Topic) -> str | None:
        return self._names.get(topic)

    def topic_of(self, name: str) -> Topic | None:
        return self._topics.get(name)

    def _noticed(self, notice: EnsNotice) -> None:
        """When the broker is lost or back, what it has not confirmed it still owes."""
        if isinstance(notice, ItemRejected):
            topic = self._topics.get(notice.item.topic)
            if topic is not None:
                self._host.post(NotTaken(topic, notice.item.request, notice.reason))

    def _foreign(self, item: Item) -> None:
        """We hear no topic."""
