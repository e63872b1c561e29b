"""How runs ended over time, over HTTP."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from ksana.api.tasks import series
from ksana.base.clock import VirtualClock
from ksana.base.instant import HOUR, MINUTE
from ksana.service.tasks.series import RunSeriesService
from tests.api.ground import client_of, open_house
from tests.api.tasks_ground import Ground, task_routes

PATH = "/api/v1/runs/series"


@pytest.fixture
async def ground(tmp_path: Path) -> AsyncIterator[Ground]:
    clock = VirtualClock()
    async with open_house(tmp_path, clock=clock) as core:
        routes = [*task_routes(core, clock), *series.routes(RunSeriesService(core.store))]
        async with client_of(core.app(*routes)) as client:
            yield Ground(client, clock, core.store, core)


async def count(ground: Ground, **counts: int) -> None:
    def add(tx: Any) -> None:
        for metric, number in counts.items():
            tx.rollups.add(metric, count=number, total=number * 0.5)

    await ground.store.transact(add)


async def test_ends_are_told_in_equal_spans_up_to_now(ground: Ground) -> None:
    await ground.clock.advance(30 * MINUTE)
    await count(ground, runs_success=3, runs_failed=1, runs_timeout=1, runs_skipped=2)
    await ground.clock.advance(29 * MINUTE)
    await count(ground, runs_callback_success=1, runs_canceled=1, misfires=4)
    answer = await ground.ask("GET", f"{PATH}?range=1h", status=200)
    assert (answer["from"], answer["bucket_sec"]) == ("2026-01-01T00:00:00Z", 60)
    assert [len(answer[name]) for name in ("succeeded", "failed", "mean_sec")] == [60, 60, 60]
    assert (answer["succeeded"][30], answer["failed"][30], answer["skipped"][30]) == (3, 2, 2)
    assert (answer["succeeded"][59], answer["canceled"][59], answer["misfired"][59]) == (1, 1, 4)
    assert (answer["mean_sec"][30], answer["mean_sec"][31]) == (0.5, None)
    assert sum(answer["succeeded"]) == 4


async def test_longer_ranges_have_wider_spans(ground: Ground) -> None:
    await ground.clock.advance(HOUR)
    await count(ground, runs_success=5)
    for name, spans, width in (("6h", 72, 300), ("24h", 96, 900), ("7d", 84, 7200)):
        answer = await ground.ask("GET", f"{PATH}?range={name}", status=200)
        assert (len(answer["succeeded"]), answer["bucket_sec"]) == (spans, width)
        assert (answer["succeeded"][-1], sum(answer["succeeded"])) == (5, 5)
    await ground.refused("GET", f"{PATH}?range=30d", None, "range")
