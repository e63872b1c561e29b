"""Tasks as dialect C writes them: the body people send, and the way from it to the domain."""

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET
from msgspec import UnsetType as Unset

from ksana.api.tasks.members import (
    Defaults,
    align_names,
    check_name,
    check_placeholders,
    check_type,
    given,
    merge,
    read_span,
    sent_members,
)
from ksana.api.tasks.schedule_shapes import (
    SHORT_MEMBERS,
    Chosen,
    Expr,
    MaxRuns,
    ScheduleBody,
    Span,
    Time,
    ZoneName,
    base_of,
    merge_schedule,
    read_chosen,
)
from ksana.api.tasks.secret_members import (
    Stored,
    find_stored,
    read_body,
    read_headers,
    read_signing_secret,
)
from ksana.api.tasks.task_views import view_task
from ksana.base.errors import InvalidError
from ksana.base.instant import DAY, HOUR, MILLISECOND, SECOND, Instant, Micros
from ksana.domain.schedule import Cron
from ksana.domain.tasks import headers as header_rules
from ksana.domain.tasks.records import (
    MAX_CATCHUP,
    Definition,
    Dialect,
    MisfirePolicy,
    Options,
    RetryPolicy,
    Task,
    TaskType,
)

Count = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]
Method = Literal["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD"]
CallbackMethod = Literal["POST", "PUT", "PATCH", "GET"]
Tag = Annotated[
    str,
    msgspec.Meta(
        min_length=1,
        max_length=64,
        pattern=r"^[^,\x00-\x20\x7f](?:[^,\x00-\x1f\x7f]*[^,\x00-\x20\x7f])?$",
    ),
]
Tags = Annotated[list[Tag], msgspec.Meta(max_length=32)]
Name = Annotated[str, msgspec.Meta(max_length=128)]
Url = Annotated[str, msgspec.Meta(max_length=header_rules.MAX_URL)]

MAX_TAGS_TEXT: Final = 1000
LONGEST_WAIT: Final[Micros] = 30 * DAY
SERVER_OWNED: Final = frozenset(
    {
        "id",
        "job_id",
        "dialect",
        "created_at",
        "updated_at",
        "next_run_at",
        "last_run",
        "last_run_at",
        "last_status",
        "last_error",
        "runs_fired",
        "updated",
    }
)


class RetryBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a failed attempt is tried again; pauses in seconds or as durations."""

    max_retries: Annotated[int, msgspec.Meta(ge=0, le=1000)] | Unset | None = UNSET
    initial_delay: Span | Unset | None = UNSET
    strategy: Literal["fixed", "exponential"] | Unset | None = UNSET
    max_delay: Span | Unset | None = UNSET
    jitter: Span | Unset | None = UNSET


class TaskBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A task, whole or in part. What is absent or null gets its default, or on PATCH, where absent,
    stays."""

    name: Name | Unset | None = UNSET
    target_url: Url | Unset | None = UNSET
    description: Annotated[str, msgspec.Meta(max_length=512)] | Unset | None = UNSET
    type: Literal["http", "queue", "node"] | Unset | None = UNSET
    cron_expr: Expr | Unset | None = UNSET
    timezone: ZoneName | Unset | None = UNSET
    schedule: ScheduleBody | Unset | None = UNSET
    start_at: Time | Unset | None = UNSET
    end_at: Time | Unset | None = UNSET
    max_runs: MaxRuns | Unset | None = UNSET
    jitter: Span | Unset | None = UNSET
    dst_gap: Literal["next", "skip", "shift"] | Unset | None = UNSET
    dst_overlap: Literal["first", "second", "both"] | Unset | None = UNSET
    exec_type: Literal["SYNC", "ASYNC"] | Unset | None = UNSET
    http_method: Method | Unset | None = UNSET
    headers: dict[str, str | None] | Unset | None = UNSET
    body_template: str | Unset | None = UNSET
    template: bool | Unset | None = UNSET
    timeout_seconds: Span | Unset | None = UNSET
    connect_timeout: Span | Unset | None = UNSET
    retry_policy: RetryBody | Unset | None = UNSET
    max_concurrency: Annotated[int, msgspec.Meta(ge=1, le=10_000)] | Unset | None = UNSET
    concurrency_policy: Literal["QUEUE", "SKIP", "PARALLEL"] | Unset | None = UNSET
    max_queued: Annotated[int, msgspec.Meta(ge=0, le=100_000)] | Unset | None = UNSET
    misfire_policy: Literal["FIRE_NOW", "SKIP", "CATCH_UP_LIMITED"] | Unset | None = UNSET
    misfire_grace: Span | Unset | None = UNSET
    catchup_limit: Annotated[int, msgspec.Meta(ge=0, le=MAX_CATCHUP)] | Unset | None = UNSET
    callback_method: CallbackMethod | Unset | None = UNSET
    callback_timeout_sec: Span | Unset | None = UNSET
    retry_on_callback_failure: bool | Unset | None = UNSET
    on_orphan: Literal["retry", "fail"] | Unset | None = UNSET
    delivery: Literal["at_least_once", "at_most_once"] | Unset | None = UNSET
    follow_redirects: Annotated[int, msgspec.Meta(ge=0, le=5)] | Unset | None = UNSET
    signing_secret: Annotated[str, msgspec.Meta(max_length=512)] | Unset | None = UNSET
    secret_headers: (
        Annotated[list[str], msgspec.Meta(max_length=header_rules.MAX_HEADERS)] | Unset | None
    ) = UNSET
    secret_body: bool | Unset | None = UNSET
    tags: Tags | Unset | None = UNSET
    history_limit: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] | Unset | None = UNSET
    response_limit: Annotated[int, msgspec.Meta(ge=0, le=2**40)] | Unset | None = UNSET
    status: Literal["ENABLED", "DISABLED"] | Unset | None = UNSET
    version: Annotated[int, msgspec.Meta(ge=1)] | Unset | None = UNSET


class WholeTask(TaskBody, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A task to make, or to replace another: it needs a name, a target and a schedule."""

    name: Name
    target_url: Url


def read_task(
    body: TaskBody,
    defaults: Defaults,
    now: Instant,
    *,
    dialect: Dialect = "C",
    old: Task | None = None,
) -> Definition:
    """Read a whole task and check all of it. `old` lends its secrets and its interval's anchor."""
    chosen = _read_schedule(body, defaults, now, old)
    name, url = given(body.name, ""), given(body.target_url, "")
    check_name(name, may_be_empty=dialect == "T")
    if not url:
        raise InvalidError("target_url is needed", field="target_url")
    header_rules.check_url(url, field="target_url")
    stored = find_stored(None if old is None else old.definition, url, name)
    options = _read_options(body, defaults, chosen.max_runs, stored)
    headers = {key: value for key, value in given(body.headers, {}).items() if value is not None}
    misfire_policy: MisfirePolicy = given(body.misfire_policy, "FIRE_NOW")
    catchup_limit = given(body.catchup_limit, 0)
    if misfire_policy == "CATCH_UP_LIMITED" and not catchup_limit:
        raise InvalidError(
            f"catchup_limit must lie between 1 and {MAX_CATCHUP} "
            "where misfire_policy is CATCH_UP_LIMITED",
            field="catchup_limit",
        )
    timeout_us = defaults.request_timeout_us
    callback_timeout_us = 300 * SECOND
    if (callback_timeout := given(body.callback_timeout_sec, None)) is not None:
        callback_timeout_us = read_span(
            callback_timeout, "callback_timeout_sec", least=MILLISECOND, most=LONGEST_WAIT
        )
    if (timeout := given(body.timeout_seconds, None)) is not None:
        timeout_us = read_span(timeout, "timeout_seconds", least=MILLISECOND)
    definition = Definition(
        name=name,
        description=given(body.description, ""),
        schedule=chosen.schedule,
        exec_type=given(body.exec_type, "SYNC"),
        http_method=given(body.http_method, "GET"),
        target_url=url,
        headers=read_headers(headers, options.secret_headers, stored, "headers"),
        body=read_body(given(body.body_template, ""), options.secret_body, stored, "body_template"),
        timeout_us=timeout_us,
        retry=_read_retry(given(body.retry_policy, None), defaults),
        max_concurrency=given(body.max_concurrency, 1),
        concurrency_policy=given(body.concurrency_policy, "QUEUE"),
        misfire_policy=misfire_policy,
        catchup_limit=catchup_limit,
        callback_method=given(body.callback_method, "POST"),
        callback_timeout_us=callback_timeout_us,
        tags=_read_tags(given(body.tags, [])),
        options=options,
    )
    if options.template and dialect == "C":
        check_placeholders(definition, "target_url", "headers", "body_template")
    return definition


def change_task(patch: TaskBody, defaults: Defaults, now: Instant, old: Task) -> Definition:
    """Merge a change into a task and read the whole again."""
    sent = sent_members(patch)
    base = {
        name: value
        for name, value in sent_members(view_task(old)).items()
        if name in _WRITABLE and value is not None
    }
    base |= {"schedule": base_of(old.definition.schedule, old.definition.options.max_runs)}
    if isinstance(sent.get("headers"), dict):
        sent["headers"] = align_names(sent["headers"], old.definition.headers)
    merged = merge(base, {name: value for name, value in sent.items() if name != "schedule"})
    if "schedule" in sent:
        merged["schedule"] = merge_schedule(base["schedule"], sent["schedule"])
    elif (
        "cron_expr" in sent
        and sent["cron_expr"] is None
        and isinstance(old.definition.schedule, Cron)
    ):
        raise InvalidError("cron_expr or schedule is needed", field="cron_expr")
    for name in ("cron_expr", "timezone"):
        # Shown twice, in the schedule and beside it: only what was sent is meant.
        if name not in sent:
            merged.pop(name, None)
    for name in SHORT_MEMBERS:
        if name in sent:  # a null too: it sets the schedule's member back
            merged[name] = sent[name]
    for name in ("dst_gap", "dst_overlap"):
        if name not in sent and merged["schedule"].get("kind", "cron") != "cron":
            merged.pop(name, None)
    return read_task(msgspec.convert(merged, TaskBody), defaults, now, dialect=old.dialect, old=old)


_WRITABLE: Final = frozenset(TaskBody.__struct_fields__) - {"version"}


def _read_schedule(body: TaskBody, defaults: Defaults, now: Instant, old: Task | None) -> Chosen:
    members = {} if body.schedule is None or body.schedule is UNSET else sent_members(body.schedule)
    short = {name: value for name in SHORT_MEMBERS if (value := getattr(body, name)) is not UNSET}
    dst_gap, dst_overlap = given(body.dst_gap, None), given(body.dst_overlap, None)
    chosen = read_chosen(
        members,
        short,
        now,
        dst_gap=dst_gap or defaults.dst_gap,
        dst_overlap=dst_overlap or defaults.dst_overlap,
        old=None
        if old is None
        else Chosen(old.definition.schedule, old.definition.options.max_runs),
    )
    if not isinstance(chosen.schedule, Cron):
        for name, value in (("dst_gap", dst_gap), ("dst_overlap", dst_overlap)):
            if value is not None:
                raise InvalidError(f"{name} goes with a cron schedule only", field=name)
    return chosen


def _read_options(
    body: TaskBody, defaults: Defaults, max_runs: int | None, stored: Stored
) -> Options:
    kind: TaskType = given(body.type, "http")
    check_type(kind)
    connect = given(body.connect_timeout, None)
    grace = given(body.misfire_grace, None)
    limit = given(body.response_limit, None)
    secret_headers = tuple(given(body.secret_headers, []))
    for name in secret_headers:
        fault = header_rules.find_header_fault(name, "")
        if fault is not None:
            raise InvalidError(fault, field="secret_headers")
    return Options(
        type=kind,
        template=given(body.template, True),
        connect_timeout_us=None
        if connect is None
        else read_span(connect, "connect_timeout", least=MILLISECOND),
        follow_redirects=given(body.follow_redirects, defaults.follow_redirects),
        signing_secret=read_signing_secret(given(body.signing_secret, None), stored),
        secret_headers=secret_headers,
        secret_body=given(body.secret_body, False),
        max_queued=given(body.max_queued, defaults.max_queued),
        misfire_grace_us=defaults.misfire_grace_us
        if grace is None
        else read_span(grace, "misfire_grace", most=LONGEST_WAIT),
        retry_on_callback_failure=given(
            body.retry_on_callback_failure, defaults.retry_on_callback_failure
        ),
        on_orphan=given(body.on_orphan, defaults.on_orphan),
        delivery=given(body.delivery, defaults.delivery),
        max_runs=max_runs,
        history_limit=given(body.history_limit, defaults.history_limit),
        response_limit=defaults.response_limit if limit is None else limit or None,
    )


def _read_retry(body: RetryBody | None, defaults: Defaults) -> RetryPolicy:
    if body is None:
        return RetryPolicy(max_retries=defaults.max_retries)

    def span(value: Any, name: str, default: Micros) -> Micros:
        sent = given(value, None)
        return (
            default if sent is None else read_span(sent, f"retry_policy.{name}", most=LONGEST_WAIT)
        )

    return RetryPolicy(
        max_retries=given(body.max_retries, defaults.max_retries),
        initial_delay_us=span(body.initial_delay, "initial_delay", 5 * SECOND),
        strategy=given(body.strategy, "fixed"),
        max_delay_us=span(body.max_delay, "max_delay", HOUR),
        jitter_us=span(body.jitter, "jitter", 0),
    )


def _read_tags(tags: list[str]) -> tuple[str, ...]:
    unique = tuple(dict.fromkeys(tags))
    if len(",".join(unique)) > MAX_TAGS_TEXT:
        raise InvalidError(f"tags may have {MAX_TAGS_TEXT} characters together", field="tags")
    return unique
