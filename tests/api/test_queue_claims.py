"""Claims on queue jobs over HTTP: who gets what, in which order, and who waits."""

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
