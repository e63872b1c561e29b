"""How governance jobs end, and what becomes of their objects."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ksana.base.errors import ConflictError, InvalidError, KsanaError
from ksana.domain.governance import decay
from ksana.domain.governance.acks import Acked, decide_ack
from ksana.domain.governance.changes import (
    OBJECT_LIFECYCLES,
    check_object,
)
from ksana.domain.governance.events import KINDS
from ksana.domain.governance.jobs import (
    Ack,
    AttemptFailure,
    decide_failure,
    decide_follow_up,
    expire,
    refuse_holder,
    requeue,
)
from ksana.domain.governance.objects import (
    ObjectFields,
    change_object,
    register_object,
)
from ksana.domain.governance.records import (
    ACTIONS,
    OBJECT_TYPES,
    GovernanceJob,
    GovernedObject,
    Rules,
    class_of,
)
from tests.unit.governance_ground import a_job, an_object, check_event

NOW = 1_770_000_000_000_000


SECOND = 1_000_000


RULES = Rules()


KIND_OF = {kind.name: kind for kind in KINDS}


def held(**more: Any) -> GovernanceJob:
    lease: dict[str, Any] = {"status": "running", "position": None, "lease_token": 7}
    return a_job(**{**lease, "worker_id": "w1", "lease_expires_at": NOW + SECOND, **more})


@pytest.mark.spec("G4")
def test_a_failed_attempt_is_made_again_after_the_delay_from_its_time_or_from_now() -> None:
    soon = decide_failure(
        held(),
        AttemptFailure(job_id="j", error="no", retry_delay_us=300 * SECOND),
        NOW + SECOND,
        False,
    )
    assert soon.job.run_at == NOW + 300 * SECOND
    assert (soon.job.status, soon.job.attempt, soon.job.lease_token) == ("queued", 1, 0)
    late = NOW + 3600 * SECOND
    later = decide_failure(
        held(), AttemptFailure(job_id="j", error="no", retry_delay_us=300 * SECOND), late, False
    )
    assert later.job.run_at == late + 300 * SECOND
    check_event(soon)


@pytest.mark.spec("G4")
def test_the_last_attempt_makes_a_dead_letter_with_an_alert() -> None:
    dead = decide_failure(held(attempt=2), AttemptFailure(job_id="j", error="no"), NOW, False)
    assert (dead.job.status, dead.job.attempt, dead.job.position) == ("dead_letter", 3, None)
    assert dead.data["alert"] is True
    check_event(dead)
    again = requeue(dead.job, NOW, False)
    assert (again.job.status, again.job.attempt, again.job.run_at) == ("queued", 0, NOW)
    check_event(again)


@pytest.mark.spec("G5")
def test_a_lease_that_ran_out_counts_as_an_attempt() -> None:
    once = expire(held(), NOW, False)
    assert (once.job.status, once.job.attempt, once.job.run_at) == ("queued", 1, NOW)
    dead = expire(held(attempt=2), NOW, False)
    assert dead.job.status == "dead_letter"
    check_event(once)
    check_event(dead)


@pytest.mark.spec("G5")
@pytest.mark.parametrize(
    ("job", "token", "is_expired", "require", "code"),
    [
        (held(), 7, False, False, None),
        (held(), None, False, False, None),
        (held(), None, False, True, "LEASE_LOST"),
        (held(), 8, False, False, "LEASE_LOST"),
        (held(), 7, True, False, "LEASE_LOST"),
        (a_job(), 7, False, False, "LEASE_LOST"),
        (a_job(), None, False, False, "ILLEGAL_TRANSITION"),
    ],
)
def test_only_the_holder_may_end_a_job(
    job: GovernanceJob, token: int | None, is_expired: bool, require: bool, code: str | None
) -> None:
    rules = Rules(require_lease_token=require)
    refusal = refuse_holder(job, token, is_expired, "succeeded", rules)
    assert (None if refusal is None else refusal.code) == code


def ack(job: GovernanceJob, governed: GovernedObject | None, **more: Any) -> Acked | KsanaError:
    queued = more.pop("queued", None)
    said = Ack(job_id=job.job_id, digest="d", **more)
    return decide_ack(job, governed, queued, said, RULES, NOW, follow_up_id="job_00000000000000ff")


@pytest.mark.spec("G3", "G7")
def test_ack_makes_an_object_that_nobody_registered() -> None:
    done = ack(held(attempt=1), None, next_action_at=NOW + SECOND)
    assert isinstance(done, Acked)
    assert done.governed is not None
    made = done.governed.new
    assert (made.risk_tier, made.next_action, made.verify_count) == ("low", "verify", 2)
    assert done.follow_up is not None
    assert (done.follow_up.job.run_at, done.follow_up.job.follow_key) == (NOW + SECOND, "memory:m1")
    assert done.job.job.follow_up_id == done.follow_up.job.job_id
    check_event(done.job)
    check_event(done.follow_up)


@pytest.mark.spec("G3")
def test_ack_moves_the_follow_up_that_waits_and_makes_no_second_one() -> None:
    governed = an_object(next_action_at=NOW + 5 * SECOND, next_action="verify")
    queued = a_job(run_at=NOW + 5 * SECOND, follow_key="memory:m1", is_follow_up=1, job_id="job_q")
    done = ack(held(), governed, queued=queued, next_action_at=NOW + 9 * SECOND)
    assert isinstance(done, Acked)
    assert done.follow_up is not None
    assert done.follow_up.old is queued
    assert (done.follow_up.job.job_id, done.follow_up.job.run_at) == ("job_q", NOW + 9 * SECOND)
    check_event(done.follow_up)
    gone = ack(held(), governed, queued=queued, next_action_at=None)
    assert isinstance(gone, Acked)
    assert gone.follow_up is not None
    assert gone.follow_up.new is None
    check_event(gone.follow_up)


@pytest.mark.spec("G3", "G7")
def test_an_ack_whose_move_is_not_legal_is_refused_or_for_an_archive_ends_the_job() -> None:
    governed = an_object(status="active")
    refused = ack(held(), governed, fields=ObjectFields(status="rejected_poisoned"))
    assert isinstance(refused, ConflictError)
    ended = ack(held(action="archive"), governed)
    assert isinstance(ended, Acked)
    assert (ended.job.job.status, ended.job.reason) == ("failed", "ILLEGAL_MOVE")
    assert ended.governed is None
    done = ack(held(action="archive"), an_object(status="stale"))
    assert isinstance(done, Acked)
    assert done.governed is not None
    assert done.governed.new.status == "archived"


@pytest.mark.spec("G11")
def test_an_ack_queues_no_verification_beyond_the_limit() -> None:
    governed = an_object(unknown_type="ontic_unknowable", verify_count=2)
    done = ack(held(), governed, next_action_at=NOW + SECOND)
    assert isinstance(done, Acked)
    assert done.follow_up is None
    assert done.job.data["follow_up_refused"] == "VERIFY_LIMIT"
    assert done.governed is None or done.governed.new.next_action_at is None


@pytest.mark.spec("G7")
@pytest.mark.parametrize("object_type", OBJECT_TYPES)
def test_exactly_the_moves_of_the_tables_are_legal(object_type: str) -> None:
    lifecycle = OBJECT_LIFECYCLES[object_type]
    for old in lifecycle.states:
        for new in lifecycle.states:
            governed = an_object(object_type, status=old)
            fields = ObjectFields(status=new)
            if old == new or lifecycle.allows(old, new):
                assert change_object(governed, fields, RULES, NOW).new.status == new
            else:
                with pytest.raises(ConflictError):
                    change_object(governed, fields, RULES, NOW)
    with pytest.raises(InvalidError):
        register_object(object_type, "x", ObjectFields(status="dreaming"), RULES, NOW)


@pytest.mark.spec("G7")
def test_a_put_sets_back_what_it_leaves_out_but_not_a_spent_budget() -> None:
    governed = an_object(auto_verify_budget=0, verify_count=2, weight=0.5, risk_tier="high")
    change = change_object(governed, ObjectFields(impact_tier="high"), RULES, NOW, is_replaced=True)
    new = change.new
    assert (new.auto_verify_budget, new.verify_count) == (0, 2)
    assert (new.weight, new.risk_tier, new.impact_tier) == (1.0, "low", "high")
    assert new.status == governed.status


@given(
    weight=st.floats(decay.FLOOR, 10),
    first=st.integers(0, 10**13),
    second=st.integers(0, 10**13),
    half_life=st.integers(1, 10**13),
)
@pytest.mark.spec("G13")
def test_fading_in_two_steps_is_fading_in_one(
    weight: float, first: int, second: int, half_life: int
) -> None:
    once = decay.fade(weight, first + second, half_life)
    twice = decay.fade(decay.fade(weight, first, half_life), second, half_life)
    assert once == pytest.approx(twice, rel=1e-9, abs=1e-12)
    assert decay.FLOOR <= once <= weight


@pytest.mark.spec("G13")
def test_a_half_life_halves_and_reinforcement_and_impact_slow_it_down() -> None:
    fresh = an_object(weight=1.0, half_life_us=SECOND, decayed_at=NOW)
    faded = decay.decay(fresh, NOW + SECOND).weight
    assert faded == pytest.approx(decay.FLOOR + (1 - decay.FLOOR) / 2)
    for more in ({"reinforcement_count": 3}, {"impact_tier": "high"}):
        slower = msgspec.structs.replace(fresh, **more)
        assert decay.decay(slower, NOW + SECOND).weight > faded
    assert decay.next_decay_at(msgspec.structs.replace(fresh, weight=decay.FLOOR), NOW) is None


jobs_in_any_state = st.builds(
    lambda status, attempt, action, object_type: held(
        status=status, attempt=attempt, action=action, object_type=object_type
    ),
    st.sampled_from(["running"]),
    st.integers(0, 2),
    st.sampled_from(ACTIONS),
    st.sampled_from(OBJECT_TYPES),
)


@given(
    job=jobs_in_any_state,
    status=st.data(),
    next_at=st.one_of(st.none(), st.integers(NOW, NOW + 10**12)),
    is_registered=st.booleans(),
)
@pytest.mark.spec("G3")
def test_job_object_and_follow_up_of_an_ack_agree(
    job: GovernanceJob, status: st.DataObject, next_at: int | None, is_registered: bool
) -> None:
    states = sorted(OBJECT_LIFECYCLES[job.object_type].states)
    governed = (
        an_object(job.object_type, status=status.draw(st.sampled_from(states)))
        if is_registered
        else None
    )
    wanted = status.draw(st.sampled_from([None, *states]))
    fields = ObjectFields() if wanted is None else ObjectFields(status=wanted)
    done = ack(job, governed, next_action_at=next_at, fields=fields)
    if isinstance(done, KsanaError):
        return
    check_event(done.job)
    if done.governed is not None:
        check_object(done.governed)
    after = governed if done.governed is None else done.governed.new
    if done.job.job.status == "failed":
        assert done.governed is None
        assert done.follow_up is None
    elif next_at is None:
        assert done.follow_up is None
    else:
        assert after is not None
        assert done.follow_up is not None
        assert after.next_action_at == next_at == done.follow_up.job.run_at


def test_every_filter_tells_classes_apart() -> None:
    numbers = {
        class_of(object_type, action, urgency)
        for object_type in OBJECT_TYPES
        for action in ACTIONS
        for urgency in range(3)
    }
    assert len(numbers) == len(OBJECT_TYPES) * len(ACTIONS) * 3


@pytest.mark.spec("G3")
def test_a_follow_up_that_is_as_it_should_be_is_left_alone() -> None:
    governed = an_object(next_action_at=NOW, next_action="verify")
    queued = a_job(follow_key="memory:m1")
    assert (
        decide_follow_up(governed, queued, job_id="j", urgency=1, max_attempts=3, now=NOW) is None
    )
