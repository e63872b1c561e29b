"""The queue against a small model of it: any order of calls, expiries and restarts, checked after
every step."""

from typing import Any

import msgspec
import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import (
    run_state_machine_as_test,
)

from ksana.base.errors import ConflictError
from ksana.domain.queue import attempt_ends
from ksana.domain.queue.admission import Capacity
from ksana.domain.queue.attempt_ends import EndDecision
from ksana.service.queue import leases as lease_service
from ksana.store.sql.queue.changes import SqlGauges
from ksana.store.sql.queue.leases import SqlLeases
from tests.properties.queue_model import QueueMachine

TestQueueModel = pytest.mark.spec("Q3", "Q9", "Q11", "Q12")(QueueMachine.TestCase)


TestQueueModel.settings = QueueSettings = settings(
    max_examples=25, stateful_step_count=30, deadline=None
)


def again_for_ever(_: Any) -> EndDecision:
    return EndDecision("QUEUED", 0)


def forget_the_cancel(job: Any) -> EndDecision:
    return EndDecision("QUEUED", 0) if job.attempts < job.max_attempts else EndDecision("TIMEOUT")


def one_attempt_too_many(job: Any) -> EndDecision:
    if job.cancel_requested:
        return EndDecision("CANCELED")
    return EndDecision("QUEUED", 0) if job.attempts <= job.max_attempts else EndDecision("TIMEOUT")


LOCK_LEASES = SqlLeases.lock_leases


def live_whatever_the_clock_says(leases: SqlLeases, lease_ids: Any) -> dict[str, Any]:
    found = LOCK_LEASES(leases, lease_ids)
    return {key: (one, one.lease.state == "ACTIVE") for key, (one, _) in found.items()}


def always_fits(capacity: Capacity, cost_units: int, count: int) -> Capacity:
    return msgspec.structs.replace(
        capacity, used=capacity.used + cost_units, active=capacity.active + count
    )


def no_denial(*_: Any) -> None:
    return None


def count_nothing(*_: Any, **__: Any) -> None:
    return None


FAULTS: dict[str, tuple[Any, str, Any]] = {
    "an expired job is tried for ever": (attempt_ends, "after_expiry", again_for_ever),
    "an expired job forgets that it was cancelled": (
        attempt_ends,
        "after_expiry",
        forget_the_cancel,
    ),
    "an expired job gets one attempt too many": (
        attempt_ends,
        "after_expiry",
        one_attempt_too_many,
    ),
    "a late worker is believed": (SqlLeases, "lock_leases", live_whatever_the_clock_says),
    "a claim with leases overbooks": (Capacity, "with_all", always_fits),
    "a lease request overbooks": (lease_service, "find_denial", no_denial),
    "a gauge is not counted": (SqlGauges, "add", count_nothing),
}


@pytest.mark.parametrize("fault", sorted(FAULTS))
def test_the_model_finds_a_fault_put_in_on_purpose(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, name, wrong = FAULTS[fault]
    monkeypatch.setattr(owner, name, wrong)
    # Longer than above: it ends with the first find, and which examples come depends on the text of
    # this very file.
    longer = settings(
        QueueSettings,
        max_examples=400,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        print_blob=False,
    )
    with pytest.raises((AssertionError, ConflictError, BaseExceptionGroup, pytest.fail.Exception)):
        run_state_machine_as_test(QueueMachine, settings=longer)
