"""Transactions on leases: request, heartbeat, release. Each write is fenced by the lease's id and
the store's clock."""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from ksana.base.errors import ConflictError, InvalidError, KsanaError, NotFoundError
from ksana.base.instant import SECOND, Instant, Micros
from ksana.domain.histogram import bucket_of
from ksana.domain.queue.admission import (
    RESERVE_GRACE,
    Ask,
    Denial,
    Room,
    find_denial,
    may_reserve,
    retry_after_us,
)
from ksana.domain.queue.jobs import (
    HELD,
    MANY,
    Hold,
    Job,
    Lane,
    Lease,
    Settled,
    after_release,
    release_digest,
)
from ksana.engine.queue.leasing import SWEEP, end_attempts, expire_leases, job_after, list_expired
from ksana.ports.queue.tables import QueueTx
from ksana.service.queue.jobs import Limits, claim_lost, get_locked, illegal

HOLDERS: Final = 20
"""Holders a denial names at most."""


class LeaseAsk(msgspec.Struct, frozen=True):
    """A request for a lease. What it repeats of the job must be the same."""

    job_id: str
    lease_id: str
    ttl_sec: float
    worker_id: str | None = None
    repeated: tuple[tuple[str, Any], ...] = ()


class Denied(msgspec.Struct, frozen=True):
    """Not now: why, when to ask again, the place in line, and who holds the units."""

    denial: Denial
    retry_after_us: Micros
    position: int
    holders: list[Lease]
    job: Job


class Granted(msgspec.Struct, frozen=True):
    """The lease, new or the same again."""

    lease: Lease
    job: Job


class Beat(msgspec.Struct, frozen=True, gc=False):
    """A sign of life."""

    lease_id: str
    job_id: str | None = None
    worker_id: str | None = None
    progress: float | None = None
    message: str | None = None
    ttl_sec: float | None = None


class Release(msgspec.Struct, frozen=True, gc=False):
    """A worker's last word on its attempt."""

    lease_id: str
    status: str
    job_id: str | None = None
    worker_id: str | None = None
    result_json: str | None = None
    error: str | None = None
    metrics_json: str | None = None

    def digest(self) -> str:
        """What it says, in a few characters."""
        return release_digest(
            self.status, self.result_json or "", self.error, self.metrics_json or ""
        )


class Held(msgspec.Struct, frozen=True, gc=False):
    """A lease and its job after a heartbeat or a release."""

    lease: Lease
    job: Job


Outcome = Held | KsanaError
"""What became of one item. An error is a value here: what was written beside it must stay."""


def request_lease(tx: QueueTx, ask: LeaseAsk, limits: Limits) -> Granted | Denied:
    """Admit a claimed job, or say why not."""
    room = tx.leases.lock_room(limits.total)
    job, is_claim_live = get_locked(tx, ask.job_id)
    _check_repeated(job, ask)
    if ask.worker_id is not None and job.claimed_by != ask.worker_id:
        raise claim_lost(job, ask.worker_id)
    if job.state == "RUNNING":
        if (
            ask.worker_id is None
        ):  # a lease in force is shown to who proves to hold it, or a zombie would get another's
            raise ConflictError(
                "this job runs: send the worker_id that holds it",
                code="LEASE_LOST",
                current={"state": job.state},
            )
        return _same_lease(tx, job)
    if job.state not in HELD:
        raise illegal(job, "RUNNING")
    if not is_claim_live:
        raise ConflictError(
            "the claim on this job has run out", code="CLAIM_LOST", current={"state": job.state}
        )
    denial = _find_denial(tx, room, job, limits)
    if denial is not None:
        expired = list_expired(tx, SWEEP)
        if expired:  # units of the dead are free by right; do not wait for the sweep
            expire_leases(tx, expired)
            room = tx.leases.lock_room(limits.total)
            denial = _find_denial(tx, room, job, limits)
    if denial is not None:
        return _deny(tx, room, job, denial, limits)
    return _grant(tx, room, job, ask)


def find_standing_denial(tx: QueueTx, ask: LeaseAsk, limits: Limits) -> Denied | None:
    """A request that comes again before its `next_retry_at` is told the same again, if nothing has
    changed: by reading alone. Workers that ask every few milliseconds would else keep everybody
    from the capacity's lock. None: decide anew."""
    job = tx.queue.find_job(ask.job_id)
    now: Instant = tx.now
    if (
        job is None
        or job.state != "LEASE_PENDING"
        or job.next_retry_at is None
        or job.next_retry_at <= now
    ):
        return None
    if (ask.worker_id is not None and job.claimed_by != ask.worker_id) or (
        job.claim_expires_at or 0
    ) <= now:
        return None
    _check_repeated(job, ask)
    denial = _find_denial(tx, tx.leases.room(limits.total), job, limits)
    holders = tx.leases.list_active(HOLDERS) if denial is not None else []
    if denial is None or not holders or holders[0].expires_at <= now:
        return None
    position = tx.queue.count_pending_ahead(job, job.pending_at or now) + 1
    return Denied(denial, job.next_retry_at - now, position, holders, job)


def _check_repeated(job: Job, ask: LeaseAsk) -> None:
    for name, value in ask.repeated:
        own = (
            msgspec.json.decode(job.constraints_json)
            if name == "constraints"
            else getattr(job, name)
        )
        if value != own:
            raise InvalidError(f"{name!r} differs from the job's own: it is {own!r}", field=name)


def _same_lease(tx: QueueTx, job: Job) -> Granted:
    found = tx.leases.lock_lease(job.lease_id or "")
    if found is None or not found[1]:
        raise ConflictError(
            "the lease of this job has run out", code="LEASE_LOST", current={"state": job.state}
        )
    return Granted(found[0], job)


def _find_denial(tx: QueueTx, room: Room, job: Job, limits: Limits) -> Denial | None:
    share = limits.share_of(job.addon_id)
    addon_used = 0 if share is None else tx.leases.sum_of_addon(job.addon_id)
    return find_denial(room, _ask(job), tx.now, share, addon_used)


def _ask(job: Job) -> Ask:
    return Ask(job.job_id, job.addon_id, job.cost_units, job.urgency)


def _grant(tx: QueueTx, room: Room, job: Job, ask: LeaseAsk) -> Granted:
    now: Instant = tx.now
    if not tx.queue.grant_if_claimed(job.job_id, ask.lease_id):
        raise ConflictError(
            "the claim on this job has run out", code="CLAIM_LOST", current={"state": job.state}
        )
    lease = Lease(
        ask.lease_id,
        job.job_id,
        job.addon_id,
        job.claimed_by,
        job.cost_units,
        ask.ttl_sec,
        "ACTIVE",
        now,
        now,
        now + round(ask.ttl_sec * SECOND),
        None,
        None,
        None,
    )
    tx.leases.insert([lease], [job.seq])
    tx.leases.set_room(room.with_grant(job.cost_units, job.job_id))
    attempts = job.attempts + 1
    tx.events.append(
        "LEASE",
        lease.lease_id,
        "LEASE_GRANTED",
        {
            "job_id": job.job_id,
            "worker_id": job.claimed_by,
            "cost_units": job.cost_units,
            "used": room.used + job.cost_units,
        },
    )
    tx.events.append(
        "JOB", job.job_id, "JOB_RUNNING", {"lease_id": lease.lease_id, "attempts": attempts}
    )
    tx.queue.observe("wait", {bucket_of((now - job.due_at) / SECOND): 1})
    tx.queue.count(running=1, leases=1, units=job.cost_units)
    running = msgspec.structs.replace(
        job,
        state="RUNNING",
        lease_id=lease.lease_id,
        attempts=attempts,
        claim_expires_at=None,
        next_retry_at=None,
        started_at=now,
        updated_at=now,
        lane=int(Lane.RUNNING),
        pending_at=None,
    )
    return Granted(lease, running)


def _deny(tx: QueueTx, room: Room, job: Job, denial: Denial, limits: Limits) -> Denied:
    now: Instant = tx.now
    holders = tx.leases.list_active(HOLDERS)
    wait_us = retry_after_us(now, holders[0].expires_at if holders else None)
    next_retry_at = now + wait_us
    until = max(now + limits.claim_ttl_us, next_retry_at + RESERVE_GRACE)
    if not tx.queue.deny_if_claimed(job.job_id, next_retry_at, until):
        raise ConflictError(
            "the claim on this job has run out", code="CLAIM_LOST", current={"state": job.state}
        )
    ask = _ask(job)
    if denial.code != "SHARE_EXCEEDED" and may_reserve(
        room, ask, now, tx.queue.best_pending_urgency(job.job_id)
    ):
        tx.leases.set_room(room.with_reserve(ask, next_retry_at + RESERVE_GRACE))
    position = tx.queue.count_pending_ahead(job, job.pending_at or now) + 1
    if job.state != "LEASE_PENDING":
        tx.events.append("JOB", job.job_id, "JOB_LEASE_PENDING", {"worker_id": job.claimed_by})
    tx.events.append(
        "JOB",
        job.job_id,
        "LEASE_DENIED",
        {
            "code": denial.code,
            "reason": denial.reason,
            "used": room.used,
            "requested": job.cost_units,
            "capacity": room.total,
            "reserved": room.reserved(now),
            "position": position,
        },
    )
    pending = msgspec.structs.replace(
        job,
        state="LEASE_PENDING",
        next_retry_at=next_retry_at,
        claim_expires_at=until,
        updated_at=now,
        lane=int(Lane.PENDING),
    )
    return Denied(denial, wait_us, position, holders, pending)


def beat_leases(tx: QueueTx, beats: Sequence[Beat]) -> list[Outcome]:
    """Signs of life, each on its own. What ran out stays so; the sweep writes it down."""
    now: Instant = tx.now
    found = tx.leases.lock_leases(list(dict.fromkeys(beat.lease_id for beat in beats)))
    live = [lease.job_id for lease, is_live in found.values() if is_live]
    jobs = tx.queue.lock_jobs(live) if live else {}
    outcomes: list[Outcome] = []
    rows: list[dict[str, Any]] = []
    for beat in beats:
        lease, is_live = found.get(beat.lease_id, (None, False))
        refused = _refuse_stranger(beat.lease_id, lease, beat.job_id, beat.worker_id)
        if refused is not None or lease is None:
            outcomes.append(refused or NotFoundError(f"there is no lease {beat.lease_id}"))
            continue
        if not is_live or lease.job_id not in jobs:
            outcomes.append(_lost(lease.state))
            continue
        ttl_sec = lease.ttl_sec if beat.ttl_sec is None else beat.ttl_sec
        expires_at = now + round(ttl_sec * SECOND)
        rows.append(
            {
                "lease_id": lease.lease_id,
                "ttl_sec": ttl_sec,
                "expires_at": expires_at,
                "now_at": now,
            }
        )
        job = _note_progress(tx, jobs[lease.job_id], beat)
        jobs[lease.job_id] = job
        beaten = msgspec.structs.replace(
            lease, last_heartbeat_at=now, expires_at=expires_at, ttl_sec=ttl_sec
        )
        outcomes.append(Held(beaten, job))
    tx.leases.beat_locked(rows)
    return outcomes


def _note_progress(tx: QueueTx, job: Job, beat: Beat) -> Job:
    if beat.progress is None and beat.message is None:
        return job
    progress = job.progress if beat.progress is None else beat.progress
    note = job.note if beat.message is None else beat.message
    if (progress, note) == (job.progress, job.note):
        return job
    tx.queue.report_if_running(job.job_id, beat.lease_id, progress, note)
    return msgspec.structs.replace(job, progress=progress, note=note, updated_at=tx.now)


def release_leases(tx: QueueTx, items: Sequence[Release]) -> list[Outcome]:
    """End attempts, each on its own, and answer the leases and jobs whole. See `release_briefly`
    for the rules."""
    now = tx.now
    found = tx.leases.lock_leases(list(dict.fromkeys(item.lease_id for item in items)))
    jobs = tx.queue.lock_jobs([lease.job_id for lease, _ in found.values()]) if found else {}
    holds = {
        lease.lease_id: _hold_of(lease, is_live, jobs[lease.job_id])
        for lease, is_live in found.values()
        if lease.job_id in jobs
    }
    outcomes: list[Outcome] = []
    ended: dict[str, Held] = {}
    for item, outcome in zip(items, _release(tx, items, holds), strict=True):
        if isinstance(outcome, KsanaError):
            outcomes.append(outcome)
            continue
        lease = found[item.lease_id][0]
        held = ended.get(item.lease_id) or Held(lease, jobs[lease.job_id])
        if lease.state == "ACTIVE" and item.lease_id not in ended:
            after = msgspec.structs.replace(
                lease,
                state="RELEASED",
                released_at=now,
                release_status=item.status,
                release_digest=item.digest(),
            )
            held = ended[item.lease_id] = Held(after, job_after(jobs[lease.job_id], outcome, now))
        outcomes.append(held)
    return outcomes


def release_briefly(tx: QueueTx, items: Sequence[Release]) -> list[Settled | KsanaError]:
    """End attempts, each on its own, and answer only what became of the jobs. A repeat of the same
    release is answered the same; a late one is refused, and what its job has become by right is
    written down with it."""
    holds = tx.leases.lock_holds(list(dict.fromkeys([item.lease_id for item in items])))
    return _release(tx, items, holds)


def _hold_of(lease: Lease, is_live: bool, job: Job) -> Hold:
    return Hold(
        lease.lease_id,
        lease.job_id,
        lease.worker_id,
        lease.cost_units,
        lease.ttl_sec,
        lease.state,
        lease.release_digest,
        is_live,
        job.seq,
        job.state,
        job.attempts,
        job.max_attempts,
        job.cancel_requested,
        job.started_at,
        job.urgency,
    )


def _release(
    tx: QueueTx, items: Sequence[Release], holds: dict[str, Hold]
) -> list[Settled | KsanaError]:
    outcomes: list[Settled | KsanaError | None] = []
    fresh: dict[str, tuple[Release, Hold, str]] = {}
    late: dict[str, Hold] = {}
    for item in items:
        lease_id = item.lease_id
        hold = holds.get(lease_id)
        outcome: Settled | KsanaError | None = _refuse_stranger(
            lease_id, hold, item.job_id, item.worker_id
        )
        if outcome is None and hold is not None:
            digest = release_digest(
                item.status, item.result_json or "", item.error, item.metrics_json or ""
            )
            if not hold.is_live:
                if hold.lease_state == "RELEASED" and hold.release_digest == digest:
                    outcome = Settled(hold.seq, hold.job_id, lease_id, hold.job_state)
                else:
                    if hold.lease_state == "ACTIVE":
                        late[lease_id] = hold
                    outcome = _lost(hold.lease_state)
            elif lease_id not in fresh:
                fresh[lease_id] = (item, hold, digest)
            elif fresh[lease_id][2] != digest:
                outcome = _lost(hold.lease_state)
        outcomes.append(outcome)
    settled = _end(tx, fresh) if fresh else {}
    if late:
        expire_leases(tx, list(late.values()))
    return [
        settled[item.lease_id] if outcome is None else outcome
        for item, outcome in zip(items, outcomes, strict=True)
    ]


def _end(tx: QueueTx, fresh: dict[str, tuple[Release, Hold, str]]) -> dict[str, Settled]:
    count = tx.leases.release_locked(
        [(lease_id, item.status, digest) for lease_id, (item, _, digest) in fresh.items()]
    )
    if count != len(fresh):
        raise AssertionError("a locked lease was not active")
    _tell_released(tx, fresh)
    ends = [
        (
            hold,
            after_release(hold, item.status),
            item.status,
            item.error,
            item.result_json,
            item.metrics_json,
        )
        for item, hold, _ in fresh.values()
    ]
    return dict(zip(fresh, end_attempts(tx, ends, "RELEASED"), strict=True))


def _tell_released(tx: QueueTx, fresh: dict[str, tuple[Release, Hold, str]]) -> None:
    alike: dict[str, list[Hold]] = {}
    for item, hold, _ in fresh.values():
        alike.setdefault(item.status, []).append(hold)
    for status, holds in alike.items():
        if len(holds) >= MANY:
            tx.queue.tell_released([hold.seq for hold in holds], status)
        else:
            tx.events.append_texts(
                [
                    (
                        "LEASE",
                        hold.lease_id,
                        "LEASE_RELEASED",
                        f'{{"job_id":"{hold.job_id}","status":"{status}"}}',
                    )
                    for hold in holds
                ]
            )


def _refuse_stranger(
    lease_id: str, found: Lease | Hold | None, job_id: str | None, worker_id: str | None
) -> KsanaError | None:
    if found is None:
        return NotFoundError(f"there is no lease {lease_id}")
    if job_id is not None and job_id != found.job_id:
        return InvalidError(f"this lease is for job {found.job_id}", field="job_id")
    if worker_id is not None and found.worker_id is not None and worker_id != found.worker_id:
        state = found.lease_state if isinstance(found, Hold) else found.state
        return ConflictError(
            f"{worker_id!r} does not hold this lease", code="LEASE_LOST", current={"state": state}
        )
    return None


def _lost(lease_state: str) -> ConflictError:
    state = "EXPIRED" if lease_state == "ACTIVE" else lease_state
    return ConflictError(f"this lease is {state}", code="LEASE_LOST", current={"state": state})
