"""Leases in SQL. A job's last lease lies in the job's row and is found by the number in its id; the
earlier ones are rows of `past_leases`. Whether one lasts is found by the store's clock; whose it
is, by its token.

Leases of before that was so have ids without a number. Such a lease lies in the row of its job
while it is active, and in `past_leases` from the start, where its end is written too.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final

from ksana.base.ids import number_of
from ksana.base.instant import Instant
from ksana.domain.queue.changes import JobChange
from ksana.domain.queue.jobs import Job, Lease, LeasedJob, LeaseWithJob, lease_of
from ksana.store.sql.core.event_rows import dated_id
from ksana.store.sql.core.session import Row, Session
from ksana.store.sql.queue.claim_ahead import ClaimAhead
from ksana.store.sql.queue.jobs import SqlJobs

_KEPT: Final = (
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
    "released_at",
    "release_status",
    "release_digest",
    "lease_token",
)
_OLD_END: Final = ("state", "released_at", "release_status", "release_digest", "lease_id")


class SqlLeases:
    """Leases in `scheduler_job_runs` and `past_leases`."""

    def __init__(self, session: Session, tx: Any) -> None:
        self._session = session
        self._jobs: SqlJobs = tx.jobs
        self._now: Instant = tx.now

    def find_lease(self, lease_id: str) -> Lease | None:
        for seq in self._find_jobs([lease_id]):
            row = self._session.one("queue.find_leased_job", seq=seq, lease_id=lease_id)
            if row is not None:
                return lease_of(Job(*row))
        row = self._session.one("queue.find_past_lease", lease_id=lease_id)
        return None if row is None else Lease(*row)

    def expect_claim(self, class_id: int | None, limit: int) -> None:
        if not self._session.is_embedded:
            self._jobs.ahead = ClaimAhead(class_id, limit, self._now, with_units=True)

    def lock_leases(self, lease_ids: Sequence[str]) -> dict[str, tuple[LeasedJob, bool]]:
        seqs = self._find_jobs(lease_ids)
        rows = self._lock_with_claim("queue.lock_leased_jobs", seqs)
        if rows is None:
            rows = self._session.all("queue.lock_leased_jobs", seqs=seqs)
        jobs = [(Job(*row[:-1]), bool(row[-1])) for row in rows]
        found = {
            job.lease_id: (LeasedJob(lease_of(job), job), is_live)
            for job, is_live in jobs
            if job.lease_id is not None and job.heartbeat_at is not None
        }
        by_id = {job.job_id: job for job, _ in jobs}
        past = {
            lease.lease_id: (LeasedJob(lease, by_id[lease.job_id]), False)
            for lease in self._list_past(lease_ids, found)
            if lease.job_id in by_id
        }
        return {
            one: found.get(one) or past[one] for one in lease_ids if one in found or one in past
        }

    def lock_with_jobs(self, lease_ids: Sequence[str]) -> dict[str, LeaseWithJob]:
        session, name = self._session, "queue.lock_leases_with_jobs"
        seqs = self._find_jobs(lease_ids)
        asked = self._lock_with_claim(name, seqs)
        if asked is None:
            rows = session.all_as(LeaseWithJob, name, seqs=seqs)
        else:
            rows = [LeaseWithJob(*row) for row in asked]
        found = {one.lease_id: one for one in rows}
        missing = [one for one in lease_ids if one not in found]
        if missing:
            rows = session.all_as(LeaseWithJob, "queue.list_past_with_jobs", ids=missing)
            found |= {one.lease_id: one for one in rows}
        return {one: found[one] for one in lease_ids if one in found}

    def _lock_with_claim(self, name: str, seqs: Sequence[int]) -> list[Row] | None:
        """The rows of leases, asked for together with what an expected claim opens with, if there
        is one."""
        jobs = self._jobs
        if jobs.ahead is None or jobs.ahead.is_asked:
            return None
        (rows,) = jobs.ahead.ask(jobs.session, [(name, {"seqs": seqs})])
        return rows

    def _find_jobs(self, lease_ids: Sequence[str]) -> list[int]:
        """The numbers of the jobs that these are leases of."""
        numbers = {one: number_of(one) for one in lease_ids}
        found = {number for number in numbers.values() if number is not None}
        old = [one for one, number in numbers.items() if number is None]
        if old:
            rows = self._session.all("queue.list_jobs_of_leases", ids=old)
            found.update(row[0] for row in rows)
        return sorted(found)

    def _list_past(self, lease_ids: Sequence[str], besides: Iterable[str]) -> list[Lease]:
        missing = [one for one in lease_ids if one not in besides]
        rows = self._session.all("queue.list_past_leases", ids=missing) if missing else []
        return [Lease(*row) for row in rows]

    def list_of_job(self, job: Job) -> list[Lease]:
        rows = self._session.all("queue.list_leases_of_job", job_seq=job.seq)
        past = [Lease(*row) for row in rows]
        if job.lease_id is None or job.lease_id in {one.lease_id for one in past}:
            return past
        return [*past, lease_of(job)]

    def list_active(self, limit: int) -> list[Lease]:
        rows = self._session.all("queue.list_active_leases", limit=limit)
        return [lease_of(Job(*row)) for row in rows]

    def list_expired(self, limit: int) -> list[LeaseWithJob]:
        return self._session.all_as(
            LeaseWithJob, "queue.list_expired_leases", now_at=self._now, limit=limit
        )

    def extend(self, leases: Sequence[LeasedJob], is_held: bool = False) -> int:
        columns = ("now_at", "expires_at", "ttl_sec", "seq", "lease_token")
        rows = [
            (
                one.lease.last_heartbeat_at,
                one.lease.expires_at,
                one.lease.ttl_sec,
                one.job.seq,
                one.lease.lease_token,
            )
            for one in leases
        ]
        run = self._session.require_rows if is_held else self._session.run_rows
        return run("queue.extend_lease", columns, rows)

    def keep(self, changes: Sequence[JobChange]) -> None:
        now, run = self._now, self._session.run_rows_later
        rows = [
            (
                one.lease_id,
                one.job_id,
                one.seq,
                one.addon_id,
                one.worker_id,
                one.cost_units,
                one.ttl_sec,
                one.lease_end,
                one.started_at,
                one.heartbeat_at,
                one.until,
                now,
                one.release_status,
                one.release_digest,
                one.lease_token,
            )
            for one in changes
            if one.move == "requeue"
        ]
        ended = [
            (one.lease_end, now, one.release_status, one.release_digest, one.lease_id)
            for one in changes
            if one.move != "requeue" and number_of(one.lease_id) is None
        ]
        if rows:
            run("queue.keep_lease", _KEPT, rows)
        if ended:
            run("queue.end_old_lease", _OLD_END, ended)


def find_rows_of_lease(session: Session, lease_id: str) -> list[str]:
    """Where the events of a lease lie: with its job's."""
    number = number_of(lease_id)
    if number is None:
        row = session.one("queue.find_job_of_lease", lease_id=lease_id)
    else:
        row = session.one("queue.find_job_id", seq=number)
    return [] if row is None else [row[0], *find_dated_of_job(session, row[0])]


def find_dated_of_job(session: Session, job_id: str) -> list[str]:
    """Where events of a job may lie with those of others: at the instants that its row and those of
    its leases keep."""
    row = session.one("queue.find_instants", job_id=job_id)
    if row is None:
        return []
    granted = session.all("queue.list_grants", job_seq=row[0])
    instants = {*row[1:], *(one[0] for one in granted)}
    return [dated_id(at) for at in sorted(instants - {None})]
