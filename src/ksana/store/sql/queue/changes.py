"""The guarded writes of queue jobs in SQL: each is told every value and answers how many rows its
guard let through."""

from collections.abc import Sequence
from typing import Any

from ksana.base.instant import Instant
from ksana.domain.queue.changes import JobChange
from ksana.domain.queue.jobs import FINAL_OF, Job
from ksana.store.sql.core.session import Row, Session
from ksana.store.sql.queue.jobs import SqlJobs


class SqlJobChanges:
    """`scheduler_job_runs`, written. The names of the methods are the moves of the changes."""

    def __init__(self, _: Session, tx: Any) -> None:
        self._jobs: SqlJobs = tx.jobs
        self._now: Instant = tx.now

    def _run(self, is_held: bool, name: str, columns: tuple[str, ...], rows: list[Row]) -> int:
        session = self._jobs.session
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
        return self._run(is_held, "queue.finish_job", columns, rows)

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
