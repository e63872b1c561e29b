"""Leases and the one row of capacity in SQL. A lease's id is its fencing token; its end is judged
by the store's clock."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from ksana.base.instant import Instant
from ksana.domain.queue.admission import Room
from ksana.domain.queue.jobs import Hold, Lease
from ksana.store.sql.core.session import Row, Session
from ksana.store.sql.queue.sets import FEW_ROWS, among, change_among

_encode = msgspec.json.Encoder().encode
_COLUMNS = (
    "lease_id",
    "job_id",
    "job_seq",
    "addon_id",
    "worker_id",
    "cost_units",
    "ttl_sec",
    "now_at",
    "expires_at",
)


class SqlLeases:
    """`scheduler_lease_runs`, `queue_capacity`."""

    flush_order = -1  # the capacity before the counts

    def __init__(self, session: Session, tx: Any) -> None:
        self._session = session
        self._now: Instant = tx.now
        self._freed = (0, 0)

    def lock_room(self, total: int) -> Room:
        self.flush()
        return _room(total, self._session.one("queue.lock_capacity"))

    def try_lock_room(self, total: int) -> Room | None:
        self.flush()
        row = self._session.one("queue.try_lock_capacity")
        return None if row is None else _room(total, row)

    def room(self, total: int) -> Room:
        return _room(total, self._session.one("queue.get_capacity"))

    def free(self, units: int, leases: int) -> None:
        self._session.wrote = True
        self._freed = self._freed[0] + units, self._freed[1] + leases

    def flush(self) -> None:
        """Give back what was gathered: at the end, because from here on others wait for us."""
        units, leases = self._freed
        if leases:
            self._freed = (0, 0)
            self._session.run("queue.free_capacity", units=units, leases=leases)

    def forget(self) -> None:
        """Drop what was gathered."""
        self._freed = (0, 0)

    def set_room(self, room: Room) -> None:
        self._session.run(
            "queue.set_capacity",
            used=room.used,
            active=room.active,
            reserved_units=room.reserved_units,
            reserved_for=room.reserved_for,
            reserved_urgency=room.reserved_urgency,
            reserved_until=room.reserved_until,
        )

    def drop_reserve(self, job_id: str) -> None:
        self._session.run("queue.drop_reserve", job_id=job_id)

    def sum_of_addon(self, addon_id: str) -> int:
        row = self._session.one("queue.sum_active_of_addon", addon_id=addon_id)
        return 0 if row is None else int(row[0])

    def sum_active(self) -> tuple[int, int]:
        row = self._session.one("queue.sum_active")
        assert row is not None
        return int(row[0]), int(row[1])

    def insert(self, leases: Sequence[Lease], job_seqs: Sequence[int]) -> None:
        now = self._now
        rows = [
            (
                lease.lease_id,
                lease.job_id,
                job_seq,
                lease.addon_id,
                lease.worker_id,
                lease.cost_units,
                lease.ttl_sec,
                now,
                lease.expires_at,
            )
            for lease, job_seq in zip(leases, job_seqs, strict=True)
        ]
        self._session.run_tuples("queue.insert_lease", _COLUMNS, rows)

    def insert_of_jobs(self, job_seqs: Sequence[int], ttl_sec: float, expires_at: Instant) -> int:
        return self._session.run_over(
            "queue.insert_leases_of",
            job_seqs,
            ttl_sec=ttl_sec,
            now_at=self._now,
            expires_at=expires_at,
        )

    def find_lease(self, lease_id: str) -> Lease | None:
        row = self._session.one("queue.find_lease", lease_id=lease_id)
        return None if row is None else Lease(*row)

    def lock_lease(self, lease_id: str) -> tuple[Lease, bool] | None:
        row = self._session.one("queue.lock_lease", lease_id=lease_id)
        return None if row is None else (Lease(*row[:-1]), bool(row[-1]))

    def lock_leases(self, lease_ids: Sequence[str]) -> dict[str, tuple[Lease, bool]]:
        if len(lease_ids) == 1:
            found = self.lock_lease(lease_ids[0])
            return {} if found is None else {lease_ids[0]: found}
        rows = among(self._session, "queue.lock_leases_among", lease_ids)
        return {row[0]: (Lease(*row[:-1]), bool(row[-1])) for row in rows}

    def lock_holds(self, lease_ids: Sequence[str]) -> dict[str, Hold]:
        if self._session.is_embedded:
            ids = _encode(lease_ids).decode()
            return {
                hold.lease_id: hold
                for hold in self._session.all_as(Hold, "queue.list_holds", ids=ids)
            }
        return {
            row[0]: Hold(*row) for row in among(self._session, "queue.lock_holds_among", lease_ids)
        }

    def list_of_job(self, job_seq: int) -> list[Lease]:
        return [
            Lease(*row) for row in self._session.all("queue.list_leases_of_job", job_seq=job_seq)
        ]

    def list_active(self, limit: int) -> list[Lease]:
        return [Lease(*row) for row in self._session.all("queue.list_active_leases", limit=limit)]

    def list_expired(self, limit: int) -> list[Lease]:
        return [Lease(*row) for row in self._session.all("queue.list_expired_leases", limit=limit)]

    def beat_locked(self, rows: Sequence[Mapping[str, Any]]) -> int:
        return self._session.run_many("queue.beat_lease", rows)

    def release_locked(self, releases: Sequence[tuple[str, str, str]]) -> int:
        if len(releases) <= FEW_ROWS:
            names = ("lease_id", "status", "digest", "now_at")
            rows = [dict(zip(names, (*release, self._now), strict=True)) for release in releases]
            return self._session.run_many("queue.release_lease", rows)
        alike: dict[str, list[Row]] = {}
        for lease_id, status, digest in releases:
            alike.setdefault(status, []).append((lease_id, digest))
        count = 0
        for status, places in alike.items():
            same = {"status": status, "now_at": self._now}
            count += change_among(
                self._session, "queue.release_leases_among", ("id", "digest"), places, same
            )
        return count

    def expire_locked(self, lease_ids: Sequence[str]) -> int:
        return self._session.run_many(
            "queue.expire_lease",
            [{"lease_id": lease_id, "now_at": self._now} for lease_id in lease_ids],
        )


def _room(total: int, row: Row | None) -> Room:
    assert row is not None, "the capacity row is missing: the migration writes it"
    return Room(total, *row)
