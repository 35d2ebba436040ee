"""Where commands print: as wide as the terminal, and in a pipe as wide as the line; nobody else breaks lines."""

import re
import sys
from typing import IO, TextIO, cast

from rich.console import Console

UNBROKEN = 10_000
"""Columns where no terminal says how many it has."""


def screen(stderr: bool = False, wraps: bool = True) -> Console:
    """A console that says what it is given: no markup, no colours of its own choice. `wraps=False` leaves even the
    terminal's lines whole, for what people copy from there."""
    stream = sys.stderr if stderr else sys.stdout
    if stream.isatty():
        return Console(stderr=stderr, soft_wrap=not wraps, highlight=False, markup=False)
    trimmed = cast(IO[str], _Trimmed(stream))
    return Console(file=trimmed, width=UNBROKEN, soft_wrap=not wraps, highlight=False, markup=False)


class _Trimmed:
    """What tables fill up with spaces ends where its text ends."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.encoding = stream.encoding

    def write(self, text: str) -> int:
        self._stream.write(re.sub(r" +(?=\n)", "", text))
        return len(text)

    def flush(self) -> None:
        self._stream.flush()

    def isatty(self) -> bool:
        return False
