"""What clients may ask an archive for: it answers or refuses, and goes on hearing and keeping."""

import asyncio
from pathlib import Path

from msgspec import structs

import unisono
from tests.runtime.hostile.world import HUB, ME, SMALL, Attacker, Target, attacker, target
from tests.runtime.test_cluster import FAST
from unisono.model.deployment import Deployment
from unisono.model.settings import BrokerSpec, NodeSpec, Role
from unisono.protocols.groups.messages import SHARES, Commit, Enlist, Enlisted, Portion
from unisono.runtime.archiving.archivist import Archivist
from unisono.runtime.links import control
from unisono.runtime.links.archive_messages import Fetch, Follow, Locate
from unisono.runtime.links.frames import Codec
from unisono.runtime.node.node import Node
from unisono.runtime.tools.nats_server import NatsServer, NatsServerConfig
from unisono.runtime.tools.ports import free_ports

LONG = "x" * 300
_codec = Codec(control.Letters)


def archivist(at: Target) -> Archivist:
    assert at.node.archivist is not None
    return at.node.archivist


async def answers(one: Attacker, kind: type) -> list[object]:
    """What it is told next that is of this kind."""
    while True:
        body = await one.body()
        assert body is not None
        letters = _codec.decode(body)
        assert isinstance(letters, list), letters
        found = [letter.message for letter in letters if isinstance(letter.message, kind)]
        if found:
            return found


def test_names_that_are_none_do_not_make_an_archive_begin_again(tmp_path: Path) -> None:
    async def run() -> None:
        async with asyncio.timeout(60), target(tmp_path) as node:
            await node.serves()
            for name in ("", LONG, "../x", "a b", "trades.*"):
                before = await node.refused("protocol")
                async with attacker(node.place) as one:
                    await one.enter()
                    await one.say(Follow(ME, 1, ("trades", name)))
                    assert await one.is_told("protocol")
                assert await node.refused("protocol") == before + 1
            async with attacker(node.place) as one:
                await one.enter()
                await one.say(Follow(ME, 1, tuple(f"t{n}" for n in range(SMALL.topics_max + 1))))
                assert await one.is_told("topics")
            await node.serves()
            assert archivist(node).counters.failures == 0

    asyncio.run(run())


def test_nobody_bears_topics_in_the_name_of_an_archive(tmp_path: Path) -> None:
    async def run() -> None:
        async with asyncio.timeout(60), target(tmp_path) as node:
            await node.serves()
            async with attacker(node.place) as one:
                await one.enter()
                for number in range(5):
                    await one.say(Follow(ME, number, tuple(f"t{number}_{n}" for n in range(SMALL.client_topics_max))))
                await one.say(control.AskReport(ME))
                (report,) = await answers(one, control.NodeReport)
            await node.serves()
            assert isinstance(report, control.NodeReport)
            assert report.topics == ("trades",)
            assert archivist(node).counters.failures == 0

    asyncio.run(run())


def test_groups_and_members_whose_names_no_file_could_have_are_refused(tmp_path: Path) -> None:
    async def run() -> None:
        async with asyncio.timeout(60), target(tmp_path) as node, attacker(node.place) as one:
            await one.enter()
            await one.say(Enlist(ME, 0, "good", "m"))
            (good,) = await answers(one, Enlisted)
            await one.say(Enlist(ME, 1, LONG, "m"), Enlist(ME, 2, "../../x", "m"), Enlist(ME, 3, "group", LONG))
            told: list[object] = []
            while len(told) < 3:
                told += await answers(one, Enlisted)
            assert isinstance(good, Enlisted)
            assert not good.refused
            assert all(isinstance(each, Enlisted) and each.refused for each in told)
            assert archivist(node).counters.failures == 0
            assert [path.name for path in tmp_path.rglob("groups/*")] == ["good.json"]

    asyncio.run(run())


def test_whoever_asks_for_what_there_is_not_costs_an_archive_nothing(tmp_path: Path) -> None:
    async def run() -> None:
        async with asyncio.timeout(60), target(tmp_path) as node, attacker(node.place) as one:
            await one.enter()
            await one.say(Fetch(ME, 1, 0, (LONG, "../x")), Locate(ME, 2, LONG, 2**62), Fetch(ME, 3, 2**62, ("trades",)))
            await one.say(Commit(ME, 4, "nobody", "m", (Portion({SHARES - 1: 2**62}, {LONG: 1}),)))
            (told,) = await answers(one, Enlisted)
            assert isinstance(told, Enlisted)
            assert "nobody is in group" in told.refused
            await node.serves()
            assert archivist(node).counters.failures == 0

    asyncio.run(run())


def test_an_archive_keeps_more_topics_than_one_client_may_have_born(tmp_path: Path) -> None:
    async def run() -> None:
        server, most = NatsServer(tmp_path / "nats", NatsServerConfig()), 10
        await server.start()
        roles: tuple[Role, ...] = ("sequencer", "archive")
        spec = NodeSpec(HUB, listen=f"127.0.0.1:{free_ports(1)[0]}", roles=roles, data="data")
        limits = structs.replace(SMALL, client_topics_max=most)
        deployment = Deployment(1, "many", nodes=(spec,), broker=BrokerSpec("nats", (server.url,)), limits=limits)
        async with asyncio.timeout(100), Node(deployment, HUB, tmp_path, FAST) as node:
            at = Target(deployment, node)
            names = [f"t.w{who}n{number}" for who in range(3) for number in range(most)]
            for who in range(3):
                async with unisono.connect(at.url) as session:
                    for name in names[who * most : (who + 1) * most]:
                        assert isinstance(await session.publish(name, 1), unisono.Accepted)
            async with unisono.connect(at.url) as session, session.subscribe("t.*", start="earliest") as stream:
                heard: dict[str, None] = {}
                async for event in stream:
                    heard[event.topic] = None
                    if len(heard) == len(names):
                        break
            assert archivist(at).counters.failures == 0
            assert not node.refusals.counts["topics"]
        server.kill()

    asyncio.run(run())
