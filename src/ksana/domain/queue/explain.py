"""Why a queue job has not run yet, runs, or ended as it did. Pure: facts in, reasons out, each with
the facts it rests on and the event it was recorded in."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from ksana.base.durations import format_duration
from ksana.base.instant import MILLISECOND, Instant, format_instant
from ksana.domain.explain import Reason
from ksana.domain.queue.admission import Denial
from ksana.domain.queue.jobs import Job, JobPosition, Lease

COUNT_TO: Final = 10_000
"""Jobs ahead are counted up to here: an answer must not cost more the longer the line is."""


class JobFacts(msgspec.Struct, frozen=True):
    """What is known of a job and around it."""

    job: Job
    now: Instant
    needs: Sequence[str] = ()
    ahead: int | None = None
    """Of a ready job: the ready jobs before it that compete with it for the same workers. Of one
    that waits for capacity: those that wait before it."""
    lease: Lease | None = None
    denial: Denial | None = None
    """Why it would get no lease now."""
    event_ids: Mapping[str, int] = {}
    """The latest event of each type."""


def explain_job(facts: JobFacts) -> list[Reason]:
    """Say why the job is where it is, the first reason first."""
    job = facts.job
    if job.state == "QUEUED":
        reasons = _explain_queued(facts)
    elif job.state == "RUNNING":
        reasons = _explain_running(facts)
    elif job.is_ended:
        reasons = [_explain_ended(facts)]
    else:
        reasons = _explain_claimed(facts)
    if facts.denial is not None:
        reasons.append(
            Reason(facts.denial.code, facts.denial.reason, {"requested": job.cost_units})
        )
    return reasons


def position_of(facts: JobFacts) -> int | None:
    """The job's number in the line it stands in, if it stands in one."""
    return None if facts.ahead is None else facts.ahead + 1


def _reason(facts: JobFacts, code: str, words: str, event: str | None, **data: Any) -> Reason:
    event_id = None if event is None else facts.event_ids.get(event)
    return Reason(code, words, data, event_id)


def _explain_queued(facts: JobFacts) -> list[Reason]:
    job, now = facts.job, facts.now
    if facts.ahead is None:
        at, left = format_instant(job.due_at), _in_words(job.due_at - now)
        if job.next_retry_at is None:
            words = f"it was submitted to run at {at}, in {left}"
            return [_reason(facts, "NOT_DUE", words, "JOB_SUBMITTED", at=at)]
        failed = (
            f"attempt {job.attempts} of {job.max_attempts} failed "
            f"({job.error_text or 'no reason given'})"
        )
        words = f"{failed}; it is tried again at {at}, in {left}"
        return [
            _reason(facts, "RETRY_BACKOFF", words, "JOB_REQUEUED", at=at, attempts=job.attempts)
        ]
    if facts.ahead:
        many = (
            f"{COUNT_TO} jobs or more are"
            if facts.ahead >= COUNT_TO
            else f"{facts.ahead} {'job is' if facts.ahead == 1 else 'jobs are'}"
        )
        words = f"{many} before it for the same workers, by priority, turn and age"
        reasons = [_reason(facts, "IN_LINE", words, None, ahead=facts.ahead)]
    else:
        words = "it is the next in line, and no worker that takes it has claimed it yet"
        reasons = [_reason(facts, "NO_CLAIM", words, None, ahead=0)]
    if facts.needs:
        words = f"only a worker that can meet {', '.join(facts.needs)} may take it"
        reasons.append(_reason(facts, "NEEDS", words, None, needs=list(facts.needs)))
    return reasons


def _explain_claimed(facts: JobFacts) -> list[Reason]:
    job = facts.job
    left = (job.claim_expires_at or facts.now) - facts.now
    lasts = f"for another {_in_words(left)}" if left > 0 else "no longer: the claim has run out"
    words = f"{job.claimed_by!r} holds the claim {lasts} and has no lease yet"
    reasons = [_reason(facts, "CLAIMED", words, "JOB_CLAIMED", worker_id=job.claimed_by)]
    position = position_of(facts)
    if job.position == JobPosition.PENDING and position is not None:
        words = f"its request for a lease was refused; it is number {position} in line for capacity"
        reasons.append(_reason(facts, "LEASE_DENIED", words, "LEASE_DENIED", position=position))
    return reasons


def _explain_running(facts: JobFacts) -> list[Reason]:
    job, lease = facts.job, facts.lease
    reasons: list[Reason] = []
    if lease is not None:
        left = lease.expires_at - facts.now
        lasts = (
            f"the lease lasts another {_in_words(left)}"
            if left > 0
            else "the lease has run out and is being swept"
        )
        words = f"{job.claimed_by!r} runs it (attempt {job.attempts}); {lasts}"
        data = {
            "worker_id": job.claimed_by,
            "lease_id": lease.lease_id,
            "attempts": job.attempts,
            "expires_at": format_instant(lease.expires_at),
        }
        reasons.append(_reason(facts, "RUNNING", words, "JOB_RUNNING", **data))
    if job.cancel_requested:
        why = f": {job.cancel_reason}" if job.cancel_reason else ""
        words = f"it was asked to stop{why}; it ends when its lease does"
        data = {"reason": job.cancel_reason}
        reasons.append(_reason(facts, "CANCEL_REQUESTED", words, "JOB_CANCEL_REQUESTED", **data))
    return reasons


def _explain_ended(facts: JobFacts) -> Reason:
    job = facts.job
    tries = f"{job.attempts} of {job.max_attempts} attempts"
    data = {"attempts": job.attempts, "max_attempts": job.max_attempts}
    error = job.error_text
    if job.state == "DONE":
        words = f"its worker released it as SUCCEEDED after {tries}"
        return _reason(facts, "SUCCEEDED", words, "JOB_DONE", **data)
    if job.state == "FAILED":
        given = error or "no reason given"
        if job.attempts < job.max_attempts:
            words = f"it failed ({given}), and its worker asked for no other attempt after {tries}"
            return _reason(facts, "NOT_RETRYABLE", words, "JOB_FAILED", error=error, **data)
        words = f"it failed ({given}) and has used {tries}"
        return _reason(facts, "ATTEMPTS_USED", words, "JOB_FAILED", error=error, **data)
    if job.state == "TIMEOUT":
        words = f"{error or 'its worker released it as TIMEOUT'}; it has used {tries}"
        return _reason(facts, "TIMED_OUT", words, "JOB_TIMEOUT", error=error, **data)
    why = f": {job.cancel_reason}" if job.cancel_reason else ""
    words = f"it was cancelled{why}"
    return _reason(facts, "CANCELED", words, "JOB_CANCELED", reason=job.cancel_reason)


def _in_words(span: int) -> str:
    return format_duration(max(span - span % MILLISECOND, MILLISECOND))
