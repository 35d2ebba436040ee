"""What a replica's database in PostgreSQL holds, for whoever may read it, open or not; and the hash of it."""

import hashlib
from collections.abc import Iterator
from typing import Any

import msgspec

from unisono.errors import FormatError, MisuseError
from unisono.postgres.connection import PostgresConnection, StatementError, quoted
from unisono.replicas.postgres.determinism import SCHEMA
from unisono.replicas.postgres.settings import connect

HASHED_AT_ONCE = 1000
_ROW = f"{SCHEMA}_row"
"""A row of the table; no column has such a name."""
_USERS = f"n.nspname NOT IN ('{SCHEMA}', 'information_schema') AND n.nspname NOT LIKE 'pg\\_%'"
_SCHEMA_TEXTS = f"""
    SELECT 'column', n.nspname || '.' || c.relname || '.' || a.attname,
           concat_ws(' ', format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attgenerated, l.collname,
                     pg_get_expr(d.adbin, d.adrelid)) AS text
    FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace
    LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
    LEFT JOIN pg_collation l ON l.oid = a.attcollation
    WHERE a.attnum > 0 AND NOT a.attisdropped AND c.relkind IN ('r', 'p', 'c') AND {_USERS}
    UNION ALL SELECT 'constraint', n.nspname || '.' || coalesce(c.relname, t.typname) || '.' || k.conname,
                     pg_get_constraintdef(k.oid)
    FROM pg_constraint k JOIN pg_namespace n ON n.oid = k.connamespace LEFT JOIN pg_class c ON c.oid = k.conrelid
    LEFT JOIN pg_type t ON t.oid = k.contypid WHERE k.contype <> 't' AND {_USERS}
    UNION ALL SELECT 'index', schemaname || '.' || indexname, indexdef FROM pg_indexes n
    WHERE schemaname NOT IN ('{SCHEMA}', 'information_schema') AND schemaname NOT LIKE 'pg\\_%'
    UNION ALL SELECT 'view', n.nspname || '.' || c.relname, pg_get_viewdef(c.oid)
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.relkind = 'v' AND {_USERS}
    UNION ALL SELECT 'function', n.nspname || '.' || p.proname, pg_get_functiondef(p.oid)
    FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace WHERE p.prokind IN ('f', 'p') AND {_USERS}
    UNION ALL SELECT 'trigger', n.nspname || '.' || c.relname || '.' || t.tgname, pg_get_triggerdef(t.oid)
    FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE NOT t.tgisinternal AND {_USERS}
    UNION ALL SELECT 'label', n.nspname || '.' || t.typname, string_agg(e.enumlabel, ',' ORDER BY e.enumsortorder)
    FROM pg_enum e JOIN pg_type t ON t.oid = e.enumtypid JOIN pg_namespace n ON n.oid = t.typnamespace
    WHERE {_USERS} GROUP BY 1, 2
    ORDER BY 1, 2, 3"""
_TABLES = f"""SELECT n.nspname || '.' || c.relname FROM pg_class c
    JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.relkind = 'r' AND {_USERS}
    ORDER BY n.nspname COLLATE "C", c.relname COLLATE "C\""""
_KEY = """SELECT a.attname FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey)
    WHERE i.indrelid = to_regclass($1) AND i.indisprimary ORDER BY array_position(i.indkey::int2[], a.attnum)"""


class PostgresState:
    """A database, opened to be read in one unchanging state. Nothing is written."""

    def __init__(self, url: str) -> None:
        self._connection = connect(url, "unisono replica check", default_transaction_read_only="on")
        self.place = self._connection.place
        try:
            self._connection.run("BEGIN ISOLATION LEVEL REPEATABLE READ")
            self._connection.run(f"SELECT count FROM {SCHEMA}.progress")
        except StatementError as error:
            self._connection.close()
            if error.state == "42501":
                raise MisuseError(
                    f"{self.place}: {error}: as its owner, GRANT USAGE ON SCHEMA {SCHEMA} to the role, and SELECT "
                    f"ON ALL TABLES IN SCHEMA {SCHEMA} and where the data is"
                ) from None
            raise FormatError(self.place, f"no replica's database: {error}") from None

    def identity(self) -> dict[str, str]:
        return {row[0]: row[1] for row in self._connection.texts(f"SELECT name, value FROM {SCHEMA}.identity")}

    def count(self) -> int:
        return int(self._connection.texts(f"SELECT count FROM {SCHEMA}.progress")[0][0])

    def hash(self) -> str:
        return _hash(self._connection)

    def problems(self) -> list[str]:
        """PostgreSQL looks for damage itself, where it was told to (data checksums); what it cannot read says so."""
        for table in self.tables():
            try:
                for _ in self.rows(table):
                    pass
            except StatementError as error:
                return [f"{table}: {error}"]
        return []

    def tables(self) -> list[str]:
        return [name for (name,) in self._connection.texts(_TABLES)]

    def rows(self, table: str) -> Iterator[tuple[Any, ...]]:
        return _rows(self._connection, table)

    def close(self) -> None:
        self._connection.close()


def identity_of(connection: PostgresConnection) -> dict[str, str]:
    """What the meaning of operations depends on: the server's version and how it compares texts."""
    asked = """SELECT pg_encoding_to_char(encoding)::text, datcollate::text, datctype::text,
               coalesce(datcollversion, '')::text FROM pg_database WHERE datname = current_database()"""
    if connection.version < 15:
        asked = asked.replace("coalesce(datcollversion, '')", "''")
    encoding, collate, ctype, version = connection.texts(asked)[0]
    locale = connection.texts(
        "SELECT concat_ws(' ', nullif(found ->> 'datlocprovider', 'c'), found ->> 'daticulocale', "
        "found ->> 'datlocale', found ->> 'daticurules') FROM (SELECT to_jsonb(d) AS found FROM pg_database d "
        "WHERE datname = current_database()) s"  # which of these there are depends on the version
    )[0][0]
    if encoding != "UTF8":
        raise MisuseError(f"{connection.place} has encoding {encoding}: make it with ENCODING 'UTF8'")
    return {"postgres": str(connection.version), "collation": " ".join(filter(None, (collate, ctype, locale, version)))}


def hash_of(connection: PostgresConnection) -> str:
    """The hash of all that operations can have written, and nothing else."""
    connection.run("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
    try:
        return _hash(connection)
    finally:
        connection.run("COMMIT")


def _hash(connection: PostgresConnection) -> str:
    digest = hashlib.sha256()
    for row in connection.run(_SCHEMA_TEXTS).rows:
        digest.update(msgspec.msgpack.encode(row))
    for (table,) in connection.texts(_TABLES):
        digest.update(msgspec.msgpack.encode(table))
        for row in _rows(connection, table):
            digest.update(msgspec.msgpack.encode(row))
    return digest.hexdigest()


def _rows(connection: PostgresConnection, table: str) -> Iterator[tuple[Any, ...]]:
    """All rows of a table in the order of its key; without one, in that of their texts. In a transaction."""
    schema, _, name = table.partition(".")
    full = f"{quoted(schema)}.{quoted(name)}"
    key = [f"{_ROW}.{quoted(column)}" for (column,) in connection.texts(_KEY, (full,))]
    order = ", ".join(key) or f'{_ROW}::text COLLATE "C"'
    connection.run(f"DECLARE unisono_rows NO SCROLL CURSOR FOR SELECT {_ROW}.* FROM {full} {_ROW} ORDER BY {order}")
    try:
        while rows := connection.run(f"FETCH {HASHED_AT_ONCE} FROM unisono_rows").rows:
            yield from rows
    finally:
        if connection.in_transaction:
            connection.run("CLOSE unisono_rows")
