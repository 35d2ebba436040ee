"""Finding a deployment by DNS: a responder of our own on loopback, over UDP and TCP, honest and not."""

import asyncio
import random
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import unisono
from tests.runtime.test_cluster import running, star
from unisono.errors import PeerError, TransportError
from unisono.runtime.brokers import endpoint
from unisono.runtime.srv import Target, decode_answer, encode_question, in_turn, resolve_srv

NAME = "_unisono._tcp.example.test"


def spell(name: str) -> bytes:
    return b"".join(bytes([len(label)]) + label.encode() for label in name.split(".")) + b"\0"


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
    return question[:2] + flags + counts + question[12:] + (b"" if truncated else records)


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
            seeds = await resolve_srv("example.test", where, 30)
            assert sorted(seeds) == sorted(f"{target.host}:{target.port}" for target in targets)
            assert len(asked) >= 2

    asyncio.run(run())


def test_a_domain_without_nodes_and_a_server_that_is_not_there_are_transport_errors() -> None:
    async def run() -> None:
        async with dns(lambda question: [question[:2] + b"\x81\x83" + question[4:]]) as where:
            with pytest.raises(TransportError, match=f"no SRV record for {NAME}"):
                await resolve_srv("example.test", where, 30)
        with pytest.raises(TransportError, match="does not answer"):
            await resolve_srv("example.test", where, 0.2)

    asyncio.run(run())


def test_a_server_that_refuses_says_so() -> None:
    question = encode_question(NAME, 7)
    with pytest.raises(PeerError, match="code 5"):
        decode_answer(question[:2] + b"\x81\x85" + question[4:], question)


def test_names_that_are_none_are_the_callers_mistake() -> None:
    for name in ("", "a..b", "x" * 64, ".".join(["y" * 60] * 5)):
        with pytest.raises(unisono.MisuseError, match="no domain name"):
            encode_question(f"_unisono._tcp.{name}" if name else "a..b", 1)


def test_priorities_come_first_and_weights_decide_within_them() -> None:
    low = [Target(1, 90, 1, "often"), Target(1, 10, 1, "seldom")]
    last = Target(2, 100, 1, "last")
    dice = random.Random(5)
    turns = [in_turn([last, *low], dice) for _ in range(500)]
    assert all(turn[2] == last for turn in turns)
    assert 400 < sum(turn[0] == low[0] for turn in turns) < 490


@given(st.binary(max_size=300), st.booleans())
def test_no_answer_breaks_the_reader(data: bytes, is_ours: bool) -> None:
    question = encode_question(NAME, 7)
    whole = question[:2] + b"\x81\x80\0\1\0\2\0\1\0\1" + question[12:] + data if is_ours else data
    try:
        answer = decode_answer(whole, question)
    except PeerError:
        return
    assert all(target.host for target in answer.targets)


def test_a_name_that_points_at_itself_is_refused() -> None:
    question = encode_question(NAME, 7)
    here = 0xC000 | len(question)
    with pytest.raises(PeerError, match="jumps forward"):
        decode_answer(question[:2] + b"\x81\x80\0\1\0\1\0\0\0\0" + question[12:] + here.to_bytes(2, "big"), question)
