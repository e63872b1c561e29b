"""What a node's handler is given, and what it may raise. Nothing here talks to the server."""

from collections.abc import Callable
from datetime import datetime
from typing import Any, Final

from ksana.base.instant import parse_instant, to_datetime
from ksana.client.context import AttemptContext, CancelSignal
from ksana.client.errors import ClientError
from ksana.domain.nodes.frames import JobAssign

MODEL_NOT_AVAILABLE: Final = "MODEL_NOT_AVAILABLE"


class NodeJobError(ClientError):
    """A node job failed. A handler raises it to say why, with a code of its own; a session gets it
    from awaiting the job."""

    def __init__(self, code: str, message: str = "", job_id: str = "") -> None:
        super().__init__(f"{code}: {message}" if message else code)
        self.code = code
        self.message = message
        self.job_id = job_id


class ModelNotAvailable(NodeJobError):
    """Raised by a handler: this node cannot serve the model now. The job goes to another node, and
    this one is not asked for the model for a minute."""

    def __init__(self, message: str = "the model is not loaded") -> None:
        super().__init__(MODEL_NOT_AVAILABLE, message)


class NodeJobContext(AttemptContext):
    """One attempt at one node job, as its handler sees it. `cancelled` is set when nobody waits for
    this attempt any more: it was cancelled, or took too long, or the connection over which it came
    was lost."""

    __slots__ = ("_assign", "_send_partial", "node_id", "payload")

    def __init__(
        self,
        assign: JobAssign,
        payload: Any,
        node_id: str,
        cancelled: CancelSignal,
        send_partial: Callable[[Any], None],
    ) -> None:
        super().__init__(cancelled)
        self._assign = assign
        self._send_partial = send_partial
        self.payload = payload
        """What was asked, converted to the handler's `payload_type` if it names one."""
        self.node_id = node_id

    @property
    def job_id(self) -> str:
        """The job's id."""
        return self._assign.job_id

    @property
    def attempt(self) -> int:
        """Which attempt at the job this is, from 1."""
        return self._assign.attempt_id

    @property
    def model(self) -> str:
        """The model that was asked for."""
        return self._assign.model

    @property
    def session_id(self) -> str:
        """Who asked; empty for a job made without a socket."""
        return self._assign.session_id

    @property
    def trace_id(self) -> str:
        """The id that ties the log lines of a job together."""
        return self._assign.trace_id

    @property
    def deadline(self) -> datetime:
        """A result that comes later is dropped."""
        return to_datetime(parse_instant(self._assign.deadline))

    def partial(self, data: Any) -> None:
        """Send a part of the result on to the session. It may be lost: the result must be whole
        without it. May be called from a thread."""
        self._send_partial(data)
