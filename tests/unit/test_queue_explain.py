"""Why a queue job is where it is, in words and facts."""

from typing import Any

import pytest

from ksana.base.instant import MILLISECOND, SECOND, format_instant
from ksana.domain.explain import Reason
from ksana.domain.queue import changes
from ksana.domain.queue.admission import Denial
from ksana.domain.queue.explain import COUNT_TO, JobFacts, explain_job, position_of
from ksana.domain.queue.jobs import Lease
from tests.unit.queue_rows import NOW, SOON, a_job

pytestmark = pytest.mark.spec("Q14", "B1")

IDS = {
    name: number
    for number, name in enumerate(
        (
            "JOB_SUBMITTED",
            "JOB_REQUEUED",
            "JOB_CLAIMED",
            "LEASE_DENIED",
            "JOB_RUNNING",
            "JOB_CANCEL_REQUESTED",
            "JOB_DONE",
            "JOB_FAILED",
            "JOB_TIMEOUT",
            "JOB_CANCELED",
        ),
        start=1,
    )
}


def explain(facts: dict[str, Any] | None = None, **job: Any) -> list[Reason]:
    return explain_job(JobFacts(a_job(**job), NOW, event_ids=IDS, **facts or {}))


def queued(facts: dict[str, Any] | None = None, **job: Any) -> list[Reason]:
    return explain(facts, **{"state": "QUEUED", "attempts": 2, **job})


def test_a_job_whose_time_is_to_come_says_when() -> None:
    at = format_instant(SOON)
    assert queued(due_at=SOON, next_retry_at=None) == [
        Reason("NOT_DUE", f"it was submitted to run at {at}, in 1s", {"at": at}, 1)
    ]


@pytest.mark.parametrize(("error", "said"), [("it broke", "it broke"), (None, "no reason given")])
def test_a_job_that_failed_says_when_it_is_tried_again(error: str | None, said: str) -> None:
    at = format_instant(SOON)
    words = f"attempt 2 of 5 failed ({said}); it is tried again at {at}, in 1s"
    assert queued(due_at=SOON, next_retry_at=SOON, error_text=error) == [
        Reason("RETRY_BACKOFF", words, {"at": at, "attempts": 2}, 2)
    ]


@pytest.mark.parametrize(
    ("ahead", "many"),
    [
        (1, "1 job is"),
        (2, "2 jobs are"),
        (COUNT_TO - 1, "9999 jobs are"),
        (COUNT_TO, "10000 jobs or more are"),
    ],
)
def test_a_job_in_line_says_how_many_are_before_it(ahead: int, many: str) -> None:
    words = f"{many} before it for the same workers, by priority, turn and age"
    assert queued({"ahead": ahead}) == [Reason("IN_LINE", words, {"ahead": ahead})]
    assert position_of(JobFacts(a_job(), NOW, ahead=ahead)) == ahead + 1


def test_the_next_in_line_waits_for_a_worker_that_can_take_it() -> None:
    words = "it is the next in line, and no worker that takes it has claimed it yet"
    first = Reason("NO_CLAIM", words, {"ahead": 0})
    assert queued({"ahead": 0}) == [first]
    needs = Reason(
        "NEEDS", "only a worker that can meet gpu, a=b may take it", {"needs": ["gpu", "a=b"]}
    )
    assert queued({"ahead": 0, "needs": ("gpu", "a=b")}) == [first, needs]
    assert position_of(JobFacts(a_job(), NOW)) is None


@pytest.mark.parametrize(
    ("expires_at", "lasts"),
    [
        (NOW + 90 * SECOND, "for another 1m30s"),
        (NOW + 1, "for another 1ms"),
        (NOW + 1500 * MILLISECOND + 7, "for another 1s500ms"),
        (NOW, "no longer: the claim has run out"),
        (NOW - 1, "no longer: the claim has run out"),
        (None, "no longer: the claim has run out"),
    ],
)
def test_a_claimed_job_says_who_holds_it_and_how_long(expires_at: int | None, lasts: str) -> None:
    reasons = explain(claim_expires_at=expires_at)
    [held] = reasons
    assert (held.code, held.data, held.event_id) == ("CLAIMED", {"worker_id": "w"}, 3)
    assert held.words.replace("1.5s", "1s500ms") == (
        f"'w' holds the claim {lasts} and has no lease yet"
    )


def test_a_job_that_waits_for_capacity_says_its_place() -> None:
    pending = {"state": "LEASE_PENDING", "position": changes.PENDING}
    [_, refused] = explain({"ahead": 3}, **pending)
    words = "its request for a lease was refused; it is number 4 in line for capacity"
    assert refused == Reason("LEASE_DENIED", words, {"position": 4}, 4)
    assert len(explain(**pending)) == 1, "its place is not known"
    assert len(explain({"ahead": 3})) == 1, "it asked for no lease"


@pytest.mark.parametrize(
    ("expires_at", "lasts"),
    [
        (SOON, "the lease lasts another 1s"),
        (NOW + 1, "the lease lasts another 1ms"),
        (NOW, "the lease has run out and is being swept"),
    ],
)
def test_a_running_job_says_who_runs_it(expires_at: int, lasts: str) -> None:
    lease = Lease("l", "j", "a", "w", 3, 20.0, "ACTIVE", 1, 1, expires_at)
    data = {
        "worker_id": "w",
        "lease_id": "l",
        "attempts": 1,
        "expires_at": format_instant(expires_at),
    }
    runs = Reason("RUNNING", f"'w' runs it (attempt 1); {lasts}", data, 5)
    assert explain({"lease": lease}, state="RUNNING") == [runs]
    assert explain(state="RUNNING") == []


@pytest.mark.parametrize(("why", "said"), [("wrong", ": wrong"), (None, "")])
def test_a_job_that_is_asked_to_stop_says_so(why: str | None, said: str) -> None:
    asked = explain(state="RUNNING", cancel_requested=1, cancel_reason=why)
    words = f"it was asked to stop{said}; it ends when its lease does"
    assert asked == [Reason("CANCEL_REQUESTED", words, {"reason": why}, 6)]
    assert explain(state="CANCELED", cancel_reason=why) == [
        Reason("CANCELED", f"it was cancelled{said}", {"reason": why}, 10)
    ]


TRIES = {"attempts": 1, "max_attempts": 5}


@pytest.mark.parametrize(
    ("job", "code", "words", "data", "event_id"),
    [
        (
            {"state": "DONE"},
            "SUCCEEDED",
            "its worker released it as SUCCEEDED after 1 of 5 attempts",
            TRIES,
            7,
        ),
        (
            {"state": "FAILED", "error_text": "e"},
            "NOT_RETRYABLE",
            "it failed (e), and its worker asked for no other attempt after 1 of 5 attempts",
            {"error": "e", **TRIES},
            8,
        ),
        (
            {"state": "FAILED", "attempts": 5},
            "ATTEMPTS_USED",
            "it failed (no reason given) and has used 5 of 5 attempts",
            {"error": None, "attempts": 5, "max_attempts": 5},
            8,
        ),
        (
            {"state": "TIMEOUT", "error_text": "too slow"},
            "TIMED_OUT",
            "too slow; it has used 1 of 5 attempts",
            {"error": "too slow", **TRIES},
            9,
        ),
        (
            {"state": "TIMEOUT"},
            "TIMED_OUT",
            "its worker released it as TIMEOUT; it has used 1 of 5 attempts",
            {"error": None, **TRIES},
            9,
        ),
    ],
)
def test_a_job_that_ended_says_why(
    job: dict[str, Any], code: str, words: str, data: dict[str, Any], event_id: int
) -> None:
    assert explain(**job) == [Reason(code, words, data, event_id)]


def test_what_stands_in_the_way_of_a_lease_comes_last() -> None:
    denial = Denial("CAPACITY_EXCEEDED", "too much")
    reasons = queued({"ahead": 0, "denial": denial})
    assert reasons[-1] == Reason("CAPACITY_EXCEEDED", "too much", {"requested": 3})
