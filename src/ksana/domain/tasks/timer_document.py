"""One job of `jobs.json`: a task in the shape of dialect T, whole and unmasked, written and read
back without loss.

{"id", "task_id", "name", "enabled", "type", "http": {…}, "schedule": {…}, "timeout", "max_retries",
"retry_backoff", "version", "created_at", "updated_at", "task": {…}, "last_run_at", "next_run_at",
"last_status", "last_error"}

What T cannot express goes into `task`, by the names of `domain.tasks.Definition`, and only that:
the members of T stay the ones to edit. Everything but `http.url` and `schedule` may be left out; an
unknown member is refused by its name. A task of type `queue` or `node` has an empty `http.url`, its
payload in `http.body`, and its job in `task.options`.
"""

from operator import attrgetter
from typing import Any, Final

import msgspec

from ksana.base.durations import format_duration, parse_duration
from ksana.base.errors import InvalidError
from ksana.base.ids import JOB_ID
from ksana.base.instant import (
    DAY,
    MILLISECOND,
    SECOND,
    Instant,
    Micros,
    format_instant,
    parse_instant,
)
from ksana.domain import schedule as schedules
from ksana.domain.schedule import Cron, Once
from ksana.domain.schedule_json import read_schedule, write_schedule
from ksana.domain.tasks.headers import check_headers, check_method, check_url
from ksana.domain.tasks.job_runs import check_job
from ksana.domain.tasks.records import Definition, Dialect, Options, RetryPolicy, Task, TaskType
from ksana.domain.tasks.sealing import settle_seal

MAX_TASK_ID: Final = 2**53 - 1
_PLAIN: Final = (
    "description",
    "exec_type",
    "max_concurrency",
    "concurrency_policy",
    "misfire_policy",
    "catchup_limit",
    "callback_method",
    "callback_timeout_us",
    "tags",
)
_PLAIN_RETRY: Final = ("strategy", "max_delay_us", "jitter_us")
_OF_T: Final = ("type", "max_runs")
"""Options that T has members for."""
_PLAIN_OPTIONS: Final = tuple(name for name in Options.__struct_fields__ if name not in _OF_T)
_OTHER: Final = ("dialect", "body", "dst_gap", "dst_overlap", "retry", "options")


class TimerDefaults(msgspec.Struct, frozen=True):
    """What a job written by hand gets where it says nothing."""

    timeout_us: Micros = 10 * SECOND
    max_retries: int = 3
    retry_backoff_us: Micros = 5 * SECOND


DEFAULTS: Final = TimerDefaults()


class _Http(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    url: str = ""
    method: str = "GET"
    headers: dict[str, str] = {}
    body: str | None = None


class _Job(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    http: _Http
    schedule: dict[str, Any]
    id: str = ""
    task_id: int | None = None
    name: str = ""
    enabled: bool = True
    type: TaskType = "http"
    timeout: float | str | None = None
    max_retries: int | None = None
    retry_backoff: float | str | None = None
    version: int = 1
    created_at: str | None = None
    updated_at: str | None = None
    task: dict[str, Any] = {}
    runs_fired: int = 0
    last_run_at: str | None = None
    next_run_at: str | None = None
    last_status: str = ""
    last_error: str = ""


class StoredTimer(msgspec.Struct, frozen=True):
    """A job as read: complete and checked, but not yet placed in time."""

    task_id: int | None
    job_id: str
    dialect: Dialect
    definition: Definition
    is_enabled: bool
    version: int
    created_at: Instant | None
    updated_at: Instant | None
    runs_fired: int
    last_run_at: Instant | None
    next_run_at: Instant | None
    last_status: str
    last_error: str


def write_head(task: Task) -> dict[str, Any]:
    """The members that change only with the task's version."""
    definition = task.definition
    members: dict[str, Any] = {
        "id": task.job_id,
        "task_id": task.id,
        "name": definition.name,
        "enabled": task.status == "ENABLED",
        "type": definition.options.type,
        "http": {
            "method": definition.http_method,
            "url": definition.target_url,
            "headers": definition.headers,
            "body": definition.body or "",
        },
        "schedule": _write_schedule(definition),
        "timeout": format_duration(definition.timeout_us),
        "max_retries": definition.retry.max_retries,
        "retry_backoff": format_duration(definition.retry.initial_delay_us),
        "version": task.version,
        "created_at": format_instant(task.created_at),
        "updated_at": format_instant(task.updated_at),
    }
    beyond = _write_beyond(task.dialect, definition)
    return {**members, "task": beyond} if beyond else members


def write_tail(
    last_run_at: Instant | None,
    next_run_at: Instant | None,
    last_status: str,
    last_error: str,
    runs_fired: int | None,
) -> dict[str, Any]:
    """The members that every firing changes. `runs_fired` matters, and is given, only where
    `max_runs` is set."""
    count = {} if runs_fired is None else {"runs_fired": runs_fired}
    return {
        **count,
        "last_run_at": _write_instant(last_run_at),
        "next_run_at": _write_instant(next_run_at),
        "last_status": last_status,
        "last_error": last_error,
    }


def read_timer(
    text: bytes | msgspec.Raw, now: Instant, defaults: TimerDefaults = DEFAULTS
) -> StoredTimer:
    """Read one job. Raise InvalidError that says which member is wrong and what is allowed."""
    try:
        job = msgspec.json.decode(text, type=_Job)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InvalidError(str(error)) from None
    if job.id and not JOB_ID.match(job.id):
        raise InvalidError("id may have 1 to 128 letters, digits or ._~-", field="id")
    if job.task_id is not None and not 1 <= job.task_id <= MAX_TASK_ID:
        raise InvalidError("task_id must be a whole number from 1", field="task_id")
    if job.version < 1 or job.runs_fired < 0:
        raise InvalidError("version counts from 1 and runs_fired from 0", field="version")
    dialect = job.task.get("dialect", "T")
    if dialect not in ("T", "C"):
        raise InvalidError("task.dialect must be T or C", field="task.dialect")
    return StoredTimer(
        job.task_id,
        job.id,
        dialect,
        _read_definition(job, now, defaults),
        job.enabled,
        job.version,
        _read_instant(job.created_at, "created_at"),
        _read_instant(job.updated_at, "updated_at"),
        job.runs_fired,
        _read_instant(job.last_run_at, "last_run_at"),
        _read_instant(job.next_run_at, "next_run_at"),
        job.last_status[:24],
        job.last_error[:1024],
    )


def place(stored: StoredTimer, task_id: int, job_id: str, alive_at: Instant, now: Instant) -> Task:
    """Make a task of a stored job at a start. `alive_at` is the last sign of life before it.

    The slot that was next then stays next, even if it is past: firing judges what became of it by
    the task's misfire policy. If it is no slot of the schedule, somebody edited the file, and the
    first slot after `alive_at` is taken.
    """
    slot = _slot_of(stored, alive_at)
    is_armed = slot is not None and stored.is_enabled
    created_at = stored.created_at if stored.created_at is not None else now
    return Task(
        id=task_id,
        job_id=job_id,
        dialect=stored.dialect,
        definition=stored.definition,
        status="ENABLED" if stored.is_enabled else "DISABLED",
        version=stored.version,
        created_at=created_at,
        updated_at=stored.updated_at if stored.updated_at is not None else created_at,
        is_deleted=False,
        next_slot_at=slot,
        fire_at=schedules.fire_at(stored.definition.schedule, job_id, slot)
        if slot is not None and is_armed
        else None,
        runs_fired=stored.runs_fired,
        last_run_at=stored.last_run_at,
        last_status=stored.last_status,
        last_error=stored.last_error,
    )


def _slot_of(stored: StoredTimer, alive_at: Instant) -> Instant | None:
    schedule, known = stored.definition.schedule, stored.next_run_at
    most = stored.definition.options.max_runs
    if most is not None and stored.runs_fired >= most:
        return None
    if isinstance(schedule, Once):
        never_ran = stored.last_run_at is None and stored.last_status in ("", "paused")
        is_open = known == schedule.run_at or schedule.run_at > alive_at or never_ran
        return schedule.run_at if is_open else None
    if known is not None and schedules.latest_at_or_before(schedule, known) == known:
        return known
    return schedules.next_after(schedule, alive_at)


def _write_schedule(definition: Definition) -> dict[str, Any]:
    members = {
        name: "" if value is None else value
        for name, value in write_schedule(definition.schedule).items()
    }
    if definition.options.max_runs is not None:
        members["max_runs"] = definition.options.max_runs
    return members


def _write_beyond(dialect: Dialect, definition: Definition) -> dict[str, Any]:
    """What the members of T leave out, by difference from what they make of it."""
    beyond: dict[str, Any] = {} if dialect == "T" else {"dialect": dialect}
    if (values := _plain_of(definition)) != _BARE_PLAIN:
        for name, value, bare in zip(_PLAIN, values, _BARE_PLAIN, strict=True):
            if value != bare:
                beyond[name] = value
    if definition.body == "":
        beyond["body"] = ""
    if isinstance(definition.schedule, Cron):
        rules = {
            "dst_gap": definition.schedule.dst_gap,
            "dst_overlap": definition.schedule.dst_overlap,
        }
        beyond |= {name: value for name, value in rules.items() if value is not None}
    if (values := _plain_retry_of(definition.retry)) != _BARE_RETRY:
        beyond["retry"] = dict(zip(_PLAIN_RETRY, values, strict=True))
    if (values := _plain_options_of(definition.options)) != _BARE_OPTIONS:
        beyond["options"] = {
            name: value
            for name, value, bare in zip(_PLAIN_OPTIONS, values, _BARE_OPTIONS, strict=True)
            if value != bare
        }
    return beyond


def _read_definition(job: _Job, now: Instant, defaults: TimerDefaults) -> Definition:
    beyond = job.task
    for name in beyond:
        if name not in _PLAIN and name not in _OTHER:
            raise InvalidError(f"task.{name} is not known", field=f"task.{name}")
    if job.type == "http":
        check_method(job.http.method, field="http.method")
        check_url(job.http.url, field="http.url")
        check_headers(job.http.headers, field="http.headers")
    schedule = read_schedule(
        job.schedule,
        now,
        dst_gap=beyond.get("dst_gap"),
        dst_overlap=beyond.get("dst_overlap"),
        keep_anchor=True,
    )
    retries = defaults.max_retries if job.max_retries is None else job.max_retries
    if not 0 <= retries <= 1000:
        raise InvalidError("max_retries must lie between 0 and 1000", field="max_retries")
    if len(job.name) > 128 or (not job.name.strip() and beyond.get("dialect") == "C"):
        raise InvalidError(
            "name must have at most 128 characters, and a task of dialect C needs one", field="name"
        )
    backoff_us = _read_span(
        job.retry_backoff, "retry_backoff", defaults.retry_backoff_us, 0, 30 * DAY
    )
    longest = DAY if job.type == "http" else 30 * DAY
    definition = Definition(
        name=job.name,
        description="",
        schedule=schedule,
        http_method=job.http.method,
        target_url=job.http.url,
        headers=job.http.headers,
        body=job.http.body or None,
        timeout_us=_read_span(job.timeout, "timeout", defaults.timeout_us, MILLISECOND, longest),
        retry=RetryPolicy(retries, backoff_us),
        concurrency_policy="SKIP",
        misfire_policy="SKIP",
        options=Options(type=job.type, max_runs=job.schedule.get("max_runs")),
    )
    definition = _read_beyond(beyond, definition) if beyond else definition
    check_job(definition)
    return settle_seal(definition)


def _read_beyond(beyond: dict[str, Any], definition: Definition) -> Definition:
    """Put what T cannot express over what it said."""
    whole = msgspec.to_builtins(definition)
    whole |= {name: beyond[name] for name in _PLAIN if name in beyond}
    whole["body"] = definition.body or beyond.get("body")
    whole["retry"] |= _part(beyond, "retry", _PLAIN_RETRY)
    whole["options"] |= _part(beyond, "options", _PLAIN_OPTIONS)
    try:
        return msgspec.convert(whole, Definition)
    except msgspec.ValidationError as error:
        raise InvalidError(f"task: {error}", field="task") from None


_BARE: Final = Definition(
    name="",
    description="",
    schedule=Once(0),
    retry=RetryPolicy(),
    concurrency_policy="SKIP",
    misfire_policy="SKIP",
)
"""What the members of T make of everything they do not name (T0)."""

# Values are compared all at once, and looked at one by one where they differ.
_plain_of = attrgetter(*_PLAIN)
_plain_retry_of = attrgetter(*_PLAIN_RETRY)
_plain_options_of = attrgetter(*_PLAIN_OPTIONS)
_BARE_PLAIN: Final = _plain_of(_BARE)
_BARE_RETRY: Final = _plain_retry_of(_BARE.retry)
_BARE_OPTIONS: Final = _plain_options_of(_BARE.options)


def _part(beyond: dict[str, Any], name: str, allowed: tuple[str, ...]) -> dict[str, Any]:
    part = beyond.get(name, {})
    if not isinstance(part, dict) or not set(part) <= set(allowed):
        raise InvalidError(f"task.{name} may have {', '.join(allowed)}", field=f"task.{name}")
    return part


def _read_span(
    value: float | str | None, field: str, default: Micros, least: Micros, most: Micros
) -> Micros:
    if value is None or value == "":
        return default
    try:
        span = parse_duration(value)
    except ValueError as error:
        raise InvalidError(f"{field}: {error}", field=field) from None
    if not least <= span <= most:
        raise InvalidError(
            f"{field} must lie between {format_duration(least)} and {format_duration(most)}",
            field=field,
        )
    return span


def _read_instant(text: str | None, field: str) -> Instant | None:
    if not text:
        return None
    try:
        return parse_instant(text)
    except ValueError as error:
        raise InvalidError(f"{field}: {error}", field=field) from None


def _write_instant(at: Instant | None) -> str:
    return "" if at is None else format_instant(at)
