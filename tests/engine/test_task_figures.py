"""The gauges of tasks: read seldom, shown from memory."""

import pytest

from ksana.base.instant import SECOND
from ksana.boot.metrics import Metrics
from ksana.boot.surfaces.tasks import FIGURES_EVERY, TaskFigures
from tests.engine.tasks_world import World, every, once, task_of

pytestmark = pytest.mark.spec("C21", "X17")


async def test_tasks_by_status_and_pending_callbacks_are_shown_from_memory(world: World) -> None:
    metrics = Metrics(world.clock, "1")
    known: list[int] = []
    figures = TaskFigures(world.store, world.clock, known.extend)
    metrics.on_scrape(figures.collect)
    assert b"cronjob_task_total" not in metrics.render(), "nothing is known before the first look"
    await world.add(task_of(every(world, 3600)))
    await world.add(task_of(every(world, 3600), name="off"), status="DISABLED")
    await world.add(task_of(once(world.clock.now() + SECOND), name="async", exec_type="ASYNC"))
    await world.clock.advance(2 * SECOND)
    assert await figures.sample() == world.clock.now() + FIGURES_EVERY
    before = metrics.render()
    for line in (
        b'cronjob_task_total{status="ENABLED"} 2.0',
        b'cronjob_task_total{status="DISABLED"} 1.0',
        b"cronjob_callback_pending 1.0",
    ):
        assert line in before.splitlines()
    await world.add(task_of(every(world, 3600), name="more"))
    assert b'cronjob_task_total{status="ENABLED"} 2.0' in metrics.render().splitlines(), (
        "a scrape reads nothing"
    )
