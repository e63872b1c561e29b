"""`tasks`: definitions and where their schedules stand."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import msgspec

from ksana.base.instant import SECOND, Instant
from ksana.domain.schedule import Cron, Schedule
from ksana.domain.tasks.records import Definition, Options, RetryPolicy, Task
from ksana.ports.tasks.tables import Advance
from ksana.store.sql.core.session import Row, Session

_encode = msgspec.json.Encoder().encode
# Kept by their text: tasks of a crowd, and one task from firing to firing, have the same.
_decode_schedule = lru_cache(maxsize=4096)(msgspec.json.Decoder(Schedule).decode)
_decode_headers = msgspec.json.Decoder(dict[str, str]).decode
_decode_retry = lru_cache(maxsize=1024)(msgspec.json.Decoder(RetryPolicy).decode)
_decode_options = msgspec.json.Decoder(Options).decode
_DEFAULT_OPTIONS = Options()
_NO_RETRY = RetryPolicy()
_GONE = "#"
_NO_RETRY_JSON = _encode(_NO_RETRY).decode()
_ADVANCE_COLUMNS = ("next_slot_at", "fire_at", "started", "last_status", "id", "version", "slot")
_LAST_COLUMNS = ("last_status", "last_error", "last_run_at", "id")


class SqlTasks:
    """The tasks of one transaction."""

    def __init__(self, session: Session, tx: Any) -> None:
        self._session = session
        self._now: Instant = tx.now

    def insert(
        self,
        job_id: str,
        dialect: str,
        definition: Definition,
        status: str,
        next_slot_at: Instant | None,
        fire_at: Instant | None,
        last_status: str = "",
    ) -> int:
        now = self._now
        task = Task(
            0,
            job_id,
            dialect,  # type: ignore[arg-type]
            definition,
            status,  # type: ignore[arg-type]
            1,
            now,
            now,
            False,
            next_slot_at,
            fire_at,
            0,
            None,
            last_status,
            "",
        )
        return self.insert_many([task])[0]

    def insert_many(self, tasks: Sequence[Task]) -> list[int]:
        rows = []
        for task in tasks:
            row = _columns(task.definition)
            row["job_id"] = task.job_id
            row["dialect"] = task.dialect
            row["living_name"] = task.definition.name if task.dialect == "C" else None
            row["status"] = task.status
            row["version"] = task.version
            row["created_at"] = task.created_at
            row["updated_at"] = task.updated_at
            row["next_slot_at"] = task.next_slot_at
            row["fire_at"] = task.fire_at
            row["last_status"] = task.last_status
            rows.append(row)
        return self._session.insert_rows("tasks.insert_task", rows)

    def restore(self, task: Task) -> None:
        """Put back a task under its own id."""
        row = _columns(task.definition)
        row.update(
            id=task.id,
            job_id=task.job_id,
            dialect=task.dialect,
            living_name=task.definition.name if task.dialect == "C" else None,
            status=task.status,
            version=task.version,
            created_at=task.created_at,
            updated_at=task.updated_at,
            next_slot_at=task.next_slot_at,
            fire_at=task.fire_at,
            runs_fired=task.runs_fired,
            last_run_at=task.last_run_at,
            last_status=task.last_status,
            last_error=task.last_error,
        )
        self._session.run("tasks.insert_task_with_id", **row)

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
        row = _columns(definition)
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
        return self._session.run("tasks.change_task", **row) == 1

    def delete_if_living(self, task: Task) -> bool:
        # The mark cannot stand in a job id, so what is kept never collides and is cut off again
        # when read.
        gone = f"{task.job_id}{_GONE}{task.id}"
        return (
            self._session.run("tasks.delete_task", id=task.id, gone_job_id=gone, at=self._now) == 1
        )

    def find(self, task_id: int, *, lock: bool = False) -> Task | None:
        row = self._session.one("tasks.lock_task" if lock else "tasks.get_task", id=task_id)
        return None if row is None else read_task(row)

    def find_id(self, job_id: str) -> int | None:
        row = self._session.one("tasks.find_id", job_id=job_id)
        return None if row is None else int(row[0])

    def find_by_name(self, name: str) -> int | None:
        row = self._session.one("tasks.find_living_name", name=name)
        return None if row is None else int(row[0])

    def list_tasks(
        self,
        *,
        status: str | None = None,
        name: str | None = None,
        tag: str | None = None,
        exec_type: str | None = None,
        after: int = 0,
        limit: int = 100,
        skip: int = 0,
    ) -> list[Task]:
        filters = _filters(status, name, tag, exec_type)
        rows = self._session.filtered(
            "tasks.list_tasks", filters, after=after, limit=limit, skip=skip
        )
        return [read_task(row) for row in rows]

    def count(
        self,
        *,
        status: str | None = None,
        name: str | None = None,
        tag: str | None = None,
        exec_type: str | None = None,
    ) -> int:
        return int(
            self._session.filtered("tasks.count_tasks", _filters(status, name, tag, exec_type))[0][
                0
            ]
        )

    def count_by_status(self) -> dict[str, int]:
        return {str(row[0]): int(row[1]) for row in self._session.all("tasks.count_by_status")}

    def list_due(
        self, now: Instant, limit: int, known: Mapping[int, Task] = MappingProxyType({})
    ) -> list[Task]:
        if not known:
            return [
                read_task(row)
                for row in self._session.all_at_once("tasks.list_due", now=now, limit=limit)
            ]
        rows = self._session.all_at_once("tasks.list_due_standing", now=now, limit=limit)
        # Each is looked up once: what is known may change meanwhile.
        found = [_if_current(known.get(row[0]), row[1]) for row in rows]
        strange = [row[0] for row, task in zip(rows, found, strict=True) if task is None]
        read = {task.id: task for task in self._list_of(strange)} if strange else {}
        return [
            read[row[0]] if task is None else _standing(task, row)
            for row, task in zip(rows, found, strict=True)
        ]

    def _list_of(self, ids: Sequence[int]) -> list[Task]:
        return [
            read_task(row)
            for row in self._session.all_at_once(
                "tasks.list_tasks_of", ids=self._session.list_of(ids)
            )
        ]

    def next_fire_at(self) -> Instant | None:
        row = self._session.one("tasks.next_fire_at")
        return None if row is None else row[0]

    def advance_unchanged(self, advances: Sequence[Advance]) -> list[bool]:
        return self._session.run_each(
            "tasks.advance_task", _ADVANCE_COLUMNS, [_advance_row(one) for one in advances]
        )

    def note_last(self, task_id: int, last_status: str, last_error: str, at: Instant) -> None:
        self.note_last_of([(task_id, last_status, last_error)], at)

    def note_last_of(self, facts: Sequence[tuple[int, str, str]], at: Instant) -> None:
        plain: list[int] = []
        rows: list[Row] = []
        for task_id, last_status, last_error in facts:
            if last_status == "success" and not last_error:
                plain.append(task_id)
            else:
                rows.append((last_status, last_error[:1024], at, task_id))
        if plain:
            self._session.run_over("tasks.note_success", plain, last_run_at=at)
        self._session.run_tuples("tasks.note_last", _LAST_COLUMNS, rows)


def _if_current(task: Task | None, version: int) -> Task | None:
    return task if task is not None and task.version == version else None


def _standing(task: Task, row: Sequence[Any]) -> Task:
    """A known task where it stands now."""
    _, _, next_slot_at, fire_at, runs_fired, last_run_at, last_status, last_error = row
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
        next_slot_at,
        fire_at,
        runs_fired,
        last_run_at,
        last_status,
        last_error,
    )


def _advance_row(one: Advance) -> tuple[Any, ...]:
    task = one.task
    return (
        one.next_slot_at,
        one.fire_at,
        one.started,
        one.last_status,
        task.id,
        task.version,
        task.next_slot_at,
    )


def _filters(
    status: str | None, name: str | None, tag: str | None, exec_type: str | None
) -> dict[str, str | None]:
    return {
        "status": status,
        "name": None if name is None else f"%{_like(name)}%",
        "tag": None if tag is None else f"%,{_like(tag)},%",
        "exec_type": exec_type,
    }


def _like(text: str) -> str:
    """A part that LIKE … ESCAPE '!' matches as it stands. `!` and not a backslash, which the three
    databases read differently."""
    return text.replace("!", "!!").replace("%", "!%").replace("_", "!_")


@lru_cache(maxsize=1024)
def _write_once(part: RetryPolicy | Options) -> str:
    """Most tasks share them."""
    return _encode(part).decode()


def _columns(definition: Definition) -> dict[str, Any]:
    schedule = definition.schedule
    is_cron = isinstance(schedule, Cron)
    return {
        "name": definition.name,
        "description": definition.description,
        "cron_expr": schedule.expr if isinstance(schedule, Cron) else None,
        "timezone": schedule.timezone if isinstance(schedule, Cron) and is_cron else "UTC",
        "schedule_json": _encode(schedule).decode(),
        "exec_type": definition.exec_type,
        "http_method": definition.http_method,
        "target_url": definition.target_url,
        "headers_json": _encode(definition.headers).decode() if definition.headers else "{}",
        "body_template": definition.body,
        "timeout_seconds": definition.timeout_us / SECOND,
        "retry_policy_json": _write_once(definition.retry),
        "max_concurrency": definition.max_concurrency,
        "concurrency_policy": definition.concurrency_policy,
        "misfire_policy": definition.misfire_policy,
        "catchup_limit": definition.catchup_limit,
        "callback_method": definition.callback_method,
        "callback_timeout_sec": definition.callback_timeout_us / SECOND,
        "tags": "," + ",".join(definition.tags) + "," if definition.tags else "",
        "options_json": _write_once(definition.options),
    }


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
        job_id = job_id.rpartition(_GONE)[0]
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
