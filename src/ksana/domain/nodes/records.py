"""What the nodes surface knows: nodes, instances, node jobs, request bindings. Values only.

The same structs are kept in Redis as JSON, so a member is added with a default and never renamed.
"""

from typing import Final, Literal

import msgspec

from ksana.base.instant import Instant, Micros

OwnerKind = Literal["node", "session"]
"""What can be connected to an instance by a socket."""

STATES: Final = ("CREATED", "DISPATCHED", "ACCEPTED", "RUNNING", "FINISHED", "RELEASED")
"""In the order in which one attempt passes through them."""

JobState = Literal["CREATED", "DISPATCHED", "ACCEPTED", "RUNNING", "FINISHED", "RELEASED"]

ENDED: Final = frozenset({"FINISHED", "RELEASED"})


def empty_object() -> msgspec.Raw:
    """`{}` as raw JSON: a factory, because a schema cannot show a default of type Raw."""
    return msgspec.Raw(b"{}")


def no_data() -> msgspec.Raw:
    """`null` as raw JSON: raw JSON cannot be told from None where it is read."""
    return msgspec.Raw(b"null")


class InstanceInfo(msgspec.Struct, frozen=True):
    """One server process as its peers see it."""

    instance_id: str
    host: str = ""
    version: str = ""
    started_at: Instant = 0
    nodes: int = 0
    sessions: int = 0


class NodeRecord(msgspec.Struct):
    """A connected node as every instance sees it. Not frozen: a view counts `running` on between
    two readings."""

    node_id: str
    instance_id: str
    slots: int
    models: tuple[str, ...] = ()
    labels: dict[str, str] = {}
    running: int = 0
    """Node jobs that hold a slot, as its instance counts them."""
    load: float = 0.0
    """As the node reports it."""
    is_draining: bool = False
    away: dict[str, Instant] = {}
    """Models that the node said it has not got, and until when it is not asked again."""
    version: str = ""
    platform: str = ""
    connected_at: Instant = 0
    seen_at: Instant = 0


class SessionRecord(msgspec.Struct, frozen=True):
    """A connected session as every instance sees it."""

    session_id: str
    """As it is known here: with the id of its API key in front, if one opened it."""
    instance_id: str
    key_id: str = ""
    connected_at: Instant = 0


class JobRequest(msgspec.Struct, frozen=True):
    """What was asked for. It does not change."""

    job_id: str
    model: str
    request_id: str = ""
    session_id: str = ""
    """Empty for a job made without a socket."""
    labels: dict[str, str] = {}
    priority: int = 5
    payload: msgspec.Raw = msgspec.field(default_factory=empty_object)
    wait_us: Micros = 0
    timeout_us: Micros | None = None
    trace_id: str = ""
    caller: str = ""
    """The id of the API key that asked, if one did."""
    created_at: Instant = 0


class JobError(msgspec.Struct, frozen=True):
    """Why a node job failed."""

    code: str
    message: str = ""


class JobOutcome(msgspec.Struct, frozen=True):
    """How a node job ended."""

    success: bool
    data: msgspec.Raw = msgspec.field(default_factory=no_data)
    error: JobError | None = None
    finished_at: Instant = 0


class JobProgress(msgspec.Struct, frozen=True):
    """What its home instance noted about a job that has not ended."""

    tried: tuple[str, ...] = ()
    """Nodes that an attempt was sent to, in order. None of them is asked again."""
    failures: int = 0
    """Attempts that failed. A node that only lacked the model is not counted."""
    last_error: JobError | None = None
    dispatched_at: Instant = 0


class NodeJob(msgspec.Struct, frozen=True):
    """A node job with its state."""

    request: JobRequest
    state: JobState
    attempt: int
    node_id: str
    """The node of the present attempt; empty while it is CREATED."""
    home: str
    """The instance that is in charge of it."""
    progress: JobProgress = JobProgress()
    outcome: JobOutcome | None = None

    @property
    def has_ended(self) -> bool:
        """Whether its outcome is known."""
        return self.state in ENDED


class Binding(msgspec.Struct, frozen=True):
    """Which job a request id stands for."""

    job_id: str
    digest: str = ""
    """A hash of what was asked, so that another request under the same id is noticed."""
    instance_id: str = ""
