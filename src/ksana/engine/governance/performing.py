"""Actions that are performed elsewhere: what a webhook or a function is told of a job, and what its
answer means. Nothing that it says is believed unread: what the API would refuse is a failure."""

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from ksana.base.instant import Instant, format_instant, parse_instant, to_instant
from ksana.domain.governance.objects import NO_FIELDS, ObjectFields
from ksana.domain.governance.records import Action, GovernanceJob, GovernedObject

SUCCEEDED: Final = "succeeded"


class Performed(msgspec.Struct, frozen=True):
    """What came of an action that was performed elsewhere."""

    error: str | None = None
    """Why it failed; None if it succeeded."""
    next_action_at: Instant | UnsetType | None = UNSET
    next_action: str | None = None
    fields: ObjectFields = NO_FIELDS


Perform = Callable[[GovernanceJob, GovernedObject | None], Awaitable[Performed]]
"""Verifies, revalidates or checks an object. What it raises counts as a failed attempt."""


class ObjectAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Members of the object that may change with an answer."""

    status: Annotated[str, Meta(max_length=24)] | None = None
    epistemic_state: Literal["supported", "uncertain", "refuted"] | None = None
    unknown_type: Literal["multipath", "out_of_scope", "ontic_unknowable"] | None = None
    weight: Annotated[float, Meta(ge=0, le=1_000_000)] | None = None
    reinforcement_count: Annotated[int, Meta(ge=0, le=1_000_000)] | None = None


class PerformAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What may be answered; members that are not known are passed over."""

    result: str = SUCCEEDED
    error: Any = None
    next_action_at: Any = UNSET
    """A text, or from a function a `datetime`."""
    next_action: Action | None = None
    object: ObjectAnswer | None = None


def tell(job: GovernanceJob, governed: GovernedObject | None) -> dict[str, Any]:
    """A job and its object, as they are told. Texts with JSON in them stay as they are."""
    told: dict[str, Any] = {
        "job_id": job.job_id,
        "object_type": job.object_type,
        "object_id": job.object_id,
        "action": job.action,
        "attempt": job.attempt,
        "run_at": format_instant(job.run_at),
        "object": None,
    }
    if governed is not None:
        told["object"] = {
            "status": governed.status,
            "epistemic_state": governed.epistemic_state,
            "unknown_type": governed.unknown_type,
            "risk_tier": governed.risk_tier,
            "impact_tier": governed.impact_tier,
            "auto_verify_budget": governed.auto_verify_budget,
            "verify_count": governed.verify_count,
            "weight": governed.weight,
            "evidence_refs": msgspec.Raw(governed.evidence_refs.encode()),
            "data": msgspec.Raw(governed.data.encode()),
        }
    return told


def read_answer(said: Any) -> Performed:
    """What an answer means. Raise ValueError for one that cannot be read."""
    try:
        answer = msgspec.convert(said, PerformAnswer)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from None
    if answer.result != SUCCEEDED:
        return Performed(error=str(answer.error or answer.result))
    changes = {} if answer.object is None else msgspec.structs.asdict(answer.object)
    given = {name: value for name, value in changes.items() if value is not None}
    return Performed(
        next_action_at=_read_next(answer.next_action_at),
        next_action=answer.next_action,
        fields=ObjectFields(**given) if given else NO_FIELDS,
    )


def _read_next(given: Any) -> Instant | UnsetType | None:
    if given is None or given is UNSET:
        return None if given is None else UNSET
    if isinstance(given, datetime):
        if given.tzinfo is None:
            raise ValueError("next_action_at has no time zone")
        return to_instant(given)
    if isinstance(given, str):
        return parse_instant(given)
    raise ValueError(f"next_action_at is a {type(given).__name__}, not a time")
