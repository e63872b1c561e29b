"""A job's place in line: only jobs that compete with it for the same workers or units are before
it."""

from pathlib import Path
from typing import Any

import pytest

from ksana.domain.queue.admission import Limits
from tests.api.queue_ground import SECOND, Ground, open_queue

pytestmark = pytest.mark.spec("B1", "Q9")


async def claimed(queue: Ground, worker_id: str = "w1", **members: Any) -> str:
    """Submit a job and claim it."""
    job = await queue.submit(**members)
    addon_id = members.get("addon_id", "visuals")
    taken = await queue.claim(worker_id=worker_id, addon_id=addon_id)
    assert taken is not None and taken["job_id"] == job["job_id"]
    return str(job["job_id"])


async def ask(queue: Ground, job_id: str) -> dict[str, Any]:
    answer: dict[str, Any] = await queue.post(
        "/lease/request", 200, job_id=job_id, worker_id="w1", ttl_sec=60
    )
    return answer


async def explain(queue: Ground, job_id: str) -> dict[str, Any]:
    answer: dict[str, Any] = await queue.get(f"/jobs/{job_id}/explain")
    return answer


async def test_who_waits_for_its_addons_share_is_not_before_other_addons(tmp_path: Path) -> None:
    async with open_queue(tmp_path, Limits(100, (("visuals", 20),))) as queue:
        await queue.running(cost_units=20)
        for _ in range(3):
            shared = await claimed(queue, cost_units=20)
            assert (await ask(queue, shared))["code"] == "SHARE_EXCEEDED"
        assert (await explain(queue, shared))["position"] == 3
        sound = await claimed(queue, cost_units=90, addon_id="sounds")
        denied = await ask(queue, sound)
        assert (denied["code"], denied["position"]) == ("CAPACITY_EXCEEDED", 1)
        assert (await explain(queue, sound))["position"] == 1


async def test_who_waits_for_the_total_is_not_before_who_waits_for_its_share(
    tmp_path: Path,
) -> None:
    async with open_queue(tmp_path, Limits(100, (("visuals", 20),))) as queue:
        await queue.running(cost_units=20)
        for _ in range(2):
            sound = await claimed(queue, cost_units=90, addon_id="sounds")
            assert (await ask(queue, sound))["code"] == "CAPACITY_EXCEEDED"
        assert (await explain(queue, sound))["position"] == 2
        shared = await claimed(queue, cost_units=20)
        denied = await ask(queue, shared)
        assert (denied["code"], denied["position"]) == ("SHARE_EXCEEDED", 1)
        assert denied == {**await ask(queue, shared), "retry_after_sec": denied["retry_after_sec"]}


async def test_jobs_for_other_workers_are_not_before_this_one(tmp_path: Path) -> None:
    async with open_queue(tmp_path) as queue:
        for _ in range(3):
            await queue.submit(job_type="render")
        words = await queue.submit(job_type="count")
        assert (await explain(queue, words["job_id"]))["position"] == 4  # nobody has asked yet
        assert await queue.claim(accept_job_types=["other"]) is None
        await queue.submit(job_type="first", priority="URGENT")
        assert await queue.claim(accept_job_types=["first", "count"], max_cost_units=10)
        assert (await explain(queue, words["job_id"]))["position"] == 1


async def test_a_worker_that_is_long_gone_is_not_counted_on(tmp_path: Path) -> None:
    async with open_queue(tmp_path) as queue:
        await queue.submit(job_type="any", priority="URGENT")
        assert await queue.claim() is not None  # takes everything, and is not seen again
        for _ in range(3):
            await queue.submit(job_type="render")
        words = await queue.submit(job_type="count")
        assert (await explain(queue, words["job_id"]))["position"] == 4
        await queue.clock.advance(11 * 60 * SECOND)
        await queue.submit(job_type="first", priority="URGENT")
        assert await queue.claim(accept_job_types=["first", "count"])
        assert (await explain(queue, words["job_id"]))["position"] == 1
