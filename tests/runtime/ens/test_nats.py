"""NATS in particular: plain clients beside us, permissions, TLS, failover, replay, and a parser that only says no."""

import asyncio
import ssl
from collections.abc import Coroutine
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import nats
import pytest
import trustme
from hypothesis import given, settings
from hypothesis import strategies as st
from nats.js.api import DiscardPolicy

from tests.runtime.ens.worlds import PATIENCE_S, SMALL, Ear, JetStreamWorld, NatsClusterWorld, NatsWorld
from unisono.errors import DataLossError, MisuseError, TransportError
from unisono.model.time import Micros
from unisono.runtime.brokers.contract import (
    AdapterLimits,
    Down,
    Item,
    ItemRejected,
    ItemRow,
    Lost,
    Parcel,
    Up,
    count_items,
    unpack,
)
from unisono.runtime.brokers.nats.adapter import UNASKED_MAX, NatsEns
from unisono.runtime.brokers.nats.codec import Msg, NatsOptions, NatsWire, normalize
from unisono.runtime.brokers.nats.items import control_prefix, decode, decode_all, encode, header_block
from unisono.runtime.brokers.nats.jetstream import JetStreamEns
from unisono.runtime.brokers.nats.jetstream_api import StreamConfig, stream_name
from unisono.runtime.tools.nats_server import NatsCluster, NatsServer, NatsServerConfig

CONTROL = control_prefix("d")


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(main, 4 * PATIENCE_S))


def ids(*requests: int) -> list[Item]:
    return [Item("trades", b"%d" % n, "p", n) for n in requests]


def test_a_plain_consumer_sees_the_events_and_nothing_else() -> None:
    async def main() -> None:
        async with NatsClusterWorld() as world:
            plain = await nats.connect(world.servers[0].url)
            everything = await plain.subscribe(">")
            topic = await plain.subscribe("trades")
            await plain.flush()
            here = Ear()
            node = await world.connect(here)
            await node.subscribe("trades")
            await node.subscribe("trades", control=True)
            node.publish([Item("trades", b"stamp", control=True), Item("trades", b"event", "p", 7)])
            await node.flush()
            message = await topic.next_msg(PATIENCE_S)
            assert (message.data, message.headers) == (b"event", {"Unisono-Id": "p 7"})
            await here.until(lambda: len(here.items) == 2)
            assert topic.pending_msgs == 0
            subjects = {(await everything.next_msg(PATIENCE_S)).subject for _ in range(everything.pending_msgs)}
            assert "_unisono.unisono.ctl.trades" in subjects  # it was there to be seen, under another name
            await plain.close()

    run(main())


def test_what_a_plain_publisher_says_arrives_as_foreign() -> None:
    async def main() -> None:
        async with NatsWorld() as world:
            here = Ear()
            node = await world.connect(here)
            await node.subscribe("trades")
            plain = await nats.connect(world.servers[0].url)
            await plain.publish("trades", b"bare")
            await plain.publish("trades", b"with headers", headers={"Kind": "x"})
            for forged in ("p", "p seven", f"p {10**30}", "p 7 8"):
                await plain.publish("trades", forged.encode(), headers={"Unisono-Id": forged})
            await here.until(lambda: len(here.items) == 6)
            assert [item.foreign for item in here.items[:5]] == [True] * 5
            assert here.items[1].headers == {"Kind": "x"}
            await plain.close()

    run(main())


def test_only_nodes_publish_control() -> None:
    async def main() -> None:
        async with NatsWorld() as world:
            here, there = Ear(), Ear()
            node = await world.connect(here)
            await node.subscribe("trades", control=True)
            await node.subscribe("trades")
            client = NatsEns(NatsOptions((world.servers[0].url,)), there)
            await client.open()
            client.publish([Item("trades", b"forged stamp", control=True), Item("trades", b"event", "p", 1)])
            await here.until(lambda: len(here.items) == 1)
            await there.until(lambda: bool(there.heard(ItemRejected)))
            assert here.payloads() == [b"event"]
            rejected = there.heard(ItemRejected)[0]
            assert (rejected.item.topic, rejected.item.control) == ("trades", True)
            await client.close()

    run(main())


def test_a_subscription_that_is_not_permitted_is_refused(tmp_path: Path) -> None:
    class Closed(NatsServer):
        def settings(self) -> dict[str, object]:
            users = [{"user": "u", "password": "p", "permissions": {"subscribe": {"deny": "secret.>"}}}]
            return {**super().settings(), "authorization": {"users": users}}

    async def main() -> None:
        server = Closed(tmp_path)
        await server.start()
        try:
            with pytest.raises(TransportError, match="Authorization"):
                await NatsEns(NatsOptions((server.url,)), Ear()).open()
            ens = NatsEns(NatsOptions((server.url,), user="u", password="p"), Ear())
            await ens.open()
            await ens.subscribe("open")
            with pytest.raises(TransportError, match="Permissions Violation"):
                await ens.subscribe("secret.plans")
            await ens.close()
        finally:
            server.kill()

    run(main())


def test_tls_is_spoken_and_an_unknown_authority_is_not_believed(tmp_path: Path) -> None:
    authority, impostor = trustme.CA(), trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    certificate.private_key_pem.write_to_path(str(tmp_path / "key.pem"))
    certificate.cert_chain_pems[0].write_to_path(str(tmp_path / "cert.pem"))

    class Secured(NatsServer):
        def settings(self) -> dict[str, object]:
            files = {"cert_file": str(tmp_path / "cert.pem"), "key_file": str(tmp_path / "key.pem")}
            return {**super().settings(), "tls": files}

    async def main() -> None:
        server = Secured(tmp_path / "server")
        await server.start()
        try:
            trusting, doubting = ssl.create_default_context(), ssl.create_default_context()
            authority.configure_trust(trusting)
            impostor.configure_trust(doubting)
            here = Ear()
            ens = NatsEns(NatsOptions((server.url,), tls=trusting), here)
            await ens.open()
            await ens.subscribe("trades")
            ens.publish([*ids(1), Item("trades", bytes(900_000), "p", 2)])
            await here.until(lambda: len(here.items) == 2)
            await ens.close()
            with pytest.raises(TransportError):
                await NatsEns(NatsOptions((server.url,), tls=doubting), Ear()).open()
        finally:
            server.kill()

    run(main())


def test_a_client_moves_to_another_server_of_the_cluster_and_is_heard_from_there() -> None:
    async def main() -> None:
        async with NatsClusterWorld() as world:
            here, there = Ear(), Ear()
            subscriber, publisher = await world.connect(here, 0), await world.connect(there, 1)
            await subscriber.subscribe("trades")
            await world.kill()  # the first server, for good; the other was found by itself
            await here.until(lambda: bool(here.heard(Up)))
            assert here.heard(Down)
            assert here.heard(Lost)
            publisher.publish(ids(1))
            await here.until(lambda: here.payloads() == [b"1"])
            await subscriber.subscribe("quotes")  # a dead server does not keep a subscription from being proven

    run(main())


def test_a_subscription_is_not_in_force_while_the_servers_are_cut_from_each_other() -> None:
    async def main() -> None:
        async with NatsClusterWorld() as world:
            here, there = Ear(), Ear()
            subscriber, publisher = await world.connect(here, 0), await world.connect(there, 1)
            for topic in ("first", "second"):
                for proxy in world.cluster.proxies:
                    proxy.cut()
                await subscriber.subscribe(topic)  # takes as long as the servers take to find each other
                publisher.publish([Item(topic, b"", "p", 1)])
                await here.until(lambda topic=topic: [item.topic for item in here.items][-1:] == [topic])

    run(main())


@pytest.mark.campaign
def test_a_subscription_is_not_in_force_while_a_server_is_cut_off_that_ours_no_longer_names() -> None:
    async def main() -> None:
        async with NatsClusterWorld() as world:
            here, there = Ear(), Ear()
            subscriber, publisher = await world.connect(here, 0), await world.connect(there, 1)
            assert isinstance(subscriber, NatsEns)
            targets = [proxy.target for proxy in world.cluster.proxies]
            both = len(subscriber._client.info.connect_urls)
            for proxy in world.cluster.proxies:
                proxy.target = None
                proxy.cut()
            async with asyncio.timeout(PATIENCE_S):
                while len(subscriber._client.info.connect_urls) >= both:
                    await asyncio.sleep(0.01)
            subscribing = asyncio.create_task(subscriber.subscribe("trades"))
            await asyncio.wait([subscribing], timeout=0.5)
            assert not subscribing.done()
            for proxy, target in zip(world.cluster.proxies, targets, strict=True):
                proxy.target = target
            await subscribing
            publisher.publish([Item("trades", b"", "p", 1)])
            await here.until(lambda: len(here.items) == 1)

    run(main())


def test_a_pause_between_pings_is_over_when_somebody_waits_or_much_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with NatsWorld() as world:
            ear = Ear()
            publisher = NatsEns(NatsOptions((world.servers[0].url,)), ear, AdapterLimits(open_items_max=100))
            await publisher.open()
            publisher.publish(ids(1))
            publisher.publish(ids(2))  # the first ping is under way; after its answer a pause would begin
            async with asyncio.timeout(PATIENCE_S):
                await publisher.flush()
            publisher.publish(ids(*range(3, 63)))
            assert publisher.open_count == 60
            await publisher.room()
            assert publisher.open_count == 0
            publisher.publish(ids(*range(63, 63 + UNASKED_MAX)))
            await ear.until(lambda: ear.confirmed == 62 + UNASKED_MAX)
            await publisher.close()

    monkeypatch.setattr("unisono.runtime.brokers.nats.adapter.PAUSE_S", 3600.0)
    run(main())


def test_open_items_survive_a_paused_server() -> None:
    async def main() -> None:
        async with NatsWorld() as world:
            here = Ear()
            ens = await world.connect(here)
            await ens.subscribe("trades")
            world.servers[0].pause()
            ens.publish(ids(1, 2, 3))
            await asyncio.sleep(0)
            assert ens.open_count == 3
            world.servers[0].resume()
            await ens.flush()
            await here.until(lambda: [item.request for item in here.items] == [1, 2, 3])

    run(main())


def test_nobody_home_is_said_at_once() -> None:
    async def main() -> None:
        with pytest.raises(TransportError, match="no NATS server"):
            await NatsEns(NatsOptions(("nats://127.0.0.1:1",)), Ear()).open()

    run(main())


def test_addresses_that_are_none_are_misuse() -> None:
    assert normalize("127.0.0.1") == "nats://127.0.0.1:4222"
    assert normalize("tls://u:p@h:1") == "tls://u:p@h:1"
    for address in ("http://h:1", "nats://", "nats://h:port"):
        with pytest.raises(MisuseError):
            normalize(address)


# JetStream


def test_a_stream_replays_what_follows_a_position_then_goes_on_live() -> None:
    async def main() -> None:
        async with JetStreamWorld() as world:
            here, there, again = Ear(), Ear(), Ear()
            subscriber, publisher = await world.connect(here), await world.connect(there)
            await subscriber.subscribe("trades")
            publisher.publish(ids(*range(1, 101)))
            await here.until(lambda: len(here.items) == 100)
            positions = [item.position for item in here.items]
            assert positions == sorted(set(positions))
            late = await world.connect(again)
            await late.subscribe("trades", after=positions[59])
            publisher.publish(ids(101))
            await again.until(lambda: len(again.items) == 41)
            assert [(item.request, item.position) for item in again.items] == [
                (item.request, item.position) for item in here.items[60:100]
            ] + [(101, positions[-1] + 1)]

    run(main())


def test_replaying_what_retention_removed_is_data_loss() -> None:
    async def main() -> None:
        async with JetStreamWorld() as world:
            there = Ear()
            publisher = await world.connect(there)
            publisher.publish(ids(*range(1, 11)))
            await publisher.flush()
            plain = await nats.connect(world.servers[0].node_url)
            await plain.jetstream().purge_stream(stream_name("unisono", "trades"), seq=6)
            subscriber = await world.connect(Ear())
            with pytest.raises(DataLossError):
                await subscriber.subscribe("trades", after=2)
            with pytest.raises(DataLossError):
                await subscriber.subscribe("trades", after=99)
            await subscriber.subscribe("trades", after=5)
            await plain.close()

    run(main())


def test_an_event_published_twice_is_kept_once() -> None:
    async def main() -> None:
        async with JetStreamWorld() as world:
            here, there = Ear(), Ear()
            subscriber, publisher = await world.connect(here), await world.connect(there)
            await subscriber.subscribe("trades")
            publisher.publish([*ids(1), *ids(1), *ids(2)])
            await publisher.flush()
            await here.until(lambda: b"2" in here.payloads())
            assert here.payloads() == [b"1", b"2"]

    run(main())


def test_a_stream_that_others_made_is_used() -> None:
    async def main() -> None:
        async with JetStreamWorld() as world:
            plain = await nats.connect(world.servers[0].node_url)
            await plain.jetstream().add_stream(name="THEIRS", subjects=["trades"])
            here = Ear()
            ens = await world.connect(here)
            await ens.subscribe("trades")
            await ens.subscribe("trades", control=True)
            ens.publish([*ids(1), Item("trades", b"stamp", control=True)])
            await here.until(lambda: len(here.items) == 2)
            assert (await plain.jetstream().stream_info("THEIRS")).state.messages == 1
            await plain.close()

    run(main())


def test_what_a_stream_refused_is_not_sent_again() -> None:
    """An older item keeps it open: its stream does not acknowledge. Then the line breaks, and there is room."""

    async def main() -> None:
        async with JetStreamWorld() as world:
            plain = await nats.connect(world.servers[0].node_url)
            await plain.jetstream().add_stream(name="MUTE", subjects=["mute"], no_ack=True)
            await plain.jetstream().add_stream(name="FULL", subjects=["full"], max_msgs=1, discard=DiscardPolicy.NEW)
            await plain.jetstream().publish("full", b"the only one")
            here, there = Ear(), Ear()
            subscriber, publisher = await world.connect(here), await world.connect(there)
            await subscriber.subscribe("trades")
            publisher.publish([Item("mute", b"1", "p", 1), Item("full", b"2", "p", 1)])
            await there.until(lambda: bool(there.heard(ItemRejected)))
            await plain.jetstream().purge_stream("FULL")
            await plain.close()
            await world.kill()
            await world.start()
            publisher.publish(ids(3))
            await here.until(lambda: b"3" in here.payloads())
            again = await nats.connect(world.servers[0].node_url)
            assert (await again.jetstream().stream_info("FULL")).state.messages == 0
            assert (len(there.heard(ItemRejected)), there.confirmed) == (1, 0)
            await again.close()

    run(main())


def test_a_stream_that_vanishes_is_told_and_subscribing_goes_on() -> None:
    async def main() -> None:
        async with JetStreamWorld() as world:
            here, there = Ear(), Ear()
            subscriber, publisher = await world.connect(here), await world.connect(there)
            await subscriber.subscribe("trades")
            publisher.publish(ids(1, 2))
            await here.until(lambda: len(here.items) == 2)
            plain = await nats.connect(world.servers[0].node_url)
            await plain.jetstream().delete_stream(stream_name("unisono", "trades"))
            await plain.close()
            publisher.publish(ids(3))  # makes the stream anew
            await publisher.flush()
            await world.kill()  # which makes the subscriber look
            await world.start()
            await here.until(lambda: b"3" in here.payloads())
            assert here.heard(Lost)

    run(main())


def test_a_topic_for_which_the_server_has_no_room_is_refused() -> None:
    async def main() -> None:
        async with JetStreamWorld() as world:
            ear = Ear()
            greedy = StreamConfig(bytes_max=2**60)
            ens = JetStreamEns(NatsOptions((world.servers[0].node_url,)), ear, streams=greedy)
            await ens.open()
            with pytest.raises(TransportError, match="insufficient storage"):
                await ens.subscribe("trades")
            ens.publish(ids(1, 2))
            await ens.flush()
            assert [notice.item.request for notice in ear.heard(ItemRejected)] == [1, 2]
            assert ear.confirmed == 2
            await ens.close()

    run(main())


@pytest.mark.campaign
def test_three_replicas_survive_the_death_of_a_server(tmp_path: Path) -> None:
    async def main() -> None:
        cluster = NatsCluster(tmp_path, 3, Micros(5_000), msgspec.structs.replace(SMALL, jetstream=True))
        await cluster.start()
        try:
            here, there = Ear(), Ear()
            ends = [
                JetStreamEns(NatsOptions((server.node_url,)), ear, streams=StreamConfig(replicas=3))
                for server, ear in zip(cluster.servers, (here, there))
            ]
            for ens in ends:
                await ens.open()
            await ends[0].subscribe("trades")
            ends[1].publish(ids(*range(1, 501)))
            cluster.servers[2].kill()
            await ends[1].flush()
            await here.until(lambda: len(here.items) >= 500)
            assert sorted(item.request for item in here.items) == list(range(1, 501))
            for ens in ends:
                await ens.close()
        finally:
            for server in cluster.servers:
                server.kill()
            await cluster.stop()

    run(main())


def test_jetstream_on_a_server_without_it_is_refused_at_open() -> None:
    async def main() -> None:
        async with NatsWorld() as world:
            with pytest.raises(TransportError, match="without JetStream"):
                await JetStreamEns(NatsOptions((world.servers[0].url,)), Ear()).open()

    run(main())


# the parser


class _Owner:
    def __init__(self) -> None:
        self.messages: list[Msg] = []
        self.errors: list[str] = []

    def on_messages(self, messages: list[Msg]) -> None:
        self.messages += messages

    def on_error(self, text: str) -> None:
        self.errors.append(text)

    def on_gone(self, wire: NatsWire, reason: str) -> None: ...


def parsed(chunks: list[bytes]) -> tuple[list[Msg], NatsWire]:
    async def main() -> tuple[list[Msg], NatsWire]:
        owner = _Owner()
        wire = NatsWire(owner)
        for chunk in chunks:
            wire.data_received(chunk)
        return owner.messages, wire

    return RUNNER.run(main())


RUNNER = asyncio.Runner()

items = st.builds(
    Item,
    topic=st.sampled_from(["a", "b.c"]),
    payload=st.binary(max_size=40) | st.sampled_from([b"\r\n", b"MSG a 1 3\r\nabc\r\n", b"PING\r\n"]),
    publisher=st.sampled_from(["", "p", "eu/p-1"]),
    request=st.integers(0, 2**63),
    headers=st.none()
    | st.dictionaries(st.sampled_from(["A", "B-c"]), st.sampled_from(["", "x", "y: z", "ü"]), min_size=1),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(items, max_size=6), st.lists(st.integers(0, 600), max_size=6))
def test_messages_are_the_same_however_the_bytes_are_cut(sent: list[Item], cuts: list[int]) -> None:
    stream = b""
    for item in sent:
        head = header_block(item) if item.publisher or item.headers else b""
        command = b"HMSG %b 1 %d %d" % (item.topic.encode(), len(head), len(head) + len(item.payload))
        if not head:
            command = b"MSG %b 1 re.ply %d" % (item.topic.encode(), len(item.payload))
        stream += command + b"\r\n" + head + item.payload + b"\r\n+OK\r\n"
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    messages, _ = parsed([stream[a:b] for a, b in pairwise(edges)])
    heard = [decode(subject.decode(), False, head, payload) for _, subject, _, head, payload in messages]
    expected = [msgspec.structs.replace(item, request=item.request if item.publisher else 0) for item in sent]
    assert heard == expected


named = st.tuples(
    st.sampled_from(["a", "b.c"]),
    st.sampled_from(["p", "q", "eu/p-1", "50%d"]),
    st.sampled_from([1, 8, 98, 997]),
    st.lists(st.sampled_from([b"x", b"y", b"\r\n", b"longer"]), min_size=1, max_size=14).map(tuple),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(named, max_size=8), st.lists(st.integers(0, 4_000), max_size=4))
def test_rows_arrive_as_their_items_would(sent: list[tuple[str, str, int, tuple[bytes, ...]]], cuts: list[int]) -> None:
    rows = [ItemRow(topic, payloads, publisher, request) for topic, publisher, request, payloads in sent]
    assert encode(rows, CONTROL) == encode(unpack(rows), CONTROL)
    stream = b""
    for item in unpack(rows):
        head, sid = header_block(item), b"1" if item.topic == "a" else b"2"
        sizes = (len(head), len(head) + len(item.payload))
        stream += b"HMSG %b %b %d %d\r\n%b%b\r\n" % (item.topic.encode(), sid, *sizes, head, item.payload)
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    heard: list[Parcel] = []

    async def main() -> None:
        channels = {b"1": ("a", False), b"2": ("b.c", False)}
        wire = NatsWire(_Owner(), lambda received: heard.extend(decode_all(channels, received)))
        for start, end in pairwise(edges):
            wire.data_received(stream[start:end])

    RUNNER.run(main())
    assert unpack(heard) == unpack(rows)
    assert count_items(heard) == sum(map(len, rows))


@pytest.mark.parametrize("digits", ["007", "+7", "7_7", " 7", "7x", "9" * 30])
def test_a_request_that_is_written_oddly_is_read_as_on_its_own(digits: str) -> None:
    heads = [f"NATS/1.0\r\nUnisono-Id: p {number}\r\n\r\n".encode() for number in ("7", digits, digits, digits)]
    stream = b"".join(b"HMSG a 1 %d %d\r\n%bx\r\n" % (len(head), len(head) + 1, head) for head in heads)
    heard: list[Parcel] = []

    async def main() -> None:
        NatsWire(_Owner(), lambda got: heard.extend(decode_all({b"1": ("a", False)}, got))).data_received(stream)

    RUNNER.run(main())
    assert unpack(heard) == [decode("a", False, head, b"x") for head in heads]


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.binary(max_size=30)
        | st.sampled_from(
            [
                b"MSG a 1 -500\r\n",
                b"HMSG a 1 -9 2\r\n",
                b"-ERR 'x'\r\n",
                b"\r\n",
                b"PONG\r\n",
                b"HMSG a 1\r\n",
                b"MSG a 1 99999999999999999999\r\n",
                b"MSG a 1 3\r\n",
                b"abc\r\n",
                b"HMSG a 1 9 2\r\n",
                b"MSG\r\n",
                b"MSG a 1 -5\r\n",
                b"INFO {}\r\n",
                b"INFO x\r\n",
            ]
        ),
        max_size=8,
    )
)
def test_garbage_ends_the_connection_and_nothing_else(chunks: list[bytes]) -> None:
    parsed(chunks)


def test_a_line_without_end_does_not_fill_the_memory() -> None:
    _, wire = parsed([b"x" * 100_000] * 30)
    assert "line" in wire.reason


def test_a_message_longer_than_any_server_sends_is_not_waited_for() -> None:
    _, wire = parsed([b"MSG a 1 99999999999999\r\n"])
    assert "not the NATS protocol" in wire.reason


def test_encoded_items_are_commands_of_the_protocol() -> None:
    assert encode([Item("t", b"x")], CONTROL) == b"PUB t 1\r\nx\r\n"
    head = b"NATS/1.0\r\nUnisono-Id: p 7\r\n\r\n"
    assert encode([Item("t", b"x", "p", 7, True)], CONTROL) == b"HPUB _unisono.d.ctl.t %d %d\r\n%bx\r\n" % (
        len(head),
        len(head) + 1,
        head,
    )


def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    class Broken(NatsServer):
        def settings(self) -> dict[str, object]:
            return {**super().settings(), "port": "nonsense"}

    with pytest.raises(TransportError, match="ended at once"):
        asyncio.run(Broken(tmp_path, NatsServerConfig()).start())


def test_the_generated_configuration_denies_control_to_clients() -> None:
    users = NatsServer(Path(), SMALL).settings()["authorization"]
    assert "_unisono.*.ctl.>" in str(users)
    assert "_unisono.*.adopted.>" in str(users)
