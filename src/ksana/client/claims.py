"""How the worker comes by jobs: a claim for as many as slots are free, each a long poll. While
claims come back full, two are under way, each for half of what it may hold, so that the server has
one at hand while we read the answer to the other; and jobs are taken ahead, as many as are begun
within a moment (`pace`), so that no slot waits for an answer and the server writes them in large
sets.

A claim is the one call that cannot be repeated: the server may have handed out jobs in an answer
that was lost. After such a claim the worker lists the RUNNING jobs that the server thinks it holds
and takes up those it does not know: at once, and again when the long poll of the lost claim must be
over on the server's side too.
"""

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, NamedTuple

from ksana.base.instant import SECOND, Micros
from ksana.client.api_client import WAIT_MARGIN_SEC
from ksana.client.errors import (
    ApiConflictError,
    ApiNotFoundError,
    ClientError,
    InvalidRequestError,
)
from ksana.client.pace import Pace
from ksana.client.queue import MAX_CLAIM
from ksana.client.recovery import EARLY_EMPTY, Recovery
from ksana.client.transport import CallBackoff
from ksana.client.wire import is_outcome_unknown

if TYPE_CHECKING:
    from ksana.client.worker import Worker

LEAST_HALF = 25
"""Jobs that are worth a claim of their own beside another. On PostgreSQL, where a claim is mostly
waiting, a drain with halves of 50 took three quarters of the time of one with whole claims of 100;
on SQLite as long."""

log = logging.getLogger("ksana.client")


class _Asked(NamedTuple):
    """What a claim asks for."""

    limit: int
    ahead: int
    """So many of them are begun later."""
    half: int
    """Of what may be held, or all of it where half is not worth a claim: none asks for more."""


class Claims:
    """The claiming loop of one worker."""

    def __init__(self, worker: "Worker", backoff: CallBackoff) -> None:
        self._worker = worker
        self._recovery = Recovery(worker, worker.client.base_url, backoff)
        self._rechecks: list[Micros] = []
        """When to look for jobs of claims whose answers were lost."""
        self._early_empties = 0
        self._pace = Pace(worker.clock.monotonic(), worker.ahead)
        self._asked = 0
        """Jobs that claims under way may bring."""
        self._is_deep = asyncio.Event()
        """More jobs wait than one claim takes."""
        self._beside: asyncio.Task[None] | None = None
        """The claim beside the first, while it is under way."""

    async def claim_until_stopped(self, *, burst: bool) -> None:
        """Claim while there is room. With `burst`, end when no job is found and none runs."""
        second = asyncio.create_task(self._claim_beside())
        try:
            await self._claim_on(burst=burst)
            await self._wait_for_beside()
        finally:
            second.cancel()
            if self._beside is not None:
                self._beside.cancel()
        with contextlib.suppress(ClientError):
            if self._rechecks:
                await self._adopt()

    async def _claim_on(self, *, burst: bool) -> None:
        worker = self._worker
        while not worker.is_stopping:
            try:
                await self._recheck_due(worker.clock.monotonic())
                asked = self._plan()
                if asked.limit <= 0 or (worker.jobs.waiting and asked.limit < asked.half // 2):
                    worker.jobs.has_room.clear()
                    await worker.jobs.has_room.wait()
                    continue
                self._asked += asked.limit
                # Never wait for jobs to be begun later: slots may be free before they come.
                wait_sec = 0.0 if burst or asked.ahead else worker.wait_sec
                found = await self._claim(asked, wait_sec)
            except ClientError as error:
                self._note_unknown(error)
                await self._recovery.wait_after(error)
                continue
            self._recovery.on_answer()
            if burst and not found:
                if not worker.jobs.held and not self._rechecks and not self._asked:
                    return
                await self._recovery.pause(EARLY_EMPTY.pause(1))

    def _plan(self) -> "_Asked":
        """What a claim asks for: all that is free, or half of what may be held while jobs abound
        and there is room for two claims."""
        jobs, ahead = self._worker.jobs, 0
        half = MAX_CLAIM
        if self._is_deep.is_set():
            ahead = self._pace.count_ahead(jobs.begun, self._worker.clock.monotonic())
            most = self._worker.concurrency + ahead
            half = min(most // 2 if most >= 2 * LEAST_HALF else most, MAX_CLAIM)
        limit = min(jobs.count_room(ahead) - self._asked, half)
        at_once = max(0, jobs.count_free_slots() - self._asked)
        return _Asked(limit, max(0, limit - at_once), half)

    async def _claim_beside(self) -> None:
        """Keep a second claim under way while jobs abound. It never waits for jobs, and leaves
        recovery to the first."""
        worker = self._worker
        while not worker.is_stopping:
            await self._is_deep.wait()
            asked = self._plan()
            if asked.limit < max(LEAST_HALF, asked.half // 2):
                worker.jobs.has_room.clear()
                await worker.jobs.has_room.wait()
                continue
            if self._rechecks:
                self._is_deep.clear()
                continue
            self._asked += asked.limit  # here, because a task begins a turn later
            self._beside = asyncio.create_task(self._claim_once_beside(asked))
            await asyncio.wait((self._beside,))
            self._beside = None

    async def _claim_once_beside(self, asked: "_Asked") -> None:
        try:
            await self._claim(asked, 0.0)
        except ClientError as error:
            self._is_deep.clear()
            self._note_unknown(error)

    async def _wait_for_beside(self) -> None:
        """Wait until no second claim is under way: what it brings must not be taken for jobs of a
        lost answer."""
        if self._beside is not None:
            await asyncio.wait((self._beside,))

    async def _claim(self, asked: "_Asked", wait_sec: float) -> int:
        """One claim, whose jobs are among those asked for."""
        worker = self._worker
        sent_at = worker.clock.monotonic()
        try:
            jobs = await worker.client.claim(
                worker.addon_id,
                worker.worker_id,
                limit=asked.limit,
                wait_sec=wait_sec,
                lease=True,
                ahead=asked.ahead,
                ttl_sec=worker.ttl_sec,
                accept_job_types=list(worker.handlers),
                max_cost_units=worker.max_cost_units,
                capabilities=worker.capabilities,
                tries=1,
            )
        except InvalidRequestError:
            if not asked.ahead:
                raise
            self._pace.stop()  # an older server, which does not know the word
            return 0
        finally:
            self._asked -= asked.limit
            worker.jobs.has_room.set()  # for the other, who may wait for just this room
        for job in jobs:
            worker.jobs.begin(job, sent_at)
        now = worker.clock.monotonic()
        self._note_depth(asked, len(jobs), now)
        if jobs or now - sent_at >= wait_sec * SECOND / 2:
            self._early_empties = 0
        elif wait_sec:
            self._early_empties += 1
            await self._recovery.pause(EARLY_EMPTY.pause(self._early_empties))
        return len(jobs)

    def _note_depth(self, asked: "_Asked", found: int, now: Micros) -> None:
        """Learn from an answer whether jobs abound, and whether they can be taken ahead."""
        if found >= max(1, asked.limit - asked.ahead):
            self._is_deep.set()
        else:
            self._is_deep.clear()
        if found < asked.limit and asked.ahead:
            self._pace.rest(now)

    def _note_unknown(self, error: ClientError) -> None:
        if is_outcome_unknown(error):
            now = self._worker.clock.monotonic()
            self._rechecks += [now, now + int((self._worker.wait_sec + WAIT_MARGIN_SEC) * SECOND)]

    async def _recheck_due(self, now: Micros) -> None:
        if any(at <= now for at in self._rechecks):
            await self._wait_for_beside()
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
