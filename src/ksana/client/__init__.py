"""The Python SDK. For the Queue surface: `QueueClient` for its endpoints, `Worker` for running its
jobs. For Governance: `GovernanceClient`, and `Governor` for looking after objects. For the Nodes
surface: `Node` for serving models, `NodeSession` for asking for jobs.

Knows the public API only. Everything a user needs is exported here; the modules inside may change.
"""

from ksana.client.context import CancelSignal, Fail, JobCancelled, JobContext, Retry
from ksana.client.errors import (
    AccessError,
    ApiConflictError,
    ApiError,
    ApiNotFoundError,
    BusyError,
    ClaimLostError,
    ClientError,
    DeadlineError,
    DuplicateRequestError,
    InvalidRequestError,
    LeaseLostError,
    TransportError,
)
from ksana.client.governance_client import GovernanceClient
from ksana.client.governance_context import Done, GovernanceContext, RetryAfter
from ksana.client.governance_shapes import (
    AckItem,
    FailItem,
    Gate,
    GovernanceJob,
    GovernedObject,
    RenewItem,
)
from ksana.client.governor import Governor
from ksana.client.node_context import ModelNotAvailable, NodeJobContext, NodeJobError
from ksana.client.node_session import NodeSession
from ksana.client.node_session_job import SessionJob
from ksana.client.node_socket import SocketClosed
from ksana.client.node_worker import Node
from ksana.client.queue import QueueClient
from ksana.client.shapes import (
    Beat,
    BeatItem,
    Capacity,
    Event,
    Exchange,
    Job,
    JobResult,
    JobStatus,
    Lease,
    LeaseDecision,
    NewJob,
    Point,
    Release,
    ReleaseItem,
    Snapshot,
    Timeseries,
)
from ksana.client.stats import NodeStats, WorkerStats
from ksana.client.tester import Tried, WorkerTester
from ksana.client.transport import CallBackoff
from ksana.client.worker import Worker

__all__ = [
    "AccessError",
    "AckItem",
    "ApiConflictError",
    "ApiError",
    "ApiNotFoundError",
    "Beat",
    "BeatItem",
    "BusyError",
    "CallBackoff",
    "CancelSignal",
    "Capacity",
    "ClaimLostError",
    "ClientError",
    "DeadlineError",
    "Done",
    "DuplicateRequestError",
    "Event",
    "Exchange",
    "Fail",
    "FailItem",
    "Gate",
    "GovernanceClient",
    "GovernanceContext",
    "GovernanceJob",
    "GovernedObject",
    "Governor",
    "InvalidRequestError",
    "Job",
    "JobCancelled",
    "JobContext",
    "JobResult",
    "JobStatus",
    "Lease",
    "LeaseDecision",
    "LeaseLostError",
    "ModelNotAvailable",
    "NewJob",
    "Node",
    "NodeJobContext",
    "NodeJobError",
    "NodeSession",
    "NodeStats",
    "Point",
    "QueueClient",
    "Release",
    "ReleaseItem",
    "RenewItem",
    "Retry",
    "RetryAfter",
    "SessionJob",
    "Snapshot",
    "SocketClosed",
    "Timeseries",
    "TransportError",
    "Tried",
    "Worker",
    "WorkerStats",
    "WorkerTester",
]
