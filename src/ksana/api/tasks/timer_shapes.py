"""Timers as dialect T writes and shows them: the body people send, the timer they are shown, and
the way between both and the domain. What T cannot express of a record is left as it is."""

from functools import lru_cache
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import UNSET
from msgspec import UnsetType as Unset

from ksana.api.tasks.members import (
    Defaults,
    align_names,
    check_name,
    check_placeholders,
    check_timer_type,
    given,
    merge,
    read_span,
    sent_members,
    show_time,
)
from ksana.api.tasks.schedule_shapes import (
    Chosen,
    ScheduleBody,
    Span,
    base_of,
    merge_schedule,
    read_chosen,
)
from ksana.api.tasks.secret_members import (
    find_stored,
    keep_signing_secret,
    mask_body,
    mask_headers,
    read_body,
    read_headers,
)
from ksana.base.durations import format_duration
from ksana.base.errors import InvalidError
from ksana.base.instant import DAY, MILLISECOND, Instant
from ksana.domain.cron_spread import seed_of
from ksana.domain.schedule import Cron
from ksana.domain.schedule_json import write_schedule
from ksana.domain.tasks import headers as header_rules
from ksana.domain.tasks.records import Definition, Options, RetryPolicy, Task


class HttpBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is called."""

    method: Literal["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD"] | Unset | None = UNSET
    url: Annotated[str, msgspec.Meta(max_length=header_rules.MAX_URL)] | Unset | None = UNSET
    headers: dict[str, str | None] | Unset | None = UNSET
    body: str | Unset | None = UNSET


class TimerBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A timer, whole or in part."""

    SERVER_OWNED: ClassVar[tuple[str, ...]] = ("id",)
    ALSO_CALLED: ClassVar[dict[str, str]] = {
        **dict.fromkeys(("url", "target_url", "method", "headers", "body", "request"), "http"),
        **dict.fromkeys(("cron", "cron_expr", "every", "interval", "run_at", "at"), "schedule"),
        "retries": "max_retries",
        "timeout_seconds": "timeout",
    }

    id: str | Unset | None = UNSET
    name: Annotated[str, msgspec.Meta(max_length=128)] | Unset | None = UNSET
    enabled: bool | Unset | None = UNSET
    type: Literal["http", "queue", "node"] | Unset | None = UNSET
    http: HttpBody | Unset | None = UNSET
    schedule: ScheduleBody | Unset | None = UNSET
    timeout: Span | Unset | None = UNSET
    max_retries: Annotated[int, msgspec.Meta(ge=0, le=1000)] | Unset | None = UNSET
    retry_backoff: Span | Unset | None = UNSET


class WholeTimer(TimerBody, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A timer to make. An empty id is generated."""

    SERVER_OWNED: ClassVar[tuple[str, ...]] = ()

    http: HttpBody
    schedule: ScheduleBody


class HttpView(msgspec.Struct, frozen=True):
    """The call that a timer makes."""

    method: str
    url: str
    headers: dict[str, str]
    body: str


class TimerView(msgspec.Struct, frozen=True, kw_only=True):
    """A timer as it is answered; an absent time is an empty text."""

    id: str
    name: str
    enabled: bool
    type: str
    http: HttpView
    schedule: dict[str, Any]
    timeout: str
    max_retries: int
    retry_backoff: str
    last_run_at: str
    next_run_at: str
    last_status: str
    last_error: str
    task_id: int
    version: int
    created_at: str
    updated_at: str


def show_timer(task: Task) -> TimerView:
    """Render a timer."""
    definition = task.definition
    max_runs = definition.options.max_runs
    schedule = {
        name: "" if value is None else value
        for name, value in write_schedule(definition.schedule).items()
    }
    if max_runs is not None:
        schedule["max_runs"] = max_runs
    return TimerView(
        id=task.job_id,
        name=definition.name,
        enabled=task.status == "ENABLED",
        type=definition.options.type,
        http=HttpView(
            definition.http_method,
            definition.target_url,
            mask_headers(definition.headers, definition.options.secret_headers),
            (mask_body(definition) or "") if definition.options.type == "http" else "",
        ),
        schedule=schedule,
        timeout=format_duration(definition.timeout_us),
        max_retries=definition.retry.max_retries,
        retry_backoff=format_duration(definition.retry.initial_delay_us),
        last_run_at=show_time(task.last_run_at) or "",
        next_run_at=(show_time(task.next_slot_at) or "") if task.fire_at is not None else "",
        last_status=task.last_status,
        last_error=task.last_error,
        task_id=task.id,
        version=task.version,
        created_at=show_time(task.created_at) or "",
        updated_at=show_time(task.updated_at) or "",
    )


def read_timer(
    body: TimerBody, defaults: Defaults, now: Instant, old: Task | None = None
) -> Definition:
    """Read a whole timer and check all of it. Of `old`, everything that T cannot express stays."""
    before = _fresh(defaults) if old is None else old.definition
    http = given(body.http, HttpBody())
    if before.options.type != "http":
        return _read_other(body, defaults, now, before, old)
    check_timer_type(given(body.type, "http"))
    name, url = given(body.name, ""), given(http.url, "")
    check_name(name, may_be_empty=old is None or old.dialect == "T")
    if not url:
        raise InvalidError("http.url is needed", field="http.url")
    header_rules.check_url(url, field="http.url")
    sent = {key: value for key, value in given(http.headers, {}).items() if value is not None}
    chosen = _read_schedule(body, defaults, now, old)
    stored = find_stored(None if old is None else old.definition, url, name)
    keep_signing_secret(stored)
    timeout, backoff = given(body.timeout, None), given(body.retry_backoff, None)
    definition = msgspec.structs.replace(
        before,
        name=name,
        schedule=chosen.schedule,
        http_method=given(http.method, "GET"),
        target_url=url,
        headers=read_headers(sent, before.options.secret_headers, stored, "http.headers"),
        body=read_body(given(http.body, ""), before.options.secret_body, stored, "http.body"),
        timeout_us=defaults.timer_timeout_us
        if timeout is None
        else read_span(timeout, "timeout", least=MILLISECOND),
        retry=_read_retry(body, defaults, before.retry, backoff),
        options=msgspec.structs.replace(before.options, max_runs=chosen.max_runs),
    )
    if old is not None and old.dialect == "C" and definition.options.template:
        check_placeholders(definition, "http.url", "http.headers", "http.body")
    return definition


def _read_other(
    body: TimerBody, defaults: Defaults, now: Instant, before: Definition, old: Task | None
) -> Definition:
    """A record that makes no call: T can change when it runs and how often it is tried, and what
    it hands over stays."""
    kind, http = before.options.type, given(body.http, HttpBody())
    if given(body.type, kind) != kind:
        check_timer_type(given(body.type, kind))
        raise InvalidError(f"the type is changed from {kind} at /api/v1/tasks", field="type")
    if given(http.url, "") or given(http.headers, {}) or given(http.body, ""):
        raise InvalidError(f"a task of type {kind} makes no call", field="http")
    name = given(body.name, "")
    check_name(name, may_be_empty=old is None or old.dialect == "T")
    chosen = _read_schedule(body, defaults, now, old)
    timeout, backoff = given(body.timeout, None), given(body.retry_backoff, None)
    return msgspec.structs.replace(
        before,
        name=name,
        schedule=chosen.schedule,
        timeout_us=before.timeout_us
        if timeout is None
        else read_span(timeout, "timeout", least=MILLISECOND, most=30 * DAY),
        retry=_read_retry(body, defaults, before.retry, backoff),
        options=msgspec.structs.replace(before.options, max_runs=chosen.max_runs),
    )


def _read_retry(
    body: TimerBody, defaults: Defaults, before: RetryPolicy, backoff: float | str | None
) -> RetryPolicy:
    return msgspec.structs.replace(
        before,
        max_retries=given(body.max_retries, defaults.timer_max_retries),
        initial_delay_us=(
            defaults.timer_retry_backoff_us
            if backoff is None
            else read_span(backoff, "retry_backoff", most=30 * DAY)
        ),
    )


@lru_cache(maxsize=8)
def _fresh(defaults: Defaults) -> Definition:
    """A record made through T with nothing but defaults."""
    options = Options(
        follow_redirects=defaults.follow_redirects,
        max_queued=defaults.max_queued,
        misfire_grace_us=defaults.misfire_grace_us,
        retry_on_callback_failure=defaults.retry_on_callback_failure,
        on_orphan=defaults.on_orphan,
        delivery=defaults.delivery,
        history_limit=defaults.history_limit,
        response_limit=defaults.response_limit,
    )
    return Definition(
        name="",
        description="",
        schedule=Cron("0 0 0 1 1 *"),
        retry=RetryPolicy(),
        concurrency_policy="SKIP",
        misfire_policy="SKIP",
        options=options,
    )


def _read_schedule(body: TimerBody, defaults: Defaults, now: Instant, old: Task | None) -> Chosen:
    members = sent_members(given(body.schedule, ScheduleBody()))
    if not members:
        raise InvalidError("schedule is needed", field="schedule")
    held = None if old is None else old.definition.schedule
    cron = held if isinstance(held, Cron) else None
    return read_chosen(
        members,
        {},
        now,
        dst_gap=cron.dst_gap if cron else defaults.dst_gap,
        dst_overlap=cron.dst_overlap if cron else defaults.dst_overlap,
        old=None
        if old is None
        else Chosen(old.definition.schedule, old.definition.options.max_runs),
        seed=_seed(body, old),
    )


def _seed(body: TimerBody, old: Task | None) -> str:
    """What chooses its places: its name, its id, or, where we choose the id, what it calls."""
    if old is not None:
        return seed_of(given(body.name, ""), old.job_id)
    http = given(body.http, None)
    url = "" if http is None else given(http.url, "")
    return seed_of(given(body.name, ""), given(body.id, "") or url)


def change_timer(patch: TimerBody, defaults: Defaults, now: Instant, old: Task) -> Definition:
    """Merge a change into a timer and read the whole again."""
    sent, definition = sent_members(patch), old.definition
    base = {
        name: value
        for name, value in sent_members(show_timer(old)).items()
        if name in TimerBody.__struct_fields__
    }
    base["schedule"] = base_of(definition.schedule, definition.options.max_runs)
    http = sent.get("http")
    if isinstance(http, dict) and isinstance(http.get("headers"), dict):
        http["headers"] = align_names(http["headers"], definition.headers)
    merged = merge(base, {name: value for name, value in sent.items() if name != "schedule"})
    if "schedule" in sent:
        merged["schedule"] = merge_schedule(base["schedule"], sent["schedule"])
    return read_timer(msgspec.convert(merged, TimerBody), defaults, now, old)
