"""What Governance sends and answers, as typed frozen structs. Members the server adds later are
passed over."""

from datetime import datetime
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from ksana.client.shapes import Answer

ACTIONS = ("verify", "revalidate", "decay", "archive", "reinstate-check")
OBJECT_TYPES = ("memory", "experience", "cognition")
ENDED = frozenset({"succeeded", "failed", "dead_letter"})


class GovernanceJob(Answer, frozen=True, kw_only=True, gc=False):
    """A governance job as the server sees it."""

    job_id: str
    object_type: str
    object_id: str
    action: str
    run_at: datetime
    status: str
    priority: str = "medium"
    attempt: int = 0
    """Attempts that ended badly."""
    max_attempts: int = 3
    idempotency_key: str | None = None
    last_error: str | None = None
    reason: str | None = None
    worker_id: str | None = None
    lease_expires_at: datetime | None = None
    lease_token: str | None = None
    """Proves the lease; only in the answer to the pull that handed the job out."""
    gates: dict[str, str] | None = None
    """The gates' states, where one is degraded; only in the answer to the pull."""
    deferrals: int = 0
    deferred_by: str | None = None
    audit_event_id: str | None = None
    next_action_at: datetime | None = None
    follow_up_job_id: str | None = None
    created_at: datetime | None = None
    updated_at: datetime | None = None
    finished_at: datetime | None = None
    duplicate: bool = False
    """It was there before this enqueue."""


class GovernedObject(Answer, frozen=True, kw_only=True, gc=False):
    """A memory, an experience or a cognition."""

    object_type: str
    object_id: str
    status: str
    epistemic_state: str | None = None
    unknown_type: str | None = None
    risk_tier: str = "low"
    impact_tier: str = "low"
    auto_verify_budget: int = 0
    verify_count: int = 0
    uncertainty_ttl: str | None = None
    review_due_at: datetime | None = None
    expires_at: datetime | None = None
    next_action_at: datetime | None = None
    next_action: str | None = None
    weight: float = 1.0
    half_life: str | None = None
    reinforcement_count: int = 0
    last_reinforced_at: datetime | None = None
    decayed_at: datetime | None = None
    evidence_refs: list[Any] = msgspec.field(default_factory=list)
    data: dict[str, Any] = msgspec.field(default_factory=dict)
    version: int = 1
    created_at: datetime | None = None
    updated_at: datetime | None = None


class Gate(Answer, frozen=True, kw_only=True, gc=False):
    """One setting of a gate."""

    gate: str
    state: str
    scope: str | None = None
    reason: str | None = None
    updated_at: datetime | None = None
    updated_by: str | None = None
    woken: int = 0
    """Jobs that this setting woke at once."""


class AckItem(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """A job that is done."""

    job_id: str
    lease_token: str | None = None
    worker_id: str | None = None
    next_action_at: str | UnsetType | None = UNSET
    next_action: str | None = None
    object: dict[str, Any] | None = None
    evidence_refs: list[Any] | None = None
    audit_event_id: str | None = None


class FailItem(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An attempt that came to nothing."""

    job_id: str
    error: str
    retry_delay_sec: float = 300
    retry: bool = True
    lease_token: str | None = None
    worker_id: str | None = None


class RenewItem(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A sign of life."""

    job_id: str
    lease_token: str | None = None


class JobsAnswer(Answer, frozen=True, kw_only=True, gc=False):
    """Jobs, and where to go on."""

    jobs: list[GovernanceJob]
    next_cursor: str | None = None


class GatesAnswer(Answer, frozen=True, kw_only=True, gc=False):
    """Every setting."""

    gates: list[Gate]


class AuditAnswer(Answer, frozen=True, kw_only=True, gc=False):
    """Audit entries, and where to go on."""

    events: list[dict[str, Any]]
    next_cursor: str | None = None
