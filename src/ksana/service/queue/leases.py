"""Transactions on leases: request and heartbeat. Each write is fenced by a token and by the store's
clock. How leases are released is in `releases`."""

from collections.abc import Sequence
from itertools import islice
from typing import Any, Final

import msgspec

from ksana.base.errors import ConflictError, InvalidError, KsanaError, NotFoundError
from ksana.base.ids import new_numbered_uuids, new_token
from ksana.base.instant import SECOND, Instant, Micros
from ksana.domain.leases import ANYBODY, Proof, judge_holder
from ksana.domain.lifecycle import JOB
from ksana.domain.queue import effects
from ksana.domain.queue.admission import (
    RESERVE_GRACE,
    Capacity,
    Denial,
    Limits,
    deny_lease,
    find_denial,
    grant_lease,
    may_reserve,
    request_of,
    retry_after_us,
)
from ksana.domain.queue.jobs import CLAIM_HELD, Job, Lease, LeasedJob, LeaseWithJob, lease_of
from ksana.engine.queue.job_writer import write_changes
from ksana.engine.queue.leasing import SWEEP, expire_leases
from ksana.ports.queue.tables import QueueTx
from ksana.service.queue.jobs import (
    claim_ran_out,
    describe_refusal,
    get_locked,
    lease_ran_out,
    refuse_other_holder,
)
from ksana.service.queue.place import count_pending_rivals

HOLDERS: Final = 20
"""Holders a denial names at most."""


class LeaseRequest(msgspec.Struct, frozen=True):
    """A request for a lease. What it repeats of the job must be the same."""

    job_id: str
    ttl_sec: float
    proof: Proof = ANYBODY
    repeated: tuple[tuple[str, Any], ...] = ()


class LeaseDenied(msgspec.Struct, frozen=True):
    """Not now: why, when to ask again, the place in line, and who holds the units."""

    denial: Denial
    retry_after_us: Micros
    position: int
    holders: list[Lease]
    job: Job


class Heartbeat(msgspec.Struct, frozen=True, gc=False):
    """A sign of life."""

    lease_id: str
    job_id: str | None = None
    proof: Proof = ANYBODY
    progress: float | None = None
    message: str | None = None
    ttl_sec: float | None = None


LeaseAnswer = LeasedJob | KsanaError
"""What became of one item. An error is a value here: what was written beside it must stay."""


def request_lease(tx: QueueTx, request: LeaseRequest, limits: Limits) -> LeasedJob | LeaseDenied:
    """Admit a claimed job, or say why not. The holder of a running job gets its lease again."""
    capacity = tx.capacity.lock(limits.total)
    job, is_live = get_locked(tx, request.job_id)
    _check_repeated(job, request)
    if request.proof != ANYBODY:
        refuse_other_holder(job, request.proof)
    if job.state == "RUNNING":
        return _same_lease(job, is_live, request)
    if job.state not in CLAIM_HELD:
        raise JOB.refuse(job.state, "RUNNING")
    refuse_other_holder(job, request.proof)
    if not is_live:
        raise claim_ran_out(job)
    denial = _find_denial(tx, capacity, job, limits)
    if denial is not None:
        expired = tx.leases.list_expired(SWEEP)
        if expired:  # units of the dead are free by right; do not wait for the sweep
            expire_leases(tx, expired)
            capacity = tx.capacity.lock(limits.total)
            denial = _find_denial(tx, capacity, job, limits)
    if denial is not None:
        return _deny(tx, capacity, job, denial, limits)
    return _grant(tx, capacity, job, request)


def find_standing_denial(tx: QueueTx, request: LeaseRequest, limits: Limits) -> LeaseDenied | None:
    """A request that comes again before its `next_retry_at` is answered the same again, if nothing
    has changed: by reading alone. Workers that ask every few milliseconds would else keep everybody
    from the capacity's lock. None: decide anew."""
    job = tx.jobs.find_job(request.job_id)
    now: Instant = tx.now
    if (
        job is None
        or job.state != "LEASE_PENDING"
        or job.next_retry_at is None
        or job.next_retry_at <= now
    ):
        return None
    refusal = judge_holder(request.proof, job.claim_token, job.claimed_by, job.claims)
    if refusal is not None or (job.claim_expires_at or 0) <= now:
        return None
    _check_repeated(job, request)
    denial = _find_denial(tx, tx.capacity.read(limits.total), job, limits)
    holders = tx.leases.list_active(HOLDERS) if denial is not None else []
    if denial is None or not holders or holders[0].expires_at <= now:
        return None
    position = count_pending_rivals(tx, job, denial, limits) + 1
    return LeaseDenied(denial, job.next_retry_at - now, position, holders, job)


def _check_repeated(job: Job, request: LeaseRequest) -> None:
    for name, value in request.repeated:
        own = (
            msgspec.json.decode(job.constraints_json)
            if name == "constraints"
            else getattr(job, name)
        )
        if value != own:
            raise InvalidError(f"{name!r} differs from the job's own: it is {own!r}", field=name)


def _same_lease(job: Job, is_live: bool, request: LeaseRequest) -> LeasedJob:
    if request.proof == ANYBODY:
        # A lease in force is shown to who proves to hold it: its token is an answer here.
        raise ConflictError(
            "this job runs: send the worker_id or the claim_token that holds it",
            code="LEASE_LOST",
            current={"state": job.state},
        )
    if not is_live:
        raise lease_ran_out(job)
    return LeasedJob(lease_of(job), job)


def _find_denial(tx: QueueTx, capacity: Capacity, job: Job, limits: Limits) -> Denial | None:
    share = limits.share_of(job.addon_id)
    addon_used = 0 if share is None else tx.capacity.sum_of_addon(job.addon_id)
    return find_denial(capacity, request_of(job), tx.now, share, addon_used)


def _grant(tx: QueueTx, capacity: Capacity, job: Job, request: LeaseRequest) -> LeasedJob:
    now: Instant = tx.now
    until = now + round(request.ttl_sec * SECOND)
    lease_id = new_numbered_uuids([job.seq])[0]
    change = grant_lease(job, lease_id, new_token(), request.ttl_sec, until)
    if not write_changes(tx, [change]):
        raise claim_ran_out(job)
    tx.capacity.write(capacity.with_grant(job.cost_units, job.job_id))
    return LeasedJob(effects.new_lease(change, now), effects.held_job(job, change, now))


def _deny(tx: QueueTx, capacity: Capacity, job: Job, denial: Denial, limits: Limits) -> LeaseDenied:
    now: Instant = tx.now
    holders = tx.leases.list_active(HOLDERS)
    wait_us = retry_after_us(now, holders[0].expires_at if holders else None)
    next_retry_at = now + wait_us
    until = max(now + limits.claim_ttl_us, next_retry_at + RESERVE_GRACE)
    position = count_pending_rivals(tx, job, denial, limits) + 1
    best = tx.job_order.best_pending_urgency(job.job_id)
    request = request_of(job)
    if denial.code != "SHARE_EXCEEDED" and may_reserve(capacity, request, now, best):
        tx.capacity.write(capacity.with_reserve(request, next_retry_at + RESERVE_GRACE))
    data = {
        "code": denial.code,
        "reason": denial.reason,
        "used": capacity.used,
        "requested": job.cost_units,
        "capacity": capacity.total,
        "reserved": capacity.reserved(now),
        "position": position,
    }
    change = deny_lease(job, next_retry_at, until, data)
    if not write_changes(tx, [change]):
        raise claim_ran_out(job)
    pending = effects.held_job(job, change, now)
    return LeaseDenied(denial, wait_us, position, holders, pending)


def extend_leases(tx: QueueTx, beats: Sequence[Heartbeat]) -> list[LeaseAnswer]:
    """Signs of life, each on its own. What ran out stays so; the sweep writes it down."""
    now: Instant = tx.now
    found = tx.leases.lock_leases(list(dict.fromkeys([beat.lease_id for beat in beats])))
    answers: list[LeaseAnswer] = []
    extended: dict[str, LeasedJob] = {}
    noted: dict[str, Job] = {}
    for beat in beats:
        held, is_live = found.get(beat.lease_id, (None, False))
        if held is None:
            answers.append(NotFoundError(f"there is no lease {beat.lease_id}"))
            continue
        held = extended.get(beat.lease_id, held)
        lease, job = held.lease, _with_note(held.job, beat, now)
        refused = refuse_other_lease(lease_with_job(lease, is_live, job), beat.job_id, beat.proof)
        if refused is not None or not is_live:
            answers.append(refused or lease_lost(lease.state))
            continue
        if job is not held.job:
            noted[beat.lease_id] = job
        ttl_sec = lease.ttl_sec if beat.ttl_sec is None else beat.ttl_sec
        job = msgspec.structs.replace(
            job,
            heartbeat_at=now,
            lease_expires_at=now + round(ttl_sec * SECOND),
            lease_ttl_sec=ttl_sec,
        )
        extended[beat.lease_id] = LeasedJob(lease_of(job), job)
        answers.append(extended[beat.lease_id])
    tx.leases.extend(list(extended.values()), is_held=True)
    tx.job_changes.note_running(list(noted.values()), is_held=True)
    return answers


def extend_together(
    tx: QueueTx, sets: Sequence[Sequence[Heartbeat]]
) -> list[Sequence[LeaseAnswer]]:
    """The same for several callers that wait together."""
    left = iter(extend_leases(tx, [beat for beats in sets for beat in beats]))
    return [list(islice(left, len(beats))) for beats in sets]


def _with_note(job: Job, beat: Heartbeat, now: Instant) -> Job:
    if beat.progress is None and beat.message is None:
        return job
    progress = job.progress if beat.progress is None else beat.progress
    note = job.note if beat.message is None else beat.message
    if (progress, note) == (job.progress, job.note):
        return job
    return msgspec.structs.replace(job, progress=progress, note=note, updated_at=now)


def lease_with_job(lease: Lease, is_live: bool, job: Job) -> LeaseWithJob:
    """Of both, what it takes to end the attempt."""
    return LeaseWithJob(
        lease_id=lease.lease_id,
        job_id=lease.job_id,
        addon_id=lease.addon_id,
        worker_id=lease.worker_id,
        cost_units=lease.cost_units,
        ttl_sec=lease.ttl_sec,
        lease_state=lease.state,
        lease_token=lease.lease_token,
        release_digest=lease.release_digest,
        granted_at=lease.granted_at,
        last_heartbeat_at=lease.last_heartbeat_at,
        expires_at=lease.expires_at,
        is_live=is_live,
        seq=job.seq,
        job_state=job.state,
        attempts=job.attempts,
        max_attempts=job.max_attempts,
        cancel_requested=job.cancel_requested,
        urgency=job.urgency,
        claims=job.claims,
    )


def refuse_other_lease(held: LeaseWithJob, job_id: str | None, proof: Proof) -> KsanaError | None:
    """The error for a caller that names another job or does not hold the lease."""
    if job_id is not None and job_id != held.job_id:
        return InvalidError(f"this lease is for job {held.job_id}", field="job_id")
    refusal = judge_holder(proof, held.lease_token, held.worker_id, held.claims)
    if refusal is None:
        return None
    return ConflictError(
        describe_refusal(refusal, "lease"), code="LEASE_LOST", current={"state": held.lease_state}
    )


def lease_lost(lease_state: str) -> ConflictError:
    """The error for a lease that has ended."""
    state = "EXPIRED" if lease_state == "ACTIVE" else lease_state
    return ConflictError(f"this lease is {state}", code="LEASE_LOST", current={"state": state})


def without_payloads(answers: Sequence[LeaseAnswer]) -> Sequence[LeaseAnswer]:
    """What was too large to be read in a set reads null."""
    return [
        one
        if isinstance(one, KsanaError) or one.job.payload_json
        else LeasedJob(one.lease, msgspec.structs.replace(one.job, payload_json="null"))
        for one in answers
    ]
