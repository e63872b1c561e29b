"""Jobs and leases of the queue as plain values, for tests of what is decided about them."""

from typing import Any

import msgspec

from ksana.base.instant import SECOND
from ksana.domain.queue import changes
from ksana.domain.queue.jobs import Job, LeaseWithJob, ReadyJob

NOW = 1_000 * SECOND
SOON = NOW + SECOND


class Numbers:
    """What waits, by urgency; and how often it was asked for."""

    def __init__(self, head: int | None = None, tail: int | None = None, **keys: int) -> None:
        self.head, self.tail, self.keys = head, tail, keys
        self.asked = 0

    def head_turn(self, urgency: int) -> int | None:
        self.asked += 1
        return self.head

    def tail_turn(self, urgency: int) -> int | None:
        self.asked += 1
        return self.tail

    def key_turn(self, urgency: int, fairness_key: str) -> int | None:
        self.asked += 1
        return self.keys.get(fairness_key)


def a_job(**members: Any) -> Job:
    given: dict[str, Any] = {
        "seq": 4,
        "job_id": "j",
        "addon_id": "a",
        "job_type": "t",
        "priority": "HIGH",
        "cost_units": 3,
        "constraints_json": "{}",
        "payload_json": "[]",
        "state": "CLAIMED",
        "max_attempts": 5,
        "created_at": 1,
        "updated_at": 2,
        "position": changes.CLAIMED,
        "urgency": 1,
        "class_id": 9,
        "turn": 6,
        "due_at": 7,
        "attempts": 1,
        "claims": 2,
        "claim_token": 8,
        "claimed_by": "w",
        "claim_expires_at": SOON,
        "next_retry_at": 11,
        "progress": 0.5,
        "note": "half",
    }
    return Job(**given | members)


def a_ready_job(**members: Any) -> ReadyJob:
    job = msgspec.structs.asdict(a_job(**members))
    return ReadyJob(**{name: job[name] for name in ReadyJob.__struct_fields__})


def a_lease(**members: Any) -> LeaseWithJob:
    given: dict[str, Any] = {
        "lease_id": "l",
        "job_id": "j",
        "addon_id": "a",
        "worker_id": "w",
        "cost_units": 3,
        "ttl_sec": 20.0,
        "lease_state": "ACTIVE",
        "lease_token": 8,
        "release_digest": None,
        "granted_at": NOW - 30,
        "last_heartbeat_at": NOW - 10,
        "expires_at": NOW + 10,
        "is_live": 1,
        "seq": 4,
        "job_state": "RUNNING",
        "attempts": 2,
        "max_attempts": 5,
        "cancel_requested": 0,
        "urgency": 1,
        "claims": 2,
    }
    return LeaseWithJob(**given | members)
