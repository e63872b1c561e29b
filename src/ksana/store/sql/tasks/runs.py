"""`task_runs` and `async_callbacks`: one record per firing, held under a token."""

from collections.abc import Sequence
from typing import Any

import msgspec

from ksana.base.instant import Instant
from ksana.domain.tasks.firing import Counts
from ksana.domain.tasks.records import Run, Task
from ksana.ports.tasks.tables import AttemptEnd, NewRun, RunEnd
from ksana.store.sql.core.session import Row, Session
from ksana.store.sql.tasks.definitions import read_task

_OPEN = frozenset({"SCHEDULED", "RUNNING"})
_NEW_COLUMNS = (
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
_HOLD_COLUMNS = ("held_by", "new_token", "at", "id", "token")
_END_COLUMNS = (*AttemptEnd.__struct_fields__, "at", "id", "token")
_PLAIN_COLUMNS = (
    "start_time",
    "end_time",
    "request_headers",
    "request_body",
    "response_code",
    "response_body",
    "attempts",
    "at",
    "id",
    "token",
)


class SqlRuns:
    """The runs of one transaction."""

    def __init__(self, session: Session, tx: Any) -> None:
        self._session = session
        self._now: Instant = tx.now

    def insert_many(self, runs: Sequence[NewRun]) -> list[int]:
        at = self._now
        rows = []
        for run in runs:
            task_id, status, host = run.task_id, run.status, run.host[:255]
            is_open = status in _OPEN
            rows.append(
                (
                    run.uid,
                    task_id,
                    task_id if is_open else None,
                    run.slot_at,
                    run.scheduled_time,
                    at if status == "RUNNING" else None,
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
                    run.callback_token,
                    run.override_body,
                    run.retry_of,
                    run.trace_id,
                    at,
                    at,
                )
            )
        return self._session.insert_tuples("runs.insert_run", _NEW_COLUMNS, rows)

    def find(self, run_id: int, *, lock: bool = False) -> Run | None:
        row = self._session.one("runs.lock_run" if lock else "runs.get_run", id=run_id)
        return None if row is None else _run(row)

    def find_id_by_uid(self, uid: str) -> int | None:
        row = self._session.one("runs.find_by_uid", uid=uid)
        return None if row is None else int(row[0])

    def find_id_by_callback_token(self, token: str) -> int | None:
        row = self._session.one("runs.find_by_callback_token", token=token)
        return None if row is None else int(row[0])

    def list_runs(
        self,
        *,
        task_id: int | None = None,
        status: str | None = None,
        since: Instant | None = None,
        until: Instant | None = None,
        limit: int = 20,
        skip: int = 0,
    ) -> list[Run]:
        filters = {"task_id": task_id, "status": status, "since": since, "until": until}
        return [
            _run(row)
            for row in self._session.filtered("runs.list_runs", filters, limit=limit, skip=skip)
        ]

    def count_runs(
        self,
        *,
        task_id: int | None = None,
        status: str | None = None,
        since: Instant | None = None,
        until: Instant | None = None,
    ) -> int:
        filters = {"task_id": task_id, "status": status, "since": since, "until": until}
        return int(self._session.filtered("runs.count_runs", filters)[0][0])

    def find_last(self, task_id: int) -> Run | None:
        row = self._session.one("runs.last_run_id", task_id=task_id)
        return None if row is None or row[0] is None else self.find(int(row[0]))

    def count_open(self, task_id: int) -> Counts:
        row = self._session.one("runs.count_open", task_id=task_id)
        assert row is not None
        return Counts(int(row[0]) - int(row[1]), int(row[1]))

    def count_open_of(self, task_ids: Sequence[int]) -> dict[int, Counts]:
        if not task_ids:
            return {}
        rows = self._session.all("runs.count_open_of", task_ids=self._session.list_of(task_ids))
        return {int(row[0]): Counts(int(row[1]) - int(row[2]), int(row[2])) for row in rows}

    def hold_ready(
        self, host: str, limit: int, instance_id: str, tokens: Sequence[int]
    ) -> list[tuple[Run, Task]]:
        rows = self._session.all_at_once("runs.list_ready", host=host, limit=limit)
        seen = [
            (_run(row[:34]), read_task(row[34:]), token)
            for row, token in zip(rows, tokens, strict=False)
        ]
        changes = [
            (instance_id, new_token, self._now, run.id, run.token) for run, _, new_token in seen
        ]
        is_ours = self._session.run_each("runs.hold_run", _HOLD_COLUMNS, changes)
        return [
            (_held(run, token), task)
            for (run, task, token), ours in zip(seen, is_ours, strict=True)
            if ours
        ]

    def list_ready_hosts(self) -> list[str]:
        return [str(row[0]) for row in self._session.all("runs.list_ready_hosts")]

    def finish_held(self, ends: Sequence[tuple[int, int, AttemptEnd]]) -> list[bool]:
        at, values, run_each = self._now, msgspec.structs.astuple, self._session.run_each
        plain: list[Row] = []
        other: list[Row] = []
        is_plain = [_is_plain(end) for _, _, end in ends]
        for (run_id, token, end), is_one in zip(ends, is_plain, strict=True):
            if is_one:
                plain.append(
                    (
                        end.start_time,
                        end.end_time,
                        end.request_headers,
                        end.request_body,
                        end.response_code,
                        end.response_body,
                        end.attempts,
                        at,
                        run_id,
                        token,
                    )
                )
            else:
                other.append((*values(end), at, run_id, token))
        were_plain = iter(run_each("runs.finish_plain_run", _PLAIN_COLUMNS, plain))
        were_other = iter(run_each("runs.finish_run", _END_COLUMNS, other))
        return [next(were_plain if is_one else were_other) for is_one in is_plain]

    def end_if_unchanged(self, run: Run, end: RunEnd) -> bool:
        return (
            self._session.run(
                "runs.end_run",
                id=run.id,
                old_status=run.status,
                token=run.token,
                at=self._now,
                **msgspec.structs.asdict(end),
            )
            == 1
        )

    def make_ready_if_retrying(self, run_id: int) -> bool:
        return self._session.run("runs.make_ready", id=run_id, at=self._now) == 1

    def promote_next(self, task_id: int) -> int | None:
        row = self._session.one("runs.first_waiting", task_id=task_id)
        if row is None or row[0] is None:
            return None
        return (
            int(row[0]) if self._session.run("runs.promote_run", id=row[0], at=self._now) else None
        )

    def list_wakes(self, now: Instant, limit: int) -> list[tuple[int, str, int]]:
        return [
            (row[0], row[1], row[2])
            for row in self._session.all("runs.list_wakes", now=now, limit=limit)
        ]

    def next_wake_at(self) -> Instant | None:
        row = self._session.one("runs.next_wake_at")
        return None if row is None else row[0]

    def list_held(self, me: str, before: Instant) -> list[int]:
        return [int(row[0]) for row in self._session.all("runs.list_held", me=me, before=before)]

    def list_orphans(self, me: str, limit: int) -> list[int]:
        return [int(row[0]) for row in self._session.all("runs.list_orphans", me=me, limit=limit)]

    def is_held(self, run_id: int, token: int) -> bool:
        return self._session.one("runs.is_held", id=run_id, token=token) is not None

    def list_stalled(self, limit: int) -> list[int]:
        return [int(row[0]) for row in self._session.all("runs.list_stalled", limit=limit)]

    def list_open_of_task(self, task_id: int, limit: int = 10_000) -> list[int]:
        return [
            int(row[0])
            for row in self._session.all("runs.list_open_of_task", task_id=task_id, limit=limit)
        ]

    def extend_deadline_if_pending(self, run_id: int, deadline: Instant) -> bool:
        return (
            self._session.run("runs.extend_deadline", id=run_id, deadline=deadline, at=self._now)
            == 1
        )

    def count_pending_callbacks(self) -> int:
        row = self._session.one("runs.count_pending_callbacks")
        return int(row[0]) if row else 0

    def insert_callback(self, run_id: int, headers: str, body: str, status: str) -> None:
        self._session.run(
            "runs.insert_callback",
            task_run_id=run_id,
            received_at=self._now,
            headers_json=headers,
            body=body,
            status=status,
        )

    def list_callbacks(self, run_id: int) -> list[tuple[int, Instant, str, str]]:
        rows = self._session.all("runs.list_callbacks", task_run_id=run_id)
        return [(row[0], row[1], row[2], row[3]) for row in rows]


def _held(run: Run, token: int) -> Run:
    return msgspec.structs.replace(
        run, status="RUNNING", token=token, attempt=run.attempt + (run.status == "RETRYING")
    )


def _run(row: Sequence[Any]) -> Run:
    values = list(row)
    values[11], values[20], values[31] = bool(values[11]), bool(values[20]), values[31] or "[]"
    return Run(*values)


def _is_plain(end: AttemptEnd) -> bool:
    """Whether `finish_plain_run` says all there is to say."""
    return (
        end.status == "SUCCESS"
        and end.reason == "ANSWERED_2XX"
        and end.error_message is None
        and not end.response_truncated
        and end.response_encoding is None
    )
