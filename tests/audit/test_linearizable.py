"""`linearizable`: yes to what one copy could have told, no to what none could, with the answer that shows it."""

import itertools
import json
from random import Random
from typing import Any

import pytest

from unisono.audit import JUDGES, Trace, Verdict
from unisono.audit.judges.linearizable import _step
from unisono.model.journal import Header, Journal, Record

Call = tuple[str, list[Any], Any, int, int]
"""Key, what is asked, what is told, when it begins and ends."""


def verdict(*calls: Call) -> Verdict | None:
    records: list[Record] = []
    for number, (key, asked, told, begin, end) in enumerate(calls):
        records.append(Record("call", begin, f"c{number}", event=f"o{number}", topic=key, note=json.dumps(asked)))
        if end:
            records.append(Record("answer", end, f"c{number}", event=f"o{number}", note=json.dumps(told)))
    Random(len(calls)).shuffle(records)  # rows may stand in any order, where they have times
    return JUDGES["linearizable"](Trace(Journal(Header(), records)))


def holds(*calls: Call) -> bool:
    found = verdict(*calls)
    assert found is not None
    assert found.judged
    return found.holds


def test_what_overlaps_may_be_in_either_order_and_what_does_not_may_not() -> None:
    write: Call = ("x", ["write", 1], None, 1, 10)
    assert holds(write, ("x", ["read"], 1, 5, 20))
    assert holds(write, ("x", ["read"], None, 5, 20))
    assert holds(write, ("x", ["read"], 1, 5, 8)), "the effect may come before the answer"
    assert not holds(write, ("x", ["read"], None, 11, 12))
    assert not holds(write, ("x", ["read"], 1, 2, 4), ("x", ["read"], None, 5, 6)), "seen once, it is there"


def test_keys_are_judged_one_by_one() -> None:
    assert holds(("x", ["write", 1], None, 1, 2), ("y", ["read"], None, 3, 4))
    found = verdict(("x", ["write", 1], None, 1, 2), ("x", ["read"], 7, 3, 4), ("y", ["read"], None, 3, 4))
    assert found is not None
    assert found.violations == 1
    assert found.witness == (
        "x: c1 was told 7 to read (o1); no order of the 2 calls begun by then gives that and all answers before it"
    )


def test_what_was_not_answered_may_have_happened_or_not() -> None:
    lost: Call = ("x", ["write", 1], None, 1, 0)
    assert holds(lost, ("x", ["read"], None, 2, 3), ("x", ["read"], 1, 4, 5))
    assert not holds(lost, ("x", ["read"], 1, 2, 3), ("x", ["read"], None, 4, 5))
    assert holds(("x", ["write", 1], "unknown", 1, 2), ("x", ["read"], None, 3, 4), ("x", ["read"], 1, 5, 6))
    assert not holds(("x", ["write", 1], "failed", 1, 2), ("x", ["read"], 1, 3, 4))


def test_only_one_of_two_takes_a_lock() -> None:
    take = ["cas", None, "mine"]
    assert holds(("lock", take, True, 1, 5), ("lock", take, False, 2, 6))
    assert not holds(("lock", take, True, 1, 5), ("lock", take, True, 2, 6))
    assert not holds(("lock", take, False, 1, 5), ("lock", take, False, 2, 6)), "somebody must have got it"


def test_what_cannot_be_read_does_not_hold() -> None:
    answered = Record("answer", 5, event="o", note="1")
    strange = Record("call", 1, event="o", topic="x", note='["increment"]')
    for records in ([answered], [strange], [Record("call", 1, event="o", topic="x", note="{")]):
        found = JUDGES["linearizable"](Trace(Journal(Header(), records)))
        assert found is not None
        assert not found.holds
    assert verdict() is None


def test_a_history_that_is_too_large_is_not_judged() -> None:
    found = verdict(*(("x", ["add", 1], "unknown", 1, 0) for _ in range(40)), ("x", ["read"], -1, 2, 3))
    assert found is not None
    assert not found.judged
    assert "judge a shorter time" in found.witness


@pytest.mark.parametrize("seed", range(40))
def test_it_says_what_trying_all_orders_says(seed: int) -> None:
    dice = Random(seed)
    calls: list[Call] = []
    for _ in range(5):
        asked = dice.choice([["read"], ["write", dice.randrange(3)], ["cas", dice.randrange(3), dice.randrange(3)]])
        begin = dice.randrange(1, 20)
        told = {"read": dice.choice([None, 0, 1, 2]), "write": None, "cas": dice.random() < 0.5}[str(asked[0])]
        calls.append(("x", asked, told, begin, begin + dice.randrange(1, 12)))
    assert holds(*calls) == any(
        gives_all_answers(order) for order in itertools.permutations(calls) if respects_time(order)
    )


def respects_time(order: tuple[Call, ...]) -> bool:
    return not any(later[4] < earlier[3] for earlier, later in itertools.combinations(order, 2))


def gives_all_answers(order: tuple[Call, ...]) -> bool:
    value: Any = None
    for _, asked, told, _, _ in order:
        value, said = _step(value, tuple(asked))
        if said != told:
            return False
    return True
