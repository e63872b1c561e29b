"""Leases through the real app: request within the capacity, heartbeat, release, expiry, batches."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from ksana.domain.queue.admission import Limits
from tests.api.queue_ground import SECOND, Ground, ask, open_queue


@pytest.fixture
async def queue(tmp_path: Path) -> AsyncIterator[Ground]:
    async with open_queue(tmp_path) as ground:
        yield ground


async def claimed(queue: Ground, worker_id: str = "w1", **more: Any) -> str:
    await queue.submit(**more)
    job = await queue.claim(worker_id=worker_id)
    assert job is not None
    return str(job["job_id"])


@pytest.mark.spec("Q9", "Q13")
async def test_a_granted_lease_runs_the_job_and_is_answered_again_to_its_holder(
    queue: Ground,
) -> None:
    job_id = await claimed(queue, cost_units=30)
    answer = await ask(
        queue,
        job_id,
        addon_id="visuals",
        job_type="render",
        cost_units=30,
        priority="NORMAL",
        ttl_sec=45,
    )
    lease = answer["lease"]
    assert answer["approved"] is True
    assert (lease["state"], lease["cost_units"], lease["ttl_sec"], lease["job_id"]) == (
        "ACTIVE",
        30,
        45,
        job_id,
    )
    assert lease["expires_at"] == "2026-01-01T00:00:45Z"
    job = await queue.job(job_id)
    assert (job["state"], job["lease_id"], job["attempts"]) == ("RUNNING", lease["lease_id"], 1)
    again = await ask(queue, job_id, worker_id="w1")
    assert again["lease"] == lease
    shown = (await queue.get(f"/lease/{lease['lease_id']}"))["lease"]
    assert {**shown, "lease_token": lease["lease_token"]} == lease
    assert "lease_token" not in shown
    assert await queue.get("/leases") == {"leases": [shown]}
    assert await queue.used() == 30
    assert await queue.events(job_id) == [
        "JOB_SUBMITTED",
        "JOB_CLAIMED",
        "LEASE_GRANTED",
        "JOB_RUNNING",
    ]


@pytest.mark.spec("Q9")
@pytest.mark.parametrize(
    "change",
    [
        {"addon_id": "x"},
        {"job_type": "x"},
        {"cost_units": 1},
        {"priority": "LOW"},
        {"constraints": {"a": True}},
    ],
)
async def test_a_request_that_contradicts_the_job_is_refused(
    queue: Ground, change: dict[str, Any]
) -> None:
    job_id = await claimed(queue)
    answer = await queue.post("/lease/request", 400, job_id=job_id, **change)
    assert answer["field"] == next(iter(change))


@pytest.mark.spec("Q9", "X12")
async def test_a_request_in_the_wrong_state_or_by_another_worker_is_refused(queue: Ground) -> None:
    job_id = (await queue.submit())["job_id"]
    assert (await queue.post("/lease/request", 409, job_id=job_id))["code"] == "ILLEGAL_TRANSITION"
    await queue.claim()
    assert (await queue.post("/lease/request", 409, job_id=job_id, worker_id="w2"))[
        "code"
    ] == "CLAIM_LOST"
    for ttl in (0, 86_401):
        assert (await queue.post("/lease/request", 400, job_id=job_id, ttl_sec=ttl))[
            "field"
        ] == "ttl_sec"
    assert (await queue.post("/lease/request", 400, job_id="x"))["field"] == "job_id"
    await queue.post("/lease/request", 404, job_id="00000000-0000-4000-8000-000000000000")


@pytest.mark.spec("Q9", "Q3")
async def test_a_claim_that_ran_out_gets_no_lease_even_before_the_sweep(tmp_path: Path) -> None:
    async with open_queue(tmp_path, has_sweep=False) as queue:
        job_id = await claimed(queue)
        await queue.clock.advance(60 * SECOND)
        assert (await queue.post("/lease/request", 409, job_id=job_id))["code"] == "CLAIM_LOST"
        assert (await queue.post(f"/jobs/{job_id}/status", 409, state="PREPARING"))[
            "code"
        ] == "CLAIM_LOST"


@pytest.mark.spec("Q9", "Q8")
async def test_a_denial_gives_its_reason_the_place_in_line_and_the_holders(queue: Ground) -> None:
    _, lease = await queue.running(cost_units=60)
    job_id = await claimed(queue, cost_units=50)
    answer = await ask(queue, job_id)
    assert answer["approved"] is False
    assert answer["reason"] == "Capacity exceeded: used=60, requested=50, capacity=100"
    assert answer["position"] == 1
    assert [holder["lease_id"] for holder in answer["holders"]] == [lease["lease_id"]]
    assert 1 <= answer["retry_after_sec"] <= 10
    job = await queue.job(job_id)
    assert (job["state"], job["claimed_by"], job["next_retry_at"]) == (
        "LEASE_PENDING",
        "w1",
        "2026-01-01T00:00:10Z",
    )
    assert (await queue.events(job_id))[-2:] == ["JOB_LEASE_PENDING", "LEASE_DENIED"]
    other = await claimed(queue, cost_units=50)
    assert (await ask(queue, other))["position"] == 2
    await queue.post(f"/lease/{lease['lease_id']}/release", 200, status="SUCCEEDED")
    assert (await ask(queue, job_id))["approved"] is True


@pytest.mark.spec("Q9")
async def test_a_refused_large_job_keeps_its_units_so_that_small_ones_do_not_starve_it(
    queue: Ground,
) -> None:
    _, lease = await queue.running(cost_units=60)
    large = await claimed(queue, cost_units=90)
    assert (await ask(queue, large))["approved"] is False
    assert (await queue.get("/stats/snapshot"))["capacity"] == {
        "total": 100,
        "used": 60,
        "reserved": 90,
    }
    small = await claimed(queue, cost_units=10)
    denied = await ask(queue, small)
    assert (denied["approved"], denied["code"]) == (False, "CAPACITY_RESERVED")
    urgent = await claimed(queue, cost_units=5, priority="URGENT")
    assert (await ask(queue, urgent))["approved"] is True
    await queue.post(f"/lease/{lease['lease_id']}/release", 200, status="SUCCEEDED")
    assert (await ask(queue, small))["approved"] is False
    assert (await ask(queue, large))["approved"] is True
    assert (await queue.get("/stats/snapshot"))["capacity"] == {
        "total": 100,
        "used": 95,
        "reserved": 0,
    }


@pytest.mark.spec("Q9")
async def test_units_kept_for_a_job_that_does_not_come_back_are_free_again(queue: Ground) -> None:
    await queue.running(cost_units=60)
    large = await claimed(queue, cost_units=90)
    await ask(queue, large)
    small = await claimed(queue, cost_units=5)
    assert (await ask(queue, small))["approved"] is False
    await queue.clock.advance(15 * SECOND)
    assert (await ask(queue, small))["approved"] is True


@pytest.mark.spec("Q9")
async def test_an_addon_with_a_share_stays_within_it(tmp_path: Path) -> None:
    async with open_queue(tmp_path, Limits(100, (("visuals", 30),))) as queue:
        await queue.running(cost_units=20)
        job_id = await claimed(queue, cost_units=20)
        answer = await ask(queue, job_id)
        assert (answer["approved"], answer["code"]) == (False, "SHARE_EXCEEDED")
        other = await claimed(queue, cost_units=80, addon_id="sounds")
        assert (await ask(queue, other))["approved"] is True


@pytest.mark.spec("Q16")
async def test_a_claim_with_leases_takes_what_fits_and_leaves_the_rest_queued(
    queue: Ground,
) -> None:
    for cost in (60, 60, 30, 20):
        await queue.submit(cost_units=cost, payload=cost)
    answer = await queue.post("/jobs/claim", 200, worker_id="w", limit=3, lease=True, ttl_sec=12)
    assert [job["payload"] for job in answer["jobs"]] == [60, 30]
    assert {job["state"] for job in answer["jobs"]} == {"RUNNING"}
    assert [lease["lease_id"] for lease in answer["leases"]] == [
        job["lease_id"] for job in answer["jobs"]
    ]
    assert answer["leases"][0]["expires_at"] == "2026-01-01T00:00:12Z"
    assert await queue.used() == 90
    assert await queue.post("/jobs/claim", 204, worker_id="w", limit=3, lease=True) is None
    assert (await queue.events(answer["job"]["job_id"])) == [
        "JOB_SUBMITTED",
        "JOB_CLAIMED",
        "LEASE_GRANTED",
        "JOB_RUNNING",
    ]


@pytest.mark.spec("Q16", "X8")
@pytest.mark.parametrize(
    "body", [{"limit": 4, "ahead": 5, "lease": True}, {"limit": 4, "ahead": 1}]
)
async def test_jobs_to_be_begun_later_are_some_of_those_leased(
    queue: Ground, body: dict[str, Any]
) -> None:
    refused = await queue.post("/jobs/claim", 400, worker_id="w1", **body)
    assert (refused["code"], refused["field"]) == ("INVALID_ARGUMENT", "ahead")
    assert "0 to 'limit', with 'lease': true" in refused["message"]


@pytest.mark.spec("Q11", "Q16")
async def test_a_job_taken_ahead_is_given_back_as_it_was(queue: Ground) -> None:
    for _ in range(3):
        await queue.submit(max_attempts=2)
    answer = await queue.post("/jobs/claim", 200, worker_id="w1", limit=3, ahead=2, lease=True)
    assert [job["state"] for job in answer["jobs"]] == ["RUNNING"] * 3
    lease = answer["leases"][2]
    body = {"worker_id": "w1", "status": "RETURNED"}
    released = await queue.post(f"/lease/{lease['lease_id']}/release", 200, **body)
    job = released["job"]
    assert (job["state"], job["attempts"], released["result"]) == ("QUEUED", 0, None)
    assert await queue.used() == 20
    again = await queue.claim(worker_id="w2")
    assert again is not None
    assert again["job_id"] == job["job_id"]


@pytest.mark.spec("Q16")
async def test_behind_a_job_that_does_not_fit_a_smaller_one_is_found(queue: Ground) -> None:
    await queue.running(cost_units=60)
    await queue.submit(cost_units=50, payload="large")
    await queue.submit(cost_units=40, payload="small")
    answer = await queue.post("/jobs/claim", 200, worker_id="w", lease=True)
    assert answer["job"]["payload"] == "small"


@pytest.mark.spec("Q16")
async def test_batches_answer_each_item_on_its_own(queue: Ground) -> None:
    _, first = await queue.running()
    _, second = await queue.running()
    unknown = "00000000-0000-4000-8000-000000000000"
    beats = [
        {"lease_id": first["lease_id"]},
        {"lease_id": unknown},
        {"lease_id": second["lease_id"], "worker_id": "x"},
    ]
    results = (await queue.post("/lease/heartbeat-batch", 200, items=beats))["results"]
    assert results[0]["lease"]["state"] == "ACTIVE"
    assert [result["code"] for result in results[1:]] == ["NOT_FOUND", "LEASE_LOST"]
    items = [
        {"lease_id": second["lease_id"], "status": "SUCCEEDED", "result_data": 2},
        {"lease_id": unknown, "status": "SUCCEEDED"},
        {"lease_id": first["lease_id"], "status": "FAILED", "error": "x"},
        {"lease_id": second["lease_id"], "status": "SUCCEEDED", "result_data": 2},
        {"lease_id": second["lease_id"], "status": "FAILED"},
    ]
    results = (await queue.post("/lease/release-batch", 200, items=items))["results"]
    assert [results[n]["job"]["state"] for n in (0, 2, 3)] == ["DONE", "FAILED", "DONE"]
    assert [results[n]["code"] for n in (1, 4)] == ["NOT_FOUND", "LEASE_LOST"]
    assert await queue.used() == 0
    await queue.post("/lease/release-batch", 400, items=items * 101)
    assert (await queue.post("/lease/release-batch", 200, items=[]))["results"] == []


@pytest.mark.spec("Q16", "X13")
async def test_batches_leave_large_payloads_out_and_single_answers_do_not(queue: Ground) -> None:
    large, small = "x" * 20_000, {"n": 1}
    leases = []
    for payload in (large, small):
        await queue.submit(payload=payload, max_attempts=2)
        claimed = await queue.post("/jobs/claim", 200, worker_id="w1", lease=True)
        assert claimed["job"]["payload"] == payload
        leases.append({"lease_id": claimed["lease"]["lease_id"], "worker_id": "w1"})
    beaten = await queue.post("/lease/heartbeat-batch", 200, items=leases)
    assert [one["job"]["payload"] for one in beaten["results"]] == [None, small]
    path = f"/lease/{leases[0]['lease_id']}"
    assert (await queue.post(f"{path}/heartbeat", 200, worker_id="w1"))["job"]["payload"] == large
    items = [{**one, "status": "FAILED"} for one in leases]
    released = await queue.post("/lease/release-batch", 200, items=items)
    assert [one["job"]["payload"] for one in released["results"]] == [None, small]
    again = await queue.post(f"{path}/release", 200, worker_id="w1", status="FAILED")
    assert (again["job"]["payload"], again["job"]["state"]) == (large, "QUEUED")


@pytest.mark.spec("Q14", "Q15")
async def test_figures_follow_what_happens(queue: Ground) -> None:
    for metric in ("jobs_queued", "wait_seconds_p95"):
        assert (await queue.get(f"/stats/timeseries?metric={metric}&bucket=1m&range=3m"))[
            "metric"
        ] == metric
    await queue.submit()
    _, lease = await queue.running()
    assert await queue.get("/stats/snapshot") == {
        "capacity": {"total": 100, "used": 10, "reserved": 0},
        "jobs": {"queued": 1, "running": 1, "failed_last_24h": 0, "timeout_last_24h": 0},
        "leases": {"active": 1, "expired_last_24h": 0},
    }
    await queue.clock.advance(10 * SECOND)
    await queue.post(f"/lease/{lease['lease_id']}/release", 200, status="FAILED", error="x")
    await queue.clock.advance(60 * SECOND)

    async def values(metric: str) -> list[Any]:
        answer = await queue.get(f"/stats/timeseries?metric={metric}&bucket=1m&range=3m")
        assert [point["ts"] for point in answer["points"]][-1] == "2026-01-01T00:01:00Z"
        return [point["value"] for point in answer["points"]]

    assert await values("jobs_submitted") == [0, 2, 0]
    assert await values("jobs_failed") == [0, 1, 0]
    assert await values("jobs_queued") == [0, 1, 1]
    assert await values("jobs_running") == [0, 0, 0]
    assert await values("leases_active") == [0, 0, 0]
    spans = await values("run_seconds_p95")
    assert spans[0] is None
    assert 8 <= spans[1] <= 14
    assert (await queue.get("/stats/snapshot"))["jobs"]["failed_last_24h"] == 1


@pytest.mark.spec("Q15", "X8")
@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("metric=colour", "metric"),
        ("metric=jobs_done&bucket=1s", "bucket"),
        ("metric=jobs_done&bucket=1m&range=30d", "bucket"),
        ("metric=jobs_done&bucket=1h&range=5m", "range"),
        ("metric=jobs_done&bucket=soon", "bucket"),
        ("bucket=1m", "metric"),
    ],
)
async def test_figures_that_cannot_be_are_refused(queue: Ground, query: str, field: str) -> None:
    answer = await queue.get(f"/stats/timeseries?{query}", 400)
    assert answer["field"] == field
    if query == "metric=colour":
        assert "run_seconds_p95" in answer["message"]
