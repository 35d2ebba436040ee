"""`linearizable`: what callers were told of each key is what one copy of it would have told them, one call at a time.

A call has an effect at one moment between its `call` and its `answer` (Herlihy and Wing). So there must be an order of
the calls of a key that does not turn around two of which one ended before the other began, and that gives every answer.
Keys are judged one by one: a history is linearizable exactly if that of each key is. The search is that of Wing and
Gong, with Lowe's memory of what was tried; it is for small histories, and says so when one is too large.

`call`: `event` names it, `topic` is the key, `note` is JSON: `["read"]`, `["write", 5]`, `["add", 1]`, `["cas", 5, 6]`.
`answer`: the same event, `note` what the caller was told: a value (null: nobody has written), true or false of a `cas`,
the new value of an `add`; a `write` is told null. Without an answer, or with the note `"unknown"`, a call may have its
effect at any time after it began, or never; with `"failed"` it has none.
"""

from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import Struct

from unisono.audit.trace import Trace
from unisono.audit.verdict import Verdict, failed, nothing, passed

JUDGE = "linearizable"
TRIED_MAX = 50_000
"""Places of the search per key: more than a hundred calls, if not too many of them overlap."""
NEVER = 2**63


class _Call(Struct, frozen=True):
    name: str
    who: str
    asked: tuple[Any, ...]
    told: Any
    begin: int
    end: int
    is_sure: bool
    """It was answered."""


class _TooLarge(Exception):
    """The search has tried all it may."""


def judge_linearizable(trace: Trace) -> Verdict | None:
    """Violations: keys whose answers no order of the calls gives. None: there are no calls."""
    histories, broken = _histories(trace)
    if broken:
        return failed(JUDGE, len(broken), min(broken))
    if not histories:
        return None
    wrong: list[str] = []
    for key, calls in sorted(histories.items()):
        try:
            if not _has_order(calls):
                wrong.append(_witness(key, calls))
        except _TooLarge:
            return nothing(
                JUDGE, f"{len(calls)} calls of {key} have more orders than {TRIED_MAX}: judge a shorter time"
            )
    return failed(JUDGE, len(wrong), wrong[0]) if wrong else passed(JUDGE)


def _histories(trace: Trace) -> tuple[dict[str, list[_Call]], list[str]]:
    """The calls by key, and what cannot be read or was answered twice."""
    begun: dict[str, tuple[int, str, str, tuple[Any, ...]]] = {}
    answers: dict[str, tuple[int, Any]] = {}
    broken: list[str] = []
    for row, record in enumerate(trace.records):
        if record.kind not in ("call", "answer") or record.event is None:
            continue
        at = record.at_us if trace.is_timed else row
        try:
            said = msgspec.json.decode((record.note or "null").encode())
        except msgspec.DecodeError:
            broken.append(f"{record.kind} {record.event}: {record.note!r:.60} is no JSON")
            continue
        if record.kind == "answer":
            if record.event in answers:
                broken.append(f"{record.event} was answered twice")
            answers[record.event] = at, said
        elif not _is_operation(said):
            broken.append(f"call {record.event}: {record.note!r:.60} is none of read, write, add, cas")
        else:
            begun[record.event] = at, record.topic or "", record.who or "", tuple(said)
    broken += [f"{name} was answered and never called" for name in answers if name not in begun and not broken]
    histories: dict[str, list[_Call]] = {}
    for name, (begin, key, who, asked) in begun.items():
        end, told = answers.get(name, (NEVER, "unknown"))
        if told == "failed":
            continue
        is_sure = told != "unknown"
        call = _Call(name, who, asked, told, begin, end if is_sure else NEVER, is_sure)
        histories.setdefault(key, []).append(call)
    return histories, broken


def _is_operation(said: Any) -> bool:
    if not isinstance(said, list) or not said:
        return False
    match said:
        case ["read"] | ["write", _] | ["cas", _, _]:
            return True
        case ["add", number]:
            return isinstance(number, int | float)
        case _:
            return False


def _step(value: Any, asked: tuple[Any, ...]) -> tuple[Any, Any]:
    """The value after a call, and what it is told."""
    match asked:
        case ("write", new):
            return new, None
        case ("cas", old, new):
            return (new, True) if value == old else (value, False)
        case ("add", number):
            total = number + (value if isinstance(value, int | float) else 0)
            return total, total
        case _:
            return value, value


def _has_order(calls: list[_Call]) -> bool:
    """Depth first: next may be any call that began before all that are left have ended."""
    calls = sorted(calls, key=lambda call: (call.begin, call.end))
    owed = sum(1 << i for i, call in enumerate(calls) if call.is_sure)
    tried: set[tuple[int, bytes]] = set()
    left: list[tuple[int, Any]] = [(0, None)]
    while left:
        done, value = left.pop()
        if done & owed == owed:
            return True
        state = done, msgspec.json.encode(value)
        if state in tried:
            continue
        if len(tried) >= TRIED_MAX:
            raise _TooLarge
        tried.add(state)
        for i in _next(calls, done):
            after, told = _step(value, calls[i].asked)
            if not calls[i].is_sure or told == calls[i].told:
                left.append((done | 1 << i, after))
    return False


def _next(calls: list[_Call], done: int) -> Iterator[int]:
    first_end = min(call.end for i, call in enumerate(calls) if not done >> i & 1)
    return (i for i, call in enumerate(calls) if not done >> i & 1 and call.begin <= first_end)


def _witness(key: str, calls: list[_Call]) -> str:
    """The first answer that cannot be: with all before it there is an order, with it there is none."""
    answered = sorted((call for call in calls if call.is_sure), key=lambda call: call.end)
    for count in range(1, len(answered) + 1):
        last = answered[count - 1]
        known = {call.name for call in answered[:count]}
        begun = [
            call if call.name in known else msgspec.structs.replace(call, is_sure=False, end=NEVER)
            for call in calls
            if call.begin <= last.end
        ]
        if not _has_order(begun):
            asked = " ".join(map(str, last.asked))
            return (
                f"{key}: {last.who or 'somebody'} was told {last.told!r} to {asked} ({last.name}); no order of the "
                f"{len(begun)} calls begun by then gives that and all answers before it"
            )
    raise AssertionError("a history without an order has a first answer that cannot be")
