"""Heartbeats and releases of leases over HTTP, and workers that come too late."""

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


@pytest.mark.fault("F10")
@pytest.mark.spec("Q10")
async def test_a_heartbeat_keeps_the_lease_and_carries_progress(queue: Ground) -> None:
    job, lease = await queue.running()
    await queue.clock.advance(20 * SECOND)
    answer = await queue.post(
        f"/lease/{lease['lease_id']}/heartbeat",
        200,
        job_id=job["job_id"],
        worker_id="w1",
        progress=0.65,
        message="step 23",
    )
    assert answer["lease"]["expires_at"] == "2026-01-01T00:00:50Z"
    assert (answer["job"]["progress"], answer["job"]["note"]) == (0.65, "step 23")
    await queue.clock.advance(29 * SECOND)
    assert (await queue.job(job["job_id"]))["state"] == "RUNNING"
    assert (await queue.post(f"/lease/{lease['lease_id']}/heartbeat", 409, worker_id="w2"))[
        "code"
    ] == "LEASE_LOST"
    await queue.post("/lease/00000000-0000-4000-8000-000000000000/heartbeat", 404)
    await queue.get("/lease/00000000-0000-4000-8000-000000000000", 404)
    other = "00000000-0000-4000-8000-000000000000"
    assert (await queue.post(f"/lease/{lease['lease_id']}/heartbeat", 400, job_id=other))[
        "field"
    ] == "job_id"


@pytest.mark.spec("Q6", "Q10", "Q11")
async def test_a_running_job_is_told_to_stop_and_keeps_its_result(queue: Ground) -> None:
    job, lease = await queue.running(max_attempts=5)
    asked = (await queue.post(f"/jobs/{job['job_id']}/cancel", 200, reason="enough"))["job"]
    assert (asked["state"], asked["cancel_requested"]) == ("RUNNING", True)
    beat = await queue.post(f"/lease/{lease['lease_id']}/heartbeat", 200)
    assert beat["job"]["cancel_requested"] is True
    answer = await queue.post(
        f"/lease/{lease['lease_id']}/release",
        200,
        status="FAILED",
        result_data=[1],
        error="stopped",
    )
    assert answer["job"]["state"] == "CANCELED"
    assert (answer["result"]["status"], answer["result"]["result_data"]) == ("CANCELED", [1])
    assert (await queue.events(job["job_id"]))[-3:] == [
        "JOB_CANCEL_REQUESTED",
        "LEASE_RELEASED",
        "JOB_CANCELED",
    ]


@pytest.mark.spec("Q6", "Q12")
async def test_a_cancelled_job_whose_lease_runs_out_is_canceled(queue: Ground) -> None:
    job, _ = await queue.running(max_attempts=5)
    await queue.post(f"/jobs/{job['job_id']}/cancel", 200)
    await queue.clock.advance(31 * SECOND)
    assert (await queue.job(job["job_id"]))["state"] == "CANCELED"


@pytest.mark.spec("Q11")
@pytest.mark.parametrize(
    ("status", "state"),
    [("SUCCEEDED", "DONE"), ("FAILED", "FAILED"), ("CANCELED", "CANCELED"), ("TIMEOUT", "TIMEOUT")],
)
async def test_a_release_ends_the_job_and_frees_the_units(
    queue: Ground, status: str, state: str
) -> None:
    job, lease = await queue.running()
    body = {
        "job_id": job["job_id"],
        "worker_id": "w1",
        "status": status,
        "result_data": {"a": 1},
        "metrics": {"ms": 5},
    }
    answer = await queue.post(f"/lease/{lease['lease_id']}/release", 200, **body)
    assert (answer["lease"]["state"], answer["job"]["state"], answer["result"]["status"]) == (
        "RELEASED",
        state,
        status,
    )
    assert await queue.used() == 0
    assert await queue.post(f"/lease/{lease['lease_id']}/release", 200, **body) == answer
    assert (await queue.events(job["job_id"]))[-2:] == ["LEASE_RELEASED", f"JOB_{state}"]
    other = "FAILED" if status != "FAILED" else "SUCCEEDED"
    refused = await queue.post(
        f"/lease/{lease['lease_id']}/release", 409, **{**body, "status": other}
    )
    assert (refused["code"], refused["current"]["state"]) == ("LEASE_LOST", "RELEASED")
    assert (await queue.post(f"/lease/{lease['lease_id']}/heartbeat", 409))["code"] == "LEASE_LOST"


@pytest.mark.spec("Q11")
async def test_a_release_must_say_how_it_ended(queue: Ground) -> None:
    _, lease = await queue.running()
    assert (await queue.post(f"/lease/{lease['lease_id']}/release", 400))["field"] == "status"
    assert (await queue.post(f"/lease/{lease['lease_id']}/release", 400, status="OK"))[
        "field"
    ] == "status"
    await queue.post("/lease/00000000-0000-4000-8000-000000000000/release", 404, status="FAILED")
    stranger = await queue.post(
        f"/lease/{lease['lease_id']}/release", 409, status="FAILED", worker_id="w9"
    )
    assert stranger["code"] == "LEASE_LOST"
    long = await queue.post(
        f"/lease/{lease['lease_id']}/release", 200, status="FAILED", error="x" * 5000, colour="kept"
    )
    assert len(long["result"]["error"]) == 1024


@pytest.mark.spec("Q11", "Q8")
async def test_a_failed_job_is_tried_again_after_a_growing_rest(queue: Ground) -> None:
    job, lease = await queue.running(max_attempts=3)
    for attempt, rest in ((1, 5), (2, 10)):
        url = f"/lease/{lease['lease_id']}/release"
        answer = await queue.post(url, 200, status="FAILED", error="boom", worker_id="w1")
        assert (answer["job"]["state"], answer["job"]["attempts"], answer["result"]) == (
            "QUEUED",
            attempt,
            None,
        )
        assert await queue.claim() is None
        await queue.clock.advance((rest - 1) * SECOND)
        assert await queue.claim() is None
        await queue.clock.advance(1 * SECOND)
        again = await queue.claim()
        assert again is not None
        assert again["job_id"] == job["job_id"]
        lease = (await ask(queue, job["job_id"], worker_id="w1"))["lease"]
    answer = await queue.post(
        f"/lease/{lease['lease_id']}/release", 200, status="FAILED", error="boom", worker_id="w1"
    )
    assert (answer["job"]["state"], answer["job"]["attempts"]) == ("FAILED", 3)
    assert (await queue.events(job["job_id"])).count("JOB_REQUEUED") == 2


@pytest.mark.spec("Q11", "Q12")
async def test_a_late_worker_is_refused_everywhere_even_before_the_sweep(tmp_path: Path) -> None:
    async with open_queue(tmp_path, has_sweep=False) as queue:
        job, lease = await queue.running()
        await queue.clock.advance(30 * SECOND)
        url = f"/lease/{lease['lease_id']}"
        assert (await queue.post(f"{url}/heartbeat", 409))["code"] == "LEASE_LOST"
        assert (await queue.post(f"/jobs/{job['job_id']}/status", 409, progress=0.5))[
            "code"
        ] == "LEASE_LOST"
        assert (await queue.post(f"{url}/release", 409, status="SUCCEEDED", result_data=1))[
            "code"
        ] == "LEASE_LOST"
        shown = await queue.get(f"/jobs/{job['job_id']}")
        assert (shown["job"]["state"], shown["result"]["result_data"]) == ("TIMEOUT", None)
        assert (await queue.get(url))["lease"]["state"] == "EXPIRED"
        assert await queue.used() == 0
        assert (await queue.post(f"{url}/release", 409, status="SUCCEEDED", result_data=1))[
            "code"
        ] == "LEASE_LOST"


async def claim_all(queue: Ground, worker_id: str, **more: Any) -> dict[str, str]:
    """Claim a thousand jobs with their leases; job ids by lease id."""
    found: dict[str, str] = {}
    for _ in range(2):
        answer = await queue.post(
            "/jobs/claim", 200, worker_id=worker_id, limit=500, lease=True, **more
        )
        found |= {lease["lease_id"]: lease["job_id"] for lease in answer["leases"]}
    assert len(found) == 1000
    return found


async def release_all(
    queue: Ground, leases: list[str], brief: bool, **said: Any
) -> list[dict[str, Any]]:
    items = [{"lease_id": lease_id, **said} for lease_id in leases]
    halves = [
        await queue.post("/lease/release-batch", 200, items=part, brief=brief)
        for part in (items[:500], items[500:])
    ]
    return [result for half in halves for result in half["results"]]


@pytest.mark.spec("Q5", "Q10", "Q11", "Q12")
async def test_a_thousand_zombies_are_refused_everywhere_and_change_no_result(
    tmp_path: Path,
) -> None:
    async with open_queue(tmp_path, Limits(1000)) as queue:
        job = {"addon_id": "a", "job_type": "t", "cost_units": 1, "max_attempts": 2}
        await queue.post("/jobs/submit-batch", 201, jobs=[job] * 1000)
        zombies = await claim_all(queue, "z")
        await queue.clock.advance(31 * SECOND)
        heirs = await claim_all(queue, "heir", ttl_sec=3600)
        ended = list(heirs)[::2]  # half of the jobs have ended by now, half still run
        settled = await release_all(
            queue, ended, True, status="SUCCEEDED", result_data="right", worker_id="heir"
        )
        assert {result["job_state"] for result in settled} == {"DONE"}
        for lease_id, job_id in zombies.items():
            for path, body in (
                (f"/lease/{lease_id}/heartbeat", {"worker_id": "z", "progress": 0.9}),
                (f"/jobs/{job_id}/status", {"worker_id": "z", "progress": 0.9}),
                (
                    f"/lease/{lease_id}/release",
                    {"worker_id": "z", "status": "SUCCEEDED", "result_data": "wrong"},
                ),
            ):
                await queue.post(path, 409, **body)
        for brief in (False, True):
            refused = await release_all(
                queue, list(zombies), brief, status="SUCCEEDED", result_data="wrong"
            )
            assert [(result["status"], result["code"]) for result in refused] == [
                (409, "LEASE_LOST")
            ] * 1000
        assert await queue.used() == 500
        left = [lease_id for lease_id in heirs if lease_id not in set(ended)]
        assert all(
            "job" in one
            for one in await release_all(
                queue, left, False, status="SUCCEEDED", result_data="right", worker_id="heir"
            )
        )
        told = await queue.store.read(
            lambda tx: [tx.jobs.find_job(job_id) for job_id in heirs.values()]
        )
        assert {(one.state, one.result_json, one.progress, one.attempts) for one in told} == {
            ("DONE", '"right"', None, 2)
        }
        snapshot = await queue.get("/stats/snapshot")
        assert snapshot["capacity"]["used"] == 0
        assert snapshot["leases"] == {"active": 0, "expired_last_24h": 1000}


@pytest.mark.spec("Q9", "X12")
async def test_a_lease_in_force_is_answered_to_nobody_but_its_holder(queue: Ground) -> None:
    job, lease = await queue.running(max_attempts=2)
    job_id = job["job_id"]
    assert (await queue.post("/lease/request", 409, job_id=job_id))["code"] == "LEASE_LOST"
    assert (await queue.post("/lease/request", 409, job_id=job_id, worker_id="z"))[
        "code"
    ] == "CLAIM_LOST"
    assert (await ask(queue, job_id, worker_id="w1"))["lease"]["lease_id"] == lease["lease_id"]
    await queue.clock.advance(31 * SECOND)
    assert (await queue.claim(worker_id="w2")) is not None
    # Claimed a second time: who sends neither a name nor a token may be the first worker.
    assert (await queue.post("/lease/request", 409, job_id=job_id))["code"] == "CLAIM_LOST"
    assert (await ask(queue, job_id, worker_id="w2"))["approved"]


@pytest.mark.spec("Q12", "Q8")
async def test_a_lease_that_runs_out_queues_the_job_again_while_attempts_are_left(
    queue: Ground,
) -> None:
    job, lease = await queue.running(max_attempts=2)
    await queue.clock.advance(31 * SECOND)
    assert (await queue.job(job["job_id"]))["state"] == "QUEUED"
    assert (await queue.get(f"/lease/{lease['lease_id']}"))["lease"]["state"] == "EXPIRED"
    assert (await queue.events(job["job_id"]))[-2:] == ["LEASE_EXPIRED", "JOB_REQUEUED"]
    assert await queue.claim() is not None
    assert (await ask(queue, job["job_id"], worker_id="w1"))["approved"] is True
    await queue.clock.advance(31 * SECOND)
    ended = await queue.get(f"/jobs/{job['job_id']}")
    assert (ended["job"]["state"], ended["result"]["status"], ended["job"]["attempts"]) == (
        "TIMEOUT",
        "TIMEOUT",
        2,
    )
    assert (await queue.events(job["job_id"]))[-2:] == ["LEASE_EXPIRED", "JOB_TIMEOUT"]
