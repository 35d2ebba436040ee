"""What an overlay refuses, and that nothing else is affected by it."""

import asyncio
from typing import Any

import pytest

import unisono
from tests.runtime.overlay.test_overlay import chain, running, take, until, url
from unisono.model.event import Event
from unisono.model.ids import Address
from unisono.model.predicate import Box, Filter, Values, parse
from unisono.protocols.overlay.messages import Adv, Ok, OverlayOpen, Pub, Sub, Unsub
from unisono.runtime.client.overlay import OverlaySession

TOO_MANY = " and ".join(f"(a{i} = 1 or b{i} = 1)" for i in range(7))


@pytest.mark.parametrize(
    ("where", "complaint"),
    [
        ("px >", "column 5"),
        ("px >> 5", "column 5"),
        ("px > 5 and", "column 11"),
        ("px = nan", "column 6"),
        ("sym = 'IBM", "column 7"),
        ("px > 5 and px < 4", "no event can match"),
        (TOO_MANY, "boxes"),
    ],
)
def test_a_bad_filter_is_refused_with_its_place(where: str, complaint: str) -> None:
    async def run() -> None:
        deployment = chain(1)
        async with running(deployment), unisono.connect(url(deployment, "b0")) as session:
            with pytest.raises(unisono.MisuseError, match=complaint):
                session.subscribe("t", where=where)
            with pytest.raises(unisono.MisuseError, match=complaint):
                await session.publisher("t", advertise=where)
            async with session.subscribe("t", where="px > 5") as stream:
                with pytest.raises(unisono.MisuseError, match=complaint):
                    await stream.update(where=where)
                await session.publish("t", {"px": 6})
                assert [e.data for e in await take(stream, 1)] == [{"px": 6}]

    asyncio.run(run())


@pytest.mark.parametrize(
    ("attributes", "complaint"),
    [
        ({"x": float("nan")}, "NaN"),
        ({"x": [1]}, "not a number"),
        ({"x": None}, "not a number"),
        ({"x": 2**70}, "64 bits"),
        ({"x": "\ud800"}, "surrogate"),
        ({"$topic": "u"}, "not for publishers"),
        ({f"a{i}": i for i in range(200)}, "200 attributes"),
        ({"x": "y" * 20_000}, "characters of attributes"),
    ],
)
def test_attributes_no_filter_can_judge_are_refused_and_the_next_event_is_not(
    attributes: dict[str, Any], complaint: str
) -> None:
    async def run() -> None:
        deployment = chain(2)
        async with (
            running(deployment),
            unisono.connect(url(deployment, "b0")) as session,
            unisono.connect(url(deployment, "b1")) as other,
            other.subscribe("t") as stream,
        ):
            outcome = await session.publish("t", b"bad", attributes)
            assert isinstance(outcome, unisono.Refused)
            assert complaint in outcome.reason
            assert isinstance(await session.publish("t", b"good", {"x": 1}), unisono.Accepted)
            assert [e.payload for e in await take(stream, 1)] == [b"good"]

    asyncio.run(run())


def test_an_oversized_event_is_refused_and_the_link_stays() -> None:
    async def run() -> None:
        deployment = chain(1)
        async with (
            running(deployment),
            unisono.connect(url(deployment, "b0")) as session,
            session.subscribe("t") as stream,
        ):
            with pytest.raises(unisono.MisuseError, match="Publish it in parts"):
                await session.publish("t", bytes(20 << 20))
            outcome = await session.publish("t", bytes(2 << 20))
            assert isinstance(outcome, unisono.Refused)
            assert "the most is" in outcome.reason
            assert isinstance(await session.publish("t", b"small"), unisono.Accepted)
            assert [e.payload for e in await take(stream, 1)] == [b"small"]

    asyncio.run(run())


def test_a_filter_that_costs_every_broker_too_much_is_refused_and_counted() -> None:
    wide = " and ".join(f"a{i} = {i}" for i in range(3_200))

    async def run() -> None:
        deployment = chain(1)
        async with running(deployment), unisono.connect(url(deployment, "b0")) as session:
            with pytest.raises(unisono.UnisonoError, match="the most is 2000"):
                async with session.subscribe("t", where=wide):
                    pass
            counters = (await session.status("b0")).counters["overlay"]
            assert counters["refused_filter_cost"] == 1
            async with session.subscribe("t") as stream:
                await session.publish("t", 1)
                assert [e.data for e in await take(stream, 1)] == [1]

    asyncio.run(run())


def test_promises_an_overlay_cannot_keep_are_refused_with_the_reason() -> None:
    async def run() -> None:
        deployment = chain(1, held_ms=200)
        async with running(deployment), unisono.connect(url(deployment, "b0")) as session:
            for options, complaint in (
                ({"order": "causal"}, "not what an overlay gives.* For 'causal': kind = \"sequencer\""),
                ({"reliability": "reliable"}, "keeps payloads"),
                ({"start": "earliest"}, 'start after.* kind = "sequencer" with an archive'),
                ({"name": "me"}, "keeps nothing to start after"),
                ({"group": "g"}, "keeps nothing to start after"),
                ({"deadline": "100ms"}, "give it up after 200 ms"),
            ):
                with pytest.raises(unisono.PlanError, match=complaint):
                    session.subscribe("t", **options)  # type: ignore[arg-type]
            session.subscribe("t", deadline="200ms")

    asyncio.run(run())


def test_without_an_overlay_advertising_is_refused() -> None:
    async def run() -> None:
        async with unisono.connect("memory://") as session:
            with pytest.raises(unisono.PlanError, match="overlay"):
                await session.publisher("t", advertise="px > 1")

    asyncio.run(run())


def test_a_hostile_client_hurts_nobody_but_itself() -> None:
    """Filters that are none, names of others, sequences that go back, words that only brokers say."""
    broken = Filter((Box((("x", Values(numbers=((5, 0), (1, 0)))),)),))
    nan = Filter((Box((("x", Values(numbers=((float("nan"), 0),))),)),))

    async def run() -> None:
        deployment = chain(2)
        async with (
            running(deployment) as nodes,
            unisono.connect(url(deployment, "b0")) as honest,
            unisono.connect(url(deployment, "b0")) as hostile,
            honest.subscribe("t", where="x > 1") as stream,
        ):
            assert isinstance(honest, OverlaySession)
            assert isinstance(hostile, OverlaySession)
            await honest.publish("t", {"x": 2})
            await take(stream, 1)
            me, b0 = Address(f"{hostile.address}/9"), Address("b0")
            mine = parse("true")
            victim = stream.sid
            for message in (
                Sub(me, f"{me}/1", str(me), broken),
                Sub(me, f"{me}/2", str(me), nan),
                Sub(me, f"{me}/3", str(me), Filter(())),
                Sub(me, f"{victim}/1", str(me), mine),
                Sub(me, f"{me}/4", str(victim), mine),
                Unsub(me, f"{victim}/1"),
                Adv(me, f"{me}/5", str(victim), mine),
                Adv(me, f"{me}/6", str(me), broken),
                Adv(me, f"{me}/7", str(me), mine),
                Pub(me, _event(str(me), 2)),
                Pub(me, _event(str(me), 2)),
                Pub(me, _event(str(me), 1)),
                Pub(me, _event("somebody", 1)),
                Ok(me, "S", f"{victim}/1", 1),
                OverlayOpen(me),
            ):
                hostile.links.send(b0, message)
            overlay = nodes["b0"].overlay
            assert overlay is not None
            await until(lambda: overlay.host.counters.refused >= 10)
            assert isinstance(await honest.publish("t", {"x": 3}), unisono.Accepted)
            got = await take(stream, 2)
            assert [(e.attributes.get("x")) for e in got] == [7, 3]
            assert overlay.host.failure is None

    asyncio.run(run())


def _event(publisher: str, sequence: int) -> Event:
    return Event(publisher, sequence, "t", b"", {"x": 7})
