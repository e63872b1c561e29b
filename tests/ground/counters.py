"""The queue's counters held against the rows they count, asked of the database itself.

with Books(url) as books:
    books.check()          # one statement, one instant: true at any moment, whoever writes
"""

import contextlib
import sqlite3
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple, Self
from urllib.parse import urlsplit

import psycopg
import pymysql

COMPARE = """
SELECT
  (SELECT COUNT(*) FROM scheduler_job_runs WHERE position IN (0, 1)),
  (SELECT COALESCE(SUM(queued), 0) FROM queue_gauges),
  (SELECT COUNT(*) FROM scheduler_job_runs WHERE position = 4),
  (SELECT COALESCE(SUM(running), 0) FROM queue_gauges),
  (SELECT COUNT(*) FROM scheduler_lease_runs WHERE state = 'ACTIVE'),
  (SELECT active FROM queue_capacity WHERE id = 1)
    + (SELECT COALESCE(SUM(leases), 0) FROM queue_allotments),
  (SELECT COALESCE(SUM(cost_units), 0) FROM scheduler_lease_runs WHERE state = 'ACTIVE'),
  (SELECT used FROM queue_capacity WHERE id = 1)
    - (SELECT COALESCE(SUM(units), 0) FROM queue_allotments)
"""


class Compared(NamedTuple):
    """Each thing as counted row by row, and as the counter says."""

    queued: tuple[int, int]
    running: tuple[int, int]
    leases: tuple[int, int]
    units: tuple[int, int]


class Books:
    """A connection of the test's own to the store that a server writes.

    One thread at a time: a test that gives up waiting for `check` in a thread closes the books
    while that thread may still read, and SQLite ends the whole process over it.
    """

    def __init__(self, url: str) -> None:
        self._connection = connect(url)
        self._one_at_a_time = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._one_at_a_time:
            self._connection.close()

    def read(self) -> Compared:
        """Rows and counters of one instant."""
        with self._one_at_a_time, contextlib.closing(self._connection.cursor()) as cursor:
            cursor.execute(COMPARE)
            numbers = [int(number) for number in cursor.fetchone()]
        return Compared(*_pairs(numbers))

    def check(self) -> Compared:
        """Each counter says what there is."""
        compared = self.read()
        off = {name: pair for name, pair in compared._asdict().items() if pair[0] != pair[1]}
        assert not off, f"counted and said differ: {off}"
        return compared


def connect(url: str) -> Any:
    """A plain connection to any SQL store; every statement is a transaction of its own."""
    parts = urlsplit(url)
    if parts.scheme == "sqlite":
        path = url.removeprefix("sqlite:///")
        return sqlite3.connect(f"file:{path}?mode=ro", uri=True, check_same_thread=False)
    if parts.scheme == "postgresql":
        return psycopg.connect(url, autocommit=True)
    return pymysql.connect(
        host=parts.hostname or "",
        port=parts.port or 0,
        user=parts.username,
        database=parts.path.strip("/"),
        autocommit=True,
    )


def _pairs(numbers: list[int]) -> Iterator[tuple[int, int]]:
    return zip(numbers[::2], numbers[1::2], strict=True)
