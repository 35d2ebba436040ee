"""What no honest client says, over the socket: refused or bounded, with a reason and a counter; others go on."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

import unisono
from tests.runtime.overlay.test_overlay import take, until, url
from tests.runtime.regions.test_regions import role, running, two_regions
from unisono.model.event import Event
from unisono.model.ids import Address
from unisono.model.predicate import Filter, make_box, parse
from unisono.model.predicate.values import point
from unisono.model.time import Micros
from unisono.protocols.regions.messages import (
    Attach,
    Attached,
    CountEntourage,
    CountReply,
    CountRound,
    DirectConnect,
    DirectItem,
    GraphEntry,
    GraphReport,
    OpenStream,
    RootAck,
    StreamItem,
)
from unisono.runtime.client.regions import RegionsSession
from unisono.runtime.node.node import Node


def many_boxes() -> Filter:
    boxes = [make_box({"x": point(n), "y": point(n)}) for n in range(10_000)]
    return Filter(tuple(box for box in boxes if box is not None))


class Liar:
    """A connected client that says what it likes."""

    def __init__(self, session: RegionsSession, node: Node) -> None:
        self.session, self.node = session, node
        self.me = Address(f"{session.address}/9")
        self.answers: list[Any] = []
        session.links.attach(self.me, self)

    def says(self, message: Any) -> None:
        self.session.links.send(Address(self.session.broker.name), message)

    def post(self, message: Any) -> None:
        self.answers.append(message)

    is_full = False

    def when_roomy(self, callback: Any) -> None: ...

    async def refused(self, code: str, times: int = 1) -> None:
        await until(lambda: role(self.node).broker.refusals.get(code, 0) >= times)


@asynccontextmanager
async def lying() -> AsyncGenerator[tuple[Liar, RegionsSession, unisono.Stream]]:
    """A liar at u2, and honest people beside it."""
    deployment = two_regions()
    async with (
        running(deployment) as nodes,
        unisono.connect(url(deployment, "u2"), region="us") as bad,
        unisono.connect(url(deployment, "u2"), region="us") as good,
        good.subscribe("trades", order="fifo", where="x >= 0") as stream,
    ):
        assert isinstance(bad, RegionsSession)
        assert isinstance(good, RegionsSession)
        liar = Liar(bad, nodes["u2"])
        liar.says(OpenStream(liar.me, liar.me, 1, 0, 0))
        yield liar, good, stream


async def goes_on(session: RegionsSession, stream: unisono.Stream) -> None:
    for n in range(10):
        assert isinstance(await session.publish("trades", {"x": n}), unisono.Accepted)
    assert [told.data["x"] for told in await take(stream, 10)] == list(range(10))


def asks(liar: Liar, number: int, advertised: Filter) -> CountEntourage:
    return CountEntourage(liar.me, liar.me, CountRound(number, advertised, 0.1), 1_000_000, is_climbing=True)


@pytest.mark.parametrize("what", ["interest", "advertisement", "mark"])
def test_ten_thousand_boxes_are_refused_before_anybody_looks_into_them(what: str) -> None:
    async def run() -> None:
        async with lying() as (liar, session, stream):
            boxes = many_boxes()
            match what:
                case "interest":
                    liar.says(Attach(liar.me, 1, boxes))
                case "advertisement":
                    liar.says(asks(liar, 1, boxes))
                case _:
                    liar.says(StreamItem(liar.me, liar.me, 1, Micros(0), None, boxes))
            await liar.refused("filter-cost")
            await goes_on(session, stream)
            assert not any(isinstance(answer, Attached | CountReply) for answer in liar.answers)

    asyncio.run(run())


def test_a_flood_of_counts_is_asked_once_and_counted() -> None:
    async def run() -> None:
        async with lying() as (liar, session, stream):
            before = role(liar.node).broker.rounds
            for number in range(1, 1001):
                liar.says(asks(liar, number, parse("x between 0 and 9")))
            await liar.refused("flood", 999)
            assert role(liar.node).broker.rounds <= before + 1
            await goes_on(session, stream)
            assert sum(isinstance(answer, CountReply) for answer in liar.answers) <= 3  # one per root

    asyncio.run(run())


def test_nobody_answers_for_a_broker_or_speaks_in_the_stream_of_another() -> None:
    async def run() -> None:
        async with lying() as (liar, session, stream):
            other = Address(f"{session.address}/1")
            graph = GraphReport((GraphEntry(liar.me, 0, 1_000_000, 0, 0),))
            event = Event(f"{liar.me}.trades", 1, "trades", b"", {"x": 1})
            stolen = Event(f"{other}.trades", 1, "trades", b"", {"x": 1})
            lies = (
                CountReply(liar.me, other, 1, graph),
                OpenStream(liar.me, other, 99, 0, 0),
                StreamItem(liar.me, other, 1, Micros(0), event),
                StreamItem(liar.me, liar.me, 1, Micros(0), stolen),
                DirectConnect(liar.me, other, 1),
                DirectItem(liar.me, other, 1, StreamItem(other, other, 1, Micros(0), event)),
            )
            for lie in lies:
                liar.says(lie)
            await liar.refused("forged", len(lies))
            liar.says(RootAck(liar.me, other, 10**9))  # what it has accepted it may say, and nobody listens below
            await goes_on(session, stream)

    asyncio.run(run())


def test_who_names_another_as_its_source_is_cut_off() -> None:
    async def run() -> None:
        async with lying() as (liar, session, stream):
            liar.says(OpenStream(Address(f"{session.address}/1"), Address(f"{session.address}/1"), 9, 0, 0))
            await until(lambda: liar.node.links.counters.forged == 1)
            await goes_on(session, stream)

    asyncio.run(run())


def test_a_publisher_that_connects_to_everybody_is_a_guest_where_it_is_not_settled() -> None:
    """Whom it can afford a publisher says itself; a target takes streams it knows from the overlay, and so many."""

    async def run() -> None:
        async with lying() as (liar, session, stream):
            for number in range(200):
                liar.says(DirectConnect(Address(f"{liar.me}/{number}"), Address(f"{liar.me}/{number}"), 1))
            await until(lambda: role(liar.node).report()["clients"] >= 200)
            await goes_on(session, stream)
            assert role(liar.node).report()["direct"] == 0

    asyncio.run(run())
