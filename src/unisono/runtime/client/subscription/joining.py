"""How a stream comes to hear topics, and stops: by name, and by patterns that topics are created into."""

import asyncio
from collections.abc import Iterable

from unisono.errors import TransportError, UnisonoError
from unisono.machine import Stalled, Subscribe, Unsubscribe
from unisono.model.ids import Topic
from unisono.model.interest import covers, is_pattern
from unisono.runtime.client.subscription.delivering import Delivering
from unisono.runtime.client.subscription.delivery_buffer import DeliveryBuffer
from unisono.runtime.client.subscription.stream_session import StreamSession, SubscribedStream

GATHER_S = 1.0
"""Topics that are created while others are being joined wait for them, at most so long: their home may be away."""
REST_S_OF_TOPIC = 200e-6
"""About ten times what a home and a client need to let a subscription grow, for each topic that it has."""


class StreamTopics:
    """The topics of one stream, on their way in and out."""

    def __init__(
        self, stream: SubscribedStream, session: StreamSession, waiting: DeliveryBuffer, delivering: Delivering
    ) -> None:
        self._stream, self._session = stream, session
        self._waiting, self._delivering = waiting, delivering
        self._joined: dict[Topic, asyncio.Future[None]] = {}
        self._born: dict[str, None] = {}  # and we have a pattern for them: to be joined
        self._gathering: asyncio.Task[None] | None = None
        self._following: dict[asyncio.Task[None], None] = {}

    async def add(self, names: Iterable[str]) -> None:
        """Returns when all are in force."""
        stream = self._stream
        new = [name for name in names if name not in stream.topics]
        if self._waiting.error is not None:
            raise self._waiting.error
        if not new or stream.host is None:
            return
        opened = await self._session.open_topics(new)
        self._session.check_subscribe(new)
        loop = asyncio.get_running_loop()
        futures = []
        for name, topic in opened.items():
            if name in stream.topics:  # somebody else has added it meanwhile
                futures.append(self._joined[topic])
                continue
            stream.topics[name] = topic
            stream.introduce(topic)
            self._joined[topic] = loop.create_future()
            futures.append(self._joined[topic])
        stream.host.post(Subscribe(tuple(opened.values())))
        await self._in_time(opened, futures)

    async def _in_time(self, opened: dict[str, Topic], futures: "list[asyncio.Future[None]]") -> None:
        """Returns when all are in force; who does not answer in time is named, and nothing of it is left."""
        patience_s = self._session.open_s
        await asyncio.wait(futures, timeout=patience_s, return_when=asyncio.FIRST_EXCEPTION)
        silent = [name for name, topic in opened.items() if not self._joined[topic].done()]
        for future in futures:
            if future.done():
                future.result()
        if silent:
            await self._stream.unsubscribe(*opened)
            raise TransportError(self._session.silence(silent[0], patience_s))

    def done(self, topic: Topic) -> None:
        """It is in force."""
        future = self._joined.get(topic)
        if future is not None and not future.done():
            future.set_result(None)

    def leave(self, names: Iterable[str]) -> list[str]:
        """Those of them that were subscribed to."""
        stream = self._stream
        known = [name for name in dict.fromkeys(names) if name in stream.topics]
        if stream.host is None or not known:
            return []
        stream.host.post(Unsubscribe(tuple(stream.topics.pop(name) for name in known)))
        return known

    def follow(self, names: tuple[str, ...]) -> None:
        """Topics were created: those we have a pattern for are joined."""
        stream = self._stream
        new = [
            name
            for name in names
            if name not in stream.topics and any(is_pattern(text) and covers(text, name) for text in stream.interests)
        ]
        if not new or self._waiting.is_over:
            return
        self._born.update(dict.fromkeys(new))
        if self._gathering is None:
            self._gathering = asyncio.create_task(self._gather(), name=f"gather {new[0]}")

    async def _gather(self) -> None:
        """Joins at once what is created meanwhile, and rests in between: a growing subscription costs as much as it is
        long, and who creates topics without end must leave time for what is published on others."""
        while self._born and not self._waiting.is_over:
            names, self._born = list(self._born), {}
            task = asyncio.create_task(self._follow(names), name=f"follow {names[0]}")
            self._following[task] = None
            task.add_done_callback(lambda done: self._following.pop(done, None))
            await asyncio.wait([task], timeout=GATHER_S)
            await asyncio.sleep(REST_S_OF_TOPIC * len(self._stream.topics))
        self._gathering = None

    async def _follow(self, names: list[str]) -> None:
        while not self._waiting.is_over:
            try:
                await self.add(names)
                return
            except TransportError as error:  # its home is away: it is told, and tried again; the others go on
                for name in names:
                    topic = self._session.topic_of(name) or Topic(0)
                    self._delivering.tell_stalled(name, Stalled(topic, self._session.now(), str(error)))
            except UnisonoError as error:
                self._stream.fail(error)
                return

    def fail(self, error: UnisonoError) -> None:
        """Whoever waits for a topic gets the error."""
        for future in self._joined.values():
            if not future.done():
                future.set_exception(error)
                future.exception()  # one of them is enough for whoever waits

    def stop(self) -> None:
        """No more topics are joined."""
        for task in [*self._following, *([self._gathering] if self._gathering is not None else ())]:
            task.cancel()
