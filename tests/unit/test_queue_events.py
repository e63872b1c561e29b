"""The events of the queue as they are written, member by member."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from ksana.domain.queue import events
from ksana.domain.queue.events import Facts

pytestmark = pytest.mark.spec("Q15")

RELEASED = '["LEASE_RELEASED",{"job_id":"j","status":"FAILED"},"LEASE","l","j"]'
WORKER = events.encode('w"1')
GRANT = ["LEASE_GRANTED", {"job_id": "j", "worker_id": 'w"1', "cost_units": 3}, "LEASE", "l"]
RUNS = ["JOB_RUNNING", {"lease_id": "l", "attempts": 2}]
CLAIM = ["JOB_CLAIMED", {"worker_id": 'w"1'}]
END = ["LEASE_RELEASED", {"job_id": "j", "status": "FAILED"}, "LEASE", "l", "j"]
OF_JOB = ["JOB", "j"]
ATTEMPT = {"lease_id": "l", "attempts": 2, "reason": "RELEASED"}
AGAIN = {"reason": "FAILED", "attempts": 2, "max_attempts": 5, "delay_ms": 1500}


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (
            lambda: events.submitted("j", "HIGH", 3),
            [["JOB_SUBMITTED", {"priority": "HIGH", "cost_units": 3}, *OF_JOB]],
        ),
        (lambda: events.claimed('w"1'), [CLAIM]),
        (
            lambda: events.started("l", "j", WORKER, 3, 2),
            [CLAIM + OF_JOB, [*GRANT, "j"], RUNS + OF_JOB],
        ),
        (lambda: events.granted("l", "j", WORKER, 3, 2), [GRANT, RUNS]),
        (
            lambda: events.claim_expired("w", "PREPARING", 2),
            [
                ["JOB_CLAIM_EXPIRED", {"worker_id": "w", "state": "PREPARING"}],
                ["JOB_REQUEUED", {"reason": "CLAIM_EXPIRED", "attempts": 2}],
            ],
        ),
        (lambda: events.reported("PREPARING", "w", None), [["JOB_PREPARING", {"worker_id": "w"}]]),
        (
            lambda: events.reported("LEASE_PENDING", "w", "n"),
            [["JOB_LEASE_PENDING", {"worker_id": "w", "note": "n"}]],
        ),
        (lambda: events.denied({"a": 1}), [["LEASE_DENIED", {"a": 1}]]),
        (
            lambda: events.pending("w", {"a": 1}),
            [["JOB_LEASE_PENDING", {"worker_id": "w"}], ["LEASE_DENIED", {"a": 1}]],
        ),
        (
            lambda: events.canceled("why", "QUEUED"),
            [["JOB_CANCELED", {"reason": "why", "from": "QUEUED"}]],
        ),
        (
            lambda: events.ended(RELEASED, "j", "DONE", "l", 2, "RELEASED", None),
            [END, ["JOB_DONE", ATTEMPT, *OF_JOB]],
        ),
        (
            lambda: events.ended(RELEASED, "j", "FAILED", "l", 2, "RELEASED", 'e"'),
            [END, ["JOB_FAILED", ATTEMPT | {"error": 'e"', "alert": True}, *OF_JOB]],
        ),
        (
            lambda: events.ended(RELEASED, "j", "TIMEOUT", "l", 2, "RELEASED", None),
            [END, ["JOB_TIMEOUT", ATTEMPT | {"alert": True}, *OF_JOB]],
        ),
        (
            lambda: events.requeued(RELEASED, "RELEASED", "FAILED", 2, 5, 1_500_999, None),
            [END, ["JOB_REQUEUED", AGAIN]],
        ),
        (
            lambda: events.requeued(RELEASED, "RELEASED", "FAILED", 2, 5, 1_500_999, "e"),
            [END, ["JOB_REQUEUED", AGAIN | {"error": "e"}]],
        ),
    ],
)
def test_an_event_says_what_it_should(make: Callable[[], Facts], told: list[Any]) -> None:
    facts = make()
    assert facts != ()
    names, text = facts
    assert json.loads(text) == told
    assert list(names) == [one[0] for one in told]


def test_events_that_are_written_alone() -> None:
    assert events.released("l", "j", "FAILED") == RELEASED
    assert events.cancel_requested("j", "why", "l") == (
        "JOB",
        "j",
        "JOB_CANCEL_REQUESTED",
        '{"reason":"why","lease_id":"l"}',
    )
    assert json.loads(events.lease_expired("l", "j", "w", 3, 1.5)) == [
        "LEASE_EXPIRED",
        {"job_id": "j", "worker_id": "w", "cost_units": 3, "ttl_sec": 1.5},
        "LEASE",
        "l",
        "j",
    ]
