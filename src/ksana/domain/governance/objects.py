"""How an object is registered and changed (G7). Pure."""

from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType

from ksana.base.errors import InvalidError
from ksana.base.instant import Instant, Micros
from ksana.domain.governance.changes import OBJECT_LIFECYCLES, ObjectChange, check_object
from ksana.domain.governance.records import Action, GovernedObject, Rules

FIRST_STATUS: Final = "candidate"
FIRST_ACTION: Final[dict[str, Action]] = {
    "memory": "verify",
    "experience": "verify",
    "cognition": "revalidate",
}
"""What is done at `next_action_at` where nobody said."""
KEPT_BY_PUT: Final = ("auto_verify_budget", "verify_count")
"""What a PUT that leaves it out does not set back: a budget that was spent stays spent."""


class ObjectFields(msgspec.Struct, frozen=True, kw_only=True):
    """Members of an object as a caller gives them; UNSET ones were not given. A null sets a member
    back to its default."""

    status: str | UnsetType | None = UNSET
    epistemic_state: str | UnsetType | None = UNSET
    unknown_type: str | UnsetType | None = UNSET
    risk_tier: str | UnsetType | None = UNSET
    impact_tier: str | UnsetType | None = UNSET
    auto_verify_budget: int | UnsetType | None = UNSET
    verify_count: int | UnsetType | None = UNSET
    uncertainty_ttl_us: Micros | UnsetType | None = UNSET
    review_due_at: Instant | UnsetType | None = UNSET
    expires_at: Instant | UnsetType | None = UNSET
    next_action_at: Instant | UnsetType | None = UNSET
    next_action: str | UnsetType | None = UNSET
    weight: float | UnsetType | None = UNSET
    half_life_us: Micros | UnsetType | None = UNSET
    reinforcement_count: int | UnsetType | None = UNSET
    last_reinforced_at: Instant | UnsetType | None = UNSET
    evidence_refs: str | UnsetType | None = UNSET
    data: str | UnsetType | None = UNSET

    def given(self) -> dict[str, Any]:
        """The members that were given."""
        return {
            name: value
            for name in self.__struct_fields__
            if (value := getattr(self, name)) is not UNSET
        }


NO_FIELDS: Final = ObjectFields()


def _defaults(rules: Rules) -> dict[str, Any]:
    bare = new_object("", "", rules, 0)
    return {name: getattr(bare, name) for name in ObjectFields.__struct_fields__}


def check_status(object_type: str, status: str, field: str = "status") -> None:
    """Raise InvalidError for a status that objects of the type do not have."""
    states = OBJECT_LIFECYCLES[object_type].states
    if status not in states:
        raise InvalidError(
            f"'{field}': {status[:64]!r} is no status of a {object_type};"
            f" allowed: {', '.join(sorted(states))}",
            field=field,
        )


def new_object(object_type: str, object_id: str, rules: Rules, now: Instant) -> GovernedObject:
    """An object of which nothing is known but its name."""
    return GovernedObject(
        object_type=object_type,
        object_id=object_id,
        status=FIRST_STATUS,
        epistemic_state=None,
        unknown_type=None,
        risk_tier="low",
        impact_tier="low",
        auto_verify_budget=rules.auto_verify_budget,
        verify_count=0,
        uncertainty_ttl_us=None,
        review_due_at=None,
        expires_at=None,
        next_action_at=None,
        next_action=None,
        weight=1.0,
        half_life_us=None,
        reinforcement_count=0,
        last_reinforced_at=None,
        decayed_at=now,
        evidence_refs="[]",
        data="{}",
        version=1,
        created_at=now,
        updated_at=now,
    )


def register_object(
    object_type: str, object_id: str, fields: ObjectFields, rules: Rules, now: Instant
) -> ObjectChange:
    """Enter a new object, in any state that its type has."""
    bare = new_object(object_type, object_id, rules, now)
    made = _with_fields(bare, fields.given(), rules, now)
    check_status(object_type, made.status)
    return ObjectChange(old=None, new=made, event="OBJECT_REGISTERED", reason="REGISTERED")


def change_object(
    old: GovernedObject,
    fields: ObjectFields,
    rules: Rules,
    now: Instant,
    *,
    is_replaced: bool = False,
    reason: str = "CHANGED_BY_CALLER",
) -> ObjectChange:
    """Change what is given; with `is_replaced` also set back what is not. Raise
    ILLEGAL_TRANSITION for a status that cannot follow the present one."""
    given = fields.given()
    if is_replaced:
        given = {**_defaults(rules), "status": old.status, **_kept(old), **given}
    new = _with_fields(old, given, rules, now)
    check_status(old.object_type, new.status)
    if old.status != new.status:
        event = "OBJECT_MOVED"
    else:
        event = "OBJECT_CHANGED"
    change = ObjectChange(old=old, new=bump(old, new, now), event=event, reason=reason)
    check_object(change)
    return change


def bump(old: GovernedObject, new: GovernedObject, now: Instant) -> GovernedObject:
    """The new value with the next version."""
    return msgspec.structs.replace(new, version=old.version + 1, updated_at=now)


def forget_next_action(
    old: GovernedObject, job_id: str, reason: str, now: Instant
) -> ObjectChange | None:
    """The object after a rule ended its follow-up: nothing comes next, and it says so."""
    if old.next_action_at is None:
        return None
    new = bump(old, msgspec.structs.replace(old, next_action_at=None), now)
    return ObjectChange(old=old, new=new, event="OBJECT_CHANGED", reason=reason, job_id=job_id)


def _kept(old: GovernedObject) -> dict[str, Any]:
    return {name: getattr(old, name) for name in KEPT_BY_PUT}


def _with_fields(
    old: GovernedObject, given: dict[str, Any], rules: Rules, now: Instant
) -> GovernedObject:
    defaults = _defaults(rules)
    values = {name: defaults[name] if value is None else value for name, value in given.items()}
    if "verify_count" in values:
        # Verifications are counted for ever (G11): a count sent back late takes none away.
        values["verify_count"] = max(values["verify_count"], old.verify_count)
    if values.get("reinforcement_count", 0) > old.reinforcement_count:
        values.setdefault("last_reinforced_at", now)
    if "weight" in values and values["weight"] != old.weight:
        values["decayed_at"] = now
    new = msgspec.structs.replace(old, **values)
    if new.next_action_at is not None and new.next_action is None:
        new = msgspec.structs.replace(new, next_action=FIRST_ACTION[old.object_type])
    return new
