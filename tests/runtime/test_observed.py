"""What a node says of itself: pages over HTTP, lines in its log, `status`, `topics`, `groups`."""

import asyncio
import json
import logging
import re
import urllib.error
import urllib.request
from functools import partial
from pathlib import Path

import pytest
from msgspec import structs
from prometheus_client.parser import text_string_to_metric_families
from typer.testing import CliRunner

import unisono
from tests.runtime.test_cluster import FAST, running, star, url
from unisono.cli.main import application
from unisono.cli.status import problems
from unisono.errors import MisuseError
from unisono.model.deployment import dump_deployment, parse_deployment
from unisono.model.health import Checked, Health, PeerSeen, ServerSeen
from unisono.model.metrics import CATALOGUE, OF_NODES
from unisono.model.settings import NodeSpec, Security
from unisono.runtime.links.control import AskReport, NodeReport, Survey, Surveyed
from unisono.runtime.links.dialing import dial_node
from unisono.runtime.links.questions import ask_node
from unisono.runtime.node.lookout import Lookout, LookoutConfig
from unisono.runtime.node.node import Node
from unisono.runtime.saying import LogLines, say

QUICK = LookoutConfig(every_s=0.05, servers_every_s=0.05, answer_s=0.3, server_answer_s=0.5)
OBSERVED = structs.replace(FAST, observe="127.0.0.1:0", lookout=QUICK)


async def get(node: Node, path: str, method: str = "GET") -> tuple[int, str]:
    """Asked by a client that is not ours."""

    def ask() -> tuple[int, str]:
        request = urllib.request.Request(f"http://127.0.0.1:{node.pages.port}{path}", method=method)
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    return await asyncio.get_running_loop().run_in_executor(None, ask)


async def until(condition: object) -> None:
    async with asyncio.timeout(30):
        while not condition():  # type: ignore[operator]
            await asyncio.sleep(0.02)


def test_a_node_serves_its_health_and_every_metric_it_documents_can_be_read(tmp_path: Path) -> None:
    async def run() -> None:
        deployment = star()
        async with Node(deployment, "hub", tmp_path, OBSERVED) as hub:
            await get(hub, "/readyz")
            async with (
                Node(deployment, "east", tmp_path, OBSERVED) as east,
                unisono.connect(url(deployment, "east")) as a,
                a.subscribe("trades", "fresh") as stream,
            ):
                await a.publish("trades", 1)
                assert (await anext(stream)).data == 1
                await until(lambda: east.health().is_ready and east.lookout.free_bytes is not None)
                assert (await get(east, "/healthz")) == (200, '{"alive":true}\n')
                status, text = await get(east, "/readyz")
                assert (status, json.loads(text)["ready"]) == (200, True)
                assert {check["name"] for check in json.loads(text)["checks"]} == {
                    "node", "log", "broker", "parent", "clock"
                }  # fmt: skip
                _, text = await get(east, "/metrics")
                assert (await get(east, "/nothing"))[0] == 404
                assert (await get(east, "/metrics", "POST"))[0] == 405
        families = {family.name: family for family in text_string_to_metric_families(text)}
        documented = {name.removesuffix("_total") for name in CATALOGUE}
        assert families.keys() <= documented
        here = [metric.name for metric in OF_NODES if not metric.name.startswith(("unisono_mesh_", "unisono_clock_"))]
        missing = {name.removesuffix("_total") for name in here} - families.keys()
        assert missing == {"unisono_archive_rows", "unisono_group_lag_events", "unisono_group_lag_seconds"}
        numbered = {sample.labels["topic"]: sample.value for sample in families["unisono_topic_numbered"].samples}
        assert numbered["trades"] == 1
        assert families["unisono_peer_up"].samples[0].labels == {"peer": "hub"}
        assert families["unisono_process_memory_bytes"].samples[0].value > 1e6

    asyncio.run(run())


@pytest.mark.parametrize("request_", [b"\r\n\r\n", b"GET /metrics\r\n\r\n", b"x" * 20_000, b"GET /readyz HTTP/1.1\r\n"])
def test_whoever_does_not_speak_http_costs_a_node_nothing(request_: bytes) -> None:
    async def run() -> None:
        deployment = star(data=False)
        async with Node(deployment, "hub", config=OBSERVED) as hub:
            reader, writer = await asyncio.open_connection("127.0.0.1", hub.pages.port)
            writer.write(request_)
            writer.write_eof()
            await reader.read()
            writer.close()
            assert (await get(hub, "/healthz"))[0] == 200

    asyncio.run(run())


def test_a_neighbour_that_goes_is_named_once_by_log_readyz_and_status(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        deployment = star(data=False)
        async with running(deployment, tmp_path) as nodes:
            hub = Node(deployment, "hub", tmp_path, OBSERVED)
            east = nodes["east"]
            east.lookout._config = QUICK
            await until(lambda: east.health().is_ready and nodes["west"].health().is_ready)
            caplog.clear()
            await nodes["hub"].stop()
            await until(lambda: not east.health().is_ready and not nodes["west"].health().is_ready)
            assert any(problem.startswith("node hub: ") for problem in east.health().problems())
            down = [record for record in caplog.records if getattr(record, "fields", {}).get("event") == "peer-down"]
            assert {record.fields["peer"] for record in down} == {"hub"}  # type: ignore[attr-defined]
            assert len(down) == 2, "one line of each neighbour"
            nodes["hub"] = hub
            await hub.start()
            await until(lambda: east.health().is_ready)
            up = [
                record.message for record in caplog.records if getattr(record, "fields", {}).get("event") == "peer-up"
            ]
            assert any("hub" in line for line in up)

    with caplog.at_level(logging.INFO):
        asyncio.run(run())


def test_a_neighbour_that_keeps_its_connection_and_does_not_answer_is_down(tmp_path: Path) -> None:
    async def run() -> None:
        deployment = star(data=False)
        async with running(deployment, tmp_path) as nodes:
            east, hub = nodes["east"], nodes["hub"]
            east.lookout._config = QUICK
            await until(lambda: all(peer.round_trip_us is not None for peer in east.health().peers))
            hub.lookout.answer = lambda ping: None  # type: ignore[method-assign]
            await until(lambda: not east.health().is_ready)
            (peer,) = east.health().peers
            assert "connected, and has not answered" in peer.detail

    asyncio.run(run())


def test_a_wrong_token_is_told_by_both_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        deployment = star(data=False, security=Security(token_variable="TOKEN"))
        monkeypatch.setenv("TOKEN", "right")
        async with Node(deployment, "hub", tmp_path, OBSERVED) as hub:
            monkeypatch.setenv("TOKEN", "wrong")
            stranger = Node(deployment, "west", tmp_path, structs.replace(OBSERVED, broker_patience_s=0.1))
            starting = asyncio.ensure_future(stranger.start())
            stranger.lookout._settled_s = 0
            dial_node(stranger.links, deployment.node("hub"))
            await until(lambda: hub.refusals.counts["token"] > 0)
            await until(lambda: any("wrong token" in problem for problem in stranger.health().problems()))
            await asyncio.wait([starting])
            assert "token" in str(starting.exception())
            await stranger.stop()
            await until(lambda: any("(token)" in record.message for record in caplog.records))

    with caplog.at_level(logging.WARNING):
        asyncio.run(run())


def test_a_neighbour_that_turns_us_away_was_never_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It dials, is let in, and closes, because we do not know its token; and again, and again."""

    def of(node: Node) -> PeerSeen:
        return next(peer for peer in node.health().peers if peer.node == "west")

    async def run() -> None:
        deployment = star(data=False)
        async with Node(deployment, "hub", tmp_path, OBSERVED) as hub:
            hub.lookout._settled_s = 0
            monkeypatch.setenv("TOKEN", "known to west alone")
            guarded = structs.replace(deployment, security=Security(token_variable="TOKEN"))
            stranger = Node(guarded, "west", tmp_path, structs.replace(OBSERVED, broker_patience_s=5.0))
            starting = asyncio.ensure_future(stranger.start())
            dial_node(stranger.links, deployment.node("hub"))
            await until(lambda: "does not know our token" in of(hub).detail)
            assert of(hub).detail.count("Give the deployment's token") == 1
            await until(lambda: stranger.refusals.counts["token"] >= 3)
            await asyncio.wait([starting])
            await stranger.stop()
            async with Node(deployment, "west", tmp_path, OBSERVED):
                await until(lambda: of(hub).up)

    with caplog.at_level(logging.INFO):
        asyncio.run(run())
    told = [record.message for record in caplog.records if record.message.startswith("peer west")]
    assert sum(message.startswith("peer west is up") for message in told) == 1, told


def test_a_clock_far_from_its_parents_is_not_ready() -> None:
    deployment = star(data=False)
    lookout = Lookout(deployment, deployment.node("east"), None, {}, None, lambda: None, lambda: None)  # type: ignore[arg-type]

    async def run() -> None:
        near = PeerSeen("hub", True, "connected", 80_000, 500_000 + 40_000)
        assert lookout._of_clock(near).passed, "half of the round trip is not known"
        far = lookout._of_clock(structs.replace(near, ahead_us=-900_000))
        assert not far.passed
        assert "0.900 s ahead of hub" in far.detail

    asyncio.run(run())


def test_a_disk_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    async def run() -> None:
        deployment = star(data=False)
        directory = tmp_path / "gone"
        lookout = Lookout(deployment, deployment.node("hub"), None, {}, directory, lambda: None, lambda: None)  # type: ignore[arg-type]
        told = await lookout._look_at_disk(directory)
        assert not told.passed
        assert "cannot be written" in told.detail
        directory.mkdir()
        assert (await lookout._look_at_disk(directory)).passed
        assert list(directory.iterdir()) == []

    asyncio.run(run())


def report(
    name: str, *checks: Checked, peers: tuple[PeerSeen, ...] = (), servers: tuple[ServerSeen, ...] = ()
) -> NodeReport:
    return NodeReport(name, {}, (), (), health=Health(checks, peers, servers))


def test_status_names_the_culprit_and_not_those_who_miss_it() -> None:
    away = unisono.TransportError("refused")
    hub_down = PeerSeen("hub", False, "connection lost")
    orphan = Checked("parent", False, "hub: connection lost")
    assert problems({"hub": away, "east": report("east", orphan, peers=(hub_down,))}) == [
        "node hub does not answer: refused"
    ]
    lost, dead = Checked("broker", False, "the server closed"), ServerSeen("n1:4222", False, "refused")
    several = {"hub": report("hub", lost, servers=(dead,)), "east": report("east", servers=(dead,))}
    assert problems(several) == ["server n1:4222 does not answer (seen by hub, east: refused)"]
    assert problems({"hub": report("hub", lost)}) == ["node hub has lost the broker: the server closed"]
    cut = {"hub": report("hub"), "east": report("east", orphan, peers=(hub_down,))}
    assert problems(cut) == ["node hub is not reached (seen by east: connection lost)"]
    full = Checked("log", False, "0 MiB free")
    assert problems({"hub": report("hub", full)}) == ["node hub: log: 0 MiB free"]
    assert problems({"hub": structs.replace(report("hub", full), failure="it broke")}) == [
        "node hub has stopped: it broke"
    ]
    assert problems({"hub": report("hub", Checked("log", True, "room"))}) == []


def test_topics_show_home_rate_and_group_and_patterns_choose(tmp_path: Path) -> None:
    async def run() -> list[Surveyed]:
        deployment = star(data=False)
        async with (
            running(deployment, tmp_path),
            unisono.connect(url(deployment, "hub")) as session,
            session.subscribe("trades", "quotes"),
            session.subscribe("trades", "quotes"),
        ):
            for _ in range(3):
                await session.publish("trades", 1)
            east, west = deployment.node("east").listen, deployment.node("west").listen
            everything = await ask_node(east, "", partial(Survey, pattern=">"), Surveyed)
            nothing = await ask_node(east, "", partial(Survey, pattern="quotes"), Surveyed)
            other = await ask_node(west, "", partial(Survey, pattern="quotes"), Surveyed)
            told = await ask_node(east, "", AskReport, NodeReport)
            assert told.health is not None
            file = tmp_path / "deployment.toml"
            file.write_text(dump_deployment(deployment))
            runner = partial(CliRunner().invoke, application("topics"), prog_name="unisono")
            words = ["topics", str(file), "--seconds", "0.05", "--json"]
            shown = await asyncio.get_running_loop().run_in_executor(None, partial(runner, words))
            quotes, trades = json.loads(shown.output)["topics"]
            assert [quotes["home"], trades["home"]] == ["west", "east"]
            assert [quotes["group"], trades["group"]] == [["trades"], ["quotes"]]
            narrow = await asyncio.get_running_loop().run_in_executor(None, partial(runner, [*words, "trades"]))
            (alone,) = json.loads(narrow.output)["topics"]
            assert (alone["group"], alone["others"]) == (["quotes"], 0), "a pattern hides no names of what it shows"
            none = await asyncio.get_running_loop().run_in_executor(None, partial(runner, [*words[:-1], "nothing"]))
            assert none.output.strip() == "no topic matches nothing"
        return [everything, nothing, other]

    everything, nothing, other = asyncio.run(run())
    (trades,) = everything.topics
    assert (trades.name, trades.number, trades.subscribers) == ("trades", 3, 2)
    assert nothing.topics == ()
    assert [topic.name for topic in other.topics] == ["quotes"]


def test_a_log_line_has_the_deployment_and_the_node_in_both_shapes() -> None:
    logger, lines = logging.getLogger("test"), []
    logger.setLevel(logging.INFO)
    handler = logging.Handler()
    handler.emit = lines.append  # type: ignore[method-assign]
    logger.addHandler(handler)
    say(logger, logging.WARNING, "peer us-1 is down: 100 % gone", event="peer-down", peer="us-1")
    say(logger, logging.DEBUG, "not loud enough", event="quiet")
    logger.removeHandler(handler)
    (record,) = lines
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\dT[0-9:.]+\+0000 WARNING trading/eu-1 peer us-1 is down: 100 % gone",
        LogLines("trading", "eu-1", "text").format(record),
    )
    told = json.loads(LogLines("trading", "eu-1", "json").format(record))
    assert {**told, "at": ""} == {
        "at": "",
        "level": "warning",
        "deployment": "trading",
        "node": "eu-1",
        "event": "peer-down",
        "peer": "us-1",
        "text": "peer us-1 is down: 100 % gone",
        "logger": "test",
    }


def test_where_a_node_is_observed_follows_from_its_port() -> None:
    assert NodeSpec("n", listen="0.0.0.0:7474").observed_at == "127.0.0.1:8474"
    assert NodeSpec("n", listen="0.0.0.0:7474", observe="0.0.0.0:9000").observed_at == "0.0.0.0:9000"
    assert NodeSpec("n", listen="0.0.0.0:7474", observe="off").observed_at is None
    assert NodeSpec("n", listen="127.0.0.1:65000").observed_at is None
    twins = NodeSpec("n", listen="127.0.0.1:7474", standby="127.0.0.1:7480")
    assert (twins.observed_at, twins.standby_observed_at) == ("127.0.0.1:8474", "127.0.0.1:8480")
    with pytest.raises(MisuseError, match=r'"host:port" nor "off"'):
        parse_deployment('version = 1\n[[nodes]]\nname = "n"\nobserve = "9000x"')
