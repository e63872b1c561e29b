"""Queue jobs that failed for good, as dead letters: a replay is a new job like the old one, which
stays as it ended. The new one has no `client_request_id`: that is the old one's."""

from collections.abc import Sequence

import msgspec

from ksana.base.errors import ConflictError, KsanaError, NotFoundError
from ksana.base.ids import new_ordered_uuids
from ksana.domain.dead_letters import LetterRecord
from ksana.domain.queue.admission import Limits
from ksana.domain.queue.classes import JobClass, class_of, needs_of
from ksana.domain.queue.jobs import Job, NewJob
from ksana.engine.queue.job_writer import SURFACE
from ksana.ports.queue.tables import QueueTx
from ksana.service.core.dead_letters import LetterSection, Operator, ReplayedLetter
from ksana.service.queue.jobs import find_excess, submit_jobs, too_many_classes
from ksana.service.queue.service import QueueService


def make_section(service: QueueService) -> LetterSection:
    """The dead letters of the queue."""
    limits = service.limits

    def replay(
        tx: QueueTx, letters: Sequence[LetterRecord], who: Operator
    ) -> list[ReplayedLetter | KsanaError]:
        return replay_jobs(tx, letters, who, limits)

    def notify(classes: Sequence[JobClass]) -> None:
        service.poll.notify(set(classes))

    return LetterSection(
        surface=SURFACE,
        entity_type="JOB",
        replay=replay,
        notify=notify,
        dismissed="JOB_DISMISSED",
    )


def replay_jobs(
    tx: QueueTx, letters: Sequence[LetterRecord], who: Operator, limits: Limits
) -> list[ReplayedLetter | KsanaError]:
    """Submit each again."""
    found = tx.jobs.lock_jobs([letter.entity_id for letter in letters])
    ids, capacity = new_ordered_uuids(tx.now, len(letters)), limits.total
    kinds = {job.class_id: repeat_job(job, "").job_class for job in found.values()}
    excess = find_excess(tx, list(kinds.values()), limits.classes)
    outcomes: list[ReplayedLetter | KsanaError] = []
    again: list[NewJob] = []
    for letter, job_id in zip(letters, ids, strict=True):
        job = found.get(letter.entity_id)
        if job is None:
            outcomes.append(NotFoundError(f"there is no job {letter.entity_id}"))
        elif job.cost_units > capacity:
            outcomes.append(
                ConflictError(
                    f"the job costs {job.cost_units} units, and the capacity is {capacity} now",
                    current={"cost_units": job.cost_units, "capacity": capacity},
                )
            )
        elif job.class_id in excess:
            outcomes.append(too_many_classes(limits.classes))
        else:
            new = repeat_job(job, job_id)
            again.append(new)
            outcomes.append(ReplayedLetter(job_id, new.job_class))
            _record(tx, job, job_id, who)
    if again:
        classes = {job.job_class.id: job.job_class for job in again}
        submit_jobs(tx, again, list(classes.values()), True, limits.classes)
    return outcomes


def repeat_job(job: Job, job_id: str) -> NewJob:
    """The same job again, due at once."""
    needs = needs_of(msgspec.json.decode(job.constraints_json))
    return NewJob(
        job_id=job_id,
        priority=job.priority,
        job_class=class_of(job.addon_id, job.job_type, job.cost_units, needs),
        constraints_json=job.constraints_json,
        payload_json=job.payload_json,
        client_request_id=None,
        max_attempts=job.max_attempts,
        run_at=None,
        fairness_key=job.fairness_key,
    )


def _record(tx: QueueTx, job: Job, new_id: str, who: Operator) -> None:
    tx.events.append("JOB", job.job_id, "JOB_REPLAYED", {"as": new_id, "actor": who.actor})
    tx.events.append("JOB", new_id, "JOB_REPLAYS", {"of": job.job_id, "actor": who.actor})
