"""When an event was published: by its publisher's clock, from the publisher to the archive, or not at all."""

import asyncio
from pathlib import Path

import unisono
from tests.runtime.archive.test_replay import FAST, offered, running, shop
from tests.runtime.test_session import take
from unisono.audit import read
from unisono.model.deployment import Deployment
from unisono.model.settings import ArchiveSpec, BrokerSpec, NodeSpec, Region, TopicSpec
from unisono.runtime.brokers.contract import Item, ItemRow
from unisono.runtime.client.sequenced import SequencedSession
from unisono.runtime.tools.emulate import Emulation
from unisono.runtime.tools.ports import free_ports

ONE_WAY_US = 100_000


def far_shelf() -> Deployment:
    """The archive is a tenth of a second away from everybody else."""
    hub, store, broker = free_ports(3)
    return Deployment(
        1,
        "far",
        regions=(Region("here"), Region("there")),
        round_trip_ms={"here there": ONE_WAY_US / 500},
        nodes=(
            NodeSpec("hub", "here", f"127.0.0.1:{hub}", roles=("sequencer", "broker"), data="data"),
            NodeSpec("shelf", "there", f"127.0.0.1:{store}", "hub", ("archive",), "data"),
        ),
        topics=(TopicSpec("a"),),
        broker=BrokerSpec("embedded", (f"127.0.0.1:{broker}",)),
        archive=ArchiveSpec(seal_s=0.2),
    )


def test_latency_in_the_archive_is_at_least_the_distance_to_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            asyncio.timeout(120),
            Emulation(far_shelf(), tmp_path, FAST) as world,
            unisono.connect(world.view("here"), journal=tmp_path / "journal") as session,
            session.subscribe("a", start="earliest", reliability="reliable") as stream,
        ):
            for n in range(5):
                await session.publish("a", n)
            heard = await take(stream, 5)
            assert all(event.published_us is not None for event in heard)
            while len(offered(tmp_path, ArchiveSpec())) < 5:
                await asyncio.sleep(0.05)

    asyncio.run(main())
    rows = offered(tmp_path, ArchiveSpec())
    assert len(rows) == 5
    for row in rows:
        assert row.published_us is not None
        assert row.delivered_us - row.published_us >= ONE_WAY_US
    (journal,) = (tmp_path / "journal").glob("*.jsonl")
    records = read(journal).records
    published = [record.published_us for record in records if record.kind == "publish"]
    assert published == [row.published_us for row in rows], "the journal of the publisher has the same moments"
    assert published == [record.published_us for record in records if record.kind == "deliver"]


def test_a_replayed_event_was_published_when_it_was(tmp_path: Path) -> None:
    async def main() -> None:
        deployment = shop()
        async with running(deployment, tmp_path), unisono.connect(deployment) as session:
            async with session.subscribe("a") as stream:
                await session.publish("a", 1)
                await session.publish("a", 2, attributes={"px": 1})
                live = [event.published_us for event in await take(stream, 2)]
            async with session.subscribe("a", start="earliest") as again:
                assert [event.published_us for event in await take(again, 2)] == live
                assert None not in live

    asyncio.run(main())


def test_events_that_arrive_together_keep_their_own_moments() -> None:
    async def main() -> None:
        async with unisono.connect("memory://") as session, session.subscribe("a", order="fifo") as stream:
            assert isinstance(session, SequencedSession)
            rows = [ItemRow("a", (b"1",), "c9/p", 1, 11), ItemRow("a", (b"2", b"3"), "c9/p", 2, 22)]
            session.broker.on_items([*rows, Item("a", b"4", "c9/p", 4, born_us=22), Item("a", b"5", "c9/p", 5)])
            heard = await take(stream, 5)
            assert [(event.data, event.published_us) for event in heard] == [
                (1, 11),
                (2, 22),
                (3, 22),
                (4, 22),
                (5, None),
            ]

    asyncio.run(main())
