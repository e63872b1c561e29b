"""The forecast over HTTP."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ksana.api.tasks import forecast
from ksana.base.clock import VirtualClock
from ksana.base.instant import SECOND
from ksana.service.tasks import forecast as forecast_service
from ksana.service.tasks.forecast import ForecastService
from tests.api.ground import client_of, open_house
from tests.api.tasks_ground import Ground, task_routes

pytestmark = pytest.mark.spec("B8")

PATH = "/api/v1/forecast"


@pytest.fixture
async def ground(tmp_path: Path) -> AsyncIterator[Ground]:
    clock = VirtualClock()
    async with open_house(tmp_path, clock=clock) as core:
        routes = [
            *task_routes(core, clock),
            *forecast.routes(ForecastService(core.store, clock), clock),
        ]
        async with client_of(core.app(*routes)) as client:
            yield Ground(client, clock, core.store, core)


async def make_tasks(ground: Ground) -> None:
    for name, every, host in (("a", "1m", "one"), ("b", "30m", "one"), ("c", "1h", "two")):
        await ground.make_task(
            name=name,
            schedule={"kind": "every", "every": every},
            target_url=f"http://{host}.test/",
        )
    off = await ground.make_task(name="off", schedule={"kind": "every", "every": "1m"})
    await ground.ask("PATCH", f"/api/v1/tasks/{off['id']}/disable", status=200)


async def test_firings_are_told_by_hour_and_by_host(ground: Ground) -> None:
    await make_tasks(ground)
    answer = await ground.ask("GET", f"{PATH}?hours=3", status=200)
    assert (answer["from"], answer["to"]) == ("2026-01-01T00:00:00Z", "2026-01-01T03:00:00Z")
    assert (answer["bucket_sec"], answer["tasks_counted"], answer["complete"]) == (3600, 3, True)
    assert answer["counts"] == [60, 63, 63]
    assert [(one["host"], one["firings"], one["counts"]) for one in answer["hosts"]] == [
        ("one.test", 184, [60, 62, 62]),
        ("two.test", 2, [0, 1, 1]),
    ]
    assert (answer["firings"], answer["elsewhere"]) == (186, 0)
    assert [(one["name"], one["firings"], one["mean_sec"]) for one in answer["busiest"]] == [
        ("a", 179, None),
        ("b", 5, None),
        ("c", 2, None),
    ]


async def test_one_hour_of_one_host_is_told_by_minute(ground: Ground) -> None:
    await make_tasks(ground)
    query = "hours=1&bucket=1m&host=one.test&from=2026-01-01T01:00:00Z"
    answer = await ground.ask("GET", f"{PATH}?{query}", status=200)
    assert len(answer["counts"]) == 60
    assert (answer["counts"][0], answer["counts"][1], answer["counts"][30]) == (2, 1, 2)
    assert [one["host"] for one in answer["hosts"]] == ["one.test"]


async def test_what_was_counted_is_kept_for_a_while(ground: Ground) -> None:
    await make_tasks(ground)
    before = await ground.ask("GET", f"{PATH}?hours=3", status=200)
    await ground.make_task(name="new", schedule={"kind": "every", "every": "1m"})
    assert await ground.ask("GET", f"{PATH}?hours=3", status=200) == before
    await ground.clock.advance(3 * SECOND)
    after = await ground.ask("GET", f"{PATH}?hours=3", status=200)
    assert after["tasks_counted"] == 4


async def test_pages_are_joined_and_the_rest_is_said_to_be_missing(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make_tasks(ground)
    monkeypatch.setattr(forecast_service, "PAGE", 1)
    answer = await ground.ask("GET", f"{PATH}?hours=4", status=200)
    assert (answer["tasks_counted"], answer["complete"]) == (3, True)
    monkeypatch.setattr(forecast_service, "MAX_TASKS", 2)
    answer = await ground.ask("GET", f"{PATH}?hours=5", status=200)
    assert (answer["tasks_counted"], answer["complete"]) == (2, False)


async def test_windows_that_are_too_fine_or_too_far_are_refused(ground: Ground) -> None:
    for query, field in (
        ("hours=25&bucket=1m", "bucket"),
        ("hours=169", "hours"),
        ("bucket=2m", "bucket"),
        ("from=2020-01-01T00:00:00Z", "from"),
        ("from=2030-01-01T00:00:00Z", "from"),
    ):
        await ground.refused("GET", f"{PATH}?{query}", None, field)


async def test_tasks_that_fire_together_are_named_with_what_would_part_them(
    ground: Ground,
) -> None:
    made = [await ground.make_task(name=f"nightly {n}", cron_expr="0 0 3 * * *") for n in range(4)]
    await ground.make_task(name="alone", cron_expr="0 0 4 * * *")
    found = await ground.ask("GET", f"{PATH}/spread", status=200)
    assert found["complete"] is True
    assert [one["task_id"] for one in found["suggestions"]] == [task["id"] for task in made[1:]]
    first = found["suggestions"][0]
    assert (first["together"], first["now"], first["cron_expr"]) == (
        4,
        "0 0 3 * * *",
        "0 H 3 * * *",
    )
    changed = await ground.ask(
        "PATCH",
        f"/api/v1/tasks/{first['task_id']}",
        {"cron_expr": first["cron_expr"]},
        status=200,
    )
    assert changed["cron_expr"] == first["becomes"]
    await ground.clock.advance(3 * SECOND)  # an answer is kept for two seconds at least
    left = (await ground.ask("GET", f"{PATH}/spread", status=200))["suggestions"]
    assert [one["task_id"] for one in left] == [task["id"] for task in made[2:]]
