"""Time is an integer number of microseconds. Machines get it as an argument and never read a clock."""

import re
from typing import NewType

from unisono.errors import MisuseError

Micros = NewType("Micros", int)
"""A moment or a span, in microseconds. What moment zero is belongs to the driver."""

MILLISECOND = Micros(1_000)
SECOND = Micros(1_000_000)

_UNITS = {"us": 1, "ms": 1_000, "s": 1_000_000, "m": 60_000_000, "h": 3_600_000_000}
_SPAN = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(us|ms|s|m|h)\s*")


def parse_span(text: str, setting: str = "") -> Micros:
    """`parse_span("500ms") == 500_000`; units us, ms, s, m, h. `setting` is what an error says of where it stands."""
    found = _SPAN.fullmatch(text)
    if found is None:
        named = f"{setting}: " if setting else ""
        raise MisuseError(f"{named}{text!r} is not a time span: write a number and a unit, like '500ms' or '2s'")
    return Micros(round(float(found[1]) * _UNITS[found[2]]))


def format_span(span: Micros) -> str:
    """The shortest exact text that `parse_span` reads back: `format_span(500_000) == "500ms"`."""
    for unit in ("h", "m", "s", "ms"):
        if span and span % _UNITS[unit] == 0:
            return f"{span // _UNITS[unit]}{unit}"
    return f"{span}us"
