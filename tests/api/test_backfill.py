"""Past slots fired on purpose, through the API: the answers and each refusal."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from ksana.base.instant import HOUR, MINUTE, SECOND
from tests.api.tasks_ground import Ground, open_tasks
from tests.api.test_explain import open_explain

pytestmark = pytest.mark.spec("B7")

HOURLY = {"kind": "cron", "expr": "0 0 * * * *"}
RANGE = {"from": "2025-12-31T00:00:00Z", "to": "2025-12-31T06:00:00Z"}


@pytest.fixture
async def ground(tmp_path: Path) -> AsyncIterator[Ground]:
    async with open_tasks(tmp_path) as ground:
        yield ground


async def fill(ground: Ground, task: dict[str, Any], status: int = 202, **body: Any) -> Any:
    path = f"/api/v1/tasks/{task['id']}/backfill"
    return await ground.ask("POST", path, {**RANGE, **body}, status=status)


async def list_slots(ground: Ground, task: dict[str, Any]) -> list[str]:
    page = await ground.ask("GET", f"/api/v1/tasks/{task['id']}/runs", status=200)
    return sorted(run["scheduled_time"] for run in page["items"])


async def test_a_dry_run_says_what_the_same_call_then_does(ground: Ground) -> None:
    task = await ground.make_task(schedule=HOURLY)
    seen = await fill(ground, task, 200, dry_run=True, limit=4, per_minute=30)
    assert (seen["in_range"], seen["recorded"], seen["fires"]) == (6, 0, 4)
    assert (seen["first"], seen["last"]) == ("2025-12-31T00:00:00Z", "2025-12-31T03:00:00Z")
    assert seen["next_from"] == "2025-12-31T04:00:00Z"
    assert [one["slot"][11:13] for one in seen["slots"]] == ["00", "01", "02", "03"]
    assert await list_slots(ground, task) == []
    done = await fill(ground, task, limit=4, per_minute=30)
    assert {**done, "dry_run": True} == seen
    assert len(await list_slots(ground, task)) == 4
    rest = await fill(ground, task)
    assert (rest["fires"], rest["recorded"], rest["next_from"]) == (2, 4, None)
    nothing = await fill(ground, task)
    assert (nothing["fires"], nothing["recorded"], nothing["slots"]) == (0, 6, [])
    stopped = await ground.ask("DELETE", f"/api/v1/tasks/{task['id']}/backfill", status=200)
    assert stopped == {"canceled": 5}  # the first was let in


@pytest.mark.spec("X8")
@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"from": "yesterday"}, "from"),
        ({"to": "2025-12-30T00:00:00Z"}, "to"),
        ({"from": "1990-01-01T00:00:00Z"}, "from"),
        ({"limit": 1001}, "limit"),
        ({"per_minute": 0}, "per_minute"),
        ({"max_age": "soon"}, "max_age"),
        ({"colour": 1}, "colour"),
    ],
)
async def test_a_backfill_that_cannot_be_is_refused_by_name(
    ground: Ground, body: dict[str, Any], field: str
) -> None:
    task = await ground.make_task(schedule=HOURLY)
    refused = await fill(ground, task, 400, **body)
    assert refused["field"] == field
    assert await list_slots(ground, task) == []


async def test_a_task_that_is_not_there_cannot_be_filled(ground: Ground) -> None:
    assert (await fill(ground, {"id": 99}, 404))["code"] == "NOT_FOUND"


async def test_enabling_says_what_it_makes_up_within_the_callers_caps(tmp_path: Path) -> None:
    async with open_explain(tmp_path) as ground:
        task = await ground.make_task(schedule=HOURLY)
        path = f"/api/v1/tasks/{task['id']}"
        assert await ground.ask("PATCH", f"{path}/disable", status=200) == {"status": "DISABLED"}
        await ground.clock.advance(10 * HOUR + MINUTE)
        plain = await ground.ask("GET", f"{path}/resume-preview", status=200)
        assert (plain["passed"], plain["catch_up"]) == (10, None)
        asked = f"{path}/resume-preview?count=5&max_age=3h"
        seen = (await ground.ask("GET", asked, status=200))["catch_up"]
        assert (seen["in_range"], seen["fires"]) == (3, 3)
        body = {"catch_up": {"count": 5, "max_age": "3h"}}
        done = await ground.ask("PATCH", f"{path}/enable", body, status=200)
        assert done["status"] == "ENABLED"
        assert [one["slot"] for one in done["catch_up"]["slots"]] == [
            one["slot"] for one in seen["slots"]
        ]
        again = await ground.ask("PATCH", f"{path}/enable", body, status=200)
        assert again == {"status": "ENABLED"}
        runs = await ground.ask("GET", f"{path}/runs", status=200)
        assert {run["trigger"] for run in runs["items"]} == {"backfill"}
        assert runs["total"] == 3
        await ground.clock.advance(SECOND)
