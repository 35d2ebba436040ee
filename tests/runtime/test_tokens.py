"""Nodes and clients have tokens of their own: what a client knows does not make it a node."""

import asyncio
import ssl
from pathlib import Path
from typing import Literal

import pytest

import unisono
from tests.runtime.test_cluster import Silent, running, star, url
from unisono.errors import MisuseError, PeerError, TransportError
from unisono.model.address import endpoint
from unisono.model.deployment import Deployment
from unisono.model.ids import Address
from unisono.model.settings import Security
from unisono.runtime.brokers.contract import Item
from unisono.runtime.brokers.deployed import embedded_endpoint
from unisono.runtime.brokers.embedded.adapter import EmbeddedEns
from unisono.runtime.links import control
from unisono.runtime.links.connection import Connection
from unisono.runtime.links.frames import Codec, Hello, Rejected
from unisono.runtime.links.security import Tokens, prove, tokens_of

SECURITY = Security(token_variable="TEST_CLIENT_TOKEN", node_token_variable="TEST_NODE_TOKEN")


@pytest.fixture
def deployment(monkeypatch: pytest.MonkeyPatch) -> Deployment:
    monkeypatch.setenv("TEST_CLIENT_TOKEN", "of clients")
    monkeypatch.setenv("TEST_NODE_TOKEN", "of nodes")
    return star(data=False, security=SECURITY)


async def introduce(deployment: Deployment, hello: Hello, tls: ssl.SSLContext | None = None, token: str = "") -> str:
    """What a node says to this hello: "" if it lets us in."""
    loop = asyncio.get_running_loop()
    said: asyncio.Future[str] = loop.create_future()

    def admit(connection: Connection, theirs: Hello) -> Rejected | None:
        said.set_result("")
        return None

    def closed(connection: Connection, error: unisono.UnisonoError | None) -> None:
        if not said.done():
            said.set_result(str(error))

    def make() -> Connection:
        return Connection(
            Codec(control.Letters), hello, True, admit, lambda _, __: None, closed, tokens=Tokens(own=token)
        )

    _, connection = await loop.create_connection(make, *endpoint(deployment.node("hub").listen), ssl=tls)
    answer = await said
    connection.close()
    return answer


def test_the_token_of_clients_does_not_make_a_node(tmp_path: Path, deployment: Deployment) -> None:
    async def run() -> None:
        async with asyncio.timeout(60), running(deployment, tmp_path):
            as_node = Hello("node", (Address("west"),))
            assert "wrong token" in await introduce(deployment, as_node, token="of clients")
            as_client = Hello("client", (Address("somebody"),))
            assert await introduce(deployment, as_client, token="of clients") == ""
            assert "wrong token" in await introduce(deployment, Hello("client", (Address("nobody"),)))
            async with unisono.connect(url(deployment, "hub"), token="of clients") as session:
                assert isinstance(await session.publish("trades", 1), unisono.Accepted)

    asyncio.run(run())


def test_the_token_of_clients_does_not_publish_control(tmp_path: Path, deployment: Deployment) -> None:
    async def run() -> None:
        async with asyncio.timeout(60), running(deployment, tmp_path):
            client = EmbeddedEns(*embedded_endpoint(deployment), Silent(), token="of clients")
            await client.open()
            client.publish([Item("trades", b"1")])
            with pytest.raises(MisuseError, match="only nodes publish control"):
                client.publish([Item("trades", b"1", control=True)])
            await client.close()
            stranger = EmbeddedEns(*embedded_endpoint(deployment), Silent(), token="a guess")
            with pytest.raises((PeerError, TransportError)):
                await stranger.open()

    asyncio.run(run())


def test_a_node_without_its_own_token_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_CLIENT_TOKEN", "of clients")
    monkeypatch.delenv("TEST_NODE_TOKEN", raising=False)
    with pytest.raises(MisuseError, match="TEST_NODE_TOKEN"):
        tokens_of(SECURITY)


def test_one_token_serves_both_where_nodes_have_none_of_their_own() -> None:
    def known(tokens: Tokens, kind: Literal["node", "client"]) -> list[str | None]:
        return [tokens.proven(kind, prove(given, b"said"), b"said") for given in ("of nodes", "of clients", "guess")]

    assert known(Tokens(node="of clients", client="of clients"), "node") == [None, "of clients", None]
    assert known(Tokens(node="of nodes", client="of clients"), "node") == ["of nodes", None, None]
    assert known(Tokens(node="of nodes", client="of clients"), "client") == ["of nodes", "of clients", None]
    apart = Tokens(node="of nodes")
    assert [apart.asks(kind) for kind in ("node", "client")] == [True, False]
