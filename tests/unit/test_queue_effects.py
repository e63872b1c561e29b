"""What follows from moves of queue jobs: figures, who is woken, the rows as they are, and which
ready jobs are admitted."""

from collections import Counter
from typing import Any

import msgspec
import pytest

from ksana.base.instant import SECOND
from ksana.domain.queue import admission, changes, effects
from ksana.domain.queue.admission import (
    PATIENCE,
    Admission,
    AdmissionRequest,
    Capacity,
    Limits,
    admit_ready,
    request_of,
)
from ksana.domain.queue.attempt_ends import EndDecision, Release, end_attempt
from ksana.domain.queue.changes import ChangeCounts, JobChange
from ksana.domain.queue.effects import Wake
from ksana.domain.queue.jobs import Lease, ReadyJob, lease_of
from ksana.domain.queue.turns import Turns
from tests.unit.queue_rows import NOW, SOON, Numbers, a_job, a_lease, a_ready_job


def change(move: Any, old: str, new: str, **members: Any) -> JobChange:
    return JobChange(move, 4, "j", old, new, **members)


START = change("start", "QUEUED", "RUNNING", cost_units=3, due_at=7, position=changes.RUNNING)
FINISH = change("finish", "RUNNING", "DONE", cost_units=3, lease_end="RELEASED", started_at=9)
EXPIRE = change(
    "requeue", "RUNNING", "QUEUED", cost_units=2, lease_end="EXPIRED", position=changes.READY
)


@pytest.mark.spec("Q16")
def test_figures_follow_from_changes() -> None:
    def count(*all_: JobChange) -> ChangeCounts:
        return changes.count_changes(changes.group_changes(all_), NOW)

    assert count(START, START) == ChangeCounts(
        queued=-2, running=2, leases=2, units=6, waited_since=Counter({7: 2})
    )
    assert count(FINISH) == ChangeCounts(
        running=-1,
        leases=-1,
        units=-3,
        arrivals=1,
        ended_leases=1,
        freed_units=3,
        ended=Counter(DONE=1),
        ran_since=Counter({9: 1}),
    )
    assert count(EXPIRE) == ChangeCounts(
        queued=1,
        running=-1,
        leases=-1,
        units=-2,
        arrivals=1,
        ended_leases=1,
        freed_units=2,
        expired=1,
    )
    never_begun = change("finish", "RUNNING", "FAILED", lease_end="RELEASED")
    assert count(never_begun).ran_since == Counter({NOW: 1})
    all_of_them = count(START, FINISH, EXPIRE, START)
    assert (all_of_them.units, all_of_them.queued, all_of_them.expired) == (1, -1, 1)
    take_back = change("take_back", "CLAIMED", "QUEUED", position=changes.READY)
    assert count(take_back) == ChangeCounts(queued=1, arrivals=1)
    claim = change("claim", "QUEUED", "CLAIMED")
    assert count(claim) == ChangeCounts(queued=-1)


def test_changes_are_grouped_by_kind_in_their_order() -> None:
    alike = [START, START]
    [(kind, group)] = changes.group_changes(alike).items()
    assert (kind, group) == (("start", "QUEUED", "RUNNING", None), alike)
    mixed = changes.group_changes([FINISH, START, FINISH])
    assert list(mixed.values()) == [[FINISH, FINISH], [START]]


def test_those_who_wait_are_woken_by_what_concerns_them() -> None:
    later = change("requeue", "RUNNING", "QUEUED", position=changes.SCHEDULED, due_at=9)
    sooner = change("requeue", "RUNNING", "QUEUED", position=changes.SCHEDULED, due_at=8)
    assert effects.wake_after([START]) == Wake()
    assert effects.wake_after([EXPIRE]) == Wake(has_ready=True, freed_units=EXPIRE.cost_units)
    assert effects.wake_after([FINISH]) == Wake(freed_units=FINISH.cost_units)
    assert effects.wake_after([FINISH, START, FINISH]).freed_units == 2 * FINISH.cost_units
    assert effects.wake_after([later]) == Wake(next_due=9)
    assert effects.wake_after([later, sooner]) == Wake(next_due=8)
    assert effects.wake_after([sooner, later]) == Wake(next_due=8)


# The job as it is once it is written


def differences(old: Any, new: Any) -> dict[str, Any]:
    """The members that changed."""
    before, after = msgspec.structs.asdict(old), msgspec.structs.asdict(new)
    return {name: after[name] for name in after if before.get(name) != after[name]}


def test_a_claimed_job_is_known_without_reading_it_again() -> None:
    ready = a_ready_job(state="QUEUED", position=changes.READY)
    [claim] = changes.claim_jobs([ready], [77], "w", SOON)
    job = changes.claimed_job(ready, claim, NOW)
    assert (job.state, job.claims, job.claim_token) == ("CLAIMED", 3, 77)
    assert (job.claimed_by, job.claim_expires_at) == ("w", SOON)
    assert (job.position, job.updated_at, job.lease_id) == (changes.CLAIMED, NOW, None)
    assert (job.attempts, job.started_at, job.next_retry_at) == (1, None, 11)
    [start] = changes.start_jobs([ready], ["l"], [77], "w", 20.0, SOON)
    running = changes.claimed_job(ready, start, NOW)
    assert (running.state, running.attempts) == ("RUNNING", 2)
    assert lease_of(running) == effects.new_lease(start, NOW)
    assert (running.next_retry_at, running.started_at) == (None, NOW)
    assert (running.claim_token, running.claimed_by, running.claims) == (77, "w", 3)
    assert (running.position, running.claim_expires_at, running.updated_at) == (
        changes.RUNNING,
        None,
        NOW,
    )


def test_a_held_job_after_a_grant_a_denial_and_a_report() -> None:
    job = a_job(pending_at=5)
    granted = effects.held_job(job, admission.grant_lease(job, "l", 77, 20.0, SOON), NOW)
    assert differences(job, granted) == {
        "state": "RUNNING",
        "lease_id": "l",
        "lease_token": 77,
        "lease_ttl_sec": 20.0,
        "heartbeat_at": NOW,
        "lease_expires_at": SOON,
        "attempts": 2,
        "claim_expires_at": None,
        "next_retry_at": None,
        "pending_at": None,
        "started_at": NOW,
        "updated_at": NOW,
        "position": changes.RUNNING,
    }
    first = a_job(claim_expires_at=1)
    denied = effects.held_job(first, admission.deny_lease(first, 12, SOON, {}), NOW)
    assert differences(first, denied) == {
        "state": "LEASE_PENDING",
        "next_retry_at": 12,
        "claim_expires_at": SOON,
        "pending_at": NOW,
        "updated_at": NOW,
        "position": changes.PENDING,
    }
    again = effects.held_job(job, admission.deny_lease(job, 12, SOON, {}), NOW)
    assert again.pending_at == 5, "it waits since it was refused first"
    report = changes.report_state(first, "PREPARING", 0.7, "load", SOON)
    assert differences(first, effects.held_job(first, report, NOW)) == {
        "state": "PREPARING",
        "progress": 0.7,
        "note": "load",
        "claim_expires_at": SOON,
        "updated_at": NOW,
    }


def test_a_job_after_its_cancel_and_after_the_end_of_its_attempt() -> None:
    job = a_job(pending_at=5)
    assert differences(job, effects.canceled_job(job, changes.cancel_job(job, "why"), NOW)) == {
        "state": "CANCELED",
        "final_status": "CANCELED",
        "cancel_requested": 1,
        "cancel_reason": "why",
        "claim_expires_at": None,
        "next_retry_at": None,
        "pending_at": None,
        "finished_at": NOW,
        "updated_at": NOW,
        "position": None,
    }
    job = a_job(
        state="RUNNING",
        position=changes.RUNNING,
        next_retry_at=None,
        lease_id="l",
        lease_token=8,
        lease_ttl_sec=20.0,
        heartbeat_at=NOW - 10,
        lease_expires_at=NOW + 10,
    )
    said = Release("l", "SUCCEEDED", result_json="1", metrics_json="2", error="e")
    turns = Turns(Numbers(3, 9))
    done = end_attempt(a_lease(), EndDecision("DONE"), said, "d", NOW, turns)
    assert differences(job, effects.ended_job(job, done, NOW)) == {
        "state": "DONE",
        "final_status": "SUCCEEDED",
        "error_text": "e",
        "result_json": "1",
        "metrics_json": "2",
        "finished_at": NOW,
        "updated_at": NOW,
        "position": None,
        "release_status": "SUCCEEDED",
        "release_digest": "d",
    }
    again = end_attempt(a_lease(), EndDecision("QUEUED", 5), said, "d", NOW, turns)
    assert differences(job, effects.ended_job(job, again, NOW)) == {
        "state": "QUEUED",
        "claimed_by": None,
        "claim_token": 0,
        "lease_id": None,
        "lease_token": 0,
        "lease_ttl_sec": None,
        "heartbeat_at": None,
        "lease_expires_at": None,
        "attempts": 2,
        "next_retry_at": NOW + 5,
        "due_at": NOW + 5,
        "error_text": "e",
        "metrics_json": "2",
        "progress": None,
        "note": None,
        "updated_at": NOW,
        "position": changes.SCHEDULED,
        "turn": 0,
    }


@pytest.mark.parametrize(
    ("members", "state", "released_at"),
    [
        ({"state": "RUNNING", "position": changes.RUNNING}, "ACTIVE", None),
        ({"state": "DONE", "finished_at": NOW, "release_status": "SUCCEEDED"}, "RELEASED", NOW),
        ({"state": "TIMEOUT", "finished_at": NOW}, "EXPIRED", NOW),
        (
            {"state": "TIMEOUT", "finished_at": NOW, "release_status": "TIMEOUT"},
            "RELEASED",
            NOW,
        ),
    ],
)
def test_a_lease_is_read_from_the_row_of_its_job(
    members: dict[str, Any], state: str, released_at: int | None
) -> None:
    leased = {
        "lease_id": "l",
        "lease_token": 8,
        "lease_ttl_sec": 20.0,
        "started_at": NOW - 30,
        "heartbeat_at": NOW - 10,
        "lease_expires_at": NOW + 10,
        "release_digest": "d",
    }
    lease = lease_of(a_job(**{"position": None} | leased | members))
    assert lease == Lease(
        lease_id="l",
        job_id="j",
        addon_id="a",
        worker_id="w",
        cost_units=3,
        ttl_sec=20.0,
        state=state,
        granted_at=NOW - 30,
        last_heartbeat_at=NOW - 10,
        expires_at=NOW + 10,
        released_at=released_at,
        release_status=members.get("release_status"),
        release_digest="d",
        lease_token=8,
    )


def test_the_lease_of_a_job_that_starts() -> None:
    [start] = changes.start_jobs([a_ready_job()], ["l"], [77], "w", 20.0, SOON)
    assert effects.new_lease(start, NOW) == Lease(
        lease_id="l",
        job_id="j",
        addon_id="a",
        worker_id="w",
        cost_units=3,
        ttl_sec=20.0,
        state="ACTIVE",
        granted_at=NOW,
        last_heartbeat_at=NOW,
        expires_at=SOON,
        lease_token=77,
    )


# Admission of ready jobs


def room(used: int = 0, **members: Any) -> Capacity:
    given: dict[str, Any] = {
        "total": 10,
        "used": used,
        "active": 1,
        "reserved_units": 0,
        "reserved_for": None,
        "reserved_urgency": 0,
        "reserved_until": 0,
    }
    return Capacity(**given | members)


def admit(capacity: Capacity, *jobs: ReadyJob, used: int = 0, **limits: Any) -> Admission:
    return admit_ready(capacity, jobs, NOW, Limits(10, **limits), lambda _: used)


def waiting(job_id: str, cost: int, since: int = 0, **members: Any) -> ReadyJob:
    return a_ready_job(job_id=job_id, cost_units=cost, due_at=NOW - since, **members)


@pytest.mark.spec("Q9", "Q10")
def test_ready_jobs_are_admitted_in_their_order_as_many_as_fit() -> None:
    one, two, three = waiting("1", 4), waiting("2", 6), waiting("3", 1)
    whole = admit(room(), one, two)
    assert whole == Admission(room(10, active=3), (one, two))
    part = admit(room(1), one, two, three)
    assert part == Admission(room(6, active=3), [one, three], has_refused=True)


@pytest.mark.spec("Q10")
def test_a_job_that_waited_long_and_does_not_fit_keeps_its_units() -> None:
    large = waiting("large", 8, PATIENCE + 1)
    small = waiting("small", 5)
    held = admit(room(5), large, small)
    assert (held.admitted, held.has_refused, held.has_reserved) == ([], True, True)
    until = NOW + 15 * SECOND
    kept = {"reserved_for": "large", "reserved_units": 8, "reserved_urgency": 1}
    assert held.capacity == room(5, reserved_until=until, **kept)
    patient = admit(room(5), waiting("large", 8, PATIENCE), small)
    assert (patient.admitted, patient.has_reserved) == ([small], False)
    # What was kept for a job is used up when it is admitted.
    fits = admit(room(2, reserved_until=until, **kept), large)
    assert fits.capacity == room(
        10, active=2, reserved_urgency=1, reserved_until=until, reserved_units=0
    )
    assert fits.admitted == [large]


@pytest.mark.spec("Q9")
def test_an_addon_with_a_share_is_admitted_up_to_it() -> None:
    jobs = [waiting(str(n), 2, PATIENCE + 1) for n in range(4)]
    held = admit(room(), *jobs, used=1, shares=(("a", 5),))
    assert held.admitted == jobs[:2], "one unit was used, and four of five are given"
    assert (held.has_refused, held.has_reserved) == (True, False)
    free = admit(room(), *jobs, used=1, shares=(("other", 1),))
    assert free.admitted == jobs
    limits = Limits(10, (("a", 5), ("b", 0)))
    assert [limits.share_of(name) for name in "abc"] == [5, 0, None]
    assert Limits().share_of("a") is None
    assert request_of(jobs[0]) == AdmissionRequest("0", "a", 2, 1)


def test_all_together_are_admitted_only_where_nothing_stands_in_the_way() -> None:
    assert room(4).with_all(6, 2) == room(10, active=3)
    assert room(4).with_all(7, 2) is None
    assert room(reserved_for="x").with_all(1, 1) is None
    assert room(reserved_units=3).with_all(1, 1) == room(1, active=2)
    kept = room(1, reserved_for="x", reserved_units=3)
    assert kept.with_grant(2, "y") == room(3, active=2, reserved_for="x", reserved_units=3)
    assert kept.with_grant(2, "x") == room(3, active=2)


@pytest.mark.parametrize(("until", "kept"), [(NOW, 0), (NOW + 1, 3)])
def test_units_are_kept_for_a_while(until: int, kept: int) -> None:
    assert room(reserved_for="x", reserved_units=3, reserved_until=until).reserved(NOW) == kept
    assert room(reserved_units=3, reserved_until=until).reserved(NOW) == 0
