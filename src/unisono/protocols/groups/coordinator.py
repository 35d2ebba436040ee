"""Who holds which shares of a consumer group, and how far each is: the coordinator, as a machine.

A share has one holder, who keeps it until it gives it back, resigns, or is silent for the lease: time decides who
holds a share, never how far it is. Free shares go to the member that has fewest, and of several to the one that has
waited longest. While one member has two more than another it is asked for one of them; it gives it back when all that
it was shown of it is done, so no key has two members at work.
"""

from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from msgspec import Struct

from unisono.errors import MisuseError
from unisono.machine import PERSIST, CancelTimer, Effect, Fired, Refuse, Restarted, Send, SetTimer
from unisono.model.interest import NAME_BYTES_MAX, check_topic_name
from unisono.model.numbers import Number
from unisono.model.time import MILLISECOND, SECOND, Micros
from unisono.protocols.groups.messages import SHARES, Commit, Enlist, Enlisted, Portion, Release, Resign, ToGroups

WAITING_MAX = 1_000
GROUPS_MAX = 10_000
"""Groups of one coordinator; a node keeps each in a file."""
DONE_MAX = 100_000
"""Topics of which a share says how far it is: they are in the group's file."""


class GroupsConfig(Struct, frozen=True):
    """Pace of members, and how long one may be silent."""

    beat_us: Micros = Micros(500 * MILLISECOND)
    """A member says so often that it is there. Price: a message and its answer, per member."""
    lease_us: Micros = Micros(3 * SECOND)
    """Who is silent for this long is given up, and shows nothing by itself: several beats."""


class Share(Struct):
    """One share: what is durable about a group is its shares and its epoch."""

    holder: str = ""
    since: Number = 0
    done: dict[str, Number] | None = None


class SharesView(Struct):
    """What is durable about a group."""

    epoch: Number
    shares: list[Share]


@dataclass(slots=True)
class _Group:
    view: SharesView
    members: dict[str, None] = field(default_factory=dict)
    """In the order of arrival."""
    wanted: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """What members are asked to give back."""


class GroupCoordinator:
    """All groups of an archive."""

    def __init__(self, config: GroupsConfig = GroupsConfig()) -> None:
        self._config = config
        self._groups: dict[str, _Group] = {}

    def handle(self, message: Any, now: Micros) -> list[Effect]:
        match message:
            case Enlist() | Commit() | Release() | Resign():
                return self._answer(message, now)
            case Fired(key=key):
                name, _, member = key.partition("/")
                group = self._groups.get(name)
                if group is None or member not in group.members:
                    return []
                self._lose(group, member)
                return [PERSIST]
            case Restarted():
                return [
                    self._lease(name, member, now) for name, group in self._groups.items() for member in group.members
                ]
            case _:
                return [Refuse(f"{type(message).__name__} is nothing a coordinator of groups understands")]

    def _answer(self, message: ToGroups, now: Micros) -> list[Effect]:
        named = message.portions if isinstance(message, Commit | Release) else ()
        if any(share >= SHARES for portion in named for share in portion.since):
            return [Refuse(f"there are {SHARES} shares")]
        refused = self._objection(message) or self._why_not_noted(message.group, message.member, named)
        if refused:
            return [Send(message.client, Enlisted(message.request, message.member, refused=refused))]
        name, member = message.group, message.member
        known = message.epoch if isinstance(message, Enlist) else None
        if isinstance(message, Enlist) and name not in self._groups:
            self._groups[name] = _Group(SharesView(0, [Share() for _ in range(message.shares)]))
        group = self._groups[name]
        view = group.view
        out: list[Effect] = []
        match message:
            case Enlist() if member not in group.members:
                group.members[member] = None
                self._balance(group)
                out.append(PERSIST)
            case Commit(portions=portions):
                known_of = [self._note(view, member, portion) for portion in portions]
                if not all(known_of):
                    refused = f"group {name!r} has passed on to another member (epoch {view.epoch})"
                out.append(PERSIST)
            case Release(portions=portions):
                for portion in portions:
                    self._note(view, member, portion)
                    self._free(view, _held(view, member, portion))
                self._balance(group)
                out.append(PERSIST)
            case Resign() if member in group.members:
                self._lose(group, member)
                out += [PERSIST, CancelTimer(f"{name}/{member}")]
        if member in group.members:
            out.append(self._lease(name, member, now))
        held = None if known == view.epoch else _portions(view, member)
        answer = Enlisted(message.request, member, view.epoch, held, group.wanted.get(member, ()), refused)
        return [*out, Send(message.client, answer)]

    def _objection(self, message: ToGroups) -> str:
        """Why this member cannot be of this group; empty if it can."""
        group = self._groups.get(message.group)
        if group is None:
            try:
                check_topic_name(message.group)
            except MisuseError as error:
                return str(error)
            if len(self._groups) >= GROUPS_MAX:
                return f"this archive has {GROUPS_MAX} groups, which is the most"
        if not 1 <= len(message.member) <= NAME_BYTES_MAX:
            return f"a member has a name of 1 to {NAME_BYTES_MAX} characters, not {len(message.member)}"
        if not isinstance(message, Enlist):
            return f"nobody is in group {message.group!r}" if group is None else ""
        if message.shares not in (1, SHARES):
            return f"a group is cut into 1 or {SHARES} shares, not {message.shares}"
        if group is None:
            return ""
        if len(group.view.shares) != message.shares:
            others = "share keys" if message.shares == 1 else "take turns"
            return f"the members of group {message.group!r} {others}: say the same, or take another name for the group"
        if message.member not in group.members and len(group.members) >= WAITING_MAX:
            return f"group {message.group!r} has {WAITING_MAX} members"
        return ""

    def _why_not_noted(self, name: str, member: str, portions: tuple[Portion, ...]) -> str:
        """Whoever invents topics would make a group as large as he likes, for ever."""
        group = self._groups.get(name)
        for portion in portions:
            done, shares = portion.done or {}, _held(group.view, member, portion) if group is not None else []
            for known in {id(share.done): share.done or {} for share in shares}.values():
                if len(known) + sum(topic not in known for topic in done) > DONE_MAX:
                    return f"a group has at most {DONE_MAX} topics"
        return ""

    def _lease(self, name: str, member: str, now: Micros) -> SetTimer:
        return SetTimer(f"{name}/{member}", Micros(now + self._config.lease_us))

    # who holds what

    def _note(self, view: SharesView, member: str, portion: Portion) -> bool:
        """How far a member is with what it holds; False if some of it is not its own any more."""
        held = _held(view, member, portion)
        for share in held:
            share.done = merged(share.done, portion.done)
        return len(held) == len(portion.since)

    def _lose(self, group: _Group, member: str) -> None:
        del group.members[member]
        self._free(group.view, [share for share in group.view.shares if share.holder == member])
        self._balance(group)

    def _free(self, view: SharesView, shares: list[Share]) -> None:
        for share in shares:
            share.holder = ""

    def _balance(self, group: _Group) -> None:
        """Free shares find a holder; who has too many is asked for some."""
        view, load = group.view, dict.fromkeys(group.members, 0)
        for share in view.shares:
            if share.holder:
                load[share.holder] += 1
        free = [share for share in view.shares if not share.holder]
        if free and load:
            view.epoch += 1
            for share in free:
                share.holder, share.since = min(load, key=load.__getitem__), view.epoch
                load[share.holder] += 1
        group.wanted = {}
        while load and max(load.values()) - min(load.values()) > 1:
            rich, poor = max(load, key=load.__getitem__), min(load, key=load.__getitem__)
            load[rich], load[poor] = load[rich] - 1, load[poor] + 1
            asked = group.wanted.get(rich, ())
            theirs = [number for number, share in enumerate(view.shares) if share.holder == rich]
            group.wanted[rich] = (*asked, theirs[len(asked)])

    # what is durable

    def view(self, group: str) -> SharesView | None:
        found = self._groups.get(group)
        return found.view if found is not None else None

    def views(self) -> list[tuple[str, SharesView, int]]:
        """All groups, and how many members each has."""
        return [(name, group.view, len(group.members)) for name, group in self._groups.items()]

    def drop(self, group: str) -> None:
        """The group as it is could not be kept: it is taken again, as it was."""
        self._groups.pop(group, None)

    def take(self, name: str, view: SharesView, now: Micros) -> list[Effect]:
        """A group as it was kept; its holders have a lease from now on."""
        group = _Group(view, dict.fromkeys(share.holder for share in view.shares if share.holder))
        self._groups[name] = group
        self._balance(group)
        return [self._lease(name, member, now) for member in group.members]

    def snapshot(self) -> Any:
        return [
            (name, group.view.epoch, [(s.holder, s.since, s.done) for s in group.view.shares], list(group.members))
            for name, group in self._groups.items()
        ]

    def restore(self, snapshot: Any) -> None:
        self._groups = {}
        for name, epoch, shares, members in snapshot:
            group = _Group(SharesView(epoch, [Share(*share) for share in shares]), dict.fromkeys(members))
            self._groups[name] = group
            self._balance(group)


def merged(one: dict[str, int] | None, other: dict[str, int] | None) -> dict[str, int] | None:
    """Processed with what either is done with."""
    if one is None or other is None:
        return one if other is None else other
    return {topic: max(one.get(topic, 0), other.get(topic, 0)) for topic in (*one, *other)}


def merged_least(view: SharesView) -> dict[str, int]:
    """How far all shares are."""
    known = [share.done for share in view.shares if share.done is not None]
    return {
        topic: min(done.get(topic, 0) for done in known) for topic in dict.fromkeys(t for done in known for t in done)
    }


def _held(view: SharesView, member: str, portion: Portion) -> list[Share]:
    """Of the shares named, those that the member holds by this very holding."""
    shares = view.shares
    return [
        shares[number]
        for number, since in portion.since.items()
        if number < len(shares) and (shares[number].holder, shares[number].since) == (member, since)
    ]


def _portions(view: SharesView, member: str) -> tuple[Portion, ...]:
    held = [(number, share) for number, share in enumerate(view.shares) if share.holder == member]
    parts = groupby(held, key=lambda item: item[1].done)
    return tuple(Portion({number: share.since for number, share in part}, done) for done, part in parts)
