"""Tasks and runs: the frozen types that T and C share. A timer job and a task are one record seen
through two dialects."""

from typing import Final, Literal

import msgspec

from ksana.base.instant import HOUR, MINUTE, SECOND, Instant, Micros
from ksana.base.short_cache import cache_short
from ksana.domain.schedule import Schedule

Dialect = Literal["T", "C"]
ExecType = Literal["SYNC", "ASYNC"]
TaskType = Literal["http", "queue", "node"]
QueuePriority = Literal["LOW", "NORMAL", "HIGH", "URGENT"]
ConcurrencyPolicy = Literal["QUEUE", "SKIP", "PARALLEL"]
MisfirePolicy = Literal["FIRE_NOW", "SKIP", "CATCH_UP_LIMITED"]
Strategy = Literal["fixed", "exponential"]
OnOrphan = Literal["retry", "fail"]
Delivery = Literal["at_least_once", "at_most_once"]
Status = Literal["ENABLED", "DISABLED"]
Trigger = Literal["schedule", "manual", "catchup", "retry", "backfill"]

MAX_CATCHUP: Final = 1000

QUEUE_PLACE: Final = "@queue"
NODE_PLACE: Final = "@node"
"""Where runs are about to start that no host is called for. No host's name has an @."""


class RetryPolicy(msgspec.Struct, frozen=True, gc=False):
    """How often and after which pauses a failed attempt is tried again."""

    max_retries: int = 0
    initial_delay_us: Micros = 5 * SECOND
    strategy: Strategy = "fixed"
    max_delay_us: Micros = HOUR
    jitter_us: Micros = 0


class QueueSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """The queue job that a run of type `queue` submits. Its payload is the definition's body."""

    addon_id: str
    job_type: str
    cost_units: int = 1
    priority: QueuePriority = "NORMAL"
    constraints: str = "{}"
    """A JSON object, as text: what holds it must be hashable."""
    max_attempts: int = 1
    fairness_key: str | None = None


class NodeSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """The node job that a run of type `node` submits. Its payload is the definition's body."""

    model: str
    labels: tuple[tuple[str, str], ...] = ()
    priority: int = 5
    wait_us: Micros = MINUTE
    timeout_us: Micros | None = None


class Options(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the contract knows of a task beyond the seed's columns."""

    type: TaskType = "http"
    queue: QueueSpec | None = None
    """Given where the type is `queue`, and only there."""
    node: NodeSpec | None = None
    template: bool = True
    connect_timeout_us: Micros | None = None
    follow_redirects: int = 0
    signing_secret: str | None = None
    secret_headers: tuple[str, ...] = ()
    secret_body: bool = False
    sealed_by: str = ""
    """The key by which the secrets are sealed: see `sealing`."""
    max_queued: int = 100
    misfire_grace_us: Micros = MINUTE
    retry_on_callback_failure: bool = False
    on_orphan: OnOrphan = "retry"
    delivery: Delivery = "at_least_once"
    max_runs: int | None = None
    history_limit: int = 1000
    response_limit: int | None = 65_536
    """Bytes of the target's answer kept; None keeps it whole."""


class Definition(msgspec.Struct, frozen=True, gc=False):
    """Everything people write about a task."""

    name: str
    description: str
    schedule: Schedule
    exec_type: ExecType = "SYNC"
    http_method: str = "GET"
    target_url: str = ""
    headers: dict[str, str] = {}
    body: str | None = None
    timeout_us: Micros = 10 * SECOND
    retry: RetryPolicy = RetryPolicy()
    max_concurrency: int = 1
    concurrency_policy: ConcurrencyPolicy = "QUEUE"
    misfire_policy: MisfirePolicy = "FIRE_NOW"
    catchup_limit: int = 0
    callback_method: str = "POST"
    callback_timeout_us: Micros = 300 * SECOND
    tags: tuple[str, ...] = ()
    options: Options = Options()


class Task(msgspec.Struct, frozen=True, gc=False):
    """A stored task: its definition, whose dialect made it, and where it stands."""

    id: int
    job_id: str
    dialect: Dialect
    definition: Definition
    status: Status
    version: int
    created_at: Instant
    updated_at: Instant
    is_deleted: bool
    next_slot_at: Instant | None
    fire_at: Instant | None
    runs_fired: int
    last_run_at: Instant | None
    last_status: str
    last_error: str


class Run(msgspec.Struct, frozen=True, gc=False):
    """One firing of a task, as stored."""

    id: int
    uid: str
    task_id: int
    slot_at: Instant | None
    scheduled_time: Instant
    start_time: Instant | None
    end_time: Instant | None
    status: str
    attempt: int
    trigger: Trigger
    exec_type: ExecType
    is_counted: bool
    """Whether it counts against max_concurrency; a run-now does not."""
    ready_host: str | None
    wake_at: Instant | None
    held_by: str | None
    token: int
    request_headers: str | None
    request_body: str | None
    response_code: int | None
    response_body: str | None
    response_truncated: bool
    response_encoding: str | None
    error_message: str | None
    reason: str | None
    next_retry_time: Instant | None
    callback_hash: str | None
    """The hash of its callback token."""
    callback_deadline: Instant | None
    callback_data: str | None
    override_body: str | None
    retry_of: int | None
    trace_id: str
    attempts: str
    """A JSON array, newest last."""
    created_at: Instant
    updated_at: Instant
    host: str = ""
    """The key of its target's host, as it was when the run was made."""


class ClaimedRun(msgspec.Struct, frozen=True, gc=False):
    """A run that an instance holds under a token."""

    run_id: int
    uid: str
    task: Task
    token: int
    attempt: int
    scheduled_time: Instant
    exec_type: ExecType
    trace_id: str
    host: str
    is_counted: bool
    held_by: str
    callback_hash: str | None = None
    override_body: str | None = None
    attempts: str = "[]"
    lease: int = 0
    """The generation of the instance's lease under which it was claimed."""
    due_at: Instant | None = None
    """When it should have started, for a first attempt whose lateness says something of us."""
    callback_token: str | None = None
    """Known while it is sent: see `engine/tasks/task_secrets.py`."""


class NewRun(msgspec.Struct, frozen=True, gc=False):
    """A run to write: RUNNING and held, SCHEDULED and ready or waiting, or SKIPPED."""

    uid: str
    task_id: int
    slot_at: Instant | None
    scheduled_time: Instant
    status: str
    trigger: Trigger
    exec_type: ExecType
    is_counted: bool
    host: str
    is_ready: bool
    held_by: str | None
    token: int
    reason: str
    trace_id: str
    callback_hash: str | None = None
    override_body: str | None = None
    retry_of: int | None = None
    more: str = ""
    """Further members of its event, as the inside of a JSON object."""


@cache_short(maxsize=16_384, longest=512)
def host_of(url: str) -> str:
    """The key of a target's host: the limit of calls per host counts by it. The URL is not parsed,
    because it may have placeholders."""
    rest = url.partition("://")[2] or url
    for mark in "/?#":
        rest = rest.partition(mark)[0]
    return rest.rpartition("@")[2].lower()[:255]


def target_of(definition: Definition) -> str | None:
    """What a task calls, for people: the method, the host and the path, cut where a query or a
    user's name would begin. None if it calls no host."""
    url = definition.target_url
    if not url:
        return None
    rest = (url.partition("://")[2] or url).partition("?")[0].partition("#")[0]
    slash, path = rest.partition("/")[1:]
    return f"{definition.http_method} {host_of(url)}{slash}{path}"[:200]


def is_place(host: str) -> bool:
    """Tell whether runs that start there are done by a job, and no host is called."""
    return host[:1] == "@"
