"""Rules of consumer groups, one by one: a coordinator, and members that talk to it at moments of the test's choice."""

from typing import Any

import pytest

from unisono.machine import Deliver, Fired, Persist, Restarted, Send, SetTimer, Subscribe
from unisono.model.ids import Address
from unisono.model.time import SECOND, Micros
from unisono.protocols.groups.coordinator import GroupCoordinator, GroupsConfig
from unisono.protocols.groups.member import (
    BeginsAfter,
    Committed,
    GivenUp,
    Hear,
    Processed,
    Quit,
    ShareHolder,
    share_of,
)
from unisono.protocols.groups.messages import SHARES, Commit, Enlist, Enlisted, Portion, Release

LEASE = GroupsConfig().lease_us
ARCHIVE = Address("archive")


class Talk:
    """Members of one group and their coordinator; letters arrive at once, or are lost."""

    def __init__(self, shares: int = SHARES) -> None:
        self.coordinator, self.shares = GroupCoordinator(), shares
        self.now = Micros(0)
        self.members: dict[str, ShareHolder] = {}
        self.told: dict[str, list[Any]] = {}
        self.deaf: set[str] = set()

    def enter(self, name: str) -> ShareHolder:
        self.members[name] = ShareHolder(Address(name), name, ARCHIVE, "billing", self.shares)
        self.told[name] = []
        self.give(name, Subscribe(()))
        return self.members[name]

    def give(self, name: str, message: Any) -> None:
        for effect in self.members[name].handle(message, self.now):
            if isinstance(effect, Deliver):
                self.told[name].append(effect.item)
                if isinstance(effect.item, Hear) and effect.item.after is None:
                    self.give(name, BeginsAfter({"t": 0}))
            elif isinstance(effect, Send) and name not in self.deaf:
                for answer in self.coordinator.handle(effect.message, self.now):
                    if isinstance(answer, Send):
                        self.give(name, answer.message)

    def beat(self, *names: str) -> None:
        """Time for the next beat, of these; leases of the others run."""
        self.now = Micros(self.now + SECOND // 2)
        for name in names or tuple(self.members):
            self.give(name, Fired("beat"))

    def commit(self, name: str, number: int) -> None:
        self.give(name, Processed({"t": number}, 1))

    def held(self) -> dict[str, int]:
        return {name: len(member.held) for name, member in self.members.items()}

    def expire(self, name: str) -> None:
        """The lease of a member that was silent ends at the coordinator."""
        self.coordinator.handle(Fired(f"billing/{name}"), self.now)


def key_of(share: int) -> str:
    """A key that belongs there."""
    return next(str(key) for key in range(100_000) if share_of(key, SHARES) == share)


def test_members_share_evenly_and_each_share_has_one_holder() -> None:
    talk = Talk()
    for name in "abc":
        talk.enter(name)
    for _ in range(4):
        talk.beat()
    assert sorted(talk.held().values()) == [21, 21, 22]
    assert sorted(share for member in talk.members.values() for share in member.held) == list(range(SHARES))


def test_of_those_who_take_turns_the_one_that_has_waited_longest_follows() -> None:
    talk = Talk(shares=1)
    for name in "abc":
        talk.enter(name)
    talk.beat()
    assert talk.held() == {"a": 1, "b": 0, "c": 0}
    talk.give("a", Quit())
    talk.beat("b", "c")
    assert talk.held() == {"a": 0, "b": 1, "c": 0}


def test_what_is_shown_and_not_committed_is_not_handed_over() -> None:
    talk = Talk()
    one = talk.enter("a")
    assert one.shows("t", 1, 5)
    talk.enter("b")
    talk.beat()
    talk.beat()
    assert talk.held() == {"a": SHARES, "b": 0}
    talk.commit("a", 1)
    talk.beat()
    assert talk.held() == {"a": SHARES // 2, "b": SHARES // 2}


def test_who_takes_over_goes_on_where_the_other_was_and_is_not_shown_its_own_again() -> None:
    talk = Talk()
    one = talk.enter("a")
    two = talk.enter("b")
    talk.beat()
    talk.beat()
    mine, theirs = next(iter(one.held)), next(iter(two.held))
    assert [one.shows("t", number, mine) for number in (1, 2)] == [True, True]
    assert [two.shows("t", number, theirs) for number in (1, 2, 3, 4)] == [True] * 4
    talk.commit("a", 1)
    talk.commit("b", 4)
    talk.now = Micros(talk.now + LEASE)
    talk.expire("a")
    talk.beat("b")
    assert talk.told["b"][-1] == Hear({"t": 1})
    assert [two.shows("t", number, mine) for number in (1, 2)] == [False, True]
    assert not two.shows("t", 3, theirs)
    assert two.shows("t", 5, theirs)


def test_a_commit_says_nothing_of_what_was_not_looked_at() -> None:
    talk = Talk()
    one = talk.enter("a")
    assert one.shows("t", 3, 1)
    talk.commit("a", 1_000)
    view = talk.coordinator.view("billing")
    assert view is not None
    assert view.shares[1].done == {"t": 3}


def test_what_is_for_others_leaves_no_lag_and_what_is_shown_is_not_committed_by_itself() -> None:
    talk = Talk()
    one = talk.enter("a")
    talk.enter("b")
    talk.beat()
    talk.beat()
    theirs = next(share for share in range(SHARES) if share not in one.held)
    mine = next(iter(one.held))
    assert [one.shows("t", number, theirs) for number in (1, 2)] == [False, False]
    talk.beat("a")
    view = talk.coordinator.view("billing")
    assert view is not None
    assert view.shares[mine].done == {"t": 2}
    assert one.shows("t", 3, mine)
    talk.beat("a")
    assert view.shares[mine].done == {"t": 2}


def test_a_member_that_is_not_answered_for_the_lease_shows_nothing() -> None:
    talk = Talk()
    one = talk.enter("a")
    talk.deaf = {"a"}
    asked_at = talk.now
    talk.beat()
    talk.now = Micros(asked_at + LEASE - 1)
    assert one.is_fresh(talk.now)
    talk.now = Micros(asked_at + LEASE)
    assert not one.is_fresh(talk.now)


def test_a_member_that_was_given_up_hears_of_it_and_its_commit_is_refused() -> None:
    talk = Talk()
    one = talk.enter("a")
    assert one.shows("t", 1, 1)
    talk.expire("a")
    talk.commit("a", 1)
    refused, lost = talk.told["a"][-2:]
    assert isinstance(refused, Committed)
    assert "passed on" in refused.refused
    assert isinstance(lost, GivenUp)
    assert one.held == {}


def test_a_member_that_was_silent_for_too_long_hears_of_it_by_its_next_beat() -> None:
    talk = Talk()
    one = talk.enter("a")
    talk.expire("a")
    talk.beat("a")
    assert isinstance(talk.told["a"][-1], GivenUp)
    assert one.held == {}


def test_a_share_given_back_and_taken_again_is_not_given_back_by_an_old_letter() -> None:
    coordinator = GroupCoordinator()
    asked = Enlist(ARCHIVE, 1, "billing", "a", SHARES)
    (answer,) = [effect.message for effect in coordinator.handle(asked, Micros(0)) if isinstance(effect, Send)]
    assert isinstance(answer, Enlisted)
    assert answer.portions is not None
    since = answer.portions[0].since
    old = Release(ARCHIVE, 2, "billing", "a", (Portion({0: since[0]}, {"t": 1}),))
    coordinator.handle(old, Micros(1))  # a is alone: it gets the share again
    coordinator.handle(Enlist(ARCHIVE, 1, "billing", "b", SHARES), Micros(2))
    before = coordinator.view("billing")
    assert before is not None
    holder = before.shares[0].holder, before.shares[0].since
    coordinator.handle(old, Micros(3))
    assert (before.shares[0].holder, before.shares[0].since) == holder


def test_a_release_that_got_lost_is_said_again() -> None:
    talk = Talk()
    talk.enter("a")
    talk.beat()
    talk.enter("b")
    original, lost = talk.coordinator.handle, []

    def lossy(message: Any, now: Micros) -> Any:
        if isinstance(message, Release) and not lost:
            lost.append(message)
            return []
        return original(message, now)

    talk.coordinator.handle = lossy  # type: ignore[method-assign]
    for _ in range(6):
        talk.beat()
    assert lost
    assert talk.held() == {"a": SHARES // 2, "b": SHARES // 2}


def test_a_group_is_of_one_kind() -> None:
    coordinator = GroupCoordinator()
    coordinator.handle(Enlist(ARCHIVE, 1, "billing", "a", SHARES), Micros(0))
    (answer,) = coordinator.handle(Enlist(ARCHIVE, 1, "billing", "b", 1), Micros(0))
    assert isinstance(answer, Send)
    assert "share keys" in answer.message.refused or "take turns" in answer.message.refused


def test_a_group_cannot_be_made_larger_than_all_topics_that_a_share_may_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unisono.protocols.groups.coordinator.DONE_MAX", 10)
    one = GroupCoordinator(GroupsConfig())

    def said(message: Any) -> Enlisted:
        (answer,) = [each.message for each in one.handle(message, Micros(0)) if isinstance(each, Send)]
        assert isinstance(answer, Enlisted)
        return answer

    def commit(request: int, *topics: int) -> str:
        done = {f"t{topic}": 1 for topic in topics}
        return said(Commit(Address("c"), request, "g", "m", (Portion({0: epoch}, done),))).refused

    epoch = said(Enlist(Address("c"), 1, "g", "m")).epoch
    assert commit(2, *range(8)) == ""
    assert commit(3, 7, 8, 9) == "", "known topics are not counted twice"
    assert "at most 10 topics" in commit(4, 10)
    view = one.view("g")
    assert view is not None
    assert view.shares[0].done == {f"t{topic}": 1 for topic in range(10)}
    assert "characters" in said(Enlist(Address("c"), 5, "g", "m" * 300)).refused


def test_a_coordinator_that_comes_back_knows_who_holds_what_and_gives_them_time() -> None:
    talk = Talk()
    talk.enter("a")
    talk.enter("b")
    talk.beat()
    again = GroupCoordinator()
    again.restore(talk.coordinator.snapshot())
    assert again.snapshot() == talk.coordinator.snapshot()
    timers = again.handle(Restarted(), Micros(10))
    assert timers == [SetTimer(f"billing/{name}", Micros(10 + LEASE)) for name in "ab"]


def test_what_changes_who_holds_what_is_durable_before_anybody_is_told() -> None:
    coordinator = GroupCoordinator()
    effects = coordinator.handle(Enlist(ARCHIVE, 1, "billing", "a", SHARES), Micros(0))
    assert isinstance(effects[0], Persist)
    assert isinstance(effects[-1], Send)
    commit = Commit(ARCHIVE, 2, "billing", "a", (Portion({0: 1}, {"t": 4}),))
    assert isinstance(coordinator.handle(commit, Micros(1))[0], Persist)


def test_a_key_belongs_to_the_same_share_everywhere() -> None:
    assert [share_of(key, SHARES) for key in ("IBM", "", 7, "7", True)] == [55, 0, 2, 2, 51]
