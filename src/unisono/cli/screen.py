"""Where commands print: as wide as the terminal, and in a pipe as wide as the line; nobody else breaks lines."""

import sys

from rich.console import Console

UNBROKEN = 10_000
"""Columns where no terminal says how many it has."""


def screen(stderr: bool = False, wraps: bool = True) -> Console:
    """A console that says what it is given: no markup, no colours of its own choice. `wraps=False` leaves even the
    terminal's lines whole, for what people copy from there."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else UNBROKEN
    return Console(stderr=stderr, width=width, soft_wrap=not wraps, highlight=False, markup=False)
