"""The preview of schedules over HTTP (B3, C7, C9)."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.api.tasks_ground import Ground, open_tasks

PREVIEW = "/api/v1/schedules/preview"


@pytest.fixture
async def ground(tmp_path: Path) -> AsyncIterator[Ground]:
    async with open_tasks(tmp_path) as ground:
        yield ground


@pytest.mark.spec("B3", "C9")
async def test_a_schedule_is_put_into_words_with_its_next_firings(ground: Ground) -> None:
    body = {
        "cron_expr": "30 2 * * *",
        "timezone": "Europe/Berlin",
        "count": 3,
        "after": "2026-03-27T12:00:00Z",
    }
    answer = await ground.ask("POST", PREVIEW, body, status=200)
    assert answer["description"] == "at 02:30 every day, Europe/Berlin time"
    assert answer["schedule"]["expr"] == "0 30 2 * * *"
    assert answer["next"][0] == {
        "at": "2026-03-28T01:30:00Z",
        "local": "2026-03-28T02:30:00+01:00",
        "offset": "+01:00",
        "note": None,
    }
    gap = answer["next"][1]
    assert (gap["at"], gap["local"]) == ("2026-03-29T01:00:00Z", "2026-03-29T03:00:00+02:00")
    assert "does not exist" in gap["note"]
    chosen = await ground.ask("POST", PREVIEW, {**body, "dst_gap": "skip"}, status=200)
    assert chosen["next"][1]["at"] == "2026-03-30T00:30:00Z"


@pytest.mark.spec("B3", "C8")
async def test_every_kind_of_schedule_can_be_previewed(ground: Ground) -> None:
    every = await ground.ask(
        "POST", PREVIEW, {"schedule": {"kind": "every", "every": "90s"}, "count": 2}, status=200
    )
    assert [one["at"] for one in every["next"]] == ["2026-01-01T00:01:30Z", "2026-01-01T00:03:00Z"]
    once = {"kind": "once", "run_at": "2026-01-02T00:00:00Z"}
    assert len((await ground.ask("POST", PREVIEW, {"schedule": once}, status=200))["next"]) == 1
    past = await ground.ask(
        "POST", PREVIEW, {"schedule": once, "after": "2026-01-02T00:00:00Z"}, status=200
    )
    assert past["next"] == []
    bounded = {"cron_expr": "* * * * *", "end_at": "2026-01-01T00:02:00Z"}
    assert len((await ground.ask("POST", PREVIEW, bounded, status=200))["next"]) == 2
    counted = {"cron_expr": "* * * * *", "max_runs": 3}
    assert len((await ground.ask("POST", PREVIEW, counted, status=200))["next"]) == 3
    assert (
        len(
            (await ground.ask("POST", PREVIEW, {"cron_expr": "@hourly", "count": 100}, status=200))[
                "next"
            ]
        )
        == 100
    )


@pytest.mark.spec("B3", "X8")
@pytest.mark.parametrize(
    "body",
    [
        {"cron_expr": "* * * * *", "after": "9999-12-31T23:59:59Z"},
        {"cron_expr": "* * * * *", "after": "0001-01-01T00:00:00Z", "timezone": "Pacific/Apia"},
        {"cron_expr": "0 0 29 2 *", "after": "9990-01-01T00:00:00Z", "count": 100},
        {"cron_expr": "0 0 1 1 *", "start_at": "9999-06-01T00:00:00Z"},
        {
            "schedule": {"kind": "every", "every": "36500d", "start_at": "9999-01-01T00:00:00Z"},
            "count": 100,
        },
        {
            "schedule": {"kind": "every", "every": "1s"},
            "after": "9999-12-31T23:59:59Z",
            "count": 100,
        },
        {"schedule": {"kind": "every", "every": "1s"}, "after": "0001-01-01T00:00:00Z"},
        {"schedule": {"kind": "once", "run_at": "9999-12-31T23:59:59Z"}},
    ],
)
async def test_the_ends_of_time_are_answered_too(ground: Ground, body: dict[str, Any]) -> None:
    answer = await ground.ask("POST", PREVIEW, body, status=200)
    instants = [one["at"] for one in answer["next"]]
    assert instants == sorted(instants)


@pytest.mark.spec("B3", "X9", "C7")
@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "cron_expr"),
        ({"cron_expr": "* * *"}, "cron_expr"),
        ({"cron_expr": "* * * * *", "timezone": "Mars"}, "timezone"),
        ({"cron_expr": "* * * * *", "count": 0}, "count"),
        ({"cron_expr": "* * * * *", "count": 101}, "count"),
        ({"cron_expr": "* * * * *", "after": "soon"}, "after"),
        ({"cron_expr": "* * * * *", "colour": 1}, "colour"),
        ({"cron_expr": "* * * * *", "schedule": {"kind": "every", "every": "1s"}}, "cron_expr"),
        ({"schedule": {"kind": "every", "every": "1s", "expr": "x"}}, "schedule.expr"),
        ({"schedule": {"kind": "cron", "expr": "0 0 31 2 *"}}, "schedule.expr"),
    ],
)
async def test_bad_input_is_refused_with_the_field(
    ground: Ground, body: dict[str, Any], field: str
) -> None:
    await ground.refused("POST", PREVIEW, body, field)


@pytest.mark.spec("B8")
async def test_h_is_shown_as_what_it_becomes_and_a_task_of_that_name_gets_the_same(
    ground: Ground,
) -> None:
    body = {"cron_expr": "H H(1-4) * * *", "name": "nightly", "count": 1}
    seen = await ground.ask("POST", "/api/v1/schedules/preview", body, status=200)
    expr = seen["schedule"]["expr"]
    second, minute, hour = expr.split()[:3]
    assert (second, 0 <= int(minute) <= 59, 1 <= int(hour) <= 4) == ("0", True, True)
    task = await ground.make_task(name="nightly", cron_expr="H H(1-4) * * *")
    assert task["cron_expr"] == expr
    changed = await ground.ask(
        "PATCH", f"/api/v1/tasks/{task['id']}", {"cron_expr": "0 H 12 * * *"}, status=200
    )
    assert changed["cron_expr"] == f"0 {minute} 12 * * *"
    refused = await ground.ask(
        "PATCH", f"/api/v1/tasks/{task['id']}", {"cron_expr": "H(9-1) * * * *"}, status=400
    )
    assert refused["field"] == "cron_expr"
    timer = {
        "id": "t-1",
        "schedule": {"kind": "cron", "expr": "H * * * *"},
        "http": {"url": "http://target.test/"},
    }
    made = await ground.ask("POST", "/jobs", timer, status=201)
    assert made["schedule"]["expr"].split()[1].isdigit()
