"""Consumer groups: one active member; who takes over goes on behind the last commit; who was replaced is fenced."""

import asyncio
from pathlib import Path

import pytest

import unisono
from tests.runtime.archive.test_replay import play, publish
from tests.runtime.test_session import take
from unisono.errors import FormatError, PlanError, TransportError
from unisono.model.deployment import Deployment
from unisono.model.ids import Address
from unisono.runtime import groups
from unisono.runtime.groups import LEASE_S, Commit, Enlist, Enlisted, Groups, Resign, ToGroups
from unisono.runtime.node import Node
from unisono.runtime.session import Session


class Talk:
    """Members talking to the groups of a directory, at moments of the test's choice."""

    def __init__(self, directory: Path) -> None:
        self.groups = Groups(directory)
        self.now_s = 100.0

    def say(self, message: ToGroups) -> Enlisted:
        return self.groups.handle(message, self.now_s)

    def enlist(self, member: str) -> Enlisted:
        return self.say(Enlist(Address("c"), 1, "g", member))

    def commit(self, member: str, epoch: int, position: str) -> Enlisted:
        return self.say(Commit(Address("c"), 1, "g", member, epoch, position))


def test_the_first_is_active_and_the_one_that_waited_longest_follows(tmp_path: Path) -> None:
    talk = Talk(tmp_path)
    assert (talk.enlist("a").active, talk.enlist("b").active, talk.enlist("c").active) == ("a", "a", "a")
    assert talk.commit("a", 1, "p1").refused == ""
    left = talk.say(Resign(Address("c"), 1, "g", "a"))
    assert (left.active, left.epoch, left.position) == ("b", 2, "p1")


def test_a_silent_member_is_replaced_and_its_commit_refused(tmp_path: Path) -> None:
    talk = Talk(tmp_path)
    talk.enlist("a")
    talk.commit("a", 1, "p1")
    talk.now_s += LEASE_S + 0.1
    assert (talk.enlist("b").active, talk.enlist("b").epoch) == ("b", 2)
    late = talk.commit("a", 1, "p2")
    assert "passed on" in late.refused
    assert late.position == "p1"


def test_a_restarted_archive_knows_the_group(tmp_path: Path) -> None:
    talk = Talk(tmp_path)
    talk.enlist("a")
    talk.commit("a", 1, "p1")
    again = Talk(tmp_path)
    found = again.enlist("b")
    assert (found.active, found.epoch, found.position) == ("a", 1, "p1")
    assert again.commit("a", 1, "p2").refused == ""
    again.now_s += LEASE_S + 0.1
    assert again.enlist("b").active == "b"


def test_a_view_of_another_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / "g.json").write_text('{"version": 2, "epoch": 1, "active": "a", "position": null}')
    with pytest.raises(FormatError, match="group version 2 is unknown"):
        Talk(tmp_path).enlist("a")


@pytest.fixture
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is taken for silent because the machine is busy."""
    monkeypatch.setattr(groups, "LEASE_S", 300.0)


@pytest.mark.usefixtures("_patient")
def test_who_takes_over_goes_on_behind_the_last_commit(tmp_path: Path) -> None:
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


@pytest.mark.usefixtures("_patient")
def test_a_member_that_was_replaced_hears_of_it(tmp_path: Path) -> None:
    async def story(deployment: Deployment, nodes: list[Node], session: Session) -> None:
        async with session.subscribe("a", "b", group="workers") as one:
            archivist = nodes[1]._archivist
            assert archivist is not None
            # Somebody else has become active while we were away: as if our lease had run out.
            archivist._groups.handle(Resign(Address("c"), 1, "workers", one.sid), 0.0)
            with pytest.raises(TransportError, match="passed on"):
                await one.commit(one.position())

    play(tmp_path, story)


def test_a_parallel_group_over_an_ordered_set_is_refused_with_the_reason(tmp_path: Path) -> None:
    async def story(deployment: Deployment, nodes: list[Node], session: Session) -> None:
        with pytest.raises(PlanError, match="two members process two events at once"):
            session.subscribe("a", "b", group="workers", parallel=True)

    play(tmp_path, story)
