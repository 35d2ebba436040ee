"""A publisher with a name for ever: it says itself which number its events have, so saying one again changes nothing.

    async with named_publisher("unisono://127.0.0.1:7474", "alerts") as publisher:
        await publisher.publish([Row("blacklist", 17, b"..."), Row("blacklist", 23, b"...")])

The home of a topic remembers per publisher the highest request it has numbered, durably and without a time limit
(sequencer, `HostedTopic.accept`). Requests here may skip numbers but must ascend per topic: a request at or below the
home's mark is known, so its payload is not sent again. Only one batch of requests is under way at a time, and it
travels in one message per home, which numbers it in line: a request can be lost only together with all that follow it,
and is repeated together with them. Nodes never forget a name, and refuse a second connection under it while the first
lives.
"""

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import groupby
from pathlib import Path
from typing import Any

from msgspec import Struct

from unisono.errors import MisuseError, TransportError
from unisono.model.deployment import Deployment
from unisono.model.event import Event, Scalar
from unisono.model.ids import Address, Topic
from unisono.protocols.sequencer.messages import Ask, Completed, Creates, Fate, Moved, Payload, Taken, Told, Wanted
from unisono.runtime import edge
from unisono.runtime.brokers import dial_node, make_ens, open_patiently, publishers_space
from unisono.runtime.clock import Clock
from unisono.runtime.connect import find_deployment
from unisono.runtime.content import check_attributes
from unisono.runtime.dialect import check_room_beside, publisher_on
from unisono.runtime.ens.adapter import EnsNotice, Item, Rejected
from unisono.runtime.frames import Codec, Hello, nodes_only
from unisono.runtime.ground import Ground
from unisono.runtime.homes import birthplace, home_of, sequencers
from unisono.runtime.links import Links
from unisono.runtime.lives import Height
from unisono.runtime.payload import encode_payload
from unisono.runtime.security import Tokens, client_context, token_of
from unisono.runtime.witness import Witness

BATCH_ROWS = 1000
"""Rows under way at once. Price: memory here, and a message of some 20 bytes per row at the home."""
ASK_AGAIN_S = 0.25


class Row(Struct, frozen=True):
    """One event to publish; `request` ascends per topic, from 1, with any gaps."""

    topic: str
    request: int
    payload: bytes
    attributes: dict[str, Scalar] = {}


@asynccontextmanager
async def named_publisher(
    where: str | Path | Deployment, name: str, *, token: str | None = None, timeout: float = 30.0
) -> AsyncGenerator["NamedPublisher", None]:
    """Connects under a name; see the module."""
    deployment, base = await find_deployment(where, token or "", timeout)
    secret = token if token is not None else token_of(deployment.security)
    publisher = NamedPublisher(deployment, base, secret, name, timeout)
    await publisher.open()
    try:
        yield publisher
    finally:
        await publisher.close()


class NamedPublisher:
    """A connected publisher; `timeout` bounds every wait for nodes and broker."""

    def __init__(self, deployment: Deployment, base: Path, token: str, name: str, timeout: float) -> None:
        if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name):
            raise MisuseError(f"{name!r} is no name for a publisher: up to 64 letters, digits, - and _")
        self.address = Address(f"@{name}")
        self._deployment, self._base, self._token, self._timeout = deployment, base, token, timeout
        self._topics: dict[str, Topic] = {}
        self._names: dict[Topic, str] = {}
        self._homes: dict[Topic, Address] = {}
        self._taken: dict[Topic, int] = {}
        self._completed: dict[Topic, int] = {}
        self._fates: dict[Topic, Fate] = {}
        self._answers: dict[int, edge.Opened | edge.NotOpened] = {}
        # Only a complete timestamp of one home is sure to precede what another home numbers afterwards.
        self._waits = len(sequencers(deployment)) > 1
        self._clock = Clock()
        self._asked = self._broadcast = self._confirmations = 0
        self._rejected: dict[tuple[str, int], str] = {}  # topic and request of payloads under way -> reason
        self._failure: Exception | None = None
        self._news = asyncio.Event()
        self._witness = Witness()
        self._reborn: Address | None = None  # a node that has forgotten what we were told
        self._links = Links(
            Hello("client", (self.address,), deployment=deployment.name),
            Codec(edge.Letters),
            nodes_only,
            edge.claims,
            self._up,
            lambda hello, error: None,
            client_tls=client_context(deployment.security, base),
            tokens=Tokens(own=token),
        )
        self._ground = Ground(
            self, self._confirmed, self._noticed, self._foreign, self._failed, publishers_space(deployment)
        )

    async def open(self) -> None:
        ens = make_ens(self._deployment, self._base, self._ground, self._token)
        self._ground.stand_on(ens)
        self._links.attach(self.address, self)
        for node in sequencers(self._deployment):
            dial_node(self._links, self._deployment.node(node))
        await open_patiently(ens, self._timeout)

    async def close(self) -> None:
        await self._ground.close()
        await self._links.close()

    # what people call

    async def publish(self, rows: Sequence[Row]) -> int:
        """Publishes what was not published before, in this order; returns how many that were. May be repeated.

        Raises MisuseError if one of them cannot be published by anybody, before any is. Raises TransportError when a
        home or the broker does not answer: then some of them may have been published; and when the broker rejects
        one: then those before it have been, and it and those after it can be tried again.
        """
        self._check(rows)
        for name in dict.fromkeys(row.topic for row in rows):
            await self._open_topic(name)
        published = 0
        for start in range(0, len(rows), BATCH_ROWS):
            part = rows[start : start + BATCH_ROWS]
            new = [row for row in part if row.request > self._taken[self._topics[row.topic]]]
            await self._send_payloads(new)
            kept = self._kept(new)
            for home, some in groupby(kept, key=lambda row: self._homes[self._topics[row.topic]]):
                await self._number(home, list(some))
            published += len(kept)
            if len(kept) < len(new):
                row = new[len(kept)]
                reason = self._rejected[row.topic, row.request]
                raise TransportError(
                    f"the broker rejects {row.topic}, request {row.request}: {reason}. "
                    f"{published} rows were published, neither it nor what follows it was"
                )
        return published

    def _kept(self, rows: list[Row]) -> list[Row]:
        """Those before the first that was rejected: it could never be numbered after what follows it."""
        for i, row in enumerate(rows):
            if (row.topic, row.request) in self._rejected:
                return rows[:i]
        return rows

    def _check(self, rows: Sequence[Row]) -> None:
        last: dict[str, int] = {}
        for row in rows:
            if row.request <= last.get(row.topic, 0):
                raise MisuseError(f"{row.topic}: request {row.request} comes after {last.get(row.topic, 0)}")
            last[row.topic] = row.request
        largest = self._ground.ens.traits.payload_bytes_max
        for row in rows:
            encode_payload(row.payload, largest)
            if row.attributes:
                check_attributes(row.attributes)
                check_room_beside(row.attributes)

    async def _open_topic(self, name: str) -> None:
        """Learns the number of the topic and our mark there."""
        if name in self._topics:
            return
        home, topic = await self._find(name, home_of(self._deployment, name))
        # Request 0 is never new: the answer to it tells the mark and changes nothing.
        await self._ask(home, Creates(self.address, (Wanted(topic, 0, 1, 0),)), lambda: topic in self._taken)
        last = self._taken[topic]
        if last and self._waits:  # a predecessor of ours may have died before its last one was complete
            await self._ask(
                home,
                Ask(self.address, topic, 0, self.address, last),
                lambda: self._fates.get(topic, "pending") != "pending",
            )
        self._topics[name], self._names[topic], self._homes[topic] = topic, name, home

    async def _find(self, name: str, home: Address) -> tuple[Address, Topic]:
        self._asked += 1
        request = self._asked
        await self._ask(home, edge.Open(self.address, request, (name,)), lambda: request in self._answers)
        answer = self._answers.pop(request)
        if isinstance(answer, edge.NotOpened):
            raise MisuseError(answer.reason)
        if answer.elsewhere:
            return await self._find(name, birthplace(self._deployment, name, answer.elsewhere[0][1]))
        return home, answer.topics[0][1]

    async def _send_payloads(self, rows: list[Row]) -> None:
        """Returns when the broker has taken or rejected them: a number without its payload would be a gap."""
        self._rejected.clear()
        now = self._clock.now()
        for row in rows:
            who = publisher_on(self.address, row.topic)
            event = Event(who, row.request, row.topic, row.payload, row.attributes, now)
            self._ground.broadcast(self._topics[row.topic], Payload(self.address, row.request, event), control=False)
        self._broadcast += len(rows)
        self._ground.end_turn()
        await self._until(lambda: self._confirmations >= self._broadcast, None, "the broker does not confirm")

    async def _number(self, home: Address, rows: list[Row]) -> None:
        items: list[Wanted] = []
        for row in rows:
            topic = self._topics[row.topic]
            last = items[-1] if items else None
            if last is not None and last.topic == topic and last.first + last.count == row.request:
                items[-1] = Wanted(topic, last.first, last.count + 1, last.first)
            else:
                items.append(Wanted(topic, row.request, 1, row.request))
        owed = {self._topics[row.topic]: row.request for row in rows}
        answered = self._completed if self._waits else self._taken
        await self._ask(
            home,
            Creates(self.address, tuple(items), self._waits, in_line=True),
            lambda: all(answered.get(topic, 0) >= upto for topic, upto in owed.items()),
        )

    # waiting

    async def _ask(self, home: Address, question: Any, answered: Callable[[], bool]) -> None:
        problem = f"node {home} does not answer; is another publisher connected as {self.address[1:]!r}?"
        await self._until(answered, lambda: self._links.send(home, question), problem)

    async def _until(self, done: Callable[[], bool], say: Callable[[], None] | None, problem: str) -> None:
        """Says it, and again after a while, until it is done."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self._timeout
        again = loop.time()
        while not done():
            if self._reborn is not None:
                node, self._reborn = self._reborn, None
                self._topics, self._taken = {}, {}
                self._witness.remind_again(node, self.address, self._links.send)
                raise TransportError(f"node {node} has forgotten: some of this batch may have been published")
            if self._failure is not None:
                raise TransportError(f"the publisher broke: {self._failure!r}") from self._failure
            now = loop.time()
            if now >= until:
                raise TransportError(f"{problem} within {self._timeout:g} s")
            if say is not None and now >= again:
                say()
                again = now + ASK_AGAIN_S
            self._news.clear()
            try:
                async with asyncio.timeout(ASK_AGAIN_S):
                    await self._news.wait()
            except TimeoutError:
                continue

    # a sink for letters, and the owner of a ground

    def post(self, message: Any) -> None:
        match message:
            case edge.Opened(request=request) | edge.NotOpened(request=request):
                self._answers[request] = message
            case Taken(upto=taken):
                for topic, upto in taken.items():
                    self._taken[topic] = max(upto, self._taken.get(topic, 0))
            case Completed(topic=topic, upto=upto):
                self._completed[topic] = max(upto, self._completed.get(topic, 0))
            case Told(topic=topic, fate=fate):
                self._fates[topic] = fate
            case Moved(topic=topic, home=home):
                self._homes[topic] = home
            case Height():
                if self._witness.note(message):
                    self._reborn = message.node
            case _:
                return
        self._news.set()

    def _up(self, hello: Hello) -> None:
        self._witness.remind(hello, self.address, self._links.send)
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

    def _confirmed(self, count: int) -> None:
        self._confirmations += count
        self._news.set()

    def _noticed(self, notice: EnsNotice) -> None:
        """When the broker is lost or back, what it has not confirmed it still owes."""
        if isinstance(notice, Rejected):
            self._rejected[notice.item.topic, notice.item.request] = notice.reason

    def _failed(self, error: Exception) -> None:
        self._failure = error
        self._news.set()

    def _foreign(self, item: Item) -> None:
        """We hear no topic."""
