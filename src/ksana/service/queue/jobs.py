"""Transactions on queue jobs: submit, report, cancel. Plain functions over `tx`; each is one
commit."""

from collections.abc import Sequence

import msgspec

from ksana.base.errors import ConflictError, NotFoundError
from ksana.domain.leases import ANYBODY, Proof, Refusal, judge_holder
from ksana.domain.lifecycle import JOB
from ksana.domain.queue import changes, effects, events
from ksana.domain.queue.admission import Limits
from ksana.domain.queue.classes import JobClass
from ksana.domain.queue.jobs import ENDED, Job, NewJob
from ksana.domain.queue.turns import Turns
from ksana.engine.queue.job_writer import enter_jobs, write_changes
from ksana.ports.queue.tables import QueueTx


def submit_jobs(
    tx: QueueTx, jobs: Sequence[NewJob], classes: Sequence[JobClass], is_batch: bool
) -> list[Job]:
    """Enter jobs, all or none. Raise DUPLICATE_REQUEST if one was submitted before. `classes` are
    those that may be new."""
    has_requests = any(job.client_request_id is not None for job in jobs)
    if has_requests and not is_batch:
        _refuse_duplicate(tx, jobs)
    tx.job_classes.enter(classes)
    turns, now = Turns(tx.job_order), tx.now
    made = [changes.submit_job(job, now, turns) for job in jobs]
    if not enter_jobs(tx, made, once=has_requests):
        # Another transaction was faster, or the batch holds one that was there; this undoes all of
        # ours.
        _refuse_duplicate(tx, jobs)
        raise AssertionError("an insert was refused without a duplicate")
    return made


def _refuse_duplicate(tx: QueueTx, jobs: Sequence[NewJob]) -> None:
    for index, job in enumerate(jobs):
        if job.client_request_id is not None:
            addon_id = job.job_class.addon_id
            found = tx.jobs.find_job_by_request(addon_id, job.client_request_id)
            if found is not None and found.job_id != job.job_id:
                raise ConflictError(
                    f"{addon_id!r} has submitted client_request_id "
                    f"{job.client_request_id!r} before",
                    code="DUPLICATE_REQUEST",
                    job=found,
                    index=index,
                    current={"state": found.state},
                )


class Report(msgspec.Struct, frozen=True):
    """A worker's word on its job. `state` None: the one it has."""

    job_id: str
    state: str | None = None
    progress: float | None = None
    note: str | None = None
    proof: Proof = ANYBODY


def report_status(tx: QueueTx, report: Report, limits: Limits) -> Job:
    """A worker's word on its job: the next state, or a note and its progress. Extends the claim."""
    job, is_claim_live = get_locked(tx, report.job_id)
    to = report.state or job.state
    if job.state in ENDED or (job.state == "QUEUED" and report.proof == ANYBODY):
        raise JOB.refuse(job.state, to)
    refuse_other_holder(job, report.proof)
    if job.state == "RUNNING":
        return _note_running(tx, job, to, report)
    change = changes.report_state(
        job, to, report.progress, report.note, tx.now + limits.claim_ttl_us
    )
    if not is_claim_live or not write_changes(tx, [change]):
        raise claim_ran_out(job)
    return effects.held_job(job, change, tx.now)


def _note_running(tx: QueueTx, job: Job, to: str, report: Report) -> Job:
    if to != job.state:
        raise JOB.refuse(job.state, to)
    progress = job.progress if report.progress is None else report.progress
    note = job.note if report.note is None else report.note
    lease_id = job.lease_id or ""
    found = tx.leases.lock_lease(lease_id)
    is_live = found is not None and found[1]
    if not is_live or not tx.job_changes.note_running(job.job_id, lease_id, progress, note):
        raise lease_ran_out(job)
    return msgspec.structs.replace(job, progress=progress, note=note, updated_at=tx.now)


def cancel_job(tx: QueueTx, job_id: str, reason: str | None) -> Job:
    """Cancel at once what does not run; ask the worker of what does."""
    job, _ = get_locked(tx, job_id)
    if job.state != "RUNNING":
        change = changes.cancel_job(job, reason)
        if not write_changes(tx, [change]):
            raise AssertionError("a job that was held is no longer as it was found")
        return effects.canceled_job(job, change, tx.now)
    if job.cancel_requested:
        return job
    tx.job_changes.request_cancel(job_id, reason)
    tx.events.append_texts([events.cancel_requested(job_id, reason, job.lease_id)])
    return msgspec.structs.replace(job, cancel_requested=1, cancel_reason=reason, updated_at=tx.now)


def get_locked(tx: QueueTx, job_id: str) -> tuple[Job, bool]:
    """The job, held, and whether its claim lasts."""
    found: tuple[Job, bool] | None = tx.jobs.lock_job(job_id)
    if found is None:
        raise not_found(job_id)
    return found


def not_found(job_id: str) -> NotFoundError:
    """No such job."""
    return NotFoundError(f"there is no job {job_id}")


_REFUSALS: dict[Refusal, str] = {
    "WRONG_TOKEN": "the token is not that of who holds this {thing} now",
    "OTHER_WORKER": "another worker holds this {thing}",
    "NO_PROOF": "this {thing} was claimed more than once: "
    "send the worker_id or the token it was answered with",
}


def describe_refusal(refusal: Refusal, thing: str) -> str:
    """Why a caller is not believed, in words."""
    return _REFUSALS[refusal].format(thing=thing)


def refuse_other_holder(job: Job, proof: Proof) -> None:
    """Raise CLAIM_LOST unless the caller holds the job."""
    refusal = judge_holder(proof, job.claim_token, job.claimed_by, job.claims)
    if refusal is not None:
        raise ConflictError(
            describe_refusal(refusal, "job"),
            code="CLAIM_LOST",
            current={"state": job.state, "claimed_by": job.claimed_by},
        )


def claim_ran_out(job: Job) -> ConflictError:
    """Its claim is over."""
    return ConflictError(
        "the claim on this job has run out", code="CLAIM_LOST", current={"state": job.state}
    )


def lease_ran_out(job: Job) -> ConflictError:
    """Its lease is over."""
    return ConflictError(
        "the lease of this job has run out", code="LEASE_LOST", current={"state": job.state}
    )
