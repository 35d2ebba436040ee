"""What an operation may not do, for it would do something else on another replica, or at another time."""

import datetime
import enum
import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from unisono.errors import MisuseError
from unisono.replicas.comparing import read_replica
from unisono.replicas.determinism import SEEN_MAX, check_text, words_of
from unisono.replicas.operation import SqlAnswer, SqlOperation, SqlStatement, statement
from unisono.replicas.sqlite import SqliteDatabase
from unisono.replicas.tail import TentativeTail

STEPS = 10_000_000
SCHEMA = (
    "CREATE TABLE t(id INTEGER PRIMARY KEY, n INTEGER NOT NULL, at TEXT)",
    "CREATE TABLE log(text TEXT)",
    "INSERT INTO t(n) VALUES (1), (2), (3)",
)


@pytest.fixture
def database(tmp_path: Path) -> Iterator[SqliteDatabase]:
    opened = SqliteDatabase(tmp_path / "a.db", {"topics": "t"})
    assert run(opened, *SCHEMA).error is None
    yield opened
    opened.close()


def run(database: SqliteDatabase, *texts: str, steps: int = 0) -> SqlAnswer:
    operation = SqlOperation("me", 1, tuple(SqlStatement(text) for text in texts))
    return database.run(operation, steps)


REFUSED = [
    ("INSERT INTO t(n) VALUES (random())", "random"),
    ("INSERT INTO log VALUES (randomblob(4))", "differs between replicas"),
    ("INSERT INTO t(n) VALUES (last_insert_rowid())", "last_insert_rowid"),
    ("UPDATE t SET n = total_changes()", "total_changes"),
    ("INSERT INTO log VALUES (CURRENT_TIMESTAMP)", "current_timestamp"),
    ("UPDATE t SET at = CURRENT_DATE", "current_date"),
    ("INSERT INTO log VALUES (datetime('now'))", "bind the time"),
    ("INSERT INTO log VALUES (datetime('2020-01-01', 'localtime'))", "local time zone"),
    ("INSERT INTO log VALUES (strftime('%s'))", "bind the time"),
    ("INSERT INTO log VALUES (date())", "bind the time"),
    ("INSERT INTO log SELECT n FROM t LIMIT 1", "ORDER BY"),
    ("DELETE FROM t WHERE id IN (SELECT id FROM t LIMIT 1)", "ORDER BY"),
    ("INSERT INTO log SELECT n FROM (SELECT n FROM t ORDER BY n) LIMIT 1", "ORDER BY"),
    ("COMMIT", "one transaction"),
    ("INSERT OR ROLLBACK INTO t VALUES (1, 1, '')", "ABORT"),
    ("SAVEPOINT mine", "one transaction"),
    ("RELEASE operation", "one transaction"),
    ("ATTACH ':memory:' AS other", "own file"),
    ("ANALYZE", "statistics"),
    ("PRAGMA foreign_keys = OFF", "PRAGMA foreign_keys"),
    ("PRAGMA optimize", "PRAGMA optimize"),
    ("CREATE VIRTUAL TABLE f USING fts5(x)", "virtual tables"),
    ("CREATE TEMP TABLE x(y)", "temporary"),
    ("DELETE FROM _unisono_client", "the replica's own"),
    ("CREATE TABLE _unisono_mine(x)", "the replica's own"),
    ("CREATE TABLE d(x DEFAULT (random()))", "the default of d.x"),
    ("CREATE TABLE d(x DEFAULT CURRENT_TIMESTAMP)", "the default of d.x"),
    ("CREATE TABLE d(x DEFAULT (datetime('now')))", "the default of d.x"),
    ("CREATE TABLE d(x REFERENCES t(id) DEFERRABLE INITIALLY DEFERRED)", "IMMEDIATE"),
    ("INSERT INTO log SELECT datetime(x'6e6f77')", "bind the time"),
    ("INSERT INTO log SELECT datetime('now' || char(0) || '!')", "bind the time"),
    ("INSERT INTO log SELECT datetime('2020-01-01', CAST('localtime' AS BLOB))", "local time zone"),
    ("INSERT INTO log SELECT unixepoch('subsec')", "bind the time"),
    ("INSERT INTO log SELECT timediff('2020-01-01', 'subsec')", "bind the time|no such function"),
    ("INSERT INTO log SELECT strftime('%J', 'subsecond')", "bind the time"),
    ("INSERT INTO log SELECT sin(0.5)", "last digit|no such function"),
    ("UPDATE t SET n = pow(n, 0.5)", "last digit|no such function"),
    ("INSERT INTO log SELECT sqlite_version()", "differs between replicas"),
    ("INSERT INTO log SELECT sqlite_compileoption_used('THREADSAFE')", "differs between replicas"),
    ("SELECT fts3_tokenizer('simple')", "differs between replicas|no such function"),
    ("INSERT INTO log SELECT rootpage FROM sqlite_master", "where a table stands"),
    ("CREATE TABLE d AS SELECT rootpage FROM sqlite_schema", "where a table stands"),
    ("INSERT INTO log SELECT pageno FROM dbstat", "this build of SQLite|no such table"),
    ("INSERT INTO log SELECT sql FROM sqlite_stmt", "this build of SQLite|no such table"),
    ("INSERT INTO log SELECT compile_options FROM pragma_compile_options", "PRAGMA|this build of SQLite"),
    ("INSERT INTO log SELECT name FROM pragma_table_info('t')", "PRAGMA|this build of SQLite"),
    ("INSERT INTO log SELECT count FROM _unisono_progress", "the replica's own"),
    ("INSERT INTO log SELECT (SELECT position FROM _unisono_progress)", "the replica's own"),
    ("ALTER TABLE _unisono_progress RENAME TO mine", "the replica's own"),
    ("ALTER TABLE _unisono_progress ADD COLUMN mine", "the replica's own"),
    ("ALTER TABLE t RENAME TO _unisono_t", "the replica's own"),
    ("CREATE TRIGGER mine AFTER UPDATE ON _unisono_progress BEGIN DELETE FROM t; END", "the replica's own"),
    ("CREATE INDEX mine ON _unisono_progress(count)", "the replica's own"),
    ("CREATE VIEW _Unisono_v AS SELECT 1", "the replica's own"),
    ("CREATE TABLE temp.x(y)", "temporary"),
    ("CREATE TEMP VIEW v AS SELECT 1", "temporary"),
    ("CREATE TEMP TRIGGER g AFTER INSERT ON t BEGIN SELECT 1; END", "temporary"),
    ("VACUUM INTO 'x.db'", "own file|cannot VACUUM"),
    ("DETACH main", "own file"),
    ("PRAGMA writable_schema = ON", "PRAGMA writable_schema"),
    ("PRAGMA case_sensitive_like = ON", "PRAGMA case_sensitive_like"),
    ("EXPLAIN SELECT * FROM t", "EXPLAIN"),
    ("EXPLAIN QUERY PLAN SELECT * FROM t", "EXPLAIN"),
    ("INSERT INTO log SELECT load_extension('x')", "load_extension|not authorized"),
    ("INSERT INTO log SELECT abs(random())", "random"),
    ("WITH c(x) AS (SELECT random()) INSERT INTO t(n) SELECT x FROM c", "random"),
    ("INSERT INTO log SELECT n FROM t ORDER BY random()", "random"),
    ("CREATE TABLE d AS SELECT random() AS r", "random"),
    ("CREATE TABLE d(x, y AS (random()))", "random|non-deterministic"),
    ("CREATE TABLE d(x CHECK (x < random()))", "random|non-deterministic"),
    ("CREATE INDEX d ON t(abs(random()))", "random|non-deterministic"),
    ("ALTER TABLE t ADD COLUMN d DEFAULT (random())", "random|non-constant"),
    ("ALTER TABLE t ADD COLUMN d DEFAULT CURRENT_TIMESTAMP", "non-constant|the default"),
    ("INSERT INTO log SELECT n FROM t UNION SELECT id FROM t LIMIT 1", "ORDER BY"),
    ("INSERT INTO log SELECT row_number() OVER (ORDER BY n) FROM t LIMIT 1", "ORDER BY"),
    ("UPDATE t SET n = 1 LIMIT 1", "ORDER BY"),
    ("CREATE TABLE d(x UNIQUE ON CONFLICT ROLLBACK)", "ABORT"),
    ("CREATE TRIGGER g BEFORE INSERT ON t BEGIN SELECT RAISE(ROLLBACK, 'x'); END", "ABORT"),
    ("RELEASE own_1", "one transaction"),
    ("BEGIN IMMEDIATE", "one transaction"),
    ("END", "one transaction"),
    ("INSERT INTO log SELECT n COLLATE of_mine FROM t ORDER BY 1", "no such collation"),
    ("INSERT INTO log SELECT n FROM t WHERE n <> $a(') LIMIT 1 -- '", "ORDER BY"),
    ('INSERT INTO t SELECT 1, 1, @a::b(") ON CONFLICT ROLLBACK --"', "ABORT"),
    ("SELECT fts5_source_id()", "differs between replicas|no such function"),
    ("INSERT INTO log VALUES (of_mine(1))", "no such function|none of SQLite's own"),
    ("INSERT INTO log VALUES (zeroblob(100000001))", "too big"),
    ("SELECT ?32767", "variable number must be between"),
    ("INSERT INTO t(id, n) VALUES (9223372036854775807, 1)", "leaves none"),
    ("INSERT INTO log(rowid) VALUES (9223372036854775807)", "leaves none"),
    ("UPDATE t SET id = 9223372036854775807 WHERE id = 1", "leaves none"),
    ("SELECT 1; SELECT 2", "one statement"),
    ("SELEC 1", "syntax"),
    ("INSERT INTO nowhere VALUES (1)", "nowhere"),
]


LATER = [
    ("CREATE VIEW v AS SELECT random() AS r", "INSERT INTO log SELECT r FROM v", "random"),
    ("CREATE VIEW v AS SELECT rootpage FROM sqlite_master", "INSERT INTO log SELECT * FROM v", "where a table stands"),
    ("CREATE VIEW v AS SELECT * FROM _unisono_client", "INSERT INTO log SELECT client FROM v", "the replica's own"),
    ("CREATE TABLE d(x CHECK (x < datetime('now')))", "INSERT INTO d VALUES (1)", "bind the time"),
    ("CREATE TABLE d(x, y AS (datetime(x)) STORED)", "INSERT INTO d(x) VALUES ('now')", "bind the time"),
    (
        "CREATE TRIGGER g AFTER INSERT ON t WHEN random() > 0 BEGIN DELETE FROM log; END",
        "INSERT INTO t(n) VALUES (1)",
        "random",
    ),
]


NUMBERED = [
    ("CREATE TRIGGER g AFTER DELETE ON log BEGIN INSERT INTO t(id, n) VALUES (~(1 << 63), 1); END", "DELETE FROM log"),
    (
        "CREATE VIEW v AS SELECT 1 AS x",
        "CREATE TRIGGER g INSTEAD OF INSERT ON v BEGIN UPDATE t SET id = new.x WHERE id = 1; END",
        "INSERT INTO v VALUES (~(1 << 63))",
    ),
    (
        "CREATE TABLE up(id PRIMARY KEY) WITHOUT ROWID",
        "CREATE TABLE c(id INTEGER PRIMARY KEY REFERENCES up ON UPDATE CASCADE)",
        "INSERT INTO up VALUES (1)",
        "INSERT INTO c VALUES (1)",
        "UPDATE up SET id = ~(1 << 63)",
    ),
    ("CREATE TABLE c(rowid TEXT, oid TEXT)", "INSERT INTO c(_rowid_) VALUES (~(1 << 63))"),
    ("CREATE TABLE c(rowid INTEGER PRIMARY KEY, _rowid_, oid)", "INSERT INTO c(rowid) VALUES (~(1 << 63))"),
    ("CREATE TABLE c(id INTEGER PRIMARY KEY AUTOINCREMENT)", "INSERT INTO c VALUES (~(1 << 63))"),
    (
        "CREATE TABLE c(id INTEGER PRIMARY KEY AUTOINCREMENT)",
        "INSERT INTO c VALUES (1)",
        "UPDATE sqlite_sequence SET seq = 1e19",
    ),
]


@pytest.mark.parametrize("texts", NUMBERED)
def test_no_row_has_the_highest_number_after_which_sqlite_takes_them_at_random(
    database: SqliteDatabase, texts: tuple[str, ...]
) -> None:
    """Or, with AUTOINCREMENT, says of the next row that the disk is full, which would stop every replica."""
    assert run(database, "INSERT INTO log VALUES (1)", *texts[:-1], steps=STEPS).error is None
    with pytest.raises(MisuseError, match="leaves none for the next row"):
        run(database, texts[-1], steps=STEPS)
    assert "leaves none for the next row" in (run(database, texts[-1]).error or "")


def test_a_table_that_is_made_anew_is_looked_at_anew(database: SqliteDatabase) -> None:
    """Whether its rows have numbers may be another thing after an undo."""
    full = f"INSERT INTO c(id) VALUES ({2**63 - 1})"
    assert run(database, "CREATE TABLE c(id INTEGER PRIMARY KEY)").error is None
    database.mark("own_1")
    assert run(database, "DROP TABLE c", "CREATE TABLE c(id PRIMARY KEY) WITHOUT ROWID", full).error is None
    database.undo("own_1")
    assert "leaves none" in (run(database, full).error or "")


def test_parameters_with_names_take_a_dict(database: SqliteDatabase) -> None:
    """Some versions of Python take a tuple, too, and some do not."""
    for name in (":n", "@n", "$n"):
        asked = SqlStatement(f"SELECT {name}", (1,))
        with pytest.raises(MisuseError, match="take a dict"):
            database.run(SqlOperation("me", 1, (asked,)), STEPS)
        named = SqlStatement(f"SELECT {name}", {"n": 1})
        assert database.run(SqlOperation("me", 1, (named,)), STEPS).rows == ((1,),)
    assert database.run(SqlOperation("me", 1, (SqlStatement("SELECT ?2, ?1", (1, 2)),)), STEPS).rows == ((2, 1),)


def test_what_is_bound_here_is_what_others_get(database: SqliteDatabase) -> None:
    """A value of a subclass has a life of its own; the wire carries what it is derived from."""

    class Level(enum.IntEnum):
        HIGH = 3

        def __conform__(self, protocol: object) -> str:
            return "high"

    class Name(str):
        __slots__ = ()

        def __conform__(self, protocol: object) -> str:
            return "somebody"

    class Ratio(float):
        pass

    made = statement("SELECT ?, ?, ?, ?, ?", (Level.HIGH, Name("a"), Ratio(0.5), True, type("B", (bytes,), {})(b"x")))
    assert [type(value) for value in made.params] == [int, str, float, int, bytes]
    assert database.run(SqlOperation("me", 1, (made,)), STEPS).rows == ((3, "a", 0.5, 1, b"x"),)


@pytest.mark.parametrize(("schema", "sql", "reason"), LATER)
def test_what_a_schema_hides_is_refused_when_it_is_used(
    database: SqliteDatabase, schema: str, sql: str, reason: str
) -> None:
    assert run(database, schema, steps=STEPS).error is None
    with pytest.raises(MisuseError, match=reason):
        run(database, sql, steps=STEPS)
    assert re.search(reason, run(database, sql).error or "")


@pytest.mark.parametrize("sql", ["CREATE TEMP VIEW v AS SELECT 1", "CREATE TABLE temp.x(y)"])
def test_a_refusal_after_a_schema_was_taken_back_is_no_failure_of_the_machine(
    database: SqliteDatabase, sql: str
) -> None:
    database.mark("own_1")
    assert run(database, "CREATE TABLE d(x)").error is None
    database.undo("own_1")
    assert "temporary" in (run(database, sql).error or "")


OWN_STATEMENTS = (
    *("COMMIT", "BEGIN IMMEDIATE", "SAVEPOINT operation", "RELEASE operation", "ROLLBACK TO operation"),
    "UPDATE _unisono_progress SET position = 1, count = 7",
    "PRAGMA query_only = ON",
)


@pytest.mark.parametrize("sql", OWN_STATEMENTS)
def test_what_the_replica_says_itself_nobody_else_may_say(database: SqliteDatabase, sql: str) -> None:
    """A statement that was compiled for the replica is compiled again for an operation: only then is it looked at."""
    database.mark("mine")
    with suppress(sqlite3.Error):
        database._writer.execute(sql)
    if not database.in_transaction:
        database.begin()
    database._writer.execute("PRAGMA query_only = OFF")
    said = run(database, sql).error or ""
    assert re.search("one transaction|take back|replica's own|about the replica", said)


def test_a_statement_that_was_looked_at_is_looked_at_again_when_it_means_something_else(
    database: SqliteDatabase,
) -> None:
    """What was compiled is kept; what a query may say, or what a text meant in another schema, is another statement."""
    database.mark("own_1")
    assert run(database, "CREATE VIEW v AS SELECT 1 AS r", "INSERT INTO log SELECT r FROM v").error is None
    database.undo("own_1")
    assert run(database, "CREATE VIEW v AS SELECT random() AS r").error is None
    assert "random" in (run(database, "INSERT INTO log SELECT r FROM v").error or "")
    assert (
        run(database, "DROP VIEW v", "CREATE VIEW v AS SELECT 2 AS r", "INSERT INTO log SELECT r FROM v").error is None
    )
    for tentative in (True, False):
        assert len(database.read("SELECT random()", (), tentative).rows) == 1
    for text in ("SELECT random()", "--query\nSELECT random()"):
        assert "random" in (run(database, text).error or "")


@pytest.mark.parametrize("tentative", [True, False])
def test_a_query_may_ask_for_what_differs_between_replicas(database: SqliteDatabase, tentative: bool) -> None:
    asked = "SELECT datetime('now') > '2020', typeof(random()), (SELECT count(*) FROM pragma_table_info('t'))"
    assert database.read(asked, (), tentative).rows == ((1, "integer", 3 * tentative),), "the table is tentative"
    assert database.read("SELECT value FROM json_each('[1, 2]')", (), tentative).rows == ((1,), (2,))
    assert "bind the time" in (run(database, "SELECT datetime('now')").error or "")


def test_what_was_told_of_a_statement_holds_as_long_as_it_is_kept(database: SqliteDatabase) -> None:
    def insert(*params: object) -> str | None:
        statement = SqlStatement("INSERT INTO t(id, n) VALUES (?, ?)", params)
        return database.run(SqlOperation("me", 1, (statement,))).error

    last = 2**63 - 1
    assert "NOT NULL" in (insert(7, None) or "")
    assert "leaves none" in (insert(last, 1) or ""), "it was compiled before, and failed"
    assert insert(8, 1) is None
    for number in range(SEEN_MAX):
        run(database, f"SELECT {number}")
    assert "leaves none" in (insert(last, 1) or ""), "others were looked at meanwhile"
    alone = "CREATE UNIQUE INDEX alone ON log(text)"
    assert run(database, "INSERT INTO log VALUES (1), (1)").error is None
    assert run(database, alone).error is not None
    assert run(database, "DELETE FROM log", "INSERT INTO log VALUES ('x')", alone).error is None
    assert database._schema_changed, "a change that failed before is one when it does not"


NO_QUERIES = (
    *("COMMIT", "ROLLBACK", "BEGIN", "SAVEPOINT x", "RELEASE own_1", "ATTACH ':memory:' AS x", "VACUUM"),
    *("PRAGMA query_only = OFF", "PRAGMA case_sensitive_like = ON", "PRAGMA journal_mode = DELETE"),
    *("UPDATE sqlite_master SET sql = NULL", "DELETE FROM t", "CREATE TEMP TABLE x(y)", "SELECT load_extension('x')"),
)


@pytest.mark.parametrize("tentative", [True, False])
@pytest.mark.parametrize("sql", NO_QUERIES)
def test_a_query_reads_and_changes_nothing_of_the_connection(
    database: SqliteDatabase, sql: str, tentative: bool
) -> None:
    database.mark("own_1")
    assert run(database, "UPDATE t SET n = n + 1").error is None
    with pytest.raises(MisuseError, match="queries read"):
        database.read(sql, (), tentative)
    assert database.read("SELECT n FROM t", (), tentative=True).rows == ((2,), (3,), (4,))
    database.undo("own_1")
    assert database.read("SELECT n FROM t", (), tentative=True).rows == ((1,), (2,), (3,))
    assert database.read("SELECT 'a' LIKE 'A'", (), tentative=True).rows == ((1,),)


def test_a_text_that_is_none_and_a_column_that_cannot_be_read_are_no_end_of_the_replica(
    database: SqliteDatabase, tmp_path: Path
) -> None:
    before = database.hash()
    texts = (
        "CREATE TABLE d(x, y AS (json(x)))",
        "CREATE TABLE e(rowid TEXT, _rowid_ TEXT, z TEXT)",
        "INSERT INTO log VALUES (CAST(x'ff' AS TEXT))",
        "INSERT INTO e VALUES ('b', 1, 2), ('a', 2, 1)",
    )
    assert run(database, *texts).error is None
    database.commit("p", [], 1)
    found = database.hash()
    assert found != before
    assert read_replica(tmp_path / "a.db").hash == found
    assert run(database, "SELECT text FROM log").error is not None
    assert run(database, "UPDATE log SET text = CAST(x'fe' AS TEXT)").error is None
    database.commit("p", [], 2)
    assert database.hash() != found


@pytest.mark.parametrize("text", ["half \ud800", "SELECT '\udfff'"])
def test_half_a_character_is_refused_before_anybody_has_to_publish_it(text: str) -> None:
    with pytest.raises(MisuseError, match="half a character"):
        statement("SELECT ?", (text,))
    with pytest.raises(MisuseError, match="half a character"):
        statement(text)
    with pytest.raises(MisuseError, match="half a character"):
        statement("SELECT :x", {text: 1})


@pytest.mark.parametrize(("sql", "reason"), REFUSED)
def test_what_differs_between_replicas_is_refused_and_changes_nothing(
    database: SqliteDatabase, sql: str, reason: str
) -> None:
    before = database.read("SELECT * FROM t", (), tentative=True)
    with pytest.raises(MisuseError, match=reason):
        run(database, sql, steps=STEPS)
    assert database.read("SELECT * FROM t", (), tentative=True) == before
    assert database.in_transaction, "what others have done is still there"
    assert run(database, sql).error, "whoever published it all the same changes nothing either"


ALLOWED = [
    "INSERT INTO log SELECT n FROM t ORDER BY n LIMIT 1",
    "INSERT INTO log VALUES (datetime('2020-01-31', '+1 month')), (date(0, 'unixepoch')), (strftime('%Y', '2020'))",
    "INSERT INTO log VALUES ('LIMIT 1'), ('random()'), ('now')",
    "CREATE TABLE d(x DEFAULT 7, y DEFAULT ('a' || 'b'), z INTEGER PRIMARY KEY AUTOINCREMENT)",
    "UPDATE t SET n = n + 1 WHERE id IN (SELECT id FROM t ORDER BY n LIMIT 2)",
    "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c WHERE x < 5) INSERT INTO t(n) SELECT x FROM c",
    "INSERT OR REPLACE INTO t(id, n) VALUES (1, 9) RETURNING id, n",
    'CREATE TABLE "rollback"(x) -- LIMIT',
    "DROP TABLE log",
    "ALTER TABLE t RENAME COLUMN at TO moment",
    "ALTER TABLE t DROP COLUMN at",
    "INSERT INTO log SELECT value FROM json_each('[1, 2]') ORDER BY 1",
    "INSERT INTO log SELECT name FROM sqlite_master WHERE name = 't'",
    "INSERT INTO log VALUES (time('12:00', '+5 seconds')), (round(2.5)), (sqrt(2.0)), (upper('x'))",
    "CREATE VIEW explained AS SELECT 1",
]


@pytest.mark.parametrize("sql", ALLOWED)
def test_what_is_the_same_everywhere_runs(database: SqliteDatabase, sql: str) -> None:
    assert run(database, sql, steps=STEPS).error is None


def test_a_function_that_sqlite_has_not_is_refused_whoever_brought_it(database: SqliteDatabase) -> None:
    database._writer.create_function("of_mine", 1, lambda value: value)
    with pytest.raises(MisuseError, match="none of SQLite's own"):
        run(database, "INSERT INTO log VALUES (of_mine(1))", steps=STEPS)


def test_a_copy_is_the_same_to_an_operation_that_reads_the_schema(database: SqliteDatabase, tmp_path: Path) -> None:
    """VACUUM would put tables before indexes, and number them again."""
    assert run(database, "CREATE INDEX i ON t(n)", "CREATE TABLE u(x)", "DROP TABLE log").error is None
    database.commit("p", [("me", 1)], 1)
    database.copy_to(tmp_path / "copy.db")
    with pytest.raises(MisuseError, match="there already"):
        database.copy_to(tmp_path / "copy.db")
    with pytest.raises(MisuseError, match=r"nowhere"):
        database.copy_to(tmp_path / "nowhere" / "copy.db")
    copy = SqliteDatabase(tmp_path / "copy.db", {"topics": "t"})
    asked = "SELECT rowid, name FROM sqlite_master"
    assert run(copy, asked).rows == run(database, asked).rows
    assert (copy.hash(), copy.position, copy.count) == (database.hash(), "p", 1)
    copy.close()


def test_a_file_of_another_build_or_encoding_is_refused(tmp_path: Path) -> None:
    """Builds of one version differ in functions and bounds; texts of another encoding have other bytes."""
    for name, prepare, reason in (
        ("other.db", "UPDATE _unisono_identity SET value = 'SQLite 3.40.1 (build 0)' WHERE name = 'engine'", "engine"),
        ("wide.db", "PRAGMA encoding = 'UTF-16'", "UTF-8"),
    ):
        place = tmp_path / name
        if name == "other.db":
            SqliteDatabase(place, {"topics": "t"}).close()
        with sqlite3.connect(place) as hand:
            hand.execute(prepare)
            hand.execute("CREATE TABLE gone(x)")
            hand.execute("DROP TABLE gone")
        with pytest.raises(MisuseError, match=reason):
            SqliteDatabase(place, {"topics": "t"})


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody who may not write")
def test_a_file_that_cannot_be_written_is_refused_when_it_is_opened(tmp_path: Path) -> None:
    SqliteDatabase(tmp_path / "a.db", {"topics": "t"}).close()
    (tmp_path / "a.db-lock").chmod(0o666)
    tried = """import os, sys, unisono.replicas.sqlite as it
from pathlib import Path
os.setuid(65534)
try:
    it.SqliteDatabase(Path(sys.argv[1]), {"topics": "t"})
except Exception as error:
    print(type(error).__name__, error)"""
    for parent in (tmp_path, *tmp_path.parents):
        if parent.owner() == "root" and parent.name.startswith(("pytest-", "test_", "popen-")):
            parent.chmod(0o755)
    for mode, says in ((0o777, "TransportError .*readonly database"), (0o755, "MisuseError|TransportError")):
        tmp_path.chmod(mode)
        (tmp_path / "a.db-lock").chmod(0o666 if mode == 0o777 else 0o600)
        done = subprocess.run(
            [sys.executable, "-c", tried, str(tmp_path / "a.db")], capture_output=True, text=True, check=True
        )
        assert re.match(says, done.stdout)
        assert "has to read and write" in done.stdout


def test_a_trigger_is_seen_through(database: SqliteDatabase) -> None:
    run(database, "CREATE TRIGGER g AFTER INSERT ON t BEGIN INSERT INTO log VALUES (random()); END")
    with pytest.raises(MisuseError, match="random"):
        run(database, "INSERT INTO t(n) VALUES (4)", steps=STEPS)
    assert database.read("SELECT count(*) FROM t", (), tentative=True).rows == ((3,),)


def test_dates_are_computed_as_sqlite_does(database: SqliteDatabase) -> None:
    asked = "SELECT date('2024-02-28', '+2 days'), julianday('2000-01-01'), strftime('%j', '2024-12-31')"
    expected = sqlite3.connect(":memory:").execute(asked).fetchall()
    assert run(database, asked).rows == tuple(expected)
    assert datetime.date(2024, 3, 1).isoformat() == expected[0][0]


def test_an_operation_without_end_is_refused_and_what_stood_before_it_still_stands(tmp_path: Path) -> None:
    database = SqliteDatabase(tmp_path / "a.db", {"topics": "t"})
    tail = TentativeTail(database, 10)
    tail.add(
        SqlOperation("me", 1, (SqlStatement("CREATE TABLE t(x)"), SqlStatement("INSERT INTO t VALUES (1)"))), STEPS
    )
    endless = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) INSERT INTO t SELECT x FROM c"
    with pytest.raises(MisuseError, match="steps_max"):
        tail.add(SqlOperation("me", 2, (SqlStatement(endless),)), 200_000)
    assert database.read("SELECT x FROM t", (), tentative=True).rows == ((1,),)
    database.close()


def test_words_are_read_past_comments_and_quotes() -> None:
    assert list(words_of("SELECT 'limit' /* limit */, [limit], \"limit\" -- limit\n FROM t")) == [
        "select",
        ",",
        ",",
        "from",
        "t",
    ]
    check_text("SELECT 'a' || x FROM t WHERE y = 'LIMIT 1'")
    with pytest.raises(MisuseError, match="ORDER BY"):
        check_text("SELECT x FROM (SELECT x FROM t ORDER BY x) LIMIT 1")
