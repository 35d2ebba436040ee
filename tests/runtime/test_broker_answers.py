"""What a broker refuses, cannot take or loses: whoever published is told the truth, and nobody else suffers for it."""

import asyncio
from asyncio.subprocess import PIPE
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

import unisono
from tests.runtime.ens.worlds import Ear
from tests.runtime.test_cluster import running, star, url
from tests.runtime.test_commands import UNISONO
from tests.runtime.test_session import expect_each, take
from unisono.machine import Missed
from unisono.model.deployment import Deployment
from unisono.model.event import EventRow, Payloads
from unisono.model.ids import Address, Topic
from unisono.model.settings import BrokerKind, BrokerSpec, Foreign, TopicSpec
from unisono.protocols.sequencer.messages import Mark
from unisono.runtime.brokers.connection import BrokerConnection
from unisono.runtime.brokers.contract import Item, ItemRejected, Lost
from unisono.runtime.brokers.deployed import hub_of
from unisono.runtime.brokers.memory.adapter import Hub, MemoryEns
from unisono.runtime.brokers.nats.client import NatsClient
from unisono.runtime.brokers.nats.codec import Msg, NatsOptions
from unisono.runtime.brokers.nats.jetstream_api import JetStreamApi, StreamConfig
from unisono.runtime.client.publishing.named import NamedEvent, named_publisher
from unisono.runtime.client.sequenced import SequencedSession
from unisono.runtime.client.subscription.stream import Stream
from unisono.runtime.connect import hold_memory
from unisono.runtime.tools.nats_server import NatsServer, NatsServerConfig

QUICK = NatsServerConfig(jetstream=True, jetstream_sync="2m")  # nobody pulls a plug here
PATIENCE_S = 120


class Plain:
    """Somebody beside us at the NATS server."""

    def __init__(self, server: NatsServer) -> None:
        self.client = NatsClient(NatsOptions((server.url,)), self, 100_000)
        self.api = JetStreamApi(self.client, StreamConfig())
        self.messages: list[Msg] = []

    def on_messages(self, messages: list[Msg]) -> None:
        self.messages += messages

    def on_error(self, text: str) -> None: ...

    def on_failed(self, error: Exception) -> None: ...

    def on_down(self, reason: str) -> None: ...

    def on_back(self) -> None: ...

    async def keep_at_most(self, topic: str, count: int, verb: str = "CREATE") -> None:
        """A stream that refuses what is too much."""
        body = {"name": topic.replace(".", "="), "subjects": [topic], "max_msgs": count, "discard": "new"}
        await self.api.call(f"STREAM.{verb}.{topic.replace('.', '=')}", body)

    async def count_kept(self, topic: str) -> int:
        return int((await self.api.call(f"STREAM.INFO.{topic.replace('.', '=')}", {}))["state"]["messages"])


@asynccontextmanager
async def brokered(
    kind: BrokerKind, base: Path, config: NatsServerConfig = QUICK
) -> AsyncGenerator[tuple[Deployment, NatsServer], None]:
    """Three running nodes over a broker, and its server, if it is NATS."""
    deployment, server = star(data=False), NatsServer(base / "nats", config)
    if kind != "embedded":
        await server.start()
        deployment = structs.replace(deployment, broker=BrokerSpec(kind, (server.url,)))
    try:
        async with asyncio.timeout(PATIENCE_S), running(deployment, base):
            yield deployment, server
    finally:
        server.kill()


@asynccontextmanager
async def beside(server: NatsServer) -> AsyncGenerator[Plain, None]:
    plain = Plain(server)
    await plain.client.open()
    try:
        yield plain
    finally:
        await plain.client.close()


def test_what_a_full_stream_refuses_is_refused_and_what_is_stored_is_there(tmp_path: Path) -> None:
    async def run() -> None:
        async with brokered("jetstream", tmp_path) as (deployment, server), beside(server) as plain:
            await plain.keep_at_most("trades", 2)
            async with (
                unisono.connect(url(deployment, "west")) as west,
                west.subscribe("trades", "quotes", deadline="5s") as stream,
                unisono.connect(url(deployment, "east")) as session,
            ):
                outcomes = [await session.publish("trades", number) for number in range(5)]
                assert [type(outcome) for outcome in outcomes] == [unisono.Accepted] * 2 + [unisono.Refused] * 3
                assert all(one.strength == "stored" for one in outcomes if isinstance(one, unisono.Accepted))
                assert all("maximum messages" in one.reason for one in outcomes if isinstance(one, unisono.Refused))
                assert await plain.count_kept("trades") == 2
                assert isinstance(await session.publish("quotes", "another topic"), unisono.Accepted)
                await plain.keep_at_most("trades", 10, "UPDATE")
                assert isinstance(await session.publish("trades", 5), unisono.Accepted)
                heard = [(event.number, event.data, event.gap) for event in await take(stream, 4)]
                trades = [one for one in heard if one[1] != "another topic"]
                assert trades == [(1, 0, None), (2, 1, None), (6, 5, None)], "nobody waits for what was refused"

    asyncio.run(run())


def test_without_a_loop_what_the_broker_refuses_is_refused_too(tmp_path: Path) -> None:
    def play(where: str) -> None:
        with unisono.connect_sync(where) as session:
            assert session.publish_all("trades", [0]) == 1
            outcomes = [type(session.publish("trades", number)) for number in (1, 2)]
            assert outcomes == [unisono.Accepted, unisono.Refused]
            assert session.publish_all("trades", range(3)) == 0

    async def run() -> None:
        async with brokered("jetstream", tmp_path) as (deployment, server), beside(server) as plain:
            await plain.keep_at_most("trades", 2)
            await asyncio.to_thread(play, url(deployment, "east"))
            assert await plain.count_kept("trades") == 2

    asyncio.run(run())


@pytest.mark.parametrize("at_once", [False, True])
def test_a_publisher_counts_what_the_broker_refuses_as_failures(tmp_path: Path, at_once: bool) -> None:
    async def run() -> None:
        async with brokered("jetstream", tmp_path) as (deployment, server), beside(server) as plain:
            await plain.keep_at_most("trades", 2)
            async with unisono.connect(url(deployment, "east")) as session:
                publisher = await session.publisher("trades")
                if at_once:
                    await publisher.send_all(range(5))
                else:
                    for number in range(5):
                        await publisher.send(number)
                await publisher.drain()
                assert publisher.accepted == await plain.count_kept("trades") == 2
                assert [type(failure) for failure in publisher.failures] == [unisono.Refused] * 3

    asyncio.run(run())


def test_a_named_publisher_stops_at_what_the_broker_refuses_and_goes_on_there(tmp_path: Path) -> None:
    async def run() -> None:
        rows = [NamedEvent("trades", request, str(request).encode()) for request in (1, 2, 5, 6, 9)]
        async with brokered("jetstream", tmp_path) as (deployment, server), beside(server) as plain:
            await plain.keep_at_most("trades", 2)
            async with (
                unisono.connect(url(deployment, "west")) as west,
                west.subscribe("trades", "quotes") as stream,
                named_publisher(url(deployment, "east"), "spark") as publisher,
            ):
                with pytest.raises(
                    unisono.TransportError, match=r"request 5: maximum messages.* 2 rows were published"
                ):
                    await publisher.publish(rows)
                await plain.keep_at_most("trades", 10, "UPDATE")
                assert await publisher.publish(rows) == 3
                assert [event.data for event in await take(stream, 5)] == [1, 2, 5, 6, 9]
                assert await plain.count_kept("trades") == 5

    asyncio.run(run())


@pytest.mark.parametrize("kind", ["nats", "jetstream", "embedded"])
def test_a_payload_the_broker_cannot_take_is_refused_alone(tmp_path: Path, kind: BrokerKind) -> None:
    async def run() -> None:
        async with (
            brokered(kind, tmp_path) as (deployment, _),
            unisono.connect(url(deployment, "east")) as session,
            session.subscribe("trades", "quotes") as stream,
        ):
            too_long = bytes(9 << 20)
            trades, quotes = await session.publisher("trades"), await session.publisher("quotes")
            await trades.send(1)
            await quotes.send(2)
            for way in (trades.send(too_long), session.publish("trades", too_long), trades.send_all([3, too_long])):
                with pytest.raises(
                    unisono.MisuseError, match=r"a payload of 9437184 bytes; this broker takes up to \d+"
                ):
                    await way
            with pytest.raises(unisono.MisuseError, match="a payload of"):
                trades.try_send(too_long)
            await quotes.send(4)
            await session.drain()
            assert (trades.accepted, trades.failures, quotes.accepted, quotes.failures) == (2, [], 2, [])
            assert isinstance(await session.publish("trades", 5), unisono.Accepted)
            heard = await take(stream, 5)
            assert sorted(event.data for event in heard) == [1, 2, 3, 4, 5]
            async with named_publisher(url(deployment, "east"), "spark") as named:
                with pytest.raises(unisono.MisuseError, match="this broker takes up to"):
                    await named.publish([NamedEvent("trades", 1, b"small"), NamedEvent("trades", 2, too_long)])
                assert await named.publish([NamedEvent("trades", 1, b"small")]) == 1

    asyncio.run(run())


@pytest.mark.parametrize("kind", ["nats", "jetstream"])
def test_what_no_longer_fits_after_a_reconnect_is_refused_and_the_rest_goes_on(
    tmp_path: Path, kind: BrokerKind
) -> None:
    """The server is away while a large payload and a small one are published, and takes less when it is back."""

    async def run() -> None:
        async with (
            brokered(kind, tmp_path) as (deployment, server),
            unisono.connect(url(deployment, "east")) as session,
        ):
            assert isinstance(await session.publish("trades", bytes(600_000)), unisono.Accepted)
            server.kill()
            publisher = await session.publisher("trades")
            await publisher.send_all([bytes(600_000), b"small"])
            server.config = structs.replace(server.config, max_payload_bytes=400_000)
            await server.start()
            assert isinstance(session, SequencedSession)
            async with asyncio.timeout(20):
                while session.broker.ens.traits.payload_bytes_max > 400_000:
                    await asyncio.sleep(0.01)
            with pytest.raises(unisono.MisuseError, match="takes up to 395904"):
                await session.publish("trades", bytes(600_000))
            assert isinstance(await session.publish("trades", b"after it"), unisono.Accepted)
            await publisher.drain()
            if kind == "jetstream":  # elsewhere the number alone is waited for
                assert publisher.accepted == 1
                assert [type(failure) for failure in publisher.failures] == [unisono.Refused]
                assert "the server now takes up to" in publisher.failures[0].reason

    asyncio.run(run())


def test_control_messages_that_the_broker_rejects_are_said_again(tmp_path: Path) -> None:
    async def run() -> None:
        async with brokered("jetstream", tmp_path) as (deployment, server), beside(server) as plain:
            await plain.keep_at_most("_unisono.star.ctl.trades", 1)
            async with unisono.connect(url(deployment, "east")) as session:
                for number in range(3):
                    assert isinstance(await session.publish("trades", number), unisono.Accepted)
                await plain.keep_at_most("_unisono.star.ctl.trades", 100, "UPDATE")
                while await plain.count_kept("_unisono.star.ctl.trades") < 3:
                    await asyncio.sleep(0.05)

    asyncio.run(run())


def test_a_repetition_is_not_counted_as_another_broadcast() -> None:
    async def run() -> None:
        counted: list[int] = []
        broker, ear = BrokerConnection(Names(), counted.append, _ignore, _ignore, _ignore), Ear()
        hub = Hub()
        ens, listening = MemoryEns(hub, broker), MemoryEns(hub, ear)
        await ens.open()
        await listening.open()
        await listening.subscribe("trades", control=True)
        broker.stand_on(ens)
        broker.on_notice(ItemRejected(Item("trades", b"stamp", control=True), "full"))
        await ear.until(lambda: ear.payloads() == [b"stamp"])
        assert counted == []
        broker.broadcast(Topic(1), Mark(Topic(1), 1), control=True)
        broker.end_turn()
        await ens.flush()
        assert counted == [1]
        await broker.close()

    asyncio.run(run())


class Told:
    """A sink that remembers."""

    is_full = False

    def __init__(self) -> None:
        self.messages: list[Any] = []

    def post(self, message: Any) -> None:
        self.messages.append(message)

    def when_roomy(self, callback: Callable[[], None]) -> None: ...


class Names:
    """Topics 1 and 2."""

    def name_of(self, topic: Topic) -> str | None:
        return {1: "trades", 2: "quotes"}.get(topic)

    def topic_of(self, name: str) -> Topic | None:
        return Topic({"trades": 1, "quotes": 2}[name])


@pytest.mark.parametrize(("lost", "topics"), [("quotes", [2]), (None, [1, 2]), ("_unisono.d.adopted.trades", [1])])
def test_whoever_listens_where_the_broker_has_lost_something_is_told(lost: str | None, topics: list[int]) -> None:
    async def run() -> None:
        broker = BrokerConnection(Names(), _ignore, _ignore, _ignore, _ignore)
        broker.adopted = {"trades": "_unisono.d.adopted.trades"}
        ens, sink = MemoryEns(Hub(), broker), Told()
        await ens.open()
        broker.stand_on(ens)
        for topic in (1, 2):
            broker.join(Topic(topic), sink)
        while len(sink.messages) < 2:
            await asyncio.sleep(0)
        sink.messages.clear()
        broker.on_notice(Lost("too slow", lost))
        assert sink.messages == [Missed(Topic(topic)) for topic in topics]
        await broker.close()

    asyncio.run(run())


def test_what_the_broker_no_longer_takes_is_counted_in_its_place() -> None:
    """A broker that changed between the look of its owner and the moment it was given: small, large, small."""

    async def run() -> None:
        counted: list[int] = []
        noticed: list[Any] = []
        broker = BrokerConnection(Names(), counted.append, noticed.append, _ignore, _ignore)
        ens = MemoryEns(Hub(), broker)
        await ens.open()
        broker.stand_on(ens)
        row = EventRow("p.trades", 1, "trades", (b"small", bytes((64 << 20) + 1), b"small too"))
        broker.broadcast(Topic(1), Payloads(Address("p"), 1, row), control=False)
        broker.end_turn()
        await ens.flush()
        assert [(notice.item.request, type(notice)) for notice in noticed] == [(2, ItemRejected)]
        assert sum(counted) == 3
        await broker.close()

    asyncio.run(run())


def _ignore(said: object) -> None: ...


@pytest.mark.parametrize("payload", ["ok", "x" * 200_000])
def test_pub_exits_with_an_error_when_the_broker_refuses(tmp_path: Path, payload: str) -> None:
    async def run() -> tuple[int, str]:
        small = structs.replace(QUICK, max_payload_bytes=150_000)
        async with brokered("jetstream", tmp_path, small) as (deployment, server), beside(server) as plain:
            await plain.keep_at_most("trades", 2)
            text = f"1\n{payload}\n3\n4\n"
            pub = await asyncio.create_subprocess_exec(
                *UNISONO, "pub", url(deployment, "east"), "trades", stdin=PIPE, stdout=PIPE, stderr=PIPE
            )
            _, err = await pub.communicate(text.encode())
            assert await plain.count_kept("trades") == 2
            assert pub.returncode is not None
            return pub.returncode, err.decode()

    code, err = asyncio.run(run())
    assert code == 2
    assert "Traceback" not in err
    assert "trades: 2 accepted, 2 refused" in err
    assert ("a payload of 200000 bytes; this broker takes up to 145904" in err) == (payload != "ok")
    assert err.count("maximum messages") == (2 if payload == "ok" else 1)


@pytest.mark.parametrize("kind", ["nats", "jetstream"])
def test_a_plain_consumer_hears_what_is_adopted_once(tmp_path: Path, kind: BrokerKind) -> None:
    async def run() -> None:
        server = NatsServer(tmp_path / "nats", QUICK)
        await server.start()
        base = star(data=False)
        topics = (TopicSpec("trades", "east", "adopt"), TopicSpec("quotes", "west"))
        deployment = structs.replace(base, topics=topics, broker=BrokerSpec(kind, (server.url,)))
        try:
            async with (
                asyncio.timeout(PATIENCE_S),
                running(deployment, tmp_path),
                beside(server) as plain,
                unisono.connect(url(deployment, "west")) as session,
                session.subscribe("trades", "quotes") as total,
                session.subscribe("trades", order="fifo") as fifo,
            ):
                plain.client.subscribe(b"trades")
                for number in range(3):
                    plain.client.send(b"PUB trades 1\r\n%d\r\n" % number)
                heard = [(event.number, event.data, event.late) for event in await take(total, 3)]
                assert heard == [(1, 0, False), (2, 1, False), (3, 2, False)]
                assert [event.data for event in await take(fifo, 3)] == [0, 1, 2]
                await session.publish("trades", "last")
                while b'"last"' not in [message[4] for message in plain.messages]:
                    await asyncio.sleep(0.01)
                assert [message[4] for message in plain.messages] == [b"0", b"1", b"2", b'"last"']
        finally:
            server.kill()

    asyncio.run(run())


@pytest.mark.parametrize("kind", ["nats", "jetstream"])
def test_two_deployments_share_a_server_and_the_name_of_a_topic(tmp_path: Path, kind: BrokerKind) -> None:
    async def run() -> None:
        server = NatsServer(tmp_path / "nats", QUICK)
        await server.start()
        broker = BrokerSpec(kind, (server.url,))
        ours = structs.replace(star(data=False), name="ours", broker=broker)
        theirs = structs.replace(star(data=False), name="theirs", broker=broker)
        try:
            async with (
                asyncio.timeout(PATIENCE_S),
                running(ours, tmp_path),
                running(theirs, tmp_path),
                unisono.connect(url(ours, "east")) as here,
                unisono.connect(url(theirs, "west")) as there,
                here.subscribe("trades", "quotes", deadline="10s") as mine,
                there.subscribe("trades", "quotes", deadline="10s") as yours,
            ):
                for number in range(20):  # other numbers of the same topics, at the same time
                    assert isinstance(await here.publish("trades", number), unisono.Accepted)
                    assert isinstance(await there.publish("trades", -number), unisono.Accepted)
                    assert isinstance(await there.publish("quotes", -number), unisono.Accepted)
                mixed = [event for event in await take(mine, 60) if not event.late]  # theirs are tagged
                heard = [(event.number, event.data, event.gap, event.stalled) for event in mixed]
                assert heard == [(number + 1, number, None, None) for number in range(20)]
                mixed = [event for event in await take(yours, 60) if not event.late]
                others = [(event.data, event.gap, event.stalled) for event in mixed]
                assert sorted(data for data, _, _ in others) == sorted([*range(-19, 1)] * 2)
                assert all(gap is stalled is None for _, gap, stalled in others)
        finally:
            server.kill()

    asyncio.run(run())


@asynccontextmanager
async def resumed(deployment: Deployment, state: Path) -> AsyncGenerator[Stream, None]:
    """A subscription under one name, of a session of its own."""
    async with (
        unisono.connect(url(deployment, "west"), state=state) as session,
        session.subscribe("trades", name="me") as stream,
    ):
        yield stream


@pytest.mark.parametrize("foreign", ["tag", "adopt"])
def test_a_named_subscription_resumes_from_what_the_stream_keeps(tmp_path: Path, foreign: Foreign) -> None:
    async def run() -> None:
        server = NatsServer(tmp_path / "nats", QUICK)
        await server.start()
        topics = (TopicSpec("trades", "east", foreign), TopicSpec("quotes", "west"))
        deployment = structs.replace(star(data=False), topics=topics, broker=BrokerSpec("jetstream", (server.url,)))
        try:
            async with (
                asyncio.timeout(PATIENCE_S),
                running(deployment, tmp_path),
                beside(server) as plain,
                unisono.connect(url(deployment, "east")) as east,
                east.subscribe("trades") as other,
            ):
                async with resumed(deployment, tmp_path) as stream:
                    for number in range(3):
                        await east.publish("trades", number, {"px": number})
                    await stream.commit((await take(stream, 3))[1].position)
                for number in range(3, 6):
                    await east.publish("trades", number, {"px": number})
                if foreign == "adopt":
                    plain.client.send(b"PUB trades 1\r\n6\r\n")
                everything = [event.id for event in await take(other, 7 if foreign == "adopt" else 6)]
                async with resumed(deployment, tmp_path) as stream:
                    await east.publish("trades", "live")
                    everything += [event.id for event in await take(other, 1)]
                    await expect_each(
                        stream, [(id_, {"px": n}) for n, id_ in enumerate(everything[2:5], 2)],
                        lambda event: (event.id, event.attributes),
                    )  # fmt: skip
                    await expect_each(
                        stream, [(id_, None) for id_ in everything[5:]], lambda event: (event.id, event.gap)
                    )
        finally:
            server.kill()

    asyncio.run(run())


def test_a_named_subscription_is_told_what_the_stream_has_removed(tmp_path: Path) -> None:
    async def run() -> None:
        async with (
            brokered("jetstream", tmp_path) as (deployment, server),
            beside(server) as plain,
            unisono.connect(url(deployment, "west"), state=tmp_path) as session,
        ):
            async with session.subscribe("trades", name="me") as stream:
                await session.publish("trades", 1)
                await stream.commit((await take(stream, 1))[0].position)
            for number in (2, 3):
                await session.publish("trades", number)
            await plain.api.call("STREAM.PURGE.unisono-star=trades", {"filter": "trades", "keep": 1})
            async with session.subscribe("trades", name="me") as stream:
                gap, event = await take(stream, 2)
                assert gap.gap is not None
                assert (gap.gap.first, gap.gap.last, event.number, event.data) == (2, 2, 3, 3)

    asyncio.run(run())


def test_a_resumed_subscription_passes_over_what_was_refused(tmp_path: Path) -> None:
    async def run() -> None:
        async with brokered("jetstream", tmp_path) as (deployment, server), beside(server) as plain:
            await plain.keep_at_most("trades", 2)
            async with unisono.connect(url(deployment, "east")) as east:
                async with resumed(deployment, tmp_path) as stream:
                    await east.publish("trades", 1)
                    await stream.commit((await take(stream, 1))[0].position)
                outcomes = [type(await east.publish("trades", number)) for number in (2, 3)]
                assert outcomes == [unisono.Accepted, unisono.Refused]
                await plain.keep_at_most("trades", 10, "UPDATE")
                await east.publish("trades", 4)
                async with resumed(deployment, tmp_path) as stream:
                    found = [(event.number, event.data, event.gap) for event in await take(stream, 2)]
                    assert found == [(2, 2, None), (4, 4, None)]

    asyncio.run(run())


def test_two_clients_of_one_name_and_directory_are_one_too_many(tmp_path: Path) -> None:
    async def run() -> None:
        async with (
            asyncio.timeout(60),
            unisono.connect("memory://names", state=tmp_path) as one,
            unisono.connect("memory://names", state=tmp_path) as other,
        ):
            async with one.subscribe("a", name="me") as stream:
                await one.publish("a", 1)
                await stream.commit((await take(stream, 1))[0].position)
                with pytest.raises(unisono.MisuseError, match=r"'me'.*in use by process \d+: .* another name"):
                    other.subscribe("a", name="me")
                async with other.subscribe("a", name="you"):
                    pass
            async with other.subscribe("a", name="me"):
                pass

    asyncio.run(run())


@pytest.mark.parametrize("kind", ["nats", "jetstream"])
def test_publishers_of_one_name_in_two_deployments_are_two(tmp_path: Path, kind: BrokerKind) -> None:
    async def run() -> None:
        server = NatsServer(tmp_path / "nats", QUICK)
        await server.start()
        broker = BrokerSpec(kind, (server.url,))
        topics = (TopicSpec("trades", "east", "refuse"), TopicSpec("quotes", "west"))
        ours = structs.replace(star(data=False), name="ours", broker=broker)
        theirs = structs.replace(star(data=False), name="theirs", topics=topics, broker=broker)
        try:
            async with (
                asyncio.timeout(PATIENCE_S),
                running(ours, tmp_path),
                running(theirs, tmp_path),
                unisono.connect(url(ours, "east")) as here,
                unisono.connect(url(theirs, "west")) as there,
                here.subscribe("trades", "quotes", deadline="10s") as mine,
                there.subscribe("trades", "quotes", deadline="10s") as yours,
                named_publisher(url(ours, "east"), "spark") as one,
                named_publisher(url(theirs, "east"), "spark") as other,
            ):
                assert await one.publish([NamedEvent("trades", 1, b'"ours"')]) == 1
                assert await other.publish([NamedEvent("trades", 1, b'"theirs"')]) == 1
                assert await one.publish([NamedEvent("trades", 2, b'"end"')]) == 1
                heard: list[tuple[object, int, bool]] = []
                while not heard or heard[-1][0] != "end":
                    heard += [(event.data, event.number, event.late) for event in await take(mine, 1)]
                assert sorted(heard[:-1]) == [("ours", 1, False), ("theirs", 0, True)], "who is foreign here is tagged"
                assert [(event.data, event.number) for event in await take(yours, 1)] == [("theirs", 1)]
        finally:
            server.kill()

    asyncio.run(run())


def test_an_error_in_a_callback_of_the_broker_ends_the_session_with_it() -> None:
    def stumble(item: Item) -> None:
        raise ZeroDivisionError(f"over {item.payload!r}")

    async def run() -> None:
        async with (
            asyncio.timeout(20),
            hold_memory("stumbling") as node,
            unisono.connect("memory://stumbling") as session,
            session.subscribe("a") as stream,
        ):
            assert isinstance(session, SequencedSession)
            session.on_foreign = stumble
            stranger = MemoryEns(hub_of(node.deployment.name), Ear())
            await stranger.open()
            stranger.publish([Item("a", b"strange")])
            with pytest.raises(unisono.TransportError, match=r"the session broke: ZeroDivisionError.*strange"):
                await anext(stream)
            with pytest.raises(unisono.TransportError, match="ZeroDivisionError"):
                await session.publish("a", 1)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("attributes", "complaint"),
    [
        ({"px": float("nan")}, "NaN and infinity are no values"),
        ({"px": float("inf")}, "NaN and infinity are no values"),
        ({"px": [1, 2]}, "is a list"),
        ({"px": {"bid": 1}}, "is a dict"),
        ({"px": None}, "is a NoneType"),
        ({"px": b"1"}, "is a bytes"),
        ({"px": 2**63}, "64 bits"),
        ({7: "px"}, "a name is text"),
        ({"px": "\ud800"}, "no text that can be sent"),
        ({"px": "x" * 4000}, "attributes of 40"),
    ],
)
def test_attributes_nobody_could_read_are_refused_when_they_are_published(
    attributes: dict[str, Any], complaint: str
) -> None:
    async def run() -> None:
        async with asyncio.timeout(60), unisono.connect("memory://") as session, session.subscribe("a") as stream:
            publisher = await session.publisher("a")
            for way in (session.publish("a", 1, attributes), publisher.send(1, attributes)):
                with pytest.raises(unisono.MisuseError, match=complaint):
                    await way
            await publisher.send(2, {"px": 1.5, "sym": "IBM", "hot": True, "count": -(2**63)})
            assert [event.data for event in await take(stream, 1)] == [2]

    asyncio.run(run())
