"""Consumer groups: one active member, the others wait; who takes over goes on behind the last commit.

The view of a group (who is active, in which epoch, committed up to where) is one file beside the archive, replaced as a
whole by every change: it lives in one place and needs no agreement. Members say every `BEAT_S` that they are there; who
is silent for `LEASE_S` loses its turn to the one that has waited longest. A member that was only slow finds its epoch
outdated: its commits are refused and its stream ends. Time decides who is active, never what was committed.
"""

import asyncio
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from unisono.errors import FormatError, MisuseError, TransportError
from unisono.model.ids import Address
from unisono.model.interest import check_topic_name
from unisono.model.numbers import Number

if TYPE_CHECKING:
    from unisono.runtime.replay import ArchiveClient
    from unisono.runtime.stream import Stream

GROUP_VERSION = 1
BEAT_S = 0.5
LEASE_S = 3.0
WAITING_MAX = 1_000
GROUPS_MAX = 10_000
"""Groups of one archive; each is a file."""


class Enlist(Struct, frozen=True, tag=True):
    """A member is there; the active one says so too."""

    client: Address
    request: Number
    group: str
    member: str


class Commit(Struct, frozen=True, tag=True):
    """The active member has processed everything up to a position."""

    client: Address
    request: Number
    group: str
    member: str
    epoch: Number
    position: str


class Resign(Struct, frozen=True, tag=True):
    """A member leaves."""

    client: Address
    request: Number
    group: str
    member: str


class Enlisted(Struct, frozen=True, tag=True):
    """The answer to all three: who is active, in which epoch, and how far the group is."""

    request: Number
    active: str
    epoch: Number
    position: str | None
    refused: str = ""


ToGroups = Enlist | Commit | Resign


class View(Struct, frozen=True):
    """What is durable about a group."""

    version: int = GROUP_VERSION
    epoch: int = 0
    active: str = ""
    position: str | None = None


def parse_view(data: bytes, where: str) -> View:
    """Decodes and checks a view; `where` names it in errors."""
    try:
        view = msgspec.json.decode(data, type=View)
    except msgspec.MsgspecError as error:
        raise FormatError(where, str(error)) from None
    if view.version != GROUP_VERSION:
        raise FormatError(where, f"group version {view.version} is unknown, this is version {GROUP_VERSION}")
    return view


class Groups:
    """All groups of an archive. Called by one thread."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._views: dict[str, View] = {}
        self._seen: dict[str, dict[str, float]] = {}
        """Per group its members in the order of arrival, and when each was heard last."""

    def handle(self, message: ToGroups, now_s: float) -> Enlisted:
        """The answer; what changed is on disk."""
        try:
            check_topic_name(message.group)
        except MisuseError as error:
            return Enlisted(message.request, "", 0, None, str(error))
        view = self._view(message.group)
        if view.epoch == 0 and message.group not in self._seen and len(self._seen) >= GROUPS_MAX:
            return Enlisted(message.request, "", 0, None, f"this archive has {GROUPS_MAX} groups, which is the most")
        seen = self._seen.setdefault(message.group, {view.active: now_s} if view.active else {})
        refused = ""
        if isinstance(message, Resign):
            seen.pop(message.member, None)
            if message.member == view.active:
                view = self._pass_on(message.group, view, seen, now_s)
            return Enlisted(message.request, view.active, view.epoch, view.position)
        if message.member in seen or len(seen) < WAITING_MAX:
            seen[message.member] = now_s
        else:
            refused = f"group {message.group!r} has {WAITING_MAX} members"
        if view.active not in seen or now_s - seen[view.active] > LEASE_S:
            view = self._pass_on(message.group, view, seen, now_s)
        if isinstance(message, Commit):
            if (message.member, message.epoch) == (view.active, view.epoch):
                view = self._keep(message.group, msgspec.structs.replace(view, position=message.position))
            else:
                refused = f"group {message.group!r} has passed on to another member (epoch {view.epoch})"
        return Enlisted(message.request, view.active, view.epoch, view.position, refused)

    def _pass_on(self, group: str, view: View, seen: dict[str, float], now_s: float) -> View:
        """The member that has waited longest and is still there becomes active."""
        for member in [member for member, at in seen.items() if now_s - at > LEASE_S]:
            del seen[member]
        successor = next((member for member in seen if member != view.active), next(iter(seen), ""))
        return self._keep(group, View(GROUP_VERSION, view.epoch + 1, successor, view.position))

    def _view(self, group: str) -> View:
        if group not in self._views:
            path = self._path(group)
            self._views[group] = parse_view(path.read_bytes(), str(path)) if path.exists() else View()
        return self._views[group]

    def _keep(self, group: str, view: View) -> View:
        path = self._path(group)
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(".new")
        with temporary.open("wb") as file:
            file.write(msgspec.json.encode(view))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        handle = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
        self._views[group] = view
        return view

    def _path(self, group: str) -> Path:
        return self._directory / f"{group}.json"


class Membership:
    """A stream's place in its group."""

    def __init__(self, name: str, archive: "ArchiveClient", stream: "Stream") -> None:
        check_topic_name(name)
        self.name = name
        self.epoch = 0
        self._archive, self._stream = archive, stream
        self._beating: asyncio.Task[None] | None = None

    async def elected(self) -> str | None:
        """Returns when it is this member's turn: the group's committed position, or None if it has none yet."""
        while True:
            answer = await self._archive.group(Enlist, self.name, self._stream.sid)
            if answer.refused:
                raise MisuseError(answer.refused)
            if answer.active == self._stream.sid:
                self.epoch = answer.epoch
                self._beating = asyncio.create_task(self._keep_beating(), name=f"group {self.name}")
                return answer.position
            await asyncio.sleep(BEAT_S)

    async def commit(self, position: str) -> None:
        """Durable on return; raises TransportError when the group has passed on to somebody else."""
        answer = await self._archive.group(Commit, self.name, self._stream.sid, self.epoch, position)
        if answer.refused:
            raise TransportError(answer.refused)

    async def resign(self) -> None:
        """Lets the next one in."""
        if self._beating is not None:
            self._beating.cancel()
        with suppress(TransportError, TimeoutError):  # silence says the same, a little later
            async with asyncio.timeout(LEASE_S):
                await self._archive.group(Resign, self.name, self._stream.sid)

    async def _keep_beating(self) -> None:
        while True:
            await asyncio.sleep(BEAT_S)
            try:
                answer = await self._archive.group(Enlist, self.name, self._stream.sid)
            except TransportError:
                continue  # nobody is told anything about the group meanwhile, so nobody takes over
            if answer.epoch != self.epoch:
                reason = f"group {self.name!r} has passed on to another member (epoch {answer.epoch})"
                self._stream.fail(TransportError(reason))
                return
