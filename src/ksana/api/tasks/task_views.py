"""Tasks as dialect C shows them."""

from typing import Any

import msgspec

from ksana.api.tasks.job_shapes import NodeView, QueueView, show_node, show_queue
from ksana.api.tasks.members import show_seconds, show_time
from ksana.api.tasks.schedule_shapes import show_schedule
from ksana.api.tasks.secret_members import mask_body, mask_headers
from ksana.base.durations import format_duration
from ksana.base.instant import Instant, Micros
from ksana.domain.schedule import Cron
from ksana.domain.secrets import MASK
from ksana.domain.tasks.records import RetryPolicy, Task


class RetryView(msgspec.Struct, frozen=True):
    """Pauses in seconds."""

    max_retries: int
    initial_delay: float
    strategy: str
    max_delay: float
    jitter: float


class TaskView(msgspec.Struct, frozen=True, kw_only=True):
    """A task as it is answered. Secrets read `***`."""

    id: int
    job_id: str
    dialect: str
    name: str
    description: str
    type: str
    queue: QueueView | None
    node: NodeView | None
    cron_expr: str | None
    timezone: str
    schedule: dict[str, Any]
    dst_gap: str | None
    dst_overlap: str | None
    exec_type: str
    http_method: str
    target_url: str
    headers: dict[str, str]
    body_template: str | None
    template: bool
    timeout_seconds: float
    connect_timeout: str | None
    retry_policy: RetryView
    max_concurrency: int
    concurrency_policy: str
    max_queued: int
    misfire_policy: str
    misfire_grace: str
    catchup_limit: int
    callback_method: str
    callback_timeout_sec: float
    retry_on_callback_failure: bool
    on_orphan: str
    delivery: str
    follow_redirects: int
    signing_secret: str | None
    secret_headers: list[str]
    secret_body: bool
    tags: list[str]
    history_limit: int
    response_limit: int
    """Bytes; 0 keeps an answer whole."""
    status: str
    version: int
    created_at: str
    updated_at: str
    next_run_at: str | None
    last_run_at: str | None
    last_status: str
    last_error: str
    runs_fired: int


def show_task(task: Task) -> dict[str, Any]:
    """Render a task for an answer that adds members of its own."""
    return msgspec.structs.asdict(view_task(task))


def view_task(task: Task) -> TaskView:
    """Render a task."""
    definition, options = task.definition, task.definition.options
    schedule = definition.schedule
    cron = schedule if isinstance(schedule, Cron) else None
    return TaskView(
        id=task.id,
        job_id=task.job_id,
        dialect=task.dialect,
        name=definition.name,
        description=definition.description,
        type=options.type,
        queue=show_queue(definition),
        node=show_node(definition),
        cron_expr=cron.expr if cron else None,
        timezone=cron.timezone if cron else "UTC",
        schedule=show_schedule(schedule, options.max_runs),
        dst_gap=cron.dst_gap if cron else None,
        dst_overlap=cron.dst_overlap if cron else None,
        exec_type=definition.exec_type,
        http_method=definition.http_method,
        target_url=definition.target_url,
        headers=mask_headers(definition.headers, options.secret_headers),
        body_template=mask_body(definition) if options.type == "http" else None,
        template=options.template,
        timeout_seconds=show_seconds(definition.timeout_us),
        connect_timeout=_show_span(options.connect_timeout_us),
        retry_policy=_show_retry(definition.retry),
        max_concurrency=definition.max_concurrency,
        concurrency_policy=definition.concurrency_policy,
        max_queued=options.max_queued,
        misfire_policy=definition.misfire_policy,
        misfire_grace=format_duration(options.misfire_grace_us),
        catchup_limit=definition.catchup_limit,
        callback_method=definition.callback_method,
        callback_timeout_sec=show_seconds(definition.callback_timeout_us),
        retry_on_callback_failure=options.retry_on_callback_failure,
        on_orphan=options.on_orphan,
        delivery=options.delivery,
        follow_redirects=options.follow_redirects,
        signing_secret=MASK if options.signing_secret else None,
        secret_headers=list(options.secret_headers),
        secret_body=options.secret_body,
        tags=list(definition.tags),
        history_limit=options.history_limit,
        response_limit=options.response_limit or 0,
        status=task.status,
        version=task.version,
        created_at=show_time(task.created_at) or "",
        updated_at=show_time(task.updated_at) or "",
        next_run_at=show_time(next_run_at(task)),
        last_run_at=show_time(task.last_run_at),
        last_status=task.last_status,
        last_error=task.last_error,
        runs_fired=task.runs_fired,
    )


def next_run_at(task: Task) -> Instant | None:
    """The slot the task is armed for; a paused or finished one has none."""
    return None if task.fire_at is None else task.next_slot_at


def _show_span(span_us: Micros | None) -> str | None:
    return None if span_us is None else format_duration(span_us)


def _show_retry(retry: RetryPolicy) -> RetryView:
    return RetryView(
        retry.max_retries,
        show_seconds(retry.initial_delay_us),
        retry.strategy,
        show_seconds(retry.max_delay_us),
        show_seconds(retry.jitter_us),
    )
