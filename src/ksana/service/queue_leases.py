"""Transactions on leases: request, heartbeat, release. Each write is fenced by the lease's id and the store's clock."""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from ksana.base.errors import ConflictError, InvalidError, KsanaError, NotFoundError
from ksana.base.instant import SECOND, Instant, Micros
from ksana.domain.admission import RESERVE_GRACE, Ask, Denial, Room, find_denial, may_reserve, retry_after_us
from ksana.domain.histogram import bucket_of
from ksana.domain.queue import HELD, Job, Lane, Lease, after_release, release_digest
from ksana.engine.leasing import SWEEP, AttemptEnd, end_attempts, expire_leases
from ksana.service.queue_jobs import Limits, claim_lost, get_locked, illegal

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
            self.status, (self.result_json or "").encode(), self.error, (self.metrics_json or "").encode()
        )  # fmt: skip


class Held(msgspec.Struct, frozen=True, gc=False):
    """A lease and its job after a heartbeat or a release."""

    lease: Lease
    job: Job


Outcome = Held | KsanaError
"""What became of one item. An error is a value here: what was written beside it must stay."""


def request_lease(tx: Any, ask: LeaseAsk, limits: Limits) -> Granted | Denied:
    """Admit a claimed job, or say why not."""
    room: Room = tx.leases.lock_room(limits.total)
    job, is_claim_live = get_locked(tx, ask.job_id)
    _check_repeated(job, ask)
    if ask.worker_id is not None and job.claimed_by != ask.worker_id:
        raise claim_lost(job, ask.worker_id)
    if job.state == "RUNNING":
        return _same_lease(tx, job)
    if job.state not in HELD:
        raise illegal(job, "RUNNING")
    if not is_claim_live:
        raise ConflictError("the claim on this job has run out", code="CLAIM_LOST", current={"state": job.state})
    denial = _find_denial(tx, room, job, limits)
    if denial is not None:
        expired = tx.leases.list_expired(SWEEP)
        if expired:  # units of the dead are free by right; do not wait for the sweep
            expire_leases(tx, room, expired)
            room = tx.leases.lock_room(limits.total)
            denial = _find_denial(tx, room, job, limits)
    if denial is not None:
        return _deny(tx, room, job, denial, limits)
    return _grant(tx, room, job, ask)


def _check_repeated(job: Job, ask: LeaseAsk) -> None:
    for name, value in ask.repeated:
        own = msgspec.json.decode(job.constraints_json) if name == "constraints" else getattr(job, name)
        if value != own:
            raise InvalidError(f"{name!r} differs from the job's own: it is {own!r}", field=name)


def _same_lease(tx: Any, job: Job) -> Granted:
    found = tx.leases.lock_lease(job.lease_id)
    if found is None or not found[1]:
        raise ConflictError("the lease of this job has run out", code="LEASE_LOST", current={"state": job.state})
    return Granted(found[0], job)


def _find_denial(tx: Any, room: Room, job: Job, limits: Limits) -> Denial | None:
    share = limits.share_of(job.addon_id)
    addon_used = 0 if share is None else tx.leases.sum_of_addon(job.addon_id)
    return find_denial(room, _ask(job), tx.now, share, addon_used)


def _ask(job: Job) -> Ask:
    return Ask(job.job_id, job.addon_id, job.cost_units, job.urgency)


def _grant(tx: Any, room: Room, job: Job, ask: LeaseAsk) -> Granted:
    now: Instant = tx.now
    if not tx.queue.grant_if_claimed(job.job_id, ask.lease_id):
        raise ConflictError("the claim on this job has run out", code="CLAIM_LOST", current={"state": job.state})
    lease = Lease(
        ask.lease_id, job.job_id, job.addon_id, job.claimed_by, job.cost_units, ask.ttl_sec, "ACTIVE", now, now,
        now + round(ask.ttl_sec * SECOND), None, None, None,
    )  # fmt: skip
    tx.leases.insert([lease])
    tx.leases.set_room(room.with_grant(job.cost_units, job.job_id))
    attempts = job.attempts + 1
    tx.events.append(
        "LEASE", lease.lease_id, "LEASE_GRANTED",
        {"job_id": job.job_id, "worker_id": job.claimed_by, "cost_units": job.cost_units, "used": room.used + job.cost_units},
    )  # fmt: skip
    tx.events.append("JOB", job.job_id, "JOB_RUNNING", {"lease_id": lease.lease_id, "attempts": attempts})
    tx.queue.observe("wait", {bucket_of((now - job.due_at) / SECOND): 1})
    tx.queue.count(running=1, leases=1, units=job.cost_units)
    running = msgspec.structs.replace(
        job, state="RUNNING", lease_id=lease.lease_id, attempts=attempts, claim_expires_at=None, next_retry_at=None,
        started_at=now, updated_at=now, lane=int(Lane.RUNNING), pending_at=None,
    )  # fmt: skip
    return Granted(lease, running)


def _deny(tx: Any, room: Room, job: Job, denial: Denial, limits: Limits) -> Denied:
    now: Instant = tx.now
    holders = tx.leases.list_active(HOLDERS)
    wait_us = retry_after_us(now, holders[0].expires_at if holders else None)
    next_retry_at = now + wait_us
    until = max(now + limits.claim_ttl_us, next_retry_at + RESERVE_GRACE)
    if not tx.queue.deny_if_claimed(job.job_id, next_retry_at, until):
        raise ConflictError("the claim on this job has run out", code="CLAIM_LOST", current={"state": job.state})
    ask = _ask(job)
    if denial.code != "SHARE_EXCEEDED" and may_reserve(room, ask, now, tx.queue.best_pending_urgency(job.job_id)):
        tx.leases.set_room(room.with_reserve(ask, next_retry_at + RESERVE_GRACE))
    position = tx.queue.count_pending_ahead(job, job.pending_at or now) + 1
    if job.state != "LEASE_PENDING":
        tx.events.append("JOB", job.job_id, "JOB_LEASE_PENDING", {"worker_id": job.claimed_by})
    tx.events.append(
        "JOB", job.job_id, "LEASE_DENIED",
        {
            "code": denial.code, "reason": denial.reason, "used": room.used, "requested": job.cost_units,
            "capacity": room.total, "reserved": room.reserved(now), "position": position,
        },
    )  # fmt: skip
    pending = msgspec.structs.replace(
        job, state="LEASE_PENDING", next_retry_at=next_retry_at, claim_expires_at=until, updated_at=now,
        lane=int(Lane.PENDING),
    )  # fmt: skip
    return Denied(denial, wait_us, position, holders, pending)


def beat_leases(tx: Any, beats: Sequence[Beat]) -> list[Outcome]:
    """Signs of life, each on its own. What ran out stays so; the sweep writes it down."""
    now: Instant = tx.now
    found = tx.leases.lock_leases(list(dict.fromkeys(beat.lease_id for beat in beats)))
    live = [lease.job_id for lease, is_live in found.values() if is_live]
    jobs = tx.queue.lock_jobs(live) if live else {}
    outcomes: list[Outcome] = []
    rows: list[dict[str, Any]] = []
    for beat in beats:
        refused = _refuse_stranger(beat.lease_id, found.get(beat.lease_id), beat.job_id, beat.worker_id)
        if refused is not None:
            outcomes.append(refused)
            continue
        lease = found[beat.lease_id][0]
        if lease.job_id not in jobs:
            outcomes.append(_lost(lease))
            continue
        ttl_sec = lease.ttl_sec if beat.ttl_sec is None else beat.ttl_sec
        expires_at = now + round(ttl_sec * SECOND)
        rows.append({"lease_id": lease.lease_id, "ttl_sec": ttl_sec, "expires_at": expires_at, "now_at": now})
        job = _note_progress(tx, jobs[lease.job_id], beat)
        jobs[lease.job_id] = job
        beaten = msgspec.structs.replace(lease, last_heartbeat_at=now, expires_at=expires_at, ttl_sec=ttl_sec)
        outcomes.append(Held(beaten, job))
    tx.leases.beat_locked(rows)
    return outcomes


def _note_progress(tx: Any, job: Job, beat: Beat) -> Job:
    if beat.progress is None and beat.message is None:
        return job
    progress = job.progress if beat.progress is None else beat.progress
    note = job.note if beat.message is None else beat.message
    if (progress, note) == (job.progress, job.note):
        return job
    tx.queue.report_if_running(job.job_id, beat.lease_id, progress, note)
    return msgspec.structs.replace(job, progress=progress, note=note, updated_at=tx.now)


def release_leases(tx: Any, items: Sequence[Release], limits: Limits) -> list[Outcome]:
    """End attempts, each on its own. A repeat of the same release is answered the same; a late one is refused, and what its
    job has become by right is written down with it."""
    room: Room = tx.leases.lock_room(limits.total)
    found = tx.leases.lock_leases(list(dict.fromkeys(item.lease_id for item in items)))
    jobs: dict[str, Job] = tx.queue.lock_jobs([lease.job_id for lease, _ in found.values()]) if found else {}
    outcomes: list[Outcome | None] = []
    fresh: list[tuple[int, Release, Lease]] = []
    late: dict[str, Lease] = {}
    digests: dict[str, str] = {}
    for place, item in enumerate(items):
        outcome: Outcome | None = None
        stranger = _refuse_stranger(item.lease_id, found.get(item.lease_id), item.job_id, item.worker_id)
        if stranger is not None:
            outcomes.append(stranger)
            continue
        lease, is_live = found[item.lease_id]
        digest = item.digest()
        if not is_live:
            if lease.state == "RELEASED" and lease.release_digest == digest and lease.job_id in jobs:
                outcome = Held(lease, jobs[lease.job_id])
            else:
                if lease.state == "ACTIVE":
                    late[lease.lease_id] = lease
                outcome = _lost(lease)
        elif item.lease_id in digests:
            outcome = None if digests[item.lease_id] == digest else _lost(lease)
        else:
            digests[item.lease_id] = digest
            fresh.append((place, item, lease))
        outcomes.append(outcome)
    held = _end(tx, room, fresh, jobs, digests)
    if late:
        room = tx.leases.lock_room(limits.total)
        expire_leases(tx, room, list(late.values()))
    return [held[items[place].lease_id] if outcome is None else outcome for place, outcome in enumerate(outcomes)]


def _end(
    tx: Any, room: Room, fresh: Sequence[tuple[int, Release, Lease]], jobs: dict[str, Job], digests: dict[str, str]
) -> dict[str, Held]:
    if not fresh:
        return {}
    now: Instant = tx.now
    event, replace = tx.events.append, msgspec.structs.replace
    rows: list[dict[str, Any]] = []
    leases: list[Lease] = []
    ends: list[AttemptEnd] = []
    for _, item, lease in fresh:
        job = jobs[lease.job_id]
        digest = digests[item.lease_id]
        rows.append({"lease_id": lease.lease_id, "status": item.status, "digest": digest, "now_at": now})
        leases.append(replace(lease, state="RELEASED", released_at=now, release_status=item.status, release_digest=digest))
        event("LEASE", lease.lease_id, "LEASE_RELEASED", {"job_id": lease.job_id, "status": item.status})
        ends.append(
            AttemptEnd(
                lease, job, after_release(job, item.status), item.status, item.error, item.result_json, item.metrics_json
            )
        )
    if tx.leases.release_locked(rows) != len(rows):
        raise AssertionError("a locked lease was not active")
    ended = end_attempts(tx, room, ends, "RELEASED")
    return {lease.lease_id: Held(lease, job) for lease, job in zip(leases, ended, strict=True)}


def _refuse_stranger(
    lease_id: str, found: tuple[Lease, bool] | None, job_id: str | None, worker_id: str | None
) -> KsanaError | None:
    if found is None:
        return NotFoundError(f"there is no lease {lease_id}")
    lease = found[0]
    if job_id is not None and job_id != lease.job_id:
        return InvalidError(f"this lease is for job {lease.job_id}", field="job_id")
    if worker_id is not None and lease.worker_id is not None and worker_id != lease.worker_id:
        return ConflictError(
            f"{worker_id!r} does not hold this lease", code="LEASE_LOST", current={"state": lease.state}
        )  # fmt: skip
    return None


def _lost(lease: Lease) -> ConflictError:
    state = "EXPIRED" if lease.state == "ACTIVE" else lease.state
    return ConflictError(f"this lease is {state}", code="LEASE_LOST", current={"state": state})
