"""MariaDB and MySQL, through PyMySQL."""

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

from ksana.base.errors import SetupError
from ksana.store.sql.core import bulk
from ksana.store.sql.core.dialects import mysql_text
from ksana.store.sql.core.dialects.base import Send, Trouble, all_match, load_driver
from ksana.store.sql.core.dialects.mysql_exchange import ExchangeCursor
from ksana.store.sql.core.dialects.mysql_text import Row
from ksana.store.sql.core.statements import Macros


def _mysql_list(values: Sequence[int] | Sequence[str]) -> Sequence[Any]:
    """The driver writes a sequence as a list in brackets; an empty one would not be SQL."""
    return values or (None,)


_UNKNOWN_DATABASE = 1049
_NO_RIGHT = 1044
_DENIED = frozenset({1045, 1698, 1130})
"""Access denied; denied for lack of a password; this host is not allowed."""


_COUNT = "SET @ksana_count = IF(ROW_COUNT() = %s, 1, (SELECT 1 UNION SELECT 2))"
"""Fails (a subquery of two rows) unless the statement before it matched so many rows. Not
by SELECT, which would be answered by five packets."""

_COUNT_AGAIN = "SET @ksana_count = 9223372036854775807 + IF(ROW_COUNT() = %s, 0, 1)"
"""The same with an error (out of range) after which the transaction is tried again."""

_LOST_RACE = 1690


_MOST_ROWS: Final = 500
"""Rows of one INSERT."""

_MOST_CHANGED: Final = 128
"""Rows of one UPDATE: each looks for its key among those of all."""

_JOINED_BYTES: Final = 256 * 1024
"""Of rows that are joined: more of them would have the server put them on disk."""


class MysqlDialect:
    """MariaDB 10.6+ and MySQL 8, through PyMySQL."""

    name = "mysql"
    is_network = True
    has_keys = False
    fold: Callable[[str], str] | None = staticmethod(bulk.fold_each)
    avoid_sorts: str | None = None
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
            "below": "{0} = %({2})s AND {1} < %(before)s",
            "above": "{0} = %({2})s AND {1} > %(after)s",
            "text_below": "{0} = %({2})s AND {1} < %(before)s",
            "bytewise": "{}",
            "text_between": "{0} = %({0})s AND {1} > %(floor)s AND {1} < %(top)s",
            "text_up": "ORDER BY {1}",
            "only": "{0} = %({0})s",
            "first": "",
            "last": "",
            "down": "ORDER BY {1} DESC",
            "text_down": "ORDER BY {1} DESC",
            "up": "ORDER BY {1}",
            "by_primary": "FORCE INDEX (PRIMARY)",
            "in": "IN %({})s",
            "keyed": "{2} = %({2})s",
            "keyed_pair": "{2} = %({2})s AND {3} = %({3})s",
            "keyed_in": "{2} IN %({3})s",
            "partial": "{1} IS NOT NULL",
            "either": "{1}",
            "only_of": "{1} = %({0})s",
            "keys_of": "{0}",
            "text": "CAST({} AS CHAR)",
            "sha256": "SHA2({}, 256)",
            "widen": "ALTER TABLE {} MODIFY {} {} NOT NULL",
            "same": "%({})s",
            "alike": "%({})s",
            # statements for one of them alone
            "postgres": "",
            "mysql": "{}",
            "sqlite": "",
        },
        parameter="%({})s",
        keeps_where=False,
        escapes_percent=True,
        list_value=_mysql_list,
    )
    _CHUNK_BYTES = 4 * 1024 * 1024
    _WIDE_BYTES = 256 * 1024
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
    _SLOW = frozenset({1969, 3024})
    _FULL = frozenset({1021, 1026, 1114, 1041, 3})

    _SET_READER = "SET SESSION sql_mode = 'STRICT_TRANS_TABLES,NO_ENGINE_SUBSTITUTION'"
    """How literals are written (`mysql_text`) and read must not depend on the server's settings."""

    _SET_WRITER = (
        f"{_SET_READER}, NAMES utf8mb4 COLLATE utf8mb4_bin, SESSION innodb_lock_wait_timeout = 5"
        # A transaction of ours whose process froze or whose connection died without a word must let
        # go of its rows before its lease runs out: whoever takes over needs them.
        "/*M! , SESSION idle_transaction_timeout = 8 */"
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
        self._primary: dict[str, list[str]] = {}
        """The columns of primary keys, by table."""
        query = dict(parse_qsl(parts.query))
        if "unix_socket" in query:
            self._options["unix_socket"] = query["unix_socket"]
        if "ssl_ca" in query:
            self._options["ssl"] = {"ca": query["ssl_ca"]}

    def connect(self, read_only: bool) -> Any:
        pymysql = load_driver("pymysql", "mysql")
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
            # Several statements in one packet: their texts are ours, values are always bound.
            client_flag=CLIENT.FOUND_ROWS | CLIENT.MULTI_STATEMENTS,
            init_command=self._SET_READER if read_only else self._SET_WRITER,
        )
        level = (
            "REPEATABLE READ" if read_only else "READ COMMITTED"
        )  # only the former makes a snapshot
        connection.query(f"SET SESSION TRANSACTION ISOLATION LEVEL {level}")
        # A statement may take long; a server that accepts and then falls silent is noticed sooner.
        connection._read_timeout = 60  # noqa: SLF001 - there is no other way to change it
        return connection

    def cursor(self, connection: Any) -> ExchangeCursor:
        return ExchangeCursor(connection)

    def limit_reads(self, connection: Any, seconds: float) -> None:
        if connection.__dict__.get("_ksana_limit") != seconds:
            # MariaDB and MySQL have different words for it, and each passes over the other's.
            connection.query(
                f"SET @ksana_limit = 1 /*M! , SESSION max_statement_time = {seconds} */"
                f" /*!80000 , SESSION max_execution_time = {int(seconds * 1000)} */"
            )
            connection.__dict__["_ksana_limit"] = seconds

    def classify(self, error: BaseException) -> Trouble:
        pymysql = load_driver("pymysql", "mysql")
        if isinstance(error, OSError | EOFError):
            return Trouble.LOST
        if not isinstance(error, pymysql.MySQLError):
            return Trouble.OURS
        code = error.args[0] if error.args else 0
        if code in self._RETRY:
            return Trouble.RETRY
        if code == _LOST_RACE:
            return Trouble.RACED
        if code in self._SLOW:
            return Trouble.SLOW
        if code in self._FULL:
            return Trouble.FULL
        if isinstance(error, pymysql.err.InterfaceError) or code in self._LOST:
            return Trouble.LOST
        if code in (1290, 1836):  # the server runs read-only: it fails over, or an operator said so
            return Trouble.LOST
        return Trouble.OURS

    def find_refusal(self, error: BaseException) -> str | None:
        code = error.args[0] if error.args else 0
        user, database = self._options["user"], self._options["database"]
        if code == _UNKNOWN_DATABASE:
            return (
                f"there is no database {database!r}: make it (CREATE DATABASE), or correct the URL"
            )
        if code == _NO_RIGHT:
            return f"the user {user!r} has no right to the database {database!r}: GRANT it"
        if code in _DENIED:
            return (
                f"the server does not let the user {user!r} in: there is no such user for this "
                "host, or the password is wrong"
            )
        return None

    def insert_ids(self, send: Send, cursor: Any, sql: str, rows: Sequence[Any]) -> list[int]:
        step = cursor.connection.__dict__.get("_ksana_id_step")
        if step is None:
            cursor.execute("SELECT @@auto_increment_increment")
            step = cursor.connection.__dict__["_ksana_id_step"] = int(cursor.fetchone()[0])
        ids: list[int] = []
        for statement in self._join(cursor, sql, rows, self._CHUNK_BYTES) or _each(sql, rows):
            # One INSERT of many rows gets consecutive ids, and LAST_INSERT_ID is the first.
            count = send([statement])[0]
            ids.extend(range(cursor.lastrowid, cursor.lastrowid + step * count, step))
        return ids

    def _join(
        self, cursor: Any, sql: str, rows: Sequence[Row], limit: int
    ) -> list[tuple[str, Any]]:
        """As few INSERTs as do for all rows, each of up to so many bytes or one row; none if the
        statement is no INSERT of plain values."""
        statements: list[tuple[str, Any]] = []
        for chunk in _chunks(rows, limit):
            text = mysql_text.write_insert(cursor.connection, sql, chunk)
            if text is None:
                return []
            if len(text) > limit and len(chunk) > 1:
                half = len(chunk) // 2
                for part in (chunk[:half], chunk[half:]):
                    statements += self._join(cursor, sql, part, limit)
            else:
                statements.append((text, None))
        return statements

    def _change(self, cursor: Any, sql: str, rows: Sequence[Row]) -> list[tuple[str, Any, int]]:
        """As few UPDATEs as do for all rows, and how many rows each is to match."""
        change = mysql_text.read_change(sql) if len(rows) > 1 else None
        if change is None or not self._is_primary(cursor, change.table, change.key):
            return _change_joined(sql, rows)
        statements: list[tuple[str, Any, int]] = []
        for start in range(0, len(rows), _MOST_CHANGED):
            chunk = rows[start : start + _MOST_CHANGED]
            text = mysql_text.write_change(cursor.connection, sql, change, chunk)
            if text is None:
                statements += _change_joined(sql, chunk)
            elif len(text) > self._CHUNK_BYTES and len(chunk) > 1:
                half = len(chunk) // 2
                for part in (chunk[:half], chunk[half:]):
                    statements += self._change(cursor, sql, part)
            else:
                statements.append((text, None, len(chunk)))
        return statements

    def _is_primary(self, cursor: Any, table: str, column: str) -> bool:
        """Whether a column is a table's primary key."""
        if table not in self._primary:
            cursor.execute(f"SHOW INDEX FROM {table} WHERE Key_name = 'PRIMARY'")
            self._primary[table] = [row[4] for row in cursor.fetchall()]
        return self._primary[table] == [column]

    def widen(self, cursor: Any, sql: str, rows: Sequence[Row]) -> list[tuple[str, Any]]:
        if len(rows) == 1:
            return _each(sql, rows)
        joined = self._join(cursor, sql, rows, self._WIDE_BYTES)
        return joined or [(text, given) for text, given, _ in self._change(cursor, sql, rows)]

    def require(
        self, cursor: Any, sql: str, rows: Sequence[Row], *, is_race: bool = False
    ) -> list[tuple[str, Any]]:
        statements: list[tuple[str, Any]] = []
        count = _COUNT_AGAIN if is_race else _COUNT
        for text, given, matched in self._change(cursor, sql, rows):
            statements += [(text, given), (count, (matched,))]
        return statements

    def ask(
        self,
        cursor: ExchangeCursor,
        before: Sequence[tuple[str, Any]],
        questions: Sequence[tuple[str, Any]],
    ) -> list[list[Any]]:
        texts = [cursor.mogrify(sql, values) for sql, values in (*before, *questions)]
        if before and sum(map(len, texts)) > self._CHUNK_BYTES:
            self.send(cursor, before)
            texts, before = texts[len(before) :], ()
        return [one.rows or [] for one in cursor.exchange(texts)[len(before) :]]

    def send(self, cursor: ExchangeCursor, statements: Sequence[tuple[str, Any]]) -> list[int]:
        counts: list[int] = []
        texts: list[str] = []
        size = 0
        for sql, values in statements:
            text = cursor.mogrify(sql, values)
            if texts and size + len(text) > self._CHUNK_BYTES:
                counts += [one.matched for one in cursor.exchange(texts)]
                texts, size = [], 0
            texts.append(text)
            size += len(text)
        return counts + [one.matched for one in cursor.exchange(texts)]

    def run_each(self, send: Send, cursor: Any, sql: str, rows: Sequence[Any]) -> list[bool]:
        if all_match(self, send, cursor, sql, rows):
            return [True] * len(rows)
        return [count == 1 for count in send(_each(sql, rows))]


def _each(sql: str, rows: Sequence[Row]) -> list[tuple[str, Any]]:
    return [(sql, bulk.name_row(sql, row)) for row in rows]


def _change_joined(sql: str, rows: Sequence[Row]) -> list[tuple[str, Any, int]]:
    """Changes of many rows by a join with them, where they have no key of one column."""
    statements: list[tuple[str, Any, int]] = []
    for chunk in _chunks(rows, _JOINED_BYTES):
        for width, piece in bulk.split_for(sql, chunk):
            wide = bulk.widen_named(sql, width) if width > 1 else None
            if wide is None:
                statements += [(one, given, 1) for one, given in _each(sql, piece)]
            else:
                statements.append((wide[0], list(chain.from_iterable(piece)), width))
    return statements


def _chunks(rows: Sequence[Row], limit: int) -> list[list[Row]]:
    chunks: list[list[Row]] = []
    size = limit
    for row in rows:
        weight = 64 + sum(len(value) if isinstance(value, str | bytes) else 16 for value in row)
        if size + weight > limit or len(chunks[-1]) >= _MOST_ROWS:
            chunks.append([])
            size = 0
        chunks[-1].append(row)
        size += weight
    return chunks
