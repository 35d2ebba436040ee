"""Tokens are proven and never shown: what strangers, clients and impostors can do where there are some."""

import asyncio
import secrets
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest

from tests.runtime.hostile.world import (
    CLIENT_TOKEN,
    HUB,
    ME,
    NODE_TOKEN,
    Attacker,
    Target,
    attacker,
    broker_frame,
    broker_place,
    target,
)
from unisono.errors import PeerError
from unisono.model.ids import Address
from unisono.runtime.brokers.embedded import server as wire
from unisono.runtime.links import control
from unisono.runtime.links.frames import Challenge, Hello, Proof, encode_frame
from unisono.runtime.links.greeting import Greeting
from unisono.runtime.links.questions import ask_node
from unisono.runtime.links.security import Tokens


@pytest.fixture(autouse=True)
def _tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOSTILE_CLIENT_TOKEN", CLIENT_TOKEN)
    monkeypatch.setenv("HOSTILE_NODE_TOKEN", NODE_TOKEN)


def attack(tmp_path: Path, code: str, what: Any) -> None:
    async def run() -> None:
        async with asyncio.timeout(60), target(tmp_path, secure=True) as node:
            before = await node.refused(code)
            await what(node)
            assert await node.refused(code) > before
            await node.serves()

    asyncio.run(run())


async def introduce(one: Attacker, kind: Literal["node", "client"], name: str, token: str) -> None:
    """Goes through the greeting with this token, as far as it gets."""
    greeting = Greeting(Hello(kind, (Address(name),)), True, Tokens(own=token), lambda _: None)
    for frame in greeting.begin():
        await one.send(encode_frame(frame))
    body = await one.body()
    assert body is not None
    for frame in greeting.hear(body):
        await one.send(encode_frame(frame))


def test_a_client_without_a_token_is_refused(tmp_path: Path) -> None:
    async def what(node: Target) -> None:
        async with attacker(node.place) as one:
            await one.hello()
            assert await one.is_told("token")

    attack(tmp_path, "token", what)


@pytest.mark.parametrize(
    ("kind", "name", "token"),
    [("client", ME, "a guess"), ("node", HUB, CLIENT_TOKEN), ("node", HUB, "a guess"), ("client", ME, " ")],
)
def test_a_wrong_token_is_refused(tmp_path: Path, kind: Any, name: str, token: str) -> None:
    async def what(node: Target) -> None:
        async with attacker(node.place) as one:
            await introduce(one, kind, name, token)
            assert await one.is_told("token")

    attack(tmp_path, "token", what)


def test_a_proof_that_was_overheard_is_of_no_use(tmp_path: Path) -> None:
    """Everything an honest client said is said again, to another challenge."""

    async def what(node: Target) -> None:
        async with attacker(node.place) as honest:
            greeting = Greeting(Hello("client", (Address("victim"),)), True, Tokens(own=CLIENT_TOKEN), lambda _: None)
            said = [encode_frame(frame) for frame in greeting.begin()]
            await honest.send(said[0])
            body = await honest.body()
            assert body is not None
            said += [encode_frame(frame) for frame in greeting.hear(body)]
        async with attacker(node.place) as one:
            for frame in said:
                await one.send(frame)
            assert await one.is_told("token")

    attack(tmp_path, "token", what)


def test_a_proof_is_for_the_hello_it_was_made_for(tmp_path: Path) -> None:
    async def what(node: Target) -> None:
        async with attacker(node.place) as one:
            greeting = Greeting(Hello("client", (ME,)), True, Tokens(own=CLIENT_TOKEN), lambda _: None)
            (mine,) = greeting.begin()
            await one.send(encode_frame(msgspec.structs.replace(mine, addresses=(Address("victim"),))))
            body = await one.body()
            assert body is not None
            for frame in greeting.hear(body):
                await one.send(encode_frame(frame))
            assert await one.is_told("token")

    attack(tmp_path, "token", what)


def test_the_broker_refuses_a_wrong_token_and_control_of_clients(tmp_path: Path) -> None:
    async def greet(one: Attacker, token: str) -> None:
        hello = wire.Greet("s", secrets.token_bytes(16))
        await one.send(broker_frame(hello))
        body = await one.body()
        assert body is not None
        (challenge,) = msgspec.msgpack.decode(body, type=list[wire.BrokerChallenge])
        await one.send(broker_frame(wire.ProveToken(hello.proof(token, challenge.nonce))))

    async def guesses(node: Target) -> None:
        async with attacker(broker_place(node)) as one:
            await greet(one, "a guess")
            assert await one.is_told("token")
        async with attacker(broker_place(node)) as one:
            await one.send(broker_frame(wire.Greet("s")))
            assert await one.is_told("token")

    async def controls(node: Target) -> None:
        async with attacker(broker_place(node)) as one:
            await greet(one, CLIENT_TOKEN)
            await one.body()
            await one.send(broker_frame(wire.ItemGroup("trades", True, 1, msgspec.Raw(b"\xc0"))))
            assert await one.is_told("control")

    attack(tmp_path, "token", guesses)
    attack(tmp_path, "control", controls)


# an impostor at a node's address


@asynccontextmanager
async def impostor(heard: list[bytes], *answers: Any) -> AsyncGenerator[str, None]:
    """Listens where a node should be, answers whatever it likes, and keeps all that it hears."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for answer in answers:
            heard.append(await reader.read(1 << 16))
            writer.write(encode_frame(answer))
        heard.append(await reader.read(1 << 16))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


@pytest.mark.parametrize(
    "answers",
    [
        (Hello("node", (HUB,)),),
        (Challenge(b"n" * 16), Hello("node", (HUB,))),
        (Challenge(b"n" * 16), Hello("node", (HUB,), proof=b"p" * 32)),
        (Challenge(b""), Hello("node", (HUB,))),
        (Proof(b"p" * 32),),
    ],
)
def test_an_impostor_at_a_nodes_address_is_found_out_and_learns_no_token(answers: tuple[Any, ...]) -> None:
    async def run() -> None:
        heard: list[bytes] = []
        async with asyncio.timeout(30), impostor(heard, *answers) as place:
            with pytest.raises(PeerError):
                await ask_node(place, CLIENT_TOKEN, control.AskDeployment, control.RunningDeployment)
        assert heard
        assert CLIENT_TOKEN.encode() not in b"".join(heard)

    asyncio.run(run())
