"""The filter language: text in, `Filter` out, and back. A hand-written parser; nothing is ever evaluated as code.

    filter     = both { "or" both }
    both       = single { "and" single }
    single     = "not" single | "(" filter ")" | "exists" attribute | "true" | "false" | comparison
    comparison = attribute ( "=" | "==" | "!=" | "<" | "<=" | ">" | ">=" ) value
               | attribute "between" value "and" value
               | attribute "prefix" string
               | attribute "in" "(" value { "," value } ")"

Keywords are understood in any case. An attribute is a dotted path like `order.px`; any other name goes in backquotes.
A comparison with an attribute that is absent or of another type is false, except that `!=` asks only for "present and
not equal". `not` is plain negation: `not px > 5` also holds where there is no px.
"""

import math
import re
from collections.abc import Callable
from typing import NamedTuple, NoReturn, TypeVar

from unisono.errors import FormatError, MisuseError
from unisono.model.predicate.cost import FILTER_COST_MAX, Steps
from unisono.model.predicate.filter import EVERY_EVENT, NO_EVENT, Filter, conjunction, negation, only, union_of
from unisono.model.predicate.values import (
    NOTHING,
    PRESENT,
    Number,
    Values,
    above,
    below,
    between,
    check_number,
    check_string,
    point,
    prefixed,
    union_all,
)

T = TypeVar("T")
TEXT_CHARS_MAX = 65_536
DEPTH_MAX = 64
KEYWORDS = ("and", "or", "not", "exists", "between", "prefix", "in", "true", "false", "null")

_TOKEN = re.compile(
    r"""(?P<space>\s+)
    |(?P<number>[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?(?![\w.])|[+-]inf\b)
    |(?P<string>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")
    |(?P<quoted>`(?:[^`]|``)*`)
    |(?P<word>[^\W\d][\w-]*(?:\.[\w-]+)*)
    |(?P<mark><=|>=|!=|==|[=<>(),\[\]])""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "\\": "\\", "'": "'", '"': '"'}
_PLAIN_ATTRIBUTE = re.compile(r"[^\W\d][\w-]*(?:\.[\w-]+)*")
_COMPARISONS = ("=", "==", "!=", "<", "<=", ">", ">=")


class _Token(NamedTuple):
    kind: str
    text: str
    at: int


def parse(text: str, integers: frozenset[str] = frozenset(), cost_max: int = FILTER_COST_MAX) -> Filter:
    """`parse("px > 100 and sym = 'IBM'")`; raises FormatError with the column and what was expected there.

    Attributes named in `integers` are declared to hold whole numbers only, so that `n > 1` and `n >= 2` are the same.
    A text that takes more than `cost_max` steps to normalise is refused.
    """
    if len(text) > TEXT_CHARS_MAX:
        raise FormatError(f"column {TEXT_CHARS_MAX + 1}", f"a filter has at most {TEXT_CHARS_MAX} characters")
    return _Parser(text, integers, Steps(cost_max)).whole()


class _Parser:
    def __init__(self, text: str, integers: frozenset[str], steps: Steps) -> None:
        self._text = text
        self._integers = integers
        self._steps = steps
        self._tokens = self._split(text)
        self._counted(0, lambda: self._steps.take(len(self._tokens)))
        self._next = 0
        self._depth = 0

    def whole(self) -> Filter:
        found = self._either()
        if self._here.kind != "end":
            self._expected("'and', 'or' or the end of the filter")
        return found

    def _split(self, text: str) -> list[_Token]:
        tokens: list[_Token] = []
        at = 0
        while at < len(text):
            match = _TOKEN.match(text, at)
            if match is None:
                if text[at] in "'\"`":
                    self._fail(at, f"this {text[at]} is never closed")
                if text[at].isdigit():
                    self._fail(at, "a number ends where a letter begins: put the attribute's name in backquotes")
                self._fail(at, f"{text[at]!r} has no meaning in a filter")
            if match.lastgroup != "space":
                tokens.append(_Token(str(match.lastgroup), match.group(), at))
            at = match.end()
        tokens.append(_Token("end", "", len(text)))
        return tokens

    @property
    def _here(self) -> _Token:
        return self._tokens[self._next]

    def _is(self, *words: str) -> bool:
        return self._here.kind in ("word", "mark") and self._here.text.lower() in words

    def _take(self) -> _Token:
        token = self._here
        self._next += 1
        return token

    def _either(self) -> Filter:
        at, parts = self._here.at, [self._both()]
        while self._is("or"):
            at = self._take().at
            parts.append(self._both())
        if len(parts) == 1:
            return parts[0]
        boxes = [box for part in parts for box in part.boxes]
        return self._counted(at, lambda: union_of(boxes, self._steps))

    def _both(self) -> Filter:
        at, parts = self._here.at, [self._single()]
        while self._is("and"):
            at = self._take().at
            parts.append(self._single())
        return parts[0] if len(parts) == 1 else self._counted(at, lambda: conjunction(parts, self._steps))

    def _counted(self, at: int, work: Callable[[], T]) -> T:
        try:
            return work()
        except MisuseError as error:
            self._fail(at, str(error))

    def _single(self) -> Filter:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            self._fail(self._here.at, f"nested deeper than {DEPTH_MAX} levels")
        try:
            return self._single_unbounded()
        finally:
            self._depth -= 1

    def _single_unbounded(self) -> Filter:
        if self._is("not"):
            at, inner = self._take().at, self._single()
            return self._counted(at, lambda: negation(inner, self._steps))
        if self._is("("):
            self._take()
            found = self._either()
            if not self._is(")"):
                self._expected("'and', 'or' or ')'")
            self._take()
            return found
        if self._is("true", "false"):
            return EVERY_EVENT if self._take().text.lower() == "true" else NO_EVENT
        if self._is("exists"):
            self._take()
            bracket = self._is("(")
            if bracket:
                self._take()
            name = self._attribute("an attribute after 'exists'")
            if bracket and not self._is(")"):
                self._expected("')'")
            if bracket:
                self._take()
            return only(name, PRESENT)
        name = self._attribute("an attribute, 'not', 'exists' or '('")
        return only(name, self._comparison(name))

    def _attribute(self, what: str) -> str:
        token = self._here
        if token.kind == "quoted":
            return self._take().text[1:-1].replace("``", "`")
        if token.kind == "word" and token.text.lower() not in KEYWORDS:
            return self._take().text
        if token.kind in ("number", "string"):
            what += "; the attribute comes first, as in: px > 100"
        if token.kind == "word":
            what += "; an attribute of this name goes in backquotes"
        return self._expected(what)

    def _comparison(self, name: str) -> Values:
        if self._is(*_COMPARISONS):
            mark = self._take()
            at, value = self._here.at, self._value(f"a number, a string, true, false or null after {mark.text!r}")
            values = self._compared(mark.text, value, at)
        elif self._is("between"):
            self._take()
            low = self._ordered("a number or a string after 'between'")
            if not self._is("and"):
                self._expected("'and' between the two ends")
            self._take()
            at, high = self._here.at, self._ordered("a number or a string after 'and'")
            if isinstance(low, str) != isinstance(high, str):
                self._fail(at, "the two ends of 'between' must be two numbers or two strings")
            values = between(low, high)
        elif self._is("prefix"):
            self._take()
            if self._here.kind != "string":
                self._expected("a string after 'prefix'")
            values = prefixed(str(self._value("a string")))
        elif self._is("in"):
            self._take()
            values = self._listed()
        elif self._is("not"):
            self._expected(f"a comparison; write: not ({name} in (...)) or {name} != ...")
        else:
            self._expected(f"a comparison (= != < <= > >= between prefix in) after {name!r}")
        return values.on_integers() if name in self._integers else values

    def _compared(self, mark: str, value: Number | str | bool | None, at: int) -> Values:
        if mark in ("=", "=="):
            return point(value)
        if mark == "!=":
            return PRESENT.minus(point(value))
        if value is None or isinstance(value, bool):
            self._fail(at, f"true, false and null have no order: {mark!r} needs a number or a string")
        if mark[0] == "<":
            return below(value, inclusive=mark == "<=")
        return above(value, inclusive=mark == ">=")

    def _listed(self) -> Values:
        if not self._is("(", "["):
            self._expected("'(' after 'in'")
        closing = ")" if self._take().text == "(" else "]"
        values = [point(self._value("a value"))]
        while self._is(","):
            self._take()
            values.append(point(self._value("a value")))
        if not self._is(closing):
            self._expected(f"',' or {closing!r}")
        self._take()
        return union_all(values)

    def _ordered(self, what: str) -> Number | str:
        at, value = self._here.at, self._value(what)
        if value is None or isinstance(value, bool):
            self._fail(at, f"expected {what}; true, false and null have no order")
        return value

    def _value(self, what: str) -> Number | str | bool | None:
        token = self._here
        if token.kind == "string":
            self._take()
            return self._unescaped(token)
        if token.kind == "number" or (token.kind == "word" and token.text == "inf"):
            self._take()
            whole = token.text.lstrip("+-").isdigit()
            number = int(token.text) if whole and len(token.text) < 25 else float(token.text)
            try:
                return check_number(number)
            except MisuseError as error:
                self._fail(token.at, str(error))
        if self._is("true", "false", "null"):
            return {"true": True, "false": False, "null": None}[self._take().text.lower()]
        if token.kind == "word" and token.text.lower() not in KEYWORDS:
            what += f"; a string goes in quotes: '{token.text}'"
        return self._expected(what)

    def _unescaped(self, token: _Token) -> str:
        def letter(match: re.Match[str]) -> str:
            code = match[1] or match[2]
            if code is None and match[3] not in _ESCAPED:
                self._fail(token.at + 1 + match.start(), f"\\{match[3]} is not an escape; a backslash is written \\\\")
            if code is not None and int(code, 16) > 0x10FFFF:
                self._fail(token.at + 1 + match.start(), f"there is no letter U+{code.upper()}")
            return _ESCAPED[match[3]] if code is None else chr(int(code, 16))

        try:
            return check_string(_ESCAPE.sub(letter, token.text[1:-1]))
        except FormatError:
            raise
        except MisuseError as error:
            self._fail(token.at, str(error))

    def _expected(self, what: str) -> NoReturn:
        token = self._here
        self._fail(token.at, f"expected {what}; found {'the end' if token.kind == 'end' else repr(token.text)}")

    def _fail(self, at: int, problem: str) -> NoReturn:
        line = self._text[max(0, at - 60) : at + 40].replace("\n", " ").replace("\t", " ")
        raise FormatError(f"column {at + 1}", f"{problem}\n  {line}\n  {' ' * min(at, 60)}^")


def to_text(filter: Filter) -> str:
    """A filter in the language it was written in; `parse(to_text(f)) == f`."""
    if filter.is_empty:
        return "false"
    if filter.is_everything:
        return "true"
    boxes = [" and ".join(_side_text(_quoted(name), values) for name, values in box.sides) for box in filter.boxes]
    return boxes[0] if len(boxes) == 1 else " or ".join(f"({box})" for box in boxes)


def _quoted(name: str) -> str:
    plain = _PLAIN_ATTRIBUTE.fullmatch(name) is not None and name.lower() not in KEYWORDS
    return name if plain else "`" + name.replace("`", "``") + "`"


def _side_text(name: str, values: Values) -> str:
    if values == PRESENT:
        return f"exists {name}"
    if not values.contains([]):  # no arrays and objects: a plain list of what is allowed
        parts = _parts(name, values)
        return parts[0] if len(parts) == 1 else f"({' or '.join(parts)})"
    hole = PRESENT.minus(values)
    but = _parts(name, hole)
    if PRESENT.covers(values):
        if len(but) == 1 and but[0].startswith(f"{name} = "):
            return f"{name} != {but[0].removeprefix(f'{name} = ')}"
        return f"exists {name} and not ({' or '.join(but)})"
    return f"not ({' or '.join(but)})"


def _parts(name: str, values: Values) -> list[str]:
    points: list[str] = []
    parts: list[str] = []
    ends: tuple[tuple[Number, int] | None, ...] = (*values.numbers[1::2], None)
    for (low, after), high in zip(values.numbers[::2], ends):
        if high is not None and high == (low, 1) and not after:
            points.append(_number(low))
            continue
        bounds = [f"{name} {'>' if after else '>='} {_number(low)}"] if (low, after) != (-math.inf, 0) else []
        if high is not None:
            bounds.append(f"{name} {'<=' if high[1] else '<'} {_number(high[0])}")
        parts.append(f"({' and '.join(bounds)})" if len(bounds) == 2 else bounds[0] if bounds else f"{name} <= +inf")
    for start, end in zip(values.strings[::2], (*values.strings[1::2], None)):
        if end == start + "\0":
            points.append(_string(start))
        elif end is None:
            parts.append(f"{name} >= {_string(start)}")
        elif prefixed(start).strings == (start, end):
            parts.append(f"{name} prefix {_string(start)}")
        else:
            parts.append(f"({name} >= {_string(start)} and {name} < {_string(end)})")
    points += [word for word, value in (("false", False), ("true", True), ("null", None)) if values.contains(value)]
    if len(points) == 1:
        parts.insert(0, f"{name} = {points[0]}")
    elif points:
        parts.insert(0, f"{name} in ({', '.join(points)})")
    if values.minus(PRESENT) != NOTHING:
        parts.append(f"not exists {name}")
    return parts


def _number(value: Number) -> str:
    return ("+inf" if value > 0 else "-inf") if math.isinf(value) else repr(value)


def _string(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n").replace("\0", "\\0")
    return f"'{escaped}'"
