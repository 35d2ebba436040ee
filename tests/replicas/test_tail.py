"""Own operations before their order is known: whatever comes first, the file holds the agreed prefix and nothing else,
and the answers are those of a replay. The oracle is a fresh database that runs the same operations in their order."""

import random
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from unisono.replicas.opening import open_state, open_store
from unisono.replicas.operation import SqlOperation, SqlStatement
from unisono.replicas.sqlite import SqliteDatabase
from unisono.replicas.state import hash_of
from unisono.replicas.store import ReplicaStore
from unisono.replicas.tail import TentativeTail

SCHEMA = (
    "CREATE TABLE parent(id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT UNIQUE, n INTEGER CHECK (n < 50))",
    "CREATE TABLE child(id INTEGER PRIMARY KEY, of INTEGER REFERENCES parent(id) ON DELETE CASCADE, v REAL)",
    "CREATE TABLE pair(a TEXT, b TEXT, PRIMARY KEY (a, b)) WITHOUT ROWID",
    "CREATE TABLE log(text)",
    "CREATE TRIGGER added AFTER INSERT ON parent BEGIN INSERT INTO log VALUES ('+' || new.name); END",
    "CREATE TRIGGER gone AFTER DELETE ON child BEGIN INSERT INTO log VALUES ('-' || old.id); END",
    "CREATE TRIGGER counted AFTER INSERT ON parent BEGIN INSERT INTO log SELECT count(*) || new.id FROM log; END",
)


POSTGRES_SCHEMA = (
    "CREATE TABLE parent(id int PRIMARY KEY, name text UNIQUE, n int CHECK (n < 50))",
    "CREATE TABLE child(id int PRIMARY KEY, of_ int REFERENCES parent(id) ON DELETE CASCADE, v float8)",
    "CREATE TABLE pair(a text, b text, PRIMARY KEY (a, b))",
    "CREATE TABLE log(text text)",
    """CREATE FUNCTION added() RETURNS trigger LANGUAGE plpgsql AS
       'BEGIN INSERT INTO log VALUES (''+'' || NEW.name); RETURN NEW; END'""",
    "CREATE TRIGGER added AFTER INSERT ON parent FOR EACH ROW EXECUTE FUNCTION added()",
)


def statement_of(dice: random.Random) -> SqlStatement:
    name, number = dice.choice("abcdef"), dice.randrange(9)
    return dice.choice(
        [
            SqlStatement("INSERT INTO parent(name, n) VALUES (?, ?)", (name, number)),
            SqlStatement("INSERT OR REPLACE INTO parent(name, n) VALUES (?, ?) RETURNING id", (name, number)),
            SqlStatement("UPDATE parent SET n = n * 2 + ? WHERE name >= ?", (number, name)),
            SqlStatement("DELETE FROM parent WHERE name = ?", (name,)),
            SqlStatement("INSERT INTO child(of, v) SELECT max(id), ? FROM parent", (number / 7,)),
            SqlStatement("INSERT INTO child(of, v) VALUES (?, 1.5)", (number,)),
            SqlStatement("INSERT OR IGNORE INTO pair VALUES (?, ?)", (name, str(number))),
            SqlStatement("DELETE FROM pair WHERE a < ?", (name,)),
            SqlStatement(f"CREATE TABLE IF NOT EXISTS extra_{name}(x DEFAULT {number})"),
            SqlStatement(f"DROP TABLE IF EXISTS extra_{name}"),
            SqlStatement(f"INSERT INTO extra_{name} DEFAULT VALUES"),
            SqlStatement("SELECT count(*), sum(n) FROM parent"),
            SqlStatement("INSERT INTO log SELECT group_concat(v) || sum(v / 3.0) FROM child GROUP BY of"),
            SqlStatement("INSERT INTO log SELECT rowid || name FROM sqlite_master"),
            SqlStatement("DELETE FROM log WHERE rowid % 7 > ?", (number,)),
            SqlStatement("UPDATE parent SET id = id + 10 WHERE n < ? RETURNING *", (number,)),
            SqlStatement("UPDATE child SET v = p.n FROM parent p WHERE p.n >= child.of"),
            SqlStatement("UPDATE sqlite_sequence SET seq = seq + ?", (number,)),
            SqlStatement("INSERT INTO child(id, v) VALUES (9223372036854775807 - ?, 1)", (number,)),
            SqlStatement(f"CREATE INDEX IF NOT EXISTS at_{name} ON child(v, of)"),
            SqlStatement(f"DROP INDEX IF EXISTS at_{name}"),
            SqlStatement(
                f"CREATE TRIGGER IF NOT EXISTS by_{name} AFTER INSERT ON child "
                f"BEGIN INSERT INTO log SELECT '{name}' || count(*) FROM log; END"
            ),
            SqlStatement(f"DROP TRIGGER IF EXISTS by_{name}"),
        ]
    )


def postgres_statement_of(dice: random.Random) -> SqlStatement:
    name, number = dice.choice("abcdef"), dice.randrange(9)
    return dice.choice(
        [
            SqlStatement("INSERT INTO parent VALUES ($1, $2, $3)", (number, name, number)),
            SqlStatement("INSERT INTO parent SELECT max(id) + 1, $1, 3 FROM parent RETURNING id", (name,)),
            SqlStatement(
                "INSERT INTO parent VALUES ($1, $2, 1) ON CONFLICT (name) DO UPDATE SET n = parent.n + 7",
                (number, name),
            ),
            SqlStatement("UPDATE parent SET n = n * 2 + $1 WHERE name >= $2", (number, name)),
            SqlStatement("UPDATE parent SET name = $1 WHERE id = $2", (name, number)),
            SqlStatement("DELETE FROM parent WHERE name = $1 RETURNING id, n", (name,)),
            SqlStatement("INSERT INTO child SELECT $1::int, max(id), $2::float8 FROM parent", (number, number / 7)),
            SqlStatement("INSERT INTO pair VALUES ($1, $2) ON CONFLICT DO NOTHING", (name, str(number))),
            SqlStatement("DELETE FROM pair WHERE a < $1", (name,)),
            SqlStatement(f"CREATE TABLE IF NOT EXISTS extra_{name}(x int DEFAULT {number})"),
            SqlStatement(f"DROP TABLE IF EXISTS extra_{name}"),
            SqlStatement(f"INSERT INTO extra_{name} DEFAULT VALUES"),
            SqlStatement("SELECT count(*), sum(n), string_agg(name, '' ORDER BY name) FROM parent"),
        ]
    )


@dataclass
class Engine:
    """How to make databases of one kind, what to write into them, and how somebody else sees them."""

    open: Callable[[str], ReplicaStore]
    seen: Callable[[str], str]
    schema: tuple[str, ...]
    statement: Callable[[random.Random], SqlStatement]

    def operation(self, dice: random.Random, client: str, number: int) -> SqlOperation:
        return SqlOperation(client, number, tuple(self.statement(dice) for _ in range(dice.randint(1, 4))))


def sqlite_in(base: Path) -> Engine:
    def see(name: str) -> str:
        with sqlite3.connect(base / f"{name}.db", isolation_level=None) as other:
            return hash_of(other)

    return Engine(lambda name: open_store(base / f"{name}.db", {"topics": "t"}), see, SCHEMA, statement_of)


def postgres_with(fresh: Callable[[], str]) -> Engine:
    urls: dict[str, str] = {}

    def see(name: str) -> str:
        with closing(open_state(urls[name])) as state:
            return state.hash()

    def make(name: str) -> ReplicaStore:
        return open_store(urls.setdefault(name, fresh()), {"topics": "t"})

    return Engine(make, see, POSTGRES_SCHEMA, postgres_statement_of)


class Oracle:
    """A replay, one operation after the other."""

    def __init__(self, database: ReplicaStore) -> None:
        self._database = database
        self._count = 0
        self.answers: dict[tuple[str, int], object] = {}

    def run(self, operation: SqlOperation) -> None:
        if operation.name not in self.answers:
            self.answers[operation.name] = self._database.run(operation)
            self._count += 1
            self._database.commit("", [operation.name], self._count)

    def hash(self) -> str:
        return self._database.hash()

    def close(self) -> None:
        self._database.close()


def play(seed: int, engine: Engine, steps: int) -> None:
    """Three clients; the order mixes what they have made, some of it twice, and never brings what was dropped. Of the
    third one everything is heard before its order is known."""
    dice = random.Random(seed)
    oracle = Oracle(engine.open("oracle"))
    database = engine.open("a")
    tail = TentativeTail(database, dice.choice([2, 5, 1000]))
    begin = SqlOperation("other", 1, tuple(SqlStatement(sql) for sql in engine.schema))
    oracle.run(begin)
    tail.settle([begin], "p0")
    made: list[SqlOperation] = []
    past: list[SqlOperation] = []
    foreseen: list[SqlOperation] = []
    own, others, early, settled = 0, 1, 0, 0
    tentative: dict[tuple[str, int], object] = {}
    for step in range(steps):
        what = dice.random()
        if what < 0.5:
            own += 1
            operation = engine.operation(dice, "me", own)
            made.append(operation)
            answer = tail.add(operation, 0)
            if answer is not None:
                tentative[operation.name] = answer
        elif what < 0.6 and made:
            gone = made.pop(dice.randrange(len(made)))
            tentative.update((operation.name, answer) for operation, answer in tail.drop(gone.name))
            tentative.pop(gone.name, None)
        elif what < 0.65:
            tail.hold()
        elif what < 0.7:
            early += 1
            foreseen.append(engine.operation(dice, "early", early))
            tail.foresee([*past[-1:], *made[-1:], foreseen[-1], *foreseen[:1]])
        elif what < 0.72:
            tentative.update((operation.name, answer) for operation, answer in tail.forget())
        elif what < 0.75:  # what is not stable comes again
            database.close()
            database = engine.open("a")
            tail = TentativeTail(database, dice.choice([2, 5, 1000]))
            for operation in made:
                tail.add(operation, 0)
        else:
            part: list[SqlOperation] = []
            for _ in range(dice.randint(0, 4)):
                if foreseen and dice.random() < 0.3:
                    part.append(foreseen.pop(dice.randrange(len(foreseen))))
                elif made and dice.random() < 0.6:
                    part.append(made.pop(0 if dice.random() < 0.8 else dice.randrange(len(made))))
                else:
                    others += 1
                    part.append(engine.operation(dice, "other", others))
                known = part + past
                if known and dice.random() < 0.2:
                    part.append(dice.choice(known))
            for operation in part:
                oracle.run(operation)
            result = tail.settle(part, f"p{step}")
            settled += len(part)
            fresh = {operation.name for operation in part} - {operation.name for operation in past}
            past += [operation for operation in part if operation.name in fresh]
            assert {operation.name: answer for operation, answer in result.stable} == {
                name: oracle.answers[name] for name in fresh
            }, f"seed {seed}, step {step}: a stable answer is not that of a replay"
            tentative.update((operation.name, answer) for operation, answer in result.changed)
            assert database.count == settled + 1
        assert engine.seen("a") == oracle.hash(), f"seed {seed}, step {step}: the database is no agreed prefix"
    database.close()
    again = engine.open("a")
    assert again.hash() == oracle.hash()
    again.close()
    oracle.close()


@pytest.mark.parametrize("seed", range(12))
def test_the_file_is_the_agreed_prefix_at_every_step(tmp_path: Path, seed: int) -> None:
    play(seed, sqlite_in(tmp_path), steps=60)


@pytest.mark.campaign
def test_the_file_is_the_agreed_prefix_in_a_thousand_runs(tmp_path: Path) -> None:
    for seed in range(1000):
        base = tmp_path / str(seed)
        base.mkdir()
        play(seed, sqlite_in(base), steps=80)


@pytest.mark.parametrize("seed", range(2))
def test_what_postgres_has_committed_is_the_agreed_prefix_at_every_step(fresh: Callable[[], str], seed: int) -> None:
    play(seed, postgres_with(fresh), steps=25)


@pytest.mark.campaign
def test_what_postgres_has_committed_is_the_agreed_prefix_in_a_hundred_runs(fresh: Callable[[], str]) -> None:
    for seed in range(100):
        play(seed, postgres_with(fresh), steps=60)


def test_the_example_of_the_thesis_counts_what_it_says(tmp_path: Path) -> None:
    """R1: the thesis' example counts arrivals that make others roll back, its definition operations that were. Ours are
    tentative; what others have made before them comes: each takes them back."""
    database = SqliteDatabase(tmp_path / "a.db", {"topics": "t"})
    tail = TentativeTail(database, 1000)
    tail.settle([SqlOperation("other", 1, (SqlStatement("CREATE TABLE t(x)"),))], "p1")
    for number in (1, 2, 3):
        tail.add(SqlOperation("me", number, (SqlStatement("INSERT INTO t VALUES (?)", (number,)),)), 0)
    tail.settle([SqlOperation("other", 2, (SqlStatement("INSERT INTO t VALUES (20)"),))], "p2")
    tail.settle([SqlOperation("other", 3, (SqlStatement("INSERT INTO t VALUES (30)"),))], "p3")
    counts = tail.counts
    assert (counts.arrivals, counts.with_undo, counts.undone, counts.undos) == (3, 2, 3, 6)
    assert counts.foreseen_undos == 0, "all of them are the origin's own"
    assert counts.repair_s > 0
    database.close()


def test_what_was_made_is_confirmed_where_it_stands(tmp_path: Path) -> None:
    database = SqliteDatabase(tmp_path / "a.db", {"topics": "t"})
    tail = TentativeTail(database, 1000)
    mine = [SqlOperation("me", 1, (SqlStatement("CREATE TABLE t(x)"),))]
    mine += [SqlOperation("me", n, (SqlStatement("INSERT INTO t VALUES (?)", (n,)),)) for n in (2, 3)]
    for operation in mine:
        tail.add(operation, 0)
    assert [answer.error for _, answer in tail.settle(mine[:2], "p1").stable] == [None, None]
    assert (tail.counts.with_undo, tail.counts.undos) == (0, 0)
    assert database.read("SELECT x FROM t", ()).rows == ((2,),)
    assert database.read("SELECT x FROM t", (), tentative=True).rows == ((2,), (3,))
    database.close()


def test_an_answer_that_is_held_and_comes_true_is_not_told_again(tmp_path: Path) -> None:
    database = SqliteDatabase(tmp_path / "a.db", {"topics": "t"})
    tail = TentativeTail(database, 1000)
    texts = (
        "CREATE TABLE t(x)",
        "INSERT INTO t VALUES (2) RETURNING x",
        "INSERT INTO t SELECT max(x) + 1 FROM t RETURNING x",
    )
    mine = [SqlOperation("me", number, (SqlStatement(text),)) for number, text in enumerate(texts, 1)]
    for operation in mine:
        tail.add(operation, 0)
    tail.hold()
    assert (tail.applied, len(tail)) == (0, 3)
    assert tail.settle(mine[:1], "p1").changed == [], "they are applied again, and say what they said"
    tail.hold()
    other = SqlOperation("other", 1, (SqlStatement("INSERT INTO t VALUES (7)"),))
    changed = tail.settle([other], "p2").changed
    assert [(operation.number, answer.rows) for operation, answer in changed] == [(3, ((8,),))]
    database.close()


def test_what_was_foreseen_is_tentative_until_its_order_is_known_or_never_comes(tmp_path: Path) -> None:
    def rows(tentative: bool) -> list[object]:
        return [row[0] for row in database.read("SELECT x FROM t", (), tentative).rows]

    def insert(client: str, number: int) -> SqlOperation:
        return SqlOperation(client, number, (SqlStatement("INSERT INTO t VALUES (?)", (f"{client} {number}",)),))

    database = SqliteDatabase(tmp_path / "a.db", {"topics": "t"})
    tail = TentativeTail(database, 3)
    tail.settle([SqlOperation("other", 1, (SqlStatement("CREATE TABLE t(x)"),))], "p1")
    tail.foresee([insert("other", 2)])
    tail.add(insert("me", 1), 0)
    tail.foresee([insert("other", 3), insert("other", 2), insert("me", 1), insert("other", 4)])
    assert (rows(False), rows(True)) == ([], ["other 2", "me 1", "other 3"]), "as many as the bound, each once"
    tail.settle([insert("other", 2), insert("me", 1)], "p2")
    assert (tail.counts.undos, tail.counts.repair_s) == (0, 0), "the order is the one in which they were heard"
    tail.foresee([insert("other", 2)])
    assert (rows(False), rows(True)) == (["other 2", "me 1"], ["other 2", "me 1", "other 3"])
    assert (tail.forget(), tail.foreseen) == ([], 1)
    tail.add(insert("me", 2), 0)
    assert (tail.forget(), tail.foreseen) == ([], 0)
    assert rows(True) == ["other 2", "me 1", "me 2"], "what has no order for long is taken back"
    tail.settle([insert("other", 3)], "p3")
    assert rows(False) == ["other 2", "me 1", "other 3"], "and applied when it comes"
    tail.foresee([insert("third", 1)])
    tail.settle([insert("other", 4)], "p4")
    counts = tail.counts
    assert (counts.undos, counts.foreseen_undos) == (3, 1), "ours was taken back twice, the third one's once"
    database.close()
