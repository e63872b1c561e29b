"""The simulation over HTTP: what may be sent, what is answered, what is refused."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from ksana.api.tasks import simulate
from tests.api.tasks_ground import Ground, open_tasks

pytestmark = pytest.mark.spec("B3")

PATH = "/api/v1/simulate"


@pytest.fixture
async def ground(tmp_path: Path) -> AsyncIterator[Ground]:
    async with open_tasks(tmp_path) as ground:
        yield ground


def every(text: str, **members: Any) -> dict[str, Any]:
    return {"task": {"schedule": {"kind": "every", "every": text}, **members}}


async def test_a_schedule_an_outage_and_a_capacity_are_tried_together(ground: Ground) -> None:
    body = {
        "from": "2026-03-29T00:00:00Z",
        "lasts": "1h",
        "capacity": 1,
        "outages": [{"from": "2026-03-29T00:30:30Z", "to": "2026-03-29T00:40:30Z"}],
        "tasks": [
            {**every("10m", name="often", timeout_seconds=600), "takes": "2m"},
            {"task": {"cron_expr": "*/20 * * * *", "misfire_policy": "SKIP"}, "takes": 30},
        ],
    }
    answer = await ground.ask("POST", PATH, body, status=200)
    assert (answer["from"], answer["to"]) == ("2026-03-29T00:00:00Z", "2026-03-29T01:00:00Z")
    assert (answer["cut"], answer["runs_left_out"], answer["most_calls"]) == (False, 0, 1)
    often, other = answer["tasks"]
    assert (often["name"], other["name"]) == ("often", "task 2")
    assert other["skipped"] == {"MISFIRE_SKIP": 1}
    assert often["by_status"] == {"SUCCESS": 4, "FAILED": 1}
    lost = [run for run in answer["runs"] if run["reason"] == "ORPHANED_NO_RETRY_LEFT"]
    assert [one["end"] for one in lost[0]["attempts"]] == ["LOST"]
    first = answer["runs"][0]
    assert (first["task"], first["slot"], first["trigger"]) == (
        0,
        "2026-03-29T00:10:00Z",
        "schedule",
    )
    assert first["attempts"] == [
        {
            "started_at": "2026-03-29T00:10:00Z",
            "ended_at": "2026-03-29T00:12:00Z",
            "end": "SUCCESS",
        }
    ]


async def test_nothing_is_made_by_it(ground: Ground) -> None:
    await ground.ask("POST", PATH, {"tasks": [every("1m")]}, status=200)
    assert (await ground.ask("GET", "/api/v1/tasks", status=200))["total"] == 0
    assert (await ground.ask("GET", "/api/v1/runs", status=200))["total"] == 0


async def test_a_long_one_is_cut_and_its_answer_is_bounded(ground: Ground) -> None:
    body = {"lasts": "31d", "tasks": [every("1s") for _ in range(50)]}
    answer = await ground.ask("POST", PATH, body, status=200)
    assert answer["cut"] is True
    assert len(answer["runs"]) == 2000
    assert answer["runs_left_out"] > 1000
    assert len(str(answer)) < 2_000_000


async def test_what_is_wrong_is_named_by_its_place(ground: Ground) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"tasks": []}, "tasks"),
        ({"tasks": [every("1m")] * 51}, "tasks"),
        ({"tasks": [every("1m"), every("1ms")]}, "tasks.1.task.schedule.every"),
        ({"tasks": [{"task": {"cron_expr": "61 * * * *"}}]}, "tasks.0.task.cron_expr"),
        ({"tasks": [{"task": {}}]}, "tasks.0.task.cron_expr"),
        ({"tasks": [{**every("1m"), "takes": "0s"}]}, "tasks.0.takes"),
        ({"tasks": [every("1m")], "lasts": "32d"}, "lasts"),
        ({"tasks": [every("1m")], "from": "yesterday"}, "from"),
        ({"tasks": [every("1m")], "capacity": 0}, "capacity"),
        (
            {
                "tasks": [every("1m")],
                "outages": [{"from": "2026-01-01T01:00:00Z", "to": "2026-01-01T00:00:00Z"}],
            },
            "outages.0.to",
        ),
    ]
    for body, field in cases:
        await ground.refused("POST", PATH, body, field)


async def test_too_many_at_once_are_told_to_come_back(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(simulate, "MAX_WAITING", 0)
    answer = await ground.ask("POST", PATH, {"tasks": [every("1m")]}, status=429)
    assert answer["code"] == "RATE_LIMITED"
