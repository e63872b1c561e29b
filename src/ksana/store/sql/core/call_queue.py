"""What waits for a thread of the store, and which thread takes it.

A thread that has nothing to do sleeps, and the one that went to sleep last is woken first: its
connection, the server's process behind it and the caches of both are warm. Woken in turn, four
connections for a caller who is alone would all stay cold. While one is on its way nobody else is
woken: it takes all that waits, so that calls of one moment share a commit. Where more than
LEAST_SHARE wait and others sleep, it takes its share and wakes the next.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Concatenate, ParamSpec, TypeVar

from ksana.base.errors import StoreDownError
from ksana.ports.store import Receiver
from ksana.store.sql.core.commit_queue import StoreCall

P = ParamSpec("P")
T = TypeVar("T")

STALE_SECONDS = 10.0
"""How long a function may wait to be begun while no thread takes any."""

LEAST_SHARE = 32
"""Calls that one thread takes while others sleep. More are divided among them: a database on a
network answers the calls of one thread one after the other. Of 256 callers one thread wrote 17,000
rows a second on PostgreSQL and 13,000 on MariaDB, four wrote 30,000."""

CLOSE_SECONDS = 30.0
"""How long closing waits for what was begun."""


class CallQueue:
    """What waits for a thread: bounded in number always, and in time when no thread takes anything.

    A database that is silent holds its threads for as long as it likes. What they have begun must
    wait with them, because nobody knows its outcome; what has not begun is refused after
    STALE_SECONDS.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        """Held for a few steps at a time, by loops and threads."""
        self._calls: deque[StoreCall] = deque()
        self._asleep: list[threading.Lock] = []
        """The bells of threads that sleep, the last to lie down last. Who rings one releases it."""
        self._is_rung = False
        """A thread was woken and has not taken anything yet."""
        self._taken_at = time.monotonic()
        self._watcher: asyncio.AbstractEventLoop | None = None
        self._is_closed = False
        self._is_ending = False
        """Threads end once nothing waits any more."""

    def add(
        self, fn: Callable[Concatenate[Any, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> "asyncio.Future[T]":
        """Put a function in the queue. Who awaits its answer gets StoreDownError if nothing more
        is taken."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self.add_for(future, fn, *args, **kwargs)
        return future

    def add_for(
        self,
        receiver: Receiver[T],
        fn: Callable[Concatenate[Any, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> None:
        """The same, with whom to tell."""
        if self._is_closed or len(self._calls) >= self._limit:
            receiver.set_exception(self._refusal())
            return
        loop = asyncio.get_running_loop()
        if self._watcher is None or self._watcher.is_closed():
            self._watcher = loop
            loop.call_later(STALE_SECONDS / 10, self._watch)
        with self._lock:
            self._calls.append(StoreCall(fn, args, kwargs, receiver, loop))
            self._ring()

    def refuse(self) -> None:
        """Take nothing more."""
        self._is_closed = True

    def is_empty(self) -> bool:
        """Whether nothing waits to be begun."""
        return not self._calls

    def take(self, limit: int) -> list[StoreCall] | None:
        """Wait for work and take what there is; None when the store is closed and the queue was
        emptied."""
        calls = self._calls
        is_woken = False
        while True:
            with self._lock:
                if is_woken:
                    self._is_rung = False
                if calls:
                    share = max(LEAST_SHARE, -(-len(calls) // (len(self._asleep) + 1)))
                    batch = [calls.popleft() for _ in range(min(limit, share, len(calls)))]
                    self._ring()  # for what is left
                    self._taken_at = time.monotonic()
                    return batch
                if self._is_ending:
                    return None
                bell = threading.Lock()
                bell.acquire()
                self._asleep.append(bell)
            bell.acquire()  # until somebody rings it
            is_woken = True

    def answer(self, batch: list[StoreCall]) -> None:
        """Hand the results to those who wait for them."""
        while batch:  # several loops may share one store: rare, and each gets its own
            loop = batch[0].loop
            mine = [work for work in batch if work.loop is loop]
            with suppress(RuntimeError):  # a loop that is closed: nobody waits there any more
                loop.call_soon_threadsafe(settle, mine)
            batch = [work for work in batch if work.loop is not loop]

    async def close(self, threads: list[threading.Thread]) -> None:
        """Let the threads work off what waits, then end. One held by a silent database is left
        behind."""
        self._is_closed = True
        with self._lock:
            self._is_ending = True
            while self._asleep:
                self._asleep.pop().release()
        give_up_at = time.monotonic() + CLOSE_SECONDS
        for thread in threads:
            await asyncio.to_thread(thread.join, max(0.0, give_up_at - time.monotonic()))

    def _refusal(self) -> StoreDownError:
        if self._is_closed:
            return StoreDownError("the store is closed")
        return StoreDownError(f"more than {self._limit} functions wait for the store already")

    def _ring(self) -> None:
        """Wake a thread for what waits, unless one is on its way. Under the lock."""
        if self._calls and self._asleep and not self._is_rung:
            self._is_rung = True
            self._asleep.pop().release()

    def _watch(self) -> None:
        assert self._watcher is not None
        if not self._calls:
            self._watcher = None  # no timer while nothing waits
            return
        self._watcher.call_later(STALE_SECONDS / 10, self._watch)
        now = time.monotonic()
        if now - self._taken_at > STALE_SECONDS:
            self._refuse_stale(now - STALE_SECONDS)

    def _refuse_stale(self, since: float) -> None:
        with self._lock:
            waiting = list(self._calls)
            self._calls.clear()
            self._calls.extend(call for call in waiting if call.waits_since >= since)
        stale = [call for call in waiting if call.waits_since < since]
        for call in stale:
            call.error = StoreDownError(
                "the store is silent: this request was not begun", retry_after_sec=5
            )
        if stale:
            self.answer(stale)


def settle(batch: list[StoreCall]) -> None:
    """Tell each who waits what came of it. On the event loop."""
    for work in batch:
        future = work.future
        if future.done():
            continue
        try:
            if work.error is None:
                future.set_result(work.result)
            else:
                future.set_exception(work.error)
        except Exception as error:  # the others wait for their answers, whoever fails to take one
            work.loop.call_exception_handler(
                {"message": "the answer of a transaction was not taken", "exception": error}
            )
