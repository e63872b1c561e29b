"""`tasks`: definitions, as they are read and changed, and where their schedules stand. How one
becomes its columns is told in `task_rows`."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

import msgspec

from ksana.base.instant import SECOND, Instant, Micros
from ksana.domain.schedule import Schedule
from ksana.domain.tasks.records import Definition, Options, RetryPolicy, Task
from ksana.ports.store import WHOLE, Share
from ksana.ports.tasks.tables import Advance, FindTask, find_no_task
from ksana.store.sql.core.session import Row, Session
from ksana.store.sql.tasks.task_rows import (
    DEFINITION_COLUMNS,
    GONE_MARK,
    definition_row,
    write_secrets,
)

KIND: Final = "tasks"
"""What counts of living tasks are called."""

# Cached by their text: tasks made alike, and one task from firing to firing, have the same.
_decode_schedule = lru_cache(maxsize=4096)(msgspec.json.Decoder(Schedule).decode)
_decode_headers = msgspec.json.Decoder(dict[str, str]).decode
_decode_retry = lru_cache(maxsize=1024)(msgspec.json.Decoder(RetryPolicy).decode)
_decode_options = msgspec.json.Decoder(Options).decode
_DEFAULT_OPTIONS = Options()
_NO_RETRY = RetryPolicy()
_NO_RETRY_JSON = msgspec.json.encode(_NO_RETRY).decode()

_NEW_COLUMNS = (
    "job_id",
    "dialect",
    "living_name",
    "status",
    "version",
    "created_at",
    "updated_at",
    "next_slot_at",
    "fire_at",
    "last_status",
    *DEFINITION_COLUMNS,
)
_ADVANCE_COLUMNS = ("next_slot_at", "fire_at", "started", "last_status", "id", "version", "slot")

TaskRow: Final = msgspec.defstruct(
    "TaskRow", [(f"column{n}", Any) for n in range(33)], array_like=True, gc=False
)
"""The columns every task statement selects, for reading many rows in one step."""


class DueRow(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Where a due task stands."""

    id: int
    version: int
    next_slot_at: Instant
    fire_at: Instant
    runs_fired: int
    last_run_at: Instant | None
    last_status: str
    last_error: str


class SqlTasks:
    """The tasks of one transaction."""

    def __init__(self, session: Session, tx: Any) -> None:
        self._session = session
        self._now: Instant = tx.now
        self._counts = tx.row_counts

    def insert(self, tasks: Sequence[Task]) -> list[int]:
        for task in tasks:
            self._counts.add(KIND, task.status, 1)
        return self._session.insert("tasks.insert_task", _NEW_COLUMNS, [_new_row(t) for t in tasks])

    def restore(self, task: Task) -> None:
        self._counts.add(KIND, task.status, 1)
        row = dict(zip(_NEW_COLUMNS, _new_row(task), strict=True))
        self._session.run(
            "tasks.insert_task_with_id",
            id=task.id,
            runs_fired=task.runs_fired,
            last_run_at=task.last_run_at,
            last_error=task.last_error,
            **row,
        )

    def change_if_version(
        self,
        task: Task,
        definition: Definition,
        status: str,
        next_slot_at: Instant | None,
        fire_at: Instant | None,
        runs_fired: int,
        last_status: str,
    ) -> bool:
        row = dict(zip(DEFINITION_COLUMNS, definition_row(definition), strict=True))
        row.update(
            id=task.id,
            version=task.version,
            living_name=definition.name if task.dialect == "C" else None,
            status=status,
            updated_at=self._now,
            next_slot_at=next_slot_at,
            fire_at=fire_at,
            runs_fired=runs_fired,
            last_status=last_status,
        )
        is_changed = self._session.run("tasks.change_task", **row) == 1
        if is_changed and status != task.status:
            self._counts.add(KIND, task.status, -1)
            self._counts.add(KIND, status, 1)
        return is_changed

    def delete_if_living(self, task: Task, kept: Definition) -> bool:
        # The mark cannot stand in a job id, so what is kept never collides and is cut off again
        # when read.
        gone = f"{task.job_id}{GONE_MARK}{task.id}"
        deleted = self._session.run(
            "tasks.delete_task",
            id=task.id,
            gone_job_id=gone,
            at=self._now,
            **write_secrets(kept),
        )
        if deleted == 1:
            self._counts.add(KIND, task.status, -1)
        return deleted == 1

    def find(self, task_id: int, *, lock: bool = False) -> Task | None:
        row = self._session.one("tasks.lock_task" if lock else "tasks.get_task", id=task_id)
        return None if row is None else read_task(row)

    def lock(self, task_ids: Sequence[int]) -> None:
        if task_ids:
            self._session.all("tasks.lock_tasks", ids=sorted(task_ids))

    def find_id(self, *, job_id: str | None = None, name: str | None = None) -> int | None:
        rows = self._session.filtered("tasks.find_id", {"job_id": job_id, "name": name})
        return int(rows[0][0]) if rows else None

    def list_tasks(
        self, *, status: str | None = None, after: int = 0, limit: int = 100
    ) -> list[Task]:
        rows = self._session.filtered(
            "tasks.list_tasks", {"status": status}, after=after, limit=limit
        )
        return [read_task(row) for row in rows]

    def note_last(self, facts: Sequence[tuple[int, str, str]], at: Instant) -> None:
        # Few facts are told of many tasks, mostly "success": one statement for each of them.
        alike: dict[tuple[str, str], list[int]] = {}
        for task_id, last_status, last_error in facts:
            alike.setdefault((last_status, last_error[:1024]), []).append(task_id)
        for (last_status, last_error), ids in alike.items():
            self._session.run_later(
                "tasks.note_last", last_status=last_status, last_error=last_error, at=at, ids=ids
            )


class SqlTaskDue:
    """Where the schedules of tasks stand, in one transaction."""

    def __init__(self, session: Session, _: Any) -> None:
        self._session = session

    def list_due(
        self,
        now: Instant,
        limit: int,
        find: FindTask = find_no_task,
        share: Share = WHOLE,
        left_since: Instant = 0,
    ) -> list[Task]:
        if share.of == 1:
            rows = self._session.all_as(DueRow, "tasks.list_due", now=now, limit=limit)
        else:
            rows = self._session.all_as(
                DueRow,
                "tasks.list_due_share",
                now=now,
                limit=limit,
                mine=share.mine,
                of=share.of,
                left_since=left_since,
            )
        # Each is looked up once: what is known may change meanwhile.
        known = [find(row.id, row.version) for row in rows]
        missing = [row.id for row, task in zip(rows, known, strict=True) if task is None]
        read = {}
        if missing:
            found = list_tasks_as(self._session, "tasks.list_of", ids=missing)
            read = {task.id: task for task in found}
        return [
            read[row.id] if task is None else _where_it_stands(task, row)
            for row, task in zip(rows, known, strict=True)
        ]

    def next_fire_at(
        self, share: Share = WHOLE, now: Instant = 0, left_us: Micros = 0
    ) -> Instant | None:
        if share.of == 1:
            row = self._session.one("tasks.next_fire_at")
            return None if row is None else row[0]
        row = self._session.one("tasks.next_fire_at_share", now=now, mine=share.mine, of=share.of)
        assert row is not None
        coming, of_ours, of_others = row
        left_at = None if of_others is None else of_others + left_us
        return min((at for at in (coming, of_ours, left_at) if at is not None), default=None)

    def advance_unchanged(self, advances: Sequence[Advance]) -> list[bool]:
        return self._session.run_each(
            "tasks.advance_task",
            _ADVANCE_COLUMNS,
            [
                (
                    one.next_slot_at,
                    one.fire_at,
                    one.started,
                    one.last_status,
                    one.task.id,
                    one.task.version,
                    one.task.next_slot_at,
                )
                for one in advances
            ],
        )

    def arm_if_ended(self, task: Task, slot_at: Instant, fire_at: Instant) -> bool:
        row = {"id": task.id, "version": task.version, "slot_at": slot_at, "fire_at": fire_at}
        return self._session.run("tasks.arm_ended_task", **row) == 1


def _where_it_stands(task: Task, row: DueRow) -> Task:
    # By position, in the order of the fields: there is one for every firing.
    return Task(
        task.id,
        task.job_id,
        task.dialect,
        task.definition,
        task.status,
        task.version,
        task.created_at,
        task.updated_at,
        task.is_deleted,
        row.next_slot_at,
        row.fire_at,
        row.runs_fired,
        row.last_run_at,
        row.last_status,
        row.last_error,
    )


def list_tasks_as(session: Session, name: str, **params: Any) -> list[Task]:
    """Read the tasks a statement selects."""
    rows = session.all_as(TaskRow, name, **params)
    return [read_task(msgspec.structs.astuple(row)) for row in rows]


def read_task(row: Row) -> Task:
    """Read a row of the columns every task statement selects."""
    (
        task_id,
        job_id,
        dialect,
        name,
        description,
        _timezone,
        schedule_json,
        exec_type,
        method,
        url,
        headers_json,
        body,
        timeout,
        retry_json,
        max_concurrency,
        policy,
        misfire,
        catchup,
        callback_method,
        callback_timeout,
        tags,
        options_json,
        status,
        version,
        created_at,
        updated_at,
        deleted,
        next_slot_at,
        fire_at,
        runs_fired,
        last_run_at,
        last_status,
        last_error,
    ) = row
    definition = Definition(
        name,
        description,
        _decode_schedule(schedule_json),
        exec_type,
        method,
        url,
        _decode_headers(headers_json) if headers_json != "{}" else {},
        body,
        round(timeout * SECOND),
        _NO_RETRY if retry_json == _NO_RETRY_JSON else _decode_retry(retry_json),
        max_concurrency,
        policy,
        misfire,
        catchup,
        callback_method,
        round(callback_timeout * SECOND),
        tuple(tags.strip(",").split(",")) if tags else (),
        _DEFAULT_OPTIONS if options_json == "{}" else _decode_options(options_json),
    )
    if deleted:
        job_id = job_id.rpartition(GONE_MARK)[0]
    return Task(
        task_id,
        job_id,
        dialect,
        definition,
        status,
        version,
        created_at,
        updated_at,
        bool(deleted),
        next_slot_at,
        fire_at,
        runs_fired,
        last_run_at,
        last_status,
        last_error,
    )


def _new_row(task: Task) -> Row:
    return (
        task.job_id,
        task.dialect,
        task.definition.name if task.dialect == "C" else None,
        task.status,
        task.version,
        task.created_at,
        task.updated_at,
        task.next_slot_at,
        task.fire_at,
        task.last_status,
        *definition_row(task.definition),
    )
