"""What the endpoints of governance answer."""

import msgspec
from msgspec import UNSET, Raw, UnsetType

from ksana.base.durations import format_duration
from ksana.base.ids import show_token
from ksana.base.instant import Instant, Micros
from ksana.domain.governance.audit import AuditRow
from ksana.domain.governance.changes import show_at
from ksana.domain.governance.hand_out import HandOut
from ksana.domain.governance.records import Gate, GovernanceJob, GovernedObject


class GovernanceJobView(msgspec.Struct, frozen=True, gc=False):
    """A job as answered. Its token is shown to the holder alone, when it is handed out."""

    job_id: str
    object_type: str
    object_id: str
    action: str
    run_at: str
    priority: str
    attempt: int
    max_attempts: int
    idempotency_key: str
    status: str
    last_error: str | None
    reason: str | None
    worker_id: str | None
    lease_expires_at: str | None
    deferrals: int
    deferred_by: str | None
    audit_event_id: str | None
    next_action_at: str | None
    follow_up_job_id: str | None
    created_at: str
    updated_at: str
    finished_at: str | None
    lease_token: str | UnsetType = UNSET
    gates: dict[str, str] | UnsetType = UNSET
    duplicate: bool | UnsetType = UNSET


class ObjectView(msgspec.Struct, frozen=True, gc=False):
    """An object as answered."""

    object_type: str
    object_id: str
    status: str
    epistemic_state: str | None
    unknown_type: str | None
    risk_tier: str
    impact_tier: str
    auto_verify_budget: int
    verify_count: int
    uncertainty_ttl: str | None
    review_due_at: str | None
    expires_at: str | None
    next_action_at: str | None
    next_action: str | None
    weight: float
    half_life: str | None
    reinforcement_count: int
    last_reinforced_at: str | None
    decayed_at: str | None
    evidence_refs: Raw
    data: Raw
    version: int
    created_at: str
    updated_at: str


class GateView(msgspec.Struct, frozen=True, gc=False):
    """A setting of a gate as answered."""

    gate: str
    scope: str | None
    state: str
    reason: str | None
    updated_at: str | None
    updated_by: str | None
    woken: int | UnsetType = UNSET


class AuditView(msgspec.Struct, frozen=True, gc=False):
    """An audit entry as answered."""

    id: str
    event_type: str
    actor: str
    object_type: str | None
    object_id: str | None
    before: Raw | None
    after: Raw | None
    reason: str | None
    evidence_refs: Raw | None
    job_id: str | None
    correlation_id: str | None
    decision_trace_id: str | None
    timestamp: str
    chain: int
    seq: int
    prev_hash: str
    hash: str


def _shown(at: Instant | None) -> str | None:
    return None if at is None else show_at(at)


def _span(span: Micros | None) -> str | None:
    return None if span is None else format_duration(span)


def _raw(text: str | None) -> Raw | None:
    return None if text is None else Raw(text.encode())


def show_job(
    job: GovernanceJob,
    token: str | UnsetType = UNSET,
    gates: dict[str, str] | UnsetType = UNSET,
    duplicate: bool | UnsetType = UNSET,
) -> GovernanceJobView:
    """A job in the contract's shape."""
    return GovernanceJobView(
        job.job_id,
        job.object_type,
        job.object_id,
        job.action,
        show_at(job.run_at),
        job.priority,
        job.attempt,
        job.max_attempts,
        job.idempotency_key,
        job.status,
        job.last_error,
        job.reason,
        job.worker_id,
        _shown(job.lease_expires_at),
        job.deferrals,
        job.gate_key,
        job.audit_event_id,
        _shown(job.next_action_at),
        job.follow_up_id,
        show_at(job.created_at),
        show_at(job.updated_at),
        _shown(job.finished_at),
        token,
        gates,
        duplicate,
    )


def show_handed(handed: HandOut) -> GovernanceJobView:
    """A job for the worker that holds it from now on."""
    job = handed.job.job
    return show_job(job, show_token(job.lease_token), handed.gates or UNSET)


def show_object(governed: GovernedObject) -> ObjectView:
    """An object."""
    return ObjectView(
        object_type=governed.object_type,
        object_id=governed.object_id,
        status=governed.status,
        epistemic_state=governed.epistemic_state,
        unknown_type=governed.unknown_type,
        risk_tier=governed.risk_tier,
        impact_tier=governed.impact_tier,
        auto_verify_budget=governed.auto_verify_budget,
        verify_count=governed.verify_count,
        uncertainty_ttl=_span(governed.uncertainty_ttl_us),
        review_due_at=_shown(governed.review_due_at),
        expires_at=_shown(governed.expires_at),
        next_action_at=_shown(governed.next_action_at),
        next_action=governed.next_action,
        weight=governed.weight,
        half_life=_span(governed.half_life_us),
        reinforcement_count=governed.reinforcement_count,
        last_reinforced_at=_shown(governed.last_reinforced_at),
        decayed_at=_shown(governed.decayed_at),
        evidence_refs=Raw(governed.evidence_refs.encode()),
        data=Raw(governed.data.encode()),
        version=governed.version,
        created_at=show_at(governed.created_at),
        updated_at=show_at(governed.updated_at),
    )


def show_gate(gate: Gate, woken: int | UnsetType = UNSET) -> GateView:
    """A setting of a gate."""
    return GateView(
        gate=gate.gate,
        scope=gate.scope or None,
        state=gate.state,
        reason=gate.reason,
        updated_at=show_at(gate.updated_at) if gate.updated_at else None,
        updated_by=gate.updated_by,
        woken=woken,
    )


def show_audit(row: AuditRow) -> AuditView:
    """An audit entry."""
    return AuditView(
        id=row.id,
        event_type=row.event_type,
        actor=row.actor,
        object_type=row.object_type,
        object_id=row.object_id,
        before=_raw(row.before),
        after=_raw(row.after),
        reason=row.reason,
        evidence_refs=_raw(row.evidence_refs),
        job_id=row.job_id,
        correlation_id=row.correlation_id,
        decision_trace_id=row.decision_trace_id,
        timestamp=show_at(row.timestamp),
        chain=row.chain,
        seq=row.seq,
        prev_hash=row.prev_hash,
        hash=row.hash,
    )
