"""What instances write into each other's inbox. Not public: both ends are Ksana.

A message may come twice and may come late. Everything about a job carries its attempt, so that a
late one is recognised.
"""

from typing import Final

import msgspec
from msgspec import Raw, Struct

from ksana.base.instant import Instant
from ksana.domain.nodes.records import JobError, JobOutcome, JobRequest, OwnerKind


class Assign(Struct, frozen=True, tag_field="kind", tag="assign"):
    """Hand this job to your node."""

    node_id: str
    attempt: int
    home: str
    deadline_at: Instant
    request: JobRequest


class Withdraw(Struct, frozen=True, tag_field="kind", tag="withdraw"):
    """Tell your node that this attempt is not wanted any more."""

    node_id: str
    job_id: str
    attempt: int
    reason: str = ""


class Rehome(Struct, frozen=True, tag_field="kind", tag="rehome"):
    """An attempt on your node has another home instance: the former one is dead."""

    node_id: str
    job_id: str
    attempt: int
    home: str


class Progressed(Struct, frozen=True, tag_field="kind", tag="progressed"):
    """To the home instance: an attempt was acknowledged or started."""

    job_id: str
    attempt: int
    node_id: str
    state: str
    at: Instant


class Failed(Struct, frozen=True, tag_field="kind", tag="failed"):
    """To the home instance: an attempt came to nothing, and another node may be tried."""

    job_id: str
    attempt: int
    node_id: str
    reason: str
    error: JobError | None = None


class Finished(Struct, frozen=True, tag_field="kind", tag="finished"):
    """To the home instance: a job has its outcome, and it is recorded."""

    request: JobRequest
    attempt: int
    node_id: str
    outcome: JobOutcome


class Push(Struct, frozen=True, tag_field="kind", tag="push"):
    """Send this frame to your session."""

    session_id: str
    frame: Raw


class Cancel(Struct, frozen=True, tag_field="kind", tag="cancel"):
    """To the home instance: somebody wants the job to end."""

    job_id: str
    reason: str = ""


class Probe(Struct, frozen=True, tag_field="kind", tag="probe"):
    """Find out whether your node or session with this id still answers; another one has come."""

    owner_kind: OwnerKind
    id: str
    token: str
    reply_to: str


class ProbeAnswer(Struct, frozen=True, tag_field="kind", tag="probe_answer"):
    """Whether it did. If not, its socket is closed and its owner key is gone."""

    token: str
    is_alive: bool


class Drain(Struct, frozen=True, tag_field="kind", tag="drain"):
    """Look at your node's drain mark again: it changed."""

    node_id: str


Message = (
    Assign
    | Withdraw
    | Rehome
    | Progressed
    | Failed
    | Finished
    | Push
    | Cancel
    | Probe
    | ProbeAnswer
    | Drain
)

_encoder: Final = msgspec.json.Encoder()
_decoder: Final[msgspec.json.Decoder[Message]] = msgspec.json.Decoder(Message)


def encode_message(message: Struct) -> bytes:
    """A message as it is sent."""
    return _encoder.encode(message)


def decode_message(text: bytes) -> Message:
    """Read a message. Raise msgspec.DecodeError for one that is not ours."""
    return _decoder.decode(text)
