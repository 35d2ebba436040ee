"""Errors of msgspec in the words of the file that has them: which setting, what may stand there, what was meant.

`Invalid enum value 'nat' - at `$.broker.kind`` becomes `broker.kind`, "'nat' is not one of embedded, nats: did you mean
nats?".
"""

import re
from collections.abc import Iterable
from difflib import get_close_matches
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Struct

_PLACE = re.compile(r"^(.*) - at `\$?\.?(.*)`$", re.S)
_STEP = re.compile(r"\[(\d+|\.\.\.)\]|\.?([^.\[\]]+)")


def explain(problem: msgspec.ValidationError, raw: object, kind: Any) -> tuple[str, str]:
    """Where in the text, and what is wrong there; `raw` was to become a `kind`."""
    found = _PLACE.match(str(problem))
    what, place = (found[1], found[2]) if found is not None else (str(problem), "")
    steps = [int(index) if index.isdecimal() else name or None for index, name in _STEP.findall(place)]
    return _named(place, steps, raw), _said(what, _kind_at(kind, steps))


def meant(word: str, choices: Iterable[str]) -> str:
    """A question to put after a word that is none of the choices, or nothing."""
    near = get_close_matches(word, list(choices), 1)
    return f": did you mean {near[0]}?" if near else ""


def _said(what: str, kind: Any) -> str:
    wrong = re.fullmatch(r"Invalid enum value '(.*)'", what)
    if wrong is not None and (choices := [str(choice) for choice in _choices(kind)]):
        return f"{wrong[1]!r} is not one of {', '.join(choices)}{meant(wrong[1], choices)}"
    unknown = re.fullmatch(r"Object contains unknown field `(.*)`", what)
    fields = [field for each in _parts(kind) for field in getattr(each, "__struct_encode_fields__", ())]
    if unknown is not None and fields:
        return f"{unknown[1]!r} is no setting; there are {', '.join(fields)}{meant(unknown[1], fields)}"
    missing = re.fullmatch(r"Object missing required field `(.*)`", what)
    return f"{missing[1]} is missing" if missing is not None else what


def _named(place: str, steps: list[int | str | None], raw: object) -> str:
    """`nodes[0].listen` as `nodes.hub.listen`, where the table says what it is called."""
    words: list[str] = []
    for step in steps:
        try:
            raw = raw[step]  # type: ignore[index]
        except (KeyError, IndexError, TypeError):
            raw = None
        name = raw.get("name") if isinstance(step, int) and isinstance(raw, dict) else None
        words.append(str(name if isinstance(name, str) else step))
    return place if None in steps else ".".join(words)


def _kind_at(kind: Any, steps: list[int | str | None]) -> Any:
    """The type of what stands there; None if that cannot be told."""
    for step in steps:
        for each in _parts(kind):
            hints = (
                get_type_hints(each, include_extras=True) if isinstance(each, type) and issubclass(each, Struct) else {}
            )
            arguments = [argument for argument in get_args(each) if argument is not Ellipsis]
            if step in hints:
                kind = hints[str(step)]
                break
            if arguments and get_origin(each) in (tuple, list, dict):
                kind = arguments[-1]
                break
        else:
            return None
    return kind


def _parts(kind: Any) -> list[Any]:
    """The members of a union, without what is annotated to them."""
    if get_origin(kind) is Annotated:
        return _parts(get_args(kind)[0])
    if get_origin(kind) in (Union, UnionType):
        return [part for each in get_args(kind) for part in _parts(each)]
    return [kind]


def _choices(kind: Any) -> list[Any]:
    return [choice for each in _parts(kind) if get_origin(each) is Literal for choice in get_args(each)]
