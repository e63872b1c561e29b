"""How an attempt of a queue job ends: what becomes of the job when its lease is released or runs
out, or its claim before it has one. Pure."""

from typing import Final

import msgspec

from ksana.base.instant import SECOND, Instant, Micros
from ksana.domain.leases import ANYBODY, Proof
from ksana.domain.queue import events
from ksana.domain.queue.changes import READY, SCHEDULED, JobChange, LeaseEnd
from ksana.domain.queue.jobs import ExpiredClaim, LeaseWithJob, release_digest
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

RETURNED: Final = "RETURNED"
"""How a worker releases a job that it has not begun: it is queued again, and the attempt was
none."""


def backoff_us(attempts: int) -> Micros:
    """How long a failed job waits before its next attempt."""
    return delay_after(BACKOFF, attempts)


def after_release(held: LeaseWithJob, status: str, may_retry: bool = True) -> EndDecision:
    """Decide a job's state once its worker released the lease. A cancelled job is never tried
    again, nor one whose worker says that another attempt would not help."""
    if held.cancel_requested or status == "CANCELED":
        return _CANCELED
    if status == RETURNED:
        return _AGAIN
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


class Release(msgspec.Struct, frozen=True, gc=False):
    """A worker's last word on its attempt, or what is said for a worker that said nothing."""

    lease_id: str
    status: str
    job_id: str | None = None
    proof: Proof = ANYBODY
    result_json: str | None = None
    error: str | None = None
    metrics_json: str | None = None
    may_retry: bool = True
    """Whether another attempt may help."""

    def digest(self) -> str:
        """What it says, in a few characters."""
        return release_digest(
            self.status,
            self.result_json or "",
            self.error,
            self.metrics_json or "",
            self.may_retry,
        )


def end_attempt(
    held: LeaseWithJob,
    decision: EndDecision,
    said: Release,
    digest: str | None,
    now: Instant,
    turns: Turns,
) -> JobChange:
    """The end of an attempt: the lease's, and what becomes of the job with it. `digest` is None for
    a lease that ran out."""
    state, delay_us, error = decision.state, decision.delay_us, said.error
    job_id, lease_id = held.job_id, held.lease_id
    lease_end: LeaseEnd = "RELEASED"
    release_status: str | None = said.status
    if digest is None:
        lease_end, release_status = "EXPIRED", None
        of_lease = events.lease_expired(
            lease_id, job_id, held.worker_id, held.cost_units, held.ttl_sec
        )
    else:
        of_lease = events.released(lease_id, job_id, said.status)
    if delay_us is None:
        return JobChange(  # by place, see there
            "finish",
            held.seq,
            job_id,
            held.job_state,
            state,
            events.ended(of_lease, job_id, state, lease_id, held.attempts, lease_end, error),
            None,
            held.cost_units,
            lease_id,
            held.lease_token,
            lease_end,
            release_status,
            digest,
            held.granted_at,
            error,
            said.result_json,
            said.metrics_json,
        )
    due_at = now + delay_us
    attempts = held.attempts - 1 if said.status == RETURNED else held.attempts
    why = "LEASE_EXPIRED" if digest is None else said.status
    return JobChange(
        move="requeue",
        seq=held.seq,
        job_id=job_id,
        old=held.job_state,
        new=state,
        events=events.requeued(
            of_lease, lease_end, why, attempts, held.max_attempts, delay_us, error
        ),
        position=SCHEDULED if delay_us else READY,
        cost_units=held.cost_units,
        lease_id=lease_id,
        lease_token=held.lease_token,
        lease_end=lease_end,
        release_status=release_status,
        release_digest=digest,
        started_at=held.granted_at,
        addon_id=held.addon_id,
        worker_id=held.worker_id,
        ttl_sec=held.ttl_sec,
        heartbeat_at=held.last_heartbeat_at,
        until=held.expires_at,
        error=error,
        metrics_json=said.metrics_json,
        due_at=due_at,
        attempts=attempts,
        turn=0 if delay_us else turns.front(held.urgency),
        next_retry_at=due_at if delay_us else None,
    )


def expire_lease(held: LeaseWithJob, now: Instant, turns: Turns) -> JobChange:
    """A lease that ran out."""
    said = Release(held.lease_id, "TIMEOUT", error=f"the lease ran out after {held.ttl_sec:g} s")
    return end_attempt(held, after_expiry(held), said, None, now, turns)


def take_back(claim: ExpiredClaim, turns: Turns) -> JobChange:
    """A claim that ran out: the job is queued again, at the front of its priority."""
    return JobChange(
        move="take_back",
        seq=claim.seq,
        job_id=claim.job_id,
        old=claim.state,
        new="QUEUED",
        events=events.claim_expired(claim.claimed_by, claim.state, claim.attempts),
        position=READY,
        turn=turns.front(claim.urgency),
        claim_token=claim.claim_token,
    )
