"""Drives the coordinator of consumer groups: a file per group beside the archive, and its timers.

What is durable about a group is replaced as a whole by every change, and lives in one place: it needs no agreement.
"""

import os
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from unisono.errors import FormatError, MisuseError
from unisono.machine import CancelTimer, Effect, Fired, Persist, Send, SetTimer
from unisono.model.interest import check_topic_name
from unisono.model.numbers import Number, Request
from unisono.model.time import SECOND, Micros
from unisono.protocols.groups.coordinator import GROUPS_MAX, GroupCoordinator, GroupsConfig, Share, SharesView
from unisono.protocols.groups.messages import SHARES, Enlisted, ToGroups
from unisono.runtime.client.subscription.position import decode_position

GROUP_VERSION = 2


class _Held(Struct, frozen=True):
    """Shares of one member that are equally far."""

    holder: str
    since: dict[Request, Number]
    done: dict[str, Number] | None = None


class _File(Struct, frozen=True):
    version: int
    epoch: Number
    shares: Request
    held: tuple[_Held, ...]


class _FileOfOneMember(Struct, frozen=True):
    """Version 1: one active member, and its position."""

    version: int
    epoch: Number = 0
    active: str = ""
    position: str | None = None


def parse_view(data: bytes, where: str) -> SharesView:
    """Decodes and checks a view; `where` names it in errors."""
    try:
        version = msgspec.json.decode(data, type=dict[str, Any]).get("version")
        if version == 1:
            old = msgspec.json.decode(data, type=_FileOfOneMember)
            done = decode_position(old.position) if old.position is not None else None
            return SharesView(old.epoch, [Share(old.active, old.epoch, done)])
        if version != GROUP_VERSION:
            raise FormatError(where, f"group version {version} is unknown, this is version {GROUP_VERSION}")
        file = msgspec.json.decode(data, type=_File)
        shares = {
            number: Share(held.holder, since, held.done) for held in file.held for number, since in held.since.items()
        }
        if file.shares not in (1, SHARES) or sorted(shares) != list(range(file.shares)):
            raise FormatError(where, f"a group has 1 or {SHARES} shares, each of them once")
    except (msgspec.MsgspecError, MisuseError) as error:
        raise FormatError(where, str(error)) from None
    return SharesView(file.epoch, [shares[number] for number in range(file.shares)])


def dump_view(view: SharesView) -> bytes:
    held: list[tuple[str, dict[int, int], dict[str, int] | None]] = []
    for number, share in enumerate(view.shares):
        for holder, since, done in held:
            if (holder, done) == (share.holder, share.done):
                since[number] = share.since
                break
        else:
            held.append((share.holder, {number: share.since}, share.done))
    return msgspec.json.encode(_File(GROUP_VERSION, view.epoch, len(view.shares), tuple(_Held(*each) for each in held)))


class Groups:
    """All groups of an archive. Called by one thread."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._machine = GroupCoordinator(GroupsConfig())
        self._kept: dict[str, bytes] = {}
        self._due: dict[str, Micros] = {}
        self._is_listed = False

    def handle(self, message: ToGroups, now_s: float) -> Enlisted:
        """The answer; what changed is on disk."""
        self._load(message.group, now_s)
        answer = self._perform(message.group, self._machine.handle(message, _micros(now_s)))
        return answer or Enlisted(message.request, message.member, refused="a message that makes no sense")

    def tick(self, now_s: float) -> None:
        """Whoever was silent for the lease is given up."""
        now = _micros(now_s)
        for key in [key for key, at in self._due.items() if at <= now]:
            del self._due[key]
            self._perform(key.partition("/")[0], self._machine.handle(Fired(key), now))

    def seen(self, now_s: float) -> list[tuple[str, SharesView, int]]:
        """All groups, and how many members each has; those that were there before us, from their files."""
        if not self._is_listed:
            self._is_listed = True
            for path in sorted(self._directory.glob("*.json"))[:GROUPS_MAX]:
                self._load(path.stem, now_s)
        return self._machine.views()

    def _perform(self, group: str, effects: list[Effect]) -> Enlisted | None:
        answer: Enlisted | None = None
        for effect in effects:
            match effect:
                case Persist():
                    self._keep(group)
                case SetTimer(key=key, at=at):
                    self._due[key] = at
                case CancelTimer(key=key):
                    self._due.pop(key, None)
                case Send(message=Enlisted() as said):
                    answer = said
                case _:
                    pass  # a refusal: nothing was said
        return answer

    def _load(self, group: str, now_s: float) -> None:
        try:
            path = self._path(check_topic_name(group))
        except MisuseError:
            return  # no group is called that, and it is told so
        if self._machine.view(group) is None and path.exists():
            view = parse_view(path.read_bytes(), str(path))
            self._perform(group, self._machine.take(group, view, _micros(now_s)))

    def _keep(self, group: str) -> None:
        view, path = self._machine.view(group), self._path(group)
        assert view is not None
        data = dump_view(view)
        if self._kept.get(group) == data:
            return  # who waits for a turn is not kept
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary = path.with_suffix(".new")
            with temporary.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
            handle = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
        except OSError:
            self._machine.drop(group)  # nobody is told what the disk does not have
            raise
        self._kept[group] = data

    def _path(self, group: str) -> Path:
        return self._directory / f"{group}.json"


def _micros(seconds: float) -> Micros:
    return Micros(int(seconds * SECOND))
