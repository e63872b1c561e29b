"""Statements to MariaDB and MySQL and their answers.

PyMySQL connects, and makes errors of what the server says. The sending and reading is ours: its
cursors take 15 to 40 µs of the interpreter for each answer, this takes 2 to 8, and a transaction
has ten of them or more (ADR 53). Statements are sent as one text; the server stops at the first
that fails.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

from ksana.store.sql.core.dialects import mysql_text
from ksana.store.sql.core.dialects.base import load_driver

Values = Any
Read = Callable[[bytes], Any] | None
"""Makes a value of its bytes; None if it is to stay bytes."""

_AT_ONCE: Final = 64 * 1024
"""Bytes that are asked of the socket at a time."""

_LARGEST: Final = 0xFFFFFF
"""Bytes of a packet at most; a longer one goes on in the next."""

_OK, _NULL, _END, _FAILED = 0x00, 0xFB, 0xFE, 0xFF
"""How a packet begins, and a value that is not there."""

_WIDTHS: Final = {0xFC: 2, 0xFD: 3, 0xFE: 8}
"""Bytes of a number that is greater than 250, by what stands before it."""

_MORE: Final = 0x08
"""The status says that another statement's answer follows."""

_BINARY: Final = 63
"""The character set of bytes."""

_LOST: Final = 2013


class Answer(NamedTuple):
    """What one statement answered."""

    matched: int
    last_id: int = 0
    rows: list[tuple[Any, ...]] | None = None


@lru_cache(maxsize=256)
def _find_read(kind: int, charset: int) -> Read:
    """How values of a column are read, as PyMySQL does."""
    connections = load_driver("pymysql.connections", "mysql")
    convert = load_driver("pymysql.converters", "mysql").decoders.get(kind)
    if kind in connections.TEXT_TYPES:
        return None if charset == _BINARY else bytes.decode
    if convert in (int, float):
        return convert  # type: ignore[no-any-return]
    if convert is None:
        return bytes.decode
    return lambda raw: convert(raw.decode())


class ExchangeCursor:
    """What the session needs of a driver's cursor; it has the answer of the last statement."""

    def __init__(self, connection: Any) -> None:
        driver = load_driver("pymysql", "mysql")
        self.connection = connection
        self._lost_error: type[Exception] = driver.err.OperationalError
        self._raise: Callable[[bytes], None] = driver.err.raise_mysql_exception
        self._query: int = load_driver("pymysql.constants.COMMAND", "mysql").COM_QUERY
        self._data = b""
        self._place = 0
        """How far that was read."""
        self._number = 0
        """Of the next packet."""
        self._last = Answer(0)
        self._next_row = 0

    @property
    def rowcount(self) -> int:
        """How many rows the statement matched."""
        return self._last.matched

    @property
    def lastrowid(self) -> int:
        """The first id that it gave."""
        return self._last.last_id

    @property
    def description(self) -> bool:
        """Whether it answered rows."""
        return self._last.rows is not None

    def fetchall(self) -> list[tuple[Any, ...]]:
        """The rows, from the next one on."""
        rows = self._last.rows or []
        start, self._next_row = self._next_row, len(rows)
        return rows[start:] if start else rows

    def fetchone(self) -> Any:
        """The next row, or None."""
        rows = self._last.rows
        if rows is None or self._next_row >= len(rows):
            return None
        self._next_row += 1
        return rows[self._next_row - 1]

    def mogrify(self, sql: str, values: Values = None) -> str:
        """The statement with its values in it."""
        return mysql_text.bind(self.connection, sql, values)

    def execute(self, sql: str, values: Values = None) -> None:
        """Run one statement."""
        self.exchange([self.mogrify(sql, values)])

    def exchange(self, texts: Sequence[str]) -> list[Answer]:
        """Run complete statements, sent together. After an error the rest is not run."""
        connection = self.connection
        connection._execute_command(self._query, ";\n".join(texts))  # noqa: SLF001
        self._data, self._place, self._number = b"", 0, 1
        answers: list[Answer] = []
        try:
            is_over = False
            while not is_over:
                packet = self._read_packet()
                if packet[0] == _FAILED:
                    break
                if packet[0] == _OK:
                    matched, at = _read_number(packet, 1)
                    last_id, at = _read_number(packet, at)
                    answers.append(Answer(matched, last_id))
                else:
                    rows, packet, at = self._read_rows(_read_number(packet, 0)[0])
                    if packet[0] == _FAILED:
                        break
                    answers.append(Answer(len(rows), 0, rows))
                is_over = not packet[at] & _MORE
        except BaseException:
            # What is still under way would be taken for the answer to the next statement.
            connection._force_close()  # noqa: SLF001
            raise
        if packet[0] == _FAILED:
            self._raise(packet)
        self._last, self._next_row = answers[-1], 0
        return answers

    def _read_rows(self, width: int) -> tuple[list[tuple[Any, ...]], bytes, int]:
        """The rows of a SELECT, the packet behind them, and where in it the status is."""
        reads: list[Read] = []
        for _ in range(width):
            packet = self._read_packet()
            # The last twelve bytes: character set, length, type, flags, decimals, nothing.
            reads.append(_find_read(packet[-6], packet[-12] | packet[-11] << 8))
        self._read_packet()  # the end of the columns
        rows: list[tuple[Any, ...]] = []
        while True:
            packet = self._read_packet()
            first = packet[0]
            if first == _FAILED or (first == _END and len(packet) < 9):
                return rows, packet, 3
            rows.append(_read_row(packet, reads))

    def _read_packet(self) -> bytes:
        """The next packet."""
        start = self._place + 4
        if len(self._data) < start:
            self._receive(4)
            start = 4
        data = self._data
        end = start + (data[start - 4] | data[start - 3] << 8 | data[start - 2] << 16)
        if data[start - 1] != self._number:
            raise self._lost_error(_LOST, "the server's answers are not in order")
        self._number = (self._number + 1) & 0xFF
        if len(data) < end:
            self._receive(end - start + 4)
            data, start, end = self._data, 4, end - start + 4
        self._place = end
        packet = data[start:end]
        return packet + self._read_packet() if end - start == _LARGEST else packet

    def _receive(self, wanted: int) -> None:
        """Have so many bytes that were not read yet, at the start of the data."""
        parts = [self._data[self._place :]]
        wanted -= len(parts[0])
        while wanted > 0:
            try:
                part = self.connection._sock.recv(max(wanted, _AT_ONCE))  # noqa: SLF001
            except OSError as error:
                raise self._lost_error(_LOST, f"the connection broke ({error!r})") from error
            if not part:
                raise self._lost_error(_LOST, "the connection ended before its answers")
            parts.append(part)
            wanted -= len(part)
        self._data, self._place = b"".join(parts), 0


def _read_number(packet: bytes, at: int) -> tuple[int, int]:
    """A number of one byte or more, and where it ends."""
    first = packet[at]
    if first < _NULL:
        return first, at + 1
    end = at + 1 + _WIDTHS[first]
    return int.from_bytes(packet[at + 1 : end], "little"), end


def _read_row(packet: bytes, reads: Sequence[Read]) -> tuple[Any, ...]:
    row: list[Any] = []
    at = 0
    for read in reads:
        size = packet[at]
        at += 1
        if size >= _NULL:
            if size == _NULL:
                row.append(None)
                continue
            size, at = _read_number(packet, at - 1)
        value = packet[at : at + size]
        at += size
        row.append(value if read is None else read(value))
    return tuple(row)
