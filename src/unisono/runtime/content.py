"""Content as people write it: the text of a filter, and what of their data filters can look at."""

from collections.abc import Mapping
from typing import Any

import msgspec

from unisono.errors import MisuseError
from unisono.model.event import Event, Scalar
from unisono.model.predicate import EVERY_EVENT, Filter, parse, to_text
from unisono.runtime.payload import decode_any


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
    return event.attributes or attributes_of(decode_any(event.payload))


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
