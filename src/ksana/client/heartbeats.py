"""Heartbeats for all queue jobs held, in batches, from a thread of their own (`lease_thread`).

    worker's loop                        this thread
    ─────────────                        ───────────
    held[lease] = LeasedJob   ─────────▶   every beat_at: heartbeat-batch ──▶ server
    drop the job            ◀─ lost ──   409, 404, or fence_at passed
    tell the handler        ◀─ cancel─   cancel_requested in the answer

While the worker's loop is blocked, the thread asks the server which jobs it has handed out to this
worker in answers that the loop could not read yet, and beats for those too.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping

from ksana.base.clock import Clock
from ksana.base.instant import SECOND, Micros
from ksana.client import held_lease
from ksana.client.errors import ApiConflictError, ApiError, ApiNotFoundError, ClientError
from ksana.client.lease_thread import LeaseThread
from ksana.client.leased_job import LeasedJob
from ksana.client.queue import MAX_LEASE_BATCH, QueueClient
from ksana.client.shapes import BeatItem

PROGRESS_GAP: Micros = SECOND
"""Progress is sent at most this often; a handler may report far more often."""

log = logging.getLogger("ksana.client")


class Heartbeats(LeaseThread[LeasedJob, QueueClient]):
    """Beats for `held` until stopped. The callbacks are called on this thread."""

    most = MAX_LEASE_BATCH

    def __init__(
        self,
        client: QueueClient,
        addon_id: str,
        worker_id: str,
        held: Mapping[str, LeasedJob],
        ttl_us: Micros,
        clock: Clock,
        *,
        on_lost: Callable[[LeasedJob, str], None],
        on_cancel: Callable[[LeasedJob], None],
    ) -> None:
        super().__init__(f"ksana-heartbeats-{worker_id}", client, held, ttl_us, clock, on_lost)
        self._addon_id = addon_id
        self._worker_id = worker_id
        self._on_cancel = on_cancel
        self._workers_loop = asyncio.get_running_loop()
        self._pinged_at: Micros | None = None
        """When the worker's loop was asked for a sign of life that it has not given yet."""
        self._look_at: Micros = 0
        self.kept: dict[str, Micros] = {}
        """By lease id, when the last heartbeat left for a job that the worker does not know yet."""

    async def look_around(self, client: QueueClient, now: Micros) -> None:
        if self._is_blocked(now) and now >= self._look_at:
            await self._keep_unread(client)

    def _is_blocked(self, now: Micros) -> bool:
        """Tell whether the worker's loop has given no sign of life for a third of the lease."""
        if self._pinged_at is None:
            self._pinged_at = now
            with contextlib.suppress(RuntimeError):  # the loop has closed
                self._workers_loop.call_soon_threadsafe(self._on_ping)
            return False
        return now - self._pinged_at > self._ttl_us // 3

    def _on_ping(self) -> None:
        self._pinged_at = None

    async def _keep_unread(self, client: QueueClient) -> None:
        """Keep the leases of jobs whose claim was answered and not read yet."""
        now = self._clock.monotonic()
        self._look_at = now + self._ttl_us // 3
        for lease_id, sent_at in list(self.kept.items()):
            if now - sent_at > self._ttl_us:  # nobody took it up
                self.kept.pop(lease_id, None)
        try:
            found = [
                BeatItem(lease_id=job.lease_id, job_id=job.job_id, worker_id=self._worker_id)
                async for job in client.list_jobs(
                    state="RUNNING", addon_id=self._addon_id, page_size=MAX_LEASE_BATCH
                )
                if job.claimed_by == self._worker_id
                and job.lease_id is not None
                and job.lease_id not in self._held
            ]
            for start in range(0, len(found), MAX_LEASE_BATCH):
                batch = found[start : start + MAX_LEASE_BATCH]
                sent_at = self._clock.monotonic()
                answers = await client.heartbeat_batch(batch)
                for item, answer in zip(batch, answers, strict=True):
                    if not isinstance(answer, ApiError):
                        self.kept[item.lease_id] = sent_at
        except ClientError as error:
            log.warning("jobs of answers not read yet could not be kept: %s", error)
            self._look_at = self._clock.monotonic() + self._ttl_us // 10

    def due_at(self, held: LeasedJob) -> Micros:
        if held.reported != held.sent and held.phase is held_lease.RUNNING:
            return min(held.beat_at, held.beaten_at + PROGRESS_GAP)
        return held.beat_at

    async def renew(self, client: QueueClient, due: list[LeasedJob]) -> None:
        sent_at = self._clock.monotonic()
        reported = [held.reported for held in due]
        items = [
            BeatItem(
                lease_id=held.lease_id,
                job_id=held.job.job_id,
                worker_id=self._worker_id,
                lease_token=held.lease_token,
                progress=held.progress,
                message=held.message,
            )
            for held in due
        ]
        try:
            answers = await client.heartbeat_batch(items)
        except ClientError as error:
            log.warning("heartbeat of %d leases failed: %s", len(due), error)
            self._postpone(due)
            return
        for held, count, answer in zip(due, reported, answers, strict=True):
            if not isinstance(answer, ApiError):
                held.sent = count
                held.renew(sent_at, self._ttl_us)
                if answer.job.cancel_requested:
                    self._on_cancel(held)
            elif isinstance(answer, ApiConflictError | ApiNotFoundError):
                held.fence_at = sent_at  # beaten for no more
                self._on_lost(held, str(answer))
            else:
                log.warning("heartbeat of lease %s failed: %s", held.lease_id, answer)
                self._postpone([held])

    def _postpone(self, due: Iterable[LeasedJob]) -> None:
        super()._postpone(due)
        for held in due:
            held.beaten_at = max(held.beaten_at, held.beat_at - PROGRESS_GAP)
