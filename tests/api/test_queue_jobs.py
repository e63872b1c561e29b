"""Queue jobs through the real app: submit, claim, status, cancel, list, events."""

import asyncio
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


@pytest.mark.spec("Q2", "Q3")
async def test_a_claim_hands_out_one_job_and_then_none(queue: Ground) -> None:
    job = await queue.submit()
    claimed = await queue.claim(addon_id="visuals")
    assert claimed is not None
    assert (claimed["job_id"], claimed["state"], claimed["claimed_by"]) == (
        job["job_id"],
        "CLAIMED",
        "w1",
    )
    assert claimed["claim_expires_at"] == "2026-01-01T00:01:00Z"
    reply = await queue.http.post("/api/scheduler/jobs/claim", json={"worker_id": "w2"})
    assert (reply.status_code, reply.content) == (204, b"")


@pytest.mark.spec("Q2")
async def test_a_claim_of_many_answers_all_and_the_first(queue: Ground) -> None:
    jobs = [await queue.submit() for _ in range(3)]
    answer = await queue.post("/jobs/claim", 200, worker_id="w", limit=5)
    assert [job["job_id"] for job in answer["jobs"]] == [job["job_id"] for job in jobs]
    assert answer["job"] == answer["jobs"][0]


@pytest.mark.spec("Q2")
async def test_jobs_are_handed_out_by_priority_and_then_by_age(queue: Ground) -> None:
    names = ["LOW", "NORMAL", "URGENT", "HIGH", "NORMAL", "URGENT"]
    jobs = [await queue.submit(priority=name) for name in names]
    answer = await queue.post("/jobs/claim", 200, worker_id="w", limit=10)
    wanted = [jobs[n]["job_id"] for n in (2, 5, 3, 1, 4, 0)]
    assert [job["job_id"] for job in answer["jobs"]] == wanted


@pytest.mark.spec("Q2")
async def test_fairness_keys_take_turns_however_many_jobs_one_of_them_has(queue: Ground) -> None:
    for _ in range(6):
        await queue.submit(fairness_key="a")
    for _ in range(3):
        await queue.submit(fairness_key="b")
    await queue.submit(fairness_key="c")
    answer = await queue.post("/jobs/claim", 200, worker_id="w", limit=10)
    assert "".join(job["fairness_key"] for job in answer["jobs"]) == "abcababaaa"


@pytest.mark.spec("Q2")
@pytest.mark.parametrize(
    ("wants", "taken"),
    [
        ({"addon_id": "b"}, ["3"]),
        ({"accept_job_types": ["two", "three"]}, ["2", "3"]),
        ({"addon_id": "a", "accept_job_types": ["three"]}, []),
        ({"max_cost_units": 5}, ["1", "5"]),
        ({"constraints_capabilities": {"gpu_available": True}}, ["1", "2", "3", "4", "5"]),
        ({"constraints_capabilities": {"gpu_available": False}}, ["1", "2", "3", "5"]),
        ({}, ["1", "2", "3", "5"]),
        ({"constraints_capabilities": {"network_heavy": False}}, ["1", "2", "3"]),
    ],
)
async def test_a_worker_gets_only_what_it_takes(
    queue: Ground, wants: Any, taken: list[str]
) -> None:
    await queue.submit(addon_id="a", job_type="one", cost_units=1, payload="1")
    await queue.submit(addon_id="a", job_type="two", cost_units=20, payload="2")
    await queue.submit(addon_id="b", job_type="three", cost_units=20, payload="3")
    await queue.submit(
        addon_id="a", job_type="one", cost_units=20, payload="4", constraints={"gpu_required": True}
    )
    await queue.submit(
        addon_id="a", job_type="one", cost_units=5, payload="5", constraints={"network_heavy": True}
    )
    answer = await queue.post("/jobs/claim", None, worker_id="w", limit=10, **wants)
    assert [job["payload"] for job in (answer or {"jobs": []})["jobs"]] == taken


@pytest.mark.spec("Q2")
@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "worker_id"),
        ({"worker_id": "w", "limit": 0}, "limit"),
        ({"worker_id": "w", "wait_sec": 31}, "wait_sec"),
        ({"worker_id": "w", "colour": 1}, "colour"),
    ],
)
async def test_a_claim_that_makes_no_sense_is_refused(queue: Ground, body: Any, field: str) -> None:
    assert (await queue.post("/jobs/claim", 400, **body))["field"] == field


@pytest.mark.spec("Q2")
async def test_a_waiting_claim_wakes_when_a_job_it_takes_arrives(queue: Ground) -> None:
    waiting = asyncio.create_task(queue.claim(wait_sec=30, accept_job_types=["render"]))
    await queue.clock.settle()
    await queue.submit(job_type="other")
    await queue.clock.settle()
    assert not waiting.done()
    job = await queue.submit()
    claimed = await asyncio.wait_for(waiting, 5)
    assert claimed is not None
    assert claimed["job_id"] == job["job_id"]


@pytest.mark.spec("Q2")
async def test_a_waiting_claim_gives_up_when_its_time_is_over(queue: Ground) -> None:
    waiting = asyncio.create_task(queue.claim(wait_sec=10))
    await queue.clock.advance(9 * SECOND)
    assert not waiting.done()
    await queue.clock.advance(2 * SECOND)
    assert await asyncio.wait_for(waiting, 5) is None


@pytest.mark.fault("F17")
@pytest.mark.spec("Q1", "Q2")
async def test_a_job_with_a_time_waits_for_it_and_wakes_a_waiting_claim(queue: Ground) -> None:
    job = await queue.submit(run_at="2026-01-01T00:00:10Z")
    assert await queue.claim() is None
    waiting = asyncio.create_task(queue.claim(wait_sec=30))
    await queue.clock.advance(9 * SECOND)
    assert not waiting.done()
    await queue.clock.advance(2 * SECOND)
    claimed = await asyncio.wait_for(waiting, 5)
    assert claimed is not None
    assert claimed["job_id"] == job["job_id"]


@pytest.mark.spec("Q3", "Q8")
async def test_a_claim_that_runs_out_puts_the_job_back_in_its_place(queue: Ground) -> None:
    first = await queue.submit()
    await queue.submit()
    await queue.claim()
    await queue.clock.advance(61 * SECOND)
    job = await queue.job(first["job_id"])
    assert (job["state"], job["claimed_by"]) == ("QUEUED", None)
    assert await queue.events(first["job_id"]) == [
        "JOB_SUBMITTED",
        "JOB_CLAIMED",
        "JOB_CLAIM_EXPIRED",
        "JOB_REQUEUED",
    ]
    again = await queue.claim(worker_id="w2")
    assert again is not None
    assert again["job_id"] == first["job_id"]


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


@pytest.mark.spec("Q2", "Q16")
async def test_a_brief_claim_tells_of_each_job_what_is_not_usual(queue: Ground) -> None:
    await queue.submit(
        payload={"n": 1}, constraints={"gpu_heavy": True}, priority="HIGH", max_attempts=3
    )
    await queue.submit(payload=[2], constraints={})
    full, usual = (
        await queue.post("/jobs/claim", 200, worker_id="w", limit=5, lease=True, brief=True)
    )["jobs"]
    whole = await queue.job(full["job_id"])
    tokens = {"claim_token", "lease_token"}
    assert tokens <= full.keys() and not tokens & whole.keys()
    assert {name: whole[name] for name in full.keys() - tokens}.items() <= full.items()
    assert (
        full["constraints"] == {"gpu_heavy": True}
        and full["priority"] == "HIGH"
        and full["max_attempts"] == 3
    )
    assert usual["payload"] == [2] and usual["state"] == "RUNNING" and usual["lease_id"]
    assert not {"constraints", "priority", "max_attempts", "run_at", "fairness_key"} & set(usual)
