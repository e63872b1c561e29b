"""A task's row: how a definition becomes its columns, and a row a task again."""

from functools import lru_cache
from typing import Any, Final

import msgspec

from ksana.base.instant import SECOND
from ksana.domain.schedule import Cron, Schedule
from ksana.domain.tasks.records import Definition, Options, RetryPolicy, Task
from ksana.domain.tasks.sealing import find_seal
from ksana.store.sql.core.session import Row, Session

_encode = msgspec.json.Encoder().encode
# Cached by their text: tasks made alike, and one task from firing to firing, have the same.
_decode_schedule = lru_cache(maxsize=4096)(msgspec.json.Decoder(Schedule).decode)
_decode_headers = msgspec.json.Decoder(dict[str, str]).decode
_decode_retry = lru_cache(maxsize=1024)(msgspec.json.Decoder(RetryPolicy).decode)
_decode_options = msgspec.json.Decoder(Options).decode
_DEFAULT_OPTIONS = Options()
_NO_RETRY = RetryPolicy()
GONE_MARK = "#"
"""Stands before the id in the job id of a deleted task."""
_NO_RETRY_JSON = _encode(_NO_RETRY).decode()
DEFINITION_COLUMNS = (
    "name",
    "description",
    "cron_expr",
    "timezone",
    "schedule_json",
    "exec_type",
    "http_method",
    "target_url",
    "headers_json",
    "body_template",
    "timeout_seconds",
    "retry_policy_json",
    "max_concurrency",
    "concurrency_policy",
    "misfire_policy",
    "catchup_limit",
    "callback_method",
    "callback_timeout_sec",
    "tags",
    "options_json",
    "sealed_by",
)

TaskRow: Final = msgspec.defstruct(
    "TaskRow", [(f"column{n}", Any) for n in range(33)], array_like=True, gc=False
)
"""The columns every task statement selects, for reading many rows in one step."""


def list_tasks_as(session: Session, name: str, **params: Any) -> list[Task]:
    """Read the tasks a statement selects."""
    rows = session.all_as(TaskRow, name, **params)
    return [read_task(msgspec.structs.astuple(row)) for row in rows]


@lru_cache(maxsize=1024)
def _write_once(part: RetryPolicy | Options) -> str:
    """Encode a part that most tasks have in common."""
    return _encode(part).decode()


def definition_row(definition: Definition) -> Row:
    schedule = definition.schedule
    return (
        definition.name,
        definition.description,
        schedule.expr if isinstance(schedule, Cron) else None,
        schedule.timezone if isinstance(schedule, Cron) else "UTC",
        _encode(schedule).decode(),
        definition.exec_type,
        definition.http_method,
        definition.target_url,
        _encode(definition.headers).decode() if definition.headers else "{}",
        definition.body,
        definition.timeout_us / SECOND,
        _write_once(definition.retry),
        definition.max_concurrency,
        definition.concurrency_policy,
        definition.misfire_policy,
        definition.catchup_limit,
        definition.callback_method,
        definition.callback_timeout_us / SECOND,
        "," + ",".join(definition.tags) + "," if definition.tags else "",
        _write_once(definition.options),
        find_seal(definition),
    )


def write_secrets(definition: Definition) -> dict[str, str | None]:
    """The columns that hold a task's secrets."""
    return {
        "headers_json": _encode(definition.headers).decode() if definition.headers else "{}",
        "body_template": definition.body,
        "options_json": _write_once(definition.options),
        "sealed_by": find_seal(definition),
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
