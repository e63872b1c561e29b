"""Why a governance job waits or ended, and what comes next for an object: the facts, gathered."""

from typing import Final

import msgspec

from ksana.domain.explain import Fact
from ksana.domain.governance.explain import ExplainReason, explain_job, explain_object, summarize
from ksana.domain.governance.records import Rules, object_key
from ksana.engine.governance.ending import not_found
from ksana.ports.events import Event
from ksana.ports.governance.tables import GovernanceJobFilter, GovernanceTx
from ksana.ports.store import Store

JOBS: Final = 10
"""The latest jobs of an object that are explained."""
EVENTS: Final = 500


class Explained(msgspec.Struct, frozen=True):
    """An answer in the one shape of explain."""

    summary: str
    reasons: list[ExplainReason]


class GovernanceExplainer:
    """Answers why."""

    def __init__(self, store: Store, rules: Rules) -> None:
        self._store = store
        self._rules = rules

    async def explain_job(self, job_id: str) -> Explained:
        """Explain one job."""
        return await self._store.read(_explain_job, job_id, self._rules)

    async def explain_object(self, object_type: str, object_id: str) -> Explained:
        """Explain one object, registered or not."""
        return await self._store.read(_explain_object, object_type, object_id, self._rules)


def _explain_job(tx: GovernanceTx, job_id: str, rules: Rules) -> Explained:
    job = tx.governance.find(job_id)
    if job is None:
        raise not_found(job_id)
    facts = _facts(tx, "GOV_JOB", job_id)
    governed = tx.objects.find(job.key)
    return _answer(explain_job(job, governed, tx.gates.list_gates(), rules, facts, tx.now))


def _explain_object(tx: GovernanceTx, object_type: str, object_id: str, rules: Rules) -> Explained:
    key = object_key(object_type, object_id)
    wanted = GovernanceJobFilter(object_type=object_type, object_id=object_id)
    jobs = tx.governance.list_jobs(wanted, None, JOBS)
    facts = [fact for job in jobs for fact in _facts(tx, "GOV_JOB", job.job_id)]
    governed = tx.objects.find(key)
    return _answer(explain_object(governed, jobs, tx.gates.list_gates(), rules, facts, tx.now))


def _facts(tx: GovernanceTx, entity_type: str, entity_id: str) -> list[Fact]:
    events: list[Event] = tx.events.list_after(0, EVENTS, entity_type, entity_id)
    return [
        Fact(id=event.id, at=event.ts, type=event.type, data=msgspec.json.decode(event.data))
        for event in events
    ]


def _answer(reasons: list[ExplainReason]) -> Explained:
    return Explained(summary=summarize(reasons), reasons=reasons)
