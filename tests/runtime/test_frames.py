"""Frames: whatever bytes arrive, the answer is letters or a typed refusal, and memory stays bounded."""

import asyncio
import contextlib
import ssl
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import trustme
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct

from unisono.errors import PeerError, TransportError, UnisonoError
from unisono.model.ids import Address
from unisono.runtime.links.connection import Connection, WireConfig
from unisono.runtime.links.frames import (
    PROTOCOL_VERSIONS,
    Codec,
    FrameReader,
    Hello,
    Letter,
    Rejected,
    agree_on_protocol,
    decode_hello,
    encode_frame,
)
from unisono.structures.sessions import Frame, Handled


class Ping(Struct, frozen=True, tag="Ping"):
    number: int


class Text(Struct, frozen=True, tag="Text"):
    text: str


CODEC = Codec(Frame[Ping | Text] | Handled | Ping | Text)
PING = Letter(Address("b"), Ping(1))


def letters(count: int) -> list[Letter[Ping]]:
    return [Letter(Address("b"), Ping(number)) for number in range(count)]


@given(st.lists(st.binary(max_size=40), max_size=8), st.integers(1, 7))
def test_frames_survive_any_cutting_of_the_stream(bodies: list[bytes], step: int) -> None:
    stream = b"".join(len(body).to_bytes(4, "big") + body for body in bodies)
    reader = FrameReader(100)
    got = [bytes(body) for i in range(0, len(stream), step) for body in reader.feed(stream[i : i + step])]
    assert got == bodies


def test_a_frame_over_the_limit_is_refused_from_its_length_alone() -> None:
    with pytest.raises(PeerError, match="longest allowed is 100"):
        list(FrameReader(100).feed((101).to_bytes(4, "big")))


@settings(max_examples=600)
@given(st.binary(max_size=300))
def test_random_bytes_are_letters_or_a_peer_error(data: bytes) -> None:
    for decode in (CODEC.decode, decode_hello):
        with contextlib.suppress(PeerError):
            decode(data)


@settings(max_examples=600)
@given(st.data())
def test_damaged_frames_are_letters_or_a_peer_error(data: st.DataObject) -> None:
    good = msgspec.msgpack.encode([Letter(Address("b"), Frame(Address("a"), 7, Text("x" * 9))), PING])
    at = data.draw(st.integers(0, len(good) - 1))
    bad = good[:at] + data.draw(st.binary(max_size=5)) + good[at + data.draw(st.integers(0, 5)) :]
    with contextlib.suppress(PeerError):
        CODEC.decode(bad)


def test_deep_nesting_is_a_peer_error() -> None:
    with pytest.raises(PeerError):
        CODEC.decode(b"\x91" * 100_000)


def test_session_frames_decode_typed() -> None:
    sent = [Letter(Address("b"), Frame(Address("a"), 3, Ping(5))), Letter(Address("b"), Handled(Address("a"), 3))]
    assert CODEC.decode(msgspec.msgpack.encode(sent)) == sent


@pytest.mark.parametrize("theirs", [(0, PROTOCOL_VERSIONS[0] - 1), (PROTOCOL_VERSIONS[1] + 1, 99)])
def test_a_peer_without_a_common_protocol_is_refused(theirs: tuple[int, int]) -> None:
    with pytest.raises(PeerError, match="they speak"):
        agree_on_protocol(theirs)


class Side:
    """What one end of a connection saw."""

    def __init__(self, name: str, reject: Rejected | None = None, config: WireConfig = WireConfig()) -> None:
        self.hello = Hello("node", (Address(name),))
        self.config = config
        self.reject = reject
        self.messages: list[Any] = []
        self.batches = 0
        self.closed: asyncio.Future[UnisonoError | None] = asyncio.get_running_loop().create_future()
        self.connection: Connection | None = None

    def make(self, dialed: bool) -> Callable[[], Connection]:
        def build() -> Connection:
            self.connection = Connection(
                CODEC, self.hello, dialed, lambda _c, _h: self.reject, self._receive, self._done, self.config
            )
            return self.connection

        return build

    def _receive(self, connection: Connection, letters: list[Letter[Any]]) -> None:
        self.batches += 1
        self.messages += [letter.message for letter in letters]

    def _done(self, connection: Connection, error: UnisonoError | None) -> None:
        self.closed.set_result(error)


async def until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.002)


async def pair(dialer: Side, acceptor: Side, **tls: Any) -> asyncio.Server:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(acceptor.make(False), "127.0.0.1", 0, ssl=tls.get("server"))
    port = server.sockets[0].getsockname()[1]
    await loop.create_connection(
        dialer.make(True), "127.0.0.1", port, ssl=tls.get("client"), server_hostname="localhost" if tls else None
    )
    return server


def test_letters_of_one_turn_arrive_in_order_and_in_one_frame() -> None:
    async def run() -> None:
        a, b = Side("a"), Side("b")
        server = await pair(a, b)
        assert a.connection is not None
        for letter in letters(1000):
            a.connection.post(letter)
        await until(lambda: len(b.messages) == 1000)
        assert b.messages == [Ping(number) for number in range(1000)]
        assert b.batches == 1
        a.connection.close()
        assert await b.closed is None
        server.close()

    asyncio.run(run())


def test_a_frame_that_would_be_too_long_is_sent_in_parts() -> None:
    async def run() -> None:
        config = WireConfig(frame_bytes_max=1000)
        a, b = Side("a", config=config), Side("b", config=config)
        server = await pair(a, b)
        assert a.connection is not None
        for letter in letters(500):
            a.connection.post(letter)
        await until(lambda: len(b.messages) == 500)
        assert b.batches > 1
        a.connection.close()
        server.close()

    asyncio.run(run())


def test_garbage_after_the_hello_closes_the_connection_with_a_peer_error() -> None:
    async def run() -> None:
        b = Side("b")
        server = await asyncio.get_running_loop().create_server(b.make(False), "127.0.0.1", 0)
        _, writer = await asyncio.open_connection("127.0.0.1", server.sockets[0].getsockname()[1])
        writer.write(encode_frame(Hello("client", (Address("c"),))) + encode_frame([PING]) + encode_frame({"no": 1}))
        error = await asyncio.wait_for(b.closed, 10)
        assert isinstance(error, PeerError)
        assert b.messages == [Ping(1)]
        writer.close()
        server.close()

    asyncio.run(run())


def test_a_rejected_peer_is_told_why_and_cut_off() -> None:
    async def run() -> None:
        a, b = Side("a"), Side("b", reject=Rejected("wrong token", "token"))
        server = await pair(a, b)
        error = await asyncio.wait_for(a.closed, 10)
        assert isinstance(error, PeerError)
        assert "wrong token" in str(error)
        assert isinstance(await asyncio.wait_for(b.closed, 10), PeerError)
        server.close()

    asyncio.run(run())


def test_a_peer_that_never_introduces_itself_is_cut_off() -> None:
    async def run() -> None:
        b = Side("b", config=WireConfig(hello_s=0.05))
        server = await asyncio.get_running_loop().create_server(b.make(False), "127.0.0.1", 0)
        _, writer = await asyncio.open_connection("127.0.0.1", server.sockets[0].getsockname()[1])
        assert isinstance(await asyncio.wait_for(b.closed, 10), PeerError)
        writer.close()
        server.close()

    asyncio.run(run())


def test_a_peer_that_does_not_read_cannot_fill_our_memory() -> None:
    async def run() -> None:
        a, b = Side("a", config=WireConfig(waiting_bytes_max=1_000_000)), Side("b")
        server = await pair(a, b)
        await until(lambda: b.connection is not None and b.connection.peer is not None)
        assert a.connection is not None
        assert b.connection is not None
        b.connection.pause_reading()
        big = Letter(Address("b"), Text("x" * 50_000))
        while not a.closed.done():
            a.connection.post(big)
            assert a.connection.waiting_bytes <= 1_100_000
            await asyncio.sleep(0)
        assert isinstance(a.closed.result(), TransportError)
        server.close()

    asyncio.run(run())


def test_a_silent_peer_is_given_up_and_an_idle_one_is_not() -> None:
    async def run() -> None:
        quick = WireConfig(heartbeat_s=0.02)
        a, b = Side("a", config=quick), Side("b", config=quick)
        server = await pair(a, b)
        _, silent = await asyncio.open_connection("127.0.0.1", server.sockets[0].getsockname()[1])
        mute = Side("c", config=quick)
        other = await asyncio.get_running_loop().create_server(mute.make(False), "127.0.0.1", 0)
        _, writer = await asyncio.open_connection("127.0.0.1", other.sockets[0].getsockname()[1])
        writer.write(encode_frame(Hello("client", (Address("c"),))))
        assert isinstance(await asyncio.wait_for(mute.closed, 10), TransportError)
        assert not a.closed.done()
        for each in (silent, writer):
            each.close()
        server.close()
        other.close()

    asyncio.run(run())


def test_letters_travel_over_tls_and_strangers_do_not_get_in() -> None:
    async def run() -> None:
        authority = trustme.CA()
        server_context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        authority.issue_cert("localhost").configure_cert(server_context)
        client_context = ssl.create_default_context()
        authority.configure_trust(client_context)
        a, b = Side("a"), Side("b")
        server = await pair(a, b, server=server_context, client=client_context)
        assert a.connection is not None
        a.connection.post(PING)
        await until(lambda: b.messages == [Ping(1)])
        with pytest.raises(ssl.SSLCertVerificationError):
            await pair(Side("c"), Side("d"), server=server_context, client=ssl.create_default_context())
        a.connection.close()
        server.close()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("first", "who"),
    [
        (b"\x16\x03\x01\x02\x00\x01", "a TLS client"),
        (b"GET / HTTP/1.1\r\n", "a web client"),
        (b"INFO {}\r\n", "a NATS server"),
    ],
)
def test_who_is_at_the_wrong_port_is_named(first: bytes, who: str) -> None:
    with pytest.raises(PeerError, match=f"{who} speaks there"):
        list(FrameReader(4096).feed(first))
