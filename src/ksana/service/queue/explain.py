"""Why a queue job has not run yet, runs, or ended as it did: gathers in one read what is recorded
and what is so now, and has the domain put it into words."""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from ksana.domain.explain import Reason
from ksana.domain.queue.admission import Denial, Limits, find_denial, request_of
from ksana.domain.queue.classes import Wants, class_of, needs_of, rivals_of
from ksana.domain.queue.explain import COUNT_TO, JobFacts, explain_job, position_of
from ksana.domain.queue.jobs import Job, JobPosition, Lease
from ksana.ports.events import Event
from ksana.ports.queue.tables import QueueTx
from ksana.ports.store import Store
from ksana.service.queue.class_cache import KNOWN_FOR, JobClassCache
from ksana.service.queue.jobs import not_found, read_events
from ksana.service.queue.place import count_pending_rivals

HOLDERS: Final = 20
"""Holders that are named at most."""


class JobExplanation(msgspec.Struct, frozen=True):
    """Everything known about why a job is where it is."""

    job: Job
    reasons: list[Reason]
    events: list[Event]
    position: int | None
    holders: list[Lease]
    facts: dict[str, Any]


class QueueExplainer:
    """Answers why."""

    def __init__(self, store: Store, limits: Limits, classes: JobClassCache | None = None) -> None:
        self._store = store
        self._limits = limits
        self._classes = classes or JobClassCache()

    async def explain(self, job_id: str) -> JobExplanation:
        """Explain one job. Which workers there are is known from the latest claims on this
        instance."""
        return await self._store.read(read_explanation, job_id, self._limits, self._classes)


def read_explanation(
    tx: QueueTx, job_id: str, limits: Limits, classes: JobClassCache
) -> JobExplanation:
    """Gather the facts of a job and say what they mean."""
    job: Job | None = tx.jobs.find_job(job_id)
    if job is None:
        raise not_found(job_id)
    now, capacity = tx.now, tx.capacity.read(limits.total)
    filters = classes.filters_since(now - KNOWN_FOR)
    events = read_events(tx, job_id)
    denial = None
    if not job.is_ended and job.state != "RUNNING":
        share = limits.share_of(job.addon_id)
        used = 0 if share is None else tx.capacity.sum_of_addon(job.addon_id)
        denial = find_denial(capacity, request_of(job), now, share, used)
    facts = JobFacts(
        job=job,
        now=now,
        needs=_needs_of(job),
        ahead=_count_ahead(tx, job, filters, denial, limits),
        lease=tx.leases.find_lease(job.lease_id) if job.lease_id is not None else None,
        denial=denial,
        event_ids={event.type: event.id for event in events},
    )
    return JobExplanation(
        job=job,
        reasons=explain_job(facts),
        events=events,
        position=position_of(facts),
        holders=[] if job.is_ended else tx.leases.list_active(HOLDERS),
        facts={
            "capacity": {
                "total": capacity.total,
                "used": capacity.used,
                "reserved": capacity.reserved(now),
            },
            "attempts": job.attempts,
            "max_attempts": job.max_attempts,
        },
    )


def _needs_of(job: Job) -> tuple[str, ...]:
    return needs_of(msgspec.json.decode(job.constraints_json))


def _count_ahead(
    tx: QueueTx, job: Job, filters: Sequence[Wants], denial: Denial | None, limits: Limits
) -> int | None:
    if job.position == JobPosition.PENDING:
        return count_pending_rivals(tx, job, denial, limits)
    is_due = job.position == JobPosition.SCHEDULED and job.due_at <= tx.now
    if job.position != JobPosition.READY and not is_due:
        return None
    kind = class_of(job.addon_id, job.job_type, job.cost_units, _needs_of(job))
    rivals = rivals_of(kind, tx.job_classes.list_classes(), filters)
    return tx.job_order.count_ready_ahead(job, [one.id for one in rivals], COUNT_TO)
