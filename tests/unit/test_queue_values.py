"""Every move of a queue job as a whole value."""

from typing import Any

import pytest

from ksana.base.errors import ConflictError
from ksana.base.instant import SECOND
from ksana.domain.queue import admission, attempt_ends, changes, events
from ksana.domain.queue.attempt_ends import (
    EndDecision,
    Release,
    after_expiry,
    after_release,
    end_attempt,
    expire_lease,
)
from ksana.domain.queue.changes import JobChange
from ksana.domain.queue.classes import class_of
from ksana.domain.queue.jobs import (
    DueJob,
    ExpiredClaim,
    Job,
    NewJob,
    release_digest,
)
from ksana.domain.queue.turns import Turns
from tests.unit.queue_rows import NOW, SOON, Numbers, a_job, a_lease, a_ready_job

pytestmark = pytest.mark.spec("Q12")

# Submit, promote, claim, start


@pytest.mark.spec("Q1")
@pytest.mark.parametrize(
    ("run_at", "position", "due_at", "turn"),
    [
        (None, changes.READY, NOW, 5),
        (NOW - 1, changes.READY, NOW, 5),
        (NOW, changes.READY, NOW, 5),
        (NOW + 1, changes.SCHEDULED, NOW + 1, 0),
    ],
)
def test_a_job_enters_ready_or_scheduled(
    run_at: int | None, position: int, due_at: int, turn: int
) -> None:
    kind = class_of("a", "t", 3, ())
    new = NewJob("j", "LOW", kind, "{}", "[]", "r", 2, run_at, None)
    job = changes.submit_job(new, NOW, Turns(Numbers(2, 5)))
    assert job == Job(
        seq=0,
        job_id="j",
        addon_id="a",
        job_type="t",
        priority="LOW",
        cost_units=3,
        constraints_json="{}",
        payload_json="[]",
        state="QUEUED",
        max_attempts=2,
        created_at=NOW,
        updated_at=NOW,
        position=position,
        urgency=3,
        class_id=kind.id,
        turn=turn,
        due_at=due_at,
        run_at=run_at,
        client_request_id="r",
    )


def test_a_scheduled_job_gets_its_turn_when_its_time_has_come() -> None:
    [change] = changes.promote_jobs([DueJob(4, "j", 1, "k")], Turns(Numbers(2, 5, k=3)))
    assert change == JobChange("promote", 4, "j", "QUEUED", "QUEUED", (), changes.READY, turn=4)


@pytest.mark.spec("Q3")
def test_a_claim_and_a_start_are_written_under_their_token() -> None:
    [claim] = changes.claim_jobs([a_ready_job()], [77], "w", SOON)
    assert claim == JobChange(
        move="claim",
        seq=4,
        job_id="j",
        old="QUEUED",
        new="CLAIMED",
        events=events.claimed("w"),
        position=changes.CLAIMED,
        claim_token=77,
        claims=3,
        worker_id="w",
        until=SOON,
    )
    [start] = changes.start_jobs([a_ready_job()], ["l"], [77], "w", 20.0, SOON)
    assert start == JobChange(
        move="start",
        seq=4,
        job_id="j",
        old="QUEUED",
        new="RUNNING",
        events=events.started("l", "j", events.encode("w"), 3, 2),
        position=changes.RUNNING,
        cost_units=3,
        lease_id="l",
        lease_token=77,
        due_at=7,
        claim_token=77,
        claims=3,
        old_attempts=1,
        attempts=2,
        addon_id="a",
        worker_id="w",
        until=SOON,
        ttl_sec=20.0,
    )


@pytest.mark.spec("Q5", "Q9")
def test_a_claimed_job_is_granted_its_lease_or_waits_for_it() -> None:
    grant = admission.grant_lease(a_job(), "l", 77, 20.0, SOON)
    assert grant == JobChange(
        move="grant",
        seq=4,
        job_id="j",
        old="CLAIMED",
        new="RUNNING",
        events=events.granted("l", "j", events.encode("w"), 3, 2),
        position=changes.RUNNING,
        due_at=7,
        claim_token=8,
        old_attempts=1,
        attempts=2,
        addon_id="a",
        cost_units=3,
        worker_id="w",
        until=SOON,
        lease_id="l",
        lease_token=77,
        ttl_sec=20.0,
    )
    deny = admission.deny_lease(a_job(), 5, SOON, {"code": "X"})
    assert deny == JobChange(
        move="deny",
        seq=4,
        job_id="j",
        old="CLAIMED",
        new="LEASE_PENDING",
        events=events.pending("w", {"code": "X"}),
        position=changes.PENDING,
        next_retry_at=5,
        claim_token=8,
        until=SOON,
    )
    again = admission.deny_lease(a_job(state="LEASE_PENDING"), 5, SOON, {"code": "X"})
    assert again.events == events.denied({"code": "X"})


@pytest.mark.spec("Q6")
def test_a_worker_reports_on_its_claim() -> None:
    moved = changes.report_state(a_job(), "PREPARING", None, "load", SOON)
    assert moved == JobChange(
        move="report",
        seq=4,
        job_id="j",
        old="CLAIMED",
        new="PREPARING",
        events=events.reported("PREPARING", "w", "load"),
        position=changes.CLAIMED,
        claim_token=8,
        until=SOON,
        progress=0.5,
        note="load",
    )
    same = changes.report_state(a_job(position=changes.PENDING), "CLAIMED", 0.0, None, SOON)
    assert (same.events, same.position, same.progress, same.note) == (
        (),
        changes.PENDING,
        0.0,
        "half",
    )
    with pytest.raises(ConflictError):
        changes.report_state(a_job(), "RUNNING", None, None, SOON)


@pytest.mark.spec("Q7")
def test_a_job_that_does_not_run_is_cancelled_at_once_and_a_claim_is_taken_back() -> None:
    cancel = changes.cancel_job(a_job(), "why")
    assert cancel == JobChange(
        move="cancel",
        seq=4,
        job_id="j",
        old="CLAIMED",
        new="CANCELED",
        events=events.canceled("why", "CLAIMED"),
        reason="why",
    )
    with pytest.raises(ConflictError):
        changes.cancel_job(a_job(state="DONE"), None)
    expired = ExpiredClaim(4, "j", "PREPARING", "w", 8, 1, 1)
    assert attempt_ends.take_back(expired, Turns(Numbers(6, 9))) == JobChange(
        move="take_back",
        seq=4,
        job_id="j",
        old="PREPARING",
        new="QUEUED",
        events=events.claim_expired("w", "PREPARING", 1),
        position=changes.READY,
        turn=6,
        claim_token=8,
    )


# The end of an attempt


@pytest.mark.spec("Q8")
@pytest.mark.parametrize(
    ("status", "lease", "may_retry", "state", "delay"),
    [
        ("SUCCEEDED", {}, True, "DONE", None),
        ("CANCELED", {}, True, "CANCELED", None),
        ("SUCCEEDED", {"cancel_requested": 1}, True, "CANCELED", None),
        ("TIMEOUT", {}, True, "TIMEOUT", None),
        ("FAILED", {}, True, "QUEUED", 10 * SECOND),
        ("FAILED", {"attempts": 5}, True, "FAILED", None),
        ("FAILED", {"attempts": 4}, True, "QUEUED", 40 * SECOND),
        ("FAILED", {}, False, "FAILED", None),
    ],
)
def test_what_becomes_of_a_job_whose_worker_released_it(
    status: str, lease: dict[str, Any], may_retry: bool, state: str, delay: int | None
) -> None:
    assert after_release(a_lease(**lease), status, may_retry) == EndDecision(state, delay)


@pytest.mark.spec("Q8")
@pytest.mark.parametrize(
    ("lease", "state", "delay"),
    [
        ({}, "QUEUED", 0),
        ({"attempts": 4}, "QUEUED", 0),
        ({"attempts": 5}, "TIMEOUT", None),
        ({"cancel_requested": 1}, "CANCELED", None),
    ],
)
def test_what_becomes_of_a_job_whose_lease_ran_out(
    lease: dict[str, Any], state: str, delay: int | None
) -> None:
    assert after_expiry(a_lease(**lease)) == EndDecision(state, delay)


@pytest.mark.spec("Q8")
def test_an_attempt_that_ends_frees_its_units_and_says_how() -> None:
    said = Release("l", "FAILED", error="e", result_json="1", metrics_json="2")
    common: dict[str, Any] = {
        "seq": 4,
        "job_id": "j",
        "old": "RUNNING",
        "cost_units": 3,
        "lease_id": "l",
        "lease_token": 8,
        "lease_end": "RELEASED",
        "release_status": "FAILED",
        "release_digest": "d",
        "error": "e",
        "metrics_json": "2",
    }
    kept: dict[str, Any] = {
        "started_at": NOW - 30,
        "addon_id": "a",
        "worker_id": "w",
        "ttl_sec": 20.0,
        "heartbeat_at": NOW - 10,
        "until": NOW + 10,
    }
    turns = Turns(Numbers(6, 9))
    released = events.released("l", "j", "FAILED")
    assert end_attempt(a_lease(), EndDecision("FAILED"), said, "d", NOW, turns) == JobChange(
        move="finish",
        new="FAILED",
        events=events.ended(released, "j", "FAILED", "l", 2, "RELEASED", "e"),
        started_at=NOW - 30,
        result_json="1",
        **common,
    )
    assert end_attempt(a_lease(), EndDecision("QUEUED", 5), said, "d", NOW, turns) == JobChange(
        move="requeue",
        new="QUEUED",
        events=events.requeued(released, "RELEASED", "FAILED", 2, 5, 5, "e"),
        position=changes.SCHEDULED,
        due_at=NOW + 5,
        attempts=2,
        turn=0,
        next_retry_at=NOW + 5,
        **kept,
        **common,
    )


@pytest.mark.spec("Q11")
def test_a_job_that_was_not_begun_goes_back_to_the_front_and_keeps_its_attempt() -> None:
    released = events.released("l", "j", "RETURNED")
    returned = Release("l", "RETURNED")
    decision = after_release(a_lease(attempts=5), "RETURNED")
    assert decision == EndDecision("QUEUED", 0)
    change = end_attempt(a_lease(), decision, returned, "d", NOW, Turns(Numbers(6, 9)))
    assert (change.attempts, change.position, change.turn) == (1, changes.READY, 6)
    assert change.events == events.requeued(released, "RELEASED", "RETURNED", 1, 5, 0, None)
    canceled = after_release(a_lease(cancel_requested=1), "RETURNED")
    assert canceled == EndDecision("CANCELED")


@pytest.mark.spec("Q8")
def test_a_lease_that_ran_out_gives_its_job_back_to_the_front() -> None:
    error = "the lease ran out after 20 s"
    assert expire_lease(a_lease(), NOW, Turns(Numbers(6, 9))) == JobChange(
        move="requeue",
        seq=4,
        job_id="j",
        old="RUNNING",
        new="QUEUED",
        events=events.requeued(
            events.lease_expired("l", "j", "w", 3, 20.0), "EXPIRED", "LEASE_EXPIRED", 2, 5, 0, error
        ),
        position=changes.READY,
        cost_units=3,
        lease_id="l",
        lease_token=8,
        lease_end="EXPIRED",
        started_at=NOW - 30,
        addon_id="a",
        worker_id="w",
        ttl_sec=20.0,
        heartbeat_at=NOW - 10,
        until=NOW + 10,
        error=error,
        due_at=NOW,
        attempts=2,
        turn=6,
    )


def test_every_member_of_a_release_is_part_of_its_digest() -> None:
    parts: list[tuple[Any, ...]] = [
        ("FAILED", "", None, "", True),
        ("DONE", "", None, "", True),
        ("FAILED", "", "", "", True),
        ("FAILED", "ab", "", "", True),
        ("FAILED", "", "ab", "", True),
        ("FAILED", "", "", "ab", True),
        ("FAILED", "a", "b", "", True),
        ("FAILED", "a", "", "b", True),
        ("FAILED", "", None, "", False),
    ]
    assert len({release_digest(*one) for one in parts}) == len(parts)
    assert {len(release_digest(*one)) for one in parts} == {32}
    said = Release("l", "FAILED", result_json="r", error="e", metrics_json="m", may_retry=False)
    assert said.digest() == release_digest("FAILED", "r", "e", "m", False)
    assert Release("l", "FAILED").digest() == release_digest("FAILED", "", None, "")
    # A release that another version wrote down is known when it is sent again.
    assert release_digest("FAILED", "r", "e", "m") == "1034e128100f2c3bd0c80076d55c2ea5"
    assert said.digest() == "0426ede363e559ba599e5c09d0558ce3"
