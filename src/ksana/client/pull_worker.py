"""The life of a worker that pulls: it takes jobs until it is asked to stop, lets handlers finish
within a grace, and brings their results home. What it takes and how, who inherits says."""

import asyncio
import logging
import os
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any, Generic, TypeVar

from ksana.base.clock import Clock, SystemClock
from ksana.base.ids import new_uid
from ksana.base.instant import SECOND, Micros
from ksana.client.api_client import ApiClient
from ksana.client.lease_runner import LeaseRunner
from ksana.client.lease_thread import LeaseThread
from ksana.client.serving import serve_until_signal
from ksana.client.stats import WorkerStats
from ksana.client.transport import CallBackoff

FLUSH_SEC = 5.0
"""How long a stop, its grace over, still tries to bring the results home."""
CALL_SEC = 10.0
"""The deadline of a call of the worker's own client: a silent server is tried again after that."""
MAX_PAUSE_SEC = 2.0
"""A server that comes back is found after this at the latest."""

C = TypeVar("C", bound=ApiClient)

log = logging.getLogger("ksana.client")


class PullWorker(ABC, Generic[C]):
    """Runs until stopped. Call `await run()`, or `serve()` from a script. A client that it made
    itself, for an address, is closed in the end."""

    jobs: LeaseRunner[Any]

    def __init__(
        self,
        name: str,
        client: C | str,
        kind: type[C],
        api_key: str | None,
        worker_id: str | None,
        *,
        concurrency: int,
        lease_sec: int,
        wait_sec: float | None,
        grace_sec: float,
        backoff: CallBackoff | None,
        clock: Clock | None,
    ) -> None:
        if concurrency < 1:
            raise ValueError("concurrency is 1 or more")
        self.name = name
        """What it works for, as its threads are called."""
        self._owns_client = isinstance(client, str)
        if isinstance(client, str):
            patience = CallBackoff(most_sec=MAX_PAUSE_SEC)
            client = kind(client, api_key, deadline_sec=CALL_SEC, backoff=patience)
        self.client: C = client
        self._backoff = backoff or CallBackoff(most_sec=MAX_PAUSE_SEC)
        self.worker_id = worker_id or f"{socket.gethostname()}-{os.getpid()}-{new_uid()[:8]}"
        self.concurrency = concurrency
        self.ttl_us: Micros = lease_sec * SECOND
        self.wait_sec = choose_wait(wait_sec, lease_sec)
        self.grace_sec = grace_sec
        self.stats = WorkerStats()
        self.clock: Clock = clock or SystemClock()
        self._stopping = asyncio.Event()
        self._stop_grace_sec = grace_sec
        self._executor: ThreadPoolExecutor | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._renewals: LeaseThread[Any, C] | None = None

    @abstractmethod
    def _check_ready(self) -> None:
        """Raise ValueError where there is no handler to run."""

    @abstractmethod
    def _describe(self) -> str:
        """What it takes, for the log."""

    @abstractmethod
    def _start_renewals(self, executor: Executor) -> LeaseThread[Any, C]:
        """Tell the runner that it may begin, and make the thread that keeps its leases."""

    @abstractmethod
    async def _take_until_stopped(self, *, burst: bool) -> None:
        """Take jobs while there is room."""

    def serve(self) -> None:
        """Run until SIGTERM or SIGINT, then stop in good order; a second signal cuts the grace."""
        serve_until_signal(self.run, self._stop_by_signal)

    def _stop_by_signal(self) -> None:
        self.stop(0.0 if self._stopping.is_set() else None)

    def stop(self, grace_sec: float | None = None) -> None:
        """Take no more, finish what runs within the grace, send the results; `run` returns."""
        self._stop_grace_sec = self.grace_sec if grace_sec is None else grace_sec
        self._stopping.set()
        self.jobs.has_room.set()

    async def wait_for_stop(self) -> None:
        """Wait until a stop is asked for."""
        await self._stopping.wait()

    @property
    def running(self) -> int:
        """Count the handlers at work now."""
        return self.jobs.running

    @property
    def is_stopping(self) -> bool:
        """Tell whether a stop was asked for."""
        return self._stopping.is_set()

    async def run(self, *, burst: bool = False) -> WorkerStats:
        """Work until stopped; with `burst` until no job is left to take. Raise the ApiError when
        the server refuses us for good (a wrong key, a wrong name)."""
        self._check_ready()
        if self._loop is not None:
            raise RuntimeError("a worker runs once: make another")
        self._loop = asyncio.get_running_loop()
        self._executor = ThreadPoolExecutor(
            max_workers=self.concurrency, thread_name_prefix=f"ksana-{self.name}"
        )
        self._renewals = self._start_renewals(self._executor)
        self._renewals.start()
        log.info("worker %s: starting, %s", self.worker_id, self._describe())
        taking = asyncio.create_task(self._take_until_stopped(burst=burst))
        try:
            await self._watch(taking)
        finally:
            await self._shut_down(taking)
        if not taking.cancelled():
            taking.result()
        return self.stats

    async def _watch(self, taking: asyncio.Task[None]) -> None:
        """Wait until taking has ended by itself, or has been asked to and had its grace."""
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait((taking, stopping), return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()

    async def _shut_down(self, taking: asyncio.Task[None]) -> None:
        """The stop: the request under way may still bring jobs; then handlers, results, renewals,
        connections."""
        assert self._loop is not None and self._renewals is not None
        self._stopping.set()
        self.jobs.give_back()
        started_at = self._loop.time()
        await self._wait_within(lambda: [taking], started_at)
        taking.cancel()
        await asyncio.wait((taking,))  # `run` asks how it ended
        self.jobs.give_back()
        await self._wait_within(lambda: self.jobs.tasks, started_at)
        await self.jobs.interrupt_all(FLUSH_SEC / 2)
        left = max(0.0, self._stop_grace_sec - (self._loop.time() - started_at))
        unsettled = await self.jobs.drain(left + FLUSH_SEC)
        if unsettled:
            self.stats.unsettled += unsettled
            log.error("stopped with %d results the server has not answered for", unsettled)
        await self._renewals.stop()
        assert self._executor is not None
        self._executor.shutdown(wait=False, cancel_futures=True)
        if self._owns_client:
            await self.client.close()
        stats = self.stats
        log.info(
            "worker %s: stopped; succeeded %d, failed %d, cancelled %d, timed out %d, lost %d",
            self.worker_id,
            stats.succeeded,
            stats.failed,
            stats.cancelled,
            stats.timed_out,
            stats.lost,
        )

    async def _wait_within(
        self, tasks: Callable[[], list[asyncio.Task[None]]], started_at: float
    ) -> None:
        """Wait for the tasks while the grace lasts. A second stop may shorten it meanwhile, so look
        up now and then."""
        assert self._loop is not None
        while pending := [task for task in tasks() if not task.done()]:
            left = self._stop_grace_sec - (self._loop.time() - started_at)
            if left <= 0:
                return
            await asyncio.wait(pending, timeout=min(left, 0.2))


def choose_wait(wait_sec: float | None, lease_sec: int, named: str = "ttl_sec") -> float:
    """How long a request waits for jobs. A lease may be granted right after the request left, and
    its time counts from there: a third at most may be waiting."""
    if not 1 <= lease_sec <= 86_400:
        raise ValueError(f"{named} lies between 1 and 86400")
    longest = lease_sec / 3
    if wait_sec is None:
        return min(5.0, longest)
    if not 0 <= wait_sec <= longest:
        raise ValueError(f"wait_sec lies between 0 and a third of {named}, {longest:g}")
    return wait_sec
