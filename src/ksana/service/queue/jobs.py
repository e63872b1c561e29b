"""Transactions on queue jobs: submit, claim, report, cancel. Plain functions over `tx`; each is one
commit."""

from collections import Counter
from collections.abc import Sequence
from typing import Final

import msgspec

from ksana.base.errors import ConflictError, NotFoundError
from ksana.base.ids import new_ordered_uuids
from ksana.base.instant import SECOND, Instant, Micros
from ksana.domain.histogram import bucket_counts
from ksana.domain.queue.admission import (
    PATIENCE,
    RESERVE_GRACE,
    RETRY_MOST,
    Ask,
    Room,
    find_denial,
    may_reserve,
)
from ksana.domain.queue.jobs import (
    ENDED,
    HELD,
    MANY,
    URGENCY,
    Job,
    Lane,
    Lease,
    Line,
    ReadyJob,
    Wants,
    accepts,
    can_report,
)
from ksana.ports.queue.tables import QueueTx

READY: Final = int(Lane.READY)
SCHEDULED: Final = int(Lane.SCHEDULED)

PROMOTE: Final = 500
"""Scheduled jobs a claim moves over before it takes; the sweep moves the rest."""

_encode = msgspec.json.Encoder().encode

CHOICES: Final = 512
"""Filters whose lines are remembered."""


class Limits(msgspec.Struct, frozen=True):
    """The settings that admission and claims go by."""

    total: int = 100
    shares: tuple[tuple[str, int], ...] = ()
    claim_ttl_us: Micros = 60 * SECOND

    def share_of(self, addon_id: str) -> int | None:
        """The most units an addon may hold, if it has a share."""
        return dict(self.shares).get(addon_id) if self.shares else None


class NewJob(msgspec.Struct, frozen=True, gc=False):
    """A job to be, checked."""

    job_id: str
    priority: str
    line: Line
    constraints_json: str
    payload_json: str
    client_request_id: str | None
    max_attempts: int
    run_at: Instant | None
    fairness_key: str | None


class Claim(msgspec.Struct, frozen=True):
    """What a worker asks for."""

    worker_id: str
    wants: Wants
    limit: int = 1
    has_lease: bool = False
    ttl_sec: float = 30


class LineBook:
    """Every line, remembered until one is added, and which of them a filter accepts. Shared by the
    writers of a process."""

    def __init__(self) -> None:
        self._mark: tuple[int, int] = (-1, 0)
        self._lines: tuple[Line, ...] = ()
        self._chosen: dict[Wants, tuple[int, ...]] = {}
        self.committed: set[int] = set()
        """Lines known to be in the store for good."""

    def choose(self, tx: QueueTx, wants: Wants) -> tuple[int, ...]:
        """The lines a worker takes jobs from."""
        mark = tx.queue.line_mark()
        if mark != self._mark:
            self._lines = tuple(tx.queue.list_lines())
            self._chosen = {}
            self._mark = mark
        chosen = self._chosen
        found = chosen.get(wants)
        if found is None:
            found = tuple(line.id for line in self._lines if accepts(line, wants))
            if len(chosen) >= CHOICES:
                chosen.clear()
            chosen[wants] = found
        return found

    def is_all(self, line_ids: tuple[int, ...]) -> bool:
        """Whether these are all lines there are."""
        return len(line_ids) == len(self._lines)


def submit_jobs(
    tx: QueueTx, jobs: Sequence[NewJob], lines: Sequence[Line], is_batch: bool
) -> list[Job]:
    """Enter jobs, all or none. Raise DUPLICATE_REQUEST if one was submitted before."""
    now: Instant = tx.now
    has_requests = any(job.client_request_id is not None for job in jobs)
    if has_requests and not is_batch:
        _refuse_duplicate(tx, jobs)
    tx.queue.enter_lines(lines)
    made: list[Job] = []
    events: list[tuple[str, str, str, str]] = []
    turn = tx.queue.turn
    tails: dict[int, int] = {}
    has_keys = any(job.fairness_key is not None for job in jobs)
    for job in jobs:
        line, priority, run_at, job_id = job.line, job.priority, job.run_at, job.job_id
        urgency = URGENCY[priority]
        if run_at is None or run_at <= now:
            lane, due_at = READY, now
            if has_keys:
                place = turn(urgency, job.fairness_key)
            else:  # all go to the tail of their urgency, which is one and the same place
                place = (
                    tails[urgency]
                    if urgency in tails
                    else tails.setdefault(urgency, turn(urgency, None))
                )
        else:
            lane, due_at, place = SCHEDULED, run_at, 0
        made.append(
            Job(
                0,
                job_id,
                line.addon_id,
                line.job_type,
                priority,
                line.cost_units,
                job.constraints_json,
                job.payload_json,
                "QUEUED",
                0,
                job.max_attempts,
                now,
                now,
                run_at,
                None,
                None,
                None,
                None,
                job.fairness_key,
                job.client_request_id,
                0,
                None,
                None,
                None,
                None,
                None,
                None,
                None,
                None,
                None,
                lane,
                urgency,
                line.id,
                place,
                due_at,
                None,
            )
        )
        events.append(
            (
                "JOB",
                job_id,
                "JOB_SUBMITTED",
                f'{{"priority":"{priority}","cost_units":{line.cost_units}}}',
            )
        )
    tx.events.append_texts(events)
    inserted = tx.queue.insert(made, once=has_requests)
    if inserted < len(made):
        # Another transaction was faster, or the batch holds one that was there; this undoes all of
        # ours.
        _refuse_duplicate(tx, jobs)
        raise AssertionError("an insert was refused without a duplicate")
    tx.queue.tally("submitted", len(jobs))
    tx.queue.count(queued=len(jobs), arrivals=len(jobs))
    return made


def _refuse_duplicate(tx: QueueTx, jobs: Sequence[NewJob]) -> None:
    for index, job in enumerate(jobs):
        if job.client_request_id is not None:
            found = tx.queue.find_job_by_request(job.line.addon_id, job.client_request_id)
            if found is not None and found.job_id != job.job_id:
                raise ConflictError(
                    f"{job.line.addon_id!r} has submitted client_request_id {job.client_request_id!r} before",
                    code="DUPLICATE_REQUEST",
                    job=found,
                    index=index,
                    current={"state": found.state},
                )


class Claimed(msgspec.Struct, frozen=True):
    """What a claim got: the jobs as they were taken and, with leases asked for, the id of one lease
    for each."""

    taken: Sequence[ReadyJob]
    lease_ids: Sequence[str] = ()
    worker_id: str = ""
    at: Instant = 0
    until: Instant = 0
    """When the claim, or the leases, run out."""
    ttl_sec: float = 0
    is_busy: bool = False
    """Nothing was looked at: another transaction holds the capacity. Come again in a moment."""

    @property
    def jobs(self) -> list[Job]:
        """The jobs as they are now."""
        worker_id, at = self.worker_id, self.at
        if not self.lease_ids:
            return [job.claimed(worker_id, self.until, at) for job in self.taken]
        return [
            job.running(worker_id, lease_id, at)
            for job, lease_id in zip(self.taken, self.lease_ids, strict=True)
        ]

    @property
    def leases(self) -> list[Lease]:
        """The leases, in the order of the jobs."""
        return [
            Lease(
                lease_id,
                job.job_id,
                job.addon_id,
                self.worker_id,
                job.cost_units,
                self.ttl_sec,
                "ACTIVE",
                self.at,
                self.at,
                self.until,
                None,
                None,
                None,
            )
            for job, lease_id in zip(self.taken, self.lease_ids, strict=False)
        ]


NOTHING: Final = Claimed(())
BUSY: Final = Claimed((), is_busy=True)


def claim_jobs(
    tx: QueueTx, claim: Claim, book: LineBook, limits: Limits, is_patient: bool = True
) -> Claimed:
    """Hand out the next jobs, in order of priority, turn and age. One that is not patient does not
    wait for the capacity: those who give units back wait for it too, and should not stand behind
    all who want some."""
    promoted = tx.queue.promote_due(PROMOTE)
    if promoted:
        tx.queue.count(arrivals=len(promoted))
    line_ids = book.choose(tx, claim.wants)
    if claim.has_lease:
        # Everybody who leases or releases waits for the capacity's lock: do not take it to learn
        # that there is nothing to do.
        if tx.leases.room(limits.total).used >= limits.total or not tx.queue.has_ready(line_ids):
            return NOTHING
        room = (
            tx.leases.lock_room(limits.total)
            if is_patient
            else tx.leases.try_lock_room(limits.total)
        )
        return BUSY if room is None else _claim_with_leases(tx, claim, book, line_ids, limits, room)
    jobs = _take(tx, line_ids, claim.limit, book)
    if not jobs:
        return NOTHING
    now = tx.now
    until = now + limits.claim_ttl_us
    _all_changed(tx.queue.claim_ready(jobs, claim.worker_id, until), jobs)
    data = _encode({"worker_id": claim.worker_id}).decode()
    tx.events.append_texts([("JOB", job.job_id, "JOB_CLAIMED", data) for job in jobs])
    tx.queue.count(queued=-len(jobs))
    return Claimed(jobs, (), claim.worker_id, now, until)


def _take(tx: QueueTx, line_ids: tuple[int, ...], limit: int, book: LineBook) -> list[ReadyJob]:
    if not book.is_all(line_ids):
        return list(tx.queue.take_ready(line_ids, limit))
    jobs = tx.queue.take_ready(None, limit)
    # A line may have been added since the book was read: its jobs are not ours to judge.
    known = line_ids if len(line_ids) < 64 else frozenset(line_ids)
    return [job for job in jobs if job.line_id in known]


def _claim_with_leases(
    tx: QueueTx, claim: Claim, book: LineBook, line_ids: tuple[int, ...], limits: Limits, room: Room
) -> Claimed:
    """Claim and lease in one, as capacity allows. Jobs that do not fit stay QUEUED; one that has
    waited long keeps its units, so that nothing behind it of its own priority is admitted first."""
    granted: list[ReadyJob] = []
    lease_ids: list[str] = []
    expires_at = tx.now + round(claim.ttl_sec * SECOND)
    wants = claim.wants
    for is_last in (False, True):
        free = room.total - room.used
        if free <= 0:
            break
        taken = _take(tx, line_ids, claim.limit - len(granted), book)
        room, fitting, was_full = _admit(tx, limits, room, taken)
        if fitting:
            lease_ids += _grant_ready(tx, claim, fitting, expires_at)
            granted += fitting
        if is_last or not was_full or len(granted) >= claim.limit:
            break
        # Behind jobs that are too large smaller ones may wait: once more, for those that fit.
        free = room.total - room.used
        most = free if wants.max_cost_units is None else min(free, wants.max_cost_units)
        wants = msgspec.structs.replace(wants, max_cost_units=most)
        line_ids = book.choose(tx, wants)
    if not granted:
        return NOTHING
    units = sum([job.cost_units for job in granted])
    tx.queue.count(queued=-len(granted), running=len(granted), leases=len(granted), units=units)
    tx.leases.set_room(room)
    return Claimed(granted, lease_ids, claim.worker_id, tx.now, expires_at, claim.ttl_sec)


def _admit(
    tx: QueueTx, limits: Limits, room: Room, taken: Sequence[ReadyJob]
) -> tuple[Room, Sequence[ReadyJob], bool]:
    now = tx.now
    # With no shares and nothing kept for anybody the capacity alone decides: if all fit, all are
    # admitted.
    whole = (
        None if limits.shares else room.with_all(sum([job.cost_units for job in taken]), len(taken))
    )
    if whole is not None:
        return whole, taken, False
    fitting: list[ReadyJob] = []
    was_full = False
    spent: dict[str, int] = {}
    for job in taken:
        ask = Ask(job.job_id, job.addon_id, job.cost_units, job.urgency)
        share = limits.share_of(job.addon_id)
        if share is not None and job.addon_id not in spent:
            spent[job.addon_id] = tx.leases.sum_of_addon(job.addon_id)
        denial = find_denial(room, ask, now, share, spent.get(job.addon_id, 0))
        if denial is None:
            room = room.with_grant(job.cost_units, job.job_id)
            if share is not None:
                spent[job.addon_id] += job.cost_units
            fitting.append(job)
            continue
        was_full = True
        has_waited = now - job.due_at > PATIENCE
        if has_waited and denial.code == "CAPACITY_EXCEEDED" and may_reserve(room, ask, now, None):
            room = room.with_reserve(ask, now + RETRY_MOST + RESERVE_GRACE)
            tx.leases.set_room(room)
    return room, fitting, was_full


def _grant_ready(
    tx: QueueTx, claim: Claim, taken: Sequence[ReadyJob], expires_at: Instant
) -> list[str]:
    """Taken jobs run: each gets its lease. Answer the leases' ids."""
    now: Instant = tx.now
    worker_id = claim.worker_id
    lease_ids = new_ordered_uuids(now, len(taken))
    seqs = [job.seq for job in taken]
    _all_changed(tx.queue.run_ready(list(zip(seqs, lease_ids, strict=True)), worker_id), taken)
    claimed = _encode({"worker_id": worker_id}).decode()
    if len(taken) >= MANY:
        _all_changed(tx.leases.insert_of_jobs(seqs, claim.ttl_sec, expires_at), taken)
        tx.queue.tell_grants(seqs, claimed)
    else:
        made = Claimed(taken, lease_ids, worker_id, now, expires_at, claim.ttl_sec).leases
        tx.leases.insert(made, seqs)
        _tell_grants(tx, taken, lease_ids, claimed)
    tx.queue.observe("wait", bucket_counts(now, Counter([job.due_at for job in taken])))
    return lease_ids


def _tell_grants(
    tx: QueueTx, taken: Sequence[ReadyJob], lease_ids: Sequence[str], claimed: str
) -> None:
    for job, lease_id in zip(taken, lease_ids, strict=True):
        job_id = job.job_id
        tx.events.append_texts(
            (
                ("JOB", job_id, "JOB_CLAIMED", claimed),
                (
                    "LEASE",
                    lease_id,
                    "LEASE_GRANTED",
                    f'{{"job_id":"{job_id}","cost_units":{job.cost_units}}}',
                ),
                (
                    "JOB",
                    job_id,
                    "JOB_RUNNING",
                    f'{{"lease_id":"{lease_id}","attempts":{job.attempts + 1}}}',
                ),
            )
        )


def _all_changed(count: int, jobs: Sequence[ReadyJob]) -> None:
    if count != len(jobs):
        raise AssertionError(
            f"{count} of {len(jobs)} held jobs were still ready: a lock did not hold"
        )


def report_status(
    tx: QueueTx,
    job_id: str,
    to: str | None,
    progress: float | None,
    note: str | None,
    worker_id: str | None,
    limits: Limits,
) -> Job:
    """A worker's word on its job: the next state, or a note and its progress. Extends the claim."""
    job, is_claim_live = get_locked(tx, job_id)
    if worker_id is not None and job.claimed_by != worker_id and job.state not in ENDED:
        raise claim_lost(job, worker_id)
    to = to or job.state
    if not can_report(job.state, to):
        raise illegal(job, to)
    progress = job.progress if progress is None else progress
    note = job.note if note is None else note
    if job.state == "RUNNING":
        lease_id = job.lease_id or ""
        found = tx.leases.lock_lease(lease_id)
        if (
            found is None
            or not found[1]
            or not tx.queue.report_if_running(job_id, lease_id, progress, note)
        ):
            raise ConflictError(
                "the lease of this job has run out", code="LEASE_LOST", current={"state": job.state}
            )
        return msgspec.structs.replace(job, progress=progress, note=note, updated_at=tx.now)
    until = tx.now + limits.claim_ttl_us
    if not is_claim_live or not tx.queue.report_if_claimed(job, to, progress, note, until):
        raise ConflictError(
            "the claim on this job has run out", code="CLAIM_LOST", current={"state": job.state}
        )
    if to != job.state:
        tx.events.append("JOB", job_id, f"JOB_{to}", {"worker_id": job.claimed_by, "note": note})
    return msgspec.structs.replace(
        job, state=to, progress=progress, note=note, claim_expires_at=until, updated_at=tx.now
    )


def cancel_job(tx: QueueTx, job_id: str, reason: str | None) -> Job:
    """Cancel at once what does not run; ask the worker of what does."""
    job, _ = get_locked(tx, job_id)
    if job.state in ENDED:
        raise illegal(job, "CANCELED")
    if job.state == "RUNNING":
        if job.cancel_requested:
            return job
        tx.queue.request_cancel_if_running(job_id, reason)
        tx.events.append(
            "JOB", job_id, "JOB_CANCEL_REQUESTED", {"reason": reason, "lease_id": job.lease_id}
        )
        return msgspec.structs.replace(
            job, cancel_requested=1, cancel_reason=reason, updated_at=tx.now
        )
    tx.queue.cancel_if_waiting(job_id, reason)
    if job.state in HELD:
        tx.leases.drop_reserve(job_id)
    else:
        tx.queue.count(queued=-1)
    tx.queue.tally("canceled")
    tx.events.append("JOB", job_id, "JOB_CANCELED", {"reason": reason, "from": job.state})
    return msgspec.structs.replace(
        job,
        state="CANCELED",
        final_status="CANCELED",
        cancel_requested=1,
        cancel_reason=reason,
        claim_expires_at=None,
        next_retry_at=None,
        finished_at=tx.now,
        updated_at=tx.now,
        lane=None,
    )


def get_locked(tx: QueueTx, job_id: str) -> tuple[Job, bool]:
    """The job, held, and whether its claim lasts."""
    found: tuple[Job, bool] | None = tx.queue.lock_job(job_id)
    if found is None:
        raise not_found(job_id)
    return found


def not_found(job_id: str) -> NotFoundError:
    """No such job."""
    return NotFoundError(f"there is no job {job_id}")


def illegal(job: Job, to: str) -> ConflictError:
    """The move is in no table."""
    return ConflictError(
        f"a job that is {job.state} cannot become {to}", current={"state": job.state}
    )


def claim_lost(job: Job, worker_id: str) -> ConflictError:
    """Another holds the job."""
    return ConflictError(
        f"{worker_id!r} does not hold this job",
        code="CLAIM_LOST",
        current={"state": job.state, "claimed_by": job.claimed_by},
    )
