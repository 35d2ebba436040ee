"""Finding a deployment by DNS: a responder of our own on loopback, over UDP and TCP, honest and not."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

import unisono
from tests.runtime.test_cluster import running, star
from unisono.errors import MisuseError, PeerError, TransportError
from unisono.model.address import endpoint
from unisono.runtime.links.srv import NameServer, resolve_srv

NAME = "_unisono._tcp.example.test"


class Target(NamedTuple):
    """An SRV record."""

    priority: int
    weight: int
    port: int
    host: str


def question_of(query: bytes) -> bytes:
    """The question section alone: a client may add options after it."""
    end = query.index(0, 12) + 5
    return query[12:end]


def spell(name: str) -> bytes:
    return b"".join(bytes([len(label)]) + label.encode() for label in name.split(".") if label) + b"\0"


def respond(question: bytes, targets: list[Target], addresses: dict[str, str], truncated: bool = False) -> bytes:
    """A response as DNS servers write it: owner names as pointers to the question, addresses as additional records."""
    records = b""
    for target in targets:
        body = b"".join(number.to_bytes(2, "big") for number in target[:3]) + spell(target.host)
        records += b"\xc0\x0c" + b"\0\x21\0\1\0\0\0\x3c" + len(body).to_bytes(2, "big") + body
    for host, address in addresses.items():
        records += spell(host) + b"\0\1\0\1\0\0\0\x3c\0\4" + bytes(int(part) for part in address.split("."))
    counts = b"\0\1" + len(targets).to_bytes(2, "big") + b"\0\0" + len(addresses).to_bytes(2, "big")
    flags = b"\x83\x80" if truncated else b"\x81\x80"
    return question[:2] + flags + counts + question_of(question) + (b"" if truncated else records)


class Responder(asyncio.DatagramProtocol):
    """A DNS server for whatever it is told to answer."""

    def __init__(self, answer: Callable[[bytes], list[bytes]]) -> None:
        self._answer = answer

    def connection_made(self, transport: asyncio.DatagramTransport) -> None:
        self._transport = transport

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        for response in self._answer(data):
            self._transport.sendto(response, addr)


@asynccontextmanager
async def dns(
    udp: Callable[[bytes], list[bytes]], tcp: Callable[[bytes], bytes] | None = None
) -> AsyncGenerator[tuple[str, int], None]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        question = await reader.readexactly(int.from_bytes(await reader.readexactly(2), "big"))
        assert tcp is not None
        response = tcp(question)
        writer.write(len(response).to_bytes(2, "big") + response)
        writer.close()

    loop = asyncio.get_running_loop()
    server = None
    while True:
        transport, _ = await loop.create_datagram_endpoint(lambda: Responder(udp), ("127.0.0.1", 0))
        where: tuple[str, int] = transport.get_extra_info("sockname")
        try:
            server = await asyncio.start_server(serve, *where) if tcp is not None else None
            break
        except OSError:  # the port is free for datagrams only
            transport.close()
    try:
        yield where
    finally:
        transport.close()
        if server is not None:
            server.close()


def test_a_deployment_is_found_by_its_domain(tmp_path: Path) -> None:
    async def run() -> None:
        deployment = star(data=False)
        _, port = endpoint(deployment.node("east").listen)
        targets = [Target(10, 5, 1, "dead.example.test"), Target(20, 5, port, "east.example.test")]
        addresses = {"dead.example.test": "127.0.0.1", "east.example.test": "127.0.0.1"}
        async with (
            asyncio.timeout(60),
            dns(lambda question: [respond(question, targets, addresses)]) as (host, at),
            running(deployment, tmp_path),
            unisono.connect(f"unisono+srv://example.test?dns={host}:{at}", timeout=30) as session,
        ):
            assert session.deployment == deployment
            assert isinstance(await session.publish("trades", 1), unisono.Accepted)

    asyncio.run(run())


def test_a_long_answer_is_fetched_over_tcp_and_a_lost_question_is_asked_again() -> None:
    async def run() -> None:
        targets = [Target(1, 1, 7000 + i, f"node-{i}.example.test") for i in range(60)]
        asked: list[bytes] = []

        def udp(question: bytes) -> list[bytes]:
            asked.append(question)
            # The first question is lost; the second gets an answer to another one, and then its own.
            stale = bytes(2 * [0x55]) + respond(question, [], {})[2:]
            return [] if len(asked) == 1 else [stale, respond(question, [], {}, truncated=True)]

        async with asyncio.timeout(60), dns(udp, lambda question: respond(question, targets, {})) as where:
            seeds = await resolve_srv("example.test", NameServer(*where), 30)
            assert sorted(seeds) == sorted(f"{target.host}:{target.port}" for target in targets)
            assert len(asked) >= 2

    asyncio.run(run())


async def refused(answer: Callable[[bytes], list[bytes]], timeout_s: float = 30) -> Exception:
    async with dns(answer) as where:
        with pytest.raises(unisono.UnisonoError) as failed:
            await resolve_srv("example.test", NameServer(*where), timeout_s)
        return failed.value


def coded(question: bytes, code: int) -> bytes:
    return question[:2] + bytes([0x81, 0x80 | code]) + b"\0\1\0\0\0\0\0\0" + question_of(question)


def test_a_domain_without_nodes_and_a_server_that_is_not_there_are_transport_errors() -> None:
    async def run() -> None:
        for problem, answer in (
            (f"no SRV record for {NAME}", lambda question: [coded(question, 3)]),
            (f"no SRV record for {NAME}", lambda question: [respond(question, [], {})]),
            ("example.test has no nodes", lambda question: [respond(question, [Target(0, 0, 0, ".")], {})]),
        ):
            error = await refused(answer)
            assert isinstance(error, TransportError)
            assert problem in str(error)
        error = await refused(lambda question: [], timeout_s=0.2)
        assert isinstance(error, TransportError)
        assert "does not answer" in str(error)

    asyncio.run(run())


def test_a_server_that_refuses_or_talks_nonsense_is_to_blame() -> None:
    async def run() -> None:
        error = await refused(lambda question: [coded(question, 5)], timeout_s=5)
        assert isinstance(error, PeerError)
        assert "REFUSED" in str(error)
        error = await refused(lambda question: [question[:2] + b"\xff" * 30], timeout_s=1)
        assert isinstance(error, PeerError | TransportError)

    asyncio.run(run())


@pytest.mark.parametrize("name", ["", "a..b", "x" * 64, ".".join(["y" * 60] * 5)])
def test_names_that_are_none_are_the_callers_mistake(name: str) -> None:
    with pytest.raises(MisuseError, match="no domain name"):
        asyncio.run(resolve_srv(name, NameServer("127.0.0.1", 9), 1))


def test_the_address_of_a_name_server_is_an_address() -> None:
    with pytest.raises(MisuseError, match="IP address"):
        asyncio.run(resolve_srv("example.test", NameServer("resolver.example.test", 53), 1))


def test_priorities_come_first_and_weights_decide_within_them() -> None:
    async def run() -> None:
        targets = [Target(2, 100, 3, "last"), Target(1, 90, 1, "often"), Target(1, 10, 2, "seldom")]
        firsts = []
        async with dns(lambda question: [respond(question, targets, {})]) as where:
            for _ in range(200):
                *turn, last = await resolve_srv("example.test", NameServer(*where), 30)
                assert last == "last:3"
                firsts.append(turn[0])
        assert 140 < firsts.count("often:1") < 200

    asyncio.run(run())


def test_an_ipv6_address_stands_in_brackets() -> None:
    async def run() -> None:
        def answer(question: bytes) -> bytes:
            said = respond(question, [Target(1, 1, 7474, "six.example.test")], {})
            record = spell("six.example.test") + b"\0\x1c\0\1\0\0\0\x3c\0\x10" + bytes(15) + b"\1"
            return said[:10] + b"\0\1" + said[12:] + record

        async with dns(lambda question: [answer(question)]) as where:
            assert await resolve_srv("example.test", NameServer(*where), 30) == ["[::1]:7474"]

    asyncio.run(run())
