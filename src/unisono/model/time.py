"""Time is an integer number of microseconds. Machines get it as an argument and never read a clock."""

import re
from typing import NewType

from unisono.errors import MisuseError

Micros = NewType("Micros", int)
"""A moment or a span, in microseconds. What moment zero is belongs to the driver."""

MILLISECOND = Micros(1_000)
SECOND = Micros(1_000_000)
NEVER = Micros(1 << 62)
"""A moment that does not come."""

_UNITS = {"us": 1, "ms": 1_000, "s": 1_000_000, "m": 60_000_000, "h": 3_600_000_000}
SPAN_MAX = Micros(100 * 365 * 24 * 3_600_000_000)
"""A moment a hundred years from now is a number that JSON and every wire can carry."""
_SPAN = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(us|ms|s|m|h)\s*")


def parse_span(text: str, setting: str = "") -> Micros:
    """`parse_span("500ms") == 500_000`; units us, ms, s, m, h. `setting` is what an error says of where it stands."""
    found = _SPAN.fullmatch(text)
    named = f"{setting}: " if setting else ""
    if found is None:
        raise MisuseError(f"{named}{text!r:.60} is not a time span: write a number and a unit, like '500ms' or '2s'")
    span = float(found[1]) * _UNITS[found[2]]
    if span > SPAN_MAX:
        raise MisuseError(f"{named}{text!r:.60} is longer than a hundred years")
    return Micros(round(span))


def format_span(span: Micros) -> str:
    """The shortest exact text that `parse_span` reads back: `format_span(500_000) == "500ms"`."""
    for unit in ("h", "m", "s", "ms"):
        if span and span % _UNITS[unit] == 0:
            return f"{span // _UNITS[unit]}{unit}"
    return f"{span}us"
