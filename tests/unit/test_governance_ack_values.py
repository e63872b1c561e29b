"""An ack as one: what becomes of the job, its object and its follow-up."""

from typing import Any

import pytest
from msgspec import UNSET

from ksana.base.errors import ConflictError, InvalidError
from ksana.base.instant import SECOND
from ksana.domain.governance.acks import Acked, decide_ack, is_over, is_same_ack
from ksana.domain.governance.jobs import Ack, digest_of, refuse_limit
from ksana.domain.governance.objects import ObjectFields
from tests.unit.governance_ground import NOW, RULES, a_job, an_object

pytestmark = pytest.mark.spec("G3")

LATER = NOW + 5 * SECOND
HELD: dict[str, Any] = {"status": "running", "position": None, "worker_id": "w", "lease_token": 8}


def decide(governed: Any, queued: Any = None, job: Any = None, **ack: Any) -> Any:
    held = a_job(**{**HELD, **(job or {})})
    said = Ack(job_id=held.job_id, digest="d", audit_event_id="e", evidence_refs="[1]", **ack)
    return decide_ack(held, governed, queued, said, RULES, LATER, follow_up_id="next")


def acked(*args: Any, **members: Any) -> Acked:
    found = decide(*args, **members)
    assert isinstance(found, Acked), found
    return found


def test_an_acked_job_has_succeeded_and_says_by_which_ack() -> None:
    done = acked(an_object())
    change = done.job
    assert (change.event, change.reason, change.audit) == ("GOV_JOB_SUCCEEDED", "ACKED", "job.ack")
    assert change.data == {"attempt": 0, "worker_id": "w"}
    assert change.evidence_refs == "[1]"
    job = change.job
    assert (job.status, job.position, job.reason, job.last_error) == (
        "succeeded",
        None,
        "ACKED",
        None,
    )
    assert (job.lease_token, job.lease_expires_at, job.finished_at) == (0, None, LATER)
    assert (job.ack_digest, job.audit_event_id, job.next_action_at) == ("d", "e", None)
    assert (done.governed, done.follow_up) == (None, None)


def test_an_object_that_nobody_registered_is_made_by_the_ack() -> None:
    made = acked(None).governed
    assert made is not None
    assert (made.old, made.event, made.reason) == (None, "OBJECT_REGISTERED", "MADE_BY_ACK")
    assert (made.new.verify_count, made.new.version, made.job_id) == (1, 1, a_job().job_id)
    given = acked(None, job={"attempt": 2}, fields=ObjectFields(status="active", weight=0.5))
    assert given.governed is not None
    new = given.governed.new
    assert (new.status, new.weight, new.verify_count, new.version) == ("active", 0.5, 3, 1)
    assert acked(None, job={"action": "archive"}).governed.new.status == "archived"  # type: ignore[union-attr]


def test_what_an_ack_says_of_the_object_is_written_with_its_event() -> None:
    moved = acked(an_object(), fields=ObjectFields(status="verified")).governed
    assert moved is not None
    assert (moved.event, moved.reason, moved.new.status) == ("OBJECT_MOVED", "ACKED", "verified")
    assert (moved.evidence_refs, moved.job_id) == ("[1]", a_job().job_id)
    changed = acked(an_object(), fields=ObjectFields(weight=0.5)).governed
    assert changed is not None
    assert changed.event == "OBJECT_CHANGED"


def test_a_next_action_is_queued_and_told_by_its_own_event() -> None:
    done = acked(an_object(), next_action_at=LATER)
    assert done.governed is not None
    assert (done.governed.event, done.governed.new.next_action) == (None, "verify")
    assert done.follow_up is not None
    assert done.follow_up.job.run_at == LATER
    assert done.job.data["follow_up_id"] == done.job.job.follow_up_id == "next"
    assert done.job.job.next_action_at == LATER
    named = acked(an_object(), next_action_at=LATER, next_action="archive")
    assert named.governed is not None
    assert named.governed.new.next_action == "archive"
    both = acked(an_object(), next_action_at=LATER, fields=ObjectFields(weight=0.5))
    assert both.governed is not None
    assert both.governed.event == "OBJECT_CHANGED"
    planned = an_object(next_action="verify", next_action_at=NOW)
    none = acked(planned, a_job(), next_action_at=None)
    assert none.follow_up is not None
    assert none.follow_up.event == "GOV_JOB_REMOVED"
    assert acked(planned, next_action_at=None).follow_up is None


def test_after_a_follow_up_that_says_nothing_of_the_next_nothing_comes_next() -> None:
    planned = an_object(next_action="verify", next_action_at=NOW)
    over = acked(planned, job={"is_follow_up": 1}).governed
    assert over is not None
    assert (over.new.next_action_at, over.new.version) == (None, 2)
    assert (over.event, over.reason) == (None, "ACKED")
    assert acked(planned).governed is None, "it was not its follow-up"
    assert acked(planned, a_job(), {"is_follow_up": 1}).governed is None, "another is queued"
    assert acked(an_object(), job={"is_follow_up": 1}).governed is None
    with_more = acked(planned, job={"is_follow_up": 1}, fields=ObjectFields(weight=0.5)).governed
    assert with_more is not None
    assert (with_more.new.next_action_at, with_more.new.version) == (None, 2)
    again = acked(planned, job={"is_follow_up": 1}, next_action_at=LATER).governed
    assert again is not None
    assert again.new.next_action_at == LATER
    fresh = acked(None, job={"is_follow_up": 1}).governed
    assert fresh is not None
    assert fresh.new.version == 1


@pytest.mark.spec("G11")
def test_a_next_verification_beyond_the_limit_is_not_queued() -> None:
    unknowable = an_object(unknown_type="ontic_unknowable", verify_count=2)
    done = acked(unknowable, next_action_at=LATER)
    assert done.job.data["follow_up_refused"] == "VERIFY_LIMIT"
    assert done.follow_up is None
    refusal = refuse_limit(unknowable, "verify", RULES)
    assert refusal is not None
    assert refusal.extra["current"] == {
        "reason": "VERIFY_LIMIT",
        "verify_count": 2,
        "verify_limit": 2,
    }
    assert refuse_limit(an_object(), "verify", RULES) is None
    fields = ObjectFields(unknown_type="ontic_unknowable")
    made = acked(None, job={"attempt": 1}, next_action_at=LATER, fields=fields).governed
    assert made is not None
    assert (made.new.verify_count, made.new.next_action_at, made.new.version) == (2, None, 1)


@pytest.mark.spec("G7")
def test_a_status_that_cannot_be_is_refused_and_some_actions_end_by_it() -> None:
    wrong = decide(an_object(), fields=ObjectFields(status="nonsense"))
    assert isinstance(wrong, InvalidError)
    assert wrong.field == "object.status"
    archived = an_object(status="archived", next_action="archive", next_action_at=NOW)
    illegal = decide(archived, fields=ObjectFields(status="candidate"))
    assert isinstance(illegal, ConflictError)
    back = decide(archived, fields=ObjectFields(status=None))
    assert isinstance(back, ConflictError), "a null sets it back to the first status"
    check = {"action": "reinstate-check", "is_follow_up": 1}
    ended = acked(archived, None, check, fields=ObjectFields(status="candidate"))
    assert (ended.job.reason, ended.job.job.status) == ("ILLEGAL_MOVE", "failed")
    assert (ended.job.job.ack_digest, ended.job.job.audit_event_id) == ("d", "e")
    assert ended.governed is not None
    assert ended.governed.new.next_action_at is None
    other = acked(archived, a_job(), check, fields=ObjectFields(status="candidate"))
    assert other.governed is None


def test_the_same_ack_again_and_a_job_its_object_waited_for_are_known() -> None:
    said = Ack(job_id="j", digest="d")
    for status, digest, same in (
        ("succeeded", "d", True),
        ("failed", "d", True),
        ("running", "d", False),
        ("succeeded", "x", False),
    ):
        assert is_same_ack(a_job(status=status, ack_digest=digest), said) is same
    assert is_over(a_job(is_follow_up=1), None) is True
    assert is_over(a_job(is_follow_up=1), a_job()) is False
    assert is_over(a_job(), None) is False
    assert said.next_action_at is UNSET
    # Acks that were kept are known again by another version.
    assert digest_of("a", "b") == "065ab5741cdfad44687cf119c1eb4ec9"
    assert len({digest_of("a", "b"), digest_of("ab"), digest_of("b", "a")}) == 3
