"""How an attempt of a queue job ends: what becomes of the job when its lease is released or runs
out. Pure."""

from typing import Final, Literal

import msgspec

from ksana.base.instant import SECOND, Instant, Micros
from ksana.domain.queue import events
from ksana.domain.queue.changes import READY, SCHEDULED, JobChange
from ksana.domain.queue.jobs import LeaseWithJob
from ksana.domain.queue.turns import Turns
from ksana.domain.retry import Backoff, delay_after

BACKOFF: Final = Backoff(5 * SECOND, "exponential", 300 * SECOND)
"""Pauses of a job whose worker released it as FAILED."""


class EndDecision(msgspec.Struct, frozen=True, gc=False):
    """What becomes of a job whose lease ended. `delay_us` is set when it is queued again."""

    state: str
    delay_us: Micros | None = None


_DONE: Final = EndDecision("DONE")
_FAILED: Final = EndDecision("FAILED")
_CANCELED: Final = EndDecision("CANCELED")
_TIMEOUT: Final = EndDecision("TIMEOUT")
_AGAIN: Final = EndDecision("QUEUED", 0)


def backoff_us(attempts: int) -> Micros:
    """How long a failed job waits before its next attempt."""
    return delay_after(BACKOFF, attempts)


def after_release(held: LeaseWithJob, status: str, may_retry: bool = True) -> EndDecision:
    """Decide a job's state once its worker released the lease. A cancelled job is never tried
    again, nor one whose worker says that another attempt would not help."""
    if held.cancel_requested or status == "CANCELED":
        return _CANCELED
    if status == "SUCCEEDED":
        return _DONE
    if status == "TIMEOUT":
        return _TIMEOUT
    if may_retry and held.attempts < held.max_attempts:
        return EndDecision("QUEUED", backoff_us(held.attempts))
    return _FAILED


def after_expiry(held: LeaseWithJob) -> EndDecision:
    """Decide a job's state once its lease ran out. The attempt was counted when the lease was
    granted."""
    if held.cancel_requested:
        return _CANCELED
    return _AGAIN if held.attempts < held.max_attempts else _TIMEOUT


class Said(msgspec.Struct, frozen=True, gc=False):
    """What a worker said with its release, or what is said for it."""

    status: str
    digest: str | None = None
    error: str | None = None
    result_json: str | None = None
    metrics_json: str | None = None


def end_attempt(
    held: LeaseWithJob,
    decision: EndDecision,
    said: Said,
    lease_end: Literal["RELEASED", "EXPIRED"],
    now: Instant,
    turns: Turns,
) -> JobChange:
    """The end of an attempt: the lease's, and what becomes of the job with it."""
    state, delay_us, error = decision.state, decision.delay_us, said.error
    job_id, lease_id = held.job_id, held.lease_id
    if lease_end == "RELEASED":
        lease_event = events.released(lease_id, job_id, said.status)
    else:
        lease_event = events.lease_expired(
            lease_id, job_id, held.worker_id, held.cost_units, held.ttl_sec
        )
    if delay_us is None:
        return JobChange(
            move="finish",
            seq=held.seq,
            job_id=job_id,
            old=held.job_state,
            new=state,
            events=(
                lease_event,
                events.ended(job_id, state, lease_id, held.attempts, lease_end, error),
            ),
            cost_units=held.cost_units,
            lease_id=lease_id,
            lease_token=held.lease_token,
            lease_end=lease_end,
            release_status=said.status if lease_end == "RELEASED" else None,
            release_digest=said.digest,
            started_at=held.started_at,
            error=error,
            result_json=said.result_json,
            metrics_json=said.metrics_json,
        )
    due_at = now + delay_us
    why = said.status if lease_end == "RELEASED" else "LEASE_EXPIRED"
    return JobChange(
        move="requeue",
        seq=held.seq,
        job_id=job_id,
        old=held.job_state,
        new=state,
        events=(
            lease_event,
            events.requeued(job_id, why, held.attempts, held.max_attempts, delay_us, error),
        ),
        position=SCHEDULED if delay_us else READY,
        turn=0 if delay_us else turns.front(held.urgency),
        due_at=due_at,
        next_retry_at=due_at if delay_us else None,
        cost_units=held.cost_units,
        lease_id=lease_id,
        lease_token=held.lease_token,
        lease_end=lease_end,
        release_status=said.status if lease_end == "RELEASED" else None,
        release_digest=said.digest,
        error=error,
        metrics_json=said.metrics_json,
    )


def expire_lease(held: LeaseWithJob, now: Instant, turns: Turns) -> JobChange:
    """A lease that ran out."""
    said = Said("TIMEOUT", error=f"the lease ran out after {held.ttl_sec:g} s")
    return end_attempt(held, after_expiry(held), said, "EXPIRED", now, turns)
