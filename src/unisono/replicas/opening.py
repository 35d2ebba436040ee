"""Which kind of database an address names: SQLite in a file, or PostgreSQL at `postgres://…`."""

from pathlib import Path

from unisono.postgres.address import is_postgres, place_of
from unisono.replicas.sqlite import SqliteDatabase
from unisono.replicas.state import SqliteState
from unisono.replicas.store import ReplicaState, ReplicaStore


def name_of(place: str | Path) -> str:
    """What a replica at this place calls itself, unless it is told."""
    return (
        place_of(str(place)).rpartition("@")[2].removeprefix("postgres://") if is_postgres(place) else Path(place).name
    )


def open_store(place: str | Path, identity: dict[str, str]) -> ReplicaStore:
    """The database at an address, for one process; MisuseError: another process has it, or it is another replica's."""
    if is_postgres(place):
        from unisono.replicas.postgres.database import PostgresDatabase  # it needs the extra postgres

        return PostgresDatabase(str(place), identity)
    return SqliteDatabase(Path(place), identity)


def open_state(place: str | Path) -> ReplicaState:
    """The database at an address, to be read; FormatError: it is no replica's."""
    if is_postgres(place):
        from unisono.replicas.postgres.state import PostgresState

        return PostgresState(str(place))
    return SqliteState(Path(place))
