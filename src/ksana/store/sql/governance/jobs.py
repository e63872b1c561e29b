"""Governance jobs in SQL. What a pull reads is an index range: by second and priority for pulls
that take anything, by class for those that take only some kinds or ask for priority first."""

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec

from ksana.base.instant import SECOND, Instant
from ksana.domain.governance.records import (
    ACTIONS,
    OBJECT_TYPES,
    PRIORITIES,
    GovernanceJob,
    class_of,
)
from ksana.ports.governance.tables import GovernanceJobFilter, JobWrite, LockedJob, PullFilter
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


LOOK: Final = 64
"""Due jobs of any class that a pull with a filter looks at before it turns to the classes one by
one."""


class _Head(NamedTuple):
    """A place in the order of a pull."""

    class_no: int
    due_sec: int
    urgency: int
    seq: int


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

    def take_due(self, wanted: PullFilter) -> list[GovernanceJob]:
        if wanted.limit <= 0:
            return []
        if not wanted.is_filtered and wanted.order == "run_at":
            return self._session.all_as(
                GovernanceJob,
                "governance.take_due",
                sec=wanted.now // SECOND,
                now_at=wanted.now,
                limit=wanted.limit,
            )
        return self._take_classes(wanted)

    def _take_classes(self, wanted: PullFilter) -> list[GovernanceJob]:
        """Look at the first places of each class, then take as many of each as are in front."""
        counts = Counter(head.class_no for head in self._list_heads(wanted))
        jobs: list[GovernanceJob] = []
        for class_no, count in sorted(counts.items()):
            jobs += self._session.all_as(
                GovernanceJob,
                "governance.take_class",
                class_no=class_no,
                sec=wanted.now // SECOND,
                now_at=wanted.now,
                limit=count,
            )
        place = _by_priority if wanted.order == "priority" else _by_time
        return sorted(jobs, key=lambda job: place(job.run_at // SECOND, job.urgency, job.seq))

    def _list_heads(self, wanted: PullFilter) -> list[_Head]:
        """The first due places over the classes that are wanted, not held."""
        is_urgent_first = wanted.order == "priority"
        place = _by_priority if is_urgent_first else _by_time
        heads: list[_Head] | None = None
        if not self._session.is_embedded:  # where each statement is a way there and back
            heads = self._look(wanted)
        if heads is None:
            heads = []
            for urgency in range(len(PRIORITIES)):
                for class_no in _classes(wanted, urgency):
                    rows = self._peek("governance.peek_class", wanted, class_no=class_no)
                    heads += [_Head(class_no, row[0], urgency, row[1]) for row in rows]
                if is_urgent_first and len(heads) >= wanted.limit:
                    break
        heads.sort(key=lambda head: place(head.due_sec, head.urgency, head.seq))
        return heads[: wanted.limit]

    def _look(self, wanted: PullFilter) -> list[_Head] | None:
        """Those among the first of all that are due; None if more may be wanted behind them."""
        classes = {
            class_no for urgency in range(len(PRIORITIES)) for class_no in _classes(wanted, urgency)
        }
        width = max(LOOK, 2 * wanted.limit)
        rows = [_Head(*row) for row in self._peek("governance.peek_due", wanted, limit=width)]
        heads = [head for head in rows if head.class_no in classes]
        is_all = len(rows) < width
        is_enough = wanted.order == "run_at" and len(heads) >= wanted.limit
        return heads if is_all or is_enough else None

    def _peek(self, statement: str, wanted: PullFilter, **more: int) -> list[Row]:
        return self._session.all(
            statement,
            sec=wanted.now // SECOND,
            now_at=wanted.now,
            **{"limit": wanted.limit, **more},
        )

    def lock(self, job_ids: Sequence[str]) -> dict[str, LockedJob]:
        jobs = self._session.all_as(LockedJob, "governance.lock_jobs", ids=list(job_ids))
        return {job.job_id: job for job in jobs}

    def lock_expired(self, limit: int) -> list[GovernanceJob]:
        return self._session.all_as(
            GovernanceJob, "governance.lock_expired", now_at=self._now, limit=limit
        )

    def lock_deferred(self, gate_key: str, limit: int) -> list[GovernanceJob]:
        return self._session.all_as(
            GovernanceJob, "governance.lock_deferred", gate_key=gate_key, limit=limit
        )

    def has_deferred(self, gate_key: str) -> bool:
        return self._session.one("governance.first_deferred", gate_key=gate_key) is not None

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

    def next_due(self) -> tuple[Instant | None, Instant | None]:
        due = self._session.one("governance.next_due")
        lease = self._session.one("governance.next_lease")
        return (None if due is None else due[0], None if lease is None else lease[0])

    def find_old(self, before: Instant, after: WalkPlace, limit: int) -> OldRows:
        return walk_ended(self._session, "governance.list_finished", before, after, limit)

    def remove(self, seqs: Sequence[int]) -> int:
        keys = [(seq,) for seq in sorted(seqs)]
        return self._session.run_rows("governance.delete_finished", ("seq",), keys)


def _by_time(due_sec: int, urgency: int, seq: int) -> tuple[int, int, int]:
    return due_sec, urgency, seq


def _by_priority(due_sec: int, urgency: int, seq: int) -> tuple[int, int, int]:
    return urgency, due_sec, seq


def _classes(wanted: PullFilter, urgency: int) -> list[int]:
    return [
        class_of(object_type, action, urgency)
        for object_type in wanted.object_types or OBJECT_TYPES
        for action in wanted.actions or ACTIONS
    ]


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
