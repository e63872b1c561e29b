"""`task_runs` and `async_callbacks`: how they are read, and the guarded writes of runs. Every value
is given: nothing is decided here."""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from ksana.base.instant import Instant, Micros
from ksana.domain.lifecycle import RUN
from ksana.domain.tasks.changes import AttemptRecord, RunChange
from ksana.domain.tasks.firing import Counts
from ksana.domain.tasks.records import NewRun, Run
from ksana.ports.tasks.runs import Callback, TokenRun
from ksana.store.sql.core.event_rows import dated_id
from ksana.store.sql.core.session import Row, Session

KIND: Final = "runs"
"""What counts of runs are called."""

RunRow: Final = msgspec.defstruct(
    "RunRow", [(f"column{n}", Any) for n in range(35)], array_like=True, gc=False
)
"""The columns every run statement selects, for reading many rows in one step."""


_LONGEST_ID: Final = 18
"""Digits that the number of a row can have, and that every database takes for one."""
_FINAL: Final = RUN.final
_NEW_COLUMNS: Final = (
    "uid",
    "task_id",
    "open_task",
    "slot_at",
    "scheduled_time",
    "start_time",
    "end_time",
    "status",
    "trigger_kind",
    "exec_type",
    "is_counted",
    "host",
    "ready_host",
    "held_by",
    "token",
    "reason",
    "callback_token",
    "override_body",
    "retry_of",
    "trace_id",
    "created_at",
    "updated_at",
)
_FINISH_COLUMNS: Final = (
    "status",
    "end_time",
    "open_task",
    "wake_at",
    "request_headers",
    "request_body",
    "response_code",
    "response_body",
    "response_truncated",
    "response_encoding",
    "error_message",
    "reason",
    "next_retry_time",
    "callback_deadline",
    "attempts",
    "at",
    "id",
    "old_status",
    "token",
)
_PLAIN_COLUMNS: Final = (
    "status",
    "end_time",
    "request_headers",
    "request_body",
    "response_code",
    "response_body",
    "reason",
    "attempts",
    "at",
    "id",
    "old_status",
    "token",
)
_MOVE_COLUMNS: Final = (
    "status",
    "new_token",
    "attempt",
    "start_time",
    "end_time",
    "open_task",
    "ready_host",
    "wake_at",
    "held_by",
    "error_message",
    "reason",
    "next_retry_time",
    "callback_deadline",
    "callback_data",
    "attempts",
    "at",
    "id",
    "old_status",
    "token",
)


class SqlRuns:
    """The runs of one transaction."""

    def __init__(self, session: Session, tx: Any) -> None:
        self._session = session

    def find(self, run_id: int, *, lock: bool = False) -> Run | None:
        row = self._session.one("runs.lock_run" if lock else "runs.get_run", id=run_id)
        return None if row is None else read_run(row)

    def find_id(self, uid: str) -> int | None:
        row = self._session.one("runs.find_id", uid=uid)
        return None if row is None else int(row[0])

    def find_by_token(self, callback_hash: str) -> TokenRun | None:
        row = self._session.one("runs.find_by_token", callback_token=callback_hash)
        # PostgreSQL fills the column up.
        return None if row is None else TokenRun(row[0], row[1], row[2].rstrip(), row[3])

    def measure_callbacks(self, run_id: int) -> tuple[int, int, bool]:
        row = self._session.one("runs.measure_callbacks", run_id=run_id)
        assert row is not None
        return int(row[0]), int(row[1]), bool(row[2])

    def list_runs(
        self,
        *,
        task_id: int | None = None,
        slot_at: Instant | None = None,
        is_open: bool = False,
        limit: int = 20,
    ) -> list[Run]:
        filters = {
            "task_id": None if is_open else task_id,
            "open_task": task_id if is_open else None,
            "slot_at": slot_at,
        }
        rows = self._session.filtered("runs.list_runs", filters, limit=limit)
        return [read_run(row) for row in rows]

    def count_open(self, task_ids: Sequence[int]) -> dict[int, Counts]:
        if not task_ids:
            return {}
        rows = self._session.all("runs.count_open", task_ids=list(task_ids))
        return {int(row[0]): Counts(int(row[1]) - int(row[2]), int(row[2])) for row in rows}

    def list_slots(self, task_id: int, after: Instant, until: Instant, limit: int) -> list[Instant]:
        rows = self._session.all(
            "runs.list_slots", task_id=task_id, after=after, until=until, limit=limit
        )
        return [int(row[0]) for row in rows]

    def list_claimed(
        self, task_ids: Sequence[int], since: Instant, until: Instant
    ) -> set[tuple[int, Instant]]:
        rows = self._session.all(
            "runs.list_claimed", task_ids=list(task_ids), since=since, until=until
        )
        return {(int(row[0]), int(row[1])) for row in rows}

    def count_pending_callbacks(self) -> int:
        row = self._session.one("runs.count_pending_callbacks")
        return int(row[0]) if row else 0

    def list_callbacks(self, run_id: int) -> list[Callback]:
        rows = self._session.all("runs.list_callbacks", task_run_id=run_id)
        return [Callback(*row) for row in rows]


def read_run(row: Row) -> Run:
    """Read a row of the columns every run statement selects."""
    values = list(row)
    values[11], values[20], values[31] = bool(values[11]), bool(values[20]), values[31] or "[]"
    return Run(*values)


def list_runs_as(session: Session, name: str, **params: Any) -> list[Run]:
    """Read the runs a statement selects."""
    rows = session.all_as(RunRow, name, **params)
    return [read_run(msgspec.structs.astuple(row)) for row in rows]


def find_dated_of_run(session: Session, run_id: str) -> list[str]:
    """Where events of a run may lie with those of others: at the instants that its row keeps."""
    if not run_id.isdecimal() or len(run_id) > _LONGEST_ID:
        return []
    row = session.one("runs.find_instants", id=int(run_id))
    return [] if row is None else [dated_id(at) for at in sorted(set(row))]


class SqlRunChanges:
    """Changes of runs in one transaction. `open_task` is the index of unfinished runs: it holds the
    task's id until the run is final."""

    def __init__(self, session: Session, tx: Any) -> None:
        self._session = session
        self._now: Instant = tx.now
        self._counts = tx.row_counts

    def insert(self, runs: Sequence[NewRun]) -> list[int]:
        at = self._now
        rows: list[Row] = []
        for run in runs:
            task_id, status, host = run.task_id, run.status, run.host[:255]
            is_open = status not in _FINAL
            rows.append(
                (
                    run.uid,
                    task_id,
                    task_id if is_open else None,
                    run.slot_at,
                    run.scheduled_time,
                    at if run.held_by is not None else None,
                    None if is_open else at,
                    status,
                    run.trigger,
                    run.exec_type,
                    int(run.is_counted),
                    host,
                    host if run.is_ready else None,
                    run.held_by,
                    run.token,
                    run.reason,
                    run.callback_hash,
                    run.override_body,
                    run.retry_of,
                    run.trace_id,
                    at,
                    at,
                )
            )
        statuses = [run.status for run in runs]
        for status in set(statuses):
            self._counts.add(KIND, status, statuses.count(status))
        return self._session.insert("runs.insert_run", _NEW_COLUMNS, rows)

    def finish(self, changes: Sequence[RunChange]) -> list[bool]:
        # Most attempts leave 7 of the 19 values NULL. A statement that does not bind them is a
        # measured hot spot: recording a run takes 15.4 µs with it and 17.5 µs without.
        at = self._now
        plain: list[Row] = []
        other: list[Row] = []
        is_plain: list[bool] = []
        for change in changes:
            record, status = change.record, change.new
            assert record is not None
            is_one = (
                change.error is None
                and change.wake_at is None
                and record.response_encoding is None
                and not record.response_truncated
                and status in _FINAL
            )
            is_plain.append(is_one)
            if is_one:
                plain.append(
                    (
                        status,
                        change.end_time,
                        record.request_headers,
                        record.request_body,
                        record.response_code,
                        record.response_body,
                        change.reason,
                        change.attempts,
                        at,
                        change.run_id,
                        change.old,
                        change.token,
                    )
                )
            else:
                other.append(_finish_row(change, record, at))
        were_plain = iter(self._session.run_each("runs.finish_plain_run", _PLAIN_COLUMNS, plain))
        were_other = iter(self._session.run_each("runs.finish_run", _FINISH_COLUMNS, other))
        return self._count(
            changes, [next(were_plain if is_one else were_other) for is_one in is_plain]
        )

    def move(self, changes: Sequence[RunChange]) -> list[bool]:
        rows: list[Row] = [
            (
                change.new,
                change.new_token,
                change.attempt,
                change.start_time,
                change.end_time,
                None if change.new in _FINAL else change.task_id,
                change.ready_host,
                change.wake_at,
                change.held_by,
                change.error,
                change.reason,
                change.next_retry_time,
                change.callback_deadline,
                change.callback_data,
                change.attempts,
                self._now,
                change.run_id,
                change.old,
                change.token,
            )
            for change in changes
        ]
        return self._count(changes, self._session.run_each("runs.move_run", _MOVE_COLUMNS, rows))

    def _count(self, changes: Sequence[RunChange], done: list[bool]) -> list[bool]:
        """Count what became of those whose guard held."""
        moves = [
            (change.old, change.new)
            for change, is_done in zip(changes, done, strict=True)
            if is_done
        ]
        for old, new in set(moves):
            count = moves.count((old, new))
            self._counts.add(KIND, old, -count)
            self._counts.add(KIND, new, count)
        return done

    def pace(self, runs: Sequence[tuple[int, Instant]]) -> None:
        rows = [(wake_at, run_id) for run_id, wake_at in runs]
        self._session.run_rows("runs.pace_run", ("wake_at", "id"), rows)

    def count_in(self, runs: Sequence[tuple[int, int]]) -> int:
        return self._session.run_rows("runs.count_in_run", ("id", "token"), list(runs))

    def put_off(self, task_id: int, by_us: Micros) -> None:
        self._session.run("runs.put_off_runs", task_id=task_id, by_us=by_us)

    def insert_callback(self, run_id: int, headers: str, body: str, status: str) -> None:
        self._session.run(
            "runs.insert_callback",
            task_run_id=run_id,
            received_at=self._now,
            headers_json=headers,
            body=body,
            status=status,
        )


def _finish_row(change: RunChange, record: AttemptRecord, at: Instant) -> Row:
    return (
        change.new,
        change.end_time,
        None if change.new in _FINAL else change.task_id,
        change.wake_at,
        record.request_headers,
        record.request_body,
        record.response_code,
        record.response_body,
        int(record.response_truncated),
        record.response_encoding,
        change.error,
        change.reason,
        change.next_retry_time,
        change.callback_deadline,
        change.attempts,
        at,
        change.run_id,
        change.old,
        change.token,
    )
