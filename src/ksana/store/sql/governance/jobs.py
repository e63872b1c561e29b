"""Governance jobs in SQL, entered, changed and read."""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from ksana.base.instant import SECOND, Instant
from ksana.domain.governance.records import (
    GovernanceJob,
    class_of,
)
from ksana.ports.governance.tables import GovernanceJobFilter, JobWrite, LockedJob
from ksana.ports.retention import OldRows, WalkPlace
from ksana.store.sql.core.session import Row, Session
from ksana.store.sql.core.walks import walk_ended

_NEW: Final = (
    "job_id",
    "object_type",
    "object_id",
    "action",
    "urgency",
    "run_at",
    "attempt",
    "max_attempts",
    "idempotency_key",
    "status",
    "last_error",
    "position",
    "reason",
    "created_at",
    "updated_at",
    "lease_token",
    "deferrals",
    "follow_key",
    "is_follow_up",
    "due_sec",
    "class_no",
)
_LEASE: Final = (
    "status",
    "reason",
    "worker_id",
    "lease_token",
    "lease_expires_at",
    "updated_at",
    "seq",
)
_END: Final = (
    "status",
    "reason",
    "last_error",
    "finished_at",
    "updated_at",
    "audit_event_id",
    "next_action_at",
    "follow_up_id",
    "ack_digest",
    "seq",
    "old_token",
)
_CHANGE: Final = (
    "action",
    "run_at",
    "attempt",
    "idempotency_key",
    "status",
    "last_error",
    "position",
    "reason",
    "updated_at",
    "finished_at",
    "worker_id",
    "lease_token",
    "lease_expires_at",
    "deferrals",
    "gate_key",
    "follow_key",
    "due_sec",
    "class_no",
    "seq",
    "old_status",
    "old_token",
)


class SqlGovernanceJobs:
    """`governance_jobs`."""

    def __init__(self, session: Session, tx: Any) -> None:
        self._session = session
        self._now: Instant = tx.now

    def insert_once(self, job: GovernanceJob) -> bool:
        return self._session.run_rows("governance.insert_job_once", _NEW, [_new_row(job)]) == 1

    def write(self, changes: Sequence[JobWrite]) -> None:
        made: list[Row] = []
        leased: list[Row] = []
        ended: list[Row] = []
        changed: list[Row] = []
        removed: list[Row] = []
        for old, new in changes:
            if old is None:
                assert new is not None
                made.append(_new_row(new))
            elif new is None:
                removed.append((old.seq,))
            elif old.status == "queued" and new.status == "running":
                leased.append(_lease_row(new))
            elif old.status == "running" and new.status in ("succeeded", "failed"):
                ended.append(_end_row(old, new))
            else:
                changed.append(_change_row(old, new))
        # Rows that leave a unique key go before rows that take it.
        run = self._session.run_rows
        done = run("governance.delete_job", ("seq",), removed)
        done += run("governance.end_job", _END, ended)
        done += run("governance.lease_job", _LEASE, leased)
        done += run("governance.change_job", _CHANGE, changed)
        run("governance.insert_job", _NEW, made)
        if done != len(changes) - len(made):
            raise RuntimeError("a governance job was changed that this transaction does not hold")

    def lock(self, job_ids: Sequence[str]) -> dict[str, LockedJob]:
        jobs = self._session.all_as(LockedJob, "governance.lock_jobs", ids=list(job_ids))
        return {job.job_id: job for job in jobs}

    def lock_follow_ups(self, object_keys: Sequence[str]) -> dict[str, GovernanceJob]:
        if not object_keys:
            return {}
        jobs = self._session.all_as(
            GovernanceJob, "governance.lock_follow_ups", keys=list(object_keys)
        )
        return {job.follow_key: job for job in jobs if job.follow_key is not None}

    def find(self, job_id: str) -> GovernanceJob | None:
        row = self._session.one("governance.find_job", job_id=job_id)
        return None if row is None else GovernanceJob(*row)

    def find_by_key(self, object_type: str, idempotency_key: str) -> GovernanceJob | None:
        row = self._session.one(
            "governance.find_job_by_key",
            idempotency_key=idempotency_key,
            object_type=object_type,
        )
        return None if row is None else GovernanceJob(*row)

    def list_jobs(
        self, wanted: GovernanceJobFilter, before: int | None, limit: int
    ) -> list[GovernanceJob]:
        filters = {**msgspec.structs.asdict(wanted), "before": before}
        rows = self._session.filtered("governance.list_jobs", filters, limit=limit)
        return [GovernanceJob(*row) for row in rows]

    def find_old(self, before: Instant, after: WalkPlace, limit: int) -> OldRows:
        return walk_ended(self._session, "governance.list_finished", before, after, limit)

    def remove(self, seqs: Sequence[int]) -> int:
        keys = [(seq,) for seq in sorted(seqs)]
        return self._session.run_rows("governance.delete_finished", ("seq",), keys)


def _new_row(job: GovernanceJob) -> Row:
    return (
        job.job_id,
        job.object_type,
        job.object_id,
        job.action,
        job.urgency,
        job.run_at,
        job.attempt,
        job.max_attempts,
        job.idempotency_key,
        job.status,
        job.last_error,
        job.position,
        job.reason,
        job.created_at,
        job.updated_at,
        job.lease_token,
        job.deferrals,
        job.follow_key,
        job.is_follow_up,
        job.run_at // SECOND,
        class_of(job.object_type, job.action, job.urgency),
    )


def _lease_row(job: GovernanceJob) -> Row:
    return (
        job.status,
        job.reason,
        job.worker_id,
        job.lease_token,
        job.lease_expires_at,
        job.updated_at,
        job.seq,
    )


def _end_row(old: GovernanceJob, job: GovernanceJob) -> Row:
    return (
        job.status,
        job.reason,
        job.last_error,
        job.finished_at,
        job.updated_at,
        job.audit_event_id,
        job.next_action_at,
        job.follow_up_id,
        job.ack_digest,
        job.seq,
        old.lease_token,
    )


def _change_row(old: GovernanceJob, job: GovernanceJob) -> Row:
    return (
        job.action,
        job.run_at,
        job.attempt,
        job.idempotency_key,
        job.status,
        job.last_error,
        job.position,
        job.reason,
        job.updated_at,
        job.finished_at,
        job.worker_id,
        job.lease_token,
        job.lease_expires_at,
        job.deferrals,
        job.gate_key,
        job.follow_key,
        job.run_at // SECOND,
        class_of(job.object_type, job.action, job.urgency),
        job.seq,
        old.status,
        old.lease_token,
    )
