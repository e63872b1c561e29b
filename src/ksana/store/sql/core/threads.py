"""Where the commit queue and the readers run: writer threads that take what waits, reader threads
beside them, or everything inline for tests."""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from ksana.base.clock import Clock
from ksana.base.errors import KsanaError, StoreDownError
from ksana.ports.store import Receiver
from ksana.store.sql.core.call_queue import CallQueue, settle
from ksana.store.sql.core.commit_queue import FIRST_PAUSE, StoreCall, Writer
from ksana.store.sql.core.dialects import Dialect, Trouble
from ksana.store.sql.core.session import ReadSession
from ksana.store.sql.core.statements import Statement
from ksana.store.sql.core.tally import Tally, summary
from ksana.store.sql.core.tx import SqlTx

P = ParamSpec("P")
T = TypeVar("T")

BATCH_LIMIT = 512
"""Functions in one commit at most: bounds the time the first of them waits for the last."""

READER_PAUSE = 1.0
"""Longest pause of a reader after a failed connect, in seconds: each notices for itself that the
store is back."""

WAITING_LIMIT = 50_000

LISTS_WAITING = 1_000
"""Lists that wait for a connection at most."""

COMMITS = 64
"""Batches after which a store that keeps a log is told: it is worth copying then."""


class Executor(Protocol):
    """Somewhere to hand a function and await its answer."""

    def start(
        self, fn: Callable[Concatenate[Any, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> Awaitable[T]:
        """Have `fn(tx, *args)` run. What is awaited raises StoreDownError if nothing more is
        taken."""
        ...

    async def close(self) -> None: ...


class WriteExecutor(Executor, Protocol):
    """One that can be told in time that the end is near."""

    def start_for(
        self,
        receiver: Receiver[T],
        fn: Callable[Concatenate[Any, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> None:
        """The same as `start`, with whom to tell."""
        ...

    def refuse(self) -> None:
        """Take nothing more; what waits is still done."""
        ...


class WriterThreads:
    """One queue, one or a few writers. SQLite has one; a network database a few, each with its own
    connection."""

    def __init__(
        self,
        writers: list[Writer],
        name: str,
        after_commits: Callable[[], None] | None = None,
        gate: AbstractContextManager[Any] | None = None,
    ) -> None:
        """`gate` is held while a writer writes."""
        self._after_commits = after_commits
        self._gate = gate or nullcontext()
        self._waiting = CallQueue(WAITING_LIMIT)
        self.start, self.refuse = self._waiting.add, self._waiting.refuse
        self.start_for = self._waiting.add_for
        self._threads = [
            threading.Thread(target=self._serve, args=(writer,), name=f"{name}-{n}", daemon=True)
            for n, writer in enumerate(writers)
        ]
        for thread in self._threads:
            thread.start()

    async def close(self) -> None:
        await self._waiting.close(self._threads)

    def _serve(self, writer: Writer) -> None:
        count = 0
        while (batch := self._waiting.take(BATCH_LIMIT)) is not None:
            with self._gate:
                writer.commit(batch)
            self._waiting.answer(batch)
            count += 1
            if count % COMMITS == 0 and self._after_commits is not None:
                self._after_commits()
        writer.close()


class ReaderThreads:
    """A few read-only connections, each with a thread; one snapshot per function. With a limit, a
    function that waited so long is not begun, and a statement that takes so long is stopped."""

    def __init__(
        self,
        dialect: Dialect,
        statements: Mapping[str, Statement],
        clock: Clock,
        tally: Tally,
        count: int,
        *,
        name: str = "store-read",
        limit_sec: float | None = None,
    ) -> None:
        self._waiting = CallQueue(WAITING_LIMIT if limit_sec is None else LISTS_WAITING)
        self._limit_sec = limit_sec
        self.start = self._waiting.add
        self._threads = [
            threading.Thread(
                target=self._serve,
                args=(Reader(dialect, statements, clock, tally, limit_sec),),
                name=f"{name}-{n}",
                daemon=True,
            )
            for n in range(count)
        ]
        for thread in self._threads:
            thread.start()

    async def close(self) -> None:
        await self._waiting.close(self._threads)

    def _serve(self, reader: "Reader") -> None:
        reader.open_early()
        while (batch := self._waiting.take(1)) is not None:
            work = batch[0]
            if self._limit_sec and time.monotonic() - work.waits_since > self._limit_sec:
                work.error = StoreDownError(
                    f"lists that came before took longer than {self._limit_sec:g} s: "
                    "this one was not begun",
                    retry_after_sec=5,
                )
            else:
                reader.run(work)
            self._waiting.answer(batch)
        reader.close()


class Reader:
    """One read-only connection. A lost one is replaced and the function run again, once."""

    def __init__(
        self,
        dialect: Dialect,
        statements: Mapping[str, Statement],
        clock: Clock,
        tally: Tally,
        limit_sec: float | None = None,
    ) -> None:
        self._dialect = dialect
        self._statements = statements
        self._clock = clock
        self._tally = tally
        self._limit_sec = limit_sec
        self._session: ReadSession | None = None
        self._down_reason = ""
        self._down_until = 0.0
        self._pause = FIRST_PAUSE

    def open_early(self) -> None:
        """Open a file before it is asked for: later there may be no descriptor to be had. A
        connection to a database server is made when it is first used."""
        if not self._dialect.is_network:
            with suppress(Exception):
                self._connect()

    def run(self, work: StoreCall) -> None:
        """Run the function; its result or error is left in the work."""
        for is_last in (False, True):
            try:
                work.result = self._read(self._connect(), work)
                return
            except Exception as error:
                trouble = self._dialect.classify(error)
                if isinstance(error, KsanaError) or trouble is Trouble.OURS:
                    work.error = error
                    self._end()
                    return
                if trouble is Trouble.SLOW:
                    work.error = StoreDownError(
                        f"reading took longer than {self._limit_sec:g} s and was stopped: "
                        "ask for a smaller page or fewer filters",
                        retry_after_sec=5,
                    )
                    self._end()
                    return
                self.close()
                if trouble is Trouble.DAMAGED:
                    reason = self._tally.mark_broken(error, trouble)
                    work.error = StoreDownError(reason, retry_after_sec=30)
                    return
                if is_last:
                    work.error = StoreDownError(f"the store is away: {summary(error)}")

    def close(self) -> None:
        """Close the connection."""
        if self._session is not None:
            self._session.close()
            self._session = None

    def _connect(self) -> ReadSession:
        if self._session is not None:
            return self._session
        if time.monotonic() < self._down_until:
            raise StoreDownError(f"the store is away: {self._down_reason}")
        try:
            self._session = ReadSession(
                self._dialect, self._dialect.connect(read_only=True), self._statements
            )
        except Exception as error:
            self._down_reason = summary(error)
            self._down_until = time.monotonic() + self._pause
            self._pause = min(self._pause * 2, READER_PAUSE)
            raise StoreDownError(f"the store is away: {self._down_reason}") from error
        self._pause = FIRST_PAUSE
        return self._session

    def _read(self, session: ReadSession, work: StoreCall) -> Any:
        session.wrote = False
        if self._limit_sec is not None:
            session.limit_reads(self._limit_sec)
        session.raw_later(self._dialect.begin_read)
        if self._dialect.is_network:
            row = session.raw(self._dialect.clock_sql)
            assert row is not None
            now = int(row[0])
        else:
            now = self._clock.now()
        result = work.fn(SqlTx(session, now), *work.args, **work.kwargs)
        if session.wrote:
            raise TypeError("a read function appended events or counts: use store.transact")
        session.raw("COMMIT")
        return result

    def _end(self) -> None:
        try:
            if self._session is not None:
                self._session.raw("ROLLBACK")
        except Exception:
            self.close()


class InlineExecutor:
    """The same writer and reader without threads, deterministic on the virtual clock."""

    def __init__(self, writer: Writer | None, reader: Reader | None) -> None:
        self._writer = writer
        self._reader = reader

    async def start(
        self, fn: Callable[Concatenate[Any, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        work = StoreCall(fn, args, kwargs, None, asyncio.get_running_loop())
        if self._writer is not None:
            self._writer.commit([work])
        elif self._reader is not None:
            self._reader.run(work)
        if work.error is not None:
            raise work.error
        result: T = work.result
        return result

    def start_for(
        self,
        receiver: Receiver[T],
        fn: Callable[Concatenate[Any, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> None:
        assert self._writer is not None
        work = StoreCall(fn, args, kwargs, receiver, asyncio.get_running_loop())
        self._writer.commit([work])
        settle([work])

    def refuse(self) -> None:
        """Nothing waits here, so there is nothing to refuse before the end."""

    async def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        if self._reader is not None:
            self._reader.close()
