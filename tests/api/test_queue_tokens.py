"""Tokens of claims and leases through the real app: who holds a job proves it, and nobody else is
shown how."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.api.queue_ground import SECOND, Ground, open_queue


@pytest.fixture
async def queue(tmp_path: Path) -> AsyncIterator[Ground]:
    async with open_queue(tmp_path) as ground:
        yield ground


async def claimed_twice(queue: Ground, **more: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """One job as A and then B claimed it: A's claim ran out."""
    await queue.submit(**more)
    first = await queue.claim(worker_id="a")
    await queue.clock.advance(61 * SECOND)
    second = await queue.claim(worker_id="b")
    assert first is not None and second is not None
    assert first["job_id"] == second["job_id"]
    return first, second


@pytest.mark.fault("F12")
@pytest.mark.spec("Q3", "Q9", "X12")
async def test_a_zombie_gets_neither_the_lease_nor_the_end_of_anothers_job(queue: Ground) -> None:
    first, second = await claimed_twice(queue)
    job_id = first["job_id"]
    zombies: tuple[dict[str, Any], ...] = (
        {},
        {"claim_token": first["claim_token"]},
        {"worker_id": "a"},
        {"worker_id": "b", "claim_token": first["claim_token"]},
        {"claim_token": "0"},
        {"claim_token": "no token of ours"},
    )
    for proof in zombies:
        refused = await queue.post("/lease/request", 409, job_id=job_id, **proof)
        assert refused["code"] == "CLAIM_LOST", proof
        refused = await queue.post(f"/jobs/{job_id}/status", 409, state="PREPARING", **proof)
        assert refused["code"] == "CLAIM_LOST", proof
    answer = await queue.post(
        "/lease/request", 200, job_id=job_id, claim_token=second["claim_token"]
    )
    lease = answer["lease"]
    url = f"/lease/{lease['lease_id']}"
    for proof in ({}, {"lease_token": first["claim_token"]}, {"worker_id": "a"}):
        assert (await queue.post(f"{url}/heartbeat", 409, **proof))["code"] == "LEASE_LOST"
        refused = await queue.post(f"{url}/release", 409, status="SUCCEEDED", **proof)
        assert refused["code"] == "LEASE_LOST"
        item = {"lease_id": lease["lease_id"], "status": "SUCCEEDED", **proof}
        for brief in (False, True):
            batch = await queue.post("/lease/release-batch", 200, items=[item], brief=brief)
            assert batch["results"][0]["code"] == "LEASE_LOST"
    assert (await queue.job(job_id))["state"] == "RUNNING"
    proof = {"lease_token": lease["lease_token"]}
    await queue.post(f"{url}/heartbeat", 200, **proof)
    assert (await queue.post(f"{url}/release", 200, status="SUCCEEDED", **proof))["job"][
        "state"
    ] == "DONE"


@pytest.mark.spec("Q9", "X12")
async def test_a_worker_that_keeps_its_name_is_told_apart_by_its_token(queue: Ground) -> None:
    await queue.submit()
    first = await queue.claim(worker_id="w")
    await queue.clock.advance(61 * SECOND)
    second = await queue.claim(worker_id="w")
    assert first is not None and second is not None
    assert first["claim_token"] != second["claim_token"]
    body = {"job_id": first["job_id"], "worker_id": "w"}
    refused = await queue.post("/lease/request", 409, **body, claim_token=first["claim_token"])
    assert refused["code"] == "CLAIM_LOST"
    granted = await queue.post("/lease/request", 200, **body, claim_token=second["claim_token"])
    assert granted["approved"] is True
    again = await queue.post("/lease/request", 200, **body, claim_token=second["claim_token"])
    assert again["lease"] == granted["lease"]


@pytest.mark.spec("Q5", "Q9", "Q10", "Q11")
async def test_a_job_that_was_claimed_once_needs_no_proof(queue: Ground) -> None:
    job_id = (await queue.submit(max_attempts=2))["job_id"]
    await queue.claim()
    await queue.post(f"/jobs/{job_id}/status", 200, state="PREPARING")
    lease = (await queue.post("/lease/request", 200, job_id=job_id))["lease"]
    url = f"/lease/{lease['lease_id']}"
    await queue.post(f"{url}/heartbeat", 200)
    await queue.post(f"/jobs/{job_id}/status", 200, progress=0.5)
    body = {"status": "FAILED", "error": "no"}
    first = await queue.post(f"{url}/release", 200, **body)
    assert await queue.post(f"{url}/release", 200, **body) == first


@pytest.mark.spec("Q2", "Q9", "Q10", "Q16")
async def test_tokens_are_shown_to_the_holder_alone(queue: Ground) -> None:
    for _ in range(4):
        await queue.submit(cost_units=30)
    plain = await queue.post("/jobs/claim", 200, worker_id="w", limit=2)
    leased = await queue.post("/jobs/claim", 200, worker_id="w", lease=True, limit=1)
    short = await queue.post("/jobs/claim", 200, worker_id="w", lease=True, brief=True)
    granted = await queue.post("/lease/request", 200, job_id=plain["job"]["job_id"], worker_id="w")
    denied = await queue.post("/lease/request", 200, job_id=plain["jobs"][1]["job_id"])
    assert granted["approved"] and not denied["approved"]
    tokens = {
        *(job["claim_token"] for job in plain["jobs"]),
        leased["job"]["claim_token"],
        leased["leases"][0]["lease_token"],
        short["jobs"][0]["claim_token"],
        short["jobs"][0]["lease_token"],
        granted["lease"]["lease_token"],
    }
    assert all(len(token) == 16 for token in tokens)
    job_id, lease_id = plain["job"]["job_id"], granted["lease"]["lease_id"]
    beaten = await queue.post(f"/lease/{lease_id}/heartbeat", 200, worker_id="w")
    shown: list[Any] = [denied["holders"], beaten, await queue.get("/jobs")]
    for path in (
        f"/jobs/{job_id}",
        f"/jobs/{job_id}/events",
        f"/jobs/{job_id}/explain",
        f"/lease/{lease_id}",
    ):
        shown.append(await queue.get(path))
    shown.append((await queue.http.get("/api/v1/events")).text)
    for one in shown:
        assert not [token for token in tokens if token in str(one)]
        assert "_token" not in str(one)


@pytest.mark.spec("Q11")
async def test_a_worker_may_ask_for_no_other_attempt(queue: Ground) -> None:
    job, lease = await queue.running(max_attempts=5)
    url = f"/lease/{lease['lease_id']}/release"
    body = {"status": "FAILED", "error": "no such file", "retry": False}
    answer = await queue.post(url, 200, **body)
    assert (answer["job"]["state"], answer["job"]["attempts"]) == ("FAILED", 1)
    assert answer["result"]["error"] == "no such file"
    assert await queue.post(url, 200, **body) == answer
    assert (await queue.post(url, 409, **{**body, "retry": True}))["code"] == "LEASE_LOST"
    explained = await queue.get(f"/jobs/{job['job_id']}/explain")
    assert [reason["code"] for reason in explained["reasons"]] == ["NOT_RETRYABLE"]
    assert (await queue.get("/stats/snapshot"))["jobs"]["failed_last_24h"] == 1
    assert (await queue.events(job["job_id"]))[-2:] == ["LEASE_RELEASED", "JOB_FAILED"]


@pytest.mark.spec("Q6", "Q11")
async def test_a_cancelled_job_released_as_failed_is_canceled(queue: Ground) -> None:
    for retry in (True, False):
        job, lease = await queue.running(max_attempts=5)
        await queue.post(f"/jobs/{job['job_id']}/cancel", 200)
        answer = await queue.post(
            f"/lease/{lease['lease_id']}/release", 200, status="FAILED", retry=retry
        )
        assert answer["job"]["state"] == "CANCELED"
