"""Random filters as text, with an oracle that knows nothing of boxes, over every edge value of the matching spec."""

import math
import random
from collections.abc import Callable, Mapping

from unisono.model.predicate import MISSING

Event = Mapping[str, object]
Oracle = Callable[[Event], bool]

NUMBERS: list[int | float] = [
    0, -0.0, 1, 1.5, 2, -1, 3, 2**53 - 1, 2**53, 2**53 + 1, float(2**53), 2**63 - 1, 1e300, math.inf, -math.inf, 5e-324,
]  # fmt: skip
STRINGS = [
    "", "a", "ab", "abc", "ac", "b", "\0", "a\0", "\ud7ff", "\ue000", "\U0010ffff", "\U0010ffff\U0010ffff",
    "a\U0010ffff", "1", "true", "it's", "back\\slash", "\n",
]  # fmt: skip
SCALARS: list[object] = [*NUMBERS, *STRINGS, True, False, None]
VALUES: list[object] = [*SCALARS, [], [1], {"x": 1}, MISSING]


def event(**attributes: object) -> dict[str, object]:
    return {name: value for name, value in attributes.items() if value is not MISSING}


def random_event(dice: random.Random, names: str) -> dict[str, object]:
    return event(**{name: dice.choice(VALUES) for name in names})


def literal(value: object) -> str:
    if isinstance(value, str):
        return "'" + value.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n").replace("\0", "\\0") + "'"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, float) and math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return repr(value)


def _same_type(a: object, b: object) -> bool:
    def kind(value: object) -> str:
        if isinstance(value, bool) or value is None:
            return repr(value)
        return "number" if isinstance(value, int | float) else type(value).__name__

    return kind(a) == kind(b)


def _equal(a: object, b: object) -> bool:
    return _same_type(a, b) and a == b


def leaf(dice: random.Random, names: str) -> tuple[str, Oracle]:
    """One comparison, spelt, and what section 1 of the spec says it means."""
    name = dice.choice(names)
    kind = dice.choice(["=", "!=", "<", "<=", ">", ">=", "between", "prefix", "in", "exists"])
    if kind == "exists":
        return f"exists {name}", lambda e: name in e
    if kind == "prefix":
        start = dice.choice(STRINGS)
        return f"{name} prefix {literal(start)}", lambda e: isinstance(v := e.get(name), str) and v.startswith(start)
    if kind == "in":
        members = [dice.choice(SCALARS) for _ in range(dice.randint(1, 4))]
        listed = ", ".join(map(literal, members))
        return f"{name} in ({listed})", lambda e: name in e and any(_equal(e[name], m) for m in members)
    if kind in ("=", "!="):
        value = dice.choice(SCALARS)
        if kind == "=":
            return f"{name} = {literal(value)}", lambda e: name in e and _equal(e[name], value)
        return f"{name} != {literal(value)}", lambda e: name in e and not _equal(e[name], value)
    pool: list[object] = [*dice.choice([NUMBERS, STRINGS])]
    low, high = dice.choice(pool), dice.choice(pool)
    if kind == "between":
        text = f"{name} between {literal(low)} and {literal(high)}"
        return text, lambda e: name in e and _same_type(e[name], low) and low <= e[name] <= high  # type: ignore[operator]
    compare: dict[str, Callable[[object, object], bool]] = {
        "<": lambda a, b: a < b,  # type: ignore[operator]
        "<=": lambda a, b: a <= b,  # type: ignore[operator]
        ">": lambda a, b: a > b,  # type: ignore[operator]
        ">=": lambda a, b: a >= b,  # type: ignore[operator]
    }
    test = compare[kind]
    return f"{name} {kind} {literal(low)}", lambda e: name in e and _same_type(e[name], low) and test(e[name], low)


def expression(dice: random.Random, names: str, depth: int) -> tuple[str, Oracle]:
    """A random filter of and, or, not over leaves."""
    if depth == 0 or dice.random() < 0.2:
        return leaf(dice, names)
    a_text, a = expression(dice, names, depth - 1)
    match dice.choice(["and", "and", "or", "not"]):
        case "not":
            return f"not ({a_text})", lambda e: not a(e)
        case "and":
            b_text, b = expression(dice, names, depth - 1)
            return f"({a_text}) and ({b_text})", lambda e: a(e) and b(e)
        case _:
            b_text, b = expression(dice, names, depth - 1)
            return f"({a_text}) or ({b_text})", lambda e: a(e) or b(e)


def conjunction(dice: random.Random, names: str) -> str:
    """What people mostly subscribe with."""
    return " and ".join(leaf(dice, names)[0] for _ in range(dice.randint(1, 4)))
