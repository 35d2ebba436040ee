"""A member of a consumer group, as a machine: which events it may show, when it takes shares over and gives them back.

Every member hears all of the group's topics in the agreed order, and shows only events of shares that it holds. A share
that it takes over is shown from where it was done, so what the member hears is wound back to there; what it has shown
itself meanwhile is not shown again. It takes over and gives back only when all that it has shown is committed: then
nobody works on an event of a share that changes hands. A member that has not been answered for the lease shows nothing,
since somebody else may hold its shares.
"""

from typing import Any
from zlib import crc32

from msgspec import Struct

from unisono.machine import CancelTimer, Deliver, Effect, Fired, Refuse, Send, SetTimer, Subscribe
from unisono.model.ids import Address
from unisono.model.time import SECOND, Micros
from unisono.protocols.groups.coordinator import GroupsConfig
from unisono.protocols.groups.messages import Commit, Enlist, Enlisted, Portion, Release, Resign

AGAIN_US = Micros(SECOND)
"""A question that is not answered is asked again after this."""
PATIENCE_US = Micros(15 * SECOND)
"""How long a commit may take."""


class Hear(Struct, frozen=True, tag="Hear"):
    """Told above: hear the group's topics after these numbers; None: from now on, and say where with `BeginsAfter`."""

    after: dict[str, int] | None


class BeginsAfter(Struct, frozen=True, tag="BeginsAfter"):
    """From above: what was to be heard from now on begins after these numbers; nothing is shown before that is
    durable."""

    after: dict[str, int]


class Processed(Struct, frozen=True, tag="Processed"):
    """From above: everything shown up to these numbers is processed; `outcome` names this in `Committed`."""

    upto: dict[str, int]
    outcome: int


BEGUN = 0
"""The outcome that follows `BeginsAfter`: from now on nothing is lost with this member."""


class Committed(Struct, frozen=True, tag="Committed"):
    """Told above: what a `Processed` said is durable, or why it is not."""

    outcome: int
    refused: str = ""


class GivenUp(Struct, frozen=True, tag="GivenUp"):
    """Told above: this member is none any more, and the program must not go on."""

    reason: str


class Quit(Struct, frozen=True, tag="Quit"):
    """From above: the member leaves."""


class _Commit(Struct, frozen=True):
    outcome: int
    portions: tuple[Portion, ...]
    begun_at: Micros


Inputs = Subscribe | Fired | Enlisted | BeginsAfter | Processed | Quit


def share_of(key: object, shares: int) -> int:
    """Where a key belongs. Whoever asks, in whatever process and release: the same."""
    return crc32(str(key).encode()) % shares


class ShareHolder:
    """One member."""

    def __init__(
        self,
        address: Address,
        member: str,
        coordinator: Address,
        group: str,
        shares: int,
        config: GroupsConfig = GroupsConfig(),
    ) -> None:
        """`member` names it in its group, and nobody else ever; answers come to `address`. `Subscribe` begins."""
        self.held: dict[int, int] = {}
        """Shares that are shown, and since which epoch they are ours."""
        self.shares = shares
        self._address, self._member, self._coordinator = address, member, coordinator
        self._group, self._config = group, config
        self._epoch = 0
        self._wanted: tuple[int, ...] = ()
        self._coming: tuple[Portion, ...] = ()
        self._given: dict[int, int] = {}
        self._owed: tuple[Portion, ...] = ()
        """Given back, and not known to have come back."""
        self._floors: dict[int, dict[str, int]] = {}
        """Of shares that are further than what is heard: what is not shown again."""
        self._read: dict[str, int] | None = None
        """How far what is heard was looked at; None until it begins."""
        self._shown: tuple[str, int] | None = None
        """The last event shown, until it is committed."""
        self._noted: dict[str, int] | None = None
        """How far it had looked when the coordinator was told so last, with nothing left to commit."""
        self._noting: tuple[int, dict[str, int]] | None = None
        self._requests = 0
        self._asked: dict[int, Micros] = {}
        self._committing: dict[int, _Commit] = {}
        """By question."""
        self._fresh_until: Micros | None = None
        self._is_over = False

    def handle(self, message: Any, now: Micros) -> list[Effect]:
        if self._is_over and isinstance(message, Inputs) and getattr(message, "key", "beat") == "beat":
            return []
        match message:
            case Subscribe() | Fired(key="beat"):
                return self._beat(now)
            case Enlisted():
                return self._answered(message, now)
            case BeginsAfter(after=after) if self._read is None:
                self._read = dict(after)
                return self._done(after, BEGUN, now)
            case Processed(upto=upto, outcome=outcome):
                return self._done(upto, outcome, now)
            case Quit():
                self._is_over, self.held = True, {}
                return [CancelTimer("beat"), self._ask(Resign, now)]
            case _:
                return [Refuse(f"{type(message).__name__} is nothing a member of a group understands")]

    # what is shown

    def is_fresh(self, now: Micros) -> bool:
        """Nobody else can hold what we hold."""
        return self._fresh_until is not None and now < self._fresh_until

    def shows(self, topic: str, number: int, share: int) -> bool:
        """Whether this, the next that is heard, is to be shown; asked once for each."""
        assert self._read is not None
        self._read[topic] = max(number, self._read.get(topic, 0))
        if share not in self.held or number <= self._floors.get(share, {}).get(topic, 0):
            return False
        self._shown = (topic, number)
        return True

    def tells(self, topic: str, last: int) -> bool:
        """The same of a notice that nothing up to this number will come, which concerns all shares."""
        assert self._read is not None
        self._read[topic] = max(last, self._read.get(topic, 0))
        return any(last > self._floors.get(share, {}).get(topic, 0) for share in self.held)

    # the coordinator

    def _beat(self, now: Micros) -> list[Effect]:
        out: list[Effect] = [SetTimer("beat", Micros(now + self._config.beat_us))]
        for request in [request for request, at in self._asked.items() if now - at >= AGAIN_US]:
            del self._asked[request]
            commit = self._committing.pop(request, None)
            if commit is not None and now - commit.begun_at < PATIENCE_US:
                out.append(self._ask(Commit, now, commit.portions))
                self._committing[self._requests] = commit
            elif commit is not None:
                out.append(Deliver(Committed(commit.outcome, f"archive {self._coordinator} does not answer")))
        if not self._asked:
            if self._owed:
                out.append(self._ask(Release, now, self._owed))
            elif self.held and self._read is not None and self._shown is None and self._read != self._noted:
                # What came since the last commit was for others: the group is as far as we have looked.
                out.append(self._ask(Commit, now, self._portions(self._read)))
                self._noting = self._requests, dict(self._read)
            else:
                out.append(self._ask(Enlist, now, self.shares, self._epoch))
        return out

    def _ask(self, kind: Any, now: Micros, *rest: Any) -> Effect:
        self._requests += 1
        self._asked[self._requests] = now
        return Send(self._coordinator, kind(self._address, self._requests, self._group, self._member, *rest))

    def _answered(self, answer: Enlisted, now: Micros) -> list[Effect]:
        if answer.member != self._member:
            return []  # for an earlier life
        asked_at = self._asked.pop(answer.request, None)
        commit = self._committing.pop(answer.request, None)
        if asked_at is None:
            return []
        out: list[Effect] = [Deliver(Committed(commit.outcome, answer.refused))] if commit is not None else []
        if answer.refused:
            return [*out, *self._lose(answer.refused)]
        if self._noting is not None and self._noting[0] == answer.request:
            self._noted, self._noting = self._noting[1], None
        until = Micros(asked_at + self._config.lease_us)
        self._fresh_until = until if self._fresh_until is None else max(until, self._fresh_until)
        if answer.epoch < self._epoch:
            return out  # overtaken by a later one
        self._wanted = answer.wanted
        if answer.portions is not None:
            self._epoch = answer.epoch
            theirs = {share: since for portion in answer.portions for share, since in portion.since.items()}
            if any(theirs.get(share) != since for share, since in self.held.items()):
                reason = f"group {self._group!r} has passed on to another member (epoch {answer.epoch})"
                return [*out, *self._lose(reason)]
            self._coming = answer.portions
            self._owed = tuple(
                portion
                for portion in self._owed
                if any(theirs.get(share) == since for share, since in portion.since.items())
            )
        return [*out, *self._change(now)]

    def _lose(self, reason: str) -> list[Effect]:
        self._is_over, self.held = True, {}
        lost = [Deliver(Committed(commit.outcome, reason)) for commit in self._committing.values()]
        return [CancelTimer("beat"), *lost, Deliver(GivenUp(reason))]

    def _done(self, upto: dict[str, int], outcome: int, now: Micros) -> list[Effect]:
        if self._shown is not None and upto.get(self._shown[0], 0) >= self._shown[1]:
            self._shown = None
        portions = self._portions(upto)
        question = self._ask(Commit, now, portions)
        self._committing[self._requests] = _Commit(outcome, portions, now)
        return [question, *self._change(now)]

    def _portions(self, upto: dict[str, int]) -> tuple[Portion, ...]:
        """How far each share is if what was shown up to there is done: no further than it was looked at."""
        assert self._read is not None
        parts: dict[tuple[tuple[str, int], ...], dict[int, int]] = {}
        for share, since in self.held.items():
            floor = self._floors.get(share, {})
            seen = {topic: max(self._read.get(topic, 0), floor.get(topic, 0)) for topic in (*self._read, *floor)}
            done = {topic: max(min(upto.get(topic, 0), number), floor.get(topic, 0)) for topic, number in seen.items()}
            parts.setdefault(tuple(done.items()), {})[share] = since
        return tuple(Portion(since, dict(done)) for done, since in parts.items())

    # taking over and giving back

    def _change(self, now: Micros) -> list[Effect]:
        """When nothing shown is left to commit, shares change hands."""
        if self._shown is not None or (self._read is None and self.held):
            return []
        out = self._give_back(now)
        coming, self._coming = self._coming, ()
        floors: dict[int, dict[str, int]] = {}
        after: dict[str, int] | None = None
        for portion in coming:
            for share, since in portion.since.items():
                if share not in self.held and self._given.get(share, 0) < since:
                    self.held[share] = since
                    floors[share] = portion.done or {}
                    after = _lower(after, portion.done)
        if not floors:
            return out
        if self._read is None:  # our first
            self._floors = floors
            self._read = None if after is None else dict(after)
            return [*out, Deliver(Hear(after))]
        read = self._read
        for share in self.held:
            floor = floors.get(share) or {}
            if share not in floors:
                old = self._floors.get(share, {})
                floor = {topic: max(read.get(topic, 0), old.get(topic, 0)) for topic in (*read, *old)}
            self._floors[share] = floor
        if after is not None and any(after.get(topic, 0) < number for topic, number in read.items()):
            self._read = _lower(read, after)
            out.append(Deliver(Hear(dict(self._read or {}))))
        return out

    def _give_back(self, now: Micros) -> list[Effect]:
        wanted = [share for share in self._wanted if share in self.held]
        self._wanted = ()
        if not wanted or self._read is None:
            return []
        everything = dict.fromkeys(self._read, 1 << 62)
        given = {share: self.held[share] for share in wanted}
        portions = tuple(
            Portion({share: since for share, since in portion.since.items() if share in given}, portion.done)
            for portion in self._portions(everything)
            if any(share in given for share in portion.since)
        )
        for share in wanted:
            self._given[share] = self.held.pop(share)
            self._floors.pop(share, None)
        self._owed += portions
        return [self._ask(Release, now, portions)]


def _lower(one: dict[str, int] | None, other: dict[str, int] | None) -> dict[str, int] | None:
    """The earlier of two places: of topics that only one of them names the archive knows where they begin."""
    if one is None or other is None:
        return one if other is None else other
    return {topic: min(one[topic], other[topic]) for topic in one if topic in other}
