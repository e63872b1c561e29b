"""The queue as callers use it: check, one transaction, wake who waits. Knows no HTTP and no SQL."""

from collections.abc import Callable, Container, Sequence
from functools import partial
from typing import Any, Final

import msgspec

from ksana.base.clock import Clock
from ksana.base.errors import ConflictError, InvalidError, KsanaError, NotFoundError
from ksana.base.ids import new_ordered_uuid, new_ordered_uuids
from ksana.base.instant import SECOND, Instant, Micros
from ksana.domain.handover import pick_handed_over
from ksana.domain.leases import Proof
from ksana.domain.queue.admission import Limits
from ksana.domain.queue.attempt_ends import Release
from ksana.domain.queue.changes import SCHEDULED, JobChange
from ksana.domain.queue.classes import JobClass
from ksana.domain.queue.effects import wake_after
from ksana.domain.queue.escrow import IDLE
from ksana.domain.queue.jobs import Job, Lease, LeasedJob, NewJob
from ksana.engine.core.long_poll import LongPoll
from ksana.engine.queue.claims import ClaimPoll, notify_of
from ksana.engine.queue.leasing import Leasing
from ksana.ports.events import Event
from ksana.ports.pages import PageRows
from ksana.ports.queue.tables import JobFilter, QueueTx
from ksana.ports.store import Store
from ksana.service.core.batching import Batcher
from ksana.service.core.idempotency import IdempotentRequest, once_only
from ksana.service.queue import jobs as job_transactions
from ksana.service.queue import leases as lease_transactions
from ksana.service.queue.claims import NOTHING, Claim, Claimed, claim_together
from ksana.service.queue.class_cache import JobClassCache, TrustedClasses
from ksana.service.queue.exchange import Exchanged, ReleaseBatches, expect_claims
from ksana.service.queue.jobs import Report, is_duplicate, not_found
from ksana.service.queue.leases import Heartbeat, LeaseAnswer, LeaseDenied, LeaseRequest
from ksana.service.queue.releases import Released
from ksana.service.queue.waiting import (
    SubmitEntry,
    SubmitResult,
    WaitingClaim,
    let_go,
    pick_waiting,
)

MAX_BATCH: Final = 1000
MAX_ITEMS: Final = 500
LOOKING: Final = 10 * SECOND
"""So long after a duplicate the next one is expected: submits look whether they are one. All others
leave that to the insert, whose refusal costs the transaction."""
CLAIMS_AT_ONCE: Final = 1
"""Sets of claims under way at the same time. Whatever comes meanwhile waits and is the next set:
ten claims that each wait for the others' units cost ten times as much as one for all."""


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
        self.poll: ClaimPoll = LongPoll(clock, self._count_arrivals, lambda: not store.sole)
        self.leasing = Leasing(store, clock, limits.total, self.poll, self._notify_handed_over)
        self.classes = JobClassCache()
        self._trusted = TrustedClasses(clock)
        self._intake: Batcher[SubmitEntry, SubmitResult] = Batcher(
            store, self._enter, self._entered, refused=let_go
        )
        claim = partial(claim_together, cache=self.classes, limits=limits)
        self._serve = partial(claim, may_gather=False)
        """Serves claims beside other work, which must not wait for the capacity while an instance
        that is frozen holds it."""
        self._claims: Batcher[Claim, Claimed] = Batcher(
            store,
            claim,
            self._notify_claimed,
            CLAIMS_AT_ONCE,
            drops_gone=True,
            clock=clock,
            late=NOTHING,
        )
        expect = partial(expect_claims, cache=self.classes, limits=limits)
        self._releases = ReleaseBatches(
            store, self.poll, self._serve, expect, self._notify_released
        )
        self._heartbeats: Batcher[Sequence[Heartbeat], Sequence[LeaseAnswer]] = Batcher(
            store, lease_transactions.extend_together, _wake_nobody
        )
        self._looks_until: Instant = 0
        """Until when submits look first whether they were submitted before."""
        self.on_handed_over: Callable[[], None] = lambda: None
        """A job that a run waits for may have ended."""

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
        if job.job_class.cost_units > self.limits.total:
            self._check_costs([job])
        entry = SubmitEntry(job, pick_waiting(self.poll, job))
        made = (await self._intake.add(entry)).submitted
        if isinstance(made, KsanaError):
            raise made
        return made

    async def submit_batch(self, jobs: Sequence[NewJob]) -> list[Job]:
        """Enter jobs, all or none."""
        seen: dict[tuple[str, str], int] = {}
        for index, job in enumerate(jobs):
            if job.client_request_id is not None:
                first = seen.setdefault((job.job_class.addon_id, job.client_request_id), index)
                if first != index:
                    raise ConflictError(
                        f"jobs[{index}] has the client_request_id of jobs[{first}]",
                        code="DUPLICATE_REQUEST",
                        index=index,
                    )
        self._check_costs(jobs)
        made = await self._store.transact(
            job_transactions.submit_jobs, jobs, self.new_classes(jobs), True, self.limits.classes
        )
        self.notify_submitted(jobs, made)
        return made

    async def submit_once(self, job: NewJob, request: IdempotentRequest) -> Job:
        """Enter one job under an Idempotency-Key. Raise ReplayedAnswer for a repeat."""
        self._check_costs([job])
        work = once_only(_submit_one, request)
        made = await self._store.transact(work, job, self.new_classes([job]), self.limits.classes)
        self.notify_submitted([job], [made])
        return made

    def _enter(self, tx: QueueTx, entries: Sequence[SubmitEntry]) -> list[SubmitResult]:
        """Enter jobs, and serve the claims that were picked for them."""
        jobs = [entry.new for entry in entries]
        made = job_transactions.submit_together(
            tx,
            jobs,
            self.new_classes(jobs),
            self.limits.classes,
            looks_first=self._clock.now() < self._looks_until,
        )
        claims = [entry.claim for entry in entries]
        picked = [claim for claim in claims if claim is not None]
        claimed = iter(self._serve(tx, picked) if picked else ())
        return [
            SubmitResult(one) if claim is None else SubmitResult(one, next(claimed))
            for one, claim in zip(made, claims, strict=True)
        ]

    def _entered(self, entries: Sequence[SubmitEntry], made: Sequence[SubmitResult]) -> bool:
        """Tell who waits for them; whether any were handed out: their workers are answered before
        those who submitted."""
        taken: set[str] = set()
        for entry, one in zip(entries, made, strict=True):
            if entry.waiting is not None:
                entry.waiting.hand(one.claimed)
                taken.update([job.job_id for job in one.claimed.taken])
        self._notify_claimed((), [one.claimed for one in made])
        if any(is_duplicate(one.submitted) for one in made):
            self._looks_until = self._clock.now() + LOOKING
        new = [
            (entry.new, one.submitted)
            for entry, one in zip(entries, made, strict=True)
            if isinstance(one.submitted, Job)
        ]
        if new:
            self.notify_submitted([job for job, _ in new], [one for _, one in new], taken)
        return bool(taken)

    def _check_costs(self, jobs: Sequence[NewJob]) -> None:
        total = self.limits.total
        for index, job in enumerate(jobs):
            if job.job_class.cost_units > total:
                field = "cost_units" if len(jobs) == 1 else f"jobs[{index}].cost_units"
                raise InvalidError(
                    f"{field!r}: {job.job_class.cost_units} is more than the capacity; "
                    f"allowed: 1 to {total}",
                    field=field,
                )

    def new_classes(self, jobs: Sequence[NewJob]) -> list[JobClass]:
        """Their classes that are not known to be in the store."""
        return self._trusted.choose_new(jobs)

    def notify_submitted(
        self, jobs: Sequence[NewJob], made: Sequence[Job] = (), taken: Container[str] = ()
    ) -> None:
        """These are committed: wake who waits for them, but for those that were taken."""
        classes = {job.job_class.id: job.job_class for job in jobs}
        self._trusted.note_committed(list(classes))
        waiting = [job.due_at for job in made if job.position == SCHEDULED]
        if waiting:
            self.leasing.note_due(min(waiting))
        left = {job.job_class.id for job in jobs if job.job_id not in taken}
        if left:
            self.poll.notify([classes[class_id] for class_id in left])

    async def claim(
        self, claim: Claim, wait_us: Micros = 0, is_gone: Callable[[], bool] = bool
    ) -> Claimed:
        """Hand out the next jobs; if there are none, wait for some. A caller that has gone by then
        gets none: they would be lost until their leases ran out."""
        if wait_us <= 0:
            return await self._claims.add(claim, claim.limit)
        until = self._clock.now() + wait_us
        claim = msgspec.structs.replace(claim, can_wait=True)
        waiter = WaitingClaim(self.poll, claim, self._clock, is_gone)
        with waiter:
            while True:
                waiter.begin_try()
                claimed = await self._claims.add(claim, claim.limit, until)
                if claimed.taken:
                    return claimed
                waiter.end_try(claimed.is_short)
                again_at = until
                if claimed.may_have_more:
                    again_at = min(until, self._clock.now() + IDLE)
                is_woken = await self.poll.wait(waiter, again_at)
                handed = await waiter.take_handed()
                if handed is not None and handed.taken:
                    return handed
                if is_gone() or not (is_woken or self._clock.now() < until):
                    return claimed

    def _notify_claimed(self, _: Sequence[Claim], claimed: Sequence[Claimed]) -> None:
        ends = [one.until for one in claimed if one.taken]
        if ends:
            self.leasing.note_due(min(ends))

    async def get_job(self, job_id: str) -> Job:
        """One job."""
        found: Job | None = await self._store.read(lambda tx: tx.jobs.find_job(job_id))
        if found is None:
            raise not_found(job_id)
        return found

    async def list_jobs(self, wanted: JobFilter, before: int | None, limit: int) -> JobPage:
        """One page. A job that comes or goes meanwhile moves no other from page to page."""
        jobs: PageRows[Job] = await self._store.read_list(
            lambda tx: tx.job_lists.list_page(wanted, before, limit)
        )
        return JobPage(jobs, jobs.next_place[0] if jobs.next_place else None)

    async def report(self, report: Report) -> Job:
        """A worker's word on its job. Raise CLAIM_LOST when the job is not, or no longer, the
        worker's."""
        return await self._store.transact(job_transactions.report_status, report, self.limits)

    async def cancel(self, job_id: str, reason: str | None) -> Job:
        """Cancel a job, or ask its worker to stop."""
        job = await self._store.transact(job_transactions.cancel_job, job_id, reason)
        if pick_handed_over([job_id]):
            self.on_handed_over()
        return job

    async def list_events(self, job_id: str) -> PageRows[Event]:
        """The job's events and its leases', in order: of very many the newest."""
        return await self._store.read(job_transactions.read_events, job_id)

    # Leases

    async def request_lease(
        self, job_id: str, ttl_sec: float, proof: Proof, repeated: tuple[tuple[str, Any], ...] = ()
    ) -> LeasedJob | LeaseDenied:
        """Ask to run a claimed job."""
        request = LeaseRequest(job_id, ttl_sec, proof, repeated)
        if not self._store.sole:  # there the lock is held over a network and a sync
            standing = await self._store.read(
                lease_transactions.find_standing_denial, request, self.limits
            )
            if standing is not None:
                return standing
        answer = await self._store.transact(lease_transactions.request_lease, request, self.limits)
        if isinstance(answer, LeasedJob):
            self.leasing.note_due(answer.lease.expires_at)
        return answer

    async def heartbeat(self, beat: Heartbeat) -> LeasedJob:
        """One heartbeat. Raise LEASE_LOST when the lease is not, or no longer, the worker's."""
        return await self._with_payload((await self._heartbeats.add([beat], 1))[0])

    async def heartbeat_batch(self, beats: Sequence[Heartbeat]) -> Sequence[LeaseAnswer]:
        """Heartbeats, each answered on its own, without large payloads."""
        return lease_transactions.without_payloads(await self._heartbeats.add(beats, len(beats)))

    async def release(self, item: Release) -> LeasedJob:
        """End an attempt. Raise LEASE_LOST when the lease is not, or no longer, the worker's."""
        made = await self._releases.release_whole([item])
        return await self._with_payload(made.released.answers[0])

    async def release_batch(self, items: Sequence[Release]) -> Sequence[LeaseAnswer]:
        """End attempts, each answered on its own, without large payloads."""
        made = await self._releases.release_whole(items)
        return lease_transactions.without_payloads(made.released.answers)

    async def release_and_claim(
        self, item: Release, claim: Claim, is_gone: Callable[[], bool] = bool
    ) -> tuple[LeasedJob, Claimed]:
        """End an attempt and claim what to go on with, in one commit. Raise LEASE_LOST, and claim
        nothing, when the lease is not, or no longer, the worker's."""
        made = await self._releases.release_whole([item], claim, is_gone)
        return await self._with_payload(made.released.answers[0]), made.own

    async def release_batch_and_claim(
        self, items: Sequence[Release], claim: Claim, is_gone: Callable[[], bool] = bool
    ) -> tuple[Sequence[Released | KsanaError], Claimed]:
        """The same for many, each answered with what became of its job. If all of them are lost,
        nothing is claimed."""
        made = await self._releases.release_compactly(items, claim, is_gone)
        return made.released.answers, made.own

    async def _with_payload(self, answer: LeaseAnswer) -> LeasedJob:
        """The answer with the payload that was too large to be read in a set. Raise what it is."""
        if isinstance(answer, KsanaError):
            raise answer
        if answer.job.payload_json:
            return answer
        whole = await self.get_job(answer.job.job_id)
        job = msgspec.structs.replace(answer.job, payload_json=whole.payload_json)
        return LeasedJob(answer.lease, job)

    async def release_batch_compactly(
        self, items: Sequence[Release]
    ) -> Sequence[Released | KsanaError]:
        """The same for callers that only want to know what became of each job: cheaper, for no job
        is read or shown whole."""
        return (await self._releases.release_compactly(items)).released.answers

    def _notify_released(self, made: Sequence[Exchanged[Any]]) -> None:
        claimed = [each for one in made for each in one.claimed]
        if claimed:
            self._notify_claimed((), claimed)
        changes = [change for one in made for change in one.released.changes]
        wake = wake_after(changes)
        notify_of(self.poll, wake, sum([one.granted for one in made]) if claimed else 0)
        self._notify_handed_over(changes)
        if wake.next_due is not None:
            self.leasing.note_due(wake.next_due)

    def _notify_handed_over(self, changes: Sequence[JobChange]) -> None:
        if pick_handed_over([change.job_id for change in changes]):
            self.on_handed_over()

    async def get_lease(self, lease_id: str) -> Lease:
        """One lease."""
        found: Lease | None = await self._store.read(lambda tx: tx.leases.find_lease(lease_id))
        if found is None:
            raise NotFoundError(f"there is no lease {lease_id}")
        return found

    async def list_holders(self, limit: int) -> list[Lease]:
        """Leases that are active, the first to run out first."""
        found: list[Lease] = await self._store.read_list(lambda tx: tx.leases.list_active(limit))
        return found

    async def _count_arrivals(self) -> int:
        return await self._store.read(lambda tx: int(tx.gauges.read().arrivals))


def _submit_one(tx: QueueTx, job: NewJob, classes: Sequence[JobClass], most_classes: int) -> Job:
    return job_transactions.submit_jobs(tx, [job], classes, False, most_classes)[0]


def _wake_nobody(*_: object) -> None:
    """Nobody waits for a sign of life."""
