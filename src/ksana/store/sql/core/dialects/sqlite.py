"""SQLite: one file, one writer, in our process."""

import os
import sqlite3
import time
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

from ksana.base.clock import Clock
from ksana.base.errors import StoreDownError
from ksana.store.sql.core import bulk, sqlite_file, sqlite_place
from ksana.store.sql.core.dialects.base import Send, Trouble, all_match
from ksana.store.sql.core.statements import Macros

_PASSING = frozenset({sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_NOMEM})
"""Out of descriptors or memory, the folder gone or mounted read-only: later perhaps."""

_SAME_FROM = 16
"""From so many rows on what they have in common is bound once."""

_STEPS = 50_000
"""Steps of SQLite's machine between two looks at the clock: some milliseconds."""


class SqliteDialect:
    """The embedded store: one file, one writer."""

    name = "sqlite"
    is_network = False
    has_keys = False
    fold: Callable[[str], str] | None = None
    avoid_sorts: str | None = None
    begin_write = "BEGIN IMMEDIATE"
    begin_read = "BEGIN"
    clock_sql = "SELECT ksana_now()"
    macros = Macros(
        {
            "id": "INTEGER PRIMARY KEY AUTOINCREMENT",
            "bigtext": "TEXT",
            "blob": "BLOB",
            "table_options": "",
            "clustered_options": "WITHOUT ROWID",
            "now": "ksana_now()",
            "skip_locked": "",
            "for_update": "",
            "insert_ignore": "INSERT INTO",
            "on_conflict_ignore": "ON CONFLICT DO NOTHING",
            "upsert": "ON CONFLICT ({}) DO UPDATE SET",
            "excluded": "excluded.{}",
            "true": "1",
            "force_index": "INDEXED BY {}",
            "force_primary": "",
            "below": "{0} = :{2} AND {1} < :before",
            "above": "{0} = :{2} AND {1} > :after",
            "text_below": "({0} || '') = :{2} AND {1} < :before",
            "bytewise": "{}",
            "text_between": "({0} || '') = :{0} AND {1} > :floor AND {1} < :top",
            "text_up": "ORDER BY {1}",
            "only": "{0} = :{0}",
            "first": "",
            "last": "",
            "down": "ORDER BY {1} DESC",
            "text_down": "ORDER BY {1} DESC",
            "up": "ORDER BY {1}",
            "by_primary": "NOT INDEXED",  # the rows in the order of their ids
            "in": "IN (SELECT value FROM json_each(:{}))",
            "keyed": "{2} = :{2}",
            "keyed_pair": "{2} = :{2} AND {3} = :{3}",
            "keyed_in": "{2} IN (SELECT value FROM json_each(:{3}))",
            "partial": "position = {0}",
            "either": "{0}",
            "only_of": "{0} = :{0}",
            "keys_of": "{0}",
            "text": "CAST({} AS TEXT)",
            "sha256": "ksana_sha256({})",
            "widen": "",  # it does not enforce lengths
            "same": bulk.SAME + ":{}",
            "alike": bulk.ALIKE + ":{}",
            # statements for one of them alone
            "postgres": "",
            "mysql": "",
            "sqlite": "{}",
        },
        parameter=":{}",
        keeps_where=True,
        escapes_percent=False,
        is_numbered=True,
    )

    _NO_ROOM = frozenset(
        {sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_SHMSIZE, sqlite3.SQLITE_IOERR_SHMOPEN}
    )
    """Writes refused for want of room (EDQUOT, ENOSPC on some systems): full, not broken, for
    nothing was synced yet."""

    _NOT_SYNCED = frozenset({sqlite3.SQLITE_IOERR_FSYNC, sqlite3.SQLITE_IOERR_DIR_FSYNC})
    """After these the kernel may report success for data it dropped. Every other error of the disk
    may pass: nothing was acknowledged that is not on it."""

    def __init__(self, path: str, clock: Clock) -> None:
        self.path = path
        self._clock = clock

    def connect(self, read_only: bool) -> sqlite3.Connection:
        return sqlite_file.connect(self.path, self._clock, read_only)

    def cursor(self, connection: Any) -> Any:
        return connection.cursor()

    def limit_reads(self, connection: sqlite3.Connection, seconds: float) -> None:
        give_up_at = time.monotonic() + seconds
        connection.set_progress_handler(lambda: time.monotonic() > give_up_at, _STEPS)

    def classify(self, error: BaseException) -> Trouble:
        if not isinstance(error, sqlite3.Error):
            return Trouble.OURS
        code = getattr(error, "sqlite_errorcode", None)
        primary = code & 0xFF if code is not None else None
        if primary in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return Trouble.RETRY
        if primary == sqlite3.SQLITE_INTERRUPT:
            return Trouble.SLOW
        if primary == sqlite3.SQLITE_FULL:
            return Trouble.FULL
        if primary == sqlite3.SQLITE_IOERR:
            if code in self._NOT_SYNCED:
                return Trouble.BROKEN
            return Trouble.FULL if code in self._NO_ROOM else Trouble.LOST
        if primary in _PASSING:
            return Trouble.LOST
        if primary in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            return Trouble.DAMAGED
        if code is None and "Could not decode to UTF-8" in str(error):
            return Trouble.DAMAGED  # the driver's own error: nothing but UTF-8 is ever written
        return Trouble.OURS

    def find_refusal(self, error: BaseException) -> str | None:
        return None

    def insert_ids(self, send: Send, cursor: Any, sql: str, rows: Sequence[Any]) -> list[int]:
        if len(rows) == 1:
            cursor.execute(sql, rows[0])
            return [cursor.lastrowid]
        ids: list[int] = []
        for width, piece in bulk.split(rows):
            wide = _join(sql, width, piece)
            if wide is None:
                for row in piece:
                    cursor.execute(sql, row)
                    ids.append(cursor.lastrowid)
            else:  # one writer, so the ids of one statement follow each other
                cursor.execute(*wide)
                ids.extend(range(cursor.lastrowid - width + 1, cursor.lastrowid + 1))
        return ids

    def widen(self, cursor: Any, sql: str, rows: Sequence[Any]) -> list[tuple[str, Any]]:
        statements: list[tuple[str, Any]] = []
        for width, piece in bulk.split_for(sql, rows):
            wide = _join(sql, width, piece)
            if wide is None:
                statements += [(sql, row) for row in piece]
            else:
                statements.append(wide)
        return statements

    def send(self, cursor: Any, statements: Sequence[tuple[str, Any]]) -> list[int]:
        return [cursor.execute(sql, values or ()).rowcount for sql, values in statements]

    def require(
        self, cursor: Any, sql: str, rows: Sequence[Any], *, is_race: bool = False
    ) -> list[tuple[str, Any]]:
        return self.widen(cursor, sql, rows)  # the session counts, it costs nothing here

    def ask(
        self,
        cursor: Any,
        before: Sequence[tuple[str, Any]],
        questions: Sequence[tuple[str, Any]],
    ) -> list[list[Any]]:
        self.send(cursor, before)
        return [cursor.execute(sql, values or ()).fetchall() for sql, values in questions]

    def run_each(self, send: Send, cursor: Any, sql: str, rows: Sequence[Any]) -> list[bool]:
        if all_match(self, send, cursor, sql, rows):
            return [True] * len(rows)
        return [cursor.execute(sql, row).rowcount == 1 for row in rows]


def _join(sql: str, width: int, rows: Sequence[Any]) -> tuple[str, Any] | None:
    """One statement for all rows, with what they have in common bound once: the driver takes 50 ns
    for a value, and 200 for a NULL. None if they must be run one by one."""
    if width == 1:
        return None
    if width >= _SAME_FROM and bulk.list_same(sql):
        columns = list(zip(*rows, strict=True))
        same = bulk.find_same(sql, columns)
        wide = bulk.widen_same(sql, width, same) if same else None
        if wide is not None:
            others = [values for place, values in enumerate(columns) if place not in same]
            firsts = [columns[place][0] for place in same]
            return wide, (*firsts, *chain.from_iterable(zip(*others, strict=True)))
    wide = bulk.widen(sql, width)
    return None if wide is None else (wide, tuple(chain.from_iterable(rows)))


class FilePlace:
    """The file that was opened. Used by the one writer, before it writes."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._file = self._identify()

    def check(self) -> None:
        """Raise StoreDownError while another file, or none, is in the place of ours: what would be
        written now could not be found again."""
        file = self._identify()
        if file != self._file:
            what = "removed" if file is None else "replaced by another"
            raise StoreDownError(
                f"the store's file {self._path} was {what} while the server runs: move it back, or "
                f"stop the server and restore a backup ({sqlite_place.WAY_BACK})",
                retry_after_sec=30,
            )

    def _identify(self) -> tuple[int, int] | None:
        try:
            found = os.stat(self._path)
        except OSError:
            return None
        return found.st_dev, found.st_ino
