"""What a token may do at brokers of regions: on the way in, on the way out, in answers to those who recover."""

import asyncio

import pytest
from msgspec import structs

import unisono
from tests.runtime.overlay.test_overlay import take, url
from tests.runtime.regions.test_regions import is_linked, running, two_regions
from tests.runtime.regions.test_total import ordered_regions
from unisono.errors import MisuseError
from unisono.model.deployment import Deployment, dump_deployment, parse_deployment
from unisono.model.event import Event
from unisono.model.ids import Address
from unisono.model.settings import Right, Security
from unisono.model.time import Micros
from unisono.protocols.regions.messages import OpenStream, StreamItem
from unisono.runtime.brokers.contract import CONTROL
from unisono.runtime.client.regions import RegionsSession
from unisono.runtime.node.node import Node

ORDERS = Right("orders", "ORDERS_TOKEN", publish=("orders.>",), subscribe=("orders.>", "trades"))
SECURITY = Security(token_variable="ALL_TOKEN", node_token_variable="NODE_TOKEN")


@pytest.fixture(autouse=True)
def _tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    for who in ("ORDERS", "ALL", "NODE"):
        monkeypatch.setenv(f"{who}_TOKEN", f"token-of-{who.lower()}")


def limited(deployment: Deployment) -> Deployment:
    return structs.replace(deployment, security=SECURITY, rights=(ORDERS,))


def says(session: RegionsSession, topic: str, number: int = 1) -> None:
    """What no session of ours would say."""
    stream = Address(f"{session.address}/9")
    event = Event(f"{stream}.{topic}", number, topic, b"x")
    session.links.send(Address(session.broker.name), OpenStream(stream, stream, 1, 0, 0))
    session.links.send(
        Address(session.broker.name), StreamItem(stream, stream, number, Micros(session.now()), event, None)
    )


def refused(node: Node, code: str) -> int:
    return node.refusals.counts.get(code, 0)


@pytest.mark.parametrize("make", [two_regions, ordered_regions])
def test_a_token_hears_and_says_what_its_right_names(make: type) -> None:
    async def run() -> None:
        deployment = limited(make())
        assert parse_deployment(dump_deployment(deployment)) == deployment
        async with (
            running(deployment) as nodes,
            unisono.connect(url(deployment, "e3"), token="token-of-all", region="eu") as everything,
            unisono.connect(url(deployment, "u2"), token="token-of-orders", region="us") as orders,
            orders.subscribe("orders.eu", "trades", order="fifo") as some,
            everything.subscribe("orders.eu", order="fifo") as theirs,
        ):
            assert is_linked(nodes)
            with pytest.raises(MisuseError, match=r"may not (publish on|see) '?trades"):
                await orders.publish("trades", 1)
            for topic in ("secret", "trades", "orders.eu"):
                assert isinstance(await everything.publish(topic, topic), unisono.Accepted)
            assert [told.topic for told in await take(some, 2)] == ["trades", "orders.eu"]
            assert isinstance(await orders.publish("orders.eu", "own"), unisono.Accepted)
            assert [told.data for told in await take(theirs, 2)] == ["orders.eu", "own"]

    asyncio.run(run())


def test_a_pattern_that_is_wider_than_the_right_brings_what_the_right_names() -> None:
    async def run() -> None:
        deployment = limited(two_regions())
        async with (
            running(deployment),
            unisono.connect(url(deployment, "e3"), token="token-of-all", region="eu") as everything,
            unisono.connect(url(deployment, "u2"), token="token-of-orders", region="us") as orders,
        ):
            assert isinstance(orders, RegionsSession)
            orders._right = None  # one that does not heed what it is told
            async with orders.subscribe(">", order="fifo") as stream:
                for n in range(5):
                    await everything.publish("secret", n)
                    await everything.publish("trades", n)
                assert [(told.topic, told.data) for told in await take(stream, 5)] == [("trades", n) for n in range(5)]

    asyncio.run(run())


def test_whoever_does_not_heed_its_right_is_refused_and_counted() -> None:
    async def run() -> None:
        deployment = limited(two_regions())
        async with (
            running(deployment) as nodes,
            unisono.connect(url(deployment, "u2"), token="token-of-orders", region="us") as orders,
            unisono.connect(url(deployment, "u3"), token="token-of-all", region="us") as plain,
            plain.subscribe("trades", "orders.eu", order="fifo") as stream,
        ):
            assert isinstance(orders, RegionsSession)
            assert isinstance(plain, RegionsSession)
            says(orders, "trades")
            says(orders, "orders.eu", 2)
            assert [told.topic for told in await take(stream, 1)] == ["orders.eu"]
            assert refused(nodes["u2"], "right") == 1
            says(plain, f"{CONTROL}trades")  # it may say everything that clients may; this only nodes may
            says(plain, "trades", 2)
            assert [told.topic for told in await take(stream, 1)] == ["trades"]
            assert refused(nodes["u3"], "control") == 1

    asyncio.run(run())
