"""The queue jobs a worker holds: each is run by its handler, its result goes to the releases."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Executor

from ksana.base.clock import Clock
from ksana.base.instant import Micros
from ksana.client import held_lease
from ksana.client.context import JobContext
from ksana.client.errors import ApiError
from ksana.client.handlers import HandlerOutcome, Registered
from ksana.client.heartbeats import Heartbeats
from ksana.client.lease_runner import LeaseRunner, tell_lost
from ksana.client.leased_job import LeasedJob
from ksana.client.queue import QueueClient
from ksana.client.releases import Releases
from ksana.client.shapes import Job, ReleaseItem
from ksana.client.stats import WorkerStats
from ksana.client.transport import CallBackoff

log = logging.getLogger("ksana.client")


class JobRunner(LeaseRunner[LeasedJob]):
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
        super().__init__(clock, concurrency=concurrency, ttl_us=ttl_us)
        self._worker_id = worker_id
        self._handlers = handlers
        self._stats = stats
        self._on_lost = on_lost
        self._releases = Releases(client, self.settle, backoff)
        self._heartbeats: Heartbeats

    @property
    def results(self) -> Releases:
        return self._releases

    def start(self, executor: Executor, heartbeats: Heartbeats) -> None:
        """Take the executor of sync handlers, and the heartbeats of the jobs held."""
        self._loop = asyncio.get_running_loop()
        self._executor = executor
        self._heartbeats = heartbeats

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
        registered = self._handlers.get(job.job_type)
        held.is_async = registered is not None and registered.is_async
        self._stats.claimed += 1
        self._hold(held, self._run_job)

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
        if outcome.is_given_up and held.cause is not held_lease.BY_CANCEL:
            outcome = self._classify_interrupted(held, outcome)
        if self._may_send(held):
            self._send(held, outcome)

    def _classify_interrupted(self, held: LeasedJob, outcome: HandlerOutcome) -> HandlerOutcome:
        """A handler that gave up although nobody cancelled its job: the attempt failed and may be
        made again."""
        if held.cause is held_lease.BY_STOP:
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

    def _send(self, held: LeasedJob, outcome: HandlerOutcome) -> None:
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
            held.phase = held_lease.LOST
            self.report_lost(held, str(refusal))
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

    def report_lost(self, held: LeasedJob, reason: str) -> None:
        self._stats.lost += 1
        tell_lost(self._on_lost, held.job, reason)

    # --- events from the heartbeat thread ---

    def on_cancel_in_thread(self, held: LeasedJob) -> None:
        """Called on the heartbeat thread; as with a lost lease, the signal is set there."""
        if held.phase is held_lease.RUNNING:
            held.cause = held.cause or held_lease.BY_CANCEL
            held.cancelled.mark("the job was cancelled")
            self._call_on_loop(self._notify_cancel, held)

    def _notify_cancel(self, held: LeasedJob) -> None:
        """Somebody cancelled the job: tell the handler."""
        if held.phase is not held_lease.RUNNING or not held.cancelled.set("the job was cancelled"):
            return
        registered = self._handlers.get(held.job.job_type)
        if (
            registered is not None
            and registered.is_async
            and registered.is_interrupted
            and held.task is not None
        ):
            held.task.cancel()
