"""The database side of an outbox: a publication of one table, a logical replication slot, and how far it was relayed.

What is relayed is remembered in the database itself (schema `_unisono_outbox`), with what was about to be: whoever was
killed in between says the same events under the same numbers again. A database that was restored remembers less than
was published, or has lost its slot: both are found, and nothing is relayed then.
"""

import hashlib
import time
from typing import Any

import msgspec
from msgspec import Struct

from unisono.errors import DataLossError, ForgottenError, MisuseError, TransportError
from unisono.outbox.changes import CommittedRows, commits_of
from unisono.postgres.connection import PostgresConnection, PostgresValue, StatementError, quoted

SCHEMA = "_unisono_outbox"
BUSY_S = 10.0
"""How long a lock or a slot that a killed relay still seems to hold is waited for."""

_STATE = f"""CREATE TABLE IF NOT EXISTS {SCHEMA}.state(
    name text PRIMARY KEY, source text NOT NULL, system text NOT NULL, timeline int NOT NULL,
    upto pg_lsn NOT NULL, number bigint NOT NULL, next_upto pg_lsn NOT NULL, next_number bigint NOT NULL,
    topics text NOT NULL)"""
_RIGHTS = (
    "the role needs REPLICATION, CREATE on the database, and to own the table: as superuser, "
    "ALTER ROLE {role} REPLICATION; GRANT CREATE ON DATABASE {database} TO {role}; ALTER TABLE {table} OWNER TO {role}"
)


class OutboxState(Struct):
    """How far the table was relayed: all commits up to `upto` are events up to `number`. What is about to be published
    ends at `next_upto` and `next_number`."""

    upto: int
    number: int
    next_upto: int
    next_number: int
    topics: dict[str, int]
    """The last number of each topic."""


class OutboxSource:
    """One connection to the database; every method blocks."""

    def __init__(self, url: str, table: str, name: str) -> None:
        """Makes publication, slot and state where they are not there yet; MisuseError says what to do first."""
        self.table, self.name = table, name
        self.slot = _slot_of(name)
        self._connection = PostgresConnection(
            url, f"unisono outbox {name}", DateStyle="ISO", TimeZone="UTC", bytea_output="hex", extra_float_digits="1"
        )
        self.place = self._connection.place
        try:
            self._lock()
            self._prepare()
            self.state = self._read_state()
            self._check()
        except StatementError as error:
            meaning = self._meaning(error)
            self._connection.close()
            raise meaning from None
        except BaseException:
            self._connection.close()
            raise

    def close(self) -> None:
        self._connection.close()

    # at the beginning

    def _lock(self) -> None:
        key = int.from_bytes(hashlib.sha256(self.slot.encode()).digest()[:8], "big", signed=True)
        until = time.monotonic() + BUSY_S
        while self._connection.run("SELECT pg_try_advisory_lock($1::bigint)", (key,)).rows != [(True,)]:
            if time.monotonic() >= until:
                raise MisuseError(f"{self.place}: another relay has outbox {self.name!r}; one is enough")
            time.sleep(0.1)

    def _prepare(self) -> None:
        texts = self._connection.texts
        if texts("SHOW wal_level") != [("logical",)]:
            raise MisuseError(f"{self.place}: set wal_level = logical in postgresql.conf, and restart the server")
        if texts("SELECT to_regclass($1)::text", ("_unisono.progress",)) != [("",)]:
            raise MisuseError(f"{self.place} is a replica: its rows would become events once per replica")
        found = texts(
            "SELECT c.oid::regclass::text, c.relpersistence::text, c.relkind::text FROM pg_class c "
            "WHERE c.oid = to_regclass($1)",
            (self.table,),
        )
        if not found or found[0][2] not in "rp":
            raise MisuseError(f"{self.place} has no table {self.table}{': that is something else' if found else ''}")
        if found[0][1] != "p":
            raise MisuseError(f"{self.table} is unlogged or temporary: nothing tells of its rows")
        if texts("SELECT to_regclass($1)::text", (f"{SCHEMA}.state",)) == [("",)]:
            self._connection.run(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}")
            self._connection.run(_STATE)
        if not texts("SELECT pubname FROM pg_publication WHERE pubname = $1", (self.slot,)):
            self._connection.run(
                f"CREATE PUBLICATION {quoted(self.slot)} FOR TABLE {found[0][0]} "
                "WITH (publish = 'insert', publish_via_partition_root = true)"
            )
        self._make_slot(found[0][0])

    def _make_slot(self, source: str) -> None:
        """The first time only: a slot that is not there any more may have been lost with rows that nobody has."""
        known = self._connection.texts(f"SELECT source FROM {SCHEMA}.state WHERE name = $1", (self.name,))
        if known:
            if known != [(source,)]:
                raise MisuseError(f"outbox {self.name!r} relays {known[0][0]}, not {source}: choose another --name")
            return
        for (other,) in self._connection.texts(f"SELECT name FROM {SCHEMA}.state"):
            if _slot_of(other) == self.slot:
                raise MisuseError(f"outbox {other!r} has the slot {self.slot} already: choose another --name")
        if not self._slot():
            self._connection.run("SELECT pg_create_logical_replication_slot($1, 'pgoutput')", (self.slot,))
        system, timeline = self._identity()
        self._connection.run(
            f"INSERT INTO {SCHEMA}.state "
            "SELECT $1, $2, $3, $4, s.confirmed_flush_lsn, 0, s.confirmed_flush_lsn, 0, '{}' "
            "FROM pg_replication_slots s WHERE s.slot_name = $5",
            (self.name, source, system, timeline, self.slot),
        )

    def _identity(self) -> tuple[str, int]:
        system, timeline = self._connection.texts(
            "SELECT system_identifier::text, timeline_id FROM pg_control_system(), pg_control_checkpoint()"
        )[0]
        return system, int(timeline)

    def _slot(self) -> list[tuple[str, ...]]:
        return self._connection.texts(
            "SELECT plugin::text, coalesce(database, '')::text, coalesce(wal_status, ''), "
            "(confirmed_flush_lsn - '0/0')::text, pg_current_wal_lsn() - restart_lsn, database = current_database() "
            "FROM pg_replication_slots WHERE slot_name = $1",
            (self.slot,),
        )

    def _read_state(self) -> OutboxState:
        asked = "upto - '0/0', number, next_upto - '0/0', next_number, topics"
        row = self._connection.texts(f"SELECT {asked} FROM {SCHEMA}.state WHERE name = $1", (self.name,))[0]
        topics = msgspec.json.decode(row[4], type=dict[str, int])
        return OutboxState(int(row[0]), int(row[1]), int(row[2]), int(row[3]), topics)

    def _check(self) -> None:
        row = self._connection.texts(f"SELECT system, timeline FROM {SCHEMA}.state WHERE name = $1", (self.name,))[0]
        system, timeline = self._identity()
        if (row[0], int(row[1])) != (system, timeline):
            raise ForgottenError(
                f"{self.place} was restored, or is a copy: outbox {self.name!r} was relayed from system {row[0]}, "
                f"timeline {row[1]}, and this is {system}, timeline {timeline}. {self._begin_anew()}"
            )
        slot = self._slot()
        if not slot or slot[0][2] == "lost":
            raise DataLossError(
                f"{self.place}: the slot {self.slot} {'has lost what it kept' if slot else 'is gone'}: rows committed "
                f"since {lsn_text(self.state.upto)} may be relayed never. {self._begin_anew()}"
            )
        plugin, database, _, confirmed, _, is_ours = slot[0]
        if plugin != "pgoutput" or is_ours != "True":
            raise MisuseError(f"{self.place}: the slot {self.slot} is of {plugin} in {database}: choose another --name")
        if int(confirmed) > self.state.upto:
            raise ForgottenError(
                f"{self.place}: the slot {self.slot} has gone on to {lsn_text(int(confirmed))}, and outbox "
                f"{self.name!r} remembers {lsn_text(self.state.upto)} only: the database was restored, or somebody "
                f"else reads the slot. {self._begin_anew()}"
            )
        if int(confirmed) < self.state.upto:
            self.advance()  # a server that was killed has forgotten how far; a peek would bring what is relayed already

    def _begin_anew(self) -> str:
        return (
            "Compare the table with what was published, insert again what is missing, and begin with another --name; "
            f"drop the old slot: SELECT pg_drop_replication_slot('{self.slot}')"
        )

    # relaying

    def peek(self, rows_max: int, upto: int | None = None) -> list[CommittedRows]:
        """The commits after the state, in their order; with `upto` those to there."""
        try:
            found = self._slot_call(
                f"SELECT data FROM pg_logical_slot_peek_binary_changes($1, {'NULL' if upto is None else '$3::pg_lsn'}, "
                "$2::int, 'proto_version', '1', 'publication_names', '" + quoted(self.slot).replace("'", "''") + "')",
                (self.slot, rows_max if upto is None else 2**31 - 1, *(() if upto is None else (lsn_text(upto),))),
            )
        except StatementError as error:
            raise self._meaning(error) from None
        commits = commits_of(bytes(data) for (data,) in found if isinstance(data, bytes))
        return [commit for commit in commits if commit.end > self.state.upto and (upto is None or commit.end <= upto)]

    def intend(self, upto: int, number: int) -> None:
        """What will be published: should we be killed, exactly that is published under the same numbers."""
        self._write("next_upto = $2::pg_lsn, next_number = $3", lsn_text(upto), number)
        self.state.next_upto, self.state.next_number = upto, number

    def done(self, topics: dict[str, int]) -> None:
        """What was intended is published."""
        state = self.state
        known = state.topics | topics
        self._write("upto = next_upto, number = next_number, topics = $2", msgspec.json.encode(known).decode())
        state.upto, state.number, state.topics = state.next_upto, state.next_number, known
        self.advance()

    def skip(self, upto: int) -> None:
        """Nothing of the table was committed up to there: the server need not keep it."""
        self._write("upto = $2::pg_lsn, next_upto = $2::pg_lsn", lsn_text(upto))
        self.state.upto = self.state.next_upto = upto
        self.advance()

    def advance(self) -> None:
        """The server may forget what is relayed."""
        try:
            self._slot_call(
                "SELECT pg_replication_slot_advance($1, $2::pg_lsn)", (self.slot, lsn_text(self.state.upto))
            )
        except StatementError as error:
            raise self._meaning(error) from None

    def lag(self) -> tuple[int, int]:
        """Where the log ends, and how many bytes of it the server keeps for this slot."""
        try:
            end = self._connection.texts("SELECT pg_current_wal_flush_lsn() - '0/0'")[0][0]
            slot = self._slot()
        except StatementError as error:
            raise self._meaning(error) from None
        return int(end), int(slot[0][4] or 0) if slot else 0

    def check_table(self) -> None:
        """Rows of a table that was made anew, or is told of no more, would be missing without a word."""
        try:
            found = self._connection.texts(
                "SELECT FROM pg_publication p JOIN pg_publication_rel r ON r.prpubid = p.oid "
                "WHERE p.pubname = $1 AND p.pubinsert AND r.prrelid = to_regclass($2)",
                (self.slot, self.table),
            )
        except StatementError as error:
            raise self._meaning(error) from None
        if not found:
            raise DataLossError(
                f"{self.place}: {self.table} is not the table any more that outbox {self.name!r} relays: dropped, "
                f"made anew, or is not in the publication {self.slot}. Rows that it has got since may be relayed "
                f"never. {self._begin_anew()}; DROP PUBLICATION {quoted(self.slot)}"
            )

    def _write(self, change: str, *values: PostgresValue) -> None:
        try:
            self._connection.run(f"UPDATE {SCHEMA}.state SET {change} WHERE name = $1", (self.name, *values))
        except StatementError as error:
            raise self._meaning(error) from None

    def _slot_call(self, sql: str, params: tuple[PostgresValue, ...]) -> list[tuple[Any, ...]]:
        """A slot is active for a moment after its last user was killed."""
        until = time.monotonic() + BUSY_S
        while True:
            try:
                return list(self._connection.run(sql, params).rows)
            except StatementError as error:
                if error.state != "55006" or time.monotonic() >= until:
                    raise
                time.sleep(0.1)

    def _meaning(self, error: StatementError) -> MisuseError | TransportError:
        match error.state:
            case "42501":
                role, database = self._connection.texts("SELECT current_user::text, current_database()::text")[0]
                what = _RIGHTS.format(role=role, database=database, table=self.table)
                return MisuseError(f"{self.place}: {error}: {what}")
            case "42602":
                return MisuseError(f"{self.table} is no name of a table: write it as in SQL, like '\"Odd name\"'")
            case "53400":
                return MisuseError(f"{self.place}: {error}: raise max_replication_slots, or drop slots nobody uses")
            case "55006":
                return MisuseError(f"{self.place}: {error}: somebody else reads the slot {self.slot}")
            case _:
                return TransportError(f"{self.place}: {error} ({error.state})")


def _slot_of(name: str) -> str:
    """Slots have small letters, digits and _ in their names."""
    return "unisono_" + name.lower().replace("-", "_")


def lsn_text(lsn: int) -> str:
    """A place in the log as PostgreSQL writes it."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"
