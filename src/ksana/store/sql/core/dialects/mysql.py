"""MariaDB and MySQL, through PyMySQL."""

from collections.abc import Sequence
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from ksana.base.errors import SetupError
from ksana.store.sql.core import bulk
from ksana.store.sql.core.dialects.base import Send, Trouble, all_match, load_driver
from ksana.store.sql.core.statements import Macros


def _mysql_list(values: Sequence[int] | Sequence[str]) -> Sequence[Any]:
    """The driver writes a sequence as a list in brackets; an empty one would not be SQL."""
    return values or (None,)


_UNKNOWN_DATABASE = 1049
_NO_RIGHT = 1044
_DENIED = frozenset({1045, 1698, 1130})
"""Access denied; denied for lack of a password; this host is not allowed."""


_COUNT = "SELECT IF(ROW_COUNT() = %s, 1, (SELECT 1 UNION SELECT 2))"
"""Fails (a subquery of two rows) unless the statement before it matched so many rows."""

_COUNT_AGAIN = "SELECT 9223372036854775807 + IF(ROW_COUNT() = %s, 0, 1)"
"""The same with an error (1690, out of range) after which the transaction is tried again."""


class MysqlDialect:
    """MariaDB 10.6+ and MySQL 8, through PyMySQL."""

    name = "mysql"
    is_network = True
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
            "only": "{0} = %({0})s",
            "first": "",
            "last": "",
            "down": "ORDER BY {1} DESC",
            "text_down": "ORDER BY {1} DESC",
            "up": "ORDER BY {1}",
            "by_primary": "FORCE INDEX (PRIMARY)",
            "in": "IN %({})s",
            "text": "CAST({} AS CHAR)",
            "sha256": "SHA2({}, 256)",
            "widen": "ALTER TABLE {} MODIFY {} {} NOT NULL",
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
    _RETRY = frozenset({1213, 1205, 1020, 3572, 1690})
    _SLOW = frozenset({1969, 3024})
    _FULL = frozenset({1021, 1026, 1114, 1041, 3})

    _SET_WRITER = (
        "SET NAMES utf8mb4 COLLATE utf8mb4_bin, SESSION innodb_lock_wait_timeout = 5"
        ", SESSION sql_mode = 'STRICT_TRANS_TABLES,NO_ENGINE_SUBSTITUTION'"
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
            init_command=None if read_only else self._SET_WRITER,
        )
        level = (
            "REPEATABLE READ" if read_only else "READ COMMITTED"
        )  # only the former makes a snapshot
        connection.query(f"SET SESSION TRANSACTION ISOLATION LEVEL {level}")
        # A statement may take long; a server that accepts and then falls silent is noticed sooner.
        connection._read_timeout = 60  # noqa: SLF001 - there is no other way to change it
        return connection

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
        for chunk in _chunks(rows, self._CHUNK_BYTES):
            for statement in self._join(cursor, sql, chunk) or [(sql, row) for row in chunk]:
                # One INSERT of many rows gets consecutive ids, and LAST_INSERT_ID is the first.
                count = send([statement])[0]
                ids.extend(range(cursor.lastrowid, cursor.lastrowid + step * count, step))
        return ids

    def _join(self, cursor: Any, sql: str, rows: Sequence[dict[str, Any]]) -> list[tuple[str, Any]]:
        """One INSERT for all rows; none if the statement is no INSERT of plain values."""
        from pymysql.cursors import RE_INSERT_VALUES

        insert = RE_INSERT_VALUES.match(sql)
        if insert is None:
            return []
        before, values, after = insert[1] % (), insert[2].rstrip(), insert[3] or ""
        return [(before + ",".join([cursor.mogrify(values, row) for row in rows]) + after, None)]

    def widen(self, cursor: Any, sql: str, rows: Sequence[Any]) -> list[tuple[str, Any]]:
        statements: list[tuple[str, Any]] = []
        for chunk in _chunks(rows, self._WIDE_BYTES):
            joined = self._join(cursor, sql, chunk)
            if joined:
                statements += joined
                continue
            for width, piece in bulk.split_for(sql, chunk):
                wide = bulk.widen_named(sql, width) if width > 1 else None
                if wide is None:
                    statements += [(sql, row) for row in piece]
                else:
                    given = [row[name] for row in piece for name in wide[1]]
                    statements.append((wide[0], given))
        return statements

    def require(
        self, cursor: Any, sql: str, rows: Sequence[Any], *, is_race: bool = False
    ) -> list[tuple[str, Any]]:
        statements: list[tuple[str, Any]] = []
        count = _COUNT_AGAIN if is_race else _COUNT
        for chunk in _chunks(rows, self._WIDE_BYTES):
            for width, piece in bulk.split_for(sql, chunk):
                wide = bulk.widen_named(sql, width) if width > 1 else None
                if wide is None:
                    for row in piece:
                        statements += [(sql, row), (count, (1,))]
                else:
                    given = [row[name] for row in piece for name in wide[1]]
                    statements += [(wide[0], given), (count, (width,))]
        return statements

    def ask(
        self,
        cursor: Any,
        before: Sequence[tuple[str, Any]],
        questions: Sequence[tuple[str, Any]],
    ) -> list[list[Any]]:
        texts = [cursor.mogrify(sql, values) for sql, values in (*before, *questions)]
        if before and sum(map(len, texts)) > self._CHUNK_BYTES:
            self.send(cursor, before)
            texts, before = texts[len(before) :], ()
        cursor.execute(";\n".join(texts))
        answers = [list(cursor.fetchall())]
        while cursor.nextset():
            answers.append(list(cursor.fetchall()))
        return answers[len(before) :]

    def send(self, cursor: Any, statements: Sequence[tuple[str, Any]]) -> list[int]:
        counts: list[int] = []
        texts: list[str] = []
        size = 0
        for sql, values in statements:
            text = cursor.mogrify(sql, values)
            if texts and size + len(text) > self._CHUNK_BYTES:
                counts += _run_texts(cursor, texts)
                texts, size = [], 0
            texts.append(text)
            size += len(text)
        return counts + _run_texts(cursor, texts)

    def run_each(self, send: Send, cursor: Any, sql: str, rows: Sequence[Any]) -> list[bool]:
        if all_match(self, send, cursor, sql, rows):
            return [True] * len(rows)
        return [count == 1 for count in send([(sql, row) for row in rows])]


def _run_texts(cursor: Any, texts: Sequence[str]) -> list[int]:
    """Run complete statements, sent together. The server stops at the first that fails."""
    cursor.execute(";\n".join(texts))
    counts = [cursor.rowcount]
    while cursor.nextset():
        counts.append(cursor.rowcount)
    return counts


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
