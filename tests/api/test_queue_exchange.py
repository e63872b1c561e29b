"""Releases that claim what the worker goes on with, over HTTP."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.api.queue_ground import SECOND, Ground, open_queue

pytestmark = pytest.mark.spec("Q11", "Q16")

TOTAL = 100


@pytest.fixture
async def queue(tmp_path: Path) -> AsyncIterator[Ground]:
    async with open_queue(tmp_path) as ground:
        yield ground
        await check_capacity(ground)


async def check_capacity(queue: Ground) -> None:
    """Whatever a test did: what is used is what the active leases hold."""
    snapshot = await queue.get("/stats/snapshot")
    leases = (await queue.get("/leases?limit=500"))["leases"]
    assert snapshot["capacity"]["used"] == sum(lease["cost_units"] for lease in leases)
    assert snapshot["leases"]["active"] == len(leases)


def wanted(**more: Any) -> dict[str, Any]:
    """A claim with lease."""
    return {"worker_id": "w1", "lease": True, **more}


async def release(queue: Ground, lease: dict[str, Any], code: int = 200, /, **body: Any) -> Any:
    given = {"status": "SUCCEEDED", "lease_token": lease["lease_token"]}
    return await queue.post(f"/lease/{lease['lease_id']}/release", code, **given | body)


async def release_batch(
    queue: Ground, *leases: dict[str, Any], code: int = 200, **body: Any
) -> Any:
    items = [
        {"lease_id": one["lease_id"], "lease_token": one["lease_token"], "status": "SUCCEEDED"}
        for one in leases
    ]
    return await queue.post("/lease/release-batch", code, items=items, **body)


async def state_of(queue: Ground, job: dict[str, Any]) -> str:
    return str((await queue.job(job["job_id"]))["state"])


async def test_a_release_answers_what_it_did_and_what_was_claimed_with_it(queue: Ground) -> None:
    job, lease = await queue.running(cost_units=TOTAL)
    after = await queue.submit(cost_units=TOTAL)
    answer = await release(queue, lease, result_data=[1], next=wanted())
    assert (answer["job"]["job_id"], answer["job"]["state"]) == (job["job_id"], "DONE")
    assert (answer["lease"]["state"], answer["result"]["result_data"]) == ("RELEASED", [1])
    claimed = answer["next"]
    assert sorted(claimed) == ["job", "lease", "leases"]
    assert (claimed["job"]["job_id"], claimed["job"]["state"]) == (after["job_id"], "RUNNING")
    assert claimed["lease"]["lease_token"] != lease["lease_token"]
    assert await queue.used() == TOTAL
    assert (await release(queue, claimed["lease"]))["job"]["state"] == "DONE"
    assert await queue.used() == 0


@pytest.mark.spec("Q2")
async def test_many_are_claimed_in_either_form(queue: Ground) -> None:
    _, lease = await queue.running()
    jobs = [await queue.submit() for _ in range(4)]
    whole = (await release(queue, lease, next=wanted(limit=2)))["next"]
    assert [job["job_id"] for job in whole["jobs"]] == [job["job_id"] for job in jobs[:2]]
    assert len(whole["leases"]) == 2
    compact = (await release(queue, whole["lease"], next=wanted(limit=2, brief=True)))["next"]
    alone = await queue.post("/jobs/claim", 204, **wanted())
    assert alone is None, "all four are out"
    assert [job["job_id"] for job in compact["jobs"]] == [job["job_id"] for job in jobs[2:]]
    assert all(job["lease_id"] for job in compact["jobs"])
    assert await queue.used() == 30


@pytest.mark.spec("Q2")
async def test_a_brief_claim_of_one_is_a_list_of_one(queue: Ground) -> None:
    _, lease = await queue.running()
    after = await queue.submit(payload={"n": 1})
    claimed = (await release(queue, lease, next=wanted(brief=True)))["next"]
    assert sorted(claimed) == ["jobs"]
    [job] = claimed["jobs"]
    assert (job["job_id"], job["state"], job["payload"]) == (after["job_id"], "RUNNING", {"n": 1})
    assert (await release(queue, job))["job"]["state"] == "DONE"


async def test_without_jobs_next_is_null_and_unasked_it_is_not_there(queue: Ground) -> None:
    _, lease = await queue.running()
    assert (await release(queue, lease, next=wanted()))["next"] is None
    _, lease = await queue.running()
    assert "next" not in await release(queue, lease)
    _, lease = await queue.running()
    assert "next" not in await release(queue, lease, next=None)
    _, lease = await queue.running()
    assert (await release_batch(queue, lease, brief=True, next=wanted()))["next"] is None
    _, lease = await queue.running()
    assert sorted(await release_batch(queue, lease, brief=True)) == ["results"]


async def test_a_batch_releases_and_claims(queue: Ground) -> None:
    leases = [(await queue.running(cost_units=50))[1] for _ in range(2)]
    after = [await queue.submit(cost_units=30) for _ in range(4)]
    answer = await release_batch(queue, *leases, brief=True, next=wanted(limit=9, brief=True))
    assert [one["job_state"] for one in answer["results"]] == ["DONE", "DONE"]
    taken = [job["job_id"] for job in answer["next"]["jobs"]]
    assert taken == [job["job_id"] for job in after[:3]], "as many as fit"
    assert await queue.used() == 90


@pytest.mark.spec("Q2")
async def test_a_claim_without_lease_goes_with_a_release(queue: Ground) -> None:
    _, lease = await queue.running()
    after = await queue.submit()
    claimed = (await release(queue, lease, next={"worker_id": "w1"}))["next"]
    assert (claimed["job"]["job_id"], claimed["job"]["state"]) == (after["job_id"], "CLAIMED")
    assert claimed["job"]["claim_token"]
    assert await queue.used() == 0


@pytest.mark.parametrize(
    ("next_", "field"),
    [
        (wanted(wait_sec=1), "next.wait_sec"),
        (wanted(limit=2, ahead=3), "next.ahead"),
        ({"worker_id": "w1", "limit": 2, "ahead": 1}, "next.ahead"),
        (wanted(limit=0), "next.limit"),
        (wanted(limit=501), "next.limit"),
        ({"lease": True}, "next.worker_id"),
        (wanted(colour=1), "next.colour"),
    ],
)
async def test_a_claim_that_cannot_be_made_refuses_the_whole(
    queue: Ground, next_: dict[str, Any], field: str
) -> None:
    job, lease = await queue.running()
    after = await queue.submit()
    for refused in (
        await release(queue, lease, 400, next=next_),
        await release_batch(queue, lease, code=400, brief=True, next=next_),
    ):
        assert (refused["code"], refused["field"]) == ("INVALID_ARGUMENT", field)
    assert await state_of(queue, job) == "RUNNING"
    assert await state_of(queue, after) == "QUEUED"


async def test_a_batch_that_claims_is_answered_compactly_and_releases_something(
    queue: Ground,
) -> None:
    job, lease = await queue.running()
    for refused in (
        await release_batch(queue, lease, code=400, next=wanted()),
        await release_batch(queue, code=400, brief=True, next=wanted()),
    ):
        assert (refused["code"], refused["field"]) == ("INVALID_ARGUMENT", "next")
    assert await state_of(queue, job) == "RUNNING"


@pytest.mark.fault("F12")
@pytest.mark.parametrize("how", ["another's", "expired", "ended otherwise"])
async def test_who_lost_its_lease_claims_nothing(queue: Ground, how: str) -> None:
    _, lease = await queue.running()
    if how == "another's":
        lease = {**lease, "lease_token": "1"}
    elif how == "expired":
        await queue.clock.advance(31 * SECOND)
    else:
        await release(queue, lease, status="FAILED")
    after = await queue.submit()
    refused = await release(queue, lease, 409, next=wanted())
    assert refused["code"] == "LEASE_LOST"
    answer = await release_batch(queue, lease, brief=True, next=wanted())
    assert (answer["results"][0]["code"], answer["next"]) == ("LEASE_LOST", None)
    assert await state_of(queue, after) == "QUEUED"


@pytest.mark.fault("F12")
@pytest.mark.spec("Q12")
async def test_a_lease_that_ran_out_claims_nothing_even_before_the_sweep(tmp_path: Path) -> None:
    async with open_queue(tmp_path, has_sweep=False) as queue:
        job, lease = await queue.running(cost_units=TOTAL)
        after = await queue.submit(cost_units=TOTAL)
        await queue.clock.advance(30 * SECOND)
        assert (await release(queue, lease, 409, next=wanted()))["code"] == "LEASE_LOST"
        assert (await state_of(queue, job), await state_of(queue, after)) == ("TIMEOUT", "QUEUED")
        assert await queue.used() == 0
        await check_capacity(queue)


async def test_one_lease_that_is_not_lost_is_enough(queue: Ground) -> None:
    leases = [(await queue.running())[1] for _ in range(2)]
    after = await queue.submit()
    stale, other = ({**lease, "lease_token": "1"} for lease in leases)
    answer = await release_batch(queue, stale, other, brief=True, next=wanted())
    assert [one["code"] for one in answer["results"]] == ["LEASE_LOST"] * 2
    assert answer["next"] is None
    assert await state_of(queue, after) == "QUEUED"
    answer = await release_batch(queue, stale, leases[1], brief=True, next=wanted())
    assert [one.get("code") for one in answer["results"]] == ["LEASE_LOST", None]
    assert answer["next"]["job"]["job_id"] == after["job_id"]


async def test_the_same_release_again_is_answered_the_same_and_claims_again(
    queue: Ground,
) -> None:
    job, lease = await queue.running()
    after = [await queue.submit() for _ in range(2)]
    answers = [await release(queue, lease, result_data=[1], next=wanted()) for _ in after]
    claimed = [answer.pop("next")["job"]["job_id"] for answer in answers]
    assert claimed == [one["job_id"] for one in after]
    assert answers[0] == answers[1] == await release(queue, lease, result_data=[1])
    assert (answers[0]["job"]["job_id"], answers[0]["job"]["state"]) == (job["job_id"], "DONE")
    assert await queue.used() == 20
