"""Every frame of the node and session protocol, as types that server and SDK share (N3, N4).

A frame is one JSON object with `type`. Members that are not known are ignored, a missing one or one
of the wrong kind is answered with an `error` frame. The page docs/reference/node-protocol.md says
who must send what, and when.
"""

from typing import Annotated, Final

import msgspec
from msgspec import Meta, Raw, Struct, field

from ksana.domain.nodes.records import JobError, empty_object, no_data

MAX_FRAME: Final = 1024 * 1024
"""Bytes of one frame, in either direction."""

PROTOCOL: Final = 1
"""The version of the protocol; both sides send theirs in the first frames."""

Name = Annotated[str, Meta(min_length=1, max_length=128)]
NodeId = Annotated[str, Meta(pattern=r"^[A-Za-z0-9._~:-]{1,128}$")]
RequestId = Annotated[str, Meta(min_length=1, max_length=128)]
Labels = dict[Name, Annotated[str, Meta(max_length=128)]]
Attempt = Annotated[int, Meta(ge=1, le=1_000_000)]
Models = Annotated[list[Name], Meta(max_length=256)]


class Ping(Struct, frozen=True, tag_field="type", tag="ping"):
    """Either side asks whether the other still reads. The other MUST answer `pong` at once."""

    id: str = ""


class Pong(Struct, frozen=True, tag_field="type", tag="pong"):
    """The answer, with the same id."""

    id: str = ""


class ErrorFrame(Struct, frozen=True, tag_field="type", tag="error", omit_defaults=True):
    """Something that was sent cannot be right, or cannot be done. The socket stays open unless a
    close follows."""

    code: str
    message: str = ""
    request_id: str = ""
    job_id: str = ""


# ---- node -> server ----


class NodeRegister(Struct, frozen=True, tag_field="type", tag="node_register"):
    """The first frame of a node."""

    slots: Annotated[int, Meta(ge=1, le=10_000)]
    models: Models = []
    node_id: NodeId | None = None
    version: Annotated[str, Meta(max_length=64)] = ""
    platform: Annotated[str, Meta(max_length=128)] = ""
    labels: Annotated[Labels, Meta(max_length=64)] = {}
    protocol: int = PROTOCOL


class NodeHeartbeat(Struct, frozen=True, tag_field="type", tag="node_heartbeat"):
    """Every 15 s."""

    running: Annotated[int, Meta(ge=0, le=1_000_000)] = 0
    load: Annotated[float, Meta(ge=0.0)] = 0.0
    models: Models | None = None
    """What it has now; absent means unchanged."""


class JobAck(Struct, frozen=True, tag_field="type", tag="job_ack"):
    """The node took the job."""

    job_id: Name
    attempt_id: Attempt


class JobStarted(Struct, frozen=True, tag_field="type", tag="job_started"):
    """The node began to work on it."""

    job_id: Name
    attempt_id: Attempt


class JobPartial(Struct, frozen=True, tag_field="type", tag="job_partial"):
    """A part of the result, handed on to the session. It may be lost."""

    job_id: Name
    attempt_id: Attempt
    data: Raw = field(default_factory=empty_object)


class AsrPartial(JobPartial, frozen=True, tag_field="type", tag="asr_partial"):
    """The older name of `job_partial`."""


class NodeJobResult(Struct, frozen=True, tag_field="type", tag="job_result"):
    """The end of an attempt."""

    job_id: Name
    attempt_id: Attempt
    success: bool
    data: Raw = field(default_factory=no_data)
    error: JobError | None = None


class NodeError(Struct, frozen=True, tag_field="type", tag="node_error"):
    """Something went wrong on the node that belongs to no job."""

    code: Name = "NODE_ERROR"
    message: Annotated[str, Meta(max_length=1024)] = ""


FromNode = (
    NodeRegister
    | NodeHeartbeat
    | JobAck
    | JobStarted
    | JobPartial
    | AsrPartial
    | NodeJobResult
    | NodeError
    | Ping
    | Pong
)

# ---- server -> node ----


class NodeRegisterAck(Struct, frozen=True, tag_field="type", tag="node_register_ack"):
    """The node is known from now on and may be given jobs."""

    node_id: str
    instance_id: str
    heartbeat_sec: float
    dead_after_sec: float
    durable: bool
    protocol: int = PROTOCOL


class JobAssign(Struct, frozen=True, tag_field="type", tag="job_assign"):
    """A job for this node. It MUST answer with `job_ack`."""

    job_id: str
    attempt_id: int
    model: str
    deadline: str
    """RFC 3339: a result that comes later is dropped."""
    session_id: str = ""
    trace_id: str = ""
    payload: Raw = field(default_factory=empty_object)


class NodeJobCancel(Struct, frozen=True, tag_field="type", tag="job_cancel"):
    """The result of this attempt is not wanted any more. The node SHOULD stop and MAY answer."""

    job_id: str
    attempt_id: int
    reason: str = ""


ToNode = NodeRegisterAck | JobAssign | NodeJobCancel | ErrorFrame | Ping | Pong

# ---- session -> server ----


class SessionInit(Struct, frozen=True, tag_field="type", tag="session_init"):
    """The first frame of a session. With the id of an earlier socket it goes on from there."""

    session_id: NodeId | None = None
    protocol: int = PROTOCOL


class AskJob(Struct, frozen=True, tag_field="type", tag="job_request"):
    """Ask for a job."""

    model: Name
    request_id: RequestId | None = None
    labels: Annotated[Labels, Meta(max_length=64)] = {}
    priority: Annotated[int, Meta(ge=0, le=9)] = 5
    payload: Raw = field(default_factory=empty_object)
    wait_sec: Annotated[float, Meta(ge=0.0, le=86_400.0)] = 0.0
    timeout_sec: Annotated[float, Meta(gt=0.0, le=86_400.0)] | None = None


class SessionJobCancel(Struct, frozen=True, tag_field="type", tag="job_cancel"):
    """Cancel a job of this session."""

    job_id: Name


FromSession = SessionInit | AskJob | SessionJobCancel | Ping | Pong

# ---- server -> session ----


class SessionInitAck(Struct, frozen=True, tag_field="type", tag="session_init_ack"):
    """The session is known from now on."""

    session_id: str
    instance_id: str
    durable: bool
    protocol: int = PROTOCOL


class JobCreated(Struct, frozen=True, tag_field="type", tag="job_created"):
    """A request became a job, now or (`is_repeat`) the first time it was sent."""

    request_id: str
    job_id: str
    state: str
    durable: bool
    is_repeat: bool = field(default=False, name="duplicate")


class JobUpdate(Struct, frozen=True, tag_field="type", tag="job_update", omit_defaults=True):
    """A job moved."""

    job_id: str
    state: str
    attempt_id: int
    request_id: str = ""
    node_id: str = ""
    reason: str = ""


class SessionPartial(Struct, frozen=True, tag_field="type", tag="job_partial", omit_defaults=True):
    """A part of a result."""

    job_id: str
    attempt_id: int
    data: Raw
    request_id: str = ""


class SessionResult(Struct, frozen=True, tag_field="type", tag="job_result"):
    """The end of a job. It comes once for each job while the session is connected."""

    job_id: str
    attempt_id: int
    success: bool
    request_id: str = ""
    data: Raw = field(default_factory=no_data)
    error: JobError | None = None


ToSession = (
    SessionInitAck
    | JobCreated
    | JobUpdate
    | SessionPartial
    | SessionResult
    | ErrorFrame
    | Ping
    | Pong
)

_encoder: Final = msgspec.json.Encoder()
from_node: Final = msgspec.json.Decoder(FromNode)
to_node: Final = msgspec.json.Decoder(ToNode)
from_session: Final = msgspec.json.Decoder(FromSession)
to_session: Final = msgspec.json.Decoder(ToSession)


def encode(frame: Struct) -> bytes:
    """A frame as it is sent."""
    return _encoder.encode(frame)
