"""One database connection with named statements: the only place that touches a driver's cursor."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import Any, Final, TypeVar

import msgspec

from ksana.base.ids import new_token
from ksana.ports.pages import PageRows
from ksana.store.sql.core import bulk
from ksana.store.sql.core.dialects import Dialect
from ksana.store.sql.core.statements import Statement

Row = tuple[Any, ...]
Sent = tuple[str, Any]
"""A statement and its values, in the form the driver takes."""
Question = tuple[str, Mapping[str, Any]]
"""The name of a statement that reads, and its values."""
MANY_SHARES: Final = 1024
"""The numbers of connections are greater: the lesser ones are for shares that nobody owns."""
_KEYS_AT_ONCE = 16
"""Rows that SQLite sorts at once: each may have a megabyte."""
_ONE_BY_ONE = 2
"""So few rows need no wider statement in our own process: no way there and back is saved."""
_Kind = TypeVar("_Kind", bound=msgspec.Struct)


@lru_cache(maxsize=16)
def _decoder_of(kind: type[msgspec.Struct]) -> Callable[[str], Any]:
    rows: Any = list[kind]  # type: ignore[valid-type]
    decode: Callable[[str], Any] = msgspec.json.Decoder(rows).decode
    return decode


@lru_cache(maxsize=256)
def _order_of(statement: Statement, columns: tuple[str, ...]) -> Callable[[Row], Row] | None:
    """Puts a row's values in the order of the statement's parameters; None if they stand so."""
    wanted = statement.bind({name: place for place, name in enumerate(columns)})
    if isinstance(wanted, Mapping):
        wanted = [wanted[name] for name in bulk.list_names(statement.sql)]
    if tuple(wanted) == tuple(range(len(columns))):
        return None
    if len(wanted) == 1:
        return lambda row: (row[wanted[0]],)
    return itemgetter(*wanted)


class Session:
    """Runs named statements on one connection and remembers whether anything was written.

    A statement whose answer nobody needs may be run later (`…_later`): on a network database it
    waits here and travels with the next one that is answered, the last ones with COMMIT, so that a
    transaction costs few round trips. The order stays. In our own process it is run at once.
    """

    __slots__ = (
        "_connection",
        "_cursor",
        "_dialect",
        "_execute",
        "_is_network",
        "_later",
        "_statements",
        "facts",
        "has_keys",
        "is_embedded",
        "origin",
        "raw_later",
        "require_rows",
        "round_trips",
        "run_later",
        "run_rows_later",
        "writer",
        "wrote",
    )

    def __init__(
        self, dialect: Dialect, connection: Any, statements: Mapping[str, Statement]
    ) -> None:
        self._dialect = dialect
        self._is_network = dialect.is_network
        self.is_embedded = not dialect.is_network
        """Whether the database is in our process."""
        self.has_keys = dialect.has_keys
        self.origin = id(dialect)
        """Tells the sessions of one opened store from those of another in this process."""
        self._connection = connection
        self._statements = statements
        self._cursor = dialect.cursor(connection)
        # Run a statement, and before it what waits; the cursor has its answer afterwards.
        self._execute: Callable[..., Any] = self._cursor.execute
        # Run a statement without an answer: in our own process like any other.
        self.run_later: Callable[..., object] = self.run
        self.run_rows_later: Callable[..., object] = self.run_rows
        self.raw_later: Callable[[str], object] = self.raw
        # Run a guarded change for rows whose guards are known to hold. In our own process they are
        # counted; over a network the database counts, and fails the transaction if one said no.
        self.require_rows: Callable[[str, tuple[str, ...], Sequence[Row]], int] = self.run_rows
        if dialect.is_network:
            self.require_rows = self._require_rows
            self._execute = self._send_one
            self.run_later, self.run_rows_later = self._run_later, self._run_rows_later
            self.raw_later = self._raw_later
        self._later: list[Sent] = []
        self.round_trips = 0
        """Since whoever counts them set this to 0."""
        self.wrote = False
        self.writer = new_token() | MANY_SHARES if dialect.is_network else 0
        """Whose share of a count it is that this connection adds to. Where there is one writer, the
        shares are one."""
        self.facts: dict[str, str] = {}
        """Facts about the store that were read once and never change."""

    def _send_one(self, sql: str, values: Any = None) -> None:
        self._send([(sql, values)])

    def _send(self, statements: list[Sent]) -> list[int]:
        """Run what waits and these; answer how many rows each of these matched."""
        waiting, self._later = self._later, []
        counts = self._dialect.send(self._cursor, [*waiting, *statements])
        self.round_trips += 1
        return counts[len(waiting) :]

    def run(self, name: str, /, **params: Any) -> int:
        """Run a statement that changes rows; answer how many it matched."""
        statement = self._statements[name]
        self._execute(statement.sql, statement.bind(params))
        count: int = self._cursor.rowcount
        if count:  # a guard that said no left nothing behind
            self.wrote = True
        return count

    def _run_later(self, name: str, /, **params: Any) -> None:
        self.wrote = True
        statement = self._statements[name]
        self._later.append((statement.sql, statement.bind(params)))

    # Many rows. A row's values stand in the order of `columns`, which names parameters of the
    # statement. The statement is written for one row; no two rows may change the same one.

    def insert(self, name: str, columns: tuple[str, ...], rows: Sequence[Row]) -> list[int]:
        """Insert rows into a table with an automatic id; answer the ids in order."""
        if not rows:
            return []
        self.wrote = True
        statement = self._statements[name]
        bound = self._bind_rows(statement, columns, rows)
        return self._dialect.insert_ids(self._send, self._cursor, statement.sql, bound)

    def run_rows(self, name: str, columns: tuple[str, ...], rows: Sequence[Row]) -> int:
        """Run a statement for each row; answer how many matched in all."""
        if not self.is_embedded and len(rows) <= 1:
            return sum([self.run(name, **dict(zip(columns, row, strict=True))) for row in rows])
        statement = self._statements[name]
        bound = self._bind_rows(statement, columns, rows)
        if len(rows) <= _ONE_BY_ONE and self.is_embedded:
            matched = 0
            for values in bound:
                self._cursor.execute(statement.sql, values)
                matched += self._cursor.rowcount
            if matched:
                self.wrote = True
            return matched
        self.wrote = True
        return sum(self._send(self._dialect.widen(self._cursor, statement.sql, bound)))

    def _require_rows(self, name: str, columns: tuple[str, ...], rows: Sequence[Row]) -> int:
        if rows:
            self.wrote = True
            statement = self._statements[name]
            bound = self._bind_rows(statement, columns, rows)
            self._later += self._dialect.require(self._cursor, statement.sql, bound)
        return len(rows)

    def contend_rows(self, name: str, columns: tuple[str, ...], rows: Sequence[Row]) -> None:
        """The same for rows that others may have changed since they were read, on a network
        database only: if a guard says no the transaction is run again."""
        self.wrote = True
        statement = self._statements[name]
        bound = self._bind_rows(statement, columns, rows)
        self._later += self._dialect.require(self._cursor, statement.sql, bound, is_race=True)

    def _run_rows_later(self, name: str, columns: tuple[str, ...], rows: Sequence[Row]) -> None:
        if rows:
            self.wrote = True
            statement = self._statements[name]
            bound = self._bind_rows(statement, columns, rows)
            self._later += self._dialect.widen(self._cursor, statement.sql, bound)

    def run_each(self, name: str, columns: tuple[str, ...], rows: Sequence[Row]) -> list[bool]:
        """Run a guarded change for each row; answer for each whether its guard held."""
        if len(rows) <= 1:
            return [self.run(name, **dict(zip(columns, row, strict=True))) == 1 for row in rows]
        self.wrote = True
        statement = self._statements[name]
        bound = self._bind_rows(statement, columns, rows)
        return self._dialect.run_each(self._send, self._cursor, statement.sql, bound)

    def _bind_rows(
        self, statement: Statement, columns: tuple[str, ...], rows: Sequence[Row]
    ) -> Sequence[Any]:
        """The rows, their values in the order of the statement's parameters."""
        order = _order_of(statement, columns)
        return rows if order is None else list(map(order, rows))

    def one(self, name: str, /, **params: Any) -> Row | None:
        """Read the first row, or None."""
        statement = self._statements[name]
        self._execute(statement.sql, statement.bind(params))
        row: Row | None = self._cursor.fetchone()
        return row

    def all(self, name: str, /, **params: Any) -> list[Row]:
        """Read all rows."""
        statement = self._statements[name]
        self._execute(statement.sql, statement.bind(params))
        return list(self._cursor.fetchall())

    def all_as(self, kind: type[_Kind], name: str, /, **params: Any) -> list[_Kind]:
        """Read all rows as structs of a kind, field by field; in one step where the database is in
        our process, where the kind is decoded from an array (`array_like`)."""
        statement = self._statements[name]
        if self._is_network:
            fold = self._dialect.fold
            self._execute(fold(statement.sql) if fold else statement.sql, statement.bind(params))
            return self._make(kind, self._cursor.fetchall())
        self._cursor.execute(bulk.fold(statement.sql), statement.bind(params))
        return _decoder_of(kind)(self._cursor.fetchone()[0])  # type: ignore[no-any-return]

    def _make(self, kind: type[_Kind], rows: Sequence[Row]) -> list[_Kind]:
        """Structs of rows that a network database answered, folded where it folds."""
        if self._dialect.fold is None:
            return [kind(*row) for row in rows]
        return _decoder_of(kind)(f"[{','.join([row[0] for row in rows])}]")  # type: ignore[no-any-return]

    def filtered(self, name: str, filters: Mapping[str, Any], /, **params: Any) -> list[Row]:
        """Read all rows that meet the declared conditions whose value is not None."""
        statement = self._statements[name]
        wanted = {key: value for key, value in filters.items() if value is not None}
        sql, bind = statement.with_filters(wanted)
        self._execute(sql, bind({**wanted, **params}))
        return list(self._cursor.fetchall())

    def paged(
        self, name: str, filters: Mapping[str, Any], max_bytes: int | None, /, **params: Any
    ) -> PageRows[Row]:
        """The same as `filtered`, up to so many bytes of text, and one row at least. Keys are given
        in the order in which their rows are read. Not much more is ever in memory: where the driver
        takes all that the server sends, the rows are measured there first; SQLite is asked for a
        few keys at a time, for it sorts whole rows."""
        if max_bytes is None:
            return PageRows(self.filtered(name, filters, **params))
        statement = self._statements[name]
        wanted = {key: value for key, value in filters.items() if value is not None}
        if self._is_network and statement.has_large:
            sql, bind = statement.with_filters(wanted, is_measured=True)
            self._execute(sql, bind({**wanted, **params}))
            measured = self._cursor.fetchall()
            fitting = _count_fitting([int(row[1]) for row in measured], max_bytes)
            first = [row[0] for row in measured[:fitting]]
            rows = PageRows(self.filtered(name, filters, **_narrow(params, first)))
            rows.is_cut = fitting < len(measured)
            return rows
        sql, bind = statement.with_filters(wanted)
        rows, left = PageRows(), max_bytes
        for portion in _split_keys(params):
            self._execute(sql, bind({**wanted, **portion}))
            while (row := self._cursor.fetchone()) is not None:
                left -= sum(_count_bytes(value) for value in row if isinstance(value, str))
                if left < 0 and rows:
                    rows.is_cut = True
                    self.raw("SELECT 1")  # lets go of the rest
                    return rows
                rows.append(row)
        return rows

    def ask_as(
        self, kind: type[_Kind], last: Question, questions: Sequence[Question]
    ) -> tuple[list[_Kind], list[list[Row]]]:
        """Over a network, read the rows of several questions and after them those of the last one
        as structs of a kind, in one round trip."""
        *answers, rows = self.ask([*questions, last], folds_last=True)
        return self._make(kind, rows), answers

    def ask(self, questions: Sequence[Question], *, folds_last: bool = False) -> list[list[Row]]:
        """Read the rows of several questions, one after the other; over a network in one round
        trip."""
        bound = [
            (statement.sql, statement.bind(params))
            for statement, params in ((self._statements[name], given) for name, given in questions)
        ]
        if folds_last and self._dialect.fold:
            bound[-1] = self._dialect.fold(bound[-1][0]), bound[-1][1]
        waiting, self._later = self._later, []
        answers = self._dialect.ask(self._cursor, waiting, bound)
        self.round_trips += self._is_network
        return answers

    def raw(self, sql: str) -> Row | None:
        """Run transaction control or a clock question; never a statement of a surface."""
        self._execute(sql)
        return self._cursor.fetchone() if self._cursor.description else None

    def _raw_later(self, sql: str) -> None:
        self._later.append((sql, None))

    def avoid_sorts(self) -> None:
        """Have what is read in this transaction come from an index that has its order."""
        statement = self._dialect.avoid_sorts
        if statement is not None:
            self.raw_later(statement)

    def limit_reads(self, seconds: float) -> None:
        """Have what is read from now on stopped after so long."""
        self._dialect.limit_reads(self._connection, seconds)

    def forget_later(self) -> None:
        """Drop what waits: the transaction is rolled back."""
        self._later = []

    def close(self) -> None:
        """Close the connection, whatever state it is in."""
        try:
            self._connection.close()
        except Exception:  # a dead connection may refuse even that
            return


class ReadSession(Session):
    """A session that refuses to write, in the same words on every database."""

    __slots__ = ()

    def run(self, name: str, /, **params: Any) -> int:
        raise _writes(name)

    def insert(self, name: str, columns: tuple[str, ...], rows: Sequence[Row]) -> list[int]:
        raise _writes(name)

    def run_rows(self, name: str, columns: tuple[str, ...], rows: Sequence[Row]) -> int:
        raise _writes(name)

    def run_each(self, name: str, columns: tuple[str, ...], rows: Sequence[Row]) -> list[bool]:
        raise _writes(name)

    def _require_rows(self, name: str, columns: tuple[str, ...], rows: Sequence[Row]) -> int:
        raise _writes(name)

    def _run_later(self, name: str, /, **params: Any) -> None:
        raise _writes(name)

    def _run_rows_later(self, name: str, columns: tuple[str, ...], rows: Sequence[Row]) -> None:
        raise _writes(name)


def _count_bytes(text: str) -> int:
    """As UTF-8: a page of Chinese text has three times as many bytes as characters."""
    return len(text) if text.isascii() else len(text.encode())


def _narrow(params: Mapping[str, Any], keys: list[Any]) -> dict[str, Any]:
    """The parameters of a page that has these rows only: by its limit, or by their keys."""
    if "limit" in params:
        return {**params, "limit": max(1, len(keys))}
    return {name: keys if isinstance(value, list) else value for name, value in params.items()}


def _split_keys(params: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The parameters for some keys at a time, if they have keys."""
    name = next((name for name, value in params.items() if isinstance(value, list)), None)
    if name is None:
        yield params
        return
    keys = params[name]
    for start in range(0, len(keys), _KEYS_AT_ONCE):
        yield {**params, name: keys[start : start + _KEYS_AT_ONCE]}


def _count_fitting(sizes: Sequence[int], max_bytes: int) -> int:
    """How many of the first rows fit; one at least, if there is any."""
    left = max_bytes
    for place, size in enumerate(sizes):
        left -= size
        if left < 0:
            return max(1, place)
    return len(sizes)


def _writes(name: str) -> TypeError:
    return TypeError(f"{name} writes: use store.transact")
