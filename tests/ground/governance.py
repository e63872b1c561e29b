"""Governance to talk to, on any store: builders for what tests need again and again."""

from typing import Any

from ksana.base.clock import Clock, SystemClock
from ksana.base.instant import Instant
from ksana.domain.governance.jobs import (
    Ack,
    AttemptFailure,
    NewGovernanceJob,
    Renewal,
    digest_of,
)
from ksana.domain.governance.objects import ObjectFields
from ksana.domain.governance.records import URGENCY, GovernanceJob, GovernedObject, Rules, Who
from ksana.engine.governance.anchoring import write_anchor
from ksana.engine.governance.pulling import Pull
from ksana.ports.retention import START, OldRows, WalkPlace
from ksana.ports.store import Store
from ksana.service.governance.audit import AuditService
from ksana.service.governance.service import GovernanceService

SECOND = 1_000_000
ME = Who(actor="tester", correlation_id="req-1")


class Governing:
    """The service, with short ways to ask it."""

    def __init__(
        self, store: Store, clock: Clock | None = None, rules: Rules | None = None
    ) -> None:
        self.store = store
        self.clock = clock or SystemClock()
        # A database server's clock and ours are some milliseconds apart.
        self._due_since = 0 if clock else SECOND
        self.service = GovernanceService(store, self.clock, rules or Rules())
        self.audit = AuditService(store)

    def new_job(self, object_id: str = "m1", **more: Any) -> NewGovernanceJob:
        priority = more.pop("priority", "medium")
        values: dict[str, Any] = {
            "job_id": self.service.new_id(),
            "object_type": "memory",
            "object_id": object_id,
            "action": "decay",
            "urgency": URGENCY[priority],
            "run_at": self.clock.now() - self._due_since,
            "is_past_allowed": True,
        }
        return NewGovernanceJob(**{**values, **more})

    async def enqueue(self, object_id: str = "m1", **more: Any) -> GovernanceJob:
        return (await self.service.enqueue(self.new_job(object_id, **more), ME)).job

    async def pull(self, limit: int = 1, worker_id: str = "w1", **more: Any) -> list[GovernanceJob]:
        lease_us = more.pop("lease_us", 120 * SECOND)
        pull = Pull(worker_id=worker_id, limit=limit, lease_us=lease_us, **more)
        pulled = await self.service.pull(pull, Who(actor=worker_id))
        return [one.job.job for one in pulled.handed]

    def ack_of(self, job: GovernanceJob, **more: Any) -> Ack:
        return Ack(
            job_id=job.job_id,
            token=job.lease_token,
            digest=digest_of(job.job_id, job.lease_token, sorted(more.items(), key=str)),
            **more,
        )

    async def ack(self, job: GovernanceJob, **more: Any) -> GovernanceJob:
        return await self.service.ack(self.ack_of(job, **more), ME)

    async def fail(self, job: GovernanceJob, error: str = "no", **more: Any) -> GovernanceJob:
        failure = AttemptFailure(job_id=job.job_id, error=error, token=job.lease_token, **more)
        return await self.service.fail(failure, ME)

    async def renew(self, job: GovernanceJob, lease_us: int, token: int | None = None) -> Any:
        renewal = Renewal(job_id=job.job_id, token=token or job.lease_token)
        return await self.service.renew(renewal, lease_us)

    async def put(
        self, object_id: str = "m1", object_type: str = "memory", **fields: Any
    ) -> GovernedObject:
        return (await self.service.put_object(object_type, object_id, ObjectFields(**fields), ME))[
            0
        ]

    async def close_gate(self, gate: str = "persona", scope: str = "") -> None:
        await self.service.set_gate(gate, scope, "closed", "a test", ME)

    async def open_gate(self, gate: str = "persona", scope: str = "") -> int:
        return (await self.service.set_gate(gate, scope, "open", None, ME))[1]

    async def job(self, job: GovernanceJob | str) -> GovernanceJob:
        return await self.service.get_job(job if isinstance(job, str) else job.job_id)

    async def object(self, object_id: str = "m1", object_type: str = "memory") -> GovernedObject:
        return await self.service.get_object(object_type, object_id)

    async def events(self, entity_type: str, entity_id: str) -> list[str]:
        events = await self.store.read(
            lambda tx: tx.events.list_after(0, 1000, entity_type, entity_id)
        )
        return [event.type for event in events]

    async def purge_jobs(self, before: Instant) -> int:
        """What retention does, to its end; how many jobs it removed."""
        removed, after, is_end = 0, START, False
        while not is_end:
            found = await self.store.read(_find_old, before, after)
            removed += await self.store.transact(_remove, found.keys)
            after, is_end = found.after, found.is_end
        return removed

    async def anchor(self) -> Any:
        return await self.store.transact(write_anchor, "tester")

    async def assert_audit_is_whole(self) -> None:
        report = await self.audit.verify()
        assert report.findings == []
        assert report.entries > 0


def _find_old(tx: Any, before: Instant, after: WalkPlace) -> OldRows:
    found: OldRows = tx.governance.find_old(before, after, 500)
    return found


def _remove(tx: Any, keys: list[int]) -> int:
    removed: int = tx.governance.remove(keys)
    return removed
