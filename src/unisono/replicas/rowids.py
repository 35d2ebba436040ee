"""The numbers that SQLite gives to rows.

Each is one more than the highest, which undoing takes back like all else. After the highest that there can be it takes
them at random, or says that the disk is full (AUTOINCREMENT). So no statement may leave a row there: it would be well,
and the next one would make every replica another, or stop them all.
"""

import sqlite3
from collections.abc import Iterable

from unisono.errors import MisuseError
from unisono.replicas.state import ROWIDS, quoted

HIGHEST = 2**63 - 1
_REMEMBERED = "sqlite_sequence"


class HighestRowids:
    """Looks at the highest row of the tables that a statement has put rows into."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._known: dict[str, str | None] = {}

    def forget(self) -> None:
        """The schema is another one."""
        self._known.clear()

    def check(self, tables: Iterable[str]) -> None:
        """Raises MisuseError for a table that has no number left."""
        for table in tables:
            if table not in self._known:
                self._known[table] = self._question(table)
            question = self._known[table]
            if question is not None and self._connection.execute(question, (HIGHEST,)).fetchone() is not None:
                raise MisuseError(f"a row of {table} with the number {HIGHEST} leaves none for the next row")

    def _question(self, table: str) -> str | None:
        """None where rows have no number: of a table WITHOUT ROWID, and of a view."""
        if table == _REMEMBERED:
            return f"SELECT 1 FROM {table} WHERE CAST(seq AS INTEGER) >= ?"
        found = self._connection.execute(f"PRAGMA table_xinfo({quoted(table)})").fetchall()
        columns = {str(name).lower() for _, name, *_ in found}
        keys = [quoted(str(name)) for _, name, _, _, _, part, _ in found if part]
        free = [name for name in ROWIDS if name not in columns] or keys[:1]
        if not free:
            return None
        question = f"SELECT 1 FROM {quoted(table)} WHERE {free[0]} = ?"
        try:
            self._connection.execute(question, (HIGHEST,))
        except sqlite3.OperationalError:
            return None
        return question
