"""PostgreSQL, through psycopg 3."""

import logging
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Final

from ksana.store.sql.core import bulk
from ksana.store.sql.core.dialects.base import Send, Trouble, load_driver
from ksana.store.sql.core.statements import Macros

_TYPES: Final = {
    16: "bool",
    20: "int8",
    21: "int2",
    23: "int4",
    25: "text",
    701: "float8",
    1042: "bpchar",
    1043: "varchar",
}
"""Types of which an array is written as text, by their number in the server's catalogue."""

_TEXTS: Final = frozenset({"text", "bpchar", "varchar"})


def _postgres_list(values: Sequence[int] | Sequence[str]) -> str:
    """An array literal without a type: the server gives it the type of the column it is compared
    with, so that the column's index serves (an array of `text` would not do for a CHAR column)."""
    return _write_array(values, is_text=bool(values) and isinstance(values[0], str))


def _write_array(values: Sequence[Any], *, is_text: bool) -> str:
    """An array literal. The driver would look at each value again to find the type of them all."""
    if None in values:
        write = _quote if is_text else str
        return f"{{{','.join(['NULL' if value is None else write(value) for value in values])}}}"
    if not is_text:
        return f"{{{','.join(map(str, values))}}}"
    # All at once, with a sign between them that no text of PostgreSQL has.
    joined = "\0".join(values)
    if joined.count("\0") >= len(values):
        return f"{{{','.join(map(_quote, values))}}}"
    if '"' in joined or "\\" in joined:
        joined = joined.replace("\\", "\\\\").replace('"', '\\"')
    return '{"' + joined.replace("\0", '","') + '"}' if values else "{}"


def plain_url(url: str) -> str:
    """The URL as the driver takes it."""
    return re.sub(r"^postgres(?:ql)?(?:\+\w+)?://", "postgresql://", url)


def _quote(text: str) -> str:
    if '"' in text or "\\" in text:
        text = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'


def _execute(cursor: Any, sql: str, values: Any) -> None:
    """BEGIN and COMMIT, which have no values, are not prepared: it saves nothing, and on the wire
    and in the server's log they are to be seen as what they are."""
    cursor.execute(sql, values, prepare=False if values is None else None)


@contextmanager
def _pipeline(connection: Any) -> Iterator[None]:
    """Statements that are sent together. After an error the server has not prepared those behind
    it, and the driver takes them for prepared: it is told to forget all of them."""
    try:
        with connection.pipeline():
            yield
    except BaseException:
        connection._prepared.clear()  # noqa: SLF001 - there is no other way to say so
        raise


@lru_cache(maxsize=256)
def _count_all(sql: str, is_race: bool) -> str:
    """The change as a statement that fails unless it matched so many rows: by zero, or where it is
    to be tried again by the root of less."""
    holds = "CASE WHEN COUNT(*) = %(ksana_rows)s THEN 1 ELSE"
    count = f"sqrt({holds} -1 END)" if is_race else f"1 / {holds} 0 END"
    return f"WITH changed AS ({sql} RETURNING 1) SELECT {count} FROM changed"


@lru_cache(maxsize=256)
def _count_one(sql: str, is_race: bool) -> str:
    """The same for one row."""
    return _count_all(sql, is_race).replace("%(ksana_rows)s", "1")


_LOST_RACE: Final = "2201F"
"""The root of a negative number: see `_count_all`."""

_ASKED: Final = "ksana_asked"
_ASK_TYPES: Final = f"""
SELECT CAST(parameter_types AS oid[]) FROM pg_prepared_statements WHERE name = '{_ASKED}'
"""


_REFUSALS: Final = tuple(
    (re.compile(pattern), advice)
    for pattern, advice in (
        (r'database "[^"]*" does not exist', "make it (CREATE DATABASE), or correct the URL"),
        (r'role "[^"]*" does not exist', "make it (CREATE ROLE … LOGIN), or correct the URL"),
        (r'role "[^"]*" is not permitted to log in', "ALTER ROLE … LOGIN"),
        (
            r'password authentication failed for user "[^"]*"',
            "the role does not exist, or the password is wrong",
        ),
        (r"no password supplied", "the URL names no password and the server wants one"),
        (r"no pg_hba.conf entry for [^\n]*", "let this host in, in pg_hba.conf"),
        (r'permission denied for database "[^"]*"', "GRANT CONNECT ON DATABASE"),
        (r"transaction blocks not allowed in statement pooling mode", "use pool_mode = session"),
    )
)
"""What the server says when it will not have us, and what helps."""


# A pipeline that ends after an error warns of each statement it did not run. The error itself is
# raised and classified.
logging.getLogger("psycopg").setLevel(logging.ERROR)


class PostgresDialect:
    """PostgreSQL 13+, through psycopg 3."""

    name = "postgres"
    is_network = True
    fold: Callable[[str], str] | None = None
    avoid_sorts: str | None = (
        "SELECT set_config('enable_sort', 'off', true),"
        " set_config('enable_incremental_sort', 'off', true)"
    )
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
            "below": "{0} >= %({2})s AND ({0}, {1}) < (%({2})s, %(before)s)",
            "above": "{0} <= %({2})s AND ({0}, {1}) > (%({2})s, %(after)s)",
            "text_below": "({0} || '') >= %({2})s AND (({0} || ''), {1}) < (%({2})s, %(before)s)",
            "bytewise": '{} COLLATE "C"',
            "text_between": "(({0} || ''), {1} COLLATE \"C\") > (%({0})s, %(floor)s) "
            "AND (({0} || ''), {1} COLLATE \"C\") < (%({0})s, %(top)s)",
            "text_up": "ORDER BY ({0} || ''), {1} COLLATE \"C\"",
            "only": "{0} >= %({0})s AND {0} <= %({0})s",
            "first": "{0},",
            "last": "{0} DESC,",
            "down": "ORDER BY {0} DESC, {1} DESC",
            "text_down": "ORDER BY ({0} || '') DESC, {1} DESC",
            "up": "ORDER BY {0}, {1}",
            "by_primary": "",
            "in": "= ANY(%({})s)",
            "text": "CAST({} AS TEXT)",
            "sha256": "encode(sha256(convert_to({}::text, 'UTF8')), 'hex')",
            "widen": "ALTER TABLE {} ALTER COLUMN {} TYPE {}",
            # statements for one of them alone
            "postgres": "{}",
            "mysql": "",
            "sqlite": "",
        },
        parameter="%({})s",
        keeps_where=True,
        escapes_percent=True,
        list_value=_postgres_list,
    )

    _PLANNING = "SET enable_seqscan TO off; SET enable_bitmapscan TO off; SET jit TO off"
    """Every statement of ours reads an index, in its order, and mostly stops early. Of a table that
    grew since the server last looked it over the server knows no better than to read and sort all
    that matches; that plan is then kept for minutes. What no index serves is still read whole, and
    the compiler that its price would call in costs more than it saves."""

    _WRITING = "SET enable_hashjoin TO off; SET enable_mergejoin TO off"
    """A change of many rows finds each by its key. By the server's guess about a young table it is
    cheaper to walk an index whole and match it with the rows."""

    def __init__(self, url: str) -> None:
        self._types: dict[str, tuple[str, ...]] = {}
        self._url = plain_url(url)

    def connect(self, read_only: bool) -> Any:
        psycopg = load_driver("psycopg", "postgres")
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
        connection.prepared_max = 500  # of the statements we have none is prepared twice
        connection.execute(self._PLANNING)
        if not read_only:
            connection.execute(self._WRITING)
            # An operator may have switched it off for the whole cluster; a 2xx of ours promises the
            # disk.
            if connection.execute("SHOW synchronous_commit").fetchone()[0] == "off":
                connection.execute("SET synchronous_commit TO on")
            # Together shorter than a lease. A transaction of a frozen process that waits for a row
            # of another one of it gives up first; else each would get the row in turn and keep it.
            connection.execute("SET lock_timeout TO '5s'")
            connection.execute("SET idle_in_transaction_session_timeout TO '8s'")
        return connection

    def limit_reads(self, connection: Any, seconds: float) -> None:
        if connection.__dict__.get("_ksana_limit") != seconds:
            connection.execute(f"SET statement_timeout TO {int(seconds * 1000)}")
            connection.__dict__["_ksana_limit"] = seconds

    def classify(self, error: BaseException) -> Trouble:
        psycopg = load_driver("psycopg", "postgres")
        if isinstance(error, OSError):
            return Trouble.LOST
        if not isinstance(error, psycopg.Error):
            return Trouble.OURS
        state = error.sqlstate or ""
        if state in ("40P01", "40001", "55P03"):
            return Trouble.RETRY
        if state == _LOST_RACE:
            return Trouble.RACED
        if state == "57014":
            return Trouble.SLOW
        if state in ("53100", "53200", "58030"):
            return Trouble.FULL
        # 26000: what the driver has prepared is not there; a new connection has nothing prepared.
        if state.startswith(("08", "57P", "53300", "25006", "25P03", "26000")) or (
            not state and isinstance(error, psycopg.OperationalError)
        ):
            return Trouble.LOST
        if isinstance(error, psycopg.InterfaceError):
            return Trouble.LOST
        return Trouble.OURS

    def find_refusal(self, error: BaseException) -> str | None:
        # The driver knows no code of an error at connecting, only the server's words, which are
        # English unless lc_messages says otherwise.
        for pattern, advice in _REFUSALS:
            found = pattern.search(str(error))
            if found is not None:
                return f"{found[0]}: {advice}"
        return None

    def insert_ids(self, send: Send, cursor: Any, sql: str, rows: Sequence[Any]) -> list[int]:
        ids: list[int] = []
        for statement, values in self.widen(cursor, sql, rows):
            send([(statement + " RETURNING id", values)])
            ids += [int(row[0]) for row in cursor.fetchall()]
        return ids

    def widen(self, cursor: Any, sql: str, rows: Sequence[Any]) -> list[tuple[str, Any]]:
        wide = self._widen(cursor, sql, rows)
        return [(sql, bulk.name_row(sql, row)) for row in rows] if wide is None else [wide]

    def send(self, cursor: Any, statements: Sequence[tuple[str, Any]]) -> list[int]:
        if len(statements) == 1:
            _execute(cursor, *statements[0])
            return [cursor.rowcount]
        connection = cursor.connection
        cursors = [*(connection.cursor() for _ in statements[1:]), cursor]
        with _pipeline(connection):
            for one, (sql, values) in zip(cursors, statements, strict=True):
                _execute(one, sql, values)
        return [one.rowcount for one in cursors]

    def require(
        self, cursor: Any, sql: str, rows: Sequence[Any], *, is_race: bool = False
    ) -> list[tuple[str, Any]]:
        wide = self._widen(cursor, sql, rows)
        if wide is None:
            return [(_count_one(sql, is_race), bulk.name_row(sql, row)) for row in rows]
        return [(_count_all(wide[0], is_race), {**wide[1], "ksana_rows": len(rows)})]

    def ask(
        self,
        cursor: Any,
        before: Sequence[tuple[str, Any]],
        questions: Sequence[tuple[str, Any]],
    ) -> list[list[Any]]:
        connection = cursor.connection
        cursors = [connection.cursor() for _ in questions]
        with _pipeline(connection):
            for sql, values in before:
                _execute(cursor, sql, values)
            for one, (sql, values) in zip(cursors, questions, strict=True):
                _execute(one, sql, values)
        return [one.fetchall() for one in cursors]

    def run_each(self, send: Send, cursor: Any, sql: str, rows: Sequence[Any]) -> list[bool]:
        wide = self._widen(cursor, sql, rows)
        if wide is not None and wide[0].startswith("UPDATE"):
            send([(wide[0] + " RETURNING v.row_number", wide[1])])
            held = {row[0] for row in cursor.fetchall()}
            return [number in held for number in range(1, len(rows) + 1)]
        return [count == 1 for count in send([(sql, bulk.name_row(sql, row)) for row in rows])]

    def _widen(
        self, cursor: Any, sql: str, rows: Sequence[Any]
    ) -> tuple[str, dict[str, str]] | None:
        """One statement for all rows, with an array for each parameter; None if it must be run row
        by row."""
        if len(rows) == 1:
            return None
        types = self._types.get(sql) or self._ask_types(cursor, sql)
        wide = bulk.widen_arrays(sql, types) if types and all(types) else None
        if wide is None:
            return None
        names = bulk.list_names(sql)
        return wide, {
            name: _write_array(values, is_text=kind in _TEXTS)
            for name, kind, values in zip(names, types, zip(*rows, strict=True), strict=True)
        }

    def _ask_types(self, cursor: Any, sql: str) -> tuple[str, ...]:
        """The types the server gives the parameters of the statement for one row; "" for one that
        cannot be written as an array."""
        # Through the driver, not through libpq's own calls: with these, a test whose proxy runs in
        # the same process stood still for good.
        cursor.execute(f"PREPARE {_ASKED} AS {bulk.number_names(sql)}")
        cursor.execute(_ASK_TYPES)
        asked = cursor.fetchone()[0]
        cursor.execute(f"DEALLOCATE {_ASKED}")
        types = tuple(_TYPES.get(number, "") for number in asked)
        self._types[sql] = types
        return types
