"""What nodes have shown to this process of their logs (`protocols.sequencer.lives`), to be handed back when it meets
them again."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from unisono.errors import FormatError
from unisono.model.ids import Address
from unisono.protocols.sequencer.lives import Height, Witness
from unisono.runtime.driver.data_directory import write_durably
from unisono.runtime.links.frames import UNREADABLE

WITNESSED = "WITNESSED"


class ShownHeights:
    """A witness whose memory is on disk where there is a directory for it."""

    def __init__(self) -> None:
        self.witness = Witness()
        self.note = self.witness.note
        """Tells whether the node is reborn."""
        self._path: Path | None = None
        self._saved: dict[Address, Height] = {}

    def remind(self, node: Address, me: Address, send: Callable[[Address, Any], None]) -> None:
        reminder = self.witness.reminder(node, me)
        if reminder is not None:
            send(node, reminder)

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
        self.witness.shown = {shown.node: shown for shown in kept}
        self._saved = dict(self.witness.shown)

    def save(self) -> None:
        """Durable on return; does nothing if nothing is new."""
        shown = dict(self.witness.shown)
        if self._path is not None and shown != self._saved:
            write_durably(self._path, msgspec.json.encode(list(shown.values())))
            self._saved = shown
