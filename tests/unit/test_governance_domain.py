"""The rules of governance, as pure functions."""

import pytest

from ksana.base.errors import ConflictError, InvalidError
from ksana.domain.governance.changes import (
    check_object,
)
from ksana.domain.governance.events import KINDS
from ksana.domain.governance.gates import check_scope, read_gates
from ksana.domain.governance.hand_out import GovernanceLease, decide_hand_out
from ksana.domain.governance.jobs import (
    refuse_limit,
    refuse_run_at,
    wake,
)
from ksana.domain.governance.objects import (
    ObjectFields,
    change_object,
)
from ksana.domain.governance.records import (
    Gate,
    GovernedObject,
    Rules,
)
from tests.unit.governance_ground import a_job, an_object, check_event

NOW = 1_770_000_000_000_000


SECOND = 1_000_000


RULES = Rules()


LEASE = GovernanceLease(worker_id="w1", token=7, expires_at=NOW + 120 * SECOND)


KIND_OF = {kind.name: kind for kind in KINDS}


def a_gate(name: str, state: str, scope: str = "") -> Gate:
    return Gate(gate=name, scope=scope, state=state, reason=None, updated_at=NOW)


@pytest.mark.spec("G1")
def test_a_time_more_than_a_second_past_is_refused_unless_it_is_allowed() -> None:
    assert refuse_run_at(NOW - SECOND, NOW, False) is None
    refusal = refuse_run_at(NOW - SECOND - 1, NOW, False)
    assert isinstance(refusal, InvalidError)
    assert refusal.field == "run_at"
    assert refuse_run_at(NOW - 3600 * SECOND, NOW, True) is None


@pytest.mark.spec("G1")
def test_the_default_key_names_object_action_and_time() -> None:
    assert a_job().idempotency_key == "m1:verify:2026-02-02T02:40:00Z"


@pytest.mark.spec("G9")
def test_a_closed_gate_defers_a_job_of_high_risk_without_an_attempt() -> None:
    gates = [a_gate("persona", "closed"), a_gate("cognition", "open")]
    decided = decide_hand_out(a_job(), an_object(risk_tier="high"), gates, RULES, LEASE, NOW)
    job = decided.job.job
    assert not decided.is_handed_out
    assert (job.status, job.attempt, job.deferrals, job.gate_key) == ("queued", 0, 1, "persona/")
    check_event(decided.job)


@pytest.mark.spec("G9")
@pytest.mark.parametrize("governed", [None, an_object(), an_object(risk_tier="medium")])
def test_gates_have_no_say_about_objects_of_lower_risk(governed: GovernedObject | None) -> None:
    decided = decide_hand_out(a_job(), governed, [a_gate("persona", "closed")], RULES, LEASE, NOW)
    assert decided.is_handed_out
    assert decided.gates is None


@pytest.mark.spec("G9")
def test_a_degraded_gate_hands_out_and_says_so() -> None:
    gates = [a_gate("persona", "degraded"), a_gate("cognition", "open")]
    decided = decide_hand_out(a_job(), an_object(risk_tier="high"), gates, RULES, LEASE, NOW)
    assert decided.is_handed_out
    assert decided.gates == {"persona": "degraded", "cognition": "open"}


@pytest.mark.spec("G9")
def test_the_tenth_deferral_raises_an_alert_and_the_eleventh_does_not() -> None:
    gates = [a_gate("cognition", "closed")]
    governed = an_object(risk_tier="high")
    alerts = []
    job = a_job()
    for _ in range(11):
        decided = decide_hand_out(job, governed, gates, RULES, LEASE, NOW)
        alerts.append(decided.job.alert is not None)
        job = wake(decided.job.job, NOW).job
    assert alerts == [False] * 9 + [True, False]


@pytest.mark.spec("G9")
def test_the_strictest_setting_that_fits_counts() -> None:
    gates = [
        a_gate("persona", "open", "memory"),
        a_gate("persona", "closed", "*:decay"),
        a_gate("cognition", "degraded", "memory:verify"),
    ]
    assert read_gates(gates, "memory", "verify").states["cognition"] == "degraded"
    assert read_gates(gates, "memory", "decay").closed_by is gates[1]
    assert read_gates(gates, "experience", "verify").states == {
        "persona": "open",
        "cognition": "open",
    }
    with pytest.raises(InvalidError):
        check_scope("dreams")


@pytest.mark.spec("G10")
@pytest.mark.parametrize("action", ["verify", "revalidate"])
def test_a_hand_out_takes_one_from_the_budget_of_an_uncertain_object(action: str) -> None:
    governed = an_object(epistemic_state="uncertain", auto_verify_budget=1)
    decided = decide_hand_out(a_job(action=action), governed, [], RULES, LEASE, NOW)
    assert decided.is_handed_out
    assert decided.governed is not None
    assert decided.governed.new.auto_verify_budget == 0
    assert decided.governed.new.verify_count == 1


@pytest.mark.spec("G10")
def test_other_actions_and_certain_objects_take_nothing() -> None:
    uncertain = an_object(epistemic_state="uncertain", auto_verify_budget=0)
    assert decide_hand_out(a_job(action="decay"), uncertain, [], RULES, LEASE, NOW).is_handed_out
    certain = an_object(epistemic_state="supported", auto_verify_budget=0)
    decided = decide_hand_out(a_job(), certain, [], RULES, LEASE, NOW)
    assert decided.is_handed_out
    assert decided.governed is not None
    assert decided.governed.new.auto_verify_budget == 0


@pytest.mark.spec("G10")
@pytest.mark.parametrize(
    ("object_type", "status", "after"),
    [
        ("memory", "active", "stale_uncertain"),
        ("experience", "active", "needs_review"),
        ("cognition", "needs_revalidate", "stale"),
        ("cognition", "active", "active"),  # not a legal move: only the job fails
        ("memory", "archived", "archived"),
    ],
)
def test_a_spent_budget_ends_the_job_and_moves_the_object(
    object_type: str, status: str, after: str
) -> None:
    governed = an_object(
        object_type, status=status, epistemic_state="uncertain", auto_verify_budget=0
    )
    job = a_job(object_type=object_type)
    decided = decide_hand_out(job, governed, [], RULES, LEASE, NOW)
    assert (decided.job.job.status, decided.job.reason) == ("failed", "BUDGET_SPENT")
    moved = governed if decided.governed is None else decided.governed.new
    assert (moved.status, moved.epistemic_state) == (after, "uncertain")
    if decided.governed is not None:
        check_object(decided.governed)
    check_event(decided.job)


@pytest.mark.spec("G11")
def test_an_unknowable_object_is_verified_so_often_and_never_again() -> None:
    governed = an_object(unknown_type="ontic_unknowable")
    for _ in range(RULES.verify_limit):
        decided = decide_hand_out(a_job(), governed, [], RULES, LEASE, NOW)
        assert decided.is_handed_out
        assert decided.governed is not None
        governed = decided.governed.new
    ended = decide_hand_out(a_job(), governed, [], RULES, LEASE, NOW)
    assert (ended.job.job.status, ended.job.reason) == ("failed", "VERIFY_LIMIT")
    assert isinstance(refuse_limit(governed, "revalidate", RULES), ConflictError)
    assert refuse_limit(governed, "decay", RULES) is None


@pytest.mark.spec("G11")
def test_a_count_of_verifications_never_goes_down() -> None:
    governed = an_object(verify_count=2)
    change = change_object(governed, ObjectFields(verify_count=0), RULES, NOW)
    assert change.new.verify_count == 2
