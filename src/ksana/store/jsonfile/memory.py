"""SQLite in memory for the JSON store: one connection, one thread, writes before reads.

There is one connection because there is one database: another connection to memory is another
database, and SQLite's ways of sharing one (shared cache, memdb) let readers and the writer lock
each other out. So one thread takes what waits, commits its writes together and then answers its
reads from what is committed.
"""

import asyncio
import math
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Concatenate, ParamSpec, TypeVar

from ksana.base.clock import Clock
from ksana.store.sql.core import sqlite_file
from ksana.store.sql.core.call_queue import CallQueue
from ksana.store.sql.core.commit_queue import StoreCall, Writer
from ksana.store.sql.core.dialects import SqliteDialect
from ksana.store.sql.core.threads import BATCH_LIMIT, WAITING_LIMIT, Reader

P = ParamSpec("P")
T = TypeVar("T")


class _Kept(sqlite3.Connection):
    """A connection that outlives the sessions on it: with it goes the database."""

    def close(self) -> None:
        if self.in_transaction:
            self.rollback()

    def end(self) -> None:
        """Close it for good."""
        super().close()


class MemoryDialect(SqliteDialect):
    """SQLite without a file."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(":memory:", clock)
        self.connection = sqlite3.connect(
            ":memory:",
            isolation_level=None,
            check_same_thread=False,
            cached_statements=512,
            factory=_Kept,
        )
        sqlite_file.add_functions(self.connection, clock)
        self.connection.execute("PRAGMA temp_store = MEMORY")

    def connect(self, read_only: bool) -> sqlite3.Connection:
        return self.connection

    def end(self) -> None:
        """Forget everything."""
        self.connection.end()


class _Errand(StoreCall):
    """A call that another thread waits for; no event loop does."""

    __slots__ = ()

    def __init__(self, fn: Callable[[], Any], answer: "Future[Any]") -> None:
        self.fn = fn
        self.future = answer
        self.waits_since = math.inf  # it never goes stale

    def run(self) -> None:
        """Call it and answer."""
        try:
            self.future.set_result(self.fn())
        except BaseException as error:
            self.future.set_exception(error)


class _Line(CallQueue):
    """What waits for the thread: writes, reads, and errands of other threads, which wait for no
    event loop."""

    def add_read(
        self, fn: Callable[Concatenate[Any, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> "asyncio.Future[T]":
        """Put a function that reads in the line."""
        return self.add(_read, fn, args, kwargs)

    def refuse(self) -> None:
        """Take nothing new but errands."""
        self._is_closed = True

    def run_errand(self, fn: Callable[[], T]) -> T:
        """Have the thread call `fn` between two transactions; wait for the answer."""
        answer: Future[T] = Future()
        with self._lock:
            self._calls.append(_Errand(fn, answer))
            self._ring()
        return answer.result()


class MemoryThread:
    """The thread that does all of it. `start` takes writes, `reads.start` reads; both wait in one
    line."""

    def __init__(self, writer: Writer, reader: Reader) -> None:
        self._writer = writer
        self._reader = reader
        self._waiting = _Line(WAITING_LIMIT)
        self.start, self.start_for = self._waiting.add, self._waiting.add_for
        self.run_errand = self._waiting.run_errand
        self.reads = _Reads(self._waiting)
        self._threads = [threading.Thread(target=self._serve, name="store-memory", daemon=True)]
        self._threads[0].start()

    def refuse(self) -> None:
        """Take nothing new; what waits is still worked off."""
        self._waiting.refuse()

    async def close(self) -> None:
        await self._waiting.close(self._threads)

    def _serve(self) -> None:
        while (batch := self._waiting.take(BATCH_LIMIT)) is not None:
            writes = [
                work for work in batch if work.fn is not _read and not isinstance(work, _Errand)
            ]
            if writes:
                self._writer.commit(writes)
                self._waiting.answer(writes)
            if len(writes) < len(batch):
                self._serve_rest(
                    [work for work in batch if work.fn is _read or isinstance(work, _Errand)]
                )

    def _serve_rest(self, batch: list[StoreCall]) -> None:
        reads = []
        for work in batch:
            if isinstance(work, _Errand):
                work.run()
                continue
            work.fn, work.args, work.kwargs = work.args
            self._reader.run(work)
            reads.append(work)
        if reads:
            self._waiting.answer(reads)


class _Reads:
    """The reading end of the line."""

    def __init__(self, line: _Line) -> None:
        self.start = line.add_read

    async def close(self) -> None:
        """Nothing of its own to close."""


def _read(*_: Any) -> Any:
    """Marks a function in the line as one that reads; never called."""
