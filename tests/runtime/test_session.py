"""The client, in memory: what people touch does what it says."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pydantic
import pytest

import unisono
import unisono.testing
from unisono.machine import Accepted, Heard, Joined, Stalled
from unisono.model.event import Event
from unisono.model.ids import Topic
from unisono.protocols.sequencer.config import SequencerConfig
from unisono.runtime.client.session import Session
from unisono.runtime.client.subscription.notification import Notification
from unisono.runtime.client.subscription.position import decode_position
from unisono.runtime.client.subscription.stream import Stream

T = TypeVar("T")


def play(story: Callable[[Session], Awaitable[None]], **options: Any) -> None:
    async def run() -> None:
        async with asyncio.timeout(120), unisono.connect("memory://", **options) as session:
            await story(session)

    asyncio.run(run())


async def take(stream: Stream, wanted: int) -> list[Notification]:
    found = []
    async with asyncio.timeout(60):
        async for event in stream:
            found.append(event)
            if len(found) == wanted:
                break
    return found


async def expect_each(stream: Stream, wanted: Sequence[T], told: Callable[[Notification], T]) -> None:
    """What comes next, one by one: the first that is another fails at once, and nobody waits for the rest."""
    for place, each in enumerate(wanted):
        (event,) = await take(stream, 1)
        assert told(event) == each, f"in place {place}: {event}"


def test_an_event_is_delivered_with_its_data_and_a_place() -> None:
    async def story(session: Session) -> None:
        async with session.subscribe("trades") as stream:
            assert await session.publish("trades", {"px": 1}) == Accepted(1, "ordered")
            (event,) = await take(stream, 1)
            assert (event.topic, event.data, event.number, event.late, event.gap) == (
                "trades",
                {"px": 1},
                1,
                False,
                None,
            )

    play(story)


def test_two_subscribers_agree_on_two_topics() -> None:
    async def story(session: Session) -> None:
        async with session.subscribe("a", "b") as one, session.subscribe("b", "a") as two:
            publishers = [await session.publisher(topic) for topic in ("a", "b")]
            for number in range(200):
                await publishers[number % 2].send(number)
            heard = await asyncio.gather(take(one, 200), take(two, 200))
            assert [event.id for event in heard[0]] == [event.id for event in heard[1]]

    play(story)


def test_a_publisher_does_not_wait_for_each_outcome_and_drains() -> None:
    async def story(session: Session) -> None:
        publisher = await session.publisher("a")
        await publisher.send_all(range(5000))
        await publisher.drain()
        assert (publisher.accepted, publisher.failures) == (5000, [])

    play(story)


def test_what_cannot_be_encoded_is_refused_and_nothing_waits_for_it() -> None:
    async def story(session: Session) -> None:
        publisher = await session.publisher("a")
        for send in (publisher.send(object()), publisher.send_all([1, 2, object(), 3])):
            with pytest.raises(unisono.MisuseError, match="cannot be published"):
                await send
        with pytest.raises(unisono.MisuseError, match="cannot be published"):
            publisher.try_send(object())
        async with asyncio.timeout(10):
            await publisher.drain()
        assert (publisher.accepted, publisher.failures) == (2, [])

    play(story)


def test_a_subscription_that_was_forgotten_says_so_and_ends() -> None:
    async def story(session: Session) -> None:
        async with session.subscribe("a") as stream:
            stream.deliver(Stalled(session.topic_of("a") or Topic(0), session.now(), "forgotten", ends=True))
            stream.end_turn()
            (event,) = await take(stream, 1)
            assert event.stalled is not None
            with pytest.raises(unisono.TransportError, match="a: forgotten, and this subscription ends"):
                await asyncio.wait_for(anext(stream), 10)

    play(story)


def test_a_topic_that_joins_in_the_middle_of_a_turn_makes_nothing_undelivered() -> None:
    async def story(session: Session) -> None:
        async with session.subscribe("a", "b") as stream:
            a, b = (session.topic_of(name) or Topic(0) for name in ("a", "b"))
            stream.deliver(Heard(a, Event("p.a", 5, "a", b"5"), number=5))
            stream.deliver(Joined(b))
            stream.deliver(Heard(b, Event("p.b", 1, "b", b"1"), number=1))
            stream.end_turn()
            last = (await take(stream, 2))[-1]
            assert decode_position(last.position) == decode_position(stream.position()) == {"a": 5, "b": 1}

    play(story)


def test_a_batch_is_read_as_far_as_there_is_room() -> None:
    async def story(session: Session) -> None:
        publisher = await session.publisher("a")
        read: list[int] = []

        def endless() -> Iterator[int]:
            for number in count():
                read.append(number)
                yield number

        sending = asyncio.ensure_future(publisher.send_all(endless()))
        while publisher.accepted < 5000:
            await asyncio.sleep(0)
        sending.cancel()
        assert len(read) <= publisher.accepted + SequencerConfig().window

    play(story)


def test_events_of_one_publisher_on_one_topic_stay_in_line() -> None:
    async def story(session: Session) -> None:
        async with session.subscribe("a", order="total") as total, session.subscribe("a", order="fifo") as fifo:
            publisher = await session.publisher("a")
            await publisher.send_all(range(3000))
            for stream in (total, fifo):
                assert [event.data for event in await take(stream, 3000)] == list(range(3000))

    play(story)


def test_a_late_fifo_subscriber_does_not_wait_for_what_was_before_it() -> None:
    async def story(session: Session) -> None:
        for number in range(3):
            await session.publish("a", number)
        async with session.subscribe("a", order="fifo") as stream:
            await session.publish("a", 3)
            (event,) = await take(stream, 1)
            assert event.data == 3

    play(story)


def test_a_pattern_follows_topics_that_are_born_later() -> None:
    async def story(session: Session) -> None:
        await session.publish("trades.ibm", 1)
        async with session.subscribe("trades.*") as stream:
            assert list(stream.topics) == ["trades.ibm"]
            await session.publish("quotes.ibm", 0)
            await session.publish("trades.sap", "first")
            async with asyncio.timeout(120):
                while "trades.sap" not in stream.topics:
                    await asyncio.sleep(0.002)
            await session.publish("trades.ibm", 2)
            assert [event.data for event in await take(stream, 1)] == [2]

    play(story)


def test_an_unsubscribed_topic_is_heard_no_more() -> None:
    async def story(session: Session) -> None:
        async with session.subscribe("a", "b") as stream:
            await stream.unsubscribe("a", "a", "never heard of")
            await session.publish("a", 1)
            await session.publish("b", 2)
            assert [event.data for event in await take(stream, 1)] == [2]

    play(story)


class Trade(msgspec.Struct):
    px: float


class Quote(pydantic.BaseModel):
    bid: float


def test_payloads_have_the_type_the_subscriber_gives() -> None:
    async def story(session: Session) -> None:
        async with (
            session.subscribe("trades", type=Trade) as trades,
            session.subscribe("quotes", type=Quote) as quotes,
            session.subscribe("raw", type=bytes) as raw,
        ):
            await session.publish("trades", Trade(1.5))
            await session.publish("quotes", Quote(bid=2.5))
            await session.publish("raw", b"\x00\xff")
            assert (await take(trades, 1))[0].data == Trade(1.5)
            assert (await take(quotes, 1))[0].data == Quote(bid=2.5)
            assert (await take(raw, 1))[0].data == b"\x00\xff"

    play(story)


def test_a_payload_of_another_type_is_a_peer_error_when_it_is_looked_at() -> None:
    async def story(session: Session) -> None:
        async with session.subscribe("trades", type=Trade) as stream:
            await session.publish("trades", {"px": "much"})
            (event,) = await take(stream, 1)
            assert event.payload == b'{"px":"much"}'
            with pytest.raises(unisono.PeerError, match="not a Trade"):
                _ = event.data

    play(story)


def test_a_slow_subscriber_is_told_what_it_missed() -> None:
    async def story(session: Session) -> None:
        async with session.subscribe("a", buffer=10) as stream:
            publisher = await session.publisher("a")
            await publisher.send_all(range(100))
            await publisher.drain()
            async with asyncio.timeout(120):
                while stream.waiting < 10 or decode_position(stream.position())["a"] < 100:
                    await asyncio.sleep(0.002)
            gap, *rest = await take(stream, 11)
            assert gap.gap is not None
            assert (gap.gap.first, gap.gap.last) == (1, 90)
            assert [event.number for event in rest] == list(range(91, 101))

    play(story)


async def delivered(stream: Stream, numbers: dict[str, int]) -> None:
    """Returns when these numbers of its topics have been delivered."""
    while decode_position(stream.position()) != numbers:
        await asyncio.sleep(0.002)


def test_latest_only_keeps_the_newest_of_each_topic_and_key() -> None:
    async def story(session: Session) -> None:
        async with session.subscribe("a", "b", latest_only=True, buffer=6) as stream:
            for number in range(10):
                await session.publish("a", number, {"key": "odd" if number % 2 else "even"})
                await session.publish("b", number)
            await delivered(stream, {"a": 10, "b": 10})
            assert [(event.topic, event.data) for event in await take(stream, 3)] == [("a", 8), ("a", 9), ("b", 9)]
            await session.publish("a", 10, {"key": "even"})
            assert [event.data for event in await take(stream, 1)] == [10]
            for number in range(5):
                await session.publish("b", number)
            await delivered(stream, {"a": 11, "b": 15})
            async for batch in stream.batches():
                assert [event.data for event in batch] == [4]
                break

    play(story)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"order": "realtime"}, "needs clocks that are watched"),
        ({"order": "causal"}, "sequencing.order"),
        ({"reliability": "reliable"}, "keeps payloads"),
        ({"start": "earliest"}, "archive"),
    ],
)
def test_a_promise_that_cannot_be_kept_is_refused_with_the_reason(options: dict[str, Any], reason: str) -> None:
    async def story(session: Session) -> None:
        with pytest.raises(unisono.PlanError, match=reason):
            session.subscribe("a", **options)

    play(story)


@pytest.mark.parametrize("name", ["", "a b", "a..b", "_unisono.x"])
def test_a_bad_topic_name_is_a_misuse(name: str) -> None:
    async def story(session: Session) -> None:
        with pytest.raises(unisono.MisuseError):
            await session.publish(name, 1)

    play(story)


def test_a_committed_position_is_where_the_subscription_resumes_and_the_gap_is_told(tmp_path: Path) -> None:
    async def story(session: Session) -> None:
        async with session.subscribe("a", "b", name="mine") as stream:
            await session.publish("a", 1)
            await session.publish("b", 2)
            first, second = await take(stream, 2)
            await stream.commit(first.position)
            assert first.position != second.position
        await session.publish("b", 3)
        async with session.subscribe("a", "b", name="mine") as again:
            (gap,) = await take(again, 1)
            assert gap.gap is not None
            assert (gap.topic, gap.gap.first, gap.gap.last) == ("b", 1, 2)
            await session.publish("a", 4)
            assert (await take(again, 1))[0].data == 4

    play(story, state=tmp_path)


def test_sessions_of_one_name_meet_and_others_do_not() -> None:
    async def run() -> None:
        async with (
            asyncio.timeout(120),
            unisono.connect("memory://x") as one,
            unisono.connect("memory://x") as two,
            unisono.connect("memory://y") as other,
            two.subscribe("a") as stream,
        ):
            await other.publish("a", "elsewhere")
            await one.publish("a", "here")
            assert [event.data for event in await take(stream, 1)] == ["here"]

    asyncio.run(run())


def test_all_names_of_the_package_are_there() -> None:
    for name in unisono.__all__:
        assert getattr(unisono, name) is not None


def test_a_stalled_topic_may_be_told_out_of_order_and_is_told_once() -> None:
    async def run() -> None:
        async with (
            asyncio.timeout(60),
            unisono.testing.deployment() as world,
            world.connect() as session,
            session.subscribe("a", deadline="100ms", on_stall="tag") as tagging,
            session.subscribe("a", deadline="100ms") as waiting,
        ):
            await session.publish("a", 1)
            world.take_home_away()
            asked = [asyncio.ensure_future(session.publish("a", number)) for number in (2, 3)]
            first, stalled, *late = await take(tagging, 4)
            assert (first.data, first.late) == (1, False)
            assert stalled.stalled is not None
            assert [(event.data, event.late) for event in late] == [(2, True), (3, True)]
            world.bring_home_back()
            assert [type(outcome) for outcome in await asyncio.gather(*asked)] == [Accepted, Accepted]
            await session.publish("a", 4)
            (event,) = await take(tagging, 1)
            assert (event.data, event.number, event.late) == (4, 4, False)
            heard = [event for event in await take(waiting, 5) if event.stalled is None]
            assert [(event.data, event.late) for event in heard] == [(n, False) for n in (1, 2, 3, 4)]

    asyncio.run(run())
