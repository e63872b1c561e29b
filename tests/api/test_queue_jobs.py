"""Queue jobs through the real app: submit, claim, status, cancel, list, events."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.api.queue_ground import SECOND, Ground, open_queue


@pytest.fixture
async def queue(tmp_path: Path) -> AsyncIterator[Ground]:
    async with open_queue(tmp_path) as ground:
        yield ground


@pytest.mark.spec("Q1")
async def test_a_submitted_job_is_answered_in_the_shape_of_the_contract(queue: Ground) -> None:
    job = await queue.submit(
        payload={"model": "sdxl"}, constraints={"cpu_heavy": True}, priority="HIGH"
    )
    assert job["state"] == "QUEUED"
    assert job["payload"] == {"model": "sdxl"}
    assert job["constraints"] == {"cpu_heavy": True}
    assert (job["priority"], job["attempts"], job["max_attempts"]) == ("HIGH", 0, 1)
    absent = ("claimed_by", "claim_expires_at", "lease_id", "next_retry_at")
    assert [job[name] for name in absent] == [None] * 4
    assert job["created_at"] == job["updated_at"] == "2026-01-01T00:00:00Z"


@pytest.mark.spec("Q1", "X8", "X9")
@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"cost_units": 0}, "cost_units"),
        ({"cost_units": -1}, "cost_units"),
        ({"cost_units": 101}, "cost_units"),
        ({"cost_units": 1.5}, "cost_units"),
        ({"cost_units": "3"}, "cost_units"),
        ({"priority": "SOON"}, "priority"),
        ({"addon_id": ""}, "addon_id"),
        ({"addon_id": "x" * 129}, "addon_id"),
        ({"job_type": None}, "job_type"),
        ({"max_attempts": 0}, "max_attempts"),
        ({"run_at": "2026-01-01T00:00:00"}, "run_at"),
        ({"constraints": [1]}, "constraints"),
        ({"constraints": {"x" * 4091: 1}}, "constraints"),
        ({"colour": "red"}, "colour"),
    ],
)
async def test_a_job_that_cannot_be_is_refused_with_the_member_at_fault(
    queue: Ground, change: Any, field: str
) -> None:
    answer = await queue.post(
        "/jobs/submit", 400, **{"addon_id": "a", "job_type": "t", "cost_units": 1, **change}
    )
    assert (answer["code"], answer["field"]) == ("INVALID_ARGUMENT", field)
    assert answer["detail"] == answer["message"]


@pytest.mark.spec("X13")
async def test_what_is_kept_of_a_job_or_a_filter_is_bounded(queue: Ground) -> None:
    await queue.submit(constraints={"x" * 4090: 1})
    job = {"addon_id": "a", "job_type": "t", "cost_units": 1}
    for name, value in (("constraints", {"x" * 4091: 1}), ("payload", "x" * 1024 * 1024)):
        jobs = [job, {**job, name: value}]
        answer = await queue.post("/jobs/submit-batch", 400, jobs=jobs)
        assert answer["field"] == f"jobs[1].{name}"
    for capabilities in ({"x" * 129: True}, {f"c{number}": True for number in range(101)}):
        answer = await queue.post(
            "/jobs/claim", 400, worker_id="w", constraints_capabilities=capabilities
        )
        assert answer["field"].startswith("constraints_capabilities")


@pytest.mark.spec("Q1")
async def test_members_of_the_server_sent_back_are_ignored(queue: Ground) -> None:
    job = await queue.submit(state="DONE", job_id="x", attempts=7)
    assert (job["state"], job["attempts"]) == ("QUEUED", 0)


@pytest.mark.spec("Q1")
async def test_the_same_client_request_id_is_refused_with_the_job_that_is_there(
    queue: Ground,
) -> None:
    first = await queue.submit(client_request_id="r1")
    body = {"addon_id": "visuals", "job_type": "render", "cost_units": 1, "client_request_id": "r1"}
    answer = await queue.post("/jobs/submit", 409, **body)
    assert answer["code"] == "DUPLICATE_REQUEST"
    assert answer["job"]["job_id"] == first["job_id"]
    await queue.post("/jobs/submit", 201, **{**body, "addon_id": "other"})


@pytest.mark.spec("Q1")
async def test_a_batch_is_entered_whole_or_not_at_all(queue: Ground) -> None:
    job = {"addon_id": "a", "job_type": "t", "cost_units": 1}
    await queue.post("/jobs/submit", 201, **job, client_request_id="taken")
    twins = [{**job, "client_request_id": "x"}, job, {**job, "client_request_id": "x"}]
    answer = await queue.post("/jobs/submit-batch", 409, jobs=twins)
    assert (answer["code"], answer["index"]) == ("DUPLICATE_REQUEST", 2)
    answer = await queue.post(
        "/jobs/submit-batch", 409, jobs=[job, {**job, "client_request_id": "taken"}]
    )
    assert (answer["code"], answer["index"]) == ("DUPLICATE_REQUEST", 1)
    assert len((await queue.get("/jobs"))["jobs"]) == 1
    answer = await queue.post(
        "/jobs/submit-batch", 201, jobs=[{**job, "payload": n} for n in range(1000)]
    )
    assert [job["payload"] for job in answer["jobs"]] == list(range(1000))
    await queue.post("/jobs/submit-batch", 400, jobs=[job] * 1001)
    await queue.post("/jobs/submit-batch", 400, jobs=[])
    answer = await queue.post("/jobs/submit-batch", 400, jobs=[job, {**job, "cost_units": 999}])
    assert answer["field"] == "jobs[1].cost_units"
    assert (await queue.get("/stats/snapshot"))["jobs"]["queued"] == 1001


@pytest.mark.spec("X21")
async def test_an_idempotency_key_gives_the_first_answer_again(queue: Ground) -> None:
    body = {"addon_id": "a", "job_type": "t", "cost_units": 1}
    headers = {"Idempotency-Key": "k1"}
    first = await queue.http.post("/api/scheduler/jobs/submit", json=body, headers=headers)
    again = await queue.http.post("/api/scheduler/jobs/submit", json=body, headers=headers)
    assert (first.status_code, again.status_code) == (201, 201)
    assert first.json() == again.json()
    other = await queue.http.post(
        "/api/scheduler/jobs/submit", json={**body, "cost_units": 2}, headers=headers
    )
    assert (other.status_code, other.json()["code"]) == (409, "IDEMPOTENCY_MISMATCH")
    await queue.clock.advance(86_401 * SECOND)
    late = await queue.http.post("/api/scheduler/jobs/submit", json=body, headers=headers)
    assert late.json()["job"]["job_id"] != first.json()["job"]["job_id"]


@pytest.mark.spec("Q3", "Q5", "X12")
@pytest.mark.parametrize("state", ["PREPARING", "LEASE_PENDING"])
async def test_a_claim_runs_out_however_far_its_job_has_come(queue: Ground, state: str) -> None:
    job = await queue.submit()
    await queue.claim()
    await queue.post(f"/jobs/{job['job_id']}/status", 200, state=state, worker_id="w1")
    assert (await queue.job(job["job_id"]))["state"] == state
    await queue.clock.advance(61 * SECOND)
    back = await queue.job(job["job_id"])
    assert (back["state"], back["claimed_by"]) == ("QUEUED", None)
    assert (await queue.events(job["job_id"]))[-2:] == ["JOB_CLAIM_EXPIRED", "JOB_REQUEUED"]
    again = await queue.claim(worker_id="w2")
    assert again is not None and again["job_id"] == job["job_id"]


@pytest.mark.spec("Q4")
async def test_a_job_is_shown_with_its_result_once_it_has_one(queue: Ground) -> None:
    job, lease = await queue.running()
    assert (await queue.get(f"/jobs/{job['job_id']}"))["result"] is None
    await queue.post(
        f"/lease/{lease['lease_id']}/release", 200, status="SUCCEEDED", result_data={"path": "/x"}
    )
    result = (await queue.get(f"/jobs/{job['job_id']}"))["result"]
    assert (result["status"], result["result_data"], result["attempts"]) == (
        "SUCCEEDED",
        {"path": "/x"},
        1,
    )


@pytest.mark.spec("Q8", "X13")
async def test_a_history_that_is_too_long_says_that_its_beginning_is_left_out(
    queue: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, _ = await queue.running()
    for most, is_cut in ((4, False), (3, True)):
        monkeypatch.setattr("ksana.service.queue.jobs.MAX_EVENTS", most)
        told = await queue.get(f"/jobs/{job['job_id']}/events")
        names = [event["type"] for event in told["events"]]
        whole = ["JOB_SUBMITTED", "JOB_CLAIMED", "LEASE_GRANTED", "JOB_RUNNING"]
        assert (names, told["truncated"]) == (whole[-most:], is_cut)


@pytest.mark.spec("Q4", "X8")
async def test_an_unknown_job_is_404_and_an_impossible_id_400(queue: Ground) -> None:
    unknown = "00000000-0000-4000-8000-000000000000"
    assert (await queue.get(f"/jobs/{unknown}", 404))["code"] == "NOT_FOUND"
    assert (await queue.get(f"/jobs/{unknown}/events", 404))["code"] == "NOT_FOUND"
    assert (await queue.get(f"/jobs/{unknown}/explain", 404))["code"] == "NOT_FOUND"
    assert (await queue.get("/jobs/abc", 400))["code"] == "INVALID_ID"
    await queue.post(f"/jobs/{unknown}/status", 404, state="PREPARING")
    await queue.post(f"/jobs/{unknown}/cancel", 404)


@pytest.mark.spec("Q5", "Q8")
async def test_a_worker_reports_its_way_and_extends_its_claim(queue: Ground) -> None:
    job_id = (await queue.submit())["job_id"]
    await queue.claim()
    await queue.clock.advance(30 * SECOND)
    job = (
        await queue.post(
            f"/jobs/{job_id}/status", 200, state="PREPARING", note="warming", progress=0.15
        )
    )["job"]
    assert (job["state"], job["note"], job["progress"]) == ("PREPARING", "warming", 0.15)
    assert job["claim_expires_at"] == "2026-01-01T00:01:30Z"
    job = (await queue.post(f"/jobs/{job_id}/status", 200, state="PREPARING", note="warm"))["job"]
    assert (job["note"], job["progress"]) == ("warm", 0.15)
    await queue.post(f"/jobs/{job_id}/status", 200, state="LEASE_PENDING", worker_id="w1")
    assert await queue.events(job_id) == [
        "JOB_SUBMITTED",
        "JOB_CLAIMED",
        "JOB_PREPARING",
        "JOB_LEASE_PENDING",
    ]
    answer = await queue.post(f"/jobs/{job_id}/status", 409, state="PREPARING")
    assert (answer["code"], answer["current"]["state"]) == ("ILLEGAL_TRANSITION", "LEASE_PENDING")


@pytest.mark.spec("Q5", "X12")
async def test_reports_that_are_not_the_holders_or_not_legal_are_refused(queue: Ground) -> None:
    job_id = (await queue.submit())["job_id"]
    assert (await queue.post(f"/jobs/{job_id}/status", 409, state="PREPARING"))[
        "code"
    ] == "ILLEGAL_TRANSITION"
    await queue.claim()
    assert (await queue.post(f"/jobs/{job_id}/status", 409, state="PREPARING", worker_id="w2"))[
        "code"
    ] == "CLAIM_LOST"
    for state in ("RUNNING", "DONE", "QUEUED"):
        assert (await queue.post(f"/jobs/{job_id}/status", 409, state=state))[
            "code"
        ] == "ILLEGAL_TRANSITION"
    assert (await queue.post(f"/jobs/{job_id}/status", 400, state="SLEEPING"))["field"] == "state"
    assert (await queue.post(f"/jobs/{job_id}/status", 400, progress=1.5))["field"] == "progress"
    await queue.post(f"/jobs/{job_id}/cancel", 200)
    assert (await queue.post(f"/jobs/{job_id}/status", 409, state="CANCELED"))[
        "code"
    ] == "ILLEGAL_TRANSITION"


@pytest.mark.spec("Q6")
@pytest.mark.parametrize("state", ["QUEUED", "CLAIMED", "PREPARING", "LEASE_PENDING"])
async def test_a_job_that_does_not_run_is_cancelled_at_once(queue: Ground, state: str) -> None:
    job_id = (await queue.submit())["job_id"]
    if state != "QUEUED":
        await queue.claim()
    if state in ("PREPARING", "LEASE_PENDING"):
        await queue.post(f"/jobs/{job_id}/status", 200, state=state)
    job = (await queue.post(f"/jobs/{job_id}/cancel", 200, reason="user aborted"))["job"]
    assert (job["state"], job["cancel_reason"]) == ("CANCELED", "user aborted")
    assert (await queue.post(f"/jobs/{job_id}/cancel", 409))["code"] == "ILLEGAL_TRANSITION"
    assert await queue.claim() is None
    assert (await queue.get("/stats/snapshot"))["jobs"]["queued"] == 0


@pytest.mark.spec("Q7")
async def test_a_listing_is_stable_while_jobs_come_and_go(queue: Ground) -> None:
    jobs = [(await queue.submit(payload=n))["job_id"] for n in range(7)]
    page = await queue.get("/jobs?limit=3")
    seen = [job["job_id"] for job in page["jobs"]]
    await queue.submit(payload="new")
    await queue.post(f"/jobs/{jobs[3]}/cancel", 200)
    while page["next_cursor"] is not None:
        page = await queue.get(f"/jobs?limit=3&cursor={page['next_cursor']}")
        seen += [job["job_id"] for job in page["jobs"]]
    assert seen == jobs[::-1]


@pytest.mark.spec("Q7", "X13")
async def test_a_listing_is_filtered_and_its_bounds_are_checked(queue: Ground) -> None:
    await queue.submit(addon_id="a", job_type="one")
    await queue.clock.advance(10 * SECOND)
    await queue.submit(addon_id="b", job_type="two")
    await queue.claim(addon_id="b")

    async def count(query: str) -> int:
        return len((await queue.get(f"/jobs?{query}"))["jobs"])

    assert await count("state=QUEUED") == 1
    assert await count("state=CLAIMED&addon_id=b&job_type=two") == 1
    assert await count("addon_id=b&job_type=one") == 0
    assert await count("created_after=2026-01-01T00:00:05Z") == 1
    assert await count("created_before=2026-01-01T00:00:05Z") == 1
    for query in (
        "limit=501",
        "limit=0",
        "state=ASLEEP",
        "cursor=zz",
        "created_after=yesterday",
        "colour=red",
    ):
        assert (await queue.get(f"/jobs?{query}", 400))["field"] == query.partition("=")[0]


@pytest.mark.spec("B1")
async def test_a_waiting_job_says_why_it_waits(queue: Ground) -> None:
    async def reasons(job_id: str) -> list[str]:
        answer = await queue.get(f"/jobs/{job_id}/explain")
        assert answer["summary"].endswith(".")
        return [reason["code"] for reason in answer["reasons"]]

    future = await queue.submit(run_at="2026-01-01T01:00:00Z")
    assert await reasons(future["job_id"]) == ["NOT_DUE"]
    first = await queue.submit(cost_units=80)
    second = await queue.submit(cost_units=80, constraints={"gpu_required": True})
    assert await reasons(first["job_id"]) == ["NO_CLAIM"]
    assert await reasons(second["job_id"]) == ["IN_LINE", "NEEDS"]
    assert (await queue.get(f"/jobs/{second['job_id']}/explain"))["position"] == 2
    job, lease = await queue.running(cost_units=80)
    assert job["job_id"] == first["job_id"]
    assert await reasons(job["job_id"]) == ["RUNNING"]
    assert (await reasons(second["job_id"]))[-1] == "CAPACITY_EXCEEDED"
    await queue.post(f"/lease/{lease['lease_id']}/release", 200, status="FAILED", error="no disk")
    answer = await queue.get(f"/jobs/{job['job_id']}/explain")
    assert answer["reasons"][0]["code"] == "ATTEMPTS_USED"
    assert "no disk" in answer["summary"]
