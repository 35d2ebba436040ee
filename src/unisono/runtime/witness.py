"""What nodes have shown to this process of their logs (`runtime.lives`), to be handed back when they are met again."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from unisono.errors import FormatError
from unisono.model.ids import Address
from unisono.runtime.frames import UNREADABLE, Hello
from unisono.runtime.holding import write_durably
from unisono.runtime.lives import Height, Reminds

WITNESSED = "WITNESSED"


class Witness:
    """The last that each node has shown; on disk where there is a directory for it."""

    def __init__(self) -> None:
        self._shown: dict[Address, Height] = {}
        self._path: Path | None = None
        self._saved: dict[Address, Height] = {}

    def note(self, shown: Height) -> bool:
        """Tells whether the node is reborn: what it told us before, it may have forgotten."""
        before = self._shown.get(shown.node)
        self._shown[shown.node] = shown
        return before is not None and before.incarnation < shown.incarnation

    def remind_again(self, node: Address, me: Address, send: Callable[[Address, Any], None]) -> None:
        """To a node that is reborn, once we have drawn the consequences."""
        send(node, Reminds(me, self._shown[node]))

    def remind(self, hello: Hello, me: Address, send: Callable[[Address, Any], None]) -> None:
        """A party is connected: if it is a node that has shown us something, it gets it back, before anything else."""
        for address in hello.addresses:
            if address in self._shown:
                send(address, Reminds(me, self._shown[address]))

    def keep_in(self, directory: Path) -> None:
        """Goes on with what is kept there, and keeps it there."""
        self._path = directory / WITNESSED
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return
        try:
            kept = msgspec.json.decode(data, type=list[Height])
        except UNREADABLE as error:
            raise FormatError(str(self._path), f"not what nodes have shown us: {error}") from None
        self._shown = {shown.node: shown for shown in kept}
        self._saved = dict(self._shown)

    def save(self) -> None:
        """Durable on return; does nothing if nothing is new."""
        shown = dict(self._shown)
        if self._path is not None and shown != self._saved:
            write_durably(self._path, msgspec.json.encode(list(shown.values())))
            self._saved = shown
