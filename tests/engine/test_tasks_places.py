"""Places when they are short: hosts that hang do not take them from hosts that answer, and nobody keeps what it has."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ksana.base.clock import VirtualClock
from ksana.base.instant import SECOND
from tests.engine.tasks_world import World, every, open_world, task_of


@pytest.fixture
async def world(tmp_path: Path, clock: VirtualClock) -> AsyncIterator[World]:
    world = await open_world(tmp_path, clock, workers=8)
    yield world
    await world.die()
    await world.store.close()


@pytest.mark.spec("T14")
async def test_hosts_that_answer_stay_on_time_while_more_hosts_hang_than_there_are_workers(world: World) -> None:
    for n in range(18):
        world.caller.scripts[f"http://hang{n}/"] = lambda request: None
        members = {"url": f"http://hang{n}/", "timeout_us": 5 * SECOND, "concurrency_policy": "PARALLEL"}
        await world.add(task_of(every(world, 1), name=f"hang{n}", **members))  # type: ignore[arg-type]
    for n in range(2):
        await world.add(task_of(every(world, 1), name=f"well{n}", url=f"http://well{n}/", concurrency_policy="PARALLEL"))
    await world.clock.advance(30 * SECOND)
    calls = [sent for sent in world.caller.sent if sent.request.url.startswith("http://well")]
    assert len(calls) == 60, "every slot of the healthy ones was called"
    in_time = [sent for sent in calls if sent.at % SECOND == world.clock.now() % SECOND]
    assert len(in_time) >= 58, "all but the first calls, when nothing was known of any host"
    assert world.caller.most_open <= 16, "at most twice the workers"


@pytest.mark.spec("T14")
async def test_places_go_round_among_hosts_that_all_hang(world: World) -> None:
    for n in range(20):
        world.caller.scripts[f"http://hang{n}/"] = lambda request: None
        members = {"url": f"http://hang{n}/", "timeout_us": 2 * SECOND, "concurrency_policy": "PARALLEL"}
        await world.add(task_of(every(world, 1), name=f"hang{n}", **members))  # type: ignore[arg-type]
    await world.clock.advance(60 * SECOND)
    counts = [sum(sent.request.url == f"http://hang{n}/" for sent in world.caller.sent) for n in range(20)]
    assert min(counts) >= max(counts) // 2, counts
