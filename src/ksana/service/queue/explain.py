"""Why a queue job has not run yet, runs, or ended as it did: reason codes and words from recorded
events and present facts."""

from typing import Any, Final

import msgspec

from ksana.base.durations import format_duration
from ksana.base.instant import MILLISECOND, Instant, format_instant
from ksana.domain.queue.admission import Ask, find_denial
from ksana.domain.queue.jobs import Job, Lane, Lease
from ksana.ports.queue.tables import QueueTx
from ksana.ports.store import Event, Store
from ksana.service.queue.jobs import Limits, not_found
from ksana.service.queue.service import read_events

COUNT_TO: Final = 10_000
"""Jobs ahead are counted up to here: an answer must not cost more the longer the line is."""

HOLDERS: Final = 20


class Reason(msgspec.Struct, frozen=True):
    """One reason: a stable code and a sentence."""

    code: str
    message: str


class Explanation(msgspec.Struct, frozen=True):
    """Everything known about why a job is where it is."""

    job: Job
    reasons: list[Reason]
    events: list[Event]
    position: int | None
    holders: list[Lease]
    facts: dict[str, Any]


class QueueExplainer:
    """Answers why."""

    def __init__(self, store: Store, limits: Limits) -> None:
        self._store = store
        self._limits = limits

    async def explain(self, job_id: str) -> Explanation:
        """Explain one job."""
        return await self._store.read(explain_job, job_id, self._limits)


def explain_job(tx: QueueTx, job_id: str, limits: Limits) -> Explanation:
    """Gather the facts and say what they mean."""
    job: Job | None = tx.queue.find_job(job_id)
    if job is None:
        raise not_found(job_id)
    now: Instant = tx.now
    room = tx.leases.room(limits.total)
    holders = [] if job.is_ended else tx.leases.list_active(HOLDERS)
    facts: dict[str, Any] = {
        "capacity": {"total": room.total, "used": room.used, "reserved": room.reserved(now)},
        "attempts": job.attempts,
        "max_attempts": job.max_attempts,
    }
    reasons: list[Reason] = []
    position: int | None = None
    if job.state == "QUEUED":
        position = _explain_queued(tx, job, now, reasons)
    elif job.state == "RUNNING":
        _explain_running(tx, job, now, reasons)
    elif job.is_ended:
        _explain_ended(job, reasons)
    else:
        position = _explain_claimed(tx, job, now, reasons)
    if not job.is_ended and job.state != "RUNNING":
        share = limits.share_of(job.addon_id)
        used = 0 if share is None else tx.leases.sum_of_addon(job.addon_id)
        ask = Ask(job.job_id, job.addon_id, job.cost_units, job.urgency)
        denial = find_denial(room, ask, now, share, used)
        if denial is not None:
            reasons.append(Reason(denial.code, denial.reason))
    return Explanation(job, reasons, read_events(tx, job_id), position, holders, facts)


def _explain_queued(tx: QueueTx, job: Job, now: Instant, reasons: list[Reason]) -> int | None:
    if job.lane == Lane.SCHEDULED and job.due_at > now:
        at, rest = format_instant(job.due_at), _in_words(job.due_at - now)
        if job.next_retry_at is not None:
            failed = f"attempt {job.attempts} of {job.max_attempts} failed ({job.error_text or 'no reason given'})"
            reasons.append(
                Reason("RETRY_BACKOFF", f"{failed}; it is tried again at {at}, in {rest}")
            )
        else:
            reasons.append(Reason("NOT_DUE", f"it was submitted to run at {at}, in {rest}"))
        return None
    ahead = tx.queue.count_ready_ahead(job, COUNT_TO)
    if ahead:
        many = (
            f"{COUNT_TO} jobs or more are"
            if ahead >= COUNT_TO
            else f"{ahead} {'job is' if ahead == 1 else 'jobs are'}"
        )
        reasons.append(Reason("IN_LINE", f"{many} before it by priority, turn and age"))
    else:
        reasons.append(
            Reason(
                "NO_CLAIM", "it is the next in line, and no worker that takes it has claimed it yet"
            )
        )
    needs = [name for name, value in msgspec.json.decode(job.constraints_json).items() if value]
    if needs:
        reasons.append(
            Reason("NEEDS", f"only a worker that can meet {', '.join(sorted(needs))} may take it")
        )
    return int(ahead) + 1


def _explain_claimed(tx: QueueTx, job: Job, now: Instant, reasons: list[Reason]) -> int | None:
    rest = (job.claim_expires_at or now) - now
    lasts = f"for another {_in_words(rest)}" if rest > 0 else "no longer: the claim has run out"
    reasons.append(
        Reason("CLAIMED", f"{job.claimed_by!r} holds the claim {lasts} and has no lease yet")
    )
    if job.lane != Lane.PENDING:
        return None
    position = int(tx.queue.count_pending_ahead(job, job.pending_at or now)) + 1
    reasons.append(
        Reason(
            "LEASE_DENIED",
            f"its request for a lease was refused; it is number {position} in line for capacity",
        )
    )
    return position


def _explain_running(tx: QueueTx, job: Job, now: Instant, reasons: list[Reason]) -> None:
    lease: Lease | None = tx.leases.find_lease(job.lease_id or "")
    if lease is not None:
        rest = lease.expires_at - now
        lasts = (
            f"the lease lasts another {_in_words(rest)}"
            if rest > 0
            else "the lease has run out and is being swept"
        )
        reasons.append(
            Reason("RUNNING", f"{job.claimed_by!r} runs it (attempt {job.attempts}); {lasts}")
        )
    if job.cancel_requested:
        why = f": {job.cancel_reason}" if job.cancel_reason else ""
        reasons.append(
            Reason("CANCEL_REQUESTED", f"it was asked to stop{why}; it ends when its lease does")
        )


def _explain_ended(job: Job, reasons: list[Reason]) -> None:
    tries = f"{job.attempts} of {job.max_attempts} attempts"
    if job.state == "DONE":
        reasons.append(Reason("SUCCEEDED", f"its worker released it as SUCCEEDED after {tries}"))
    elif job.state == "FAILED":
        reasons.append(
            Reason(
                "ATTEMPTS_USED",
                f"it failed ({job.error_text or 'no reason given'}) and has used {tries}",
            )
        )
    elif job.state == "TIMEOUT":
        reasons.append(
            Reason(
                "TIMED_OUT",
                f"{job.error_text or 'its worker released it as TIMEOUT'}; it has used {tries}",
            )
        )
    else:
        why = f": {job.cancel_reason}" if job.cancel_reason else ""
        reasons.append(Reason("CANCELED", f"it was cancelled{why}"))


def _in_words(span: int) -> str:
    return format_duration(max(span - span % MILLISECOND, MILLISECOND))
