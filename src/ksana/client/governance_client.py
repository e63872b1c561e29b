"""The client of Governance: one method per endpoint, typed answers, errors as exceptions. No loops,
no threads."""

from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from msgspec import UNSET, UnsetType

from ksana.base.clock import SystemClock
from ksana.base.instant import MILLISECOND, format_instant, to_instant
from ksana.client import wire
from ksana.client.api_client import ApiClient
from ksana.client.errors import ApiConflictError, ApiError, ApiNotFoundError
from ksana.client.governance_shapes import (
    AckItem,
    AuditAnswer,
    FailItem,
    Gate,
    GatesAnswer,
    GovernanceJob,
    GovernedObject,
    JobsAnswer,
    RenewItem,
)

MAX_PULL = 500

When = datetime | timedelta
"""A time, or how long from now."""

_clock = SystemClock()


def show_when(when: When) -> str:
    """A time as the API takes it. Raise ValueError for one without a zone."""
    if isinstance(when, timedelta):
        return format_instant(_clock.now() + int(when / timedelta(milliseconds=1)) * MILLISECOND)
    if when.tzinfo is None:
        raise ValueError(f"{when} has no time zone: say datetime.now(UTC), or a timedelta")
    return format_instant(to_instant(when))


class GovernanceClient(ApiClient):
    """Calls to `/scheduler` of one server. Use it on one event loop, and close it."""

    base = "/scheduler"

    # --- jobs ---

    async def enqueue(
        self,
        object_type: str,
        object_id: str,
        action: str,
        run_at: When,
        *,
        priority: str = "medium",
        max_attempts: int = 3,
        idempotency_key: str | None = None,
        allow_past: bool = False,
    ) -> GovernanceJob:
        """Put a job in the queue, once for each idempotency key: repeated, it finds the job."""
        body = {
            "object_type": object_type,
            "object_id": object_id,
            "action": action,
            "run_at": show_when(run_at),
            "priority": priority,
            "max_attempts": max_attempts,
            "idempotency_key": idempotency_key,
            "allow_past": allow_past,
        }
        return await self._post("/jobs", wire.without_none(body), GovernanceJob)

    async def pull(
        self,
        worker_id: str,
        *,
        limit: int = 100,
        lease_sec: float = 120,
        wait_sec: float = 0.0,
        actions: Sequence[str] | None = None,
        object_types: Sequence[str] | None = None,
        order: str | None = None,
        tries: int | None = None,
    ) -> list[GovernanceJob]:
        """Take due jobs, waiting up to `wait_sec` for the first. A pull is never repeated after an
        unknown outcome: what it took comes back when the leases are over. `tries=1` makes it leave
        now or not at all, so that the caller knows from when a lease counts."""
        body = {
            "worker_id": worker_id,
            "limit": limit,
            "lease_sec": lease_sec,
            "wait_sec": wait_sec or None,
            "actions": None if actions is None else list(actions),
            "object_types": None if object_types is None else list(object_types),
            "order": order,
        }
        sent = wire.without_none(body)
        found = await self._take("/jobs/pull", sent, JobsAnswer, wait_sec, tries)
        return [] if found is None else found.jobs

    async def ack(
        self,
        job_id: str,
        *,
        lease_token: str | None = None,
        worker_id: str | None = None,
        next_action_at: When | UnsetType | None = UNSET,
        next_action: str | None = None,
        changes: Mapping[str, Any] | None = None,
        evidence_refs: Sequence[Any] | None = None,
        audit_event_id: str | None = None,
    ) -> GovernanceJob:
        """End a job. `changes` are members of its object, changed with it. The same ack sent again
        is answered the same. Raise LeaseLostError when the job is ours no longer."""
        item = AckItem(
            job_id=job_id,
            lease_token=lease_token,
            worker_id=worker_id,
            next_action_at=show_next(next_action_at),
            next_action=next_action,
            object=None if changes is None else show_members(changes),
            evidence_refs=None if evidence_refs is None else list(evidence_refs),
            audit_event_id=audit_event_id,
        )
        return await self._post(f"/jobs/{wire.path_part(job_id)}/ack", item, GovernanceJob)

    async def ack_batch(self, items: Sequence[AckItem]) -> list[GovernanceJob | ApiError]:
        """End up to 500 jobs; each item is answered on its own, in order."""
        return await self._batch("/jobs/ack-batch", items, GovernanceJob)

    async def ack_batch_briefly(self, items: Sequence[AckItem]) -> list[ApiError | None]:
        """The same, but learn only what was refused."""
        return await self._batch_briefly("/jobs/ack-batch", items)

    async def fail(
        self,
        job_id: str,
        error: str,
        *,
        retry_delay_sec: float = 300,
        retry: bool = True,
        lease_token: str | None = None,
        worker_id: str | None = None,
    ) -> GovernanceJob:
        """End an attempt that came to nothing. With `retry=False` the job ends `failed`, whatever
        attempts are left."""
        item = FailItem(
            job_id=job_id,
            error=error,
            retry_delay_sec=retry_delay_sec,
            retry=retry,
            lease_token=lease_token,
            worker_id=worker_id,
        )
        return await self._post(f"/jobs/{wire.path_part(job_id)}/fail", item, GovernanceJob)

    async def fail_batch(self, items: Sequence[FailItem]) -> list[GovernanceJob | ApiError]:
        """End up to 500 attempts; each item is answered on its own, in order."""
        return await self._batch("/jobs/fail-batch", items, GovernanceJob)

    async def renew(
        self, job_id: str, *, lease_sec: float = 120, lease_token: str | None = None
    ) -> GovernanceJob:
        """Hold a job longer, from now on."""
        body = wire.without_none({"lease_sec": lease_sec, "lease_token": lease_token})
        return await self._post(f"/jobs/{wire.path_part(job_id)}/renew", body, GovernanceJob)

    async def renew_batch(
        self, items: Sequence[RenewItem], *, lease_sec: float = 120
    ) -> list[ApiError | None]:
        """Hold up to 500 jobs longer; what was refused, in order."""
        return await self._batch_briefly("/jobs/renew-batch", items, lease_sec=lease_sec)

    async def get_job(self, job_id: str) -> GovernanceJob:
        """Get a job."""
        return await self._get(f"/jobs/{wire.path_part(job_id)}", GovernanceJob)

    async def list_jobs(
        self,
        *,
        status: str | None = None,
        object_type: str | None = None,
        object_id: str | None = None,
        action: str | None = None,
        worker_id: str | None = None,
        run_after: datetime | None = None,
        run_before: datetime | None = None,
        page_size: int = 100,
    ) -> AsyncIterator[GovernanceJob]:
        """Go through all jobs that match, newest first, page after page."""
        query = {
            "status": status,
            "object_type": object_type,
            "object_id": object_id,
            "action": action,
            "worker_id": worker_id,
            "run_after": wire.to_rfc3339(run_after),
            "run_before": wire.to_rfc3339(run_before),
            "limit": page_size,
        }
        cursor: str | None = None
        while True:
            text = wire.query_string({**query, "cursor": cursor})
            page = await self._get(f"/jobs{text}", JobsAnswer)
            for job in page.jobs:
                yield job
            cursor = page.next_cursor
            if cursor is None:
                return

    async def requeue(self, job_id: str) -> GovernanceJob:
        """Queue a dead letter again, with all its attempts."""
        path = f"/jobs/{wire.path_part(job_id)}"
        try:
            return await self._post(f"{path}/requeue", {}, GovernanceJob)
        except ApiConflictError as error:
            if error.unknown_tries:  # perhaps our own first try did it
                job = await self._get(path, GovernanceJob)
                if job.status == "queued":
                    return job
            raise

    async def requeue_matching(self, *, dry_run: bool = False, **filters: Any) -> int:
        """Queue all dead letters again that match (`object_type`, `object_id`, `action`,
        `run_after`, `run_before`), or only count them; how many."""
        given = {
            name: wire.to_rfc3339(value) if isinstance(value, datetime) else value
            for name, value in filters.items()
        }
        body = {"filter": wire.without_none(given), "dry_run": dry_run}
        found = await self._post("/jobs/requeue", body, dict[str, Any])
        return int(found["matched"])

    async def explain_job(self, job_id: str) -> dict[str, Any]:
        """Ask why a job waits, or ended as it did."""
        return await self._get(f"/jobs/{wire.path_part(job_id)}/explain", dict[str, Any])

    # --- objects and gates ---

    async def put_object(self, object_type: str, object_id: str, **members: Any) -> GovernedObject:
        """Register an object, or put another in its place. Members as in the API; times may be
        `datetime`."""
        return await self._call(
            "PUT", _object_path(object_type, object_id), GovernedObject, show_members(members)
        )

    async def patch_object(
        self, object_type: str, object_id: str, **members: Any
    ) -> GovernedObject:
        """Change what is named of an object."""
        return await self._call(
            "PATCH", _object_path(object_type, object_id), GovernedObject, show_members(members)
        )

    async def get_object(self, object_type: str, object_id: str) -> GovernedObject:
        """Get an object. Raise ApiNotFoundError for one that nobody registered."""
        return await self._get(_object_path(object_type, object_id), GovernedObject)

    async def find_object(self, object_type: str, object_id: str) -> GovernedObject | None:
        """Get an object; None for one that nobody registered."""
        try:
            return await self.get_object(object_type, object_id)
        except ApiNotFoundError:
            return None

    async def explain_object(self, object_type: str, object_id: str) -> dict[str, Any]:
        """Ask what comes next for an object, and why."""
        path = _object_path(object_type, object_id)
        return await self._get(f"{path}/explain", dict[str, Any])

    async def list_gates(self) -> list[Gate]:
        """Every setting of every gate."""
        return (await self._get("/gates", GatesAnswer)).gates

    async def set_gate(
        self, gate: str, state: str, *, scope: str | None = None, reason: str | None = None
    ) -> Gate:
        """Set a gate, for everything or for a scope."""
        body = wire.without_none({"state": state, "scope": scope, "reason": reason})
        return await self._call("PUT", f"/gates/{wire.path_part(gate)}", Gate, body)

    # --- looking ---

    async def list_audit(
        self, *, page_size: int = 100, **filters: Any
    ) -> AsyncIterator[dict[str, Any]]:
        """Go through the audit, newest first (`event_type`, `actor`, `object_type`, `object_id`,
        `job_id`, `since`, `until`)."""
        given = {
            name: wire.to_rfc3339(value) if isinstance(value, datetime) else value
            for name, value in filters.items()
        }
        cursor: str | None = None
        while True:
            text = wire.query_string({**given, "limit": page_size, "cursor": cursor})
            page = await self._get(f"/audit{text}", AuditAnswer)
            for entry in page.events:
                yield entry
            cursor = page.next_cursor
            if cursor is None:
                return

    async def metrics(self) -> dict[str, Any]:
        """What waits, and how the last hour went."""
        return await self._get("/metrics", dict[str, Any])


def show_next(when: When | UnsetType | None) -> str | UnsetType | None:
    """A next action's time as the API takes it: not named, none, or a time."""
    return when if when is None or isinstance(when, UnsetType) else show_when(when)


def _object_path(object_type: str, object_id: str) -> str:
    return f"/objects/{wire.path_part(object_type)}/{wire.path_part(object_id)}"


def show_members(members: Mapping[str, Any]) -> dict[str, Any]:
    """Members of an object as the API takes them: times as text."""
    return {
        name: show_when(value) if isinstance(value, datetime) else value
        for name, value in members.items()
    }
