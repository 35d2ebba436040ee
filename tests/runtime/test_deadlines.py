"""The event's own deadline: `publish(deadline=)` is carried to subscribers, journals and the archive."""

import asyncio
from pathlib import Path

import pytest

import unisono
from tests.runtime.archive.test_replay import offered, play
from tests.runtime.test_session import take
from unisono.errors import MisuseError
from unisono.model.deployment import Deployment
from unisono.model.settings import ArchiveSpec
from unisono.runtime.client.session import Session
from unisono.runtime.node.node import Node

HOUR_US = 3_600_000_000


def test_who_is_told_after_the_deadline_of_an_event_is_told_so_and_order_stays(tmp_path: Path) -> None:
    async def main() -> None:
        async with unisono.connect("memory://deadlines", journal=tmp_path) as session:
            async with session.subscribe("trades", order="total") as stream:
                await session.publish("trades", {"px": 1}, deadline="1h")
                await session.publish("trades", {"px": 2}, {"key": "IBM"}, deadline="1us")
                await session.publish("trades", {"px": 3})
                timely, over, plain = await take(stream, 3)
                (line,) = [
                    line for line in session.metrics().splitlines() if line.startswith("unisono_subscription_overdue")
                ]
                assert line.endswith(" 1")
            assert [event.data["px"] for event in (timely, over, plain)] == [1, 2, 3]
            assert [event.late for event in (timely, over, plain)] == [False, True, False]
            assert [event.overdue for event in (timely, over, plain)] == [False, True, False]
            assert not over.out_of_order
            assert timely.deadline_us == (timely.published_us or 0) + HOUR_US
            assert plain.deadline_us is None
            assert (timely.attributes, over.attributes) == ({}, {"key": "IBM"})
            assert stream.told.overdue == 1
            assert stream.told.late == 0
        text = "".join(path.read_text() for path in tmp_path.glob("*.jsonl"))
        assert str(timely.deadline_us) in text

    asyncio.run(main())


def test_filters_look_at_the_data_as_they_do_without_a_deadline() -> None:
    async def main() -> None:
        async with unisono.connect("memory://deadlines") as session:
            async with session.subscribe("trades", where="px > 1") as stream:
                publisher = await session.publisher("trades")
                for px in (1, 2):
                    await publisher.send({"px": px}, deadline="1h")
                (event,) = await take(stream, 1)
            assert event.data == {"px": 2}

    asyncio.run(main())


def test_the_name_that_carries_it_is_taken_and_a_wrong_deadline_is_refused() -> None:
    async def main() -> None:
        async with unisono.connect("memory://deadlines") as session:
            with pytest.raises(MisuseError, match=r"publish\(deadline=\)"):
                await session.publish("trades", 1, {"unisono.deadline_us": 5})
            with pytest.raises(MisuseError, match="unit"):
                await session.publish("trades", 1, deadline=300)  # type: ignore[arg-type]

    asyncio.run(main())


def test_the_archive_keeps_it_and_a_replay_tells_it_again(tmp_path: Path) -> None:
    async def story(deployment: Deployment, nodes: list[Node], session: Session) -> None:
        async with session.subscribe("a") as live:
            await session.publish("a", 1, deadline="1h")
            (event,) = await take(live, 1)
        async with session.subscribe("a", start="earliest") as again:
            (replayed,) = await take(again, 1)
        assert replayed.deadline_us == event.deadline_us
        (row,) = [row for row in offered(tmp_path, ArchiveSpec()) if row.payload == b"1"]
        assert row.deadline_us == event.deadline_us

    play(tmp_path, story)
