"""`where=` over a broker that knows only topics: the embedded one, and a real nats-server."""

import asyncio
from pathlib import Path

import pytest

import unisono
from tests.runtime.test_cluster import running
from tests.runtime.test_session import take
from unisono.audit import judge, read
from unisono.errors import MisuseError, PlanError
from unisono.model.deployment import Deployment
from unisono.model.grid import Axis
from unisono.model.journal import Header, Journal
from unisono.model.predicate import parse
from unisono.model.settings import BrokerSpec, NodeSpec, TopicSpec
from unisono.runtime.tools.nats_server import NatsServer
from unisono.runtime.tools.ports import free_ports

GRID = (Axis("sym", values=("IBM", "SAP")), Axis("px", cuts=(50, 100)))
TOPICS = (TopicSpec("trades", grid=GRID), TopicSpec("quotes"))


def two_nodes(broker: BrokerSpec) -> Deployment:
    hub, east = free_ports(2)
    roles = ("sequencer", "broker") if broker.kind == "embedded" else ("sequencer",)
    nodes = (
        NodeSpec("hub", listen=f"127.0.0.1:{hub}", roles=roles),  # type: ignore[arg-type]
        NodeSpec("east", listen=f"127.0.0.1:{east}", parent="hub"),
    )
    return Deployment(1, "content", nodes=nodes, topics=TOPICS, broker=broker)


async def trade(session: unisono.Session, count: int) -> list[dict[str, object]]:
    """Trades and quotes of all kinds; returns them in no particular order."""
    publishers = [await session.publisher(topic) for topic in ("trades", "quotes")]
    sent: list[dict[str, object]] = []
    for n in range(count):
        data: dict[str, object] = {"n": n, "sym": ("IBM", "SAP", "XYZ")[n % 3], "px": (n * 37) % 150}
        if n % 10 == 9:
            del data["px"]
        sent.append(data)
        await publishers[n % 2].send(data)
    for publisher in publishers:
        await publisher.drain()
        assert publisher.failures == []
    return sent


def chosen(sent: list[dict[str, object]], where: str) -> list[object]:
    return [data["n"] for data in sent if parse(where).matches(data)]


def check(journals: Path) -> None:
    records = [record for path in sorted(journals.glob("*.jsonl")) for record in read(path).records]
    verdicts = judge(Journal(Header(), records), ["pairwise-order", "exactly-once"])
    assert [verdict for verdict in verdicts if not verdict.holds] == []


def test_filters_over_a_real_nats_server_select_and_keep_one_order(tmp_path: Path) -> None:
    async def run() -> None:
        async with asyncio.timeout(60):
            server = NatsServer(tmp_path / "nats")
            await server.start()
            try:
                deployment = two_nodes(BrokerSpec("nats", (server.url,)))
                async with (
                    running(deployment, tmp_path),
                    unisono.connect(deployment, journal=tmp_path / "j") as session,
                ):
                    narrow, wide = "sym = 'IBM' and px >= 60", "px between 30 and 120 or not exists px"
                    async with (
                        session.subscribe("trades", "quotes", where=narrow) as first,
                        session.subscribe("quotes", "trades", where=wide) as second,
                        session.subscribe("trades", "quotes") as everything,
                    ):
                        sent = await trade(session, 120)
                        a = await take(first, len(chosen(sent, narrow)))
                        b = await take(second, len(chosen(sent, wide)))
                        c = await take(everything, len(sent))
                        assert sorted(n.data["n"] for n in a) == chosen(sent, narrow)
                        assert sorted(n.data["n"] for n in b) == chosen(sent, wide)
                        assert sorted(n.data["n"] for n in c) == [data["n"] for data in sent]
                        order = [n.data["n"] for n in c]
                        for part in (a, b):
                            numbers = [n.data["n"] for n in part]
                            assert numbers == [n for n in order if n in numbers]
                        assert {n.topic for n in (*a, *b, *c)} == {"trades", "quotes"}
            finally:
                await server.stop()
        check(tmp_path / "j")

    asyncio.run(run())


def test_another_filter_takes_over_and_joins_other_cells(tmp_path: Path) -> None:
    async def run() -> None:
        deployment = two_nodes(BrokerSpec("embedded"))
        async with asyncio.timeout(60), running(deployment, tmp_path), unisono.connect(deployment) as session:
            async with session.subscribe("trades", where="px < 50") as stream:
                await session.publish("trades", {"px": 10})
                await session.publish("trades", {"px": 110})
                assert [n.data["px"] for n in await take(stream, 1)] == [10]
                await stream.update(where="px >= 100")
                await session.publish("trades", {"px": 11})
                await session.publish("trades", {"px": 111})
                assert [n.data["px"] for n in await take(stream, 1)] == [111]
            async with session.subscribe("quotes", order="fifo", where="px > 5") as stream:
                for px in range(10):
                    await session.publish("quotes", {"px": px})
                assert [n.data["px"] for n in await take(stream, 4)] == [6, 7, 8, 9]

    asyncio.run(run())


def test_what_is_not_built_is_refused_with_the_reason(tmp_path: Path) -> None:
    async def run() -> None:
        deployment = two_nodes(BrokerSpec("embedded"))
        async with asyncio.timeout(60), running(deployment, tmp_path), unisono.connect(deployment) as session:
            with pytest.raises(PlanError, match="cut by a grid"):
                session.subscribe("trades", name="me", where="px > 1")
            with pytest.raises(MisuseError, match="contradicts itself"):
                session.subscribe("trades", where="px > 1 and px < 0")
            with pytest.raises(MisuseError, match="NaN"):
                await session.publish("trades", b"", {"px": float("nan")})
            async with session.subscribe("quotes") as stream:
                with pytest.raises(MisuseError, match="without where="):
                    await stream.update(where="px > 1")

    asyncio.run(run())
