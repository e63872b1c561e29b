"""How the worker comes by jobs: a claim for as many as slots are free, each a long poll. While
claims come back full, a worker of many slots has two under way, each for half of them, so that the
server has one at hand while we read the answer to the other.

A claim is the one call that cannot be repeated: the server may have handed out jobs in an answer
that was lost. After such a claim the worker lists the RUNNING jobs that the server thinks it holds
and takes up those it does not know: at once, and again when the long poll of the lost claim must be
over on the server's side too.
"""

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING

from ksana.base.instant import SECOND, Micros
from ksana.client.api_client import WAIT_MARGIN_SEC
from ksana.client.errors import ApiConflictError, ApiNotFoundError, ClientError
from ksana.client.queue import MAX_CLAIM
from ksana.client.recovery import EARLY_EMPTY, Recovery
from ksana.client.transport import CallBackoff
from ksana.client.wire import is_outcome_unknown

if TYPE_CHECKING:
    from ksana.client.worker import Worker

LEAST_HALF = 200
"""Slots that are worth a claim of their own beside another. Halves of 200 cost 3 % more CPU a job
than whole claims of 400; halves of 100 cost 2 % and 23 % more in two measurements."""

log = logging.getLogger("ksana.client")


class Claims:
    """The claiming loop of one worker."""

    def __init__(self, worker: "Worker", backoff: CallBackoff) -> None:
        self._worker = worker
        self._recovery = Recovery(worker, worker.client.base_url, backoff)
        self._rechecks: list[Micros] = []
        """When to look for jobs of claims whose answers were lost."""
        self._early_empties = 0
        self._half = min(worker.concurrency // 2, MAX_CLAIM)
        """What each of two claims asks for while jobs abound."""
        self._asked = 0
        """Slots that claims under way may fill."""
        self._is_deep = asyncio.Event()
        """More jobs wait than one claim takes."""
        self._ahead: asyncio.Task[None] | None = None
        """The claim beside the first, while it is under way."""

    async def claim_until_stopped(self, *, burst: bool) -> None:
        """Claim while there is room. With `burst`, end when no job is found and none runs."""
        second = asyncio.create_task(self._claim_ahead())
        try:
            await self._claim_on(burst=burst)
            await self._wait_for_ahead()
        finally:
            second.cancel()
            if self._ahead is not None:
                self._ahead.cancel()
        with contextlib.suppress(ClientError):
            if self._rechecks:
                await self._adopt()

    async def _claim_on(self, *, burst: bool) -> None:
        worker = self._worker
        while not worker.is_stopping:
            try:
                await self._recheck_due(worker.clock.monotonic())
                limit = self._count_room()
                if limit <= 0:
                    worker.jobs.has_room.clear()
                    await worker.jobs.has_room.wait()
                    continue
                self._asked += limit
                found = await self._claim(limit, 0.0 if burst else worker.wait_sec)
            except ClientError as error:
                self._note_unknown(error)
                await self._recovery.wait_after(error)
                continue
            self._recovery.on_answer()
            if burst and not found:
                if not worker.jobs.held and not self._rechecks and not self._asked:
                    return
                await self._recovery.pause(EARLY_EMPTY.pause(1))

    def _count_room(self) -> int:
        """What a claim asks for: all that is free, or half of the slots while jobs abound."""
        most = self._half if self._is_deep.is_set() else MAX_CLAIM
        return min(self._worker.jobs.count_free_slots() - self._asked, most)

    async def _claim_ahead(self) -> None:
        """Keep a second claim under way while jobs abound. It never waits for jobs, and leaves
        recovery to the first."""
        worker = self._worker
        while not worker.is_stopping:
            await self._is_deep.wait()
            limit = self._count_room()
            if limit < max(LEAST_HALF, self._half // 2):
                worker.jobs.has_room.clear()
                await worker.jobs.has_room.wait()
                continue
            if self._rechecks:
                self._is_deep.clear()
                continue
            self._asked += limit  # here, because a task begins a turn later
            self._ahead = asyncio.create_task(self._claim_once_ahead(limit))
            await asyncio.wait((self._ahead,))
            self._ahead = None

    async def _claim_once_ahead(self, limit: int) -> None:
        try:
            await self._claim(limit, 0.0)
        except ClientError as error:
            self._is_deep.clear()
            self._note_unknown(error)

    async def _wait_for_ahead(self) -> None:
        """Wait until no second claim is under way: what it brings must not be taken for jobs of a
        lost answer."""
        if self._ahead is not None:
            await asyncio.wait((self._ahead,))

    async def _claim(self, limit: int, wait_sec: float) -> int:
        """One claim, whose slots are among those asked for."""
        worker = self._worker
        sent_at = worker.clock.monotonic()
        try:
            jobs = await worker.client.claim(
                worker.addon_id,
                worker.worker_id,
                limit=limit,
                wait_sec=wait_sec,
                lease=True,
                ttl_sec=worker.ttl_sec,
                accept_job_types=list(worker.handlers),
                max_cost_units=worker.max_cost_units,
                capabilities=worker.capabilities,
                tries=1,
            )
        finally:
            self._asked -= limit
            worker.jobs.has_room.set()  # for the other, who may wait for just these slots
        if len(jobs) == limit >= self._half >= LEAST_HALF:
            self._is_deep.set()
        else:
            self._is_deep.clear()
        for job in jobs:
            worker.jobs.begin(job, sent_at)
        took_us = worker.clock.monotonic() - sent_at
        if jobs or took_us >= wait_sec * SECOND / 2:
            self._early_empties = 0
        elif wait_sec:
            self._early_empties += 1
            await self._recovery.pause(EARLY_EMPTY.pause(self._early_empties))
        return len(jobs)

    def _note_unknown(self, error: ClientError) -> None:
        if is_outcome_unknown(error):
            now = self._worker.clock.monotonic()
            self._rechecks += [now, now + int((self._worker.wait_sec + WAIT_MARGIN_SEC) * SECOND)]

    async def _recheck_due(self, now: Micros) -> None:
        if any(at <= now for at in self._rechecks):
            await self._wait_for_ahead()
            await self._adopt()
            self._rechecks = [at for at in self._rechecks if at > now]

    async def _adopt(self) -> None:
        """Take up the jobs the server handed us in an answer that never came."""
        worker = self._worker
        async for job in worker.client.list_jobs(
            state="RUNNING", addon_id=worker.addon_id, page_size=500
        ):
            if (
                job.claimed_by != worker.worker_id
                or job.lease_id is None
                or job.lease_id in worker.jobs.held
            ):
                continue
            sent_at = worker.clock.monotonic()
            try:
                await worker.client.heartbeat(
                    job.lease_id, job_id=job.job_id, worker_id=worker.worker_id
                )
            except (ApiConflictError, ApiNotFoundError):
                continue  # released or expired since the page was read
            log.info("job %s was handed out in a lost answer: taken up", job.job_id)
            worker.stats.adopted += 1
            worker.jobs.begin(job, sent_at)
