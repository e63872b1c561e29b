"""The pull worker: claims jobs with their leases, runs handlers, keeps the leases, sends the
results.

    server ──▶ Claims (long poll, as many as slots are free) ──▶ JobRunner ──▶ Releases ──▶ server
                                                                  │  ▲
                                        held jobs, to be beaten for  lost, cancel
                                                                  ▼  │
                                                     Heartbeats (a thread of its own) ──▶ server

What it promises: a handler's result is sent until the server accepts or refuses it, so none is lost
to an outage; a job whose lease is over is dropped and its result not sent, so none is recorded
twice; a claim whose answer was lost is looked for afterwards, so no job waits for its lease to run
out because of a cut connection.
"""

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from ksana.base.clock import Clock, SystemClock
from ksana.base.ids import new_uid
from ksana.base.instant import SECOND, Micros
from ksana.client.claims import Claims
from ksana.client.handlers import Handler, Registered
from ksana.client.heartbeats import Heartbeats
from ksana.client.job_runner import JobRunner
from ksana.client.leased_job import LeasedJob
from ksana.client.queue import QueueClient
from ksana.client.serving import serve_until_signal
from ksana.client.shapes import Job
from ksana.client.stats import WorkerStats
from ksana.client.transport import CallBackoff

FLUSH_SEC = 5.0
"""How long a stop, its grace over, still tries to bring the results home."""
CALL_SEC = 10.0
"""The deadline of a call of the worker's own client: a silent server is tried again after that."""
MAX_PAUSE_SEC = 2.0
"""A server that comes back is found after this at the latest."""

F = TypeVar("F", bound=Callable[..., Any])
log = logging.getLogger("ksana.client")


class Worker:
    """Runs the jobs of one addon. Register handlers with `job`, then `await run()`, or `serve()`
    from a script."""

    def __init__(
        self,
        client: QueueClient | str,
        addon_id: str,
        worker_id: str | None = None,
        *,
        concurrency: int = 10,
        ttl_sec: int = 30,
        wait_sec: float | None = None,
        capabilities: Mapping[str, bool] | None = None,
        max_cost_units: int | None = None,
        grace_sec: float = 30.0,
        api_key: str | None = None,
        on_lost: Callable[[Job, str], None] | None = None,
        backoff: CallBackoff | None = None,
        clock: Clock | None = None,
    ) -> None:
        """`worker_id` must be this process's alone. `ttl_sec` is the lease's time: after a crash a
        job comes back that late. `grace_sec` is what a stop leaves to running handlers. `on_lost`
        is called with each job whose result is dropped."""
        if concurrency < 1:
            raise ValueError("concurrency is 1 or more")
        self._owns_client = isinstance(client, str)
        self.client = (
            QueueClient(
                client, api_key, deadline_sec=CALL_SEC, backoff=CallBackoff(most_sec=MAX_PAUSE_SEC)
            )
            if isinstance(client, str)
            else client
        )
        self.addon_id = addon_id
        self.worker_id = worker_id or f"{socket.gethostname()}-{os.getpid()}-{new_uid()[:8]}"
        self.concurrency = concurrency
        self.ttl_us: Micros = ttl_sec * SECOND
        self.ttl_sec = ttl_sec
        self.wait_sec = _choose_wait(wait_sec, ttl_sec)
        self.capabilities = dict(capabilities or {})
        self.max_cost_units = max_cost_units
        self.grace_sec = grace_sec
        self.stats = WorkerStats()
        self.clock: Clock = clock or SystemClock()
        self.handlers: dict[str, Registered] = {}
        self._backoff = backoff or CallBackoff(most_sec=MAX_PAUSE_SEC)
        self.jobs = JobRunner(
            self.client,
            self.worker_id,
            self.handlers,
            self.stats,
            self.clock,
            concurrency=concurrency,
            ttl_us=self.ttl_us,
            backoff=self._backoff,
            on_lost=on_lost,
        )
        self._stopping = asyncio.Event()
        self._stop_grace_sec = grace_sec
        self._executor: ThreadPoolExecutor | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._heartbeats: Heartbeats | None = None

    # --- handlers ---

    def job(
        self,
        job_type: str,
        *,
        payload_type: Any = None,
        interrupt: bool = False,
        deadline_sec: float | None = None,
    ) -> Callable[[F], F]:
        """Register a handler for a job type: `async def` runs on the event loop, `def` in a thread.

        `payload_type`: the payload is converted to it, and a payload that does not fit fails the
        job. `interrupt`: when the job is cancelled, the async handler gets CancelledError; else
        only `ctx.cancelled` is set. `deadline_sec`: an async handler that runs longer is ended, and
        so is the job, as TIMEOUT.
        """

        def register(handler: F) -> F:
            self.add_job(
                job_type,
                handler,
                payload_type=payload_type,
                interrupt=interrupt,
                deadline_sec=deadline_sec,
            )
            return handler

        return register

    def add_job(
        self,
        job_type: str,
        handler: Handler,
        *,
        payload_type: Any = None,
        interrupt: bool = False,
        deadline_sec: float | None = None,
    ) -> None:
        """Register a handler without the decorator."""
        if job_type in self.handlers:
            raise ValueError(f"{job_type!r} has a handler already")
        self.handlers[job_type] = Registered(
            job_type, handler, payload_type, interrupt, deadline_sec
        )

    # --- life ---

    def serve(self) -> None:
        """Run until SIGTERM or SIGINT, then stop in good order; a second signal cuts the grace."""
        serve_until_signal(self.run, self._stop_by_signal)

    def _stop_by_signal(self) -> None:
        self.stop(0.0 if self._stopping.is_set() else None)

    def stop(self, grace_sec: float | None = None) -> None:
        """Claim no more, finish what runs within the grace, send the results; `run` returns."""
        self._stop_grace_sec = self.grace_sec if grace_sec is None else grace_sec
        self._stopping.set()
        self.jobs.has_room.set()

    async def wait_for_stop(self) -> None:
        """Wait until a stop is asked for."""
        await self._stopping.wait()

    @property
    def held(self) -> dict[str, LeasedJob]:
        """The jobs whose results the server has not answered for, by lease id."""
        return self.jobs.held

    @property
    def running(self) -> int:
        """Count the handlers at work now."""
        return self.jobs.running

    @property
    def is_stopping(self) -> bool:
        """Tell whether a stop was asked for."""
        return self._stopping.is_set()

    async def run(self, *, burst: bool = False) -> WorkerStats:
        """Work until stopped; with `burst` until no job is left to claim. Raise the ApiError when
        the server refuses our claims for good (a wrong key, a wrong name)."""
        if not self.handlers:
            raise ValueError("the worker has no handler: register one with @worker.job(…)")
        if self._loop is not None:
            raise RuntimeError("a worker runs once: make another")
        self._loop = asyncio.get_running_loop()
        self._executor = ThreadPoolExecutor(
            max_workers=self.concurrency, thread_name_prefix=f"ksana-{self.addon_id}"
        )
        self._heartbeats = Heartbeats(
            self.client,
            self.addon_id,
            self.worker_id,
            self.jobs.held,
            self.ttl_us,
            self.clock,
            on_lost=self.jobs.on_lost_in_thread,
            on_cancel=self.jobs.on_cancel_in_thread,
        )
        self.jobs.start(self._executor, self._heartbeats)
        self._heartbeats.start()
        self._say_start()
        claiming = asyncio.create_task(Claims(self, self._backoff).claim_until_stopped(burst=burst))
        try:
            await self._watch(claiming)
        finally:
            await self._shut_down(claiming)
        if not claiming.cancelled():
            claiming.result()
        return self.stats

    def _say_start(self) -> None:
        log.info(
            "worker %s: starting, addon %s, concurrency %d, job types %s",
            self.worker_id,
            self.addon_id,
            self.concurrency,
            ", ".join(sorted(self.handlers)),
        )

    async def _watch(self, claiming: asyncio.Task[None]) -> None:
        """Wait until claiming has ended by itself, or has been asked to and had its grace."""
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait((claiming, stopping), return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()

    async def _shut_down(self, claiming: asyncio.Task[None]) -> None:
        """The stop: the claim under way may still bring jobs; then handlers, results, heartbeats,
        connections."""
        assert self._loop is not None and self._heartbeats is not None
        self._stopping.set()
        started_at = self._loop.time()
        await self._wait_within(lambda: [claiming], started_at)
        claiming.cancel()
        await self._wait_within(lambda: self.jobs.tasks, started_at)
        await self.jobs.interrupt_all(FLUSH_SEC / 2)
        left = max(0.0, self._stop_grace_sec - (self._loop.time() - started_at))
        unsettled = await self.jobs.drain(left + FLUSH_SEC)
        if unsettled:
            self.stats.unsettled += unsettled
            log.error("stopped with %d results the server has not answered for", unsettled)
        await self._heartbeats.stop()
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


def _choose_wait(wait_sec: float | None, ttl_sec: int) -> float:
    """How long a claim waits for jobs. A lease may be granted right after the claim left, and its
    time counts from there: a third at most may be waiting."""
    if not 1 <= ttl_sec <= 86_400:
        raise ValueError("ttl_sec lies between 1 and 86400")
    longest = ttl_sec / 3
    if wait_sec is None:
        return min(5.0, longest)
    if not 0 <= wait_sec <= longest:
        raise ValueError(f"wait_sec lies between 0 and a third of ttl_sec, {longest:g}")
    return wait_sec
