"""A subscription as a member of a consumer group: what the group's machine says is performed on streams.

It has the methods of a `Stream`, and one beneath it: that hears all of the group's topics from where the machine says,
and is made anew when a share is taken over that is less far.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import Any, Protocol, Self

from unisono.errors import MisuseError, TransportError, UnisonoError
from unisono.machine import Subscribe
from unisono.model.arguments import check_count
from unisono.model.ids import Address
from unisono.model.interest import check_topic_name
from unisono.protocols.groups.member import (
    BEGUN,
    BeginsAfter,
    Committed,
    GivenUp,
    Hear,
    Processed,
    Quit,
    ShareHolder,
    share_of,
)
from unisono.protocols.groups.messages import SHARES
from unisono.runtime.client.measures import StreamCounters
from unisono.runtime.client.subscription.notification import Notification
from unisono.runtime.client.subscription.position import decode_position, encode_position
from unisono.runtime.client.subscription.stream import Stream
from unisono.runtime.driver.host import Host

LOOK_S = 0.1
"""How often a member looks whether the archive answers again."""


class GroupOwner(Protocol):
    """A session that has members of groups."""

    @property
    def open_s(self) -> float: ...

    async def enlist(self, member: "GroupStream") -> Host: ...

    async def discharge(self, member: "GroupStream") -> None: ...

    def coordinator(self) -> Address: ...


class GroupStream:
    """A member of a group. Use `async with session.subscribe(..., group=) as stream:` and iterate."""

    def __init__(
        self, session: GroupOwner, group: str, key: str | None, open_stream: Callable[[str], Stream], start: str
    ) -> None:
        """`key` is the attribute that says which events belong together; without it members take turns.
        `open_stream` makes a stream of the group's topics that begins at a position."""
        check_topic_name(group)
        self.group, self.sid = group, Address("")
        self._session, self._open, self._start, self._key = session, open_stream, start, key
        self._shares = SHARES if key is not None else 1
        self._host: Host | None = None
        self._stream: Stream | None = None
        self._hear: Hear | None = None
        self._outcomes: dict[int, asyncio.Future[str]] = {}
        self._said = BEGUN
        self._changed = asyncio.Event()
        self._error: UnisonoError | None = None
        self._is_over = self._is_told_stalled = False

    def machine(self, address: Address) -> ShareHolder:
        """The machine of a member at this address, which names it as well."""
        return ShareHolder(address, str(address), self._session.coordinator(), self.group, self._shares)

    async def __aenter__(self) -> Self:
        if self._host is not None:
            raise MisuseError("a subscription is entered once: make another with session.subscribe(…)")
        self._host = await self._session.enlist(self)
        self._host.post(Subscribe(()))
        try:
            await self._turn()
            await self._hear_anew()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _turn(self) -> None:
        """Returns when the member holds something."""
        try:
            async with asyncio.timeout(self._session.open_s):
                while self._hear is None and not self._is_known():
                    self._check()
                    await asyncio.sleep(LOOK_S / 10)
        except TimeoutError:
            raise TransportError(f"archive {self._session.coordinator()} does not answer") from None
        while self._hear is None:
            self._check()
            self._changed.clear()
            await self._changed.wait()

    # reading

    def __aiter__(self) -> AsyncIterator[Notification]:
        if self._host is None:
            raise MisuseError("the subscription was not entered: use 'async with session.subscribe(…) as stream:'")
        return self

    async def __anext__(self) -> Notification:
        aiter(self)
        while True:
            self._check()
            if self._is_over:
                raise StopAsyncIteration
            if self._hear is not None:
                await self._hear_anew()
                continue
            stream = self._heard()
            if not self._is_known():
                if not self._is_told_stalled:
                    self._is_told_stalled = True
                    reason = f"archive {self._session.coordinator()} does not answer this member of {self.group!r}"
                    return stream.stalled(reason)
                await asyncio.sleep(LOOK_S)
                continue
            self._is_told_stalled = False
            notification = self._take()
            if notification is not None:
                return notification
            await stream.arrival()

    async def batches(self, count_max: int = 1000) -> AsyncIterator[list[Notification]]:
        """What waits, in lists."""
        check_count("batches: the argument", count_max)
        async for first in self:
            batch = [first]
            while len(batch) < count_max and self._hear is None and (another := self._take()) is not None:
                batch.append(another)
            yield batch

    def _take(self) -> Notification | None:
        """The oldest that waits and is for this member."""
        stream = self._heard()
        while (notification := stream.take()) is not None:
            if self._is_shown(notification):
                return notification
        return None

    def _is_shown(self, notification: Notification) -> bool:
        member, event = self._member(), notification.event
        if event is None:
            gap = notification.gap
            return gap is None or member.tells(notification.topic, gap.last)
        share = 0
        if self._key is not None:
            share = share_of(event.attributes.get(self._key, notification.topic), self._shares)
        if notification.out_of_order:
            return share in member.held
        return member.shows(notification.topic, notification.number, share)

    async def commit(self, position: str) -> None:
        """Everything shown up to this position is processed; durable on return. A member that is none any more gets
        a TransportError, as does one whom the archive does not answer."""
        upto = decode_position(position)
        self._check()
        self._said += 1
        await self._say(Processed(upto, self._said), self._said)
        await self._heard().commit(position)

    # what the machine says

    def deliver(self, item: Any) -> None:
        match item:
            case Hear():
                self._hear = item
            case Committed(outcome=outcome, refused=refused):
                answer = self._outcomes.pop(outcome, None)
                if answer is not None and not answer.done():
                    answer.set_result(refused)
            case GivenUp(reason=reason):
                was_member = self._stream is not None or self._hear is not None
                self.fail(TransportError(reason) if was_member else MisuseError(reason))
        self._wake()

    def end_turn(self) -> None:
        """All of a turn is said."""

    def fail(self, error: UnisonoError) -> None:
        """Whoever reads gets the error: somebody else may be shown what waits."""
        self._error = error
        for answer in self._outcomes.values():
            if not answer.done():
                answer.set_result(str(error))
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        if self._stream is not None:
            self._stream.wake()

    async def _say(self, message: BeginsAfter | Processed, outcome: int) -> None:
        assert self._host is not None
        answer = self._outcomes[outcome] = asyncio.get_running_loop().create_future()
        self._host.post(message)
        refused = await answer
        if refused:
            raise TransportError(refused)

    async def _hear_anew(self) -> None:
        hear, former = self._hear, self._stream
        assert hear is not None
        if former is not None:
            await former.close()
        stream = self._open(self._start if hear.after is None else encode_position(hear.after))
        await stream.__aenter__()
        self._stream = stream
        if self._hear is hear:
            self._hear = None
        if hear.after is None:
            await self._say(BeginsAfter(decode_position(stream.position())), BEGUN)

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def _member(self) -> ShareHolder:
        assert self._host is not None
        assert isinstance(self._host.machine, ShareHolder)
        return self._host.machine

    def _is_known(self) -> bool:
        """The archive answers: nobody else is shown what is ours."""
        assert self._host is not None
        return self._member().is_fresh(self._host.clock.now())

    def _heard(self) -> Stream:
        if self._stream is None:
            raise MisuseError("the subscription is not open")
        return self._stream

    # as of a stream

    @property
    def waiting(self) -> int:
        """Notifications that were not looked at yet; some are for other members."""
        return self._stream.waiting if self._stream is not None else 0

    @property
    def told(self) -> StreamCounters:
        """What the stream beneath was told."""
        return self._heard().told

    @property
    def name(self) -> str | None:
        return self.group

    def position(self) -> str:
        """Where the stream beneath stands."""
        return self._heard().position()

    async def subscribe(self, *topics: str) -> None:
        raise MisuseError(f"the members of group {self.group!r} hear the same topics: for others, take another group")

    async def unsubscribe(self, *topics: str) -> None:
        await self.subscribe(*topics)

    async def update(self, *, where: str) -> None:
        await self.subscribe(where)

    async def close(self) -> None:
        """Leaves the group; others go on after what was committed."""
        if self._is_over:
            return
        self._is_over = True
        if self._host is not None:
            self._host.post(Quit())
            await self._host.settle()
        if self._stream is not None:
            await self._stream.close()
        await self._session.discharge(self)
        self._wake()
