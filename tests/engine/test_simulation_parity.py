"""What the simulation says is what the engine does, on the virtual clock."""

from typing import Any

import pytest

from ksana.base.instant import SECOND, Instant
from ksana.domain.tasks.records import Options, RetryPolicy
from ksana.domain.tasks.simulation import Scenario, SimulatedTask, simulate
from tests.engine.tasks_world import World, answer, every, task_of

pytestmark = pytest.mark.spec("B3")

URL = "http://target/hook"

SCENARIOS: dict[str, dict[str, Any]] = {
    "skips": {"concurrency_policy": "SKIP", "timeout_us": 25 * SECOND},
    "waits": {"timeout_us": 25 * SECOND, "options": Options(max_queued=2)},
    "retries": {
        "concurrency_policy": "SKIP",
        "timeout_us": 4 * SECOND,
        "retry": RetryPolicy(2, 3 * SECOND, "exponential"),
    },
    "catches up": {"misfire_policy": "CATCH_UP_LIMITED", "catchup_limit": 3},
    "fires once": {"misfire_policy": "FIRE_NOW"},
    "makes nothing up": {"misfire_policy": "SKIP"},
}


@pytest.mark.parametrize("name", SCENARIOS)
async def test_the_engine_does_what_was_simulated(world: World, name: str) -> None:
    members = SCENARIOS[name]
    hangs = "timeout_us" in members
    world.caller.scripts[URL] = lambda request: None if hangs else answer(200)
    began = world.clock.now()
    definition = task_of(every(world, 10), **members)
    task = await world.add(definition)
    outages: tuple[tuple[Instant, Instant], ...] = ()
    if hangs:
        await world.clock.advance(121 * SECOND)
    else:
        outages = ((began + 25 * SECOND, began + 85 * SECOND),)
        await world.clock.advance(25 * SECOND)
        await world.die()
        await world.clock.advance(60 * SECOND)
        await world.revive()
        await world.clock.advance(36 * SECOND)
    takes = 60 * SECOND if hangs else 1000
    scenario = Scenario(
        began, began + 121 * SECOND + 1, (SimulatedTask(definition, takes),), outages
    )
    found = simulate(scenario)
    expected = [
        (run.slot_at, run.status, len(run.attempts) or 1, run.trigger) for run in found.runs
    ]
    runs = await world.all_runs(task)
    assert [(run.slot_at, run.status, run.attempt, run.trigger) for run in runs] == expected
    assert len(expected) > 5
    starts = [sent.at for sent in world.caller.sent]
    told = sorted(one.started_at for run in found.runs for one in run.attempts)
    assert len(starts) == len(told)
