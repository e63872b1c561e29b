"""Governance on the JSON store: all of it, in memory, through the same SQL."""

from pathlib import Path

import pytest

from ksana.base.clock import SystemClock
from ksana.store import jsonfile
from tests.ground.governance import SECOND, Governing


@pytest.mark.spec("T22", "G2", "G3", "G12")
async def test_governance_works_in_memory_beside_a_json_file(tmp_path: Path) -> None:
    clock = SystemClock()
    store = await jsonfile.open_store(f"json:///{tmp_path / 'jobs.json'}", clock, serve=True)
    governing = Governing(store, clock)
    for number in range(20):
        await governing.enqueue(f"m{number}")
    jobs = await governing.pull(50)
    assert len(jobs) == 20
    done = await governing.ack(jobs[0], next_action_at=clock.now() + 3600 * SECOND)
    assert (await governing.job(done.follow_up_id or "")).status == "queued"
    await governing.put("risky", risk_tier="high")
    await governing.close_gate()
    await governing.enqueue("risky")
    assert await governing.pull() == []
    assert await governing.open_gate() == 1
    await governing.assert_audit_is_whole()
    await store.close()
