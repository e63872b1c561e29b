"""Classes of faults that concern every store, against the real program on each of them: an outage
longer than many slots, and jobs whose workers vanish, come late or hold on."""

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.ground.child import wait_for
from tests.ground.process import Program
from tests.ground.target import Target
from tests.ground.tasks import SECOND, Ledger, disable, list_events, make_task, wait_until_quiet

CATCH_UP = 3


@pytest.fixture
def program(store_url: str, tmp_path: Path) -> Iterator[Program]:
    with Program(tmp_path / "data", store=store_url) as program:
        yield program.start()


@pytest.mark.fault("F02", "F03", "F05", "F06")
@pytest.mark.spec("C10", "X1", "X5")
@pytest.mark.parametrize(
    "away_s", [2.0, pytest.param(15.0, marks=[pytest.mark.slow, pytest.mark.timeout(240)])]
)
def test_every_slot_of_an_outage_is_accounted_for_and_firing_goes_on(
    program: Program, target: Target, away_s: float
) -> None:
    policies: dict[str, dict[str, Any]] = {
        "SKIP": {},
        "FIRE_NOW": {},
        "CATCH_UP_LIMITED": {"catchup_limit": CATCH_UP},
    }
    tasks = [
        make_task(
            program,
            policy,
            target.url(f"/{policy}"),
            "100ms",
            misfire_policy=policy,
            concurrency_policy="PARALLEL",
            **members,
        )
        for policy, members in policies.items()
    ]
    for policy in policies:
        target.wait_for(3, f"/{policy}")
    program.kill9()
    time.sleep(away_s)
    target.forget()
    program.start()
    for policy in policies:
        target.wait_for(20, f"/{policy}", within_s=30)
    disable(program, tasks)
    wait_until_quiet(program)
    ledger = Ledger(program)
    for task in tasks:
        ledger.check_slots(task, SECOND // 10)
    made_up = [run for run in ledger.of(tasks[2]) if run["trigger"] == "catchup"]
    assert len(made_up) == CATCH_UP, "no flood, however long it was away"
    missed = list_events(program, "TASK_MISFIRED")
    assert max(one["data"]["count"] for one in missed) >= away_s * 9


class Queue:
    """The queue's API, as a worker uses it."""

    def __init__(self, program: Program) -> None:
        self._program = program

    def call(self, path: str, **body: Any) -> Any:
        answer = self._program.post(f"/api/scheduler{path}", body)
        assert answer.status_code in (200, 201, 204), answer.text
        return {} if answer.status_code == 204 else answer.json()

    def submit(self, **members: Any) -> str:
        body = {"addon_id": "a", "job_type": "t", "cost_units": 1, **members}
        return str(self.call("/jobs/submit", **body)["job"]["job_id"])

    def claim(self, ttl_sec: float) -> dict[str, Any]:
        """A job with its lease; empty if there is none."""
        claimed = self.call("/jobs/claim", worker_id="w", lease=True, ttl_sec=ttl_sec)
        found: dict[str, Any] = claimed.get("job", {})
        return found

    def state_of(self, job_id: str) -> str:
        answer = self._program.get(f"/api/scheduler/jobs/{job_id}")
        return str(answer.json()["job"]["state"])


@pytest.mark.fault("F09", "F10", "F12", "F14", "F17")
@pytest.mark.spec("Q3", "Q8", "Q12")
def test_leases_end_by_the_stores_clock_and_only_who_holds_one_ends_a_job(program: Program) -> None:
    queue = Queue(program)
    later = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    future = queue.submit(run_at=later)
    poison = queue.submit(max_attempts=2)
    first = queue.claim(1)
    assert first["job_id"] == poison
    assert queue.claim(1) == {}, "what is not due is not handed out"
    wait_for(lambda: queue.state_of(poison) == "QUEUED", "the lease runs out", within_s=10)
    second = queue.claim(1)
    assert (second["job_id"], second["lease_id"] != first["lease_id"]) == (poison, True)
    late = program.post(
        f"/api/scheduler/lease/{first['lease_id']}/release",
        {"worker_id": "w", "status": "SUCCEEDED"},
    )
    assert late.status_code in (404, 409), "the first worker is too late"
    wait_for(lambda: queue.state_of(poison) == "TIMEOUT", "no attempt is left", within_s=10)
    assert queue.claim(1) == {}
    held = queue.submit()
    lease = queue.claim(1)
    for _ in range(5):  # longer than the lease was granted for
        time.sleep(0.5)
        queue.call(f"/lease/{lease['lease_id']}/heartbeat", worker_id="w", ttl_sec=1)
    assert queue.state_of(held) == "RUNNING", "who renews keeps it"
    queue.call(f"/lease/{lease['lease_id']}/release", worker_id="w", status="SUCCEEDED")
    assert (queue.state_of(held), queue.state_of(future)) == ("DONE", "QUEUED")
