"""What the endpoints of governance answer around jobs, objects and audit entries, for the API's
description. The handlers write these as plain objects; tests hold what is answered against them."""

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from ksana.api.core.explain import ReasonView
from ksana.api.governance.views import AuditView, GateView, GovernanceJobView, ObjectView


class PulledJobs(msgspec.Struct, frozen=True):
    """The jobs that were handed out; empty if none is due."""

    jobs: list[GovernanceJobView]


class GovernanceJobPage(msgspec.Struct, frozen=True):
    """Some jobs, newest first."""

    jobs: list[GovernanceJobView]
    next_cursor: str | None


class ObjectPage(msgspec.Struct, frozen=True):
    """Some objects, by type and id."""

    objects: list[ObjectView]
    next_cursor: str | None


class GovernanceItemResult(msgspec.Struct, frozen=True, kw_only=True):
    """One item's answer: the job, or a refusal with `code`, `message` and a number as `status`."""

    status: str | int
    job_id: str | UnsetType = UNSET
    object_type: str | UnsetType = UNSET
    object_id: str | UnsetType = UNSET
    action: str | UnsetType = UNSET
    run_at: str | UnsetType = UNSET
    priority: str | UnsetType = UNSET
    attempt: int | UnsetType = UNSET
    max_attempts: int | UnsetType = UNSET
    idempotency_key: str | UnsetType = UNSET
    last_error: str | UnsetType | None = UNSET
    reason: str | UnsetType | None = UNSET
    worker_id: str | UnsetType | None = UNSET
    lease_expires_at: str | UnsetType | None = UNSET
    deferrals: int | UnsetType = UNSET
    deferred_by: str | UnsetType | None = UNSET
    audit_event_id: str | UnsetType | None = UNSET
    next_action_at: str | UnsetType | None = UNSET
    follow_up_job_id: str | UnsetType | None = UNSET
    created_at: str | UnsetType = UNSET
    updated_at: str | UnsetType = UNSET
    finished_at: str | UnsetType | None = UNSET
    code: str | UnsetType = UNSET
    message: str | UnsetType = UNSET
    detail: str | UnsetType = UNSET
    request_id: str | UnsetType = UNSET
    current: Any | UnsetType = UNSET


class GovernanceResults(msgspec.Struct, frozen=True):
    """An answer for each item, in order."""

    results: list[GovernanceItemResult]


class Requeued(msgspec.Struct, frozen=True):
    """How many dead letters matched, and how many were queued again."""

    matched: int
    requeued: int
    dry_run: bool


class GovernanceJobExplained(msgspec.Struct, frozen=True):
    """Why a job waits, or ended as it did."""

    job_id: str
    summary: str
    reasons: list[ReasonView]


class ObjectExplained(msgspec.Struct, frozen=True):
    """What comes next for an object, and what its jobs came to."""

    object_type: str
    object_id: str
    summary: str
    reasons: list[ReasonView]


class GateList(msgspec.Struct, frozen=True):
    """Every setting of every gate."""

    gates: list[GateView]


class FaultView(msgspec.Struct, frozen=True):
    """Something that is wrong with the audit, and where."""

    kind: str
    chain: int
    seq: int
    message: str
    id: str | None


class AuditCheck(msgspec.Struct, frozen=True):
    """What a portion of a verification found."""

    ok: bool
    checked: int
    anchors: int
    restarted: bool
    next_cursor: str | None
    first_fault: FaultView | None


class AuditPage(msgspec.Struct, frozen=True):
    """Some audit entries, newest first."""

    events: list[AuditView]
    next_cursor: str | None
