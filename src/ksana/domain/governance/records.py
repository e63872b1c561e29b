"""What governance keeps: jobs, objects, gates. Values only; the rules are beside this module."""

from typing import Final, Literal, cast

import msgspec

from ksana.base.instant import SECOND, Instant, Micros, format_instant

ObjectType = Literal["memory", "experience", "cognition"]
Action = Literal["verify", "revalidate", "decay", "archive", "reinstate-check"]
Priority = Literal["low", "medium", "high"]
Status = Literal["queued", "running", "succeeded", "failed", "dead_letter"]
ObjectStatus = Literal[
    "candidate",
    "verified",
    "quarantine",
    "active",
    "stale",
    "stale_uncertain",
    "rejected_poisoned",
    "needs_review",
    "invalidated",
    "needs_revalidate",
    "refuted",
    "archived",
]
"""Of objects of any type; which of them a type has, its lifecycle says."""
GateName = Literal["persona", "cognition"]
GateState = Literal["open", "degraded", "closed"]

OBJECT_TYPES: Final[tuple[ObjectType, ...]] = ("memory", "experience", "cognition")
ACTIONS: Final[tuple[Action, ...]] = (
    "verify",
    "revalidate",
    "decay",
    "archive",
    "reinstate-check",
)
GATES: Final[tuple[GateName, ...]] = ("persona", "cognition")
URGENCY: Final[dict[str, int]] = {"high": 0, "medium": 1, "low": 2}
"""The place of a priority in the order of a hand-out: the least comes first."""
PRIORITIES: Final[tuple[Priority, ...]] = ("high", "medium", "low")

VERIFYING: Final = frozenset({"verify", "revalidate"})
"""The actions that budgets and limits count (G10, G11)."""

QUEUED_POSITION: Final = 0
DEFERRED_POSITION: Final = 1
"""Where a queued job waits: 0 for its time, in the index that pulls read; 1 for a gate, outside of
it. A job that is not queued has no position."""

MAX_OBJECT_ID: Final = 200
"""So that `object_id:action:run_at` fits into 255 characters."""
MAX_ERROR: Final = 1024
DEFAULT_MAX_ATTEMPTS: Final = 3
LEASE_US: Final[Micros] = 120 * SECOND
RETRY_DELAY_US: Final[Micros] = 300 * SECOND

_CLASS_OF: Final = {
    (object_type, action, urgency): number
    for number, (object_type, action, urgency) in enumerate(
        (object_type, action, urgency)
        for object_type in OBJECT_TYPES
        for action in ACTIONS
        for urgency in range(len(PRIORITIES))
    )
}


def class_of(object_type: str, action: str, urgency: int) -> int:
    """The number of all jobs that no filter of a pull tells apart but by their time."""
    return _CLASS_OF[cast(ObjectType, object_type), cast(Action, action), urgency]


def object_key(object_type: str, object_id: str) -> str:
    """An object's one name, as events and rows have it."""
    return f"{object_type}:{object_id}"


def default_idempotency_key(object_id: str, action: str, run_at: Instant) -> str:
    """The key of a job whose caller names none (G1)."""
    return f"{object_id}:{action}:{format_instant(run_at)}"


class GovernanceJob(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One action on one object, due at one time. `attempt` counts the attempts that ended badly."""

    seq: int
    job_id: str
    object_type: str
    object_id: str
    action: str
    urgency: int
    run_at: Instant
    attempt: int
    max_attempts: int
    idempotency_key: str
    status: str
    last_error: str | None
    position: int | None
    reason: str | None
    """Why it is what it is, as a code."""
    created_at: Instant
    updated_at: Instant
    finished_at: Instant | None = None
    worker_id: str | None = None
    lease_token: int = 0
    """0 while nobody holds it."""
    lease_expires_at: Instant | None = None
    deferrals: int = 0
    gate_key: str | None = None
    """The setting of a gate that it waits for, while it is deferred."""
    follow_key: str | None = None
    """The object's key while this is the object's queued follow-up: unique in the store."""
    audit_event_id: str | None = None
    next_action_at: Instant | None = None
    """What its ack said."""
    follow_up_id: str | None = None
    """The job that its ack queued."""
    ack_digest: str | None = None
    is_follow_up: int = 0
    """Whether it was queued by its object's `next_action_at`."""

    @property
    def priority(self) -> Priority:
        """The urgency by its name."""
        return PRIORITIES[self.urgency]

    @property
    def key(self) -> str:
        """The key of its object."""
        return f"{self.object_type}:{self.object_id}"


class GovernedObject(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A memory, an experience or a cognition under governance."""

    object_type: str
    object_id: str
    status: str
    epistemic_state: str | None
    unknown_type: str | None
    risk_tier: str
    impact_tier: str
    auto_verify_budget: int
    verify_count: int
    uncertainty_ttl_us: Micros | None
    review_due_at: Instant | None
    expires_at: Instant | None
    next_action_at: Instant | None
    next_action: str | None
    weight: float
    half_life_us: Micros | None
    reinforcement_count: int
    last_reinforced_at: Instant | None
    decayed_at: Instant | None
    """Since when `weight` has been what it is."""
    evidence_refs: str
    """A JSON array, as it was sent."""
    data: str
    """A JSON object, as it was sent."""
    version: int
    """Rises with every change: what a change is compared with."""
    created_at: Instant
    updated_at: Instant

    @property
    def key(self) -> str:
        """Its one name."""
        return f"{self.object_type}:{self.object_id}"


class Gate(msgspec.Struct, frozen=True, gc=False):
    """One setting of a gate: for everything (scope ""), or for what its scope names."""

    gate: str
    scope: str
    state: str
    reason: str | None
    updated_at: Instant
    updated_by: str | None = None

    @property
    def key(self) -> str:
        """Its one name, as a deferred job keeps it."""
        return f"{self.gate}/{self.scope}"


class Rules(msgspec.Struct, frozen=True, gc=False):
    """The settings that decisions depend on."""

    verify_limit: int = 2
    auto_verify_budget: int = 2
    require_lease_token: bool = False
    allow_simulation: bool = False


class Who(msgspec.Struct, frozen=True, gc=False):
    """Who acts, for the audit: a name, the request and the trace it came in."""

    actor: str
    correlation_id: str | None = None
    decision_trace_id: str | None = None
