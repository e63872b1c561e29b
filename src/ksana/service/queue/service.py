"""The queue as callers use it: check, one transaction, tell who waits. Knows no HTTP and no SQL."""

import asyncio
import random
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from ksana.base.clock import Clock
from ksana.base.errors import ConflictError, InvalidError, KsanaError, NotFoundError
from ksana.base.ids import new_ordered_uuid, new_ordered_uuids
from ksana.base.instant import MILLISECOND, SECOND, Instant, Micros
from ksana.domain.queue.jobs import Job, Lease, Line, Settled
from ksana.engine.queue.leasing import Leasing
from ksana.engine.queue.long_poll import Arrivals, Waiter
from ksana.ports.queue.tables import JobFilter, QueueTx
from ksana.ports.store import Event, Store
from ksana.service.core.batching import Batcher
from ksana.service.core.idempotency import IdempotentRequest, once_only
from ksana.service.queue import jobs as job_transactions
from ksana.service.queue import leases as lease_transactions
from ksana.service.queue.jobs import Claim, Claimed, Limits, LineBook, NewJob, not_found
from ksana.service.queue.leases import Beat, Denied, Granted, Held, LeaseAsk, Outcome, Release

MAX_BATCH: Final = 1000
MAX_ITEMS: Final = 500
MAX_EVENTS: Final = 10_000
AT_ONCE: Final = 4
"""Claims of those who wait that try at the same time, on a shared store."""
BUSY_PAUSE: Final = (4 * MILLISECOND, 16 * MILLISECOND)
"""How long a claim that waits anyway stands back when another has the capacity; from … to."""


class JobPage(msgspec.Struct, frozen=True):
    """Some jobs, newest first, and the number to go on before."""

    jobs: list[Job]
    next_before: int | None


class QueueService:
    """Submit, claim, lease, heartbeat, release, cancel, look."""

    def __init__(self, store: Store, clock: Clock, limits: Limits) -> None:
        self._store = store
        self._clock = clock
        self.limits = limits
        self.arrivals = Arrivals(clock, self._count_arrivals, lambda: not store.sole)
        self.leasing = Leasing(store, clock, limits.total, self.arrivals)
        self._book = LineBook()
        self._intake: Batcher[NewJob, Job] = Batcher(store, self._enter, self._tell_submitted)
        self._turnstile = asyncio.Semaphore(AT_ONCE)

    # Jobs

    def new_ids(self, count: int) -> list[str]:
        """Ids for jobs to be."""
        return new_ordered_uuids(self._clock.now(), count)

    def new_id(self) -> str:
        """An id for a job to be."""
        return new_ordered_uuid(self._clock.now())

    async def submit(self, job: NewJob) -> Job:
        """Enter one job. Raise DUPLICATE_REQUEST if its addon has sent the same client_request_id
        before."""
        if job.client_request_id is not None:
            return (await self._submit([job], is_batch=False))[0]
        if job.line.cost_units > self.limits.total:
            self._check_costs([job])
        return await self._intake.add(job)

    async def submit_batch(self, jobs: Sequence[NewJob]) -> list[Job]:
        """Enter jobs, all or none."""
        seen: dict[tuple[str, str], int] = {}
        for index, job in enumerate(jobs):
            if job.client_request_id is not None:
                first = seen.setdefault((job.line.addon_id, job.client_request_id), index)
                if first != index:
                    raise ConflictError(
                        f"jobs[{index}] has the client_request_id of jobs[{first}]",
                        code="DUPLICATE_REQUEST",
                        index=index,
                    )
        return await self._submit(jobs, is_batch=True)

    async def submit_once(self, job: NewJob, request: IdempotentRequest) -> Job:
        """Enter one job under an Idempotency-Key. Raise ReplayedAnswer for a repeat."""
        self._check_costs([job])
        work = once_only(_submit_one, request)
        made = await self._store.transact(work, job, self._fresh_lines([job]))
        self._tell_submitted([job], [made])
        return made

    async def _submit(self, jobs: Sequence[NewJob], is_batch: bool) -> list[Job]:
        self._check_costs(jobs)
        made = await self._store.transact(
            job_transactions.submit_jobs, jobs, self._fresh_lines(jobs), is_batch
        )
        self._tell_submitted(jobs, made)
        return made

    def _enter(self, tx: QueueTx, jobs: Sequence[NewJob]) -> list[Job]:
        return job_transactions.submit_jobs(tx, jobs, self._fresh_lines(jobs), False)

    def _check_costs(self, jobs: Sequence[NewJob]) -> None:
        total = self.limits.total
        for index, job in enumerate(jobs):
            if job.line.cost_units > total:
                field = "cost_units" if len(jobs) == 1 else f"jobs[{index}].cost_units"
                raise InvalidError(
                    f"{field!r}: {job.line.cost_units} is more than the capacity; allowed: 1 to {total}",
                    field=field,
                )

    def _fresh_lines(self, jobs: Sequence[NewJob]) -> list[Line]:
        known = self._book.committed
        return list({job.line.id: job.line for job in jobs if job.line.id not in known}.values())

    def _tell_submitted(self, jobs: Sequence[NewJob], made: Sequence[Job]) -> None:
        lines = {job.line.id: job.line for job in jobs}
        self._book.committed.update(lines)
        soonest = min(
            [job.due_at for job in made if job.lane == 0], default=None
        )  # those that wait for their time
        if soonest is not None:
            self.leasing.note_due(soonest)
        self.arrivals.tell_lines(lines.values())

    async def claim(self, claim: Claim, wait_us: Micros = 0) -> Claimed:
        """Hand out the next jobs; if there are none, wait for some."""
        if wait_us <= 0:
            return await self._claim(claim)
        until = self._clock.now() + wait_us
        with Waiter(self.arrivals, claim.wants, claim.has_lease) as waiter:
            while True:
                claimed = await self._try(claim, until)
                if claimed.is_busy and self._clock.now() < until:
                    await self._clock.sleep_until(self._clock.now() + random.randrange(*BUSY_PAUSE))
                elif claimed.taken or not await self.arrivals.wait(waiter, until):
                    return claimed

    async def _try(self, claim: Claim, until: Instant) -> Claimed:
        """A claim of one who waits anyway. On a store that is shared they try a few at a time: a
        release wakes all of them, and all at once they would keep the next release from the
        capacity. Nobody stands in that line for longer than it would wait: a job handed to a caller
        who has given up is lost until its lease runs out."""
        if self._store.sole:
            return await self._claim(claim, is_patient=False)
        try:
            async with asyncio.timeout(max(0, until - self._clock.now()) / SECOND):
                await self._turnstile.acquire()
        except TimeoutError:
            return job_transactions.NOTHING
        try:
            return await self._claim(claim, is_patient=False)
        finally:
            self._turnstile.release()

    async def _claim(self, claim: Claim, *, is_patient: bool = True) -> Claimed:
        claimed = await self._store.transact(
            job_transactions.claim_jobs, claim, self._book, self.limits, is_patient
        )
        if claimed.taken:
            self.leasing.note_due(claimed.until)
        return claimed

    async def get_job(self, job_id: str) -> Job:
        """One job."""
        found: Job | None = await self._store.read(lambda tx: tx.queue.find_job(job_id))
        if found is None:
            raise not_found(job_id)
        return found

    async def list_jobs(self, wanted: JobFilter, before: int | None, limit: int) -> JobPage:
        """One page. A job that comes or goes meanwhile moves no other from page to page."""
        jobs: list[Job] = await self._store.read(
            lambda tx: tx.queue.list_jobs(wanted, before, limit + 1)
        )
        has_more = len(jobs) > limit
        return JobPage(jobs[:limit], jobs[limit - 1].seq if has_more else None)

    async def report(
        self,
        job_id: str,
        to: str | None,
        progress: float | None,
        note: str | None,
        worker_id: str | None,
    ) -> Job:
        """A worker's word on its job."""
        return await self._store.transact(
            job_transactions.report_status, job_id, to, progress, note, worker_id, self.limits
        )

    async def cancel(self, job_id: str, reason: str | None) -> Job:
        """Cancel a job, or ask its worker to stop."""
        return await self._store.transact(job_transactions.cancel_job, job_id, reason)

    async def list_events(self, job_id: str) -> list[Event]:
        """The job's events and its leases', in order."""
        return await self._store.read(read_events, job_id)

    # Leases

    async def request_lease(
        self,
        job_id: str,
        ttl_sec: float,
        worker_id: str | None,
        repeated: tuple[tuple[str, Any], ...],
    ) -> Granted | Denied:
        """Ask to run a claimed job."""
        ask = LeaseAsk(job_id, new_ordered_uuid(self._clock.now()), ttl_sec, worker_id, repeated)
        if not self._store.sole:  # there the lock is held over a network and a sync
            standing = await self._store.read(
                lease_transactions.find_standing_denial, ask, self.limits
            )
            if standing is not None:
                return standing
        answer = await self._store.transact(lease_transactions.request_lease, ask, self.limits)
        if isinstance(answer, Granted):
            self.leasing.note_due(answer.lease.expires_at)
        return answer

    async def beat(self, beat: Beat) -> Held:
        """One heartbeat. Raise LEASE_LOST when the lease is not, or no longer, the worker's."""
        return _or_raise((await self.beat_batch([beat]))[0])

    async def beat_batch(self, beats: Sequence[Beat]) -> list[Outcome]:
        """Heartbeats, each answered on its own."""
        return await self._store.transact(lease_transactions.beat_leases, beats)

    async def release(self, item: Release) -> Held:
        """End an attempt. Raise LEASE_LOST when the lease is not, or no longer, the worker's."""
        return _or_raise((await self.release_batch([item]))[0])

    async def release_batch(self, items: Sequence[Release]) -> list[Outcome]:
        """End attempts, each answered on its own."""
        outcomes = await self._store.transact(lease_transactions.release_leases, items)
        self._tell_released([one.job if isinstance(one, Held) else one for one in outcomes])
        return outcomes

    async def release_batch_briefly(self, items: Sequence[Release]) -> list[Settled | KsanaError]:
        """The same for callers that only want to know what became of each job: cheaper, for no job
        is read or shown whole."""
        outcomes = await self._store.transact(lease_transactions.release_briefly, items)
        self._tell_released(outcomes)
        return outcomes

    def _tell_released(self, outcomes: Sequence[Job | Settled | KsanaError]) -> None:
        self.arrivals.tell_capacity()
        rests: list[Instant] = []
        has_refused = False
        for one in outcomes:
            if isinstance(one, KsanaError):
                has_refused = True
            elif one.lane == 0:  # rests before its next attempt
                rests.append(one.due_at)
        if rests:
            self.leasing.note_due(min(rests))
        if has_refused:
            # A late release may have put its job back in line.
            self.arrivals.tell_ready()

    async def get_lease(self, lease_id: str) -> Lease:
        """One lease."""
        found: Lease | None = await self._store.read(lambda tx: tx.leases.find_lease(lease_id))
        if found is None:
            raise NotFoundError(f"there is no lease {lease_id}")
        return found

    async def _count_arrivals(self) -> int:
        return await self._store.read(lambda tx: int(tx.queue.gauges().arrivals))


def read_events(tx: QueueTx, job_id: str) -> list[Event]:
    """Every event of a job and of its leases, by id."""
    job = tx.queue.find_job(job_id)
    if job is None:
        raise not_found(job_id)
    events: list[Event] = tx.events.list_after(0, MAX_EVENTS, "JOB", job_id)
    for lease in tx.leases.list_of_job(job.seq):
        events += tx.events.list_after(0, MAX_EVENTS, "LEASE", lease.lease_id)
    return sorted(events, key=lambda event: event.id)


def _submit_one(tx: QueueTx, job: NewJob, fresh: Sequence[Line]) -> Job:
    return job_transactions.submit_jobs(tx, [job], fresh, False)[0]


def _or_raise(outcome: Outcome) -> Held:
    if isinstance(outcome, KsanaError):
        raise outcome
    return outcome
