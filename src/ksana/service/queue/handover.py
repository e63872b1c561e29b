"""The queue as runs use it: `ports.handover.QueueJobs`. Everything here happens in the caller's
transaction."""

from collections.abc import Callable, Sequence

import msgspec

from ksana.domain.handover import HandedEnd, HandedJob
from ksana.domain.queue.classes import class_of, needs_of
from ksana.domain.queue.jobs import Job, NewJob
from ksana.ports.handover import QueueOrder
from ksana.ports.queue.tables import QueueTx
from ksana.service.queue import jobs as job_transactions
from ksana.service.queue.service import QueueService


class QueueHandover:
    """Submits, finds and cancels jobs for runs."""

    def __init__(self, service: QueueService) -> None:
        self._service = service

    def find_fault(self, addon_id: str, cost_units: int) -> str | None:
        """Why such a job could never run, if so."""
        limits = self._service.limits
        if cost_units > limits.total:
            return f"{cost_units} units are more than the capacity; allowed: 1 to {limits.total}"
        return None

    def submit(self, tx: QueueTx, orders: Sequence[QueueOrder]) -> None:
        """Enter jobs. Raise ConflictError if a request id is taken, or for one class too many."""
        jobs = [_new_job(order) for order in orders]
        classes, most_classes = self._service.new_classes(jobs), self._service.limits.classes
        job_transactions.submit_jobs(tx, jobs, classes, True, most_classes)

    def find_conflict(
        self, tx: QueueTx, order: QueueOrder, beside: Sequence[QueueOrder]
    ) -> str | None:
        """Why the order cannot be submitted together with others, if so."""
        if tx.jobs.open_submit([(order.addon_id, order.request_id)]).before:
            return f"{order.addon_id!r} has a job with the client_request_id {order.request_id!r}"
        kind, most_classes = _new_job(order).job_class, self._service.limits.classes
        classes = {one.id: one for one in [*(_new_job(each).job_class for each in beside), kind]}
        if kind.id in job_transactions.find_excess(tx, list(classes.values()), most_classes):
            return job_transactions.too_many_classes(most_classes).message
        return None

    def submitted(self, orders: Sequence[QueueOrder]) -> None:
        """These are committed: wake who waits for jobs."""
        self._service.notify_submitted([_new_job(order) for order in orders])

    def find_jobs(self, tx: QueueTx, job_ids: Sequence[str]) -> dict[str, HandedJob]:
        """Jobs by id."""
        return {job_id: _handed(job) for job_id, job in tx.jobs.find_jobs(job_ids).items()}

    def cancel(self, tx: QueueTx, job_id: str, reason: str) -> HandedJob | None:
        """End a job, or ask its worker to."""
        held = tx.jobs.lock_job(job_id)
        if held is None:
            return None
        if not held[0].is_ended:
            job_transactions.cancel_job(tx, job_id, reason)
        return _handed(held[0])

    def subscribe(self, hear: Callable[[], None]) -> None:
        """Be told when a job that a run waits for may have ended."""
        self._service.on_handed_over = hear


def _new_job(order: QueueOrder) -> NewJob:
    constraints = msgspec.json.decode(order.constraints_json, type=dict[str, object])
    return NewJob(
        job_id=order.job_id,
        priority=order.priority,
        job_class=class_of(order.addon_id, order.job_type, order.cost_units, needs_of(constraints)),
        constraints_json=order.constraints_json,
        payload_json=order.payload_json,
        client_request_id=order.request_id,
        max_attempts=order.max_attempts,
        run_at=None,
        fairness_key=order.fairness_key,
    )


def _handed(job: Job) -> HandedJob:
    return HandedJob(
        job_id=job.job_id,
        request_id=job.client_request_id or "",
        state=job.state,
        payload=job.payload_json,
        created_at=job.created_at,
        ended_at=job.finished_at,
        end=_end_of(job),
        has_begun=job.attempts > 0,
    )


def _end_of(job: Job) -> HandedEnd | None:
    if not job.is_ended:
        return None
    if job.state == "DONE":
        return HandedEnd("done", result=job.result_json)
    if job.state == "CANCELED":
        return HandedEnd("canceled", job.cancel_reason, job.result_json)
    if job.state == "TIMEOUT":
        return HandedEnd("timeout", job.error_text, job.result_json)
    # Failed with attempts left: its worker said that another one would not help.
    gave_up = job.attempts < job.max_attempts
    return HandedEnd("gave_up" if gave_up else "failed", job.error_text, job.result_json)
