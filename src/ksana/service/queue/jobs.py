"""Transactions on queue jobs: submit, report, cancel, and the history of one. Plain functions over
`tx`; each is one commit."""

from collections.abc import Sequence
from typing import Final

import msgspec

from ksana.base.errors import ConflictError, NotFoundError
from ksana.base.ids import number_of
from ksana.domain.leases import ANYBODY, Proof, Refusal, judge_holder
from ksana.domain.lifecycle import JOB
from ksana.domain.queue import changes, effects, events
from ksana.domain.queue.admission import Limits
from ksana.domain.queue.classes import MOST_CLASSES, JobClass, kept_until
from ksana.domain.queue.jobs import ENDED, URGENCY, Job, NewJob
from ksana.domain.queue.turns import AT_TAIL, TurnGiver, Turns
from ksana.engine.queue.job_writer import enter_jobs, write_changes
from ksana.ports.events import Event
from ksana.ports.pages import MAX_PAGE_BYTES, PageRows
from ksana.ports.queue.tables import QueueTx, Request
from ksana.ports.store import RaceLostError

MAX_EVENTS: Final = 10_000
"""Events of one job that are told at once."""

Submitted = Job | ConflictError
"""What became of one job of several callers. A refusal is a value here: what was entered beside it
must stay."""


def submit_jobs(
    tx: QueueTx,
    jobs: Sequence[NewJob],
    classes: Sequence[JobClass],
    is_batch: bool,
    most_classes: int = MOST_CLASSES,
) -> list[Job]:
    """Enter jobs, all or none. Raise DUPLICATE_REQUEST if one was submitted before, QUEUE_FULL if
    there would be too many classes. `classes` are those that may be new."""
    has_requests = any(job.client_request_id is not None for job in jobs)
    if has_requests and not is_batch:
        _refuse_duplicate(tx, jobs)
    excess = find_excess(tx, classes, most_classes)
    for index, job in enumerate(jobs if excess else ()):
        if job.job_class.id in excess:
            raise too_many_classes(most_classes, index)
    _enter_classes(tx, classes, jobs)
    turns, now = Turns(tx.job_order), tx.now
    made = [changes.submit_job(job, now, turns) for job in jobs]
    if not enter_jobs(tx, made, once=has_requests):
        # Another transaction was faster, or the batch holds one that was there; this undoes all of
        # ours.
        _refuse_duplicate(tx, jobs)
        raise AssertionError("an insert was refused without a duplicate")
    return made


def _refuse_duplicate(tx: QueueTx, jobs: Sequence[NewJob]) -> None:
    keys = [_request_of(job) for job in jobs]
    found = tx.jobs.open_submit([key for key in keys if key is not None]).before
    for index, (job, key) in enumerate(zip(jobs, keys, strict=True)):
        before = None if key is None else found.get(key)
        if before is not None and before.job_id != job.job_id:
            raise _duplicate(before, index)


def _enter_classes(tx: QueueTx, classes: Sequence[JobClass], jobs: Sequence[NewJob]) -> None:
    if classes:
        new = {kind.id for kind in classes}
        run_ats = [job.run_at for job in jobs if job.job_class.id in new]
        tx.job_classes.enter(classes, kept_until(tx.now, run_ats))


def find_excess(tx: QueueTx, classes: Sequence[JobClass], most_classes: int) -> set[int]:
    """Those of these classes that are not there, and for which there is no room. Others may enter
    some at this moment: the bound is passed by so many at most."""
    room = most_classes - tx.job_classes.count(most_classes) if classes else 0
    if len(classes) <= room:
        return set()
    known = tx.job_classes.find_known([kind.id for kind in classes])
    return set([kind.id for kind in classes if kind.id not in known][max(0, room) :])


def too_many_classes(most_classes: int, index: int = 0) -> ConflictError:
    """There is no room for a job of a new class."""
    return ConflictError(
        f"there are jobs of {most_classes} classes, and this would be one more; jobs of a class "
        "have the same addon_id, job_type, cost_units and true constraints: "
        "what differs from job to job belongs into payload",
        code="QUEUE_FULL",
        index=index,
        current={"classes": most_classes},
    )


def submit_together(
    tx: QueueTx,
    jobs: Sequence[NewJob],
    classes: Sequence[JobClass],
    most_classes: int = MOST_CLASSES,
    *,
    looks_first: bool = True,
) -> list[Submitted]:
    """Enter jobs of several callers that wait together, each on its own: one that was submitted
    before, in the store or by a caller before it, or that is of one class too many, is refused by
    itself. Without `looks_first` the guard of the insert finds out whether one is in the store, and
    only if there is one, all are looked up."""
    keys = [_request_of(job) for job in jobs]
    requests = list({key: None for key in keys if key is not None})
    looks_first = looks_first or tx.is_again
    before, turns = _open_submit(tx, jobs, requests if looks_first else ())
    now = tx.now
    excess = find_excess(tx, classes, most_classes)
    answers: list[Submitted] = []
    entered: list[Job] = []
    for job, key in zip(jobs, keys, strict=True):
        if key is not None and key in before:
            answers.append(_duplicate(before[key], 0))
            continue
        if job.job_class.id in excess:
            answers.append(too_many_classes(most_classes))
            continue
        made = changes.submit_job(job, now, turns)
        if key is not None:
            before[key] = made
        entered.append(made)
        answers.append(made)
    if entered:
        new = {job.class_id for job in entered}
        _enter_classes(tx, [kind for kind in classes if kind.id in new], jobs)
        if not enter_jobs(tx, entered, once=bool(requests), is_checked=True):
            if not looks_first:
                raise RaceLostError
            raise AssertionError("a job that was not there could not be entered")
    return answers


def _open_submit(
    tx: QueueTx, jobs: Sequence[NewJob], requests: Sequence[Request]
) -> tuple[dict[Request, Job], TurnGiver]:
    """The jobs that were submitted before, and the turns of the others. A job that comes alone and
    goes to the tail goes there wherever that is when it is entered: nothing is asked for it."""
    if len(jobs) == 1 and jobs[0].fairness_key is None:
        return (tx.jobs.open_submit(requests).before if requests else {}), AT_TAIL
    ready = [job for job in jobs if job.run_at is None]
    lines = dict.fromkeys([(URGENCY[job.priority], job.fairness_key) for job in ready])
    found = tx.jobs.open_submit(requests, list(lines))
    return found.before, Turns(tx.job_order, found.tails, found.heads, found.key_tails)


def _request_of(job: NewJob) -> Request | None:
    request_id = job.client_request_id
    return None if request_id is None else (job.job_class.addon_id, request_id)


def is_duplicate(submitted: Submitted) -> bool:
    """Whether a job was refused because it had been submitted before."""
    return isinstance(submitted, ConflictError) and submitted.code == "DUPLICATE_REQUEST"


def _duplicate(found: Job, index: int) -> ConflictError:
    return ConflictError(
        f"{found.addon_id!r} has submitted client_request_id {found.client_request_id!r} before",
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
    job, is_live = get_locked(tx, report.job_id)
    to = report.state or job.state
    if job.state in ENDED or (job.state == "QUEUED" and report.proof == ANYBODY):
        raise JOB.refuse(job.state, to)
    refuse_other_holder(job, report.proof)
    if job.state == "RUNNING":
        return _note_running(tx, job, is_live, to, report)
    change = changes.report_state(
        job, to, report.progress, report.note, tx.now + limits.claim_ttl_us
    )
    if not is_live or not write_changes(tx, [change]):
        raise claim_ran_out(job)
    return effects.held_job(job, change, tx.now)


def _note_running(tx: QueueTx, job: Job, is_live: bool, to: str, report: Report) -> Job:
    if to != job.state:
        raise JOB.refuse(job.state, to)
    progress = job.progress if report.progress is None else report.progress
    note = job.note if report.note is None else report.note
    noted = msgspec.structs.replace(job, progress=progress, note=note, updated_at=tx.now)
    if not is_live or not tx.job_changes.note_running([noted]):
        raise lease_ran_out(job)
    return noted


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
    tx.job_changes.request_cancel(job.seq, reason)
    tx.events.append_texts([events.cancel_requested(job_id, reason, job.lease_id)])
    return msgspec.structs.replace(job, cancel_requested=1, cancel_reason=reason, updated_at=tx.now)


def read_events(tx: QueueTx, job_id: str) -> PageRows[Event]:
    """The events of a job and of its leases, by id; the newest, if they are more than an answer
    holds."""
    job = tx.jobs.find_job(job_id)
    if job is None:
        raise not_found(job_id)
    newest = tx.events.list_after(
        0,
        MAX_EVENTS + 1,
        "JOB",
        job_id,
        max_bytes=MAX_PAGE_BYTES,
        is_newest_first=True,
        with_parts=True,
    )
    is_cut = newest.is_cut or len(newest) > MAX_EVENTS
    events = {event.id: event for event in newest[:MAX_EVENTS]}
    granted = {event.entity_id for event in newest if event.type == "LEASE_GRANTED"}
    for lease in () if is_cut else tx.leases.list_of_job(job):
        # One with a number in its id began when the events of leases lay with their jobs'.
        if number_of(lease.lease_id) is None and lease.lease_id not in granted:
            of_lease = tx.events.list_after(0, MAX_EVENTS, "LEASE", lease.lease_id)
            events |= {event.id: event for event in of_lease}
    told = PageRows(events[event_id] for event_id in sorted(events))
    told.is_cut = is_cut
    return told


def get_locked(tx: QueueTx, job_id: str) -> tuple[Job, bool]:
    """The job, held, and whether its claim lasts, or its lease if it runs."""
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
