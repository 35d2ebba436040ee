"""A replica's database in PostgreSQL: what differs between replicas is refused, and what is committed is agreed."""

import asyncio
import random
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

import unisono
from tests.replicas.test_commands import run as run_command
from tests.replicas.test_replica import forgetful, plays
from unisono.errors import DivergedError, FormatError, MisuseError, TransportError
from unisono.replicas import Replica
from unisono.replicas.comparing import differences, read_replica
from unisono.replicas.operation import SqlAnswer, SqlOperation, SqlStatement
from unisono.replicas.postgres.database import PostgresDatabase
from unisono.replicas.postgres.state import PostgresState
from unisono.replicas.tail import TentativeTail
from unisono.runtime.tools.postgres_server import PostgresServer, find_postgres

STEPS = 10_000_000
SCHEMA = (
    "CREATE TABLE t(id int PRIMARY KEY, n int NOT NULL CHECK (n < 50), at timestamptz, word text UNIQUE)",
    "CREATE TABLE log(text text)",
    "INSERT INTO t(id, n) VALUES (1, 1), (2, 2), (3, 3)",
    "CREATE TYPE mood AS ENUM ('ok', 'bad')",
    "CREATE TYPE pair AS (a int, b date)",
)


@pytest.fixture(scope="module")
def shared(postgres: object) -> Iterator[PostgresDatabase]:
    """One database for all statements that are tried; none of them is committed."""
    from tests.replicas.conftest import new_database

    opened = PostgresDatabase(new_database(postgres), {"topics": "t"})  # type: ignore[arg-type]
    opened.begin()
    assert run(opened, *SCHEMA).error is None
    opened.commit("p", [], 1)
    yield opened
    opened.close()


@pytest.fixture
def database(shared: PostgresDatabase) -> Iterator[PostgresDatabase]:
    yield shared
    shared.rest()


def run(database: PostgresDatabase, *texts: str, params: tuple[object, ...] = (), steps: int = 0) -> SqlAnswer:
    return database.run(SqlOperation("me", 1, tuple(SqlStatement(text, params) for text in texts)), steps)


REFUSED = [
    ("INSERT INTO t VALUES (9, random())", "random"),
    ("SELECT gen_random_uuid()", "gen_random_uuid"),
    ("INSERT INTO t VALUES (9, 1, now())", "now"),
    ("INSERT INTO t VALUES (9, 1, CURRENT_TIMESTAMP)", "bind the value"),
    ("INSERT INTO t VALUES (9, 1, 'now')", "bind the time"),
    ("INSERT INTO t VALUES (9, 1, 'Tomorrow')", "bind the time"),
    ("INSERT INTO t SELECT 9, 1, text::timestamptz FROM log", "to_timestamp"),
    ("DELETE FROM t WHERE at < clock_timestamp()", "clock_timestamp"),
    ("SELECT age(at) FROM t", "age"),
    ("SELECT current_user", "bind the value"),
    ("INSERT INTO log SELECT word FROM t LIMIT 1", "ORDER BY"),
    ("INSERT INTO log SELECT word FROM t FETCH FIRST 1 ROW ONLY", "ORDER BY"),
    ("SELECT word FROM t OFFSET 1", "ORDER BY"),
    ("SELECT DISTINCT ON (n) word FROM t", "ORDER BY"),
    ("SELECT row_number() OVER () FROM t", "ORDER BY"),
    ("INSERT INTO log SELECT string_agg(word, ',') FROM t", "ORDER BY"),
    ("SELECT sum(n::float8) FROM t", "ORDER BY"),
    ("SELECT max(n::float8) FROM t", "of floats"),
    ("SELECT n FROM t GROUP BY n HAVING string_agg(word, '') = 'x'", "ORDER BY"),
    ("UPDATE t SET n = s.n FROM t s", "subquery"),
    ("INSERT INTO t SELECT n, 7 FROM t ON CONFLICT DO NOTHING", "which row comes first"),
    ("UPDATE t SET id = id + 1", "which row comes first"),
    ("UPDATE t SET word = 'x' WHERE n = 1", "which row comes first"),
    ("MERGE INTO t USING log ON false WHEN MATCHED THEN DELETE", "MERGE"),
    ("SELECT id FROM t TABLESAMPLE system (50)", "TABLESAMPLE"),
    ("UPDATE t SET n = 1 WHERE ctid = '(0,1)'", "system columns"),
    ("SELECT 't'::regclass::oid", "numbers of tables"),
    ("SELECT relname FROM pg_class", "catalogs"),
    ("SELECT set_config('TimeZone', 'CET', false)", "set_config"),
    ("SET TimeZone = 'CET'", "none of the statements"),
    ("COMMIT", "none of the statements"),
    ("ROLLBACK", "take back"),
    ("SAVEPOINT mine", "none of the statements"),
    ("COPY t TO STDOUT", "none of the statements"),
    ("DO $$BEGIN END$$", "none of the statements"),
    ("CREATE TEMP TABLE x(y int)", "none of the statements"),
    ("CREATE UNLOGGED TABLE x(y int)", "none of the statements"),
    ("ALTER TABLE log SET UNLOGGED", "unlogged"),
    ("CREATE TABLE x AS SELECT * FROM t", "SELECT"),
    ("CREATE TABLE x(id serial)", "sequence"),
    ("CREATE TABLE x(id int GENERATED ALWAYS AS IDENTITY)", "sequence"),
    ("CREATE TABLE x(at timestamptz DEFAULT now())", "the default of x.at"),
    ("CREATE TABLE x(at date DEFAULT CURRENT_DATE)", "the default of x.at"),
    ("CREATE TABLE x(id uuid DEFAULT gen_random_uuid())", "the default of x.id"),
    ("ALTER TABLE t ADD CHECK (at < now())", "the constraint"),
    ("CREATE VIEW v AS SELECT random() AS r", "the view v"),
    ("CREATE FUNCTION f() RETURNS int LANGUAGE plpgsql AS 'BEGIN RETURN random(); END'", "says random"),
    ("CREATE FUNCTION f() RETURNS float LANGUAGE sql BEGIN ATOMIC SELECT random(); END", "the function f"),
    ("CREATE TABLE x(y int REFERENCES t(id) DEFERRABLE INITIALLY DEFERRED)", "IMMEDIATE"),
    ("CREATE INDEX CONCURRENTLY i ON t(n)", "CONCURRENTLY"),
    ("DELETE FROM _unisono.client", "the replica's own"),
    ('SELECT n AS ":funcid" FROM t', "colon"),
    ("SELECT id FROM t ORDER BY n LIMIT 2", "leaves rows equal"),
    ("DELETE FROM t WHERE id = (SELECT id FROM t ORDER BY n LIMIT 1)", "leaves rows equal"),
    ("SELECT DISTINCT ON (n) word FROM t ORDER BY n", "leaves rows equal"),
    ("SELECT t.id, log.text FROM t, log ORDER BY t.id LIMIT 1", "leaves rows equal"),
    ("SELECT string_agg(word, '') OVER (ORDER BY n) FROM t", "order it by a key"),
    ("SELECT n, word FROM (SELECT n, word FROM t) s ORDER BY n LIMIT 1", "leaves rows equal"),
    ("SELECT row_number() OVER (ORDER BY n), word FROM t", "order it by a key"),
    ("SELECT lag(word) OVER (ORDER BY n) FROM t", "order it by a key"),
    ("SELECT sum(id) OVER (ORDER BY n ROWS 1 PRECEDING) FROM t", "order it by a key"),
    ("INSERT INTO log SELECT string_agg(word, ',' ORDER BY n) FROM t", "order by a key"),
    ("SELECT array_agg(word ORDER BY n) FROM t", "order by a key"),
    ("SELECT (SELECT array_agg(x.word ORDER BY x.n) FROM t x) FROM t", "order by a key"),
    ("INSERT INTO log SELECT array_to_string(ARRAY(SELECT word FROM t), ',')", "ARRAY"),
    ("SELECT * FROM t FOR UPDATE SKIP LOCKED", "SKIP LOCKED"),
    ("SELECT sin(0.5)", "last digit"),
    ("UPDATE t SET n = power(2.5::float8, 0.3::float8)::int", "last digit"),
    ("SELECT n ^ 0.5::float8 FROM t", "last digit"),
    ("WITH a AS (UPDATE t SET n = 7), b AS (UPDATE t SET n = 8) SELECT 1", "changed twice"),
    ("INSERT INTO t VALUES (9, 1, E'n\\x6fw')", "bind the time|differs between replicas"),
    ("INSERT INTO t VALUES (9, 1, 'no'\n'w')", "bind the time|differs between replicas"),
    ("INSERT INTO t VALUES (9, 1, U&'\\006eow')", "bind the time|differs between replicas"),
    ("CREATE TABLE x(at timestamptz DEFAULT 'now')", "read once"),
    ("CREATE TABLE x(at timestamptz DEFAULT E'n\\x6fw')", "read once"),
    ("ALTER TABLE t ALTER COLUMN n TYPE text USING random()::text", "add a column"),
    ("ALTER TABLE t ALTER COLUMN word TYPE timestamptz USING current_timestamp", "add a column"),
    ("ALTER TABLE t ADD COLUMN z float DEFAULT random()", "the default of t.z"),
    ("ALTER TYPE mood ADD VALUE 'ok'", "before it is committed"),
    ("ALTER TABLE t FORCE ROW LEVEL SECURITY", "other roles"),
    ("ALTER TABLE t DISABLE TRIGGER ALL", "rights"),
    ("CREATE TABLE pg_temp.x(y int)", "temporary"),
    ("CREATE FUNCTION f() RETURNS int LANGUAGE c AS 'x'", "sql and plpgsql"),
    ("CREATE FUNCTION f() RETURNS int LANGUAGE 'internal' AS 'pg_backend_pid'", "sql and plpgsql"),
    (
        "CREATE FUNCTION f() RETURNS text LANGUAGE plpgsql AS $$BEGIN EXECUTE 'SELECT ran' || 'dom()'; END$$",
        "says execute",
    ),
    ("CREATE FUNCTION f() RETURNS int LANGUAGE plpgsql AS $$BEGIN SET TimeZone = 'CET'; RETURN 1; END$$", "says set"),
    (
        "CREATE FUNCTION f() RETURNS text LANGUAGE plpgsql AS $$BEGIN PERFORM set_config('a.b', 'c', false); END$$",
        "says set_config",
    ),
    ('CREATE FUNCTION f() RETURNS float LANGUAGE plpgsql AS $$BEGIN RETURN "random"(); END$$', "says random"),
    ("CREATE FUNCTION f() RETURNS int LANGUAGE plpgsql AS $$BEGIN RETURN pg_backend_pid(); END$$", "says pg_backend"),
    ("DELETE FROM t USING log WHERE log.text = t.word AND 10 / n > 1", "server's plan"),
    ("SELECT id FROM t WHERE word::int > 1 AND id > 3", "server's plan"),
    ("SELECT id FROM t WHERE sqrt(n) > 1 AND id > 3", "server's plan"),
    ("SELECT id FROM t WHERE make_date(n, 1, 1) > '2020-01-01' AND id > 3", "server's plan"),
    ("SELECT 10 / n FROM t ORDER BY id LIMIT 1", "server's plan"),
    ("SELECT id FROM t JOIN log ON 10 / n = 3", "server's plan"),
    ("SELECT id FROM (SELECT id, 10 / n AS q FROM t) s WHERE q > 1", "server's plan"),
    ("WITH s AS (SELECT id, 10 / n AS q FROM t) SELECT id FROM s", "server's plan"),
    ("SELECT '(1,now)'::pair", "bind the time"),
    ("SELECT word::pair FROM t", "to_timestamp"),
    ('SELECT word COLLATE "de-x-icu" FROM t', "collations differ"),
    ('CREATE TABLE x(y text COLLATE "de-x-icu")', "a collation of this machine"),
    ('CREATE INDEX i ON t(word COLLATE "de-x-icu")', "a collation of this machine"),
    ('CREATE DOMAIN d AS text COLLATE "de-x-icu"', "a collation of this machine"),
    ('CREATE VIEW v AS SELECT word COLLATE "de-x-icu" AS w FROM t', "collation"),
    ("CREATE TABLE x(y int) TABLESPACE pg_default", "tablespaces"),
    ("ALTER TABLE t OWNER TO postgres", "roles differ"),
    ("CREATE SCHEMA s AUTHORIZATION postgres", "roles differ"),
    ("CREATE TABLE x(y text COMPRESSION lz4)", "COMPRESSION"),
    ("COMMENT ON ROLE postgres IS 'x'", "not in this database"),
    ("CREATE TABLE x(at timestamptz DEFAULT $$now$$)", "read once"),
    ("ALTER TABLE t ALTER n TYPE text /* /* */ ' */ USING random()::text -- '", "add a column"),
    ("ALTER TABLE t ALTER word SET DEFAULT $$'$$, ALTER n TYPE text USING random()::text -- '", "add a column"),
    (
        "CREATE FUNCTION f() RETURNS text LANGUAGE plpgsql AS $$BEGIN RETURN $a$ ' $a$ || random() || ' '; END$$",
        "says random",
    ),
    ("CREATE TABLE nowhere.x(y int)", "nowhere"),
    ("SELECT 1; SELECT 2", "multiple commands"),
    ("SELEC 1", "none of the statements"),
    ("INSERT INTO nowhere VALUES (1)", "nowhere"),
]


@pytest.mark.parametrize(("sql", "reason"), REFUSED)
def test_what_differs_between_replicas_is_refused_and_changes_nothing(
    database: PostgresDatabase, sql: str, reason: str
) -> None:
    database.mark("before")
    assert run(database, "UPDATE t SET n = n + 1").error is None
    with pytest.raises(MisuseError, match=reason):
        run(database, sql, steps=STEPS)
    assert run(database, sql).error, "whoever published it all the same changes nothing either"
    rows = database.read("SELECT id, n FROM t ORDER BY id", (), tentative=True).rows
    assert rows == ((1, 2), (2, 3), (3, 4)), "what others have done is still there"


ALLOWED = [
    "INSERT INTO log SELECT word FROM t ORDER BY id LIMIT 1",
    "INSERT INTO t VALUES (7, 1, '2020-01-31 10:00+02'), (8, 2, to_timestamp('2020', 'YYYY'))",
    "INSERT INTO log VALUES ('LIMIT 1'), ('random()'), ('now')",
    "INSERT INTO log SELECT to_char(at + interval '1 month', 'YYYY-MM-DD') FROM t WHERE at > '2020-01-01'",
    "INSERT INTO t VALUES (1, 7), (7, 1) ON CONFLICT (id) DO UPDATE SET n = excluded.n",
    "INSERT INTO t SELECT n, 7 FROM t ORDER BY n ON CONFLICT DO NOTHING",
    "UPDATE t SET id = 10, word = 'x' WHERE id = 1 AND n < 9",
    "WITH RECURSIVE c(x) AS (SELECT 10 UNION ALL SELECT x + 1 FROM c WHERE x < 15) INSERT INTO t SELECT x, x FROM c",
    "SELECT string_agg(word, ',' ORDER BY id), sum(n), count(*), avg(n) FROM t",
    "SELECT row_number() OVER (ORDER BY id), sum(n) OVER (PARTITION BY word) FROM t",
    "DELETE FROM t USING log WHERE log.text = t.word",
    "CREATE TABLE d(x int DEFAULT 7, y text DEFAULT 'a' || 'b', z int GENERATED ALWAYS AS (x * 2) STORED)",
    "CREATE TABLE d(x int UNIQUE DEFERRABLE INITIALLY IMMEDIATE)",
    'CREATE TABLE "limit"(x int) -- LIMIT',
    "CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN DELETE FROM log; RETURN NEW; END'",
    "TRUNCATE log",
    "SELECT word FROM t ORDER BY word LIMIT 1",
    "SELECT id FROM t ORDER BY n, id LIMIT 2",
    "SELECT id FROM t ORDER BY n FETCH FIRST 1 ROWS WITH TIES",
    "SELECT a.id, b.n FROM t a JOIN t b ON a.id = b.id ORDER BY a.id, b.id LIMIT 2",
    "SELECT n, count(*) FROM t GROUP BY n ORDER BY n, count(*) LIMIT 1",
    "SELECT DISTINCT ON (n) id FROM t ORDER BY n, id",
    "SELECT row_number() OVER (PARTITION BY n ORDER BY id), rank() OVER (ORDER BY n) FROM t",
    "SELECT array_agg(n ORDER BY n), ARRAY(SELECT word FROM t ORDER BY word) FROM t",
    "SELECT power(2.5, 0.3), sqrt(2.0::float8), round(n::numeric / 3, 2) FROM t",
    "UPDATE t SET n = n + 1 WHERE id IN (SELECT id FROM t ORDER BY id LIMIT 2)",
    "ALTER TABLE t ALTER COLUMN n TYPE bigint",
    "ALTER TABLE t ADD CONSTRAINT once EXCLUDE USING btree (n WITH =)",
    "COMMENT ON TABLE t IS 'what is left today'",
    "CREATE FUNCTION f() RETURNS int LANGUAGE plpgsql AS $$BEGIN UPDATE t SET n = 1 WHERE id = 1; RETURN 1; END$$",
    "COMMENT ON TABLE t IS 'things'",
    "UPDATE t SET n = n - 1 WHERE id = 5 AND n - 1 >= 0",
    "INSERT INTO log SELECT 10 / n FROM t WHERE n <> 0",
    "SELECT id FROM t WHERE 10 / n > 1",
    "SELECT id FROM t WHERE id > 1 AND n / 2 > 1 AND CASE WHEN n > 0 THEN 10 / n > 1 ELSE false END",
    "SELECT id FROM t WHERE id > 1 AND 10 / nullif(n, 0) > 1 AND lower(word) LIKE 'a%' AND n::float8::numeric > 1.5",
    "SELECT n FROM t WHERE at > '2020-01-01' AND id > 1 GROUP BY n HAVING sum(n) / count(*) > 1",
    'INSERT INTO log VALUES (\'{"a": "now"}\'), ($$today$$)',
    "SELECT ('{\"a\": 1}'::jsonb ->> 'a')::mood IS NULL, 'ok'::mood FROM log",
    'SELECT word COLLATE "C" FROM t ORDER BY word COLLATE "C" LIMIT 1',
    "CREATE TABLE x(owner text, comment text)",
    "ALTER TABLE t RENAME COLUMN word TO owner",
]


@pytest.mark.parametrize("sql", ALLOWED)
def test_what_is_the_same_everywhere_runs(database: PostgresDatabase, sql: str) -> None:
    assert run(database, sql, steps=STEPS).error is None


NO_QUERIES = (
    *("COMMIT", "ROLLBACK", "BEGIN", "ROLLBACK TO own_1", "RELEASE own_1", "SAVEPOINT x", "DISCARD ALL"),
    *("SET TimeZone = 'CET'", "PREPARE x AS SELECT 1", "COPY t TO STDOUT", "LOCK TABLE t", "DELETE FROM t"),
    *("SET TRANSACTION READ WRITE", "SELECT 1; COMMIT", "SELECT pg_advisory_unlock_all()"),
    "WITH x AS (DELETE FROM t RETURNING 1) SELECT * FROM x",
)


@pytest.mark.parametrize("tentative", [True, False])
def test_a_query_reads_and_changes_nothing_of_the_connection(database: PostgresDatabase, tentative: bool) -> None:
    database.mark("own_1")
    assert run(database, "UPDATE t SET n = 49").error is None
    for sql in NO_QUERIES:
        with pytest.raises(MisuseError):
            database.read(sql, (), tentative)
    database.read("SELECT set_config('TimeZone', 'CET', false)", (), tentative)
    assert database.read("SELECT DISTINCT n FROM t", (), tentative=True).rows == ((49,),)
    assert database.read("SELECT min(n), max(n) FROM t", ()).rows == ((1, 3),), "and what is stable is as it was"
    assert database.read("SHOW TimeZone", (), tentative).rows == (("UTC",),)
    database.undo("own_1")
    assert database.read("SELECT min(n), max(n) FROM t", (), tentative=True).rows == ((1, 3),)


def test_parameters_have_the_types_that_the_statement_gives_them(database: PostgresDatabase) -> None:
    asked = "SELECT $1::int + 1, $2::text, $3::bytea, $4::float8, $5::bool, $6::numeric, $7::jsonb"
    answer = run(database, asked, params=(1, "ö'", b"\x00\xff", 0.1, 1, 3, '{"a": 1}'))
    assert answer.rows == ((2, "ö'", b"\x00\xff", 0.1, True, "3", '{"a": 1}'),)
    with pytest.raises(MisuseError, match="bind the time itself"):
        run(database, "INSERT INTO t VALUES (9, 1, $1)", params=("now",), steps=STEPS)
    with pytest.raises(MisuseError, match="bind the time itself"):
        run(database, "SELECT $1::pair", params=("(1,now)",), steps=STEPS)
    with pytest.raises(MisuseError, match="numbers"):
        database.run(SqlOperation("me", 1, (SqlStatement("SELECT $1::int", {"a": 1}),)), STEPS)
    for broken in ("a\0b", "\ud800"):
        with pytest.raises(MisuseError, match="text"):
            run(database, "INSERT INTO log VALUES ($1)", params=(broken,), steps=STEPS)


def test_rows_of_an_answer_come_in_one_order_wherever_they_stand(database: PostgresDatabase) -> None:
    run(database, "UPDATE t SET n = n + 1 WHERE id = 1")  # the server moves it to the end of the table
    assert run(database, "SELECT id FROM t").rows == ((1,), (2,), (3,))
    assert run(database, "SELECT id FROM t ORDER BY id DESC").rows == ((3,), (2,), (1,))


def test_an_error_has_one_text_and_a_constraint_is_an_answer(database: PostgresDatabase) -> None:
    assert run(database, "INSERT INTO t VALUES (1, 1)", steps=STEPS).error == "UniqueViolation (23505): t_pkey"
    assert run(database, "UPDATE t SET n = 90", steps=STEPS).error == "CheckViolation (23514): t_n_check"
    assert run(database, "UPDATE t SET n = 1 / 0").error == "DivisionByZero (22012)"


def test_what_a_view_or_a_function_refuses_is_no_failure_of_the_machine(database: PostgresDatabase) -> None:
    """It is refused when it is tried, and an error at every replica if it comes true later; it stops none of them."""
    database.mark("own_1")
    made = (
        "CREATE VIEW counted AS SELECT count(*) AS n FROM t",
        "CREATE FUNCTION says(s text) RETURNS int LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION USING ERRCODE = s; END'",
        """CREATE FUNCTION reads() RETURNS int LANGUAGE plpgsql AS 'DECLARE r record; BEGIN
           FOR r IN SELECT id FROM t ORDER BY id LOOP ALTER TABLE t ADD z int; END LOOP; RETURN 1; END'""",
    )
    assert run(database, *made).error is None
    states = [f"SELECT says('{state}')" for state in ("40001", "53100", "08006", "XX000", "57014", "42501")]
    for sql in ("DELETE FROM counted", "INSERT INTO counted VALUES (1)", "SELECT reads()", *states):
        with pytest.raises(MisuseError):
            run(database, sql, steps=STEPS)
        assert run(database, sql).error
    database.undo("own_1")


def test_what_takes_too_long_is_refused_and_what_stood_before_still_stands(database: PostgresDatabase) -> None:
    tail = TentativeTail(database, 10)
    tail.add(SqlOperation("me", 1, (SqlStatement("UPDATE t SET n = 9 WHERE id = 1"),)), STEPS)
    endless = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) INSERT INTO log SELECT 'x' FROM c"
    with pytest.raises(MisuseError, match="steps_max"):
        tail.add(SqlOperation("me", 2, (SqlStatement(endless),)), 1_000_000)
    assert database.read("SELECT n FROM t WHERE id = 1", (), tentative=True).rows == ((9,),)
    assert database.read("SELECT n FROM t WHERE id = 1", ()).rows == ((1,),)


def test_nothing_is_held_while_nothing_is_tentative(database: PostgresDatabase) -> None:
    """An open transaction would keep the server from cleaning up."""
    tail = TentativeTail(database, 10)
    with pytest.raises(MisuseError):
        tail.add(SqlOperation("me", 1, (SqlStatement("SELECT random()"),)), STEPS)
    assert not database.in_transaction
    own = SqlOperation("me", 1, (SqlStatement("UPDATE t SET n = 9"),))
    tail.add(own, STEPS)
    assert database.in_transaction
    tail.drop(own.name)
    assert not database.in_transaction


def test_a_change_of_the_schema_waits_for_its_order(database: PostgresDatabase) -> None:
    """Tentative, it would lock its tables against every reader, the replica's own among them."""
    tail = TentativeTail(database, 10)
    change = SqlOperation("me", 1, (SqlStatement("ALTER TABLE t ADD COLUMN more int"),))
    with pytest.raises(MisuseError, match="sequence"):
        tail.add(SqlOperation("me", 1, (SqlStatement("CREATE TABLE x(id serial)"),)), STEPS)
    assert tail.add(change, STEPS) is None
    assert tail.add(SqlOperation("me", 2, (SqlStatement("UPDATE t SET more = 1"),)), STEPS) is None
    database._reader.run("SET lock_timeout = '1s'")
    assert database.read("SELECT count(*) FROM t", ()).rows == ((3,),)
    assert tail.drop(change.name)[0][1].error == "UndefinedColumn (42703)", "what waited is tried without it"


@pytest.mark.parametrize(
    ("sql", "params", "reason"),
    [
        ("INSERT INTO log VALUES ($1)", (), "1 parameters"),
        ("INSERT INTO log VALUES ($1)", ("a", "b"), "2 are bound"),
        ("INSERT INTO log VALUES ('a')", ("b",), "0 parameters"),
        ("CREATE TABLE x(y int)", (1,), "0 parameters"),
        ("INSERT INTO log VALUES ($2)", ("a", "b"), r"data type of parameter \$1"),
        ("INSERT INTO wide VALUES ($1)", ("ab" * 1_000_000,), "index row"),
    ],
)
def test_an_operation_that_the_server_does_not_take_stops_nobody(
    database: PostgresDatabase, sql: str, params: tuple[str, ...], reason: str
) -> None:
    """It is refused when it is tried; one that somebody has published all the same has an error, at every replica."""
    table = SqlOperation(f"{sql} {len(params)}", 3, (SqlStatement("CREATE TABLE IF NOT EXISTS wide(x text UNIQUE)"),))
    operation = SqlOperation(f"{sql} {len(params)}", 1, (SqlStatement(sql, params),))
    tail = TentativeTail(database, 10)
    tail.settle([table], "o")
    with pytest.raises(MisuseError, match=reason):
        tail.add(operation, STEPS)
    later = SqlOperation(operation.client, 2, (SqlStatement("DELETE FROM log"),))
    outcomes = [answer.error for _, answer in tail.settle([operation, later], "p").stable]
    assert [outcome is None for outcome in outcomes] == [False, True]


def test_two_replicas_on_one_database_are_refused_and_the_next_one_goes_on(fresh: Callable[[], str]) -> None:
    url = fresh()
    first = PostgresDatabase(url, {"topics": "t"})
    with pytest.raises(MisuseError, match="has a replica already"):
        PostgresDatabase(url, {"topics": "t"})
    run(first, *SCHEMA)
    first.commit("p1", [("me", 1), ("me", 3)], 2)
    run(first, "DELETE FROM t")
    first.close()
    second = PostgresDatabase(url, {"topics": "t"})
    assert (second.position, second.count) == ("p1", 2)
    done = [second.has_done(SqlOperation("me", number, ())) for number in (1, 2, 3)]
    assert done == [True, False, True]
    assert second.read("SELECT count(*) FROM t", ()).rows == ((3,),)
    with pytest.raises(MisuseError, match="execute"):
        second.read("DELETE FROM t", ())
    with pytest.raises(MisuseError, match="a query begins with"):
        second.read("BEGIN", ())
    second.close()
    with pytest.raises(MisuseError, match="topics 't'"):
        PostgresDatabase(url, {"topics": "else"})


def test_other_databases_are_refused_and_left_as_they_were(fresh: Callable[[], str]) -> None:
    url = fresh()
    with psycopg.connect(url, autocommit=True) as other:
        other.execute("CREATE TABLE mine(x int)")
        with pytest.raises(MisuseError, match="begin empty"):
            PostgresDatabase(url, {"topics": "t"})
        with pytest.raises(FormatError, match="no replica's database"):
            read_replica(url)
        assert other.execute("SELECT to_regnamespace('_unisono')").fetchone() == (None,)
    with pytest.raises(TransportError, match=r"postgres://me@127\.0\.0\.1:1/x"):
        PostgresDatabase("postgres://me:secret@127.0.0.1:1/x", {"topics": "t"})


STRANGE = (
    ("CREATE FUNCTION f() RETURNS float LANGUAGE sql AS 'SELECT random()'", "begin empty"),
    ("CREATE EXTENSION IF NOT EXISTS plpgsql; CREATE TYPE mine AS ENUM ('a')", "begin empty"),
    ("ALTER DATABASE {} SET session_replication_role = replica", "session_replication_role"),
    ("ALTER DATABASE {} SET plpgsql.variable_conflict = use_column", "variable_conflict"),
)


@pytest.mark.parametrize(("made", "reason"), STRANGE)
def test_a_database_in_which_operations_could_do_something_else_is_refused(
    fresh: Callable[[], str], made: str, reason: str
) -> None:
    url = fresh()
    with psycopg.connect(url, autocommit=True) as hand:
        hand.execute(made.format(url.rpartition("/")[2]).encode())
    with pytest.raises(MisuseError, match=reason):
        PostgresDatabase(url, {"topics": "t"})


def test_what_a_database_was_told_to_set_changes_no_operation(fresh: Callable[[], str]) -> None:
    url = fresh()
    told = ("transform_null_equals = on", "array_nulls = off", "xmlbinary = hex", "default_transaction_read_only = on")
    with psycopg.connect(url, autocommit=True) as hand:
        for setting in (*told, "TimeZone = 'CET'", "quote_all_identifiers = on"):
            hand.execute(f"ALTER DATABASE {url.rpartition('/')[2]} SET {setting}".encode())
    plain, database = (PostgresDatabase(place, {"topics": "t"}) for place in (fresh(), url))
    asked = (
        "SELECT (1 = NULL) IS NULL, '{NULL}'::int[]::text, xmlforest('a'::bytea AS a)::text, '2020-01-01'::timestamptz"
    )
    for each in (plain, database):
        assert run(each, *SCHEMA).error is None
        assert run(each, asked).rows == ((True, "{NULL}", "<a>YQ==</a>", "2020-01-01 00:00:00+00"),)
        each.commit("p", [], 1)
    assert plain.hash() == database.hash()
    for each in (plain, database):
        each.close()


def test_how_a_locale_compares_is_part_of_the_engine(postgres: PostgresServer, fresh: Callable[[], str]) -> None:
    name = fresh().rpartition("/")[2]
    engines = []
    with psycopg.connect(postgres.url(), autocommit=True) as hand:
        for locale in ("de", "sv"):
            hand.execute(
                f"CREATE DATABASE {name}_{locale} TEMPLATE template0 LOCALE_PROVIDER icu ICU_LOCALE '{locale}' "
                "LC_COLLATE 'C.UTF-8' LC_CTYPE 'C.UTF-8'".encode()
            )
            database = PostgresDatabase(postgres.url(f"{name}_{locale}"), {"topics": "t"})
            engines.append(database.engine)
            database.close()
    assert len(set(engines)) == 2


def test_whether_a_statement_fails_depends_on_no_plan(fresh: Callable[[], str]) -> None:
    """What the server's statistics decide: which condition is looked at first, and for which rows."""
    made = (
        "CREATE TABLE t(id int PRIMARY KEY, n int)",
        "CREATE TABLE s(id int PRIMARY KEY)",
        "INSERT INTO t SELECT g, g % 2 FROM generate_series(1, 20000) g",
        "INSERT INTO s VALUES (5)",
    )
    asked = "DELETE FROM t USING s WHERE s.id = t.id AND {} > 1"
    outcomes = []
    for is_known in (False, True):
        url = fresh()
        database = PostgresDatabase(url, {"topics": "t"})
        assert run(database, *made).error is None
        database.commit("p", [], 1)
        with psycopg.connect(url, autocommit=True) as hand:
            if is_known:
                hand.execute("ANALYZE")
            outcomes += [_outcome(hand, asked.format("10 / n"))]
        refused = run(database, asked.format("10 / n"))
        assert "server's plan" in (refused.error or "")
        assert run(database, asked.format("CASE WHEN n <> 0 THEN 10 / n END")).error is None
        database.close()
    assert outcomes == ["division by zero", "1 row"], "so it would be"


def _outcome(hand: "psycopg.Connection[tuple[object, ...]]", sql: str) -> str:
    with hand.transaction(force_rollback=True):
        try:
            return f"{hand.execute(sql.encode()).rowcount} row"
        except psycopg.errors.DivisionByZero as error:
            return str(error)


def test_an_owner_is_enough_and_other_roles_are_told_what_they_lack(
    postgres: PostgresServer, fresh: Callable[[], str]
) -> None:
    url = fresh()
    name = url.rpartition("/")[2]
    owner, reader = (postgres.url(name, user=f"{kind}_{name}") for kind in ("owner", "reader"))
    with psycopg.connect(url, autocommit=True) as hand:
        for text in (f"ROLE owner_{name} LOGIN", f"ROLE reader_{name} LOGIN"):
            hand.execute(f"CREATE {text}")
        hand.execute(f"ALTER DATABASE {name} OWNER TO owner_{name}")
        with pytest.raises(MisuseError, match="has to own the database"):
            PostgresDatabase(reader, {"topics": "t"})
        database = PostgresDatabase(owner, {"topics": "t"})
        run(database, "CREATE TABLE t(id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
        database.commit("p", [], 1)
        database.close()
        with pytest.raises(MisuseError, match="GRANT USAGE ON SCHEMA"):
            PostgresState(reader)
        hand.execute(f"GRANT USAGE ON SCHEMA _unisono TO reader_{name}")
        hand.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA _unisono, public TO reader_{name}")
        with closing(PostgresState(reader)) as seen, closing(PostgresState(owner)) as own:
            assert seen.hash() == own.hash()


def test_a_copy_is_the_same_and_an_edit_by_hand_is_seen(fresh: Callable[[], str], tmp_path: Path) -> None:
    here, there = fresh(), fresh()
    database = PostgresDatabase(here, {"topics": "t"})
    run(database, *SCHEMA, "CREATE TABLE nokey(x int, y json)", "INSERT INTO nokey VALUES (2, '{}'), (1, '[]')")
    database.commit("p1", [("me", 1)], 1)
    run(database, "DELETE FROM t")  # tentative: in no copy
    database.copy_to(tmp_path / "copy")
    binaries = find_postgres()
    assert binaries is not None
    subprocess.run([binaries / "pg_restore", "--no-owner", f"--dbname={there}", tmp_path / "copy"], check=True)
    copied = PostgresDatabase(there, {"topics": "t"})
    assert (copied.position, copied.hash()) == ("p1", database.hash())
    with psycopg.connect(there, autocommit=True) as hand:
        hand.execute("UPDATE t SET n = 5 WHERE id = 2")
        assert copied.hash() != database.hash()
        assert [(each.table, each.second) for each in differences(here, there)] == [("public.t", [2, 5, None, None])]
        hand.execute("UPDATE t SET n = 2 WHERE id = 2")
        assert copied.hash() == database.hash()
        hand.execute("ALTER TABLE t ALTER n DROP NOT NULL")
        assert copied.hash() != database.hash()
    assert read_replica(here).operations == 1
    for each in (database, copied):
        each.close()


def test_the_hash_knows_no_places_whatever_columns_are_called(fresh: Callable[[], str]) -> None:
    """A table without a key is read in the order of its rows as texts, also if a column is called like the row."""
    made = ("CREATE TABLE c(t text, v int)", "INSERT INTO c VALUES ('x', 1), ('x', 2), ('x', 3)")
    first, second = (PostgresDatabase(fresh(), {"topics": "t"}) for _ in range(2))
    for each in (first, second):
        assert run(each, *made).error is None
        each.commit("p", [], 1)
    second.begin()
    assert run(second, "UPDATE c SET v = 9 WHERE v = 1", "UPDATE c SET v = 1 WHERE v = 9").error is None
    second.commit("p", [], 2)
    assert first.read("SELECT v FROM c", ()).rows != second.read("SELECT v FROM c", ()).rows
    assert first.hash() == second.hash()
    for each in (first, second):
        each.close()


async def checked_for_ever(replica: Replica) -> None:
    await replica.check()
    async for _ in replica.watch("SELECT 1"):
        pass


@plays
async def test_two_replicas_in_postgres_have_one_state_whoever_writes(fresh: Callable[[], str]) -> None:
    here, there = fresh(), fresh()
    dice = random.Random(3)
    async with (
        unisono.testing.deployment(delay="3ms", reorder=True, seed=7) as world,
        world.connect() as one,
        world.connect() as other,
        forgetful(one, here, "a") as first,
        forgetful(other, there, "b") as second,
    ):
        made = await first.transaction([(text, ()) for text in SCHEMA])
        with psycopg.connect(here) as reader:
            reader.execute("SELECT count(*) FROM pg_indexes")  # nobody waits for what is tentative
        assert made.answer is None, "a change of the schema is applied when its order is known"
        assert (await made.stable()).error is None
        await second.catch_up()
        take = "UPDATE t SET n = (n * 3 + $1) % 49 WHERE id = $2 RETURNING n"
        executions = [
            await dice.choice((first, second)).execute(take, (dice.randrange(9), dice.choice((1, 2, 3))))
            for _ in range(60)
        ]
        for execution in executions:
            assert (await execution.stable()).error is None
        for replica in (first, second, first):
            await replica.catch_up()
        rows = (await first.query("SELECT * FROM t ORDER BY id")).rows
        assert rows == (await second.query("SELECT * FROM t ORDER BY id")).rows
        assert sum(execution.withdrawals for execution in executions) > 0
        compared = await run_command("compare", here, there)
        assert (compared[0], compared[1].splitlines()[-1]) == (0, "the same")
        with psycopg.connect(there, autocommit=True) as hand:
            hand.execute("UPDATE t SET n = 48 WHERE id = 1")
        with pytest.raises(DivergedError, match="changed by hand"):  # whoever hears of the other's state first
            await asyncio.gather(checked_for_ever(first), checked_for_ever(second))
        code, out, _ = await run_command("compare", here, there)
        assert code == 1
        assert "public.t: [1," in out
