"""What the endpoints of governance take. Bodies people write are strict; what workers report may
carry more."""

from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from ksana.domain.governance.records import (
    MAX_OBJECT_ID,
    Action,
    GateState,
    ObjectStatus,
    ObjectType,
    Priority,
    Status,
)

ObjectId = Annotated[str, Meta(min_length=1, max_length=MAX_OBJECT_ID)]
JobId = Annotated[str, Meta(min_length=1, max_length=64)]
Name = Annotated[str, Meta(min_length=1, max_length=128)]
Text = Annotated[str, Meta(max_length=1024)]
Token = Annotated[str, Meta(max_length=64)]
Attempts = Annotated[int, Meta(ge=1, le=1000)]
Seconds = Annotated[float, Meta(ge=0, le=31_536_000)]
LeaseSeconds = Annotated[float, Meta(ge=1, le=86_400)]
Count = Annotated[int, Meta(ge=0, le=1_000_000)]
Tier = Literal["low", "medium", "high"]
Epistemic = Literal["supported", "uncertain", "refuted"]
Unknown = Literal["multipath", "out_of_scope", "ontic_unknowable"]
Duration = str | int | float
Refs = Annotated[list[Any], Meta(max_length=1000)]


class EnqueueBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A job to enqueue. The members that the server sets may be sent back and are passed over."""

    SERVER_OWNED: ClassVar = (
        *("job_id", "attempt", "status", "last_error", "created_at", "updated_at"),
    )

    object_type: ObjectType
    object_id: ObjectId
    action: Action
    run_at: str
    priority: Priority = "medium"
    max_attempts: Attempts = 3
    idempotency_key: Annotated[str, Meta(min_length=1, max_length=255)] | None = None
    allow_past: bool = False
    job_id: Any = None
    attempt: Any = None
    status: Any = None
    last_error: Any = None
    created_at: Any = None
    updated_at: Any = None


class PullBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a worker takes."""

    worker_id: Name
    now: str | None = None
    limit: Annotated[int, Meta(ge=1, le=500)] = 100
    lease_sec: LeaseSeconds = 120
    actions: Annotated[list[Action], Meta(min_length=1, max_length=5)] | None = None
    object_types: Annotated[list[ObjectType], Meta(min_length=1, max_length=3)] | None = None
    order: Literal["run_at", "priority"] = "run_at"
    wait_sec: Annotated[float, Meta(ge=0, le=30)] = 0


class ObjectBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An object, or what changes of it. A null sets a member back to its default."""

    SERVER_OWNED: ClassVar = (
        *("object_type", "object_id", "version", "decayed_at", "created_at", "updated_at"),
    )

    status: Name | UnsetType | None = UNSET
    epistemic_state: Epistemic | UnsetType | None = UNSET
    unknown_type: Unknown | UnsetType | None = UNSET
    risk_tier: Tier | UnsetType | None = UNSET
    impact_tier: Tier | UnsetType | None = UNSET
    auto_verify_budget: Count | UnsetType | None = UNSET
    verify_count: Count | UnsetType | None = UNSET
    uncertainty_ttl: Duration | UnsetType | None = UNSET
    review_due_at: str | UnsetType | None = UNSET
    expires_at: str | UnsetType | None = UNSET
    next_action_at: str | UnsetType | None = UNSET
    next_action: Action | UnsetType | None = UNSET
    weight: Annotated[float, Meta(ge=0, le=1_000_000)] | UnsetType | None = UNSET
    half_life: Duration | UnsetType | None = UNSET
    reinforcement_count: Count | UnsetType | None = UNSET
    last_reinforced_at: str | UnsetType | None = UNSET
    evidence_refs: Refs | UnsetType | None = UNSET
    data: Raw | UnsetType = UNSET
    object_type: Any = None
    object_id: Any = None
    version: Any = None
    decayed_at: Any = None
    created_at: Any = None
    updated_at: Any = None


class AckBody(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A worker's word that its job is done."""

    result: Literal["succeeded"] = "succeeded"
    audit_event_id: Name | None = None
    next_action_at: str | UnsetType | None = UNSET
    next_action: Action | None = None
    lease_token: Token | None = None
    worker_id: Name | None = None
    evidence_refs: Refs | None = None
    object: ObjectBody | None = None
    """What changes of the object with it, in the same transaction."""


class AckItem(AckBody, frozen=True, kw_only=True, gc=False):
    """One of many."""

    job_id: JobId


class AckBatch(msgspec.Struct, frozen=True, kw_only=True):
    """Up to 500 acks, each answered on its own."""

    items: Annotated[list[AckItem], Meta(max_length=500)]


class FailBody(msgspec.Struct, frozen=True, kw_only=True):
    """A worker's word that its attempt came to nothing."""

    error: str
    retry_delay_sec: Seconds = 300
    lease_token: Token | None = None
    worker_id: Name | None = None
    retry: bool = True
    """False ends the job for good, by the worker's own rule."""


class RenewBody(msgspec.Struct, frozen=True, kw_only=True):
    """A sign of life."""

    lease_sec: LeaseSeconds = 120
    lease_token: Token | None = None


class FailItem(FailBody, frozen=True, kw_only=True):
    """One of many."""

    job_id: JobId


class FailBatch(msgspec.Struct, frozen=True, kw_only=True):
    """Up to 500 failed attempts, each answered on its own."""

    items: Annotated[list[FailItem], Meta(max_length=500)]


class RenewItem(msgspec.Struct, frozen=True, kw_only=True):
    """One of many."""

    job_id: JobId
    lease_token: Token | None = None


class RenewBatch(msgspec.Struct, frozen=True, kw_only=True):
    """Up to 500 signs of life, each answered on its own."""

    items: Annotated[list[RenewItem], Meta(max_length=500)]
    lease_sec: LeaseSeconds = 120


class RequeueFilter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which dead letters."""

    object_type: ObjectType | None = None
    object_id: ObjectId | None = None
    action: Action | None = None
    run_after: str | None = None
    run_before: str | None = None


class RequeueBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All dead letters that match, or only their number."""

    filter: RequeueFilter = RequeueFilter()
    dry_run: bool = False


class GateBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A gate to set."""

    state: GateState
    scope: Annotated[str, Meta(max_length=48)] | None = None
    reason: Text | None = None


class JobsQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which jobs to list."""

    status: Status | None = None
    object_type: ObjectType | None = None
    object_id: str | None = None
    action: Action | None = None
    worker_id: str | None = None
    run_after: str | None = None
    run_before: str | None = None
    limit: Annotated[int, Meta(ge=1, le=500)] = 50
    cursor: str | None = None


class ObjectsQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which objects to list."""

    object_type: ObjectType | None = None
    status: ObjectStatus | None = None
    id_prefix: Annotated[str, Meta(max_length=MAX_OBJECT_ID)] = ""
    limit: Annotated[int, Meta(ge=1, le=500)] = 50
    cursor: str | None = None


class VerifyQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a verification goes on."""

    cursor: Annotated[str, Meta(max_length=8192)] | None = None


class AuditQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which audit entries to list."""

    event_type: str | None = None
    actor: str | None = None
    object_type: ObjectType | None = None
    object_id: str | None = None
    job_id: str | None = None
    since: str | None = None
    until: str | None = None
    limit: Annotated[int, Meta(ge=1, le=500)] = 50
    cursor: str | None = None
