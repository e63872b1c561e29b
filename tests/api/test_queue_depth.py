"""How deep the queue is, by priority and state."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.api.queue_ground import Ground, open_queue

NONE = {"count": 0, "more": False}


@pytest.fixture
async def queue(tmp_path: Path) -> AsyncIterator[Ground]:
    async with open_queue(tmp_path) as ground:
        yield ground


async def read_depth(queue: Ground) -> dict[str, dict[str, Any]]:
    rows = (await queue.get("/stats/depth"))["priorities"]
    assert [row["priority"] for row in rows] == ["URGENT", "HIGH", "NORMAL", "LOW"]
    return {row["priority"]: {k: v for k, v in row.items() if v != NONE} for row in rows}


@pytest.mark.spec("Q2")
async def test_the_depth_is_told_by_priority_and_state(queue: Ground) -> None:
    await queue.running(priority="URGENT")
    held = await queue.submit(priority="HIGH")
    claimed = await queue.claim()
    assert claimed is not None and claimed["job_id"] == held["job_id"]
    for priority, times in (("URGENT", 1), ("LOW", 3)):
        for _ in range(times):
            await queue.submit(priority=priority)
    for _ in range(2):
        await queue.submit(priority="NORMAL", run_at="2027-01-01T00:00:00Z")
    one = {"count": 1, "more": False}
    assert await read_depth(queue) == {
        "URGENT": {"priority": "URGENT", "ready": one, "running": one},
        "HIGH": {"priority": "HIGH", "claimed": one},
        "NORMAL": {"priority": "NORMAL", "scheduled": {"count": 2, "more": False}},
        "LOW": {"priority": "LOW", "ready": {"count": 3, "more": False}},
    }
    await queue.post(
        f"/jobs/{held['job_id']}/status",
        200,
        state="PREPARING",
        worker_id="w1",
        claim_token=claimed["claim_token"],
    )
    assert (await read_depth(queue))["HIGH"] == {"priority": "HIGH", "preparing": one}


@pytest.mark.fault("F35")
async def test_a_count_stops_at_its_bound_and_says_so(
    queue: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    lists = "ksana.store.sql.queue.job_lists"
    monkeypatch.setattr(f"{lists}.COUNT_LIMIT", 3)
    monkeypatch.setattr(f"{lists}.LOOK_UP", 2)
    for _ in range(3):
        await queue.submit(priority="LOW")
    for _ in range(2):
        await queue.submit(priority="HIGH", run_at="2027-01-01T00:00:00Z")
    depth = await read_depth(queue)
    assert depth["LOW"]["ready"] == {"count": 3, "more": False}
    assert depth["HIGH"]["scheduled"] == {"count": 2, "more": False}
    await queue.submit(priority="LOW")
    await queue.submit(priority="URGENT")
    await queue.submit(priority="LOW", run_at="2027-02-01T00:00:00Z")
    depth = await read_depth(queue)
    assert depth["LOW"]["ready"] == {"count": 3, "more": True}
    assert depth["URGENT"]["ready"] == {"count": 1, "more": False}
    assert depth["HIGH"]["scheduled"] == {"count": 2, "more": True}
    assert depth["URGENT"]["scheduled"] == {"count": 0, "more": True}
