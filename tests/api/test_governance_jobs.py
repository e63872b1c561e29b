"""Governance jobs through the API: every endpoint, every refusal."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from ksana.domain.governance.records import Rules
from tests.api.governance_ground import SECOND, GovernanceGround, open_governance


@pytest.fixture
async def ground(tmp_path: Path) -> AsyncIterator[GovernanceGround]:
    async with open_governance(tmp_path) as ground:
        yield ground


SEED_MEMBERS = {
    "job_id",
    "object_type",
    "object_id",
    "action",
    "run_at",
    "priority",
    "attempt",
    "max_attempts",
    "idempotency_key",
    "status",
    "last_error",
}


@pytest.mark.spec("G1", "X7")
async def test_a_job_is_answered_in_the_shape_of_the_contract(ground: GovernanceGround) -> None:
    at = ground.at(3600)
    job = await ground.enqueue("cg_123", object_type="cognition", action="revalidate", run_at=at)
    assert job.keys() >= SEED_MEMBERS
    assert job["job_id"].startswith("job_")
    assert job["idempotency_key"] == f"cg_123:revalidate:{at}"
    assert (job["status"], job["attempt"], job["max_attempts"]) == ("queued", 0, 3)
    assert job["priority"] == "medium"
    assert "lease_token" not in job
    assert await ground.get(f"/jobs/{job['job_id']}") == job


@pytest.mark.spec("G1")
async def test_the_same_job_again_is_the_existing_one(ground: GovernanceGround) -> None:
    job = await ground.enqueue()
    again = await ground.enqueue("m1", 200)
    assert again == {**job, "duplicate": True}
    assert len(await ground.pull()) == 1
    # Once it is over it still is the same: nothing is queued a second time.
    assert (await ground.enqueue("m1", 200))["status"] == "running"


@pytest.mark.spec("G1")
async def test_a_past_time_is_refused_or_due_at_once_where_allowed(
    ground: GovernanceGround,
) -> None:
    refused = await ground.enqueue("m1", 400, run_at=ground.at(-2))
    assert refused["field"] == "run_at"
    await ground.enqueue("m1", run_at=ground.at(-1))
    await ground.enqueue("m2", run_at=ground.at(-86400), allow_past=True)
    assert {job["object_id"] for job in await ground.pull()} == {"m1", "m2"}


@pytest.mark.spec("G1", "X8", "X9")
@pytest.mark.parametrize(
    ("member", "value"),
    [
        ("object_type", "dream"),
        ("action", "forget"),
        ("priority", "urgent"),
        ("run_at", "yesterday"),
        ("run_at", "2026-01-01T00:00:00"),
        ("object_id", ""),
        ("object_id", "x" * 201),
        ("max_attempts", 0),
        ("colour", "red"),
    ],
)
async def test_a_job_that_cannot_be_is_refused_by_name(
    ground: GovernanceGround, member: str, value: Any
) -> None:
    refused = await ground.enqueue("m1", 400, **{member: value})
    assert (refused["code"], refused["field"]) == ("INVALID_ARGUMENT", member)


@pytest.mark.spec("G2")
async def test_only_what_is_due_is_handed_out_and_held(ground: GovernanceGround) -> None:
    await ground.enqueue("later", run_at=ground.at(60))
    await ground.enqueue("now")
    (job,) = await ground.pull(lease_sec=30)
    assert (job["object_id"], job["status"], job["worker_id"]) == ("now", "running", "w1")
    assert job["lease_expires_at"] == ground.at(30)
    assert job["lease_token"]
    assert await ground.pull() == []
    await ground.clock.advance(60 * SECOND)
    assert "later" in [job["object_id"] for job in await ground.pull()]


@pytest.mark.spec("G2")
async def test_a_lease_lasts_two_minutes_by_default(ground: GovernanceGround) -> None:
    await ground.enqueue()
    (job,) = await ground.pull()
    assert job["lease_expires_at"] == ground.at(120)


@pytest.mark.spec("G2")
async def test_now_chooses_and_must_not_be_ahead_of_ours(
    ground: GovernanceGround, tmp_path: Path
) -> None:
    await ground.enqueue("past", run_at=ground.at(-10), allow_past=True)
    await ground.enqueue("soon", run_at=ground.at(4))
    assert await ground.pull(now=ground.at(-20)) == []
    refused = await ground.post("/jobs/pull", 400, worker_id="w1", now=ground.at(6))
    assert refused["field"] == "now"
    jobs = await ground.pull(now=ground.at(5))
    assert [job["object_id"] for job in jobs] == ["past", "soon"]
    assert jobs[0]["lease_expires_at"] == ground.at(120)  # by our clock, not by theirs
    (tmp_path / "simulated").mkdir()
    rules = Rules(allow_simulation=True)
    async with open_governance(tmp_path / "simulated", rules) as simulated:
        await simulated.enqueue("far", run_at=simulated.at(86400))
        assert len(await simulated.pull(now=simulated.at(86400))) == 1


@pytest.mark.spec("G2")
async def test_a_pull_waits_for_a_job_that_comes_or_falls_due(ground: GovernanceGround) -> None:
    waiting = asyncio.create_task(ground.pull(wait_sec=30))
    await ground.clock.settle()
    await ground.enqueue("fresh")
    assert [job["object_id"] for job in await waiting] == ["fresh"]
    await ground.enqueue("later", run_at=ground.at(7))
    waiting = asyncio.create_task(ground.pull(wait_sec=30))
    await ground.clock.advance(8 * SECOND)
    assert [job["object_id"] for job in await waiting] == ["later"]
    waiting = asyncio.create_task(ground.pull(wait_sec=5))
    await ground.clock.advance(6 * SECOND)
    assert await waiting == []


@pytest.mark.spec("G2", "X8")
@pytest.mark.parametrize(
    ("member", "value"),
    [
        ("limit", 0),
        ("limit", 501),
        ("lease_sec", 0),
        ("actions", ["forget"]),
        ("actions", []),
        ("object_types", []),
        ("object_types", ["dream"]),
        ("order", "age"),
        ("wait_sec", 31),
        ("now", "noon"),
        ("colour", "red"),
    ],
)
async def test_a_pull_that_cannot_be_is_refused_by_name(
    ground: GovernanceGround, member: str, value: Any
) -> None:
    refused = await ground.post("/jobs/pull", 400, **{"worker_id": "w1", member: value})
    assert refused["field"].startswith(member)


@pytest.mark.spec("G6")
async def test_jobs_are_listed_by_pages_and_filters(ground: GovernanceGround) -> None:
    for number in range(5):
        await ground.enqueue(f"m{number}", action="verify" if number % 2 else "decay")
    seen: list[str] = []
    path = "/jobs?limit=2"
    while True:
        page = await ground.get(path)
        seen += [job["object_id"] for job in page["jobs"]]
        if page["next_cursor"] is None:
            break
        path = f"/jobs?limit=2&cursor={page['next_cursor']}"
    assert seen == ["m4", "m3", "m2", "m1", "m0"]
    verify = await ground.get("/jobs?action=verify&status=queued")
    assert [job["object_id"] for job in verify["jobs"]] == ["m3", "m1"]
    assert (await ground.get("/jobs?status=lost", 400))["field"] == "status"
    assert (await ground.get("/jobs?cursor=x", 400))["field"] == "cursor"
    assert (await ground.get("/jobs/job_00000000", 404))["code"] == "NOT_FOUND"
    assert (await ground.get("/jobs/17", 400))["code"] == "INVALID_ID"


@pytest.mark.spec("G6")
async def test_dead_letters_are_counted_and_queued_again(ground: GovernanceGround) -> None:
    for number, action in enumerate(("decay", "decay", "archive")):
        await ground.enqueue(f"m{number}", action=action, max_attempts=1)
    for job in await ground.pull():
        await ground.post(
            f"/jobs/{job['job_id']}/fail", 200, error="x", lease_token=job["lease_token"]
        )
    sent = {"filter": {"action": "decay"}, "dry_run": True}
    assert await ground.post("/jobs/requeue", 200, **sent) == {
        "matched": 2,
        "requeued": 0,
        "dry_run": True,
    }
    assert await ground.pull() == []
    sent["dry_run"] = False
    assert (await ground.post("/jobs/requeue", 200, **sent))["requeued"] == 2
    assert len(await ground.pull()) == 2
    (left,) = (await ground.get("/jobs?status=dead_letter"))["jobs"]
    again = await ground.post(f"/jobs/{left['job_id']}/requeue")
    assert (again["status"], again["attempt"]) == ("queued", 0)
    refused = await ground.post(f"/jobs/{left['job_id']}/requeue", 409)
    assert refused["code"] == "ILLEGAL_TRANSITION"
