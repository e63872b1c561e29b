"""One database connection with named statements: the only place that touches a driver's cursor."""

from collections.abc import Mapping, Sequence
from typing import Any

from ksana.store.sql.dialects import Dialect
from ksana.store.sql.statements import Statement

Row = tuple[Any, ...]


class Session:
    """Runs named statements on one connection and remembers whether anything was written."""

    __slots__ = ("_connection", "_cursor", "_dialect", "_statements", "wrote")

    def __init__(self, dialect: Dialect, connection: Any, statements: Mapping[str, Statement]) -> None:
        self._dialect = dialect
        self._connection = connection
        self._statements = statements
        self._cursor = connection.cursor()
        self.wrote = False

    def run(self, name: str, /, **params: Any) -> int:
        """Run a statement that changes rows; answer how many it matched."""
        cursor = self._cursor
        cursor.execute(self._statements[name].sql, params)
        count: int = cursor.rowcount
        if count:  # a guard that said no left nothing behind
            self.wrote = True
        return count

    def insert(self, name: str, row: dict[str, Any]) -> int:
        """Insert one row into a table with an automatic id; answer the id."""
        return self.insert_rows(name, [row])[0]

    def insert_rows(self, name: str, rows: list[dict[str, Any]]) -> list[int]:
        """Insert rows into a table with an automatic id; answer the ids in order."""
        if not rows:
            return []
        self.wrote = True
        return self._dialect.insert_ids(self._cursor, self._statements[name].sql, rows)

    def run_many(self, name: str, rows: Sequence[Mapping[str, Any]]) -> int:
        """Run one statement for each row; answer how many rows it matched in all."""
        if not rows:
            return 0
        self.wrote = True
        self._cursor.executemany(self._statements[name].sql, rows)
        return int(self._cursor.rowcount)

    def one(self, name: str, /, **params: Any) -> Row | None:
        """Read the first row, or None."""
        self._cursor.execute(self._statements[name].sql, params)
        row: Row | None = self._cursor.fetchone()
        return row

    def all(self, name: str, /, **params: Any) -> list[Row]:
        """Read all rows."""
        self._cursor.execute(self._statements[name].sql, params)
        return list(self._cursor.fetchall())

    def filtered(self, name: str, filters: Mapping[str, Any], /, **params: Any) -> list[Row]:
        """Read all rows that meet the declared conditions whose value is not None."""
        statement = self._statements[name]
        wanted = {key: value for key, value in filters.items() if value is not None}
        self._cursor.execute(statement.with_filters(wanted), {**wanted, **params})
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


class ReadSession(Session):
    """A session that refuses to write, in the same words on every database."""

    __slots__ = ()

    def run(self, name: str, /, **params: Any) -> int:
        raise TypeError(f"{name} writes: use store.transact")

    def insert_rows(self, name: str, rows: list[dict[str, Any]]) -> list[int]:
        raise TypeError(f"{name} writes: use store.transact")

    def run_many(self, name: str, rows: Sequence[Mapping[str, Any]]) -> int:
        raise TypeError(f"{name} writes: use store.transact")
