"""What really happened: journals of nodes and sessions of several regions, told as one story."""

import asyncio
import json
from pathlib import Path

import pytest
from msgspec import structs
from typer.testing import CliRunner

import unisono
from tests.runtime.test_cluster import FAST, star, url
from unisono.audit.files import scan
from unisono.audit.story import tell
from unisono.cli.main import application
from unisono.errors import MisuseError
from unisono.model.journal import Header, Record, encode_line
from unisono.runtime.node.node import Node


def test_a_story_shows_an_events_way_across_nodes_and_regions(tmp_path: Path) -> None:
    async def run() -> str:
        deployment = star()
        config = structs.replace(FAST, journal="all")
        journals = {"journal": tmp_path / "data" / "journal", "record": "all"}
        async with (
            asyncio.timeout(60),
            Node(deployment, "hub", tmp_path, config),
            Node(deployment, "east", tmp_path, config),
            Node(deployment, "west", tmp_path, config),
            unisono.connect(url(deployment, "east"), region="east", **journals) as publisher,  # type: ignore[arg-type]
            unisono.connect(url(deployment, "west"), region="west", **journals) as subscriber,  # type: ignore[arg-type]
            subscriber.subscribe("trades", "quotes") as stream,
        ):
            await publisher.publish("trades", 1)
            event = await anext(stream)
            assert event.id is not None
            return event.id

    event = asyncio.run(run())
    told = tell(tmp_path / "data" / "journal", event)
    kinds = [step.kind for step in told.steps]
    assert {"publish", "send", "arrive", "timestamp", "deliver", "outcome"} <= set(kinds)
    assert kinds.index("publish") < kinds.index("send") < kinds.index("deliver")
    by_who = {(step.kind, step.who): step.text for step in told.steps}
    assert by_who["arrive", "east"].endswith("in local, to be numbered")
    assert "in local" in by_who["timestamp", "east"]
    (arrived,) = [step for step in told.steps if step.kind == "arrive" and step.who != "east"]
    assert arrived.text.endswith(": in west")
    delivered = next(step for step in told.steps if step.kind == "deliver")
    assert "after being held for" in delivered.text
    shown = CliRunner().invoke(application("story"), ["story", str(tmp_path / "data" / "journal"), event])
    assert "to the broker: in east" in shown.output
    judged = CliRunner().invoke(application("audit"), ["audit", str(tmp_path / "data" / "journal"), "--json"])
    assert json.loads(judged.output)["deliveries"] == 1, "journals of several machines are judged together"


def test_nothing_of_it_is_written_unless_asked_for(tmp_path: Path) -> None:
    async def run() -> None:
        async with (
            unisono.connect("memory://quiet", journal=tmp_path) as session,
            session.subscribe("trades") as stream,
        ):
            await session.publish("trades", 1)
            await anext(stream)
            with pytest.raises(MisuseError, match="record"):
                async with unisono.connect("memory://quiet", record="some"):  # type: ignore[arg-type]
                    pass

    asyncio.run(run())
    kinds = {record.kind for record in scan(tmp_path)[1]}
    assert "deliver" in kinds
    assert not {"send", "arrive"} & kinds


def test_a_clock_that_is_behind_is_told_as_far_as_the_rows_prove_it(tmp_path: Path) -> None:
    rows = [
        Record("publish", 5_000, "a", event="a:1", topic="t", publisher="a", published_us=5_000),
        Record("arrive", 2_000, "far", "far", "a:1", topic="t"),
        Record("deliver", 3_000, "far", "far", "a:1", position=1, topic="t", delivered_us=3_000),
        Record("arrive", 6_000, "near", "near", "a:1", topic="t"),
    ]
    file = tmp_path / "j.jsonl"
    file.write_bytes(b"".join(map(encode_line, [Header(), *rows])))
    assert tell(file, "a:1").behind_us == {"far": 3_000}
    shown = CliRunner().invoke(application("story"), ["story", str(file), "a:1"])
    assert "the clock of far is at least 3.000 ms behind" in shown.output
