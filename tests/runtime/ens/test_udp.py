"""The broker that is nobody's: complete and in order over lossy datagrams, through restarts and silent readers."""

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import unisono
from tests.runtime.ens.worlds import PATIENCE_S, Ear, LossyUdpWorld, UdpWorld
from unisono.audit import judge
from unisono.audit.files import read
from unisono.cli.doctor import reach
from unisono.errors import MisuseError, PlanError, TransportError
from unisono.model.deployment import Deployment
from unisono.model.journal import Header, Journal
from unisono.model.settings import BrokerSpec, NodeSpec, Security, TopicSpec
from unisono.runtime.brokers.contract import Item, Lost
from unisono.runtime.brokers.deployed import udp_options
from unisono.runtime.brokers.udp.adapter import UdpEns, UdpOptions
from unisono.runtime.brokers.udp.node import UdpConfig
from unisono.runtime.node.node import Node
from unisono.runtime.tools.ports import free_ports


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(main, 8 * PATIENCE_S))


def test_items_come_in_order_and_once_although_a_fifth_of_all_datagrams_is_lost() -> None:
    async def main() -> None:
        async with LossyUdpWorld() as world:
            ears = [Ear() for _ in range(4)]
            readers = [await world.connect(ear) for ear in ears[:2]]
            writers = [await world.connect(ear) for ear in ears[2:]]
            for reader in readers:
                await asyncio.gather(reader.subscribe("trades"), reader.subscribe("trades", control=True))
            for n in range(1, 101):
                for name, writer in zip(("alice", "bob"), writers, strict=True):
                    writer.publish([Item("trades", bytes(n), name, n), Item("trades", b"", name, n, control=True)])
                await asyncio.sleep(0)
            for writer, ear in zip(writers, ears[2:], strict=True):
                await writer.flush()
                assert ear.confirmed == 200
            for ear in ears[:2]:
                assert len(ear.items) == 400  # a confirmation means that the readers have it
                for name in ("alice", "bob"):
                    for control in (False, True):
                        mine = [i for i in ear.items if (i.publisher, i.control) == (name, control)]
                        assert [item.request for item in mine] == list(range(1, 101))
                assert not ear.notices

    run(main())


def test_the_last_item_before_a_silence_arrives() -> None:
    async def main() -> None:
        async with LossyUdpWorld() as world:
            here, there = Ear(), Ear()
            reader, writer = await world.connect(here), await world.connect(there)
            await reader.subscribe("trades")
            for n in range(1, 21):
                writer.publish([Item("trades", b"%d" % n, "p", n)])
                await writer.flush()
                assert len(here.items) == n

    run(main())


def test_a_reader_hears_its_own_items_once() -> None:
    async def main() -> None:
        async with UdpWorld() as world:
            ear, other = Ear(), Ear()
            ens, witness = await world.connect(ear), await world.connect(other)
            await ens.subscribe("trades")
            await witness.subscribe("trades")
            for n in range(1, 11):
                ens.publish([Item("trades", b"mine", "p", n)])
            await other.until(lambda: len(other.items) == 10)
            witness.publish([Item("trades", b"end", "q", 1)])
            await ear.until(lambda: b"end" in ear.payloads())
            while ens._node.machine._arrivals.live:  # the machine beneath has brought its own back as well
                await asyncio.sleep(0.005)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert [item.request for item in ear.items] == [*range(1, 11), 1]

    run(main())


def test_a_reader_that_is_not_heard_holds_nobody_up() -> None:
    async def main() -> None:
        async with UdpWorld() as world:
            here, there, mute = Ear(), Ear(), Ear()
            reader, writer = await world.connect(here), await world.connect(there)
            silent = UdpEns(UdpOptions(world.seeds), mute)
            await silent.open()
            for each in (reader, silent):
                await each.subscribe("trades")
            await silent._node.__aexit__()  # as if it had been killed: no goodbye
            assert silent._ticker is not None
            silent._ticker.cancel()
            writer.publish([Item("trades", bytes(100_000), "p", n) for n in range(1, 21)])
            await writer.flush()
            await here.until(lambda: len(here.items) == 20)
            assert not here.notices

    run(main())


def test_a_seed_that_comes_back_at_its_port_is_somebody_else_and_is_heard() -> None:
    async def main() -> None:
        here, first, second = Ear(), Ear(), Ear()
        [port] = free_ports(1)
        options = UdpOptions((f"127.0.0.1:{port}",), bind=f"127.0.0.1:{port}", alone_s=0.2)
        seed = UdpEns(options, first)
        await seed.open()
        reader = UdpEns(UdpOptions(options.seeds), here)
        await reader.open()
        await reader.subscribe("trades")
        seed.publish([Item("trades", b"one", "p", 1), Item("trades", b"two", "p", 2)])
        await seed.flush()
        await here.until(lambda: len(here.items) == 2)
        assert seed._ticker is not None
        seed._ticker.cancel()
        await seed._node.__aexit__()
        again = UdpEns(options, second)
        await again.open()
        await here.until(lambda: bool(here.heard(Lost)))  # what it may have said before it knew us
        n = 0
        while b"three" not in here.payloads():  # it knows us when the next beats have passed
            again.publish([Item("trades", b"three", "p", 3 + n)])
            await again.flush()
            await asyncio.sleep(0.01)
            n += 1
        requests = [item.request for item in here.items]
        assert requests == sorted({*requests})
        await reader.close()
        await again.close()

    run(main())


def test_where_nobody_answers_it_does_not_open() -> None:
    async def main() -> None:
        [port] = free_ports(1)
        assert reach(f"udp://127.0.0.1:{port}").state == "broken"
        ens = UdpEns(UdpOptions((f"127.0.0.1:{port}",), alone_s=0.1), Ear())
        with pytest.raises(TransportError, match="answers"):
            await ens.open()

    run(main())


def deployment(drop: float) -> Deployment:
    ports = free_ports(2)
    return Deployment(
        1,
        "datagrams",
        nodes=(
            NodeSpec("hub", listen=f"127.0.0.1:{ports[0]}"),
            NodeSpec("site", listen=f"127.0.0.1:{ports[1]}", parent="hub"),
        ),
        topics=(TopicSpec("trades", "hub"), TopicSpec("quotes", "site")),
        broker=BrokerSpec("udp", drop=drop),
    )


@asynccontextmanager
async def running(plan: Deployment, base: Path) -> AsyncGenerator[list[Node], None]:
    nodes = [Node(plan, spec.name, base) for spec in plan.nodes]
    try:
        await asyncio.gather(*(node.start() for node in nodes))
        yield nodes
    finally:
        for node in reversed(nodes):
            await node.stop()


async def take(stream: unisono.Stream, count: int) -> list[str]:
    heard: list[str] = []
    async for event in stream:
        assert event.gap is None
        heard.append(event.id)
        if len(heard) == count:
            break
    return heard


def test_two_subscribers_agree_on_everything_over_datagrams_that_are_lost(tmp_path: Path) -> None:
    """Two sequencer nodes, two publishers, two subscribers; a fifth of what each of the six sends is dropped."""

    async def main() -> None:
        plan = deployment(drop=0.2)
        journals = [tmp_path / "one", tmp_path / "two"]
        async with (
            running(plan, tmp_path) as nodes,
            unisono.connect(plan, journal=journals[0], timeout=PATIENCE_S) as one,
            unisono.connect(plan, journal=journals[1], timeout=PATIENCE_S) as two,
            unisono.connect(plan, timeout=PATIENCE_S) as alice,
            unisono.connect(plan, timeout=PATIENCE_S) as bob,
            one.subscribe("trades", "quotes", deadline="60s") as first,
            two.subscribe("quotes", "trades", deadline="60s") as second,
        ):
            trades, quotes = await alice.publisher("trades"), await bob.publisher("quotes")
            for n in range(60):
                await trades.send({"n": n, "text": "x" * (37 * n)})
                await quotes.send({"n": n})
                await asyncio.sleep(0)
            heard = await asyncio.gather(take(first, 120), take(second, 120))
            assert heard[0] == heard[1]
            assert len({*heard[0]}) == 120
            for node in nodes:
                datagrams = node.report().counters["datagrams"]
                assert datagrams["peers"] > 1
                assert datagrams["dropped on purpose"] > 0
            while (await asyncio.to_thread(reach, f"udp://{plan.nodes[0].listen}")).state != "ok":
                pass  # its answers are among what is dropped
            with pytest.raises(PlanError, match="keeps payloads"):
                one.subscribe("trades", reliability="reliable")
        records = [record for path in journals for file in path.glob("*.jsonl") for record in read(file).records]
        assert sum(record.kind == "deliver" for record in records) == 240
        for verdict in judge(Journal(Header(), records), ["pairwise-order", "exactly-once"]):
            assert verdict.holds, verdict.witness

    run(main())


def test_security_that_datagrams_cannot_give_is_refused() -> None:
    for security, why in (
        (Security(certificate="c.pem"), "not encrypted"),
        (Security(node_token_variable="NODE"), "same rights"),
    ):
        plan = Deployment(1, nodes=(NodeSpec("hub"),), broker=BrokerSpec("udp"), security=security)
        with pytest.raises(MisuseError, match=why):
            udp_options(plan, "", None)
    options = udp_options(Deployment(1, nodes=(NodeSpec("hub", listen="127.0.0.1:7474"),)), "secret", None)
    assert (options.seeds, options.bind) == (("127.0.0.1:7474",), "127.0.0.1:0")
    assert options.coded.key
    assert options.udp == UdpConfig()
