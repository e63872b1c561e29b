"""How attempts end: leases released or run out, claims run out, scheduled jobs that come due.

    worker ──claim──▶ CLAIMED ──lease──▶ RUNNING ──release──▶ ended, or QUEUED again
                         │ 60 s               │ ttl
                         ▼                    ▼
                       QUEUED            TIMEOUT / QUEUED again         decided here, by the store's clock

The store is authoritative. A lease that ran out is refused by every statement from that instant on, whether or not the sweep
has come; the sweep only writes down what is true already and frees the units. It parks until the first lease, claim or
scheduled job is due, on every instance: rows are taken with SKIP LOCKED and guarded, so sweeps on many instances share the
work and none waits for a dead one. The units a lease holds and its state change in one transaction under the lock of the
capacity row, so a crash at any point leaks nothing.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from ksana.base.clock import Clock
from ksana.base.instant import MINUTE, SECOND, Instant, Micros
from ksana.domain.admission import Room
from ksana.domain.histogram import bucket_of
from ksana.domain.queue import Ending, Job, Lane, Lease, after_expiry
from ksana.engine.arrivals import Arrivals
from ksana.engine.pump import AGAIN, Pump
from ksana.ports.queue_store import Due
from ksana.ports.store import Store

SWEEP: Final = 200
"""Rows of each kind one sweep deals with before others get their turn."""

POLL: Final[Micros] = 2 * SECOND
RECOUNT_EVERY: Final[Micros] = 60 * MINUTE

_FINAL: Final = {"DONE": "SUCCEEDED", "FAILED": "FAILED", "CANCELED": "CANCELED", "TIMEOUT": "TIMEOUT"}
_ENDED_EVENT: Final = {"DONE": "JOB_DONE", "FAILED": "JOB_FAILED", "CANCELED": "JOB_CANCELED", "TIMEOUT": "JOB_TIMEOUT"}
_TALLY: Final = {"DONE": "done", "FAILED": "failed", "CANCELED": "canceled", "TIMEOUT": "timeout"}


class AttemptEnd(msgspec.Struct, frozen=True, gc=False):
    """One attempt that ends, with what its worker said (or what is said for it)."""

    lease: Lease
    job: Job
    ending: Ending
    status: str
    error: str | None = None
    result_json: str | None = None
    metrics_json: str | None = None


def end_attempts(tx: Any, room: Room, ends: Sequence[AttemptEnd], reason: str) -> list[Job]:
    """Write the ends of attempts whose leases have left ACTIVE in this transaction; answer the jobs as they are now.

    The capacity is held by the caller. `reason` is why they ended: RELEASED or EXPIRED.
    """
    now: Instant = tx.now
    jobs: list[Job] = []
    finished: list[dict[str, Any]] = []
    requeued: list[dict[str, Any]] = []
    ready = units = 0
    tallies: Counter[str] = Counter()
    spans: Counter[int] = Counter()
    for end in ends:
        units += end.lease.cost_units
        if end.ending.rest_us is None:
            jobs.append(_finish(tx, end, reason, now, finished))
            tallies[_TALLY[end.ending.state]] += 1
            spans[bucket_of((now - (end.job.started_at or now)) / SECOND)] += 1
        else:
            ready += not end.ending.rest_us
            jobs.append(_requeue(tx, end, reason, now, requeued))
    count = tx.queue.end_running(finished) + tx.queue.requeue_running(requeued)
    assert count == len(ends), "a running job and its active lease are changed together, never alone"
    for metric, number in tallies.items():
        tx.queue.tally(metric, number)
    tx.queue.observe("run", spans)
    tx.leases.set_room(msgspec.structs.replace(room, used=room.used - units, active=room.active - len(ends)))
    tx.queue.count(queued=len(requeued), running=-len(ends), leases=-len(ends), units=-units, arrivals=len(ends) or ready)
    return jobs


def _finish(tx: Any, end: AttemptEnd, reason: str, now: Instant, rows: list[dict[str, Any]]) -> Job:
    job, state = end.job, end.ending.state
    final = _FINAL[state]
    rows.append(
        {
            "seq": job.seq, "lease_id": end.lease.lease_id, "state": state, "final_status": final, "error_text": end.error,
            "result_json": end.result_json, "metrics_json": end.metrics_json, "now_at": now,
        }
    )  # fmt: skip
    data: dict[str, Any] = {"lease_id": end.lease.lease_id, "attempts": job.attempts, "reason": reason}
    if end.error is not None:
        data["error"] = end.error
    if state in ("FAILED", "TIMEOUT"):
        data["alert"] = True
    tx.events.append("JOB", job.job_id, _ENDED_EVENT[state], data)
    return msgspec.structs.replace(
        job,
        state=state, final_status=final, error_text=end.error, result_json=end.result_json, metrics_json=end.metrics_json,
        finished_at=now, updated_at=now, lane=None,
    )  # fmt: skip


def _requeue(tx: Any, end: AttemptEnd, reason: str, now: Instant, rows: list[dict[str, Any]]) -> Job:
    job, rest_us = end.job, end.ending.rest_us or 0
    due_at = now + rest_us
    lane = Lane.SCHEDULED if rest_us else Lane.READY
    turn = 0 if rest_us else tx.queue.front_turn(job.urgency)
    next_retry_at = due_at if rest_us else None
    rows.append(
        {
            "seq": job.seq, "lease_id": end.lease.lease_id, "lane": int(lane), "turn": turn, "due_at": due_at,
            "next_retry_at": next_retry_at, "error_text": end.error, "result_json": None,
            "metrics_json": end.metrics_json, "now_at": now,
        }
    )  # fmt: skip
    data: dict[str, Any] = {
        "reason": "LEASE_EXPIRED" if reason == "EXPIRED" else end.status,
        "attempts": job.attempts, "max_attempts": job.max_attempts, "rest_ms": rest_us // 1000,
    }  # fmt: skip
    if end.error is not None:
        data["error"] = end.error
    tx.events.append("JOB", job.job_id, "JOB_REQUEUED", data)
    return msgspec.structs.replace(
        job,
        state="QUEUED", claimed_by=None, lease_id=None, next_retry_at=next_retry_at, due_at=due_at, error_text=end.error,
        metrics_json=end.metrics_json, progress=None, note=None, updated_at=now, lane=int(lane), turn=turn,
    )  # fmt: skip


def expire_leases(tx: Any, room: Room, leases: Sequence[Lease]) -> list[Job]:
    """Leases that were locked and have run out become EXPIRED; their jobs time out or are queued again."""
    if not leases:
        return []
    jobs = tx.queue.lock_jobs([lease.job_id for lease in leases])
    tx.leases.expire_locked([lease.lease_id for lease in leases])
    ends = []
    for lease in leases:
        tx.events.append(
            "LEASE", lease.lease_id, "LEASE_EXPIRED",
            {"job_id": lease.job_id, "worker_id": lease.worker_id, "cost_units": lease.cost_units, "ttl_sec": lease.ttl_sec},
        )  # fmt: skip
        job = jobs[lease.job_id]
        ends.append(AttemptEnd(lease, job, after_expiry(job), "TIMEOUT", f"the lease ran out after {lease.ttl_sec:g} s"))
    tx.queue.tally("expired", len(leases))
    return end_attempts(tx, room, ends, "EXPIRED")


def expire_claims(tx: Any, limit: int) -> list[Job]:
    """Jobs whose claim ran out are QUEUED again, at the front of their priority."""
    jobs: list[Job] = tx.queue.list_expired_claims(limit)
    if not jobs:
        return jobs
    tx.queue.requeue_expired(jobs)
    for job in jobs:
        data = {"worker_id": job.claimed_by, "state": job.state}
        tx.events.append("JOB", job.job_id, "JOB_CLAIM_EXPIRED", data)
        tx.events.append("JOB", job.job_id, "JOB_REQUEUED", {"reason": "CLAIM_EXPIRED", "attempts": job.attempts})
    tx.queue.count(queued=len(jobs), arrivals=len(jobs))
    return jobs


class Swept(msgspec.Struct, frozen=True):
    """What one sweep did."""

    ready: int
    freed: int
    is_full: bool
    due: Due


def sweep(tx: Any, total: int, limit: int) -> Swept:
    """Write down everything whose time is over, by the store's clock."""
    due: Due = tx.queue.next_due()
    ready = freed = 0
    is_full = False
    if due.lease_at is not None and due.lease_at <= tx.now:
        room = tx.leases.lock_room(total)
        leases = tx.leases.list_expired(limit)
        jobs = expire_leases(tx, room, leases)
        freed = len(leases)
        ready += sum(job.lane == Lane.READY for job in jobs)
        is_full = len(leases) == limit
    if due.claim_at is not None and due.claim_at <= tx.now:
        expired = len(expire_claims(tx, limit))
        ready += expired
        is_full = is_full or expired == limit
    if due.job_at is not None and due.job_at <= tx.now:
        promoted = len(tx.queue.promote_due(limit))
        if promoted:
            tx.queue.count(arrivals=promoted)
        ready += promoted
        is_full = is_full or promoted == limit
    return Swept(ready, freed, is_full, tx.queue.next_due())


def recount(tx: Any, total: int) -> tuple[int, int]:
    """Compare the counters with what they count and put them right; answer how far the used units were off, and by how many
    leases. Both are 0 unless somebody changed the tables by hand."""
    room: Room = tx.leases.lock_room(total)
    active, used = tx.leases.sum_active()
    off = (room.used - used, room.active - active)
    if off != (0, 0):
        tx.leases.set_room(msgspec.structs.replace(room, used=used, active=active))
        tx.events.append(
            "LEASE", "capacity", "CAPACITY_RECOUNTED", {"used": room.used, "counted": used, "leases": active, "alert": True}
        )
    tx.queue.recount()
    return off


class Leasing:
    """The loop that sweeps, on the pump."""

    def __init__(self, store: Store, clock: Clock, total: int, arrivals: Arrivals) -> None:
        self._store = store
        self._clock = clock
        self._total = total
        self._arrivals = arrivals
        self._next_at: Instant | None = None
        self._recounted_at: Micros | None = None
        self.pump = Pump("queue-leasing", clock, self._step, POLL)

    def note_due(self, at: Instant) -> None:
        """Something will be due then: wake the loop if it does not know of anything as early."""
        if self._next_at is None or at < self._next_at:
            self.pump.signal()

    async def _step(self) -> Instant | None:
        if self._recounted_at is None or self._clock.monotonic() - self._recounted_at > RECOUNT_EVERY:
            await self._store.transact(recount, self._total)
            self._recounted_at = self._clock.monotonic()
        due, now = await self._store.read(_read_due)
        soonest = due.soonest()
        if soonest is not None and soonest <= now:
            swept = await self._store.transact(sweep, self._total, SWEEP)
            if swept.ready:
                self._arrivals.tell_ready()
            if swept.freed:
                self._arrivals.tell_capacity()
            if swept.is_full:
                return AGAIN
            soonest = swept.due.soonest()
        self._next_at = soonest
        return soonest


def _read_due(tx: Any) -> tuple[Due, Instant]:
    return tx.queue.next_due(), tx.now
