"""The embedded broker and the hub in particular: tokens, patience with slow readers, hostile bytes, faults."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.runtime.ens.worlds import PATIENCE_S, Ear
from unisono.errors import MisuseError, TransportError
from unisono.runtime.brokers.contract import Down, Item, Lost
from unisono.runtime.brokers.embedded import server as wire
from unisono.runtime.brokers.embedded.adapter import EmbeddedEns
from unisono.runtime.brokers.embedded.fan_out import pack
from unisono.runtime.brokers.embedded.server import EmbeddedBroker, EmbeddedBrokerConfig
from unisono.runtime.brokers.memory.adapter import DeliveryFaults, Hub, HubConfig, MemoryEns
from unisono.runtime.driver import loop


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(main, 4 * PATIENCE_S))


async def opened(port: int, ear: Ear, token: str = "") -> EmbeddedEns:
    ens = EmbeddedEns("127.0.0.1", port, ear, token=token)
    await ens.open()
    return ens


def test_tokens_say_who_may_enter_and_who_may_publish_control() -> None:
    async def main() -> None:
        broker = EmbeddedBroker(EmbeddedBrokerConfig(client_token="cl1ent", node_token="n0de"))
        port = await broker.start()
        with pytest.raises(TransportError, match="token"):
            await opened(port, Ear(), "wrong")
        here = Ear()
        client, node = await opened(port, here, "cl1ent"), await opened(port, Ear(), "n0de")
        await client.subscribe("trades", control=True)
        with pytest.raises(MisuseError, match="only nodes"):
            client.publish([Item("trades", b"forged", control=True)])
        node.publish([Item("trades", b"stamp", control=True)])
        await here.until(lambda: here.payloads() == [b"stamp"])
        await client.close()
        await node.close()
        await broker.stop()

    run(main())


def test_a_broker_that_is_full_refuses_before_it_is_greeted_and_that_breaks_nothing() -> None:
    async def main() -> None:
        broken: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: broken.append(context))
        broker = EmbeddedBroker(EmbeddedBrokerConfig(connections_max=1))
        port = await broker.start()
        first = await opened(port, Ear())
        for _ in range(300):  # the refusal may be read as soon as the connection is there
            with pytest.raises(TransportError, match="connection"):
                await opened(port, Ear())
        assert broken == []
        await first.close()
        await broker.stop()

    loop.run(asyncio.wait_for(main(), 4 * PATIENCE_S))


def test_who_stops_dialling_at_any_moment_leaves_nothing_running() -> None:
    async def main() -> None:
        broken: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: broken.append(context))
        broker = EmbeddedBroker(EmbeddedBrokerConfig())
        port = await broker.start()
        for turns in range(12):  # where it is cancelled: before, while and after the connection is made
            dialling = asyncio.create_task(opened(port, Ear()))
            for _ in range(turns):
                await asyncio.sleep(0)
            dialling.cancel()
            await asyncio.wait([dialling])
            if not dialling.cancelled():
                await dialling.result().close()
        for _ in range(500):
            if broker.connections:
                await asyncio.sleep(0.01)
        assert not broker.connections
        assert broken == []
        await broker.stop()

    loop.run(asyncio.wait_for(main(), 4 * PATIENCE_S))


def test_a_client_that_forges_control_on_the_wire_is_thrown_out() -> None:
    async def main() -> None:
        broker = EmbeddedBroker(EmbeddedBrokerConfig(node_token="n0de"))
        port = await broker.start()
        here = Ear()
        node = await opened(port, here, "n0de")
        await node.subscribe("trades", control=True)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        rows = wire.msgspec.Raw(wire.encoder.encode([(b"forged", "", 0, None)]))
        messages = [wire.Greet("s"), wire.ItemGroup("trades", True, 1, rows), wire.PutItems(1)]
        writer.write(pack([wire.encoder.encode(message) for message in messages]))
        answer = await reader.read()  # until the broker hangs up
        assert b"only nodes publish control" in answer
        node.publish([Item("trades", b"real", control=True)])
        await here.until(lambda: bool(here.items))
        assert here.payloads() == [b"real"]
        writer.close()
        await node.close()
        await broker.stop()

    run(main())


def test_a_patient_broker_slows_the_publisher_and_loses_nothing() -> None:
    async def main() -> None:
        broker = EmbeddedBroker(EmbeddedBrokerConfig(queue_bytes_max=64 * 1024, patience_us=int(PATIENCE_S * 1e6)))
        port = await broker.start()
        here, there = Ear(), Ear()
        subscriber, publisher = await opened(port, here), await opened(port, there)
        await subscriber.subscribe("trades")
        subscriber.pause()
        sent = 0
        while True:
            try:
                await asyncio.wait_for(publisher.room(), 0.3)
            except TimeoutError:
                break  # the publisher is held back: its bounds are full and nothing moves
            publisher.publish([Item("trades", bytes(4_000), "p", sent + n + 1) for n in range(100)])
            sent += 100
            assert sent < 100_000
        subscriber.resume()
        await here.until(lambda: len(here.items) == sent)
        await publisher.flush()
        assert [item.request for item in here.items] == list(range(1, sent + 1))
        assert not here.notices
        await subscriber.close()
        await publisher.close()
        await broker.stop()

    run(main())


def test_a_broker_that_lost_patience_tells_how_much_was_dropped() -> None:
    async def main() -> None:
        broker = EmbeddedBroker(EmbeddedBrokerConfig(queue_bytes_max=64 * 1024, patience_us=50_000))
        port = await broker.start()
        here, there = Ear(), Ear()
        slow, publisher = await opened(port, here), await opened(port, there)
        await slow.subscribe("trades")
        slow.pause()
        total = 8_000
        for start in range(0, total, 100):
            await publisher.room()
            publisher.publish([Item("trades", bytes(2_000), "p", start + n + 1) for n in range(100)])
        await publisher.flush()
        assert broker.dropped_count > 0
        slow.resume()
        await here.until(lambda: bool(here.heard(Lost)))
        assert len(here.items) + here.lost_count() == total
        assert not there.notices
        await slow.close()
        await publisher.close()
        await broker.stop()

    run(main())


chunks = st.binary(max_size=60) | st.builds(
    lambda messages: pack([wire.encoder.encode(message) for message in messages]),
    st.lists(
        st.sampled_from(
            [
                wire.Greet("s"),
                wire.Greet("s", version=99),
                wire.OpenChannel("trades", False, 1),
                wire.ShutChannel("trades", True),
                wire.Ping(),
                wire.PutItems(2**63 - 1),
                wire.ItemGroup("trades", False, 3, wire.msgspec.Raw(b"\xc0")),
                {"no": "message"},
                [],
                None,
            ]
        ),
        max_size=4,
    ),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(chunks, max_size=4))
def test_hostile_bytes_end_their_own_connection_only(sent: list[bytes]) -> None:
    async def main() -> None:
        broker = EmbeddedBroker()
        port = await broker.start()
        here = Ear()
        ens = await opened(port, here)
        await ens.subscribe("quotes")
        await ens.subscribe("trades")
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"".join(sent))
        writer.write_eof()
        await writer.drain()
        ens.publish([Item("quotes", b"still here", "p", 1)])
        await here.until(lambda: here.payloads("quotes") == [b"still here"])
        assert not here.heard(Down)
        writer.close()
        await ens.close()
        await broker.stop()

    run(main())


def test_weather_is_drawn_from_its_seed() -> None:
    def play(faults: DeliveryFaults) -> list[int]:
        async def main() -> list[int]:
            hub, here = Hub(HubConfig(faults=faults)), Ear()
            ens = MemoryEns(hub, here)
            await ens.open()
            await ens.subscribe("trades")
            ens.publish([Item("trades", b"", "p", n) for n in range(200)])
            await ens.flush()
            await here.until(lambda: ens.waiting == 0)
            return [item.request for item in here.items]

        return asyncio.run(main())

    everything = list(range(200))
    assert play(DeliveryFaults(delay_us=(0, 5_000))) == everything
    shaken = play(DeliveryFaults(delay_us=(0, 20_000), reorder=True))
    assert shaken != everything
    assert sorted(shaken) == everything
    lossy = play(DeliveryFaults(loss=0.3, seed=7))
    assert lossy == play(DeliveryFaults(loss=0.3, seed=7))
    assert lossy != play(DeliveryFaults(loss=0.3, seed=8))
    assert 100 < len(lossy) < 180


def test_a_waiting_hub_leaves_items_open_at_their_publisher() -> None:
    async def main() -> None:
        hub, here, there = Hub(HubConfig(inbox_items_max=10, slow="wait")), Ear(), Ear()
        subscriber, publisher = MemoryEns(hub, here), MemoryEns(hub, there)
        await subscriber.open()
        await publisher.open()
        await subscriber.subscribe("trades")
        subscriber.pause()
        publisher.publish([Item("trades", b"", "p", n) for n in range(100)])
        await there.until(lambda: there.confirmed == 10)
        assert publisher.open_count == 90
        subscriber.resume()
        await here.until(lambda: len(here.items) == 100)
        assert [item.request for item in here.items] == list(range(100))

    run(main())
