"""Single submits that wait for the same commit, entered as one set.

Each caller hands in one job and gets its own answer. What comes in while the last commit runs lies in one tray and is one
transaction: the cost of a function, a wake-up and a statement is then shared by all of them. Only for jobs that nothing in the
store can refuse: one that may be a duplicate is a transaction of its own.
"""

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import Final

from ksana.base.errors import StoreDownError
from ksana.domain.queue import Job, Line
from ksana.ports.store import Store, Tx
from ksana.service.queue_jobs import NewJob, submit_jobs

TRAY: Final = 256
"""Jobs in one set at most: as with every batch, the first should not wait long for the last."""

Entered = Callable[[Sequence[NewJob], Sequence[Job]], None]
"""Told of jobs that are in the store now."""


class _Tray:
    """Jobs on their way. Filled by the event loop until the writer takes it up."""

    __slots__ = ("futures", "is_open", "jobs", "lines", "lock")

    def __init__(self) -> None:
        self.jobs: list[NewJob] = []
        self.lines: dict[int, Line] = {}
        self.futures: list[asyncio.Future[Job]] = []
        self.is_open = True
        self.lock = threading.Lock()

    def put(self, job: NewJob, line: Line | None, future: "asyncio.Future[Job]") -> bool:
        """Add a job; False if the writer was faster."""
        with self.lock:
            if not self.is_open or len(self.jobs) >= TRAY:
                return False
            self.jobs.append(job)
            if line is not None:
                self.lines[line.id] = line
            self.futures.append(future)
            return True

    def enter(self, tx: Tx) -> list[Job]:
        """The transaction. What is in the tray when it first runs is what it enters, however often it must run."""
        with self.lock:
            self.is_open = False
        return submit_jobs(tx, self.jobs, list(self.lines.values()), is_batch=True)


class Intake:
    """Takes jobs one by one and enters them together."""

    def __init__(self, store: Store, entered: Entered) -> None:
        self._store = store
        self._entered = entered
        self._tray = _Tray()
        self._tray.is_open = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._under_way: set[asyncio.Task[None]] = set()

    def submit(self, job: NewJob, fresh: Line | None) -> "asyncio.Future[Job]":
        """Enter one job; the answer comes when it is durable. `fresh` is its line, if the store may not know that yet."""
        loop = self._loop
        if loop is None or loop.is_closed():
            loop = self._loop = asyncio.get_running_loop()  # asks the system for our process id each time
        future: asyncio.Future[Job] = loop.create_future()
        if not self._tray.put(job, fresh, future):
            tray = self._tray = _Tray()
            tray.put(job, fresh, future)
            task = loop.create_task(self._carry(tray))
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)
        return future

    async def _carry(self, tray: _Tray) -> None:
        try:
            made = await self._store.transact(tray.enter)
        except StoreDownError as error:
            _refuse(tray.futures, error)
        except Exception:  # not all can be at fault: each on its own tells whose it is
            for job, future in zip(tray.jobs, tray.futures, strict=True):
                await self._carry_alone(job, tray.lines.get(job.line.id), future)
        else:
            self._entered(tray.jobs, made)
            for future, one in zip(tray.futures, made, strict=True):
                if not future.done():  # its caller may have gone
                    future.set_result(one)

    async def _carry_alone(self, job: NewJob, line: Line | None, future: "asyncio.Future[Job]") -> None:
        try:
            made = await self._store.transact(submit_jobs, [job], [] if line is None else [line], False)
        except Exception as error:
            _refuse([future], error)
        else:
            self._entered([job], made)
            if not future.done():
                future.set_result(made[0])


def _refuse(futures: Sequence["asyncio.Future[Job]"], error: Exception) -> None:
    for future in futures:
        if not future.done():
            future.set_exception(error)
