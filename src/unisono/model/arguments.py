"""What people hand over is of the type it should be, or a MisuseError says which argument is not how to write it."""

from pathlib import Path
from types import NoneType
from typing import Any

from unisono.errors import MisuseError
from unisono.model.explained import meant

ATTRIBUTES = 'a dict of scalars, like {"key": "IBM"}'
TOPIC = 'a topic\'s name, like "trades"'


def expect(argument: str, value: Any, kinds: type | tuple[type, ...], written: str) -> None:
    """Raises MisuseError unless the value is of one of the kinds; a bool is no number."""
    wants_bool = kinds is bool or (isinstance(kinds, tuple) and bool in kinds)
    if not isinstance(value, kinds) or (isinstance(value, bool) and not wants_bool):
        raise MisuseError(f"{argument} is {written}; {value!r:.60} is of the type {type(value).__name__}")


def expect_one_of(argument: str, value: Any, choices: tuple[str, ...]) -> None:
    """Raises MisuseError unless the value is one of these texts."""
    if value not in choices:
        near = meant(value, choices) if isinstance(value, str) else ""
        raise MisuseError(f"{argument} is one of {', '.join(choices)}, not {value!r:.60}{near}")


def check_count(argument: str, value: Any) -> None:
    """Raises MisuseError unless the value is a number above 0."""
    expect(argument, value, int, "a number of events")
    if value < 1:
        raise MisuseError(f"{argument} is {value}: at least one")


def expect_path(argument: str, value: Any) -> None:
    """Raises MisuseError unless the value is a path, or None."""
    expect(argument, value, (str, Path, NoneType), "a path")
    if value is not None and "\0" in str(value):
        raise MisuseError(f"{argument} is a path; {value!r:.60} has a character that no path has")
