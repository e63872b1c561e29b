"""Queue jobs in SQL, entered and read."""

from collections.abc import Sequence
from typing import Any, Final

from ksana.base.instant import Instant
from ksana.domain.queue.jobs import Job
from ksana.ports.queue.tables import QueueDue
from ksana.ports.retention import OldRows, WalkPlace
from ksana.store.sql.core.session import Row, Session
from ksana.store.sql.core.walks import walk_ended

_COLUMNS: Final = (
    "job_id",
    "addon_id",
    "job_type",
    "priority",
    "cost_units",
    "constraints_json",
    "payload_json",
    "state",
    "attempts",
    "max_attempts",
    "now_at",
    "run_at",
    "fairness_key",
    "client_request_id",
    "cancel_requested",
    "position",
    "urgency",
    "class_id",
    "turn",
    "due_at",
)


def _row_of(job: Job) -> Row:
    """A new job's values, in the order of its columns."""
    return (
        job.job_id,
        job.addon_id,
        job.job_type,
        job.priority,
        job.cost_units,
        job.constraints_json,
        job.payload_json,
        job.state,
        job.attempts,
        job.max_attempts,
        job.created_at,
        job.run_at,
        job.fairness_key,
        job.client_request_id,
        job.cancel_requested,
        job.position,
        job.urgency,
        job.class_id,
        job.turn,
        job.due_at,
    )


class SqlJobs:
    """`scheduler_job_runs`."""

    flush_order = 0

    def __init__(self, session: Session, tx: Any) -> None:
        self._raw = session
        self._new: list[Row] = []
        self._now: Instant = tx.now

    @property
    def session(self) -> Session:
        """The session, with every job entered before to be seen by what comes next. The other
        tables over jobs go by it too."""
        if self._new:
            self.flush()
        return self._raw

    def insert(self, jobs: Sequence[Job], *, once: bool) -> int:
        rows = [_row_of(job) for job in jobs]
        if once:
            return self.session.run_rows("queue.insert_job_once", _COLUMNS, rows)
        # Nothing can refuse these: those of all functions of one commit are written together.
        self._raw.wrote = True
        self._new += rows
        return len(rows)

    def flush(self) -> None:
        """Write the jobs that were gathered."""
        rows, self._new = self._new, []
        self._raw.run_rows_later("queue.insert_job", _COLUMNS, rows)

    def forget(self) -> None:
        """Drop what was gathered."""
        self._new = []

    def find_job(self, job_id: str) -> Job | None:
        row = self.session.one("queue.find_job", job_id=job_id)
        return None if row is None else Job(*row)

    def find_jobs(self, job_ids: Sequence[str]) -> dict[str, Job]:
        rows = self.session.all("queue.find_jobs", ids=sorted(job_ids))
        return {row[1]: Job(*row) for row in rows}

    def find_job_by_request(self, addon_id: str, client_request_id: str) -> Job | None:
        row = self.session.one(
            "queue.find_job_by_request", addon_id=addon_id, client_request_id=client_request_id
        )
        return None if row is None else Job(*row)

    def lock_job(self, job_id: str) -> tuple[Job, bool] | None:
        row = self.session.one("queue.lock_job", job_id=job_id)
        return None if row is None else (Job(*row[:-1]), bool(row[-1]))

    def lock_jobs(self, job_ids: Sequence[str]) -> dict[str, Job]:
        rows = self.session.all("queue.lock_jobs", ids=sorted(job_ids))
        return {row[1]: Job(*row) for row in rows}

    def next_due(self) -> QueueDue:
        row = self.session.one("queue.next_due")
        assert row is not None
        return QueueDue(*row)

    def find_old(self, before: Instant, after: WalkPlace, limit: int) -> OldRows:
        return walk_ended(self.session, "queue.list_finished", before, after, limit)

    def remove(self, seqs: Sequence[int]) -> int:
        keys = [(seq,) for seq in sorted(seqs)]
        removed = self.session.run_rows("queue.delete_job", ("seq",), keys)
        self._raw.run_rows("queue.delete_leases", ("job_seq",), keys)
        return removed

    def find_addons(self, seqs: Sequence[int]) -> dict[int, str]:
        return dict(self.session.all("queue.list_addons", seqs=list(seqs)))
