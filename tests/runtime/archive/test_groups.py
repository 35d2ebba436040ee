"""Consumer groups: members take turns, or share keys; who takes over goes on after what was committed; who was replaced
is fenced; what is durable is a file."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

import unisono
from tests.runtime.archive.test_replay import play, publish
from tests.runtime.test_session import take
from unisono.errors import FormatError, MisuseError, PlanError, TransportError
from unisono.model.deployment import Deployment
from unisono.model.ids import Address
from unisono.protocols.groups.coordinator import GroupsConfig
from unisono.protocols.groups.messages import Commit, Enlist, Enlisted, Portion, Resign, ToGroups
from unisono.runtime.archiving import groups
from unisono.runtime.archiving.groups import Groups
from unisono.runtime.client.session import Session
from unisono.runtime.node.node import Node

LEASE_S = GroupsConfig().lease_us / 1e6


class Talk:
    """Members talking to the groups of a directory, at moments of the test's choice."""

    def __init__(self, directory: Path) -> None:
        self.groups = Groups(directory)
        self.now_s = 100.0

    def say(self, message: ToGroups) -> Enlisted:
        return self.groups.handle(message, self.now_s)

    def enlist(self, member: str) -> Enlisted:
        return self.say(Enlist(Address("c"), 1, "g", member))

    def commit(self, member: str, epoch: int, number: int) -> Enlisted:
        return self.say(Commit(Address("c"), 1, "g", member, (Portion({0: epoch}, {"a": number}),)))

    def wait(self, seconds: float) -> None:
        self.now_s += seconds
        self.groups.tick(self.now_s)


def held(answer: Enlisted) -> tuple[Portion, ...]:
    assert answer.portions is not None
    return answer.portions


def test_a_restarted_archive_knows_the_group(tmp_path: Path) -> None:
    talk = Talk(tmp_path)
    assert held(talk.enlist("a")) == (Portion({0: 1}, None),)
    talk.commit("a", 1, 7)
    again = Talk(tmp_path)
    assert held(again.enlist("b")) == ()
    assert held(again.enlist("a")) == (Portion({0: 1}, {"a": 7}),)
    assert again.commit("a", 1, 8).refused == ""
    again.wait(LEASE_S / 2)
    again.enlist("b")
    again.wait(LEASE_S / 2 + 0.1)
    assert held(again.enlist("b")) == (Portion({0: 2}, {"a": 8}),)
    assert "passed on" in again.commit("a", 1, 9).refused
    assert held(again.enlist("b"))[0].done == {"a": 8}


def test_a_disk_that_refuses_leaves_everything_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    talk = Talk(tmp_path)
    talk.enlist("a")
    talk.commit("a", 1, 7)
    with monkeypatch.context() as patch:

        def refuse(handle: int) -> None:
            raise OSError("no space left on device")

        patch.setattr(groups.os, "fsync", refuse)
        with pytest.raises(OSError, match="no space"):
            talk.commit("a", 1, 8)
    assert held(talk.enlist("a")) == (Portion({0: 1}, {"a": 7}),)


def test_a_view_of_another_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / "g.json").write_text('{"version": 3, "epoch": 1}')
    with pytest.raises(FormatError, match="group version 3 is unknown"):
        Talk(tmp_path).enlist("a")


def test_who_takes_over_goes_on_after_the_last_commit(tmp_path: Path) -> None:
    async def story(deployment: Deployment, nodes: list[Node], session: Session) -> None:
        async with unisono.connect(deployment) as other:
            async with session.subscribe("a", "b", group="workers") as one:
                entering = asyncio.ensure_future(other.subscribe("a", "b", group="workers").__aenter__())
                await publish(session, 0, 20)
                found = await take(one, 12)
                await one.commit(found[7].position)
                assert not entering.done()
            async with asyncio.timeout(60):
                two = await entering
            await publish(session, 20, 5)
            assert [event.data for event in await take(two, 17)] == list(range(8, 25))
            await two.close()

    play(tmp_path, story)


def test_a_handler_that_waits_for_its_turn_keeps_no_other_waiting_and_can_be_stopped(tmp_path: Path) -> None:
    async def story(deployment: Deployment, nodes: list[Node], session: Session) -> None:
        app, stop, heard = unisono.App(deployment), asyncio.Event(), []

        @app.on("a", group="workers")
        async def wait(event: unisono.Notification) -> None:
            heard.append(event.topic)

        @app.on("b")
        async def hear(event: unisono.Notification) -> None:
            heard.append(event.topic)

        async with session.subscribe("a", group="workers"):
            serving = asyncio.ensure_future(app.serve(stop))
            while not heard and not serving.done():  # until the subscription is in force
                await session.publish("b", 1)
            stop.set()
            async with asyncio.timeout(60):
                await serving
        assert set(heard) == {"b"}

    play(tmp_path, story)


def test_a_member_that_was_replaced_hears_of_it(tmp_path: Path) -> None:
    async def story(deployment: Deployment, nodes: list[Node], session: Session) -> None:
        async with session.subscribe("a", "b", group="workers") as one:
            archivist = nodes[1].archivist
            assert archivist is not None
            # Somebody else has become active while we were away: as if our lease had run out.
            archivist._groups.handle(Resign(Address("c"), 1, "workers", one.sid), 0.0)
            with pytest.raises(TransportError, match="passed on"):
                await one.commit(one.position())
            with pytest.raises(TransportError, match="passed on"):
                await anext(one)

    play(tmp_path, story)


def test_members_share_keys_and_each_key_is_heard_once_and_in_order(tmp_path: Path) -> None:
    keys = [f"k{i}" for i in range(12)]

    async def work(stream: Any, into: dict[str, list[int]], total: list[int]) -> None:
        async for event in stream:
            into.setdefault(str(event.attributes["key"]), []).append(event.data)
            await stream.commit(event.position)
            total.append(event.data)

    async def story(deployment: Deployment, nodes: list[Node], session: Session) -> None:
        heard: list[dict[str, list[int]]] = [{}, {}]
        total: list[int] = []

        async def say(first: int, count: int) -> None:
            for number in range(first, first + count):
                attributes: dict[str, Any] = {"key": keys[number % len(keys)]}
                await session.publish("ab"[number % 2], number, attributes)

        async def reached(count: int) -> None:
            async with asyncio.timeout(60):
                while len(total) < count:
                    await asyncio.sleep(0.01)

        async with unisono.connect(deployment) as other:
            async with session.subscribe("a", "b", group="billing", share="key") as one:
                first = asyncio.ensure_future(work(one, heard[0], total))
                await say(0, 24)
                await reached(24)
                assert set(heard[0]) == set(keys)
                async with other.subscribe("a", "b", group="billing", share="key") as two:
                    second = asyncio.ensure_future(work(two, heard[1], total))
                    await say(24, 48)
                    await reached(72)
                    assert heard[1], "the second has keys of its own"
                    first.cancel()
                    second.cancel()
                    await asyncio.wait([first, second])
            again = other.subscribe("a", "b", group="billing", share="key")
            async with again:
                await say(72, 12)
                assert [event.data for event in await take(again, 12)] == list(range(72, 84))
        assert sorted(total) == list(range(72))
        for key in keys:
            together = [number for each in heard for number in each.get(key, [])]
            assert together == sorted(together)

    play(tmp_path, story)


def test_what_a_group_cannot_be_is_said_at_once(tmp_path: Path) -> None:
    async def story(deployment: Deployment, nodes: list[Node], session: Session) -> None:
        with pytest.raises(MisuseError, match="group="):
            session.subscribe("a", share="key")
        with pytest.raises(MisuseError, match="keeps its own commits"):
            session.subscribe("a", group="g", name="n")
        with pytest.raises(PlanError, match="'total' or 'causal'"):
            session.subscribe("a", group="g", order="fifo")
        async with session.subscribe("a", group="g"):
            with pytest.raises(MisuseError, match="take turns"):
                await session.subscribe("a", group="g", share="key").__aenter__()

    play(tmp_path, story)
