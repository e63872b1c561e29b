"""One database connection with named statements: the only place that touches a driver's cursor."""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from operator import itemgetter
from typing import Any, TypeVar

import msgspec

from ksana.store.sql.core import bulk
from ksana.store.sql.core.dialects import Dialect
from ksana.store.sql.core.statements import Statement

Row = tuple[Any, ...]
_Kind = TypeVar("_Kind", bound=msgspec.Struct)
_decode_rows = msgspec.json.Decoder(list[list[Any]]).decode


@lru_cache(maxsize=16)
def _decoder_of(kind: type[msgspec.Struct]) -> Callable[[str], Any]:
    rows: Any = list[kind]  # type: ignore[valid-type]
    decode: Callable[[str], Any] = msgspec.json.Decoder(rows).decode
    return decode


@lru_cache(maxsize=256)
def _picker(
    statement: Statement, same: tuple[str, ...], words: tuple[str, ...], places: int
) -> Callable[[Sequence[Any]], Any]:
    """Puts values in the order of a statement's parameters: first those named in `same`, then all
    places of each word."""
    names = [*same, *(f"{word}{place}" for word in words for place in range(places))]
    wanted = statement.bind({name: at for at, name in enumerate(names)})
    return itemgetter(*wanted)


@lru_cache(maxsize=256)
def _order_of(statement: Statement, columns: tuple[str, ...]) -> Callable[[Row], Row] | None:
    """Puts a row's values in the order of the statement's parameters; None if they stand so."""
    wanted = statement.bind({name: place for place, name in enumerate(columns)})
    if tuple(wanted) == tuple(range(len(columns))):
        return None
    if len(wanted) == 1:
        return lambda row: (row[wanted[0]],)
    return itemgetter(*wanted)


class Session:
    """Runs named statements on one connection and remembers whether anything was written."""

    __slots__ = ("_connection", "_cursor", "_dialect", "_statements", "wrote")

    def __init__(
        self, dialect: Dialect, connection: Any, statements: Mapping[str, Statement]
    ) -> None:
        self._dialect = dialect
        self._connection = connection
        self._statements = statements
        self._cursor = connection.cursor()
        self.wrote = False

    def run(self, name: str, /, **params: Any) -> int:
        """Run a statement that changes rows; answer how many it matched."""
        cursor, statement = self._cursor, self._statements[name]
        cursor.execute(statement.sql, statement.bind(params))
        count: int = cursor.rowcount
        if count:  # a guard that said no left nothing behind
            self.wrote = True
        return count

    # Many rows. A row's values stand in the order of `columns`, which names parameters of the
    # statement. The statement is written for one row; no two rows may change the same one.

    def insert(self, name: str, columns: tuple[str, ...], rows: Sequence[Row]) -> list[int]:
        """Insert rows into a table with an automatic id; answer the ids in order."""
        if not rows:
            return []
        self.wrote = True
        statement = self._statements[name]
        return self._dialect.insert_ids(
            self._cursor, statement.sql, self._bind_rows(statement, columns, rows)
        )

    def run_rows(self, name: str, columns: tuple[str, ...], rows: Sequence[Row]) -> int:
        """Run a statement for each row; answer how many matched in all."""
        if not rows:
            return 0
        self.wrote = True
        statement = self._statements[name]
        return self._dialect.run_rows(
            self._cursor, statement.sql, self._bind_rows(statement, columns, rows)
        )

    def run_each(self, name: str, columns: tuple[str, ...], rows: Sequence[Row]) -> list[bool]:
        """Run a guarded change for each row; answer for each whether its guard held."""
        if not rows:
            return []
        self.wrote = True
        statement = self._statements[name]
        return self._dialect.run_each(
            self._cursor, statement.sql, self._bind_rows(statement, columns, rows)
        )

    def _bind_rows(
        self, statement: Statement, columns: tuple[str, ...], rows: Sequence[Row]
    ) -> Sequence[Any]:
        if self._dialect.is_network:
            return [dict(zip(columns, row, strict=True)) for row in rows]
        order = _order_of(statement, columns)
        return rows if order is None else list(map(order, rows))

    def one(self, name: str, /, **params: Any) -> Row | None:
        """Read the first row, or None."""
        statement = self._statements[name]
        self._cursor.execute(statement.sql, statement.bind(params))
        row: Row | None = self._cursor.fetchone()
        return row

    def all(self, name: str, /, **params: Any) -> list[Row]:
        """Read all rows."""
        statement = self._statements[name]
        self._cursor.execute(statement.sql, statement.bind(params))
        return list(self._cursor.fetchall())

    def all_as(self, kind: type[_Kind], name: str, /, **params: Any) -> list[_Kind]:
        """Read all rows as structs of a kind, field by field; in one step where the database is in
        our process, where the kind is decoded from an array (`array_like`)."""
        if self._dialect.is_network:
            return [kind(*row) for row in self.all(name, **params)]
        statement = self._statements[name]
        self._cursor.execute(bulk.fold(statement.sql), statement.bind(params))
        return _decoder_of(kind)(self._cursor.fetchone()[0])  # type: ignore[no-any-return]

    @property
    def is_embedded(self) -> bool:
        """Whether the database is in our process."""
        return not self._dialect.is_network

    def filtered(self, name: str, filters: Mapping[str, Any], /, **params: Any) -> list[Row]:
        """Read all rows that meet the declared conditions whose value is not None."""
        statement = self._statements[name]
        wanted = {key: value for key, value in filters.items() if value is not None}
        sql, bind = statement.with_filters(wanted)
        self._cursor.execute(sql, bind({**wanted, **params}))
        return list(self._cursor.fetchall())

    def raw(self, sql: str) -> Row | None:
        """Run transaction control or a clock question; never a statement of a surface."""
        self._cursor.execute(sql)
        return self._cursor.fetchone() if self._cursor.description else None

    def close(self) -> None:
        """Close the connection, whatever state it is in."""
        try:
            self._connection.close()
        except Exception:  # a dead connection may refuse even that
            return

    # Former ways, which no package should use any more: `run`, `all` and `all_as` take lists
    # (`{in name}`), `insert`, `run_rows` and `run_each` take rows.

    def insert_rows(self, name: str, rows: list[dict[str, Any]]) -> list[int]:
        """Insert rows into a table with an automatic id; answer the ids in order."""
        columns = tuple(rows[0]) if rows else ()
        return self.insert(name, columns, [tuple(row[name] for name in columns) for row in rows])

    def run_many(self, name: str, rows: Sequence[Mapping[str, Any]]) -> int:
        """Run one statement for each row; answer how many rows matched in all."""
        columns = tuple(rows[0]) if rows else ()
        return self.run_rows(name, columns, [tuple(row[name] for name in columns) for row in rows])

    def run_tuples(self, name: str, columns: tuple[str, ...], rows: Sequence[Row]) -> int:
        """`run_rows`."""
        return self.run_rows(name, columns, rows)

    def insert_tuples(self, name: str, columns: tuple[str, ...], rows: Sequence[Row]) -> list[int]:
        """`insert`."""
        return self.insert(name, columns, rows)

    def run_over(self, name: str, seqs: Sequence[int], /, **params: Any) -> int:
        """Run a statement over rows by their numbers, all different: as a range if they follow each
        other, else as a list."""
        first, last = min(seqs), max(seqs)
        if last - first < len(seqs):
            sql, bind = self._statements[name].with_filters(("range",))
            values: dict[str, Any] = {"first": first, "last": last, **params}
        else:
            sql, bind = self._statements[name].with_filters(("list",))
            values = {"seqs": self.list_of(seqs), **params}
        self.wrote = True
        self._cursor.execute(sql, bind(values))
        count: int = self._cursor.rowcount
        return count

    # The next two run a statement that has a fixed number of places for each word (`:id0`, `:id1`,
    # …), all of them filled.

    def run_places(
        self,
        name: str,
        same: Mapping[str, Any],
        words: tuple[str, ...],
        columns: Sequence[Sequence[Any]],
    ) -> int:
        """Change rows; answer how many matched. `columns` has the values of each word, `same` what
        has no place."""
        statement = self._statements[name]
        self._cursor.execute(statement.sql, self._bind_places(statement, same, words, columns))
        count: int = self._cursor.rowcount
        if count:
            self.wrote = True
        return count

    def all_places(
        self, name: str, words: tuple[str, ...], columns: Sequence[Sequence[Any]]
    ) -> list[Row]:
        """Read all rows."""
        statement = self._statements[name]
        self._cursor.execute(statement.sql, self._bind_places(statement, {}, words, columns))
        return list(self._cursor.fetchall())

    def _bind_places(
        self,
        statement: Statement,
        same: Mapping[str, Any],
        words: tuple[str, ...],
        columns: Sequence[Sequence[Any]],
    ) -> Any:
        places = len(columns[0])
        if self._dialect.is_network:
            values = dict(same)
            for word, column in zip(words, columns, strict=True):
                values.update((f"{word}{place}", value) for place, value in enumerate(column))
            return values
        pick = _picker(statement, tuple(same), words, places)
        return pick((*same.values(), *chain.from_iterable(columns)))

    def list_of(self, values: Sequence[int]) -> Any:
        """A list of numbers as one parameter, for `{in name}`."""
        return self._dialect.list_of(values)

    def all_at_once(self, name: str, /, **params: Any) -> list[Any]:
        """Read all rows of columns that hold numbers and texts, in one step where the database is
        in our process: at every step its driver lets go of the interpreter's lock, and the event
        loop takes it. A row is a sequence."""
        if self._dialect.is_network:
            return self.all(name, **params)
        statement = self._statements[name]
        self._cursor.execute(bulk.fold(statement.sql), statement.bind(params))
        return _decode_rows(self._cursor.fetchone()[0])


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

    def run_over(self, name: str, seqs: Sequence[int], /, **params: Any) -> int:
        raise _writes(name)

    def run_places(
        self,
        name: str,
        same: Mapping[str, Any],
        words: tuple[str, ...],
        columns: Sequence[Sequence[Any]],
    ) -> int:
        raise _writes(name)


def _writes(name: str) -> TypeError:
    return TypeError(f"{name} writes: use store.transact")
