"""Values: which values one attribute may take, as a set that is closed under and, or, not.

The universe is numbers, strings, false, true, null, "something else" (arrays and objects count only as present) and
ABSENT. Numbers and strings are kept as increasing *cuts*: the set begins at the first cut, ends before the second,
begins again at the third; an odd number of cuts reaches to the top. So every set has exactly one spelling, and
equality of sets is equality of objects.

A number cut (v, 0) lies just before v and (v, 1) just after it. Numbers are treated as dense, so two sets that differ
only for integers stay different, unless the attribute is declared integer (`on_integers`). Strings are ordered by code
point and are not dense: nothing lies between "a" and "a\\0", so a string cut is simply a string.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final

from msgspec import Struct

from unisono.errors import MisuseError

Number = int | float
NumberCut = tuple[Number, int]

FALSE: Final = 1
TRUE: Final = 2
NULL: Final = 4
OTHER: Final = 8
ABSENT: Final = 16
PRESENT_KINDS: Final = FALSE | TRUE | NULL | OTHER
ALL_KINDS: Final = PRESENT_KINDS | ABSENT

_NUMBER_BOTTOM: Final[NumberCut] = (-math.inf, 0)
_NUMBER_TOP: Final[NumberCut] = (math.inf, 1)
_STRING_BOTTOM: Final = ""
_INTEGER_END: Final = 2**63  # constants travel in msgpack


class _Missing:
    """What `event.get(name, MISSING)` returns for an attribute the event does not carry."""

    def __repr__(self) -> str:
        return "MISSING"


MISSING: Final = _Missing()


class Values(Struct, frozen=True):
    """A set of values of one attribute."""

    numbers: tuple[NumberCut, ...] = ()
    strings: tuple[str, ...] = ()
    kinds: int = 0

    def contains(self, value: Any) -> bool:
        """Whether the set holds this value; `MISSING` stands for an absent attribute."""
        kind = type(value)
        if kind is float or kind is int:
            return bisect_right(self.numbers, (value, 0)) & 1 == 1
        if kind is str:
            return bisect_right(self.strings, value) & 1 == 1
        return self.kinds & _kind_of(value) != 0

    def __and__(self, other: "Values") -> "Values":
        return Values(
            _sweep(self.numbers, other.numbers, 2),
            _sweep(self.strings, other.strings, 2),
            self.kinds & other.kinds,
        )

    def __or__(self, other: "Values") -> "Values":
        return Values(
            _sweep(self.numbers, other.numbers, 1),
            _sweep(self.strings, other.strings, 1),
            self.kinds | other.kinds,
        )

    def __invert__(self) -> "Values":
        return Values(
            _flip(self.numbers, _NUMBER_BOTTOM),
            _flip(self.strings, _STRING_BOTTOM),
            ALL_KINDS & ~self.kinds,
        )

    def minus(self, other: "Values") -> "Values":
        return self & ~other

    def covers(self, other: "Values") -> bool:
        return self.may_cover(other) and (other & self) == other

    def may_cover(self, other: "Values") -> bool:
        """Whether a first look leaves it open; most pairs are settled by it, whatever their length."""
        return (
            other.kinds & ~self.kinds == 0
            and _begins_before(self.numbers, other.numbers)
            and _begins_before(self.strings, other.strings)
        )

    def overlaps(self, other: "Values") -> bool:
        return self.kinds & other.kinds != 0 or not (self & other).is_empty

    @property
    def weight(self) -> int:
        """What looking at all of it costs, in steps."""
        return 1 + len(self.numbers) + len(self.strings)

    @property
    def is_empty(self) -> bool:
        return not self.kinds and not self.numbers and not self.strings

    @property
    def is_everything(self) -> bool:
        return self == EVERYTHING

    def check(self) -> None:
        """Raises MisuseError unless the cuts increase and everything in them is a value."""
        for number, after in self.numbers:
            check_number(number)
            if after not in (0, 1):
                raise MisuseError(f"a cut lies before or after {number}, not at {after}")
        for text in self.strings:
            check_string(text)
        increasing = _increases(self.numbers) and _increases(self.strings)
        if not increasing or self.numbers[:1] == (_NUMBER_TOP,) or not 0 <= self.kinds <= ALL_KINDS:
            raise MisuseError("the bounds of a set of values increase, and its kinds are known")

    def sample(self) -> Any:
        """Some value of the set; raises LookupError if none is found, as in an interval too narrow for floats."""
        if self.strings:
            return self.strings[0]
        for (number, after), high in zip(self.numbers[::2], (*self.numbers[1::2], _NUMBER_TOP)):
            for tried in (number, math.nextafter(number, math.inf), high[0]) if after else (number,):
                if self.contains(tried):
                    return tried
        for kind, value in ((ABSENT, MISSING), (NULL, None), (FALSE, False), (TRUE, True), (OTHER, {})):
            if self.kinds & kind:
                return value
        raise LookupError("no value is easily found")

    def on_integers(self) -> "Values":
        """The smallest spelling for an attribute declared to hold integers only: (1, 2) is then empty."""
        return Values(_tightened(self.numbers), self.strings, self.kinds)


NOTHING: Final = Values()
EVERYTHING: Final = Values((_NUMBER_BOTTOM,), (_STRING_BOTTOM,), ALL_KINDS)
PRESENT: Final = Values((_NUMBER_BOTTOM,), (_STRING_BOTTOM,), PRESENT_KINDS)


def union_all(sets: Sequence[Values]) -> Values:
    """What lies in at least one of them; sorting, so that many cost little more than few."""
    if len(sets) == 1:
        return sets[0]
    kinds = 0
    for values in sets:
        kinds |= values.kinds
    return Values(_sweep_all([v.numbers for v in sets], 1), _sweep_all([v.strings for v in sets], 1), kinds)


def intersect_all(sets: Sequence[Values]) -> Values:
    """What lies in every one of them."""
    if len(sets) == 1:
        return sets[0]
    kinds, need = ALL_KINDS, len(sets)
    for values in sets:
        kinds &= values.kinds
    return Values(_sweep_all([v.numbers for v in sets], need), _sweep_all([v.strings for v in sets], need), kinds)


def point(value: object) -> Values:
    """Exactly this value."""
    if isinstance(value, str):
        return Values(strings=(check_string(value), value + "\0"))
    if isinstance(value, bool) or value is None:
        return Values(kinds=_kind_of(value))
    number = check_number(value)
    return _numbers((number, 0), (number, 1))


def below(value: Number | str, inclusive: bool) -> Values:
    """Everything of the same type before `value`, with it or without it."""
    if isinstance(value, str):
        end = check_string(value) + "\0" if inclusive else value
        return Values(strings=() if end == _STRING_BOTTOM else (_STRING_BOTTOM, end))
    return _numbers(_NUMBER_BOTTOM, (check_number(value), int(inclusive)))


def above(value: Number | str, inclusive: bool) -> Values:
    """Everything of the same type after `value`, with it or without it."""
    if isinstance(value, str):
        return Values(strings=(check_string(value) if inclusive else value + "\0",))
    return _numbers((check_number(value), int(not inclusive)), _NUMBER_TOP)


def between(low: Number | str, high: Number | str) -> Values:
    """Both ends included; empty if low lies after high or the types differ."""
    return above(low, inclusive=True) & below(high, inclusive=True)


def prefixed(text: str) -> Values:
    """Every string that begins with `text`."""
    end = _successor(check_string(text))
    return Values(strings=(text,) if end is None else (text, end))


def check_number(value: object) -> Number:
    """A constant of a filter, in its one spelling."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise MisuseError(f"{value!r} is not a number, a string, true, false or null")
    if value != value:
        raise MisuseError("NaN is not a value: it equals nothing, itself included")
    if isinstance(value, float):
        # One spelling per value: 1.0 and -0.0 become 1 and 0, so that equal sets also look and hash alike.
        return int(value) if abs(value) < _INTEGER_END and value.is_integer() else value
    if not -_INTEGER_END <= value < _INTEGER_END:
        raise MisuseError(f"{value} does not fit 64 bits: write it as {float(value)!r}")
    return value


def check_string(value: str) -> str:
    if not value.isascii() and any("\ud800" <= letter <= "\udfff" for letter in value):
        raise MisuseError(f"{value!r} holds half of a surrogate pair and is not text")
    return value


def _kind_of(value: object) -> int:
    if value is MISSING:
        return ABSENT
    if value is None:
        return NULL
    if isinstance(value, bool):
        return TRUE if value else FALSE
    return OTHER


def _numbers(low: NumberCut, high: NumberCut) -> Values:
    if not low < high:
        return NOTHING
    return Values(numbers=(low,) if high == _NUMBER_TOP else (low, high))


def _successor(text: str) -> str | None:
    """The least string after every string that begins with `text`."""
    while text:
        code = ord(text[-1])
        if code < 0x10FFFF:
            return text[:-1] + chr(0xE000 if code == 0xD7FF else code + 1)
        text = text[:-1]
    return None


def _flip(cuts: tuple[Any, ...], bottom: Any) -> tuple[Any, ...]:
    return cuts[1:] if cuts and cuts[0] == bottom else (bottom, *cuts)


def _sweep(a: tuple[Any, ...], b: tuple[Any, ...], need: int) -> tuple[Any, ...]:
    """Where at least `need` of the two sets hold: 1 is the union, 2 the intersection."""
    if a == b:
        return a
    if not a or not b:
        return () if need == 2 else a or b
    i = j = depth = 0
    cuts: list[Any] = []
    while i < len(a) or j < len(b):
        cut = a[i] if j == len(b) or (i < len(a) and a[i] <= b[j]) else b[j]
        inside = depth >= need
        if i < len(a) and a[i] == cut:
            depth += -1 if i & 1 else 1
            i += 1
        if j < len(b) and b[j] == cut:
            depth += -1 if j & 1 else 1
            j += 1
        if (depth >= need) != inside:
            cuts.append(cut)
    return tuple(cuts)


def _sweep_all(sets: list[tuple[Any, ...]], need: int) -> tuple[Any, ...]:
    """Where at least `need` of the sets hold."""
    changes: dict[Any, int] = {}
    for set_cuts in sets:
        for place, cut in enumerate(set_cuts):
            changes[cut] = changes.get(cut, 0) + (-1 if place & 1 else 1)
    depth = 0
    cuts: list[Any] = []
    for cut in sorted(changes):
        inside = depth >= need
        depth += changes[cut]
        if (depth >= need) != inside:
            cuts.append(cut)
    return tuple(cuts)


def _begins_before(mine: tuple[Any, ...], theirs: tuple[Any, ...]) -> bool:
    return not theirs or (bool(mine) and mine[0] <= theirs[0])


def _increases(cuts: tuple[Any, ...]) -> bool:
    return all(a < b for a, b in pairwise(cuts))


def _tightened(cuts: tuple[NumberCut, ...]) -> tuple[NumberCut, ...]:
    tight: list[NumberCut] = []
    for value, after in cuts:
        # Infinite cuts are kept: no integer lies there, but -inf spells "from the bottom".
        cut = (value, after) if math.isinf(value) else (math.floor(value) + 1 if after else math.ceil(value), 0)
        if tight and tight[-1] == cut:
            tight.pop()  # an interval without integers, or a hole without integers
        else:
            tight.append(cut)
    return tuple(tight)
