"""Content as people write it: the text of a filter, and what of their data filters can look at."""

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from unisono.errors import MisuseError
from unisono.model.event import Event, Scalar
from unisono.model.payload import decode_any
from unisono.model.predicate import EVERY_EVENT, Filter, parse, to_text

DEADLINE = "unisono.deadline_us"
"""The attribute in which an event carries how long after its publication it is of use; nobody is shown it."""
TRACE = "unisono.traceparent"
"""The attribute in which an event carries the context of its publication, as W3C trace context says it."""
HIDDEN = (DEADLINE, TRACE)
INTEGER_END = 1 << 63
"""Integers of attributes lie below it, and not below its negative: further ones cannot be read everywhere."""


def check_attributes(attributes: Mapping[str, Scalar]) -> None:
    """Raises MisuseError for what no subscriber could read, before anybody is asked to carry it."""
    for name, value in attributes.items():
        if name in HIDDEN:
            raise MisuseError(f"attribute {name!r} is taken: publish(deadline=) and OpenTelemetry set such")
        if type(name) is not str or not _is_text(name):
            raise MisuseError(f"attribute {name!r}: a name is text")
        if type(value) is str:
            if not _is_text(value):
                raise MisuseError(f"attribute {name!r}: {value!r} is no text that can be sent")
        elif type(value) is float:
            if not math.isfinite(value):
                raise MisuseError(f"attribute {name!r} is {value}: NaN and infinity are no values. Leave it out")
        elif type(value) is int:
            if not -INTEGER_END <= value < INTEGER_END:
                raise MisuseError(f"attribute {name!r}: an integer has 64 bits. Say {value} as text or as a float")
        elif type(value) is not bool:
            kind = type(value).__name__
            raise MisuseError(f"attribute {name!r} is a {kind}: it may be text, a number, or true or false")


def _is_text(text: str) -> bool:
    """Whether it has no half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def parse_where(text: str | None) -> Filter:
    """The filter; raises FormatError with the column, or MisuseError if no event can match."""
    if text is None:
        return EVERY_EVENT
    where = parse(text)
    if where.is_empty:
        raise MisuseError(f"{text!r} contradicts itself: no event can match")
    return where


def note_of(where: Filter) -> str | None:
    """A filter as it stands in a journal; nothing for the one that lets everything pass."""
    return None if where.is_everything else to_text(where)


def content_of(event: Event) -> Mapping[str, object]:
    """What filters see of an event: its attributes, or without any those that its payload shows."""
    return shown_attributes(event) or attributes_of(decode_any(event.payload))


def shown_attributes(event: Event) -> Mapping[str, Scalar]:
    """The attributes that its publisher gave it."""
    attributes = event.attributes
    if DEADLINE not in attributes and TRACE not in attributes:
        return attributes
    return {name: value for name, value in attributes.items() if name not in HIDDEN}


def deadline_of(event: Event) -> int | None:
    """Until when it is of use, by its publisher's clock; None if that has no end, or nobody says when it began."""
    life = event.attributes.get(DEADLINE)
    return event.born_at + life if type(life) is int and life > 0 and event.born_at else None


def attributes_of(data: Any) -> dict[str, Scalar]:
    """What filters see of data that is published without attributes: the scalars of an object, nested ones as paths."""
    if not isinstance(data, Mapping):
        if isinstance(data, bytes | bytearray | memoryview | str | int | float | list | tuple | None):
            return {}
        try:
            data = msgspec.to_builtins(data)
        except (TypeError, ValueError):
            return {}
        if not isinstance(data, Mapping):
            return {}
    found: dict[str, Scalar] = {}
    _collect(found, "", data)
    return found


def _collect(found: dict[str, Scalar], path: str, data: Mapping[Any, Any]) -> None:
    for key, value in data.items():
        if isinstance(value, str | int | float | bool):
            found[f"{path}{key}"] = value
        elif isinstance(value, Mapping):
            _collect(found, f"{path}{key}.", value)
