"""The jobs a worker holds: each is run by its handler, and its result goes to the releases.

The phases of a job change here, on the worker's event loop only.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from typing import Any

from ksana.base.clock import Clock
from ksana.base.instant import Micros
from ksana.client import leased_job
from ksana.client.context import JobContext
from ksana.client.errors import ApiError
from ksana.client.handlers import HandlerOutcome, Registered
from ksana.client.heartbeats import Heartbeats
from ksana.client.leased_job import LeasedJob
from ksana.client.queue import QueueClient
from ksana.client.releases import Releases
from ksana.client.shapes import Job, ReleaseItem
from ksana.client.stats import WorkerStats
from ksana.client.transport import CallBackoff

MAX_UNSETTLED = 2_000
"""Results that may wait for the server before no more is claimed."""

log = logging.getLogger("ksana.client")


class JobRunner:
    """Runs jobs from the claim's answer to the server's answer to their results."""

    def __init__(
        self,
        client: QueueClient,
        worker_id: str,
        handlers: Mapping[str, Registered],
        stats: WorkerStats,
        clock: Clock,
        *,
        concurrency: int,
        ttl_us: Micros,
        backoff: CallBackoff,
        on_lost: Callable[[Job, str], None] | None,
    ) -> None:
        self._worker_id = worker_id
        self._handlers = handlers
        self._stats = stats
        self._clock = clock
        self._concurrency = concurrency
        self._ttl_us = ttl_us
        self._on_lost = on_lost
        self._releases = Releases(client, self.settle, backoff)
        self._loop: asyncio.AbstractEventLoop
        self._executor: Executor
        self._heartbeats: Heartbeats
        self.held: dict[str, LeasedJob] = {}
        self.running = 0
        """Handlers at work now."""
        self.has_room = asyncio.Event()

    def start(self, executor: Executor, heartbeats: Heartbeats) -> None:
        """Take the executor of sync handlers, and the heartbeats of the jobs held."""
        self._loop = asyncio.get_running_loop()
        self._executor = executor
        self._heartbeats = heartbeats

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        """The handlers' tasks."""
        return [held.task for held in self.held.values() if held.task is not None]

    async def drain(self, within_sec: float) -> int:
        """Send the results that wait; count those the server has not answered for in time."""
        if await self._releases.drain(within_sec):
            return 0
        return len(await self._releases.abandon())

    async def interrupt_all(self, within_sec: float) -> None:
        """The grace is over: tell the handlers that still run, and give them a moment to end."""
        running = {
            held.task: held
            for held in self.held.values()
            if held.task is not None and not held.task.done()
        }
        for task, held in running.items():
            held.cause = held.cause or leased_job.BY_STOP
            held.cancelled.set("the worker stops")
            if self._is_async(held):
                task.cancel()
        if running:
            await asyncio.wait(running, timeout=within_sec)
        for task, held in running.items():
            # What does not end, a thread above all, keeps its lease until that runs out: no other
            # worker may run beside it.
            if not task.done() and held.phase is leased_job.RUNNING:
                held.phase = leased_job.LOST
                self._report_lost(held, "the worker stopped before the handler did")

    def count_free_slots(self) -> int:
        """How many jobs may be claimed now."""
        return min(self._concurrency - self.running, MAX_UNSETTLED - len(self._releases))

    def begin(self, job: Job, sent_at: Micros) -> None:
        """Start a job whose lease is ours since `sent_at` or a little later."""
        lease_id = job.lease_id
        if lease_id is None:
            log.error("job %s was claimed with a lease and came without", job.job_id)
            return
        if lease_id in self.held:
            return
        if self._heartbeats.kept:
            sent_at = max(sent_at, self._heartbeats.kept.pop(lease_id, sent_at))
        held = LeasedJob(job, lease_id, sent_at, self._ttl_us)
        self.held[lease_id] = held
        self.running += 1
        self._stats.claimed += 1
        held.task = self._loop.create_task(self._run_job(held))

    async def _run_job(self, held: LeasedJob) -> None:
        job = held.job
        registered = self._handlers.get(job.job_type)
        try:
            if registered is None:
                outcome = HandlerOutcome(
                    status="FAILED", error=f"this worker has no handler for {job.job_type!r}"
                )
            else:
                ctx = JobContext(
                    job, job.payload, self._worker_id, held.cancelled, self._reporter(held)
                )
                outcome = await registered.run(ctx, self._executor)
        except asyncio.CancelledError:
            outcome = HandlerOutcome(
                status="CANCELED", error=held.cancelled.reason, is_given_up=True
            )
        if outcome.is_given_up and held.cause is not leased_job.BY_CANCEL:
            outcome = self._classify_interrupted(held, outcome)
        self.running -= 1
        self.has_room.set()
        self._finish(held, outcome)

    def _classify_interrupted(self, held: LeasedJob, outcome: HandlerOutcome) -> HandlerOutcome:
        """A handler that gave up although nobody cancelled its job: the attempt failed and may be
        made again."""
        if held.cause is leased_job.BY_STOP:
            return HandlerOutcome(
                status="FAILED",
                error="the worker stopped before the job ended",
                metrics=outcome.metrics,
            )
        if held.cancelled.is_set():
            return outcome  # the lease is lost: nothing will be sent
        return HandlerOutcome(
            status="FAILED",
            error=outcome.error or "the handler was cancelled from within",
            metrics=outcome.metrics,
        )

    def _reporter(self, held: LeasedJob) -> Callable[[float | None, str | None], None]:
        def report(fraction: float | None, message: str | None) -> None:
            if fraction is not None:
                held.progress = fraction
            if message is not None:
                held.message = message
            is_first = held.reported == held.sent
            held.reported += 1
            if is_first:
                self._heartbeats.wake()

        return report

    def _finish(self, held: LeasedJob, outcome: HandlerOutcome) -> None:
        if held.phase is leased_job.LOST:
            self.held.pop(held.lease_id, None)
            return
        if self._clock.monotonic() >= held.fence_at:
            self._lose(held, "its own lease time has passed")
            self.held.pop(held.lease_id, None)
            return
        held.phase = leased_job.FINISHED
        item = ReleaseItem(
            lease_id=held.lease_id,
            job_id=held.job.job_id,
            worker_id=self._worker_id,
            lease_token=held.lease_token,
            status=outcome.status,
            result_data=outcome.result_data,
            error=outcome.error,
            metrics=outcome.metrics,
            retry=not outcome.is_final,
        )
        self._releases.add(held, item)

    def settle(self, held: LeasedJob, item: ReleaseItem, refusal: ApiError | None) -> None:
        """Take the server's answer to a result."""
        self.held.pop(held.lease_id, None)
        stats = self._stats
        if refusal is not None:
            held.phase = leased_job.LOST
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

    # --- events from the heartbeat thread ---

    def on_lost_in_thread(self, held: LeasedJob, reason: str) -> None:
        """Called on the heartbeat thread. The signal is set here, because the handler may be
        blocking the event loop; the rest happens there."""
        if held.phase is leased_job.RUNNING:
            held.cancelled.mark(f"the lease is lost: {reason}")
            self._call_on_loop(self._lose, held, reason)

    def on_cancel_in_thread(self, held: LeasedJob) -> None:
        """Called on the heartbeat thread, as above."""
        if held.phase is leased_job.RUNNING:
            held.cause = held.cause or leased_job.BY_CANCEL
            held.cancelled.mark("the job was cancelled")
            self._call_on_loop(self._notify_cancel, held)

    def _call_on_loop(self, notify: Callable[..., None], *args: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has closed: nobody is left to notify
            self._loop.call_soon_threadsafe(notify, *args)

    def _lose(self, held: LeasedJob, reason: str) -> None:
        """The lease is ours no longer: stop the handler and send nothing."""
        if held.phase is not leased_job.RUNNING:
            return  # its release is on the way, and the server's answer to that decides
        held.phase = leased_job.LOST
        held.cancelled.set(f"the lease is lost: {reason}")
        if held.task is not None and not held.task.done() and self._is_async(held):
            held.task.cancel()
        self._report_lost(held, reason)

    def _notify_cancel(self, held: LeasedJob) -> None:
        """Somebody cancelled the job: tell the handler."""
        if held.phase is not leased_job.RUNNING or not held.cancelled.set("the job was cancelled"):
            return
        registered = self._handlers.get(held.job.job_type)
        if (
            registered is not None
            and registered.is_async
            and registered.is_interrupted
            and held.task is not None
        ):
            held.task.cancel()

    def _is_async(self, held: LeasedJob) -> bool:
        registered = self._handlers.get(held.job.job_type)
        return registered is not None and registered.is_async

    def _report_lost(self, held: LeasedJob, reason: str) -> None:
        self._stats.lost += 1
        log.warning("job %s: result dropped, the lease is lost: %s", held.job.job_id, reason)
        if self._on_lost is not None:
            try:
                self._on_lost(held.job, reason)
            except Exception:
                log.exception(
                    "on_lost failed"
                )  # the caller's mistake must not stop the results of other jobs
