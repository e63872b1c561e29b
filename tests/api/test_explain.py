"""Explain over HTTP: shapes, ids, times and refusals."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from ksana.api.tasks import definitions, explain, runs
from ksana.api.tasks.members import Defaults, TaskSurface
from ksana.base.clock import VirtualClock
from ksana.base.instant import HOUR, MINUTE, SECOND
from ksana.service.tasks.backfill import BackfillService
from ksana.service.tasks.callbacks import CallbackService
from ksana.service.tasks.definitions import TaskService
from ksana.service.tasks.explain import ExplainService
from ksana.service.tasks.runs import RunService
from tests.api.ground import client_of, open_house
from tests.api.tasks_ground import Ground, SilentHints

pytestmark = pytest.mark.spec("B1")


@contextlib.asynccontextmanager
async def open_explain(tmp_path: Path) -> AsyncIterator[Ground]:
    clock = VirtualClock()
    async with open_house(tmp_path, clock=clock) as core:
        hints, store = SilentHints(), core.store
        surface = TaskSurface(
            TaskService(store, clock, hints, SECOND),
            RunService(store, hints),
            CallbackService(store, clock, hints, HOUR, True),
            Defaults(),
            clock,
            BackfillService(store, hints, SECOND),
        )
        routes = [
            *definitions.routes(surface),
            *runs.routes(surface),
            *explain.routes(ExplainService(store), surface.backfills),
        ]
        async with client_of(core.app(*routes)) as client:
            yield Ground(client, clock, store, core)


@pytest.fixture
async def ground(tmp_path: Path) -> AsyncIterator[Ground]:
    async with open_explain(tmp_path) as ground:
        yield ground


def codes(answer: dict[str, Any]) -> list[str]:
    return [reason["code"] for reason in answer["reasons"]]


async def test_a_task_that_is_not_due_says_when_it_is_and_what_will_be_decided(
    ground: Ground,
) -> None:
    task = await ground.make_task(cron_expr="0 */5 * * *")
    answer = await ground.ask("GET", f"/api/v1/tasks/{task['id']}/explain", status=200)
    assert answer["task_id"] == task["id"]
    assert answer["at"] == "2026-01-01T00:00:00Z"
    assert answer["verdict"] == "not_due"
    assert answer["next_run_at"] == task["next_run_at"] == "2026-01-01T05:00:00Z"
    assert answer["reasons"][-1] == {
        "code": "NOT_DUE",
        "message": "the next slot is at 2026-01-01T05:00:00Z, in 5h",
        "data": {"slot": "2026-01-01T05:00:00Z", "rest": "5h"},
        "event_id": None,
    }
    assert (answer["decision"]["source"], answer["decision"]["action"]) == ("replayed", "start")
    assert answer["decision"]["inputs"]["concurrency_policy"] == "QUEUE"
    assert answer["summary"].endswith("in 5h.")


async def test_a_disabled_task_points_to_the_event_that_disabled_it(ground: Ground) -> None:
    task = await ground.make_task(schedule={"kind": "every", "every": "1m"})
    await ground.ask("PATCH", f"/api/v1/tasks/{task['id']}/disable", status=200)
    await ground.clock.advance(5 * MINUTE)
    answer = await ground.ask("GET", f"/api/v1/tasks/{task['id']}/explain", status=200)
    assert (answer["verdict"], answer["next_run_at"]) == ("disabled", None)
    event_id = answer["reasons"][0]["event_id"]
    events = await ground.ask(
        "GET", f"/api/v1/events?entity_type=TASK&entity_id={task['id']}", status=200
    )
    assert [event["type"] for event in events["events"] if event["id"] == event_id] == [
        "TASK_DISABLED"
    ]


async def test_an_instant_may_be_given_with_any_offset(ground: Ground) -> None:
    task = await ground.make_task(schedule={"kind": "every", "every": "1m"})
    path = f"/api/v1/tasks/{task['id']}/explain"
    answer = await ground.ask("GET", f"{path}?at=2026-01-01T09:30:00%2B08:00", status=200)
    assert (answer["at"], answer["verdict"]) == ("2026-01-01T01:30:00Z", "will_run")
    assert answer["reasons"][0]["data"]["count"] == 90
    answer = await ground.ask("GET", f"{path}?at=2025-12-31T00:00:00Z", status=200)
    assert codes(answer) == ["NOT_CREATED_YET"]
    for at in ("yesterday", "2026-01-01T00:00:00", "x" * 65):
        await ground.refused("GET", f"{path}?at={at}", None, "at")


async def test_a_run_is_explained_by_its_id_and_by_its_uid(ground: Ground) -> None:
    task = await ground.make_task()
    first = await ground.ask("POST", f"/api/v1/tasks/{task['id']}/trigger", status=202)
    second = await ground.ask("POST", f"/api/v1/tasks/{task['id']}/trigger", status=202)
    answer = await ground.ask("GET", f"/api/v1/runs/{first['run_id']}/explain", status=200)
    assert answer == await ground.ask("GET", f"/api/v1/runs/{first['uid']}/explain", status=200)
    assert (answer["run_id"], answer["uid"], answer["task_id"]) == (
        first["run_id"],
        first["uid"],
        task["id"],
    )
    assert (answer["status"], answer["waits_for"]["what"]) == ("SCHEDULED", "place")
    assert answer["waits_for"]["host"] == "target.test"
    assert [moment["type"] for moment in answer["timeline"]] == ["RUN_SCHEDULED"]
    answer = await ground.ask("GET", f"/api/v1/runs/{second['run_id']}/explain", status=200)
    assert codes(answer) == ["QUEUED_BEHIND_ACTIVE", "WAITS_FOR_TURN"]
    assert answer["waits_for"] == {"what": "turn", "position": 1}
    await ground.ask("POST", f"/api/v1/runs/{second['run_id']}/cancel", status=200)
    answer = await ground.ask("GET", f"/api/v1/runs/{second['run_id']}/explain", status=200)
    assert (codes(answer)[0], answer["waits_for"]) == ("CANCELED_BY_CALLER", None)
    assert answer["attempts"]["ended"] == 0


@pytest.mark.spec("B1")
async def test_every_explanation_has_the_one_shape(ground: Ground) -> None:
    task = await ground.make_task()
    run = await ground.ask("POST", f"/api/v1/tasks/{task['id']}/trigger", status=202)
    await ground.ask("PATCH", f"/api/v1/tasks/{task['id']}/disable", status=200)
    for path in (f"/api/v1/tasks/{task['id']}/explain", f"/api/v1/runs/{run['run_id']}/explain"):
        answer = await ground.ask("GET", path, status=200)
        assert answer["reasons"]
        for reason in answer["reasons"]:
            assert list(reason) == ["code", "message", "data", "event_id"]
        first = answer["reasons"][0]["message"]
        assert answer["summary"].startswith(first[0].upper() + first[1:] + ".")


@pytest.mark.spec("X8")
async def test_unknown_ids_are_404_and_impossible_ones_400(ground: Ground) -> None:
    for path, status, code in (
        ("/api/v1/tasks/99/explain", 404, "NOT_FOUND"),
        ("/api/v1/tasks/abc/explain", 400, "INVALID_ID"),
        ("/api/v1/runs/99/explain", 404, "NOT_FOUND"),
        (f"/api/v1/runs/{'a' * 32}/explain", 404, "NOT_FOUND"),
        ("/api/v1/runs/abc/explain", 400, "INVALID_ID"),
        ("/api/v1/runs/0/explain", 400, "INVALID_ID"),
    ):
        answer = await ground.ask("GET", path, status=status)
        assert answer["code"] == code, path


async def test_the_answers_are_in_the_openapi_page(ground: Ground) -> None:
    page = await ground.ask("GET", "/openapi.json", status=200)
    for path in ("/api/v1/tasks/{id}/explain", "/api/v1/runs/{id}/explain"):
        assert "200" in page["paths"][path]["get"]["responses"]


@pytest.mark.spec("B7")
async def test_enabling_is_told_beforehand_and_does_what_was_told(ground: Ground) -> None:
    task = await ground.make_task(schedule={"kind": "every", "every": "1m"})
    path = f"/api/v1/tasks/{task['id']}"
    preview = await ground.ask("GET", f"{path}/resume-preview", status=200)
    assert (preview["status"], preview["disabled_at"], preview["passed"]) == ("ENABLED", None, 0)
    await ground.ask("PATCH", f"{path}/disable", status=200)
    await ground.clock.advance(5 * MINUTE)
    preview = await ground.ask("GET", f"{path}/resume-preview", status=200)
    assert preview == {
        "task_id": task["id"],
        "status": "DISABLED",
        "disabled_at": "2026-01-01T00:00:00Z",
        "passed": 5,
        "first_passed": "2026-01-01T00:01:00Z",
        "last_passed": "2026-01-01T00:05:00Z",
        "fires": 0,
        "next_run_at": "2026-01-01T00:06:00Z",
        "fires_at": "2026-01-01T00:06:00Z",
        "misfire_policy": "FIRE_NOW",
        "catch_up": None,
    }
    await ground.ask("PATCH", f"{path}/enable", status=200)
    shown = await ground.ask("GET", path, status=200)
    assert shown["next_run_at"] == preview["next_run_at"]
    await ground.ask("GET", "/api/v1/tasks/99/resume-preview", status=404)
