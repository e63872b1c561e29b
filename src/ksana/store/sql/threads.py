"""Where lanes run: writer threads that take what waits, reader threads beside them, or everything inline for tests."""

import asyncio
import threading
from collections.abc import Callable, Mapping
from queue import Empty, SimpleQueue
from typing import Any, Protocol

from ksana.base.clock import Clock
from ksana.base.errors import KsanaError, StoreDownError
from ksana.store.sql.dialects import Dialect, Trouble
from ksana.store.sql.lane import Gate, Work, Writer
from ksana.store.sql.session import Session
from ksana.store.sql.statements import Statement
from ksana.store.sql.tx import SqlTx

BATCH_LIMIT = 512
"""Functions in one commit at most: bounds the time the first of them waits for the last."""

WAITING_LIMIT = 50_000


class Lane(Protocol):
    """Somewhere to hand a function and await its answer."""

    def start(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> "asyncio.Future[Any]": ...

    async def close(self) -> None: ...


class WriterThreads:
    """One queue, one or a few writers. SQLite has one; a network database a few, each with its own connection."""

    def __init__(self, writers: list[Writer], name: str) -> None:
        self._queue: SimpleQueue[Work | None] = SimpleQueue()
        self._gate = Gate(WAITING_LIMIT)
        self._threads = [
            threading.Thread(target=self._serve, args=(writer,), name=f"{name}-{n}", daemon=True)
            for n, writer in enumerate(writers)
        ]
        for thread in self._threads:
            thread.start()
        self._closed = False

    def start(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> "asyncio.Future[Any]":
        if self._closed:
            raise StoreDownError("the store is closed")
        self._gate.enter()
        future = asyncio.get_running_loop().create_future()
        self._queue.put(Work(fn, args, kwargs, future))
        return future

    async def close(self) -> None:
        self._closed = True
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            await asyncio.to_thread(thread.join)

    def _serve(self, writer: Writer) -> None:
        queue, take = self._queue, self._queue.get_nowait
        while True:
            work = queue.get()
            if work is None:
                break
            batch = [work]
            try:
                while len(batch) < BATCH_LIMIT:
                    more = take()
                    if more is None:
                        queue.put(None)  # the signal to end comes after this batch
                        break
                    batch.append(more)
            except Empty:
                pass
            writer.commit(batch)
            self._gate.leave(len(batch))
            _answer(batch)
        writer.close()


class ReaderThreads:
    """A few read-only connections, each with a thread; one snapshot per function."""

    def __init__(self, dialect: Dialect, statements: Mapping[str, Statement], clock: Clock, count: int) -> None:
        self._dialect = dialect
        self._statements = statements
        self._clock = clock
        self._queue: SimpleQueue[Work | None] = SimpleQueue()
        self._threads = [threading.Thread(target=self._serve, name=f"store-read-{n}", daemon=True) for n in range(count)]
        for thread in self._threads:
            thread.start()
        self._closed = False

    def start(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> "asyncio.Future[Any]":
        if self._closed:
            raise StoreDownError("the store is closed")
        future = asyncio.get_running_loop().create_future()
        self._queue.put(Work(fn, args, kwargs, future))
        return future

    async def close(self) -> None:
        self._closed = True
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            await asyncio.to_thread(thread.join)

    def _serve(self) -> None:
        reader = Reader(self._dialect, self._statements, self._clock)
        while (work := self._queue.get()) is not None:
            reader.run(work)
            _answer([work])
        reader.close()


class Reader:
    """One read-only connection. A lost one is replaced and the function run again, once."""

    def __init__(self, dialect: Dialect, statements: Mapping[str, Statement], clock: Clock) -> None:
        self._dialect = dialect
        self._statements = statements
        self._clock = clock
        self._session: Session | None = None

    def run(self, work: Work) -> None:
        """Run the function; its result or error is left in the work."""
        for last in (False, True):
            try:
                work.result = self._read(work)
                return
            except Exception as error:
                trouble = self._dialect.judge(error)
                if isinstance(error, KsanaError) or trouble is Trouble.OURS:
                    work.error = error
                    self._end()
                    return
                self.close()
                if last:
                    work.error = StoreDownError(f"the store is away: {str(error)[:300]}")

    def close(self) -> None:
        """Close the connection."""
        if self._session is not None:
            self._session.close()
            self._session = None

    def _read(self, work: Work) -> Any:
        if self._session is None:
            self._session = Session(self._dialect, self._dialect.connect(read_only=True), self._statements)
        session = self._session
        session.raw(self._dialect.begin_read)
        if self._dialect.is_network:
            row = session.raw(self._dialect.clock_sql)
            assert row is not None
            now = int(row[0])
        else:
            now = self._clock.now()
        result = work.fn(SqlTx(session, now), *work.args, **work.kwargs)
        session.raw("COMMIT")
        return result

    def _end(self) -> None:
        try:
            if self._session is not None:
                self._session.raw("ROLLBACK")
        except Exception:
            self.close()


class Inline:
    """The same writer and reader without threads: what the virtual clock needs to be deterministic."""

    def __init__(self, writer: Writer | None, reader: Reader | None) -> None:
        self._writer = writer
        self._reader = reader

    def start(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> "asyncio.Future[Any]":
        future = asyncio.get_running_loop().create_future()
        work = Work(fn, args, kwargs, future)
        if self._writer is not None:
            self._writer.commit([work])
        elif self._reader is not None:
            self._reader.run(work)
        _settle([work])
        return future

    async def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        if self._reader is not None:
            self._reader.close()


def _answer(batch: list[Work]) -> None:
    loop = batch[0].future.get_loop()
    if all(work.future.get_loop() is loop for work in batch[1:]):
        _tell(loop, batch)
        return
    for work in batch:  # several loops share one store: rare, and each gets its own
        _tell(work.future.get_loop(), [work])


def _tell(loop: asyncio.AbstractEventLoop, batch: list[Work]) -> None:
    try:
        loop.call_soon_threadsafe(_settle, batch)
    except RuntimeError:
        return  # the loop is closed: nobody waits any more, and what was committed stays


def _settle(batch: list[Work]) -> None:
    for work in batch:
        future = work.future
        if future.done():
            continue
        if work.error is None:
            future.set_result(work.result)
        else:
            future.set_exception(work.error)
