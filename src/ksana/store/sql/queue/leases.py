"""Leases in SQL. Whether one lasts is found by the store's clock; whose it is, by its token."""

from collections.abc import Sequence
from typing import Any, Final

from ksana.base.instant import Instant
from ksana.domain.queue.changes import JobChange
from ksana.domain.queue.jobs import Job, Lease, LeasedJob, LeaseWithJob
from ksana.store.sql.core.session import Session

_NEW: Final = (
    "lease_id",
    "job_id",
    "job_seq",
    "addon_id",
    "worker_id",
    "cost_units",
    "ttl_sec",
    "state",
    "granted_at",
    "last_heartbeat_at",
    "expires_at",
    "lease_token",
)

_IS_LIVE: Final = len(Lease.__struct_fields__)
"""The place of that column behind those of a lease."""


class SqlLeases:
    """`scheduler_lease_runs`."""

    def __init__(self, session: Session, tx: Any) -> None:
        self._session = session
        self._now: Instant = tx.now

    def insert(self, changes: Sequence[JobChange]) -> None:
        now = self._now
        rows = [
            (
                one.lease_id,
                one.job_id,
                one.seq,
                one.addon_id,
                one.worker_id,
                one.cost_units,
                one.ttl_sec,
                "ACTIVE",
                now,
                now,
                one.until,
                one.lease_token,
            )
            for one in changes
        ]
        self._session.run_rows_later("queue.insert_lease", _NEW, rows)

    def find_lease(self, lease_id: str) -> Lease | None:
        row = self._session.one("queue.find_lease", lease_id=lease_id)
        return None if row is None else Lease(*row)

    def lock_lease(self, lease_id: str) -> tuple[Lease, bool] | None:
        row = self._session.one("queue.lock_lease", lease_id=lease_id)
        return None if row is None else (Lease(*row[:-1]), bool(row[-1]))

    def lock_leases(self, lease_ids: Sequence[str]) -> dict[str, tuple[LeasedJob, bool]]:
        rows = self._session.all("queue.lock_leases_and_jobs", ids=sorted(lease_ids))
        at = _IS_LIVE
        return {
            row[0]: (LeasedJob(Lease(*row[:at]), Job(*row[at + 1 :])), bool(row[at]))
            for row in rows
        }

    def lock_with_jobs(self, lease_ids: Sequence[str]) -> dict[str, LeaseWithJob]:
        found = self._session.all_as(
            LeaseWithJob, "queue.lock_leases_with_jobs", ids=sorted(lease_ids)
        )
        return {one.lease_id: one for one in found}

    def list_of_job(self, job_seq: int) -> list[Lease]:
        rows = self._session.all("queue.list_leases_of_job", job_seq=job_seq)
        return [Lease(*row) for row in rows]

    def list_active(self, limit: int) -> list[Lease]:
        return [Lease(*row) for row in self._session.all("queue.list_active_leases", limit=limit)]

    def list_expired(self, limit: int) -> list[str]:
        rows = self._session.all("queue.list_expired_leases", now_at=self._now, limit=limit)
        return [row[0] for row in rows]

    def extend(self, leases: Sequence[Lease], is_held: bool = False) -> int:
        columns = ("now_at", "expires_at", "ttl_sec", "lease_id", "lease_token")
        rows = [
            (one.last_heartbeat_at, one.expires_at, one.ttl_sec, one.lease_id, one.lease_token)
            for one in leases
        ]
        run = self._session.require_rows if is_held else self._session.run_rows
        return run("queue.extend_lease", columns, rows)

    def release(self, changes: Sequence[JobChange], is_held: bool = False) -> int:
        columns = ("now_at", "status", "digest", "lease_id", "lease_token")
        now = self._now
        rows = [
            (now, one.release_status, one.release_digest, one.lease_id, one.lease_token)
            for one in changes
        ]
        run = self._session.require_rows if is_held else self._session.run_rows
        return run("queue.release_lease", columns, rows)

    def expire(self, changes: Sequence[JobChange], is_held: bool = False) -> int:
        columns = ("now_at", "lease_id", "lease_token")
        rows = [(self._now, one.lease_id, one.lease_token) for one in changes]
        run = self._session.require_rows if is_held else self._session.run_rows
        return run("queue.expire_lease", columns, rows)
