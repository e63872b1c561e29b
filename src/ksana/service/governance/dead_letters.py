"""Governance jobs that were given up, as dead letters: a replay queues the same job again."""

from collections.abc import Sequence

from ksana.base.errors import KsanaError
from ksana.domain.dead_letters import LetterRecord
from ksana.domain.governance.records import Who
from ksana.domain.lifecycle import GOV_JOB
from ksana.engine.governance.ending import not_found
from ksana.engine.governance.writer import SURFACE
from ksana.ports.governance.tables import GovernanceTx
from ksana.service.core.dead_letters import LetterSection, Operator, ReplayedLetter
from ksana.service.governance.service import GovernanceService
from ksana.service.governance.transactions import requeue_dead


def make_section(service: GovernanceService) -> LetterSection:
    """The dead letters of governance."""

    def notify(_: Sequence[object]) -> None:
        service.waiting.notify_all()

    return LetterSection(
        surface=SURFACE,
        entity_type="GOV_JOB",
        replay=replay_jobs,
        notify=notify,
        dismissed="GOV_JOB_DISMISSED",
    )


def replay_jobs(
    tx: GovernanceTx, letters: Sequence[LetterRecord], who: Operator
) -> list[ReplayedLetter | KsanaError]:
    """Queue each again."""
    found = tx.governance.lock([letter.entity_id for letter in letters])
    dead = [job for job in found.values() if job.status == "dead_letter"]
    actor = Who(actor=who.actor, correlation_id=who.request_id, decision_trace_id=who.trace_id)
    queued = {job.job_id for job in requeue_dead(tx, dead, actor)}
    outcomes: list[ReplayedLetter | KsanaError] = []
    for letter in letters:
        job = found.get(letter.entity_id)
        if letter.entity_id in queued:
            outcomes.append(ReplayedLetter(letter.entity_id))
        elif job is None:
            outcomes.append(not_found(letter.entity_id))
        else:
            outcomes.append(GOV_JOB.refuse(job.status, "queued"))
    return outcomes
