"""What a task of type `queue` or `node` hands its runs over to: the members people write, how they
are read and shown, and which members belong to which type."""

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta
from msgspec import UnsetType as Unset

from ksana.api.tasks.members import given, read_span, show_seconds
from ksana.api.tasks.schedule_shapes import Span
from ksana.base.errors import InvalidError
from ksana.base.instant import DAY, MILLISECOND, MINUTE, SECOND, Micros
from ksana.domain.handover import MAX_CONSTRAINTS
from ksana.domain.tasks.records import Definition, NodeSpec, QueueSpec, TaskType
from ksana.domain.tasks.template import check_template

JobName = Annotated[str, Meta(min_length=1, max_length=128)]
Label = Annotated[str, Meta(max_length=128)]

MAX_LABELS: Final = 64
LONGEST_QUEUE_WAIT: Final[Micros] = 30 * DAY
QUEUE_TIMEOUT: Final[Micros] = DAY
"""A queue job may wait long for a worker; a run that waits longer than this is given up."""

_NODE_ATTEMPTS: Final = 3
_NODE_RESULT: Final[Micros] = MINUTE
_NODE_SPARE: Final[Micros] = 10 * SECOND
"""A node job tries so many nodes, each for so long, and ends by itself: a run waits a little
longer."""

_OF_HTTP: Final[Mapping[str, Any]] = {
    "target_url": "",
    "exec_type": "SYNC",
    "http_method": "GET",
    "headers": {},
    "body_template": "",
    "connect_timeout": None,
    "callback_method": "POST",
    "callback_timeout_sec": 300,
    "retry_on_callback_failure": False,
    "follow_redirects": 0,
    "signing_secret": None,
    "secret_headers": [],
    "secret_body": False,
}
"""Members of a call, and what a task that makes none shows for them."""

_encode = msgspec.json.Encoder().encode


class QueueBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The queue job that each run submits; `addon_id` and `job_type` are needed."""

    addon_id: JobName | Unset | None = UNSET
    job_type: JobName | Unset | None = UNSET
    cost_units: Annotated[int, Meta(ge=1, le=1_000_000_000)] | Unset | None = UNSET
    priority: Literal["LOW", "NORMAL", "HIGH", "URGENT"] | Unset | None = UNSET
    payload: Any = UNSET
    constraints: dict[str, Any] | Unset | None = UNSET
    max_attempts: Annotated[int, Meta(ge=1, le=1000)] | Unset | None = UNSET
    fairness_key: JobName | Unset | None = UNSET


class NodeBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The node job that each run submits; `model` is needed."""

    model: JobName | Unset | None = UNSET
    labels: dict[JobName, Label | None] | Unset | None = UNSET
    priority: Annotated[int, Meta(ge=0, le=9)] | Unset | None = UNSET
    payload: Any = UNSET
    wait_sec: Span | Unset | None = UNSET
    timeout_sec: Span | Unset | None = UNSET


class QueueView(msgspec.Struct, frozen=True, kw_only=True):
    """The queue job of a task as it is answered."""

    addon_id: str
    job_type: str
    cost_units: int
    priority: str
    payload: Any
    constraints: dict[str, Any]
    max_attempts: int
    fairness_key: str | None


class NodeView(msgspec.Struct, frozen=True, kw_only=True):
    """The node job of a task as it is answered."""

    model: str
    labels: dict[str, str]
    priority: int
    payload: Any
    wait_sec: float
    timeout_sec: float | None


class JobWork(msgspec.Struct, frozen=True):
    """What a run does instead of a call."""

    queue: QueueSpec | None
    node: NodeSpec | None
    payload: str


def read_work(
    kind: TaskType, queue: QueueBody | None, node: NodeBody | None, *, is_template: bool
) -> JobWork:
    """Read the job of a task that makes no call. Raise InvalidError naming the member."""
    body: QueueBody | NodeBody | None = queue if kind == "queue" else node
    if body is None:
        raise InvalidError(f"{kind} is needed where type is {kind}", field=kind)
    payload = "{}" if body.payload is UNSET or body.payload is None else _text(body.payload)
    if is_template:
        check_template(payload, f"{kind}.payload")
    if isinstance(body, QueueBody):
        return JobWork(_read_queue(body), None, payload)
    return JobWork(None, _read_node(body), payload)


def _read_queue(body: QueueBody) -> QueueSpec:
    constraints = _text(given(body.constraints, {}))
    if len(constraints.encode()) > MAX_CONSTRAINTS:
        raise InvalidError(
            f"queue.constraints may have {MAX_CONSTRAINTS} bytes as JSON",
            field="queue.constraints",
        )
    return QueueSpec(
        addon_id=_need(given(body.addon_id, ""), "queue.addon_id"),
        job_type=_need(given(body.job_type, ""), "queue.job_type"),
        cost_units=given(body.cost_units, 1),
        priority=given(body.priority, "NORMAL"),
        constraints=constraints,
        max_attempts=given(body.max_attempts, 1),
        fairness_key=given(body.fairness_key, "") or None,
    )


def _read_node(body: NodeBody) -> NodeSpec:
    labels = {name: value for name, value in given(body.labels, {}).items() if value is not None}
    if len(labels) > MAX_LABELS:
        raise InvalidError(f"node.labels may have {MAX_LABELS} members", field="node.labels")
    wait, timeout = given(body.wait_sec, None), given(body.timeout_sec, None)
    return NodeSpec(
        model=_need(given(body.model, ""), "node.model"),
        labels=tuple(sorted(labels.items())),
        priority=given(body.priority, 5),
        wait_us=MINUTE if wait is None else read_span(wait, "node.wait_sec"),
        timeout_us=None
        if timeout is None
        else read_span(timeout, "node.timeout_sec", least=MILLISECOND),
    )


def _need(text: str, field: str) -> str:
    if not text:
        raise InvalidError(f"{field} is needed: 1 to 128 characters", field=field)
    return text


def _text(value: Any) -> str:
    return _encode(value).decode()


def check_payload(text: str, field: str) -> None:
    """Raise InvalidError for a payload that is not JSON."""
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        raise InvalidError(
            f"{field} must be JSON: it is the payload of a job", field=field
        ) from None


def read_timeout(sent: float | str | None, work: JobWork) -> Micros:
    """How long a run waits for the end of its job."""
    if sent is None:
        return default_timeout(work.node)
    most = LONGEST_QUEUE_WAIT if work.queue is not None else DAY
    return read_span(sent, "timeout_seconds", least=MILLISECOND, most=most)


def default_timeout(node: NodeSpec | None) -> Micros:
    """The same where the task does not say. A node job ends by itself; the net is a bit wider."""
    if node is None:
        return QUEUE_TIMEOUT
    each_us = node.timeout_us or _NODE_RESULT
    return min(DAY, node.wait_us + _NODE_ATTEMPTS * each_us + _NODE_SPARE)


def refuse_foreign(kind: TaskType, body: Any) -> None:
    """Raise InvalidError for a member that belongs to another type. What a task shows may be sent
    back."""
    for other in ("queue", "node"):
        if other != kind and given(getattr(body, other), None) is not None:
            raise InvalidError(f"{other} goes with type {other}, not with {kind}", field=other)
    if kind == "http":
        return
    for name, neutral in _OF_HTTP.items():
        value = given(getattr(body, name), None)
        if value is not None and value != neutral:
            raise InvalidError(f"{name} goes with type http, not with {kind}", field=name)


def drop_members_of(old: TaskType, members: dict[str, Any]) -> None:
    """Forget what belongs to the type a task had: another one was asked for."""
    of_type = (*_OF_HTTP, "timeout_seconds") if old == "http" else (old, "timeout_seconds")
    for name in of_type:
        members.pop(name, None)


def show_queue(definition: Definition) -> QueueView | None:
    """The queue job of a task."""
    spec = definition.options.queue
    if spec is None:
        return None
    return QueueView(
        addon_id=spec.addon_id,
        job_type=spec.job_type,
        cost_units=spec.cost_units,
        priority=spec.priority,
        payload=_payload(definition),
        constraints=msgspec.json.decode(spec.constraints),
        max_attempts=spec.max_attempts,
        fairness_key=spec.fairness_key,
    )


def show_node(definition: Definition) -> NodeView | None:
    """The node job of a task."""
    spec = definition.options.node
    if spec is None:
        return None
    return NodeView(
        model=spec.model,
        labels=dict(spec.labels),
        priority=spec.priority,
        payload=_payload(definition),
        wait_sec=show_seconds(spec.wait_us),
        timeout_sec=None if spec.timeout_us is None else show_seconds(spec.timeout_us),
    )


def _payload(definition: Definition) -> Any:
    return msgspec.json.decode(definition.body or "{}")
