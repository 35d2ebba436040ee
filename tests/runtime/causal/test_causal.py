"""A causal mesh of real nodes on loopback sockets: order, deadlines, filters, brokers that die, what is refused."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

import unisono
from tests.runtime.overlay.test_overlay import take, until, url
from unisono.audit.files import read
from unisono.errors import FormatError
from unisono.model.deployment import Deployment, dump_deployment, parse_deployment
from unisono.model.ids import Address
from unisono.model.mesh import CausalSpec
from unisono.model.settings import NodeSpec, Region, Security
from unisono.protocols.causal.deployed import causal_config
from unisono.protocols.causal.messages import CausalRequest
from unisono.runtime.client.causal import CausalSession
from unisono.runtime.mesh.datagrams import MeshSocket
from unisono.runtime.node.content.causal import CausalRole
from unisono.runtime.node.measuring import metrics
from unisono.runtime.node.node import Node
from unisono.runtime.tools.ports import free_ports


def mesh(*regions: str, security: Security = Security(), **how: Any) -> Deployment:
    """A broker per name: `mesh("eu", "eu", "us")`."""
    nodes = tuple(
        NodeSpec(f"{region}-{i}", region, f"127.0.0.1:{port}", roles=("causal",), observe="off")
        for i, (region, port) in enumerate(zip(regions, free_ports(len(regions)), strict=True))
    )
    return Deployment(
        1,
        f"mesh-{nodes[0].listen}",
        kind="causal",
        regions=tuple(map(Region, dict.fromkeys(regions))),
        nodes=nodes,
        causal=CausalSpec(**{"preset": "region", **how}),
        security=security,
    )


def role(node: Node) -> CausalRole:
    assert isinstance(node.overlay, CausalRole)
    return node.overlay


@asynccontextmanager
async def running(deployment: Deployment, base: Path = Path()) -> AsyncGenerator[dict[str, Node], None]:
    nodes: dict[str, Node] = {}
    try:
        for spec in deployment.nodes:
            nodes[spec.name] = Node(deployment, spec.name, base)
            await nodes[spec.name].start()
        await until(lambda: all(role(node).report()["members"] >= len(nodes) - 1 for node in nodes.values()))
        yield nodes
    finally:
        for node in nodes.values():
            await node.stop()


def test_no_effect_is_told_before_its_cause_whoever_published_it_where() -> None:
    """Every event of a client depends on all that it was told of before: another session, another broker, a topic."""

    async def run() -> None:
        deployment = mesh("eu", "us", "asia")
        async with (
            running(deployment),
            unisono.connect(url(deployment, "eu-0"), region="eu") as one,
            unisono.connect(url(deployment, "us-1"), region="us") as two,
            unisono.connect(url(deployment, "asia-2"), region="asia") as three,
            two.subscribe("questions", order="causal") as asked,
            three.subscribe("questions", "answers", order="causal") as both,
        ):
            for i in range(10):
                assert isinstance(await one.publish("questions", {"n": i}), unisono.Accepted)
                (question,) = await take(asked, 1)
                assert question.data == {"n": i}
                assert isinstance(await two.publish("answers", {"n": i}), unisono.Accepted)
            told = [(event.topic, event.data["n"]) for event in await take(both, 20)]
            places = {event: place for place, event in enumerate(told)}
            assert all(places["questions", i] < places["answers", i] for i in range(10))

    asyncio.run(run())


def test_an_event_has_a_deadline_of_its_own_or_is_refused_for_it(tmp_path: Path) -> None:
    async def run() -> None:
        deployment = mesh("eu", "eu")
        async with (
            running(deployment),
            unisono.connect(url(deployment, "eu-0"), journal=tmp_path) as session,
            session.subscribe("flights", order="causal", where="level > 1") as stream,
        ):
            assert isinstance(session, CausalSession)
            life_ms = session.mesh_config.life_us // 1000
            for deadline, words in (
                (f"{life_ms - 1}ms", "shorter than the life"),
                ("1h", "longer than"),
            ):
                refused = await session.publish("flights", {"level": 2}, deadline=deadline)
                assert isinstance(refused, unisono.Refused)
                assert words in refused.reason
            for level in (1, 2, 3):
                sent = await session.publish("flights", {"level": level}, deadline=f"{2 * life_ms}ms")
                assert isinstance(sent, unisono.Accepted)
            sender = await session.publisher("flights")
            await sender.send({"level": 4}, deadline=f"{2 * life_ms}ms")
            await sender.send({"level": 5}, deadline="1h")  # in the same turn of the loop, and not in the same frame
            await sender.drain()
            (failure,) = sender.failures
            assert "longer than" in failure.reason
            assert [event.data["level"] for event in await take(stream, 3)] == [2, 3, 4]
        records = read(next(tmp_path.glob("*.jsonl"))).records
        lives = [(r.deadline_us or 0) - (r.published_us or 0) for r in records if r.kind == "publish"]
        assert lives[-5:-1] == [2000 * life_ms] * 4

    asyncio.run(run())


def test_a_session_goes_on_at_another_broker_and_its_streams_do_not_notice() -> None:
    async def run() -> None:
        deployment = mesh("eu", "eu", "us")
        async with (
            running(deployment) as nodes,
            unisono.connect(url(deployment, "eu-0"), region="eu") as here,
            unisono.connect(url(deployment, "us-2"), region="us") as there,
            here.subscribe("news", order="causal") as heard_here,
            there.subscribe("news", order="fifo") as heard_there,
        ):
            assert isinstance(here, CausalSession)
            assert isinstance(await here.publish("news", 1), unisono.Accepted)
            await nodes["eu-0"].stop()
            await until(lambda: here.attached_to() not in (None, "eu-0"))
            assert isinstance(await here.publish("news", 2), unisono.Accepted)
            await here.move("us-2")
            assert here.attached_to() == "us-2"
            assert isinstance(await here.publish("news", 3), unisono.Accepted)
            nodes["eu-0"] = Node(deployment, "eu-0", Path())
            await nodes["eu-0"].start()
            await here.move("eu-0")
            assert isinstance(await here.publish("news", 4), unisono.Accepted)
            for stream in (heard_here, heard_there):
                assert [event.data for event in await take(stream, 4)] == [1, 2, 3, 4]
            assert here.mesh_report()["delivered"] == 4
            page = metrics(nodes["us-2"], nodes["us-2"].health())
            assert 'unisono_mesh_frames_total{fate="delivered"}' in page
            assert 'unisono_mesh_bytes_total{to="far"}' in page

    asyncio.run(run())


def test_who_looks_for_a_broker_goes_where_he_is_sent() -> None:
    async def run() -> None:
        deployment = mesh("eu", "eu", "eu", "eu")
        async with running(deployment) as nodes, unisono.connect(url(deployment, "eu-0"), region="eu") as session:
            assert isinstance(session, CausalSession)
            assert isinstance(await session.publish("news", 1), unisono.Accepted)
            for name in ("eu-1", "eu-0"):
                await nodes[name].stop()
            await until(lambda: session.attached_to() is None)
            await session.move("eu-3")
            assert session.attached_to() == "eu-3"
            assert isinstance(await session.publish("news", 2), unisono.Accepted)

    asyncio.run(run())


def test_a_stream_follows_patterns_changes_its_filter_and_leaves_topics() -> None:
    async def run() -> None:
        deployment = mesh("eu", groups=("news.>",))
        async with (
            running(deployment),
            unisono.connect(url(deployment, "eu-0")) as session,
            session.subscribe("news.*", "sport", order="causal", where="x > 1", deadline="1s") as stream,
            session.subscribe("sport", order="fifo") as other,
        ):
            for topic, x in (("news.a", 1), ("news.b", 2), ("sport", 3), ("weather", 4)):
                assert isinstance(await session.publish(topic, {"x": x}), unisono.Accepted)
            assert [(event.topic, event.data["x"]) for event in await take(stream, 2)] == [("news.b", 2), ("sport", 3)]
            await stream.update(where="x < 2")
            await stream.unsubscribe("sport")
            for x in (1, 5):
                assert isinstance(await session.publish("sport", {"x": x}), unisono.Accepted)
            assert isinstance(await session.publish("news.c", {"x": 0}), unisono.Accepted)
            assert [event.topic for event in await take(stream, 1)] == ["news.c"]
            assert [event.data["x"] for event in await take(other, 3)] == [3, 1, 5]
            assert stream.held == 0

    asyncio.run(run())


def test_brokers_multicast_to_each_other_and_lose_nothing_without() -> None:
    async def run() -> None:
        (port,) = free_ports(1)
        deployment = mesh("eu", "eu", "eu", multicast=f"239.255.42.7:{port}")
        async with (
            running(deployment) as nodes,
            unisono.connect(url(deployment, "eu-0")) as session,
            session.subscribe("news", order="fifo") as stream,
        ):
            for i in range(5):
                assert isinstance(await session.publish("news", i), unisono.Accepted)
            assert [event.data for event in await take(stream, 5)] == list(range(5))
            heard = [role(nodes[name]).report().get("multicast_heard", 0) for name in ("eu-1", "eu-2")]
            assert heard == [5, 5], "this machine does not carry multicast on loopback"

    asyncio.run(run())


def test_members_without_the_token_are_not_heard() -> None:
    async def run(monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("MESH_TOKEN", "secret")
        deployment = mesh("eu", "eu", security=Security(token_variable="MESH_TOKEN"))
        async with running(deployment) as nodes, unisono.connect(url(deployment, "eu-0"), token="secret") as session:
            async with session.subscribe("news", order="fifo") as stream:
                assert isinstance(await session.publish("news", 1), unisono.Accepted)
                assert (await take(stream, 1))[0].data == 1
            with pytest.raises(unisono.PeerError, match="token"):
                async with unisono.connect(url(deployment, "eu-0"), token="guess", timeout=1.0):
                    pass
            stranger = MeshSocket(deployment, "guess", "eu", lambda *_: None, lambda _: None, lambda _: None)
            stranger.open("127.0.0.1", 0)
            stranger.send(Address(deployment.node("eu-1").listen), CausalRequest(stranger.address, ((0, 1),)))
            await until(lambda: role(nodes["eu-1"]).report().get("refused_tag") == 1)
            stranger.close()

    with pytest.MonkeyPatch.context() as monkeypatch:
        asyncio.run(run(monkeypatch))


def test_a_subscription_that_hears_no_member_says_what_to_look_at() -> None:
    async def run() -> None:
        deployment = mesh("eu")
        deaf = structs.replace(deployment, causal=structs.replace(deployment.causal, eps_ms=40.0))
        async with running(deployment), unisono.connect(deaf, timeout=0.5) as session:
            with pytest.raises(unisono.TransportError, match="UDP"):
                async with session.subscribe("news", order="causal"):
                    pass

    asyncio.run(run())


@pytest.mark.parametrize(
    ("wish", "words"),
    [
        ({"order": "total"}, 'kind = "sequencer"'),
        ({"order": "causal", "reliability": "reliable"}, "archive"),
        ({"order": "causal", "start": "earliest"}, "archive"),
        ({"order": "fifo", "group": "g"}, "archive"),
    ],
)
def test_what_a_mesh_cannot_promise_is_refused_with_the_kind_that_can(wish: dict[str, str], words: str) -> None:
    async def run() -> None:
        deployment = mesh("eu")
        async with running(deployment), unisono.connect(url(deployment, "eu-0")) as session:
            with pytest.raises(unisono.PlanError, match=words):
                async with session.subscribe("trades", **wish):  # type: ignore[arg-type]
                    pass

    asyncio.run(run())


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ('[causal]\nmulticast = "10.0.0.1:1"', "causal.multicast"),
        ("[causal]\nlife_ms = 5000.0", "causal.deadline_ms_max: 2s is less than the life of events, 5s"),
        ("[causal]\neps_ms = 5000.0", "take longer ticks .causal.tick_ms"),
        ("[causal]\neps_ms = -1.0", "causal.eps_ms"),
        ("[causal]\ntick_ms = 0.0", "causal.tick_ms"),
        ("[causal]\nlife_ms = nan", "causal.life_ms: nan is no number"),
        ("[causal]\nview = 0", "causal.view: 0 is too few"),
        ("[causal]\nfanout = -3", "causal.fanout"),
        (f"[causal]\ngroups = {[f'g{i}.>' for i in range(600)]}", "causal.groups"),
        ('[security]\ncertificate = "a.pem"', "security.certificate"),
        ('[[rights]]\nname = "r"\ntoken_variable = "T"', "rights"),
    ],
)
def test_a_deployment_of_a_mesh_says_what_is_wrong(wrong: str, words: str) -> None:
    text = 'version = 1\nkind = "causal"\nnodes = [{ name = "b", listen = "127.0.0.1:7474" }]\n'
    assert parse_deployment(text).nodes[0].roles == ("causal",)
    deployment = mesh("eu", "us", late="deliver", groups=("a.>",))
    assert parse_deployment(dump_deployment(deployment)) == deployment
    with pytest.raises((FormatError, unisono.MisuseError), match=words):
        causal_config(parse_deployment(text + wrong))
