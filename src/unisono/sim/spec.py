"""How scenario texts become values: strict tables, and spans of time written with their unit ("500ms")."""

from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from unisono.errors import FormatError, MisuseError
from unisono.model.explained import explain
from unisono.model.time import parse_span

T = TypeVar("T")


class Span(int):
    """Microseconds. In TOML a text with a unit, or a plain integer of microseconds."""


class Spec(Struct, frozen=True, forbid_unknown_fields=True):
    """A table of a scenario file; unknown keys are errors."""


def read(raw: object, into: type[T], where: str) -> T:
    """Makes a typed value of decoded TOML; raises FormatError that says where in the text the problem is."""
    try:
        return msgspec.convert(raw, into, dec_hook=_decode)
    except msgspec.ValidationError as error:
        place, problem = explain(error, raw, into)
        raise FormatError(f"{where}: {place}" if place else where, problem) from None
    except MisuseError as error:
        raise FormatError(where, str(error)) from None


def plain(value: Any) -> Any:
    """The opposite of `read`: dicts, lists, texts and numbers."""
    return msgspec.to_builtins(value, enc_hook=_encode)


def _decode(into: type, raw: Any) -> Any:
    if into is Span:
        if isinstance(raw, str):
            return Span(parse_span(raw))
        if isinstance(raw, int) and not isinstance(raw, bool):
            return Span(raw)
    raise MisuseError(f"{raw!r} is not a time span: write '500ms', or a number of microseconds")


def _encode(value: Any) -> Any:
    if isinstance(value, Span):
        return int(value)
    raise NotImplementedError(f"{type(value).__name__} has no place in a scenario")
