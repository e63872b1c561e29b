"""Tasks as people write them in dialect C: the bodies. How they are read is in `task_shapes`."""

from typing import Annotated, ClassVar, Final, Literal

import msgspec
from msgspec import UNSET
from msgspec import UnsetType as Unset

from ksana.api.tasks.job_shapes import NodeBody, QueueBody
from ksana.api.tasks.schedule_shapes import Expr, MaxRuns, ScheduleBody, Span, Time, ZoneName
from ksana.domain.tasks import headers as header_rules
from ksana.domain.tasks.records import MAX_CATCHUP

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

    ALSO_CALLED: ClassVar[dict[str, str]] = {
        "cron": "cron_expr",
        "expr": "cron_expr",
        "tz": "timezone",
        "every": "schedule",
        "interval": "schedule",
        "run_at": "schedule",
        "method": "http_method",
        "body": "body_template",
        "payload": "body_template",
        "uri": "target_url",
        "retries": "retry_policy",
        "max_retries": "retry_policy",
        "enabled": "status",
    }

    name: Name | Unset | None = UNSET
    target_url: Url | Unset | None = UNSET
    description: Annotated[str, msgspec.Meta(max_length=512)] | Unset | None = UNSET
    type: Literal["http", "queue", "node"] | Unset | None = UNSET
    queue: QueueBody | Unset | None = UNSET
    node: NodeBody | Unset | None = UNSET
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
    """A task to make, or to replace another: it needs a name, a schedule, and a target or the job
    of its type."""

    name: Name
