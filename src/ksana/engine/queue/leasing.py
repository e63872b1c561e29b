"""How attempts end: leases released or run out, claims run out, scheduled jobs that come due.

    worker ──claim──▶ CLAIMED ──lease──▶ RUNNING ──release──▶ ended, or QUEUED again
                         │ 60 s               │ ttl
                         ▼                    ▼
                       QUEUED            TIMEOUT / QUEUED again         decided here, by the store's clock

The store is authoritative. A lease that ran out is refused by every statement from that instant on,
whether or not the sweep has come; the sweep only writes down what is true already and frees the
units. It parks until the first lease, claim or scheduled job is due, on every instance: rows are
taken with SKIP LOCKED and guarded, so sweeps on many instances share the work and none waits for a
dead one. The units a lease holds and its state change in one transaction, so a crash at any point
leaks nothing. Who takes units holds the capacity row from the start; who gives some back only
touches it at the end.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from ksana.base.clock import Clock
from ksana.base.instant import MINUTE, SECOND, Instant, Micros
from ksana.domain.histogram import bucket_counts
from ksana.domain.queue.jobs import FINAL_OF, MANY, Ending, Hold, Job, Lane, Settled, after_expiry
from ksana.engine.core.pump import AGAIN, Pump
from ksana.engine.queue.long_poll import Arrivals
from ksana.ports.queue.tables import Due, QueueTx
from ksana.ports.store import Store

SWEEP: Final = 200
"""Rows of each kind one sweep deals with before others get their turn."""

POLL: Final[Micros] = 2 * SECOND
RECOUNT_EVERY: Final[Micros] = 60 * MINUTE

_ENDED_EVENT: Final = {
    "DONE": "JOB_DONE",
    "FAILED": "JOB_FAILED",
    "CANCELED": "JOB_CANCELED",
    "TIMEOUT": "JOB_TIMEOUT",
}
_TALLY: Final = {"DONE": "done", "FAILED": "failed", "CANCELED": "canceled", "TIMEOUT": "timeout"}
_ALERTS: Final = frozenset({"FAILED", "TIMEOUT"})

_encode = msgspec.json.Encoder().encode


AttemptEnd = tuple[Hold, Ending, str, str | None, str | None, str | None]
"""One attempt that ends: what was held, what becomes of it, and what its worker said or what is
said for it: status, error, result, metrics. A plain tuple, for there is one for every job."""


def end_attempts(tx: QueueTx, ends: Sequence[AttemptEnd], reason: str) -> list[Settled]:
    """Write the ends of attempts whose leases have left ACTIVE in this transaction; answer what
    their jobs are now.

    Their units are given back with it. `reason` is why they ended: RELEASED or EXPIRED.
    """
    now = tx.now
    settled: list[Settled] = []
    finished: list[Settled] = []
    requeued: list[Settled] = []
    events: list[tuple[str, str, str, str]] = []
    plain: list[Hold] = []
    units = 0
    for hold, ending, status, error, result_json, metrics_json in ends:
        units += hold.cost_units
        state, job_id = ending.state, hold.job_id
        if ending.rest_us is None:
            one = Settled(hold.seq, job_id, hold.lease_id, state, error, result_json, metrics_json)
            finished.append(one)
            if state == "DONE" and error is None:
                plain.append(hold)
            else:
                events.append(
                    ("JOB", job_id, _ENDED_EVENT[state], _tell_end(hold, state, error, reason))
                )
        else:
            one = _requeue(tx, hold, ending.rest_us, error, metrics_json)
            requeued.append(one)
            why = "LEASE_EXPIRED" if reason == "EXPIRED" else status
            events.append(
                ("JOB", job_id, "JOB_REQUEUED", _tell_requeue(hold, ending.rest_us, error, why))
            )
        settled.append(one)
    if len(plain) < MANY:
        events += [
            ("JOB", hold.job_id, "JOB_DONE", _tell_end(hold, "DONE", None, reason))
            for hold in plain
        ]
    else:
        tx.queue.tell_done([hold.seq for hold in plain], reason)
    tx.events.append_texts(events)
    count = tx.queue.end_running(finished) + tx.queue.requeue_running(requeued)
    assert count == len(ends), (
        "a running job and its active lease are changed together, never alone"
    )
    for state, number in Counter([one.state for one in finished]).items():
        tx.queue.tally(_TALLY[state], number)
    started = Counter([end[0].started_at or now for end in ends if end[1].rest_us is None])
    tx.queue.observe("run", bucket_counts(now, started))
    tx.leases.free(units, len(ends))
    tx.queue.count(
        queued=len(requeued),
        running=-len(ends),
        leases=-len(ends),
        units=-units,
        arrivals=len(ends),
    )
    return settled


def _tell_end(hold: Hold, state: str, error: str | None, reason: str) -> str:
    if error is None and state not in _ALERTS:  # the common end; nothing in it needs escaping
        return f'{{"lease_id":"{hold.lease_id}","attempts":{hold.attempts},"reason":"{reason}"}}'
    data: dict[str, Any] = {"lease_id": hold.lease_id, "attempts": hold.attempts, "reason": reason}
    if error is not None:
        data["error"] = error
    if state in _ALERTS:
        data["alert"] = True
    return _encode(data).decode()


def _requeue(
    tx: QueueTx, hold: Hold, rest_us: Micros, error: str | None, metrics_json: str | None
) -> Settled:
    lane = int(Lane.SCHEDULED if rest_us else Lane.READY)
    turn = 0 if rest_us else tx.queue.front_turn(hold.urgency)
    return Settled(
        hold.seq,
        hold.job_id,
        hold.lease_id,
        "QUEUED",
        error,
        None,
        metrics_json,
        lane,
        turn,
        tx.now + rest_us,
    )


def _tell_requeue(hold: Hold, rest_us: Micros, error: str | None, why: str) -> str:
    data: dict[str, Any] = {
        "reason": why,
        "attempts": hold.attempts,
        "max_attempts": hold.max_attempts,
        "rest_ms": rest_us // 1000,
    }
    if error is not None:
        data["error"] = error
    return _encode(data).decode()


def job_after(job: Job, settled: Settled, now: Instant) -> Job:
    """The whole job as `end_attempts` has written it."""
    if settled.lane is None:
        return msgspec.structs.replace(
            job,
            state=settled.state,
            final_status=FINAL_OF[settled.state],
            error_text=settled.error,
            result_json=settled.result_json,
            metrics_json=settled.metrics_json,
            finished_at=now,
            updated_at=now,
            lane=None,
        )
    return msgspec.structs.replace(
        job,
        state="QUEUED",
        claimed_by=None,
        lease_id=None,
        next_retry_at=settled.next_retry_at,
        due_at=settled.due_at,
        error_text=settled.error,
        metrics_json=settled.metrics_json,
        progress=None,
        note=None,
        updated_at=now,
        lane=settled.lane,
        turn=settled.turn,
    )


def expire_leases(tx: QueueTx, holds: Sequence[Hold]) -> list[Settled]:
    """Leases that were locked and have run out become EXPIRED; their jobs time out or are queued
    again."""
    if not holds:
        return []
    tx.leases.expire_locked([hold.lease_id for hold in holds])
    ends: list[AttemptEnd] = []
    for hold in holds:
        tx.events.append(
            "LEASE",
            hold.lease_id,
            "LEASE_EXPIRED",
            {
                "job_id": hold.job_id,
                "worker_id": hold.worker_id,
                "cost_units": hold.cost_units,
                "ttl_sec": hold.ttl_sec,
            },
        )
        ends.append(
            (
                hold,
                after_expiry(hold),
                "TIMEOUT",
                f"the lease ran out after {hold.ttl_sec:g} s",
                None,
                None,
            )
        )
    tx.queue.tally("expired", len(holds))
    return end_attempts(tx, ends, "EXPIRED")


def list_expired(tx: QueueTx, limit: int) -> list[Hold]:
    """Leases that ran out by the store's clock, held, with what ending them takes."""
    leases = tx.leases.list_expired(limit)
    return (
        list(tx.leases.lock_holds([lease.lease_id for lease in leases]).values()) if leases else []
    )


def expire_claims(tx: QueueTx, limit: int) -> list[Job]:
    """Jobs whose claim ran out are QUEUED again, at the front of their priority."""
    jobs = tx.queue.list_expired_claims(limit)
    if not jobs:
        return jobs
    tx.queue.requeue_expired(jobs)
    for job in jobs:
        data = {"worker_id": job.claimed_by, "state": job.state}
        tx.events.append("JOB", job.job_id, "JOB_CLAIM_EXPIRED", data)
        tx.events.append(
            "JOB", job.job_id, "JOB_REQUEUED", {"reason": "CLAIM_EXPIRED", "attempts": job.attempts}
        )
    tx.queue.count(queued=len(jobs), arrivals=len(jobs))
    return jobs


class Swept(msgspec.Struct, frozen=True):
    """What one sweep did."""

    ready: int
    freed: int
    is_full: bool
    due: Due


def sweep(tx: QueueTx, limit: int) -> Swept:
    """Write down everything whose time is over, by the store's clock."""
    due = tx.queue.next_due()
    ready = freed = 0
    is_full = False
    if due.lease_at is not None and due.lease_at <= tx.now:
        settled = expire_leases(tx, list_expired(tx, limit))
        freed = len(settled)
        ready += sum(one.lane == Lane.READY for one in settled)
        is_full = freed == limit
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


def recount(tx: QueueTx, total: int) -> tuple[int, int]:
    """Compare the counters with what they count and put them right; answer how far the used units
    were off, and by how many leases. Both are 0 unless somebody changed the tables by hand."""
    room = tx.leases.lock_room(total)
    active, used = tx.leases.sum_active()
    off = (room.used - used, room.active - active)
    if off != (0, 0):
        tx.leases.set_room(msgspec.structs.replace(room, used=used, active=active))
        tx.events.append(
            "LEASE",
            "capacity",
            "CAPACITY_RECOUNTED",
            {"used": room.used, "counted": used, "leases": active, "alert": True},
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
        self.pump = Pump("queue-leasing", clock, self._step, 10 * SECOND)

    def note_due(self, at: Instant) -> None:
        """Something will be due then: wake the loop if it does not know of anything as early."""
        if self._next_at is None or at < self._next_at:
            self.pump.signal()

    async def _step(self) -> Instant | None:
        if (
            self._recounted_at is None
            or self._clock.monotonic() - self._recounted_at > RECOUNT_EVERY
        ):
            await self._store.transact(recount, self._total)
            self._recounted_at = self._clock.monotonic()
        due, now = await self._store.read(_read_due)
        soonest = due.soonest()
        if soonest is not None and soonest <= now:
            swept = await self._store.transact(sweep, SWEEP)
            if swept.ready:
                self._arrivals.tell_ready()
            if swept.freed:
                self._arrivals.tell_capacity()
            if swept.is_full:
                return AGAIN
            soonest = swept.due.soonest()
        self._next_at = soonest
        # Leases of other instances end too, and only the store tells; where we are the only server
        # we know of each.
        look_at = None if self._store.sole else self._clock.now() + POLL
        return soonest if look_at is None else min(look_at, soonest or look_at)


def _read_due(tx: QueueTx) -> tuple[Due, Instant]:
    return tx.queue.next_due(), tx.now
