"""What the queue's endpoints take. Bodies people write are strict; what workers report may carry
more. What they answer is in `views`."""

from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

Name = Annotated[str, Meta(min_length=1, max_length=128)]
RequestId = Annotated[str, Meta(min_length=1, max_length=255)]
Id = Annotated[str, Meta(min_length=36, max_length=36)]
Cost = Annotated[int, Meta(ge=1, le=1_000_000_000)]
Share = Annotated[float, Meta(ge=0, le=1)]
Ttl = Annotated[float, Meta(ge=1, le=86_400)]
Text = Annotated[str, Meta(max_length=1024)]
Token = Annotated[str, Meta(min_length=1, max_length=64)]
Priority = Literal["LOW", "NORMAL", "HIGH", "URGENT"]
State = Literal[
    "QUEUED",
    "CLAIMED",
    "PREPARING",
    "LEASE_PENDING",
    "RUNNING",
    "DONE",
    "FAILED",
    "CANCELED",
    "TIMEOUT",
]
Final = Literal["SUCCEEDED", "FAILED", "CANCELED", "TIMEOUT", "RETURNED"]


class ServerOwned(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Members the server sets: sent back with a job, they are passed over."""

    job_id: Any = None
    state: Any = None
    created_at: Any = None
    updated_at: Any = None
    claimed_by: Any = None
    claim_expires_at: Any = None
    lease_id: Any = None
    attempts: Any = None
    next_retry_at: Any = None
    cancel_requested: Any = None
    cancel_reason: Any = None
    progress: Any = None
    note: Any = None
    started_at: Any = None
    finished_at: Any = None
    claim_token: Any = None


class SubmitJob(ServerOwned, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """A job to submit."""

    SERVER_OWNED: ClassVar = ServerOwned.__struct_fields__

    addon_id: Name
    job_type: Name
    cost_units: Cost
    priority: Priority = "NORMAL"
    constraints: dict[str, Any] | None = None
    payload: Raw | UnsetType = UNSET
    client_request_id: RequestId | None = None
    max_attempts: Annotated[int, Meta(ge=1, le=1000)] = 1
    run_at: str | None = None
    fairness_key: Name | None = None


class SubmitBatch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Up to 1,000 jobs, all or none."""

    jobs: Annotated[list[SubmitJob], Meta(min_length=1, max_length=1000)]


class ClaimBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a worker takes."""

    worker_id: Name
    addon_id: Name | None = None
    limit: Annotated[int, Meta(ge=1, le=500)] = 1
    accept_job_types: Annotated[list[Name], Meta(max_length=500)] | None = None
    max_cost_units: Annotated[int, Meta(ge=1)] | None = None
    constraints_capabilities: Annotated[dict[Name, Any], Meta(max_length=100)] | None = None
    wait_sec: Annotated[float, Meta(ge=0, le=30)] = 0
    lease: bool = False
    ahead: Annotated[int, Meta(ge=0, le=500)] = 0
    """How many of `limit` the worker begins later."""
    ttl_sec: Ttl = 30
    brief: bool = False
    """Leave out of each job what is null or as usual, and the leases besides their ids."""


class StatusBody(msgspec.Struct, frozen=True, kw_only=True):
    """A worker's word on its job."""

    state: State | None = None
    note: Text | None = None
    progress: Share | None = None
    worker_id: Name | None = None
    claim_token: Token | None = None


class CancelBody(msgspec.Struct, frozen=True, kw_only=True):
    """Why."""

    reason: Text | None = None


class LeaseBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request to run a claimed job; what it repeats of the job must be the same."""

    job_id: Id
    addon_id: str | UnsetType = UNSET
    job_type: str | UnsetType = UNSET
    cost_units: int | UnsetType = UNSET
    priority: Priority | UnsetType = UNSET
    constraints: dict[str, Any] | UnsetType = UNSET
    ttl_sec: Ttl = 30
    worker_id: Name | None = None
    claim_token: Token | None = None


class HeartbeatBody(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A sign of life."""

    job_id: str | None = None
    worker_id: Name | None = None
    lease_token: Token | None = None
    progress: Share | None = None
    message: Text | None = None
    ttl_sec: Ttl | None = None


class HeartbeatItem(HeartbeatBody, frozen=True, kw_only=True, gc=False):
    """One of many."""

    lease_id: Id


class HeartbeatBatch(msgspec.Struct, frozen=True, kw_only=True):
    """Up to 500 heartbeats."""

    items: Annotated[list[HeartbeatItem], Meta(max_length=500)]


class ReleaseBody(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A worker's last word on its attempt."""

    status: Final
    job_id: str | None = None
    worker_id: Name | None = None
    lease_token: Token | None = None
    result_data: Raw | UnsetType = UNSET
    error: str | None = None
    metrics: Raw | UnsetType = UNSET
    retry: bool = True
    """False: another attempt would not help, whatever attempts are left."""


class ReleaseAlone(ReleaseBody, frozen=True, kw_only=True, gc=False):
    """One release, and what the worker goes on with."""

    next: ClaimBody | None = None
    """Claim this in the same commit. It does not wait."""


class ReleaseItem(ReleaseBody, frozen=True, kw_only=True, gc=False):
    """One of many."""

    lease_id: Id


class ReleaseBatch(msgspec.Struct, frozen=True, kw_only=True):
    """Up to 500 releases."""

    items: Annotated[list[ReleaseItem], Meta(max_length=500)]
    brief: bool = False
    """Answer only what became of each, not the whole lease and job."""
    next: ClaimBody | None = None
    """Claim this in the same commit, unless all of the leases are lost. It does not wait."""


class ListQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which jobs to list."""

    state: State | None = None
    addon_id: str | None = None
    job_type: str | None = None
    created_after: str | None = None
    created_before: str | None = None
    limit: Annotated[int, Meta(ge=1, le=500)] = 50
    cursor: str | None = None


class HoldersQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many leases to list."""

    limit: Annotated[int, Meta(ge=1, le=500)] = 50


class SeriesQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which figures."""

    metric: str
    bucket: str = "5m"
    range: str = "24h"
