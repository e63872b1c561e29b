"""The pull worker: claims jobs with their leases, runs handlers, keeps the leases, sends the
results.

    server ──claim (long poll, as many as slots are free)──▶ tasks ──results──▶ Releases ──release-batch──▶ server
                                                              │ ▲
                                          Heartbeats (thread) ┘ └ lost, cancel

What it promises: a handler's result is sent until the server accepts or refuses it, so none is lost
to an outage; a job whose lease is over is dropped and its result not sent, so none is recorded
twice; a claim whose answer was lost is looked for afterwards, so no job waits for its lease to run
out because of a cut connection.
"""

import asyncio
import contextlib
import logging
import os
import signal
import socket
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from ksana.base.clock import Clock, SystemClock
from ksana.base.ids import new_uid
from ksana.base.instant import SECOND, Micros
from ksana.client import holding
from ksana.client.claims import Claims
from ksana.client.context import JobContext
from ksana.client.errors import ApiError
from ksana.client.handlers import Handler, Outcome, Registered
from ksana.client.heartbeats import Heartbeats
from ksana.client.holding import Holding
from ksana.client.queue import QueueClient
from ksana.client.releases import Releases
from ksana.client.shapes import Job, ReleaseItem
from ksana.client.stats import WorkerStats
from ksana.client.transport import Backoff

FLUSH_SEC = 5.0
"""How long a stop, its grace over, still tries to bring the results home."""
CALL_SEC = 10.0
"""The deadline of a call of the worker's own client: a silent server is tried again after that."""
MAX_UNSETTLED = 2_000
"""Results that may wait for the server before no more is claimed."""

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
        backoff: Backoff | None = None,
        clock: Clock | None = None,
    ) -> None:
        """`worker_id` must be this process's alone. `ttl_sec` is the lease's time: after a crash a
        job comes back that late. `grace_sec` is what a stop leaves to running handlers. `on_lost`
        is told each job whose result is dropped."""
        if concurrency < 1:
            raise ValueError("concurrency is 1 or more")
        if not 1 <= ttl_sec <= 86_400:
            raise ValueError("ttl_sec lies between 1 and 86400")
        # A lease may be granted right after the claim left, and its time counts from there: a third
        # at most may be waiting.
        longest = ttl_sec / 3
        if wait_sec is not None and not 0 <= wait_sec <= longest:
            raise ValueError(f"wait_sec lies between 0 and a third of ttl_sec, {longest:g}")
        self._owns_client = isinstance(client, str)
        self.client = (
            QueueClient(client, api_key, deadline_sec=CALL_SEC)
            if isinstance(client, str)
            else client
        )
        self.addon_id = addon_id
        self.worker_id = worker_id or f"{socket.gethostname()}-{os.getpid()}-{new_uid()[:8]}"
        self.concurrency = concurrency
        self.ttl_us: Micros = ttl_sec * SECOND
        self.ttl_sec = ttl_sec
        self.wait_sec = wait_sec if wait_sec is not None else min(5.0, longest)
        self.capabilities = dict(capabilities or {})
        self.max_cost_units = max_cost_units
        self.grace_sec = grace_sec
        self.stats = WorkerStats()
        self.clock: Clock = clock or SystemClock()
        self.handlers: dict[str, Registered] = {}
        self.held: dict[str, Holding] = {}
        self.running = 0
        """Handlers at work now."""
        self.has_room = asyncio.Event()
        self._on_lost = on_lost
        self._backoff = backoff or Backoff(most_sec=2.0)
        self._stopping = asyncio.Event()
        self._stop_grace_sec = grace_sec
        self._executor: ThreadPoolExecutor | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._releases: Releases | None = None
        self._heartbeats: Heartbeats | None = None

    # -------------------------------------------------------------------------------------------- handlers

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

    # -------------------------------------------------------------------------------------------- life

    def serve(self) -> None:
        """Run until SIGTERM or SIGINT, then stop in good order; a second signal cuts the grace."""

        async def main() -> None:
            loop = asyncio.get_running_loop()
            for number in (signal.SIGTERM, signal.SIGINT):
                with contextlib.suppress(NotImplementedError):  # Windows
                    loop.add_signal_handler(number, self._stop_by_signal)
            await self.run()

        with asyncio.Runner(loop_factory=_fast_loop()) as runner:
            runner.run(main())

    def _stop_by_signal(self) -> None:
        self.stop(0.0 if self._stopping.is_set() else None)

    def stop(self, grace_sec: float | None = None) -> None:
        """Claim no more, finish what runs within the grace, send the results, and let `run` return."""
        self._stop_grace_sec = self.grace_sec if grace_sec is None else grace_sec
        self._stopping.set()
        self.has_room.set()

    async def wait_for_stop(self) -> None:
        """Wait until a stop is asked for."""
        await self._stopping.wait()

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
        self._releases = Releases(self.client, self._settle, self._backoff)
        self._heartbeats = Heartbeats(
            self.client,
            self.worker_id,
            self.held,
            self.ttl_us,
            self.clock,
            on_lost=self._on_lost_in_thread,
            on_cancel=self._on_cancel_in_thread,
        )
        self._heartbeats.start()
        claiming = asyncio.create_task(Claims(self, self._backoff).claim_until_stopped(burst=burst))
        try:
            await self._watch(claiming)
        finally:
            await self._wind_up(claiming)
        if not claiming.cancelled():
            claiming.result()
        return self.stats

    async def _watch(self, claiming: asyncio.Task[None]) -> None:
        """Wait until claiming has ended by itself, or has been asked to and had its grace."""
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait((claiming, stopping), return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()

    async def _wind_up(self, claiming: asyncio.Task[None]) -> None:
        """The stop: the claim under way may still bring jobs; then handlers, results, heartbeats,
        connections."""
        assert (
            self._loop is not None and self._releases is not None and self._heartbeats is not None
        )
        self._stopping.set()
        started_at = self._loop.time()
        await self._wait_within(lambda: [claiming], started_at)
        claiming.cancel()
        await self._wait_within(
            lambda: [held.task for held in self.held.values() if held.task is not None], started_at
        )
        await self._interrupt_all()
        left = max(0.0, self._stop_grace_sec - (self._loop.time() - started_at))
        if not await self._releases.drain(left + FLUSH_SEC):
            unsettled = await self._releases.abandon()
            self.stats.unsettled += len(unsettled)
            log.error("stopped with %d results the server has not answered for", len(unsettled))
        await self._heartbeats.stop()
        assert self._executor is not None
        self._executor.shutdown(wait=False, cancel_futures=True)
        if self._owns_client:
            await self.client.close()

    async def _interrupt_all(self) -> None:
        """The grace is over: tell the handlers that still run, and give them a moment to end."""
        running = {
            held.task: held
            for held in self.held.values()
            if held.task is not None and not held.task.done()
        }
        for task, held in running.items():
            held.cause = held.cause or holding.BY_STOP
            held.cancelled.set("the worker stops")
            if self._is_async(held):
                task.cancel()
        if running:
            await asyncio.wait(running, timeout=FLUSH_SEC / 2)
        for task, held in running.items():
            # What does not end, a thread above all, keeps its lease until that runs out: no other
            # worker may run beside it.
            if not task.done() and held.phase is holding.RUNNING:
                held.phase = holding.LOST
                self._report_lost(held, "the worker stopped before the handler did")

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

    # -------------------------------------------------------------------------------------------- one job

    def count_free_slots(self) -> int:
        """How many jobs may be claimed now."""
        assert self._releases is not None
        return min(self.concurrency - self.running, MAX_UNSETTLED - len(self._releases))

    def begin(self, job: Job, sent_at: Micros) -> None:
        """Start a job whose lease is ours since `sent_at` or a little later."""
        lease_id = job.lease_id
        if lease_id is None:
            log.error("job %s was claimed with a lease and came without", job.job_id)
            return
        if lease_id in self.held:
            return
        held = Holding(job, lease_id, sent_at, self.ttl_us)
        self.held[lease_id] = held
        self.running += 1
        self.stats.claimed += 1
        assert self._loop is not None
        held.task = self._loop.create_task(self._run_job(held))

    async def _run_job(self, held: Holding) -> None:
        job = held.job
        registered = self.handlers.get(job.job_type)
        try:
            if registered is None:
                outcome = Outcome(
                    status="FAILED", error=f"this worker has no handler for {job.job_type!r}"
                )
            else:
                ctx = JobContext(
                    job, job.payload, self.worker_id, held.cancelled, self._reporter(held)
                )
                outcome = await registered.run(ctx, self._executor)
        except asyncio.CancelledError:
            outcome = Outcome(status="CANCELED", error=held.cancelled.reason, is_given_up=True)
        if outcome.is_given_up and held.cause is not holding.BY_CANCEL:
            outcome = self._judge_interrupted(held, outcome)
        self.running -= 1
        self.has_room.set()
        self._finish(held, outcome)

    def _judge_interrupted(self, held: Holding, outcome: Outcome) -> Outcome:
        """A handler that gave up although nobody cancelled its job: the attempt failed and may be
        made again."""
        if held.cause is holding.BY_STOP:
            return Outcome(
                status="FAILED",
                error="the worker stopped before the job ended",
                metrics=outcome.metrics,
            )
        if held.cancelled.is_set():
            return outcome  # the lease is lost: nothing will be sent
        return Outcome(
            status="FAILED",
            error=outcome.error or "the handler was cancelled from within",
            metrics=outcome.metrics,
        )

    def _reporter(self, held: Holding) -> Callable[[float | None, str | None], None]:
        def report(fraction: float | None, message: str | None) -> None:
            if fraction is not None:
                held.progress = fraction
            if message is not None:
                held.message = message
            is_first = held.reported == held.sent
            held.reported += 1
            if is_first and self._heartbeats is not None:
                self._heartbeats.wake()

        return report

    def _finish(self, held: Holding, outcome: Outcome) -> None:
        if held.phase is holding.LOST:
            self.held.pop(held.lease_id, None)
            return
        if self.clock.monotonic() >= held.fence_at:
            self._lose(held, "its own lease time has passed")
            self.held.pop(held.lease_id, None)
            return
        held.phase = holding.FINISHED
        assert self._releases is not None
        status, is_final = outcome.status, outcome.is_final
        if is_final and held.lease_token is None and held.job.attempts < held.job.max_attempts:
            # A server without tokens does not know `retry` either. There CANCELED, with the error,
            # is what ends a job that has attempts left.
            status, is_final = "CANCELED", False
        item = ReleaseItem(
            lease_id=held.lease_id,
            job_id=held.job.job_id,
            worker_id=self.worker_id,
            lease_token=held.lease_token,
            status=status,
            result_data=outcome.result_data,
            error=outcome.error,
            metrics=outcome.metrics,
            retry=not is_final,
        )
        self._releases.add(held, item)

    def _settle(self, held: Holding, item: ReleaseItem, refusal: ApiError | None) -> None:
        """The server's verdict on a result."""
        self.held.pop(held.lease_id, None)
        stats = self.stats
        if refusal is not None:
            held.phase = holding.LOST
            self._report_lost(held, str(refusal))
        elif item.status == "SUCCEEDED":
            stats.succeeded += 1
        elif item.status == "FAILED":
            stats.failed += 1
        elif item.status == "CANCELED":
            stats.cancelled += 1
        else:
            stats.timed_out += 1
        if not self.has_room.is_set():
            self.has_room.set()

    # -------------------------------------------------------------------------------------------- from the heartbeats

    def _on_lost_in_thread(self, held: Holding, reason: str) -> None:
        """Called on the heartbeat thread. The signal is set here, because the handler may be
        blocking the event loop; the rest happens there."""
        if held.phase is holding.RUNNING:
            held.cancelled.mark(f"the lease is lost: {reason}")
            self._call_on_loop(self._lose, held, reason)

    def _on_cancel_in_thread(self, held: Holding) -> None:
        """Called on the heartbeat thread, as above."""
        if held.phase is holding.RUNNING:
            held.cause = held.cause or holding.BY_CANCEL
            held.cancelled.mark("the job was cancelled")
            self._call_on_loop(self._tell_cancel, held)

    def _call_on_loop(self, tell: Callable[..., None], *args: Any) -> None:
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):  # the loop has closed: nobody is left to tell
            self._loop.call_soon_threadsafe(tell, *args)

    def _lose(self, held: Holding, reason: str) -> None:
        """The lease is ours no longer: stop the handler and send nothing."""
        if held.phase is not holding.RUNNING:
            return  # its release is on the way, and the server's answer to that is the verdict
        held.phase = holding.LOST
        held.cancelled.set(f"the lease is lost: {reason}")
        if held.task is not None and not held.task.done() and self._is_async(held):
            held.task.cancel()
        self._report_lost(held, reason)

    def _tell_cancel(self, held: Holding) -> None:
        """Somebody cancelled the job: tell the handler."""
        if held.phase is not holding.RUNNING or not held.cancelled.set("the job was cancelled"):
            return
        registered = self.handlers.get(held.job.job_type)
        if (
            registered is not None
            and registered.is_async
            and registered.is_interrupted
            and held.task is not None
        ):
            held.task.cancel()

    def _is_async(self, held: Holding) -> bool:
        registered = self.handlers.get(held.job.job_type)
        return registered is not None and registered.is_async

    def _report_lost(self, held: Holding, reason: str) -> None:
        self.stats.lost += 1
        log.warning("job %s: result dropped, the lease is lost: %s", held.job.job_id, reason)
        if self._on_lost is not None:
            try:
                self._on_lost(held.job, reason)
            except Exception:
                log.exception(
                    "on_lost failed"
                )  # the caller's mistake must not stop the results of other jobs


def _fast_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop where there is one; it is not on Windows."""
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory
