"""Operations whose order is not known yet, own ones and foreseen ones of others, and what becomes of them when it is.

They are applied in the order in which they came, after the stable state, each after a savepoint of its own. When
the order says what comes next and it is the first of them, it is confirmed where it stands. When it is something else,
all of them are taken back in one step, it is applied, and they are done again: their answers may change, and whoever
waits is told.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice, takewhile
from time import perf_counter

from msgspec import Struct

from unisono.errors import MisuseError
from unisono.replicas.operation import OperationName, SqlAnswer, SqlOperation
from unisono.replicas.store import ReplicaStore

Answered = tuple[SqlOperation, SqlAnswer]


class Settled(Struct, frozen=True):
    """What a part of the order has brought: stable answers, and operations with another tentative answer."""

    stable: list[Answered]
    changed: list[Answered]


class RollbackCounts(Struct):
    """The three numbers that the thesis counts as one, over `arrivals`: operations that the order has brought."""

    arrivals: int = 0
    with_undo: int = 0
    """Arrivals for which others had to be taken back."""
    undone: int = 0
    """Tentative operations that were taken back at least once."""
    undos: int = 0
    """How often any of them was."""
    foreseen_undos: int = 0
    """Of these, how often one that another replica has made."""
    repair_s: float = 0.0
    """How long the database was busy with taking back and doing again."""


class TentativeTail:
    """Operations without an order, as they came; as many as `tail_max` are applied."""

    def __init__(self, database: ReplicaStore, tail_max: int) -> None:
        self._database = database
        self._tail_max = tail_max
        self._waiting: list[SqlOperation] = []
        self._answers: dict[OperationName, SqlAnswer] = {}  # of the first of them, those that are applied
        self._told: dict[OperationName, SqlAnswer] = {}  # of those that are held back
        self._undone: set[OperationName] = set()
        self._foreseen: dict[OperationName, bool] = {}  # of others -> it was there when we last looked
        self.counts = RollbackCounts()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, operation: SqlOperation, steps_max: int) -> SqlAnswer | None:
        """The tentative answer; None while it waits, and all that come after it: too many are applied already, or it
        would keep readers out. After a MisuseError it is not there."""
        if len(self._answers) < len(self._waiting) or len(self._answers) >= self._tail_max:
            self._waiting.append(operation)
            return None
        try:
            answer = self._apply(operation, steps_max)
        except MisuseError:
            if not self._database.in_transaction:  # SQLite ends a transaction that it had to interrupt
                before, self._answers = self._answers, {}
                self._database.begin()
                self._do_again(before)
            self._rest()
            raise
        self._waiting.append(operation)
        if self._database.keeps_readers_out(operation):
            self._database.undo(_mark(len(self._answers) - 1))
            del self._answers[operation.name]
            self._rest()
            return None
        return answer

    def foresee(self, operations: Sequence[SqlOperation]) -> None:
        """Others have published these: they are applied after what is there, unless their order was known first."""
        known = {operation.name for operation in self._waiting}
        for operation in operations:
            if len(known) < self._tail_max and operation.name not in known and not self._database.has_done(operation):
                known.add(operation.name)
                self._foreseen[operation.name] = False
                self.add(operation, steps_max=0)

    def forget(self) -> list[Answered]:
        """What was foreseen before the last time, and has no order still, may never have one. What changes by that."""
        old = [name for name, was_there in self._foreseen.items() if was_there]
        self._foreseen = dict.fromkeys(self._foreseen, True)
        return self.drop(*old) if old else []

    @property
    def foreseen(self) -> int:
        return len(self._foreseen)

    @property
    def applied(self) -> int:
        return len(self._answers)

    def hold(self) -> None:
        """Their order is long in coming: all are taken back until something is settled. Their answers stay as told."""
        self._told |= self._take_back(0, counts=True)
        self._rest()

    def drop(self, *names: OperationName) -> list[Answered]:
        """Operations will not come: the others are done again. Those whose answer is another one now."""
        before = self._take_back(0, counts=False)
        self._leave(names)
        changed = self._do_again(before)
        self._rest()
        return changed

    def settle(self, arrived: Sequence[SqlOperation], position: str) -> Settled:
        """Follows the order through what has `arrived`, up to `position`; it is durable when this returns."""
        fresh = self._fresh(arrived)
        self.counts.arrivals += len(fresh)
        applied = [operation.name for operation in self._waiting[: len(self._answers)]]
        names = [operation.name for operation in fresh]
        is_repair = False
        if applied[: len(names)] == names:
            stable = [(operation, self._answers.pop(operation.name)) for operation in fresh]
            before = self._take_back(len(names), counts=False)
        else:
            is_repair = bool(self._answers)
            with self._counted(is_repair):
                before = self._take_back(0, counts=True)
            stable = [(operation, self._database.run(operation)) for operation in fresh]
            if before:
                self.counts.with_undo += sum(name not in before for name in names)
        self._leave(names)
        self._database.commit(position, names, self._database.count + len(arrived))
        with self._counted(is_repair):
            return Settled(stable, self._do_again(before))

    @contextmanager
    def _counted(self, is_repair: bool) -> Iterator[None]:
        begun = perf_counter()
        yield
        self.counts.repair_s += (perf_counter() - begun) * is_repair

    def _fresh(self, arrived: Sequence[SqlOperation]) -> list[SqlOperation]:
        """Without those that had their effect already: what was published twice comes twice."""
        fresh: dict[OperationName, SqlOperation] = {}
        for operation in arrived:
            if not self._database.has_done(operation):
                fresh.setdefault(operation.name, operation)
        return list(fresh.values())

    def _leave(self, names: Sequence[OperationName]) -> None:
        gone = set(names)
        self._waiting = [operation for operation in self._waiting if operation.name not in gone]
        for name in names:
            self._foreseen.pop(name, None)

    def _rest(self) -> None:
        if not self._answers:
            self._database.rest()

    def _apply(self, operation: SqlOperation, steps_max: int = 0) -> SqlAnswer:
        answer = self._database.run(operation, steps_max, _mark(len(self._answers)))
        self._answers[operation.name] = answer
        return answer

    def _take_back(self, kept: int, counts: bool) -> dict[OperationName, SqlAnswer]:
        """All that is applied but the first `kept`. What their answers were."""
        before, self._answers = self._answers, {}
        if before:
            self._database.undo(_mark(kept))
        if before and counts:
            self.counts.undos += len(before)
            self.counts.foreseen_undos += sum(name in self._foreseen for name in before)
            self.counts.undone += len(before.keys() - self._undone)
            self._undone |= before.keys()
        return before

    def _do_again(self, before: dict[OperationName, SqlAnswer]) -> list[Answered]:
        """As many as fit. Those whose answer is new, or another one than before."""
        first = takewhile(lambda operation: not self._database.keeps_readers_out(operation), self._waiting)
        done = [(operation, self._apply(operation)) for operation in islice(first, self._tail_max)]
        self._undone &= {operation.name for operation in self._waiting}
        told, self._told = self._told | before, {}
        self._told = {operation.name: told[operation.name] for operation in self._waiting if operation.name in told}
        return [(operation, answer) for operation, answer in done if told.get(operation.name) != answer]


def _mark(index: int) -> str:
    """Before the operation that is applied in this place."""
    return f"tentative_{index}"
