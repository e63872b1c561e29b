"""What differs between SQLite, MariaDB/MySQL and PostgreSQL: words of SQL, how to connect, and what
an error means.

The drivers are imported here and only when their database is used, so the default install needs
none of them.
"""

import re
import sqlite3
from collections.abc import Sequence
from enum import Enum
from itertools import chain
from typing import Any, Protocol
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

from ksana.base.clock import Clock
from ksana.base.errors import SetupError
from ksana.store.sql.core import bulk, sqlite_file
from ksana.store.sql.core.statements import Macros


class Trouble(Enum):
    """What a driver's error means to us."""

    RETRY = "retry"  #: a deadlock or lock wait: nothing happened, run it again
    LOST = "lost"  #: the connection is gone; before COMMIT nothing happened, during COMMIT nobody knows yet
    FULL = "full"  #: no room: nothing happened, later perhaps
    BROKEN = "broken"  #: the disk refused to make it durable: nothing after this can be trusted
    OURS = "ours"  #: a statement or a constraint of ours failed: the function's own error


class Dialect(Protocol):
    """One database family."""

    name: str
    macros: Macros
    is_network: bool

    def connect(self, read_only: bool) -> Any:
        """Open a DB-API connection in autocommit mode; transactions are begun by statement."""
        ...

    def judge(self, error: BaseException) -> Trouble:
        """Say what an error from the driver means."""
        ...

    def insert_ids(self, cursor: Any, sql: str, rows: Sequence[Any]) -> list[int]:
        """Insert rows into a table with an automatic id and answer the ids, in order."""
        ...

    def run_rows(self, cursor: Any, sql: str, rows: Sequence[Any]) -> int:
        """Run a statement for each row and answer how many rows matched in all."""
        ...

    def run_each(self, cursor: Any, sql: str, rows: Sequence[Any]) -> list[bool]:
        """Run a guarded change for each row and answer for each whether its guard held."""
        ...

    def list_of(self, values: Sequence[int]) -> Any:
        """A list of numbers in the form `{in name}` takes."""
        ...

    begin_write: str
    begin_read: str
    clock_sql: str


def _sqlite_list(values: Sequence[int] | Sequence[str] | str) -> str:
    """A JSON array, which `json_each` makes rows of."""
    return values if isinstance(values, str) else msgspec.json.encode(values).decode()


def _mysql_list(values: Sequence[int] | Sequence[str]) -> Sequence[Any]:
    """The driver writes a sequence as a list in brackets; an empty one would not be SQL."""
    return values or (None,)


def _postgres_list(values: Sequence[int] | Sequence[str]) -> str:
    """An array literal without a type: the server gives it the type of the column it is compared
    with, so that the column's index serves (an array of `text` would not do for a CHAR column)."""
    if not values or isinstance(values[0], int):
        return "{" + ",".join(map(str, values)) + "}"
    texts = (str(value).replace("\\", "\\\\").replace('"', '\\"') for value in values)
    return "{" + ",".join(f'"{text}"' for text in texts) + "}"


class SqliteDialect:
    """The embedded store: one file, one writer."""

    name = "sqlite"
    is_network = False
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
            "in": "IN (SELECT value FROM json_each(:{}))",
            "text": "CAST({} AS TEXT)",
            "widen": "",  # it does not enforce lengths
        },
        parameter=":{}",
        keeps_where=True,
        escapes_percent=False,
        list_value=_sqlite_list,
        is_numbered=True,
    )

    _NO_ROOM = frozenset(
        {sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_SHMSIZE, sqlite3.SQLITE_IOERR_SHMOPEN}
    )
    """Writes refused for want of room (EDQUOT, ENOSPC on some systems): full, not broken, for
    nothing was synced yet."""

    def __init__(self, path: str, clock: Clock) -> None:
        self.path = path
        self._clock = clock

    def connect(self, read_only: bool) -> sqlite3.Connection:
        return sqlite_file.connect(self.path, self._clock, read_only)

    def judge(self, error: BaseException) -> Trouble:
        if not isinstance(error, sqlite3.Error):
            return Trouble.OURS
        code = getattr(error, "sqlite_errorcode", None)
        primary = code & 0xFF if code is not None else None
        if primary in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return Trouble.RETRY
        if primary == sqlite3.SQLITE_FULL:
            return Trouble.FULL
        if primary == sqlite3.SQLITE_IOERR:
            return Trouble.FULL if code in self._NO_ROOM else Trouble.BROKEN
        if primary in (
            sqlite3.SQLITE_CORRUPT,
            sqlite3.SQLITE_NOTADB,
            sqlite3.SQLITE_READONLY,
            sqlite3.SQLITE_CANTOPEN,
        ):
            return Trouble.BROKEN
        return Trouble.OURS

    def insert_ids(self, cursor: Any, sql: str, rows: Sequence[Any]) -> list[int]:
        if len(rows) == 1:
            cursor.execute(sql, rows[0])
            return [cursor.lastrowid]
        ids: list[int] = []
        for width, piece in bulk.split(rows):
            wide = bulk.widen(sql, width) if width > 1 else None
            if wide is None:
                for row in piece:
                    cursor.execute(sql, row)
                    ids.append(cursor.lastrowid)
            else:  # one writer, so the ids of one statement follow each other
                cursor.execute(wide, tuple(chain.from_iterable(piece)))
                ids.extend(range(cursor.lastrowid - width + 1, cursor.lastrowid + 1))
        return ids

    def run_rows(self, cursor: Any, sql: str, rows: Sequence[Any]) -> int:
        count = 0
        for width, piece in bulk.split(rows):
            wide = bulk.widen(sql, width) if width > 1 else None
            if wide is None:
                cursor.executemany(sql, piece)
            else:
                cursor.execute(wide, tuple(chain.from_iterable(piece)))
            count += cursor.rowcount
        return count

    def run_each(self, cursor: Any, sql: str, rows: Sequence[Any]) -> list[bool]:
        if _all_match(self, cursor, sql, rows):
            return [True] * len(rows)
        return [cursor.execute(sql, row).rowcount == 1 for row in rows]

    def list_of(self, values: Sequence[int]) -> Any:
        return f"[{','.join(map(str, values))}]"


class MysqlDialect:
    """MariaDB 10.6+ and MySQL 8, through PyMySQL."""

    name = "mysql"
    is_network = True
    begin_write = "BEGIN"
    begin_read = "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY"
    clock_sql = "SELECT CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS SIGNED)"
    macros = Macros(
        {
            "id": "BIGINT AUTO_INCREMENT PRIMARY KEY",
            "bigtext": "LONGTEXT",
            "blob": "LONGBLOB",
            "table_options": "ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin",
            "clustered_options": "ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin",
            "now": "CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS SIGNED)",
            "skip_locked": "FOR UPDATE SKIP LOCKED",
            "for_update": "FOR UPDATE",
            "insert_ignore": "INSERT IGNORE INTO",
            "on_conflict_ignore": "",
            "upsert": "ON DUPLICATE KEY UPDATE",
            "excluded": "VALUES({})",
            "true": "1",
            "force_index": "FORCE INDEX ({})",
            "force_primary": "FORCE INDEX (PRIMARY)",
            "in": "IN %({})s",
            "text": "CAST({} AS CHAR)",
            "widen": "ALTER TABLE {} MODIFY {} {} NOT NULL",
        },
        parameter="%({})s",
        keeps_where=False,
        escapes_percent=True,
        list_value=_mysql_list,
    )
    _CHUNK_BYTES = 4 * 1024 * 1024
    _WIDE_BYTES = 256 * 1024
    """Larger ones would have the server put the rows it is given on disk."""
    _LOST = frozenset(
        {
            2002,
            2003,
            2006,
            2013,
            2055,
            1053,
            1077,
            1079,
            1152,
            1158,
            1159,
            1160,
            1161,
            1927,
            4031,
            0,
        }
    )
    _RETRY = frozenset({1213, 1205, 1020, 3572})
    _FULL = frozenset({1021, 1026, 1114, 1041, 3})

    _SET_WRITER = (
        "SET NAMES utf8mb4 COLLATE utf8mb4_bin, SESSION innodb_lock_wait_timeout = 10"
        ", SESSION sql_mode = 'STRICT_TRANS_TABLES,NO_ENGINE_SUBSTITUTION'"
        # A transaction of ours whose process froze or whose connection died without a word must let
        # go of its rows before its lease runs out: whoever takes over needs them.
        "/*M! , SESSION idle_transaction_timeout = 10 */"
    )

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if not parts.path.strip("/"):
            raise SetupError(
                "the store URL names no database: write mysql://user:password@host:3306/database"
            )
        self._options: dict[str, Any] = {
            "host": parts.hostname or "127.0.0.1",
            "port": parts.port or 3306,
            "user": unquote(parts.username or "root"),
            "password": unquote(parts.password or ""),
            "database": unquote(parts.path.strip("/")),
        }
        query = dict(parse_qsl(parts.query))
        if "unix_socket" in query:
            self._options["unix_socket"] = query["unix_socket"]
        if "ssl_ca" in query:
            self._options["ssl"] = {"ca": query["ssl_ca"]}

    def connect(self, read_only: bool) -> Any:
        pymysql = _driver("pymysql", "mysql")
        from pymysql.constants import CLIENT

        connection = pymysql.connect(
            **self._options,
            charset="utf8mb4",
            autocommit=True,
            connect_timeout=5,
            read_timeout=5,
            write_timeout=60,
            # Guards count matched rows, not changed ones: setting a value to itself must not look
            # like a lost race.
            client_flag=CLIENT.FOUND_ROWS,
            init_command=None if read_only else self._SET_WRITER,
        )
        level = (
            "REPEATABLE READ" if read_only else "READ COMMITTED"
        )  # only the former makes a snapshot
        connection.query(f"SET SESSION TRANSACTION ISOLATION LEVEL {level}")
        connection._read_timeout = 60  # a server that accepts and then says nothing is found out sooner than a long statement
        return connection

    def judge(self, error: BaseException) -> Trouble:
        pymysql = _driver("pymysql", "mysql")
        if isinstance(error, OSError | EOFError):
            return Trouble.LOST
        if not isinstance(error, pymysql.MySQLError):
            return Trouble.OURS
        code = error.args[0] if error.args else 0
        if code in self._RETRY:
            return Trouble.RETRY
        if code in self._FULL:
            return Trouble.FULL
        if isinstance(error, pymysql.err.InterfaceError) or code in self._LOST:
            return Trouble.LOST
        if code in (1290, 1836):  # the server runs read-only: it fails over, or an operator said so
            return Trouble.LOST
        return Trouble.OURS

    def insert_ids(self, cursor: Any, sql: str, rows: Sequence[Any]) -> list[int]:
        from pymysql.cursors import RE_INSERT_VALUES

        # One multi-row INSERT gets consecutive ids, and LAST_INSERT_ID is the first of them.
        cursor.max_stmt_length = 4 * self._CHUNK_BYTES
        step = cursor.connection.__dict__.get("_ksana_id_step")
        if step is None:
            cursor.execute("SELECT @@auto_increment_increment")
            step = cursor.connection.__dict__["_ksana_id_step"] = int(cursor.fetchone()[0])
        ids: list[int] = []
        if len(rows) == 1 or not RE_INSERT_VALUES.match(
            sql
        ):  # a shape the driver cannot join would run row by row
            for row in rows:
                cursor.execute(sql, row)
                ids.append(cursor.lastrowid)
            return ids
        for chunk in _chunks(rows, self._CHUNK_BYTES):
            cursor.executemany(sql, chunk)
            ids.extend(range(cursor.lastrowid, cursor.lastrowid + step * len(chunk), step))
        return ids

    def run_rows(self, cursor: Any, sql: str, rows: Sequence[Any]) -> int:
        count = 0
        for chunk in _chunks(rows, self._WIDE_BYTES):
            for width, piece in bulk.split(chunk):
                wide = bulk.widen_named(sql, width) if width > 1 else None
                if wide is None:
                    cursor.executemany(sql, piece)
                else:
                    cursor.execute(wide[0], [row[name] for row in piece for name in wide[1]])
                count += cursor.rowcount
        return count

    def run_each(self, cursor: Any, sql: str, rows: Sequence[Any]) -> list[bool]:
        if _all_match(self, cursor, sql, rows):
            return [True] * len(rows)
        return [cursor.execute(sql, row) == 1 for row in rows]

    def list_of(self, values: Sequence[int]) -> Any:
        return tuple(values)


class PostgresDialect:
    """PostgreSQL 13+, through psycopg 3."""

    name = "postgres"
    is_network = True
    begin_write = "BEGIN"
    begin_read = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
    clock_sql = "SELECT CAST(extract(epoch FROM clock_timestamp()) * 1000000 AS BIGINT)"
    macros = Macros(
        {
            "id": "BIGINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY",
            "bigtext": "TEXT",
            "blob": "BYTEA",
            "table_options": "",
            "clustered_options": "",
            "now": "CAST(extract(epoch FROM clock_timestamp()) * 1000000 AS BIGINT)",
            "skip_locked": "FOR UPDATE SKIP LOCKED",
            "for_update": "FOR UPDATE",
            "insert_ignore": "INSERT INTO",
            "on_conflict_ignore": "ON CONFLICT DO NOTHING",
            "upsert": "ON CONFLICT ({}) DO UPDATE SET",
            "excluded": "excluded.{}",
            "true": "TRUE",
            "force_index": "",
            "force_primary": "",
            "in": "= ANY(%({})s)",
            "text": "CAST({} AS TEXT)",
            "widen": "ALTER TABLE {} ALTER COLUMN {} TYPE {}",
        },
        parameter="%({})s",
        keeps_where=True,
        escapes_percent=True,
        list_value=_postgres_list,
    )

    def __init__(self, url: str) -> None:
        self._url = re.sub(r"^postgres(?:ql)?(?:\+\w+)?://", "postgresql://", url)

    def connect(self, read_only: bool) -> Any:
        psycopg = _driver("psycopg", "postgres")
        connection = psycopg.connect(
            self._url,
            autocommit=True,
            connect_timeout=5,
            keepalives_idle=10,
            keepalives_interval=3,
            keepalives_count=3,
            tcp_user_timeout=20_000,
            application_name="ksana",
        )
        if not read_only:
            # An operator may have switched it off for the whole cluster; a 2xx of ours promises the
            # disk.
            if connection.execute("SHOW synchronous_commit").fetchone()[0] == "off":
                connection.execute("SET synchronous_commit TO on")
            connection.execute("SET lock_timeout TO '10s'")
            connection.execute(
                "SET idle_in_transaction_session_timeout TO '10s'"
            )  # shorter than a lease, see above
        return connection

    def judge(self, error: BaseException) -> Trouble:
        psycopg = _driver("psycopg", "postgres")
        if isinstance(error, OSError):
            return Trouble.LOST
        if not isinstance(error, psycopg.Error):
            return Trouble.OURS
        state = error.sqlstate or ""
        if state in ("40P01", "40001", "55P03"):
            return Trouble.RETRY
        if state in ("53100", "53200", "58030"):
            return Trouble.FULL
        if state.startswith(("08", "57P", "53300", "25006", "25P03")) or (
            not state and isinstance(error, psycopg.OperationalError)
        ):
            return Trouble.LOST
        if isinstance(error, psycopg.InterfaceError):
            return Trouble.LOST
        return Trouble.OURS

    def insert_ids(self, cursor: Any, sql: str, rows: Sequence[Any]) -> list[int]:
        ids: list[int] = []
        cursor.executemany(sql + " RETURNING id", rows, returning=True)
        while True:
            ids.append(int(cursor.fetchone()[0]))
            if not cursor.nextset():
                return ids

    def run_rows(self, cursor: Any, sql: str, rows: Sequence[Any]) -> int:
        cursor.executemany(sql, rows)
        return int(cursor.rowcount)

    def run_each(self, cursor: Any, sql: str, rows: Sequence[Any]) -> list[bool]:
        held: list[bool] = []
        cursor.executemany(sql, rows, returning=True)
        while True:
            held.append(cursor.rowcount == 1)
            if not cursor.nextset():
                return held

    def list_of(self, values: Sequence[int]) -> Any:
        return list(values)


def _all_match(dialect: Dialect, cursor: Any, sql: str, rows: Sequence[Any]) -> bool:
    """Run a guarded change for many rows at once, with one count for all of them. If a guard said
    no it is taken back, and they must be asked one by one."""
    if len(rows) < bulk.WIDTHS[-1]:
        return False
    cursor.execute("SAVEPOINT run_each")
    is_whole = dialect.run_rows(cursor, sql, rows) == len(rows)
    if not is_whole:
        cursor.execute("ROLLBACK TO SAVEPOINT run_each")
    cursor.execute("RELEASE SAVEPOINT run_each")
    return is_whole


def _driver(module: str, extra: str) -> Any:
    import importlib

    try:
        return importlib.import_module(module)
    except ImportError:
        raise SetupError(f"this store needs a driver: pip install 'ksana[{extra}]'") from None


def _chunks(rows: Sequence[dict[str, Any]], limit: int) -> list[list[dict[str, Any]]]:
    chunks: list[list[dict[str, Any]]] = []
    size = limit
    for row in rows:
        weight = 64 + sum(
            len(value) if isinstance(value, str | bytes) else 16 for value in row.values()
        )
        if size + weight > limit or len(chunks[-1]) >= 500:
            chunks.append([])
            size = 0
        chunks[-1].append(row)
        size += weight
    return chunks
