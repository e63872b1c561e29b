"""A shutdown on the JSON store: what falls due while it drains belongs to the outage after it."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from ksana.base.clock import VirtualClock
from ksana.base.instant import SECOND
from ksana.store import jsonfile
from ksana.store.jsonfile.store import JsonStore
from tests.engine.tasks_world import World, every, task_of


async def open_file(folder: Path, clock: VirtualClock) -> JsonStore:
    url = f"json:///{folder}/jobs.json"
    return await jsonfile.open_store(url, clock, serve=True, inline=True)


@pytest.mark.spec("C10", "X14", "T22")
@pytest.mark.parametrize(
    ("policy", "slots"), [("FIRE_NOW", [80]), ("CATCH_UP_LIMITED", [40, 50, 60, 70, 80])]
)
async def test_slots_due_while_a_shutdown_drains_are_one_misfire_with_the_outage(
    tmp_path: Path, clock: VirtualClock, policy: Any, slots: list[int]
) -> None:
    world = World(await open_file(tmp_path, clock), clock)
    await world.revive()
    began = clock.now()
    task = await world.add(
        task_of(
            every(world, 10),
            misfire_policy=policy,
            catchup_limit=0 if policy == "FIRE_NOW" else 5,
            concurrency_policy="PARALLEL",
        )
    )
    await clock.advance(5 * SECOND)
    await world.begin_drain()
    await clock.advance(20 * SECOND)
    await world.die()
    await world.store.transact(lambda tx: tx.instances.stop("one-1"))
    await world.store.close()
    await clock.advance(60 * SECOND)
    again = World(await open_file(tmp_path, clock), clock, "two")
    await again.revive()
    await clock.advance(SECOND)
    runs = await again.all_runs(task)
    assert [(run.scheduled_time - began) // SECOND for run in runs] == slots
    misfires = [msgspec.json.decode(event.data) for event in await again.events("TASK_MISFIRED")]
    assert [one["count"] for one in misfires] == [8]
    await again.die()
    await again.store.close()


@pytest.mark.spec("C10", "X14")
async def test_a_server_that_drains_signs_no_life_whatever_it_writes(
    tmp_path: Path, clock: VirtualClock
) -> None:
    store = await open_file(tmp_path, clock)
    await store.transact(lambda tx: tx.instances.register("a", "h", "1", 15 * SECOND, True))
    drains_at = clock.now()
    for _ in range(3):
        await clock.advance(10 * SECOND)
        store._mirror._signed_at = -1e9  # as if a second had passed
        await store.transact(
            lambda tx: tx.instances.renew_if_registered("a", 15 * SECOND, is_draining=True)
        )
        signed = (tmp_path / "jobs.json.lock").stat().st_mtime_ns // 1000
        assert signed == drains_at
    await store.close()
    assert (tmp_path / "jobs.json.lock").stat().st_mtime_ns // 1000 == drains_at
