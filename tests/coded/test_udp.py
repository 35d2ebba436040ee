"""Real datagrams on loopback: intact despite real losses, silent to strangers, unmoved by noise."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from random import Random

import msgspec
import pytest

from unisono.errors import MisuseError, TransportError
from unisono.model.ids import Address, Topic
from unisono.protocols.coded.channel import Channel
from unisono.protocols.coded.config import CodedConfig
from unisono.protocols.coded.messages import AskPackets, EventKey, MemberHello, Members, Seen
from unisono.protocols.coded.wire import publisher_id
from unisono.runtime.brokers.udp.node import (
    CHALLENGE,
    CONTROL,
    COOKIE_BYTES,
    NO_COOKIE,
    JoinTopic,
    UdpConfig,
    UdpNode,
    endpoint_of,
)

TOPIC = Topic(1)
QUICK = CodedConfig(
    quiet_us=5_000, ask_every_us=30_000, advert_every_us=200_000, deadline_us=30_000_000, keep_us=60_000_000
)
BURSTY = Channel(0.2, 2)


@asynccontextmanager
async def group(size: int, loss: Channel | None = None, coded: CodedConfig = QUICK) -> AsyncIterator[list[UdpNode]]:
    """Nodes that know each other; all but the first subscribe."""
    async with AsyncExitStack() as stack:
        nodes = [await stack.enter_async_context(UdpNode(coded, UdpConfig(loss=loss, seed=i))) for i in range(size)]
        for node in nodes:
            node.introduce(*(other.address for other in nodes))
        await asyncio.gather(*(node.subscribe(TOPIC) for node in nodes[1:]))
        yield nodes


def run(body: Callable[[], Awaitable[None]], seconds: float = 60) -> None:
    asyncio.run(asyncio.wait_for(body(), seconds))  # type: ignore[arg-type]


async def deliver(nodes: list[UdpNode], count: int, size: int, window: int = 20) -> None:
    """Publishes at the first node, no more than `window` events ahead of the slowest, and checks every byte."""
    dice = Random(1)
    contents = [i.to_bytes(4, "big") + dice.randbytes(size) for i in range(count)]
    got: list[dict[int, None]] = [{} for _ in nodes[1:]]

    async def listen(node: UdpNode, into: dict[int, None]) -> None:
        while len(into) < count:
            topic, content = await node.heard.get()
            number = int.from_bytes(content[:4], "big")
            assert (topic, content) == (TOPIC, contents[number])
            assert number not in into
            into[number] = None

    listeners = [asyncio.ensure_future(listen(node, into)) for node, into in zip(nodes[1:], got, strict=True)]
    for i, content in enumerate(contents):
        nodes[0].publish(TOPIC, content)
        await asyncio.sleep(0)
        while i - min(len(into) for into in got) >= window:
            await asyncio.sleep(0.001)
    await asyncio.gather(*listeners)
    assert all(not node.gaps for node in nodes)


def test_every_event_arrives_intact_over_real_datagrams_of_which_a_fifth_is_dropped() -> None:
    async def body() -> None:
        async with group(3, BURSTY) as nodes:
            await deliver(nodes, 60, 6000)
            assert nodes[0].counters["dropped on purpose"] > 50
            assert len(nodes[1].machine._arrivals.live) == 0

    run(body)


@pytest.mark.campaign
def test_ten_thousand_events_arrive_intact_and_memory_does_not_grow() -> None:
    async def body() -> None:
        coded = msgspec.structs.replace(QUICK, kept_max=200, finished_max=20_000)
        async with group(2, BURSTY, coded) as nodes:
            await deliver(nodes, 10_000, 6000)
            for node in nodes:
                assert len(node.machine._arrivals.kept) <= 200
                assert len(node.machine._arrivals.live) == 0

    run(body, 1200)


class Stranger:
    """A bare socket that keeps count of what it sends and gets."""

    def __init__(self, target: Address) -> None:
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind(("127.0.0.1", 0))
        self.socket.setblocking(False)
        self.target = endpoint_of(target)
        self.address = Address("{}:{}".format(*self.socket.getsockname()))
        self.sent = self.got = 0
        self.answers: list[bytes] = []

    def send(self, data: bytes) -> None:
        self.sent += len(data)
        self.socket.sendto(data, self.target)

    async def listen(self, node: UdpNode, until: int) -> None:
        """Until the node has read so many datagrams in all."""
        while node.counters.get("received", 0) < until:
            await asyncio.sleep(0.001)
        while True:
            try:
                data = self.socket.recv(65_536)
            except BlockingIOError:
                return
            self.got += len(data)
            self.answers.append(data)


async def holder() -> UdpNode:
    node = UdpNode(QUICK)
    await node.__aenter__()
    node.publish(TOPIC, bytes(20_000))
    return node


def question(me: Address, node: UdpNode) -> bytes:
    return msgspec.msgpack.encode(AskPackets(me, EventKey(TOPIC, publisher_id(node.address), 1), 0, 10))


def test_a_question_without_a_cookie_gets_a_challenge_no_longer_than_three_times_itself() -> None:
    async def body() -> None:
        node = await holder()
        stranger = Stranger(node.address)
        forgeries = [NO_COOKIE, b"\1" * COOKIE_BYTES, b""]
        for cookie in forgeries:
            stranger.send(CONTROL + cookie + question(stranger.address, node))
        stranger.send(CONTROL + NO_COOKIE + b"x")
        stranger.send(CONTROL)
        await stranger.listen(node, 5)
        assert stranger.answers
        assert all(answer[:2] == CHALLENGE for answer in stranger.answers)
        assert stranger.got <= 3 * stranger.sent
        assert node.counters["without a cookie"] == 4
        await node.__aexit__()

    run(body)


def test_with_the_cookie_of_its_endpoint_it_is_served_and_another_endpoint_is_not() -> None:
    async def body() -> None:
        node = await holder()
        first, second = Stranger(node.address), Stranger(node.address)
        first.send(CONTROL + NO_COOKIE + question(first.address, node))
        await first.listen(node, 1)
        cookie = first.answers[0][2:]
        second.send(CONTROL + cookie + question(second.address, node))
        await second.listen(node, 2)
        assert [answer[:2] for answer in second.answers] == [CHALLENGE]
        first.send(CONTROL + cookie + question(first.address, node))
        await first.listen(node, 3)
        assert len(first.answers) == 1 + 11
        first.send(CONTROL + cookie + question(second.address, node))
        await second.listen(node, 4)
        assert node.counters["not its own name"] == 1
        assert len(second.answers) == 1
        await node.__aexit__()

    run(body)


def test_a_spoofed_join_makes_nobody_a_target() -> None:
    async def body() -> None:
        node = await holder()
        stranger = Stranger(node.address)
        stranger.send(CONTROL + NO_COOKIE + msgspec.msgpack.encode(JoinTopic(TOPIC)))
        await stranger.listen(node, 1)
        node.publish(TOPIC, bytes(50_000))
        await stranger.listen(node, 1)
        assert stranger.got <= 3 * stranger.sent
        await node.__aexit__()

    run(body)


def test_cookies_that_have_expired_are_replaced_on_the_way() -> None:
    async def body() -> None:
        async with AsyncExitStack() as stack:
            config = UdpConfig(cookie_life_s=0.02)
            a, b = [await stack.enter_async_context(UdpNode(QUICK, config)) for _ in range(2)]
            b.introduce(a.address)
            await b.subscribe(TOPIC)
            before = a.counters["without a cookie"]
            a.publish(TOPIC, b"one")
            assert await b.heard.get() == (TOPIC, b"one")
            while a.counters["without a cookie"] < before + 2:
                b._control(MemberHello(b.address, TOPIC), endpoint_of(a.address))
                await asyncio.sleep(0.03)
            while b.address not in a.machine._topics[TOPIC].view:
                await asyncio.sleep(0.005)

    run(body)


def test_noise_and_senseless_members_move_nothing() -> None:
    async def body() -> None:
        async with group(2) as nodes:
            dice, stranger = Random(5), Stranger(nodes[1].address)
            before = nodes[1].counters["received"]
            for i in range(300):
                head = (b"", b"uC", CONTROL, CHALLENGE)[i % 4]
                stranger.send(head + dice.randbytes(dice.randrange(100)))
                if i % 50 == 0:
                    await stranger.listen(nodes[1], before + i)
            await stranger.listen(nodes[1], before + 300)
            assert stranger.got <= 3 * stranger.sent
            nodes[1]._give(Members(nodes[0].address, TOPIC, tuple(Seen(Address(a), 0) for a in ("", "x:y", "h:99999"))))
            await deliver(nodes, 3, 9000)

    run(body)


def test_a_node_that_leaves_gets_nothing_more() -> None:
    async def body() -> None:
        async with group(3) as nodes:
            nodes[2].unsubscribe(TOPIC)
            while nodes[2].address in nodes[0]._members.get(TOPIC, {}):
                await asyncio.sleep(0.005)
            await deliver(nodes[:2], 3, 2000)
            assert nodes[2].heard.empty()

    run(body)


@pytest.mark.parametrize(
    "bad", ["", "nowhere", "localhost:99", "127.0.0.1:0", "127.0.0.1:65536", "127.0.0.1:-1", "::1:4"]
)
def test_an_address_is_numbers(bad: str) -> None:
    with pytest.raises(MisuseError):
        endpoint_of(Address(bad))


def test_a_port_in_use_is_said() -> None:
    async def body() -> None:
        async with UdpNode() as node:
            taken = endpoint_of(node.address)[1]
            with pytest.raises(TransportError):
                await UdpNode(config=UdpConfig(port=taken)).__aenter__()

    run(body)
