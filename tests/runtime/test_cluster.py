"""Real sockets: several nodes, the embedded broker, clients; restarts and lost connections in between."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec import structs

import unisono
from tests.runtime.test_session import take
from unisono.model.deployment import Deployment
from unisono.model.settings import (
    BrokerKind,
    BrokerSpec,
    Foreign,
    NodeSpec,
    Region,
    Security,
    TopicSpec,
)
from unisono.runtime.brokers.contract import Item, Parcel
from unisono.runtime.brokers.deployed import embedded_endpoint, nearest_first
from unisono.runtime.brokers.embedded.adapter import EmbeddedEns
from unisono.runtime.brokers.nats.discovery import discover
from unisono.runtime.driver.log import LogConfig
from unisono.runtime.node.node import Node, NodeConfig
from unisono.runtime.tools.nats_server import NatsServer, NatsServerConfig
from unisono.runtime.tools.ports import free_ports

FAST = NodeConfig(witness_s=0, log=LogConfig(sync=False))


def star(data: bool = True, security: Security = Security()) -> Deployment:
    hub, east, west = free_ports(3)
    disk = "data" if data else None
    return Deployment(
        1,
        "star",
        nodes=(
            NodeSpec("hub", listen=f"127.0.0.1:{hub}", roles=("sequencer", "broker"), data=disk),
            NodeSpec("east", listen=f"127.0.0.1:{east}", parent="hub", data=disk),
            NodeSpec("west", listen=f"127.0.0.1:{west}", parent="hub", data=disk),
        ),
        topics=(TopicSpec("trades", "east"), TopicSpec("quotes", "west")),
        broker=BrokerSpec("embedded"),
        security=security,
    )


@asynccontextmanager
async def running(deployment: Deployment, base: Path) -> AsyncGenerator[dict[str, Node], None]:
    nodes: dict[str, Node] = {}
    try:
        for spec in deployment.nodes:
            nodes[spec.name] = Node(deployment, spec.name, base, FAST)
            await nodes[spec.name].start()
        yield nodes
    finally:
        for node in reversed(nodes.values()):
            await node.stop()


def url(deployment: Deployment, name: str) -> str:
    return f"unisono://{deployment.node(name).listen}"


def test_subscribers_of_two_sites_agree(tmp_path: Path) -> None:
    async def run() -> None:
        deployment = star()
        async with (
            asyncio.timeout(120),
            running(deployment, tmp_path) as nodes,
            unisono.connect(url(deployment, "east")) as east,
            unisono.connect(url(deployment, "west")) as west,
            east.subscribe("trades", "quotes") as one,
            west.subscribe("quotes", "trades") as two,
        ):
            trades, quotes = await east.publisher("trades"), await west.publisher("quotes")
            for number in range(300):
                await trades.send(number)
                await quotes.send(number)
                if number % 20 == 0:
                    await asyncio.sleep(0)
            heard = await asyncio.gather(take(one, 600), take(two, 600))
            assert [event.id for event in heard[0]] == [event.id for event in heard[1]]
            hub = nodes["hub"].sequencer
            assert hub is not None
            assert hub.broker.counters.published > 0, "the hub decides pairs of topics of two sites"
            assert hub.broker.counters.nameless == 0

    asyncio.run(run())


@pytest.mark.parametrize("victim", ["hub", "east", "west"])
def test_a_node_that_restarts_loses_nothing_and_reorders_nothing(tmp_path: Path, victim: str) -> None:
    async def run() -> None:
        deployment = star()
        async with (
            asyncio.timeout(60),
            running(deployment, tmp_path) as nodes,
            unisono.connect(url(deployment, "east")) as east,
            unisono.connect(url(deployment, "west")) as west,
            east.subscribe("trades", "quotes") as one,
            west.subscribe("quotes", "trades") as two,
        ):
            trades, quotes = await east.publisher("trades"), await west.publisher("quotes")
            for number in range(300):
                await trades.send(number)
                await quotes.send(number)
                if number == 150:
                    await nodes[victim].stop()
                    nodes[victim] = Node(deployment, victim, tmp_path, FAST)
                    await nodes[victim].start()
                await asyncio.sleep(0)
            await trades.drain()
            await quotes.drain()
            assert (trades.failures, quotes.failures) == ([], [])
            heard = await asyncio.gather(take(one, 600), take(two, 600))
            # The embedded broker keeps nothing: while the hub is away events may be lost, and then there is a gap.
            for events in heard:
                assert victim == "hub" or all(event.gap is None for event in events)
            both = [[event.id for event in events if event.gap is None] for events in heard]
            common = set(both[0]) & set(both[1])
            assert [e for e in both[0] if e in common] == [e for e in both[1] if e in common]
            assert len(both[0]) == len(set(both[0]))
            assert len(common) >= 300

    asyncio.run(run())


def test_a_deployment_with_a_token_lets_only_its_bearers_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_TOKEN", "let me in")

    async def run() -> None:
        deployment = star(data=False, security=Security(token_variable="TEST_TOKEN"))
        async with asyncio.timeout(120), running(deployment, tmp_path):
            with pytest.raises(unisono.PeerError, match="wrong token"):
                async with unisono.connect(url(deployment, "hub"), token="guess"):
                    pass
            async with unisono.connect(url(deployment, "hub"), token="let me in") as session:
                assert isinstance(await session.publish("trades", 1), unisono.Accepted)

    asyncio.run(run())


def test_status_tells_what_a_node_does(tmp_path: Path) -> None:
    async def run() -> None:
        deployment = star()
        async with (
            asyncio.timeout(120),
            running(deployment, tmp_path),
            unisono.connect(url(deployment, "hub")) as session,
        ):
            await session.publish("trades", 1)
            report = await session.status("east")
            assert report.topics == ("trades",)
            assert report.counters["sequencer"]["commits"] > 0
            assert session.address in report.peers

    asyncio.run(run())


def test_nobody_there_is_a_transport_error_that_says_what_to_do() -> None:
    async def run() -> None:
        (port,) = free_ports(1)
        with pytest.raises(unisono.TransportError, match="unisono node FILE NAME"):
            async with unisono.connect(f"unisono://127.0.0.1:{port}", timeout=0.2):
                pass

    asyncio.run(run())


def test_while_a_home_is_away_other_topics_go_on_and_its_own_wait(tmp_path: Path) -> None:
    async def run() -> None:
        deployment = star()
        async with (
            asyncio.timeout(60),
            running(deployment, tmp_path) as nodes,
            unisono.connect(url(deployment, "hub")) as session,
        ):
            await session.publish("trades", 1)
            await session.publish("quotes", 1)
            await nodes["east"].stop()
            pending = asyncio.ensure_future(session.publish("trades", 2))
            assert isinstance(await session.publish("quotes", 2), unisono.Accepted)
            assert not pending.done()
            nodes["east"] = Node(deployment, "east", tmp_path, FAST)
            await nodes["east"].start()
            assert isinstance(await pending, unisono.Accepted)

    asyncio.run(run())


class Silent:
    """A listener that does not care."""

    def on_items(self, items: Sequence[Parcel]) -> None: ...

    def on_confirmed(self, count: int) -> None: ...

    def on_notice(self, notice: object) -> None: ...

    def on_failed(self, error: Exception) -> None: ...


@pytest.mark.parametrize(("foreign", "expected"), [("tag", [(0, True), (1, False)]), ("refuse", [(1, False)]),
                                                   ("adopt", [(1, False), (2, False)])])  # fmt: skip
def test_events_of_strangers_are_tagged_refused_or_adopted(
    tmp_path: Path, foreign: Foreign, expected: list[tuple[int, bool]]
) -> None:
    async def run() -> None:
        deployment = star()
        deployment = structs.replace(deployment, topics=(TopicSpec("trades", "east", foreign),))
        stranger = EmbeddedEns(*embedded_endpoint(deployment), Silent())
        async with (
            asyncio.timeout(120),
            running(deployment, tmp_path),
            unisono.connect(url(deployment, "east")) as session,
            session.subscribe("trades") as stream,
        ):
            await stranger.open()
            stranger.publish([Item("trades", b'"strange"')])
            await stranger.flush()
            if foreign == "adopt":
                [adopted] = await take(stream, 1)
                assert (adopted.data, adopted.published_us) == ("strange", None), "nobody knows when"
            await session.publish("trades", "ours")
            heard = await take(stream, len(expected) - (foreign == "adopt"))
            seen = [(event.number, event.late) for event in heard]
            assert seen == (expected[1:] if foreign == "adopt" else expected)
            assert heard[-1].data == "ours"
            assert [event.published_us is None for event in heard] == [event.late for event in heard]
            await stranger.close()

    asyncio.run(run())


@pytest.mark.parametrize("kind", ["embedded", "nats", "jetstream"])
def test_attributes_travel_beside_the_payload(tmp_path: Path, kind: BrokerKind) -> None:
    async def run() -> None:
        server = NatsServer(tmp_path / "nats", NatsServerConfig(jetstream=True, jetstream_sync="2m"))
        deployment = star(data=False)
        if kind != "embedded":
            await server.start()
            deployment = structs.replace(deployment, broker=BrokerSpec(kind, (server.url,)))
        try:
            async with (
                asyncio.timeout(60),
                running(deployment, tmp_path),
                unisono.connect(url(deployment, "east"), timeout=30) as session,
                session.subscribe("trades", "quotes") as stream,
            ):
                attributes = {"key": "ÎBM \n", "px": 101.2, "urgent": True}
                assert isinstance(await session.publish("trades", b"\0\xff", attributes), unisono.Accepted)
                assert isinstance(await session.publish("trades", b"plain"), unisono.Accepted)
                heard = [(event.payload, event.attributes) for event in await take(stream, 2)]
                assert heard == [(b"\0\xff", attributes), (b"plain", {})]
        finally:
            server.kill()

    asyncio.run(run())


def test_a_client_prefers_the_broker_server_of_its_region() -> None:
    deployment = Deployment(
        1, regions=(Region("eu"), Region("us")), broker=BrokerSpec("nats", ("nats://eu:4222", "nats://us:4222"))
    )
    assert nearest_first(deployment, "us") == ("nats://us:4222", "nats://eu:4222")
    assert nearest_first(deployment, None) == ("nats://eu:4222", "nats://us:4222")


def test_payloads_are_stored_before_they_are_accepted_on_jetstream(tmp_path: Path) -> None:
    async def run() -> None:
        server = NatsServer(tmp_path / "nats", NatsServerConfig(jetstream=True, jetstream_sync="2m"))
        await server.start()
        deployment = structs.replace(star(), broker=BrokerSpec("jetstream", (server.url,)))
        try:
            async with (
                asyncio.timeout(60),
                running(deployment, tmp_path),
                unisono.connect(url(deployment, "east")) as session,
                session.subscribe("trades", "quotes", reliability="reliable") as stream,
            ):
                assert await session.publish("trades", 1) == unisono.Accepted(1, "stored")
                assert await session.publish("quotes", 2) == unisono.Accepted(2, "stored")
                # Topics that one subscriber alone shares are not ordered against each other.
                assert sorted(event.data for event in await take(stream, 2)) == [1, 2]
        finally:
            server.kill()

    asyncio.run(run())


def test_a_deployment_is_found_over_its_nats_server(tmp_path: Path) -> None:
    async def run() -> None:
        server = NatsServer(tmp_path / "nats")
        await server.start()
        deployment = structs.replace(star(), broker=BrokerSpec("nats", (server.url,)))
        try:
            async with asyncio.timeout(60):
                with pytest.raises(unisono.TransportError, match="no unisono node uses it"):
                    async with unisono.connect(server.url, timeout=1):
                        pass
                async with running(deployment, tmp_path), unisono.connect(server.url) as session:
                    assert isinstance(await session.publish("trades", 1), unisono.Accepted)
        finally:
            server.kill()

    asyncio.run(run())


def test_a_node_starts_though_its_broker_is_away_for_a_moment_after_the_first_connection(tmp_path: Path) -> None:
    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
        writer.close()

    async def run() -> None:
        server = NatsServer(tmp_path / "nats")
        await server.start()
        pumps: list[asyncio.Task[None]] = []
        listening = asyncio.Event()

        async def come_in(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if not pumps:  # the first goes through, and finds the door shut behind it
                door.close()
                asyncio.get_running_loop().call_later(0.3, listening.set)
            inside = await asyncio.open_connection("127.0.0.1", server.port)
            pumps.extend([asyncio.create_task(pump(reader, inside[1])), asyncio.create_task(pump(inside[0], writer))])

        door = await asyncio.start_server(come_in, "127.0.0.1", 0)
        port = door.sockets[0].getsockname()[1]
        deployment = structs.replace(star(), broker=BrokerSpec("nats", (f"nats://127.0.0.1:{port}",)))
        node = Node(deployment, "hub", tmp_path, FAST)
        try:
            async with asyncio.timeout(60):
                starting = asyncio.create_task(node.start())
                await listening.wait()
                door = await asyncio.start_server(come_in, "127.0.0.1", port)
                await starting
                assert (await discover(server.url, 5)).name == "star"
        finally:
            await node.stop()
            for task in pumps:
                task.cancel()
            door.close()
            server.kill()

    asyncio.run(run())
