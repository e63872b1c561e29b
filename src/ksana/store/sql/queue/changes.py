"""What changes of queue jobs write in SQL: the guarded writes of the jobs, each told every value
and answering how many rows its guard let through, and how many jobs wait and run now."""

from collections.abc import Sequence
from typing import Any, Final

from ksana.base.ids import new_token
from ksana.base.instant import Instant
from ksana.domain.queue.changes import JobChange
from ksana.domain.queue.jobs import FINAL_OF, Job
from ksana.ports.queue.tables import QueueGauges
from ksana.store.sql.core.session import Row, Session
from ksana.store.sql.core.tx import GatheredSums
from ksana.store.sql.queue.jobs import SqlJobs

_PROCESS: Final = new_token() >> 8 << 4
"""Tells the rows of this process from those of others."""

_GAUGE: Final = ("shard", "queued", "running", "arrivals", "classes")
_NONE: Final = (0, 0, 0, 0)
_FINISH: Final = "queue.finish_job"
"""The one move after which what is ready is as it was."""


class SqlJobChanges:
    """`scheduler_job_runs`, written. The names of the methods are the moves of the changes."""

    def __init__(self, _: Session, tx: Any) -> None:
        self._jobs: SqlJobs = tx.jobs
        self._now: Instant = tx.now

    def _run(self, is_held: bool, name: str, columns: tuple[str, ...], rows: list[Row]) -> int:
        session = self._jobs.session
        if name != _FINISH:
            self._jobs.ahead = None
        return (session.require_rows if is_held else session.run_rows)(name, columns, rows)

    def promote(self, changes: Sequence[JobChange], is_held: bool = False) -> int:
        columns = ("turn", "seq")
        rows = [(one.turn, one.seq) for one in changes]
        return self._run(is_held, "queue.promote_job", columns, rows)

    def claim(self, changes: Sequence[JobChange], is_held: bool = False) -> int:
        columns = (
            "worker_id",
            "claim_token",
            "claims",
            "until",
            "now_at",
            "seq",
        )
        now = self._now
        rows = [
            (
                one.worker_id,
                one.claim_token,
                one.claims,
                one.until,
                now,
                one.seq,
            )
            for one in changes
        ]
        return self._run(is_held, "queue.claim_job", columns, rows)

    def start(self, changes: Sequence[JobChange], is_held: bool = False) -> int:
        columns = (
            "worker_id",
            "claim_token",
            "claims",
            "lease_id",
            "lease_token",
            "ttl_sec",
            "now_at",
            "until",
            "attempts",
            "seq",
            "old_attempts",
        )
        now = self._now
        rows = [
            (
                one.worker_id,
                one.claim_token,
                one.claims,
                one.lease_id,
                one.lease_token,
                one.ttl_sec,
                now,
                one.until,
                one.attempts,
                one.seq,
                one.old_attempts,
            )
            for one in changes
        ]
        return self._run(is_held, "queue.start_job", columns, rows)

    def grant(self, changes: Sequence[JobChange], is_held: bool = False) -> int:
        columns = (
            "lease_id",
            "lease_token",
            "ttl_sec",
            "now_at",
            "until",
            "attempts",
            "seq",
            "claim_token",
            "old_attempts",
        )
        rows = [
            (
                one.lease_id,
                one.lease_token,
                one.ttl_sec,
                self._now,
                one.until,
                one.attempts,
                one.seq,
                one.claim_token,
                one.old_attempts,
            )
            for one in changes
        ]
        return self._run(is_held, "queue.grant_job", columns, rows)

    def deny(self, changes: Sequence[JobChange], is_held: bool = False) -> int:
        columns = (
            "next_retry_at",
            "until",
            "now_at",
            "seq",
            "claim_token",
        )
        rows = [
            (
                one.next_retry_at,
                one.until,
                self._now,
                one.seq,
                one.claim_token,
            )
            for one in changes
        ]
        return self._run(is_held, "queue.deny_job", columns, rows)

    def report(self, changes: Sequence[JobChange], is_held: bool = False) -> int:
        columns = (
            "position",
            "new_state",
            "progress",
            "note",
            "until",
            "now_at",
            "seq",
            "old_state",
            "claim_token",
        )
        rows = [
            (
                one.position,
                one.new,
                one.progress,
                one.note,
                one.until,
                self._now,
                one.seq,
                one.old,
                one.claim_token,
            )
            for one in changes
        ]
        return self._run(is_held, "queue.report_job", columns, rows)

    def cancel(self, changes: Sequence[JobChange], is_held: bool = False) -> int:
        columns = ("reason", "now_at", "seq", "old_state")
        rows = [(one.reason, self._now, one.seq, one.old) for one in changes]
        return self._run(is_held, "queue.cancel_job", columns, rows)

    def finish(self, changes: Sequence[JobChange], is_held: bool = False) -> int:
        columns = (
            "new_state",
            "final_status",
            "error_text",
            "result_json",
            "metrics_json",
            "now_at",
            "release_status",
            "release_digest",
            "seq",
            "lease_id",
            "lease_token",
        )
        now = self._now
        rows = [
            (
                one.new,
                FINAL_OF[one.new],
                one.error,
                one.result_json,
                one.metrics_json,
                now,
                one.release_status,
                one.release_digest,
                one.seq,
                one.lease_id,
                one.lease_token,
            )
            for one in changes
        ]
        return self._run(is_held, _FINISH, columns, rows)

    def requeue(self, changes: Sequence[JobChange], is_held: bool = False) -> int:
        columns = (
            "position",
            "attempts",
            "turn",
            "due_at",
            "next_retry_at",
            "error_text",
            "metrics_json",
            "now_at",
            "seq",
            "lease_id",
            "lease_token",
        )
        rows = [
            (
                one.position,
                one.attempts,
                one.turn,
                one.due_at,
                one.next_retry_at,
                one.error,
                one.metrics_json,
                self._now,
                one.seq,
                one.lease_id,
                one.lease_token,
            )
            for one in changes
        ]
        return self._run(is_held, "queue.requeue_job", columns, rows)

    def take_back(self, changes: Sequence[JobChange], is_held: bool = False) -> int:
        columns = ("turn", "now_at", "seq", "claim_token")
        rows = [(one.turn, self._now, one.seq, one.claim_token) for one in changes]
        return self._run(is_held, "queue.take_back_job", columns, rows)

    def note_running(self, jobs: Sequence[Job], is_held: bool = False) -> int:
        columns = ("progress", "note", "now_at", "seq", "lease_id")
        rows = [(one.progress, one.note, self._now, one.seq, one.lease_id) for one in jobs]
        return self._run(is_held, "queue.note_running_job", columns, rows)

    def request_cancel(self, seq: int, reason: str | None) -> bool:
        changed = self._jobs.session.run(
            "queue.request_cancel", seq=seq, reason=reason, now_at=self._now
        )
        return changed == 1


class SqlGauges:
    """`queue_gauges`: how many jobs wait and run now. A row for each connection, so that writers
    never wait for each other."""

    def __init__(self, session: Session, tx: Any) -> None:
        self._session = session
        self._jobs = tx.jobs
        self._row = _PROCESS ^ id(session)
        self._sums = GatheredSums("queue.add_to_gauges", _GAUGE, (self._row,))
        tx.sums.append(self._sums)

    def add(self, queued: int, running: int, arrivals: int, classes: int = 0) -> None:
        self._session.wrote = True
        before = self._sums.added.get((), _NONE)
        self._sums.added[()] = (
            before[0] + queued,
            before[1] + running,
            before[2] + arrivals,
            before[3] + classes,
        )

    def read(self) -> QueueGauges:
        row = self._session.one("queue.sum_gauges")
        assert row is not None
        added = self._sums.added.get((), _NONE)
        return QueueGauges(int(row[0]) + added[0], int(row[1]) + added[1], int(row[2]) + added[2])

    def recount(self) -> QueueGauges:
        self._fold()
        row = self._jobs.session.one("queue.compare_gauges")
        assert row is not None
        queued, running, said_queued, said_running = (int(number) for number in row)
        added = self._sums.added.get((), _NONE)
        self.add(queued - said_queued - added[0], running - said_running - added[1], 0)
        return self.read()

    def _fold(self) -> None:
        """Take over the rows of other connections; one that is alive starts a new row when it next
        counts."""
        rows = self._session.all("queue.list_gauges", shard=self._row, limit=1000)
        self._session.run_rows("queue.delete_gauges", ("shard",), [(row[0],) for row in rows])
        for _, queued, running, arrivals, classes in rows:
            self.add(queued, running, arrivals, classes)
