"""Statements to PostgreSQL in one round trip, by libpq's pipeline mode.

psycopg connects, converts what is read, and names errors. The sending is ours: its cursors take 50
µs of the interpreter for each statement, this takes 8, and a transaction has ten of them or more
(ADR 43). A statement with values is prepared when it is first sent on a connection; the server
finds the types of its values.

Nothing here may wait inside libpq, which holds the interpreter's lock meanwhile: everybody else
would stand still. It waits for the socket.
"""

import select
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

from ksana.store.sql.core import bulk
from ksana.store.sql.core.dialects.base import load_driver

MOST_PREPARED: Final = 500
"""Statements that are prepared on a connection at most. There are fewer, but lists with filters
have many forms."""

Values = Mapping[str, Any] | None


@lru_cache(maxsize=1024)
def _number(sql: str) -> tuple[bytes, tuple[str, ...]]:
    """The statement as the server takes it, and the names of its values in their order."""
    return bulk.number_names(sql).encode(), bulk.list_names(sql)


def _write_text(text: str) -> bytes:
    if "\0" in text:  # libpq would end it there
        raise load_driver("psycopg", "postgres").DataError("a text cannot hold NUL")
    return text.encode()


_WRITERS: Final[Mapping[type, Callable[[Any], bytes | None]]] = {
    str: _write_text,
    int: lambda number: b"%d" % number,
    type(None): lambda _: None,
    bool: lambda is_true: b"t" if is_true else b"f",
    float: lambda number: repr(number).encode(),
    bytes: lambda data: b"\\x" + data.hex().encode(),
}


def _write(value: Any) -> bytes | None:
    """A value as the server reads it."""
    for kind in type(value).__mro__:
        if kind in _WRITERS:
            return _WRITERS[kind](value)
    raise TypeError(f"{type(value).__name__} is no type of a database")


class PipelineCursor:
    """What the session needs of a driver's cursor; it has the answer of the last statement."""

    def __init__(self, connection: Any) -> None:
        driver = load_driver("psycopg", "postgres")
        self._connection = connection
        self._libpq = connection.pgconn
        self._status = driver.pq.ExecStatus
        self._error_of: Callable[[Any], Exception] = driver.errors.error_from_result
        self._lost_error: type[Exception] = driver.OperationalError
        self._loader = driver.adapt.Transformer(connection)
        self._poll = select.poll()
        self._poll.register(self._libpq.socket, select.POLLIN)
        self._names: dict[str, bytes] = {}
        """The statements that the server has prepared, the least recently used first."""
        self._prepared = 0
        self._result: Any = None
        self._rows: list[Any] = []
        self._place = 0

    @property
    def rowcount(self) -> int:
        """How many rows the statement matched."""
        return self._result.command_tuples or 0

    @property
    def description(self) -> bool:
        """Whether it answered rows."""
        return bool(self._result.status == self._status.TUPLES_OK)

    def fetchall(self) -> list[Any]:
        """The rows, from the next one on."""
        start, self._place = self._place, len(self._rows)
        return self._rows[start:] if start else self._rows

    def fetchone(self) -> Any:
        """The next row, or None."""
        if self._place >= len(self._rows):
            return None
        self._place += 1
        return self._rows[self._place - 1]

    def execute(self, sql: str, values: Values = None) -> None:
        """Run one statement."""
        self.send([(sql, values)])

    def send(self, statements: Sequence[tuple[str, Values]]) -> list[int]:
        """Run statements; answer how many rows each matched. After an error the rest is not run."""
        results = self._exchange(statements)
        self._result, self._place = results[-1], 0
        self._rows = self._load(self._result)
        return [one.command_tuples or 0 for one in results]

    def ask(self, statements: Sequence[tuple[str, Values]], count: int) -> list[list[Any]]:
        """The same, and answer the rows of the last so many."""
        return [self._load(one) for one in self._exchange(statements)[-count:]]

    def _load(self, result: Any) -> list[Any]:
        if not result.ntuples:
            return []
        self._loader.set_pgresult(result)
        rows: list[Any] = self._loader.load_rows(0, result.ntuples, tuple)
        return rows

    def _exchange(self, statements: Sequence[tuple[str, Values]]) -> list[Any]:
        written = [
            (sql, text, None if values is None else [_write(values[name]) for name in names])
            for sql, values in statements
            for text, names in (_number(sql),)
        ]
        owners: list[str | int] = []
        """What each result is of: a statement's place, or the text of one that is prepared."""
        libpq = self._libpq
        results: list[Any] = []
        try:
            libpq.enter_pipeline_mode()
            for place, (sql, text, values) in enumerate(written):
                if values is None:  # BEGIN, COMMIT: to prepare them saves nothing
                    libpq.send_query_params(text, None)
                else:
                    name = self._find_name(sql, text, owners)
                    libpq.send_query_prepared(name, values)
                owners.append(place)
            libpq.pipeline_sync()
            self._receive(results)
            libpq.exit_pipeline_mode()
        except BaseException as error:
            # What is still under way would be taken for the answer to the next statement.
            self._connection.close()
            if isinstance(error, self._lost_error):
                self._refuse(results)  # the server may have said why
            raise
        self._forget_unprepared(owners, results)
        self._refuse(results)
        return [one for owner, one in zip(owners, results, strict=True) if isinstance(owner, int)]

    def _find_name(self, sql: str, text: bytes, owners: list[str | int]) -> bytes:
        """Under which name the statement is prepared, now if need be."""
        names = self._names
        name = names.pop(sql, None)
        if name is None:
            if len(names) >= MOST_PREPARED:
                oldest = next(iter(names))
                self._libpq.send_query_params(b"DEALLOCATE " + names.pop(oldest), None)
                owners.append("")
            self._prepared += 1
            name = b"ksana_%d" % self._prepared
            self._libpq.send_prepare(name, text)
            owners.append(sql)
        names[sql] = name
        return name

    def _receive(self, results: list[Any]) -> None:
        """Read the result of each command, up to the end of what was sent."""
        libpq, is_over = self._libpq, False
        while libpq.flush():
            self._wait(select.POLLIN | select.POLLOUT)
        while True:
            while libpq.is_busy():
                self._wait(select.POLLIN)
            result = libpq.get_result()
            if result is None:  # between two commands
                if is_over:
                    raise self._lost_error("the connection ended before its answers")
                is_over = True
                continue
            is_over = False
            if result.status == self._status.PIPELINE_SYNC:
                return
            results.append(result)

    def _wait(self, events: int) -> None:
        self._poll.modify(self._libpq.socket, events)
        self._poll.poll()
        self._libpq.consume_input()

    def _refuse(self, results: Sequence[Any]) -> None:
        for result in results:
            if result.status == self._status.FATAL_ERROR:
                raise self._error_of(result) from None

    def _forget_unprepared(self, owners: Sequence[str | int], results: Sequence[Any]) -> None:
        """After an error the server has not prepared what came behind it."""
        for owner, result in zip(owners, results, strict=True):
            if isinstance(owner, str) and result.status != self._status.COMMAND_OK:
                self._names.pop(owner, None)
