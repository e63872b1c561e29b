"""What the endpoints of the nodes surface take and answer."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from ksana.base.instant import format_instant
from ksana.domain.nodes.frames import Labels, Name, RequestId
from ksana.domain.nodes.records import JobError, NodeJob, NodeRecord, SessionRecord, empty_object
from ksana.ports.inbox import DeadLetter
from ksana.service.nodes.cluster import ClusterStatus, read_body


class SubmitNodeJob(msgspec.Struct, forbid_unknown_fields=True):
    """A request without a socket."""

    model: Name
    request_id: RequestId | None = None
    labels: Annotated[Labels, Meta(max_length=64)] = {}
    priority: Annotated[int, Meta(ge=0, le=9)] = 5
    payload: msgspec.Raw = msgspec.field(default_factory=empty_object)
    wait_sec: Annotated[float, Meta(ge=0.0, le=86_400.0)] = 0.0
    timeout_sec: Annotated[float, Meta(gt=0.0, le=86_400.0)] | None = None


class CancelNodeJob(msgspec.Struct, forbid_unknown_fields=True):
    """Why."""

    reason: Annotated[str, Meta(max_length=1024)] = ""


class NodeJobAccepted(msgspec.Struct):
    """A request became a job."""

    job_id: str
    request_id: str
    state: str
    durable: bool
    duplicate: bool


class NodeJobShown(msgspec.Struct):
    """A node job."""

    job_id: str
    request_id: str
    session_id: str
    model: str
    labels: dict[str, str]
    priority: int
    state: str
    attempt: int
    node_id: str
    home: str
    tried: list[str]
    created_at: str
    finished_at: str | None
    success: bool | None
    data: msgspec.Raw
    error: JobError | None
    trace_id: str
    durable: bool


class NodeShown(msgspec.Struct):
    """A node."""

    node_id: str
    instance_id: str
    slots: int
    running: int
    load: float
    models: list[str]
    labels: dict[str, str]
    draining: bool
    away: dict[str, str]
    version: str
    platform: str
    connected_at: str
    seen_at: str


class NodePage(msgspec.Struct):
    """Nodes, by id."""

    nodes: list[NodeShown]
    next_after: str | None


class ListNodes(msgspec.Struct, forbid_unknown_fields=True):
    """Which page."""

    after: str = ""
    limit: Annotated[int, Meta(ge=1, le=500)] = 100


class SessionShown(msgspec.Struct):
    """A connected session."""

    session_id: str
    instance_id: str
    key_id: str | None
    connected_at: str


class SessionPage(msgspec.Struct):
    """Sessions, by id."""

    sessions: list[SessionShown]
    next_after: str | None


class ListSessions(msgspec.Struct, forbid_unknown_fields=True):
    """Which page."""

    after: Annotated[str, Meta(max_length=256)] = ""
    limit: Annotated[int, Meta(ge=1, le=500)] = 100


class ListLetters(msgspec.Struct, forbid_unknown_fields=True):
    """Whose dead letters, and which page. Without an instance: those of the one that answers."""

    instance: str = ""
    after: str = ""
    limit: Annotated[int, Meta(ge=1, le=500)] = 100


class LetterShown(msgspec.Struct):
    """A dead letter."""

    id: str
    instance: str
    origin: str
    deliveries: int
    moved_at: str
    message: Any


class LetterPage(msgspec.Struct):
    """Dead letters, the oldest first."""

    letters: list[LetterShown]
    next_after: str | None


def show_job(job: NodeJob, durable: bool) -> NodeJobShown:
    """A node job as it is answered."""
    request, outcome = job.request, job.outcome
    return NodeJobShown(
        job_id=request.job_id,
        request_id=request.request_id,
        session_id=request.session_id,
        model=request.model,
        labels=request.labels,
        priority=request.priority,
        state=job.state,
        attempt=job.attempt,
        node_id=job.node_id,
        home=job.home,
        tried=list(job.progress.tried),
        created_at=format_instant(request.created_at),
        finished_at=None if outcome is None else format_instant(outcome.finished_at),
        success=None if outcome is None else outcome.success,
        data=msgspec.Raw(b"null") if outcome is None else outcome.data,
        error=None if outcome is None else outcome.error,
        trace_id=request.trace_id,
        durable=durable,
    )


def show_node(node: NodeRecord) -> NodeShown:
    """A node as it is answered."""
    return NodeShown(
        node_id=node.node_id,
        instance_id=node.instance_id,
        slots=node.slots,
        running=node.running,
        load=node.load,
        models=list(node.models),
        labels=node.labels,
        draining=node.is_draining,
        away={model: format_instant(until) for model, until in node.away.items()},
        version=node.version,
        platform=node.platform,
        connected_at=format_instant(node.connected_at),
        seen_at=format_instant(node.seen_at),
    )


def show_session(session: SessionRecord) -> SessionShown:
    """A session as it is answered."""
    return SessionShown(
        session_id=session.session_id,
        instance_id=session.instance_id,
        key_id=session.key_id or None,
        connected_at=format_instant(session.connected_at),
    )


def show_letter(letter: DeadLetter, keeper: str) -> LetterShown:
    """A dead letter as it is answered."""
    return LetterShown(
        id=letter.id,
        instance=keeper,
        origin=letter.instance_id,
        deliveries=letter.deliveries,
        moved_at=format_instant(letter.moved_at),
        message=read_body(letter),
    )


def show_cluster(status: ClusterStatus) -> dict[str, Any]:
    """The cluster as it is answered."""
    return {
        "instance_id": status.instance_id,
        "coordination": {
            "ok": status.health.ok,
            "reason": status.health.reason,
            "durable": status.durable,
            "shared": status.is_shared,
            "round_trips": status.health.round_trips,
            "ops": status.ops,
        },
        "instances": [
            {
                "instance_id": one.instance_id,
                "host": one.host,
                "version": one.version,
                "started_at": format_instant(one.started_at),
                "nodes": one.nodes,
                "sessions": one.sessions,
            }
            for one in status.instances
        ],
        "inbox": {
            "length": status.inbox.length,
            "pending": status.inbox.pending,
            "dead_letters": status.inbox.dead_letters,
        },
        "counts": status.counts,
    }
