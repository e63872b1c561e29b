"""The queue jobs a worker holds: each is run by its handler, its result goes to the releases. Those
that were taken ahead wait for a slot, for a moment only: then they are given back."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from functools import partial

from ksana.base.clock import Clock
from ksana.base.instant import SECOND, Micros
from ksana.client import held_lease
from ksana.client.context import JobContext
from ksana.client.errors import ApiError
from ksana.client.handlers import HandlerOutcome, Registered
from ksana.client.heartbeats import Heartbeats
from ksana.client.lease_runner import MAX_UNSETTLED, LeaseRunner, tell_lost
from ksana.client.leased_job import LeasedJob
from ksana.client.queue import QueueClient
from ksana.client.releases import Releases
from ksana.client.shapes import Job, ReleaseItem
from ksana.client.stats import WorkerStats
from ksana.client.transport import CallBackoff

WAITING_SEC = 1.0
"""A job that found no slot for so long is given back: jobs have become slower than they were."""

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
        self.waiting: deque[LeasedJob] = deque()
        """Taken ahead: leased, and not begun for want of a slot."""
        self._watch: asyncio.TimerHandle | None = None
        """Looks whether they wait too long, while there are any."""

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
        held = LeasedJob(job, lease_id, sent_at, self._ttl_us, self._handlers.get(job.job_type))
        self._stats.claimed += 1
        if self.running < self._concurrency:
            self._hold(held, self._run_job(held))
            return
        self.held[held.key] = held
        self.waiting.append(held)
        if self._watch is None:
            self._watch = self._loop.call_later(WAITING_SEC, self._give_back_stale)

    def count_room(self, ahead: int) -> int:
        """How many jobs may be taken now, so many of them ahead."""
        room = self._concurrency + ahead - self.running - len(self.waiting)
        return min(room, MAX_UNSETTLED - len(self.results))

    def give_back(self) -> None:
        while self.waiting:
            self._return(self.waiting.popleft())

    def _give_back_stale(self) -> None:
        """Give back what has waited too long; what came later is looked at later."""
        self._watch = None
        since = self._clock.monotonic() - int(WAITING_SEC * SECOND)
        while self.waiting and self.waiting[0].taken_at <= since:
            self._return(self.waiting.popleft())
        if self.waiting:
            left = (self.waiting[0].taken_at - since) / SECOND
            self._watch = self._loop.call_later(left, self._give_back_stale)

    def _return(self, held: LeasedJob) -> None:
        """A job that was not begun goes back, unless it is ours no longer."""
        if held.phase is held_lease.LOST:
            self.held.pop(held.key, None)
        else:
            held.phase = held_lease.FINISHED
            self._send(held, HandlerOutcome(status="RETURNED"))

    def _begin_waiting(self) -> None:
        """A slot is free: begin the next job, or end it where it is not to be begun any more."""
        while self.waiting and self.running < self._concurrency:
            held = self.waiting.popleft()
            reason = held.cancelled.reason
            if held.cause is held_lease.BY_CANCEL and held.phase is held_lease.RUNNING:
                held.phase = held_lease.FINISHED
                self._send(held, HandlerOutcome(status="CANCELED", error=reason))
            elif held.cancelled.is_set() or self._clock.monotonic() >= held.fence_at:
                # The thread that renews may have found it lost and not been heard here yet.
                self._lose(held, reason or "its own lease time has passed")
                self.held.pop(held.key, None)
            else:
                self._hold(held, self._run_job(held))

    async def _run_job(self, held: LeasedJob) -> None:
        job, registered = held.job, held.registered
        try:
            if registered is None:
                outcome = HandlerOutcome(
                    status="FAILED", error=f"this worker has no handler for {job.job_type!r}"
                )
            else:
                report = partial(self._report, held)
                ctx = JobContext(job, job.payload, self._worker_id, held.cancelled, report)
                outcome = await registered.run(ctx, self._executor)
        except asyncio.CancelledError:
            outcome = HandlerOutcome(
                status="CANCELED", error=held.cancelled.reason, is_given_up=True
            )
        if outcome.is_given_up and held.cause is not held_lease.BY_CANCEL:
            outcome = self._classify_interrupted(held, outcome)
        if self._may_send(held):
            self._send(held, outcome)
        if self.waiting:
            self._begin_waiting()

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

    def _report(self, held: LeasedJob, fraction: float | None, message: str | None) -> None:
        """Keep what a handler reports of its job for the next heartbeat."""
        if fraction is not None:
            held.progress = fraction
        if message is not None:
            held.message = message
        is_first = held.reported == held.sent
        held.reported += 1
        if is_first:
            self._heartbeats.wake()

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
        elif item.status == "RETURNED":
            stats.returned += 1
        elif item.status == "FAILED":
            stats.failed += 1
        elif item.status == "CANCELED":
            stats.cancelled += 1
        else:
            stats.timed_out += 1
        if not self.has_room.is_set():
            self.has_room.set()

    def report_lost(self, held: LeasedJob, reason: str) -> None:
        if held.task is None:  # not begun: nothing is lost with it
            log.info("job %s: taken ahead, and the lease is lost: %s", held.job_id, reason)
            return
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
        registered = held.registered
        if (
            registered is not None
            and registered.is_async
            and registered.is_interrupted
            and held.task is not None
        ):
            held.task.cancel()
