"""Governed objects: registered, changed, shown in an audit entry, and how their weight fades."""

import json
import math
from typing import Any

import msgspec
import pytest

from ksana.base.errors import ConflictError, InvalidError
from ksana.base.instant import DAY, HOUR, SECOND, format_instant
from ksana.domain.governance import changes, decay
from ksana.domain.governance.changes import ObjectChange
from ksana.domain.governance.objects import (
    ObjectFields,
    change_object,
    forget_next_action,
    new_object,
    register_object,
)
from ksana.domain.governance.records import GovernedObject, Rules
from tests.unit.governance_ground import NOW, RULES, an_object

LATER = NOW + 5 * SECOND


def differences(old: Any, new: Any) -> dict[str, Any]:
    """The members that changed."""
    before, after = msgspec.structs.asdict(old), msgspec.structs.asdict(new)
    return {name: after[name] for name in after if before[name] != after[name]}


def change(old: GovernedObject, **members: Any) -> dict[str, Any]:
    is_replaced = members.pop("is_replaced", False)
    fields = ObjectFields(**members)
    made = change_object(old, fields, RULES, LATER, is_replaced=is_replaced)
    found = differences(old, made.new)
    assert (found.pop("version"), found.pop("updated_at")) == (old.version + 1, LATER)
    assert made.event == ("OBJECT_MOVED" if "status" in found else "OBJECT_CHANGED")
    assert made.is_move == ("status" in found)
    assert made.reason == "CHANGED_BY_CALLER"
    return found


@pytest.mark.spec("G7")
def test_an_object_is_registered_with_what_is_known_of_it() -> None:
    made = register_object("memory", "m1", ObjectFields(status="active"), Rules(), NOW)
    assert made == ObjectChange(
        old=None,
        new=msgspec.structs.replace(new_object("memory", "m1", Rules(), NOW), status="active"),
        event="OBJECT_REGISTERED",
        reason="REGISTERED",
    )
    assert not made.is_move
    bare = made.new
    assert (bare.version, bare.created_at, bare.updated_at, bare.decayed_at) == (1, NOW, NOW, NOW)
    assert (bare.verify_count, bare.reinforcement_count, bare.weight) == (0, 0, 1.0)
    assert (bare.evidence_refs, bare.data, bare.auto_verify_budget) == ("[]", "{}", 2)
    assert new_object("memory", "m1", Rules(auto_verify_budget=7), NOW).auto_verify_budget == 7
    with pytest.raises(InvalidError) as caught:
        register_object("memory", "m1", ObjectFields(status="nonsense"), Rules(), NOW)
    assert caught.value.field == "status"


@pytest.mark.spec("G7")
def test_a_change_sets_what_is_given_and_null_sets_back() -> None:
    old = an_object(risk_tier="high", weight=0.5, data='{"a":1}', verify_count=3)
    assert change(old, risk_tier="medium") == {"risk_tier": "medium"}
    assert change(old, risk_tier=None, data=None) == {"risk_tier": "low", "data": "{}"}
    assert change(old, status="verified") == {"status": "verified"}
    assert change(old, weight=0.5) == {}
    assert change(old, weight=0.6) == {"weight": 0.6, "decayed_at": LATER}
    assert change(old, weight=None) == {"weight": 1.0, "decayed_at": LATER}
    assert change(old, verify_count=2) == {}, "a count sent back late takes none away"
    assert change(old, verify_count=4) == {"verify_count": 4}
    with pytest.raises(InvalidError):
        change(old, status="nonsense")
    with pytest.raises(ConflictError):
        change(an_object(status="archived"), status="candidate")


@pytest.mark.spec("G7")
def test_a_replacement_sets_back_what_is_not_given_but_no_count_and_no_status() -> None:
    old = an_object(
        status="active", risk_tier="high", auto_verify_budget=0, verify_count=3, half_life_us=9
    )
    assert change(old, is_replaced=True, impact_tier="high") == {
        "risk_tier": "low",
        "impact_tier": "high",
        "half_life_us": None,
    }


@pytest.mark.spec("G13")
def test_a_reinforcement_is_dated_where_nobody_says_when() -> None:
    old = an_object(reinforcement_count=2)
    assert change(old, reinforcement_count=3) == {
        "reinforcement_count": 3,
        "last_reinforced_at": LATER,
    }
    assert change(old, reinforcement_count=3, last_reinforced_at=7) == {
        "reinforcement_count": 3,
        "last_reinforced_at": 7,
    }
    assert change(old, reinforcement_count=2) == {}
    assert change(old, reinforcement_count=1) == {"reinforcement_count": 1}
    assert change(an_object(), risk_tier="high") == {"risk_tier": "high"}


@pytest.mark.spec("G4")
@pytest.mark.parametrize(("kind", "first"), [("memory", "verify"), ("cognition", "revalidate")])
def test_an_action_is_chosen_where_a_time_is_set_and_none_is_named(kind: str, first: str) -> None:
    old = an_object(kind)
    assert change(old, next_action_at=LATER) == {"next_action_at": LATER, "next_action": first}
    assert change(old, next_action_at=LATER, next_action="archive")["next_action"] == "archive"
    assert change(old, risk_tier="high") == {"risk_tier": "high"}
    assert change(an_object(kind, next_action="archive"), next_action_at=LATER) == {
        "next_action_at": LATER
    }


def test_an_object_whose_follow_up_ended_says_that_nothing_comes_next() -> None:
    old = an_object(next_action_at=LATER, next_action="verify")
    assert forget_next_action(old, "j", "WHY", NOW) == ObjectChange(
        old=old,
        new=msgspec.structs.replace(old, next_action_at=None, version=2, updated_at=NOW),
        event="OBJECT_CHANGED",
        reason="WHY",
        job_id="j",
    )
    assert forget_next_action(an_object(), "j", "WHY", NOW) is None


@pytest.mark.spec("G12")
def test_an_audit_entry_shows_all_of_an_object_but_its_data() -> None:
    governed = an_object(
        epistemic_state="uncertain",
        unknown_type="epistemic",
        risk_tier="high",
        impact_tier="medium",
        verify_count=3,
        weight=0.5,
        next_action="verify",
        next_action_at=LATER,
        version=4,
        data='{"secret":1}',
    )
    assert json.loads(changes.describe_object(governed) or "") == {
        "status": "candidate",
        "epistemic_state": "uncertain",
        "unknown_type": "epistemic",
        "risk_tier": "high",
        "impact_tier": "medium",
        "auto_verify_budget": 2,
        "verify_count": 3,
        "weight": 0.5,
        "next_action": "verify",
        "next_action_at": format_instant(LATER),
        "version": 4,
    }
    assert changes.describe_object(None) is None
    assert json.loads(changes.describe_object(an_object()) or "")["next_action_at"] is None


@pytest.mark.spec("G7")
def test_an_object_is_moved_as_its_lifecycle_allows() -> None:
    governed = an_object()
    assert changes.can_move(governed, "candidate")
    assert changes.can_move(governed, "verified")
    archived = an_object(status="archived")
    assert not changes.can_move(archived, "candidate")
    changes.check_object(ObjectChange(old=archived, new=archived, event=None, reason="R"))
    changes.check_object(ObjectChange(old=None, new=archived, event=None, reason="R"))
    with pytest.raises(ConflictError):
        changes.check_object(ObjectChange(old=archived, new=governed, event=None, reason="R"))


# Fading


@pytest.mark.spec("G13")
@pytest.mark.parametrize(
    ("count", "impact", "factor"),
    [
        (0, "low", 1.0),
        (0, "medium", 1.5),
        (0, "high", 2.0),
        (1, "low", 1.0 + math.log(2)),
        (9, "high", 2 * (1.0 + math.log(10))),
        (-5, "low", 1.0),
    ],
)
def test_what_was_confirmed_often_and_matters_much_fades_slowly(
    count: int, impact: str, factor: float
) -> None:
    governed = an_object(half_life_us=DAY, reinforcement_count=count, impact_tier=impact)
    assert decay.effective_half_life(governed) == pytest.approx(DAY * factor)
    assert decay.effective_half_life(an_object(half_life_us=None)) is None
    assert decay.effective_half_life(an_object(half_life_us=0)) is None


@pytest.mark.spec("G13")
def test_a_weight_fades_to_the_floor_by_halves_of_what_is_above_it() -> None:
    assert decay.fade(1.01, DAY, DAY) == pytest.approx(decay.FLOOR + 0.5)
    assert decay.fade(1.01, 2 * DAY, DAY) == pytest.approx(decay.FLOOR + 0.25)
    assert decay.fade(decay.FLOOR, DAY, DAY) == decay.FLOOR
    assert decay.fade(0.001, DAY, DAY) == 0.001
    assert decay.fade(0.7, 0, DAY) == 0.7
    assert decay.fade(0.7, -DAY, DAY) == 0.7
    two_steps = decay.fade(decay.fade(0.9, HOUR, DAY), DAY, DAY)
    assert two_steps == pytest.approx(decay.fade(0.9, HOUR + DAY, DAY))


@pytest.mark.spec("G13")
def test_an_object_fades_since_it_was_last_worked_out() -> None:
    governed = an_object(half_life_us=DAY, weight=1.01, decayed_at=NOW, created_at=NOW - DAY)
    after = decay.decay(governed, NOW + DAY)
    assert differences(governed, after) == {
        "weight": pytest.approx(0.51),
        "decayed_at": NOW + DAY,
    }
    assert decay.decay(governed, NOW) is governed
    first = msgspec.structs.replace(governed, decayed_at=None)
    assert decay.decay(first, NOW).weight == pytest.approx(0.51)
    still = an_object(half_life_us=None)
    assert decay.decay(still, NOW + DAY) is still


@pytest.mark.spec("G13")
@pytest.mark.parametrize(
    ("half_life", "step"),
    [(4 * DAY, DAY), (HOUR, HOUR), (4 * HOUR, HOUR), (400 * DAY, 30 * DAY)],
)
def test_the_weight_is_worked_out_four_times_in_a_half_life_within_bounds(
    half_life: int, step: int
) -> None:
    assert decay.next_decay_at(an_object(half_life_us=half_life), NOW) == NOW + step
    assert decay.next_decay_at(an_object(half_life_us=half_life, weight=0.01), NOW) is None
    near = decay.FLOOR + 1e-6
    assert decay.next_decay_at(an_object(half_life_us=half_life, weight=near), NOW) is None
    assert decay.next_decay_at(an_object(), NOW) is None
