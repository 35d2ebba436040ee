"""Messages of every kind there is, with values from the edges of their types, as a client may say them."""

from random import Random
from typing import Any

import msgspec.inspect as types

from tests.runtime.hostile.world import HUB, ME

WORDS = ("", ME, f"{ME}/1", "trades", HUB, "victim", "x" * 300, "trades.*", "../x", "é\x00/", "a b")
INTEGERS = (0, 1, 2, 3, 100)
CLAIMS = ("client", "publisher", "source", "sid", "node")
"""Fields that say who speaks: a lie there ends the connection, and nothing of the rest is looked at."""
DEEP = 6


def kinds_in(union: Any) -> list[types.StructType]:
    """The kinds of messages of a union."""
    found = types.type_info(union)
    assert isinstance(found, types.UnionType)
    return [each for each in found.types if isinstance(each, types.StructType)]


class Inventor:
    """Makes up messages."""

    def __init__(self, seed: int, topics: list[int]) -> None:
        """`topics`: numbers of topics that there are."""
        self.dice, self._topics = Random(seed), topics

    def message(self, kind: types.StructType) -> Any:
        """One of this kind, as it travels."""
        return self._struct(kind, 0)

    def _make(self, kind: types.Type, depth: int) -> Any:
        dice = self.dice
        match kind:
            case types.IntType():
                return self._integer(kind)
            case types.StrType():
                return dice.choice(WORDS)
            case types.BytesType():
                return dice.choice((b"", b"x", b"\xff" * 20))
            case types.FloatType():
                return dice.choice((0.0, -1.0, 0.5, 1e308, float("nan"), float("inf")))
            case types.BoolType():
                return dice.random() < 0.5
            case types.NoneType():
                return None
            case types.VarTupleType() | types.ListType():
                many = dice.choice((0, 1, 1, 2, 3, 30 if depth < 3 else 2)) if depth < DEEP else 0
                return [self._make(kind.item_type, depth + 1) for _ in range(many)]
            case types.TupleType():
                return [self._make(each, depth + 1) for each in kind.item_types]
            case types.NamedTupleType():
                return [self._make(field.type, depth + 1) for field in kind.fields]
            case types.DictType():
                pairs = range(dice.randint(0, 2))
                return {self._make(kind.key_type, depth + 1): self._make(kind.value_type, depth + 1) for _ in pairs}
            case types.UnionType():
                return self._make(dice.choice(kind.types), depth + 1)
            case types.LiteralType():
                return dice.choice(kind.values)
            case types.AnyType():
                return dice.choice((None, 1, "x", [1, [2]], {"a": float("nan")}))
            case types.StructType():
                return self._struct(kind, depth)
            case _:
                raise TypeError(f"no message has a {kind}")

    def _integer(self, kind: types.IntType) -> int:
        least = kind.ge if kind.ge is not None else -(2**63)
        most = kind.le if kind.le is not None else (kind.lt or 2**63) - 1
        usual = [number for number in (*INTEGERS, *self._topics) if least <= number <= most]
        return self.dice.choice([least, least + 1, most - 1, most, *usual, *usual])

    def _struct(self, kind: types.StructType, depth: int) -> Any:
        values: dict[str, Any] = {}
        for field in kind.fields:
            if field.required or self.dice.random() < 0.6:
                values[field.encode_name] = self._make(field.type, depth + 1)
            elif kind.array_like:
                break  # what follows has its default, too
            if depth < 2 and field.name in CLAIMS and isinstance(values.get(field.encode_name), str):
                values[field.encode_name] = self.dice.choice((ME, f"{ME}/1", f"{ME}/2"))
        if kind.array_like:
            return [*([kind.tag] if kind.tag is not None else []), *values.values()]
        return {kind.tag_field: kind.tag, **values} if kind.tag_field is not None else values
