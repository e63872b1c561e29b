"""Callbacks over HTTP (C15-C17)."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from ksana.base.instant import HOUR, MINUTE
from ksana.domain.tasks.records import Run
from ksana.engine.tasks.task_secrets import CLEAR
from tests.api.tasks_ground import Ground, open_tasks

CALLBACKS = "/api/v1/callbacks"


@pytest.fixture
async def ground(tmp_path: Path) -> AsyncIterator[Ground]:
    async with open_tasks(tmp_path) as ground:
        yield ground


def token_of(run: Run) -> str:
    """The run's callback token, which the store does not have."""
    return CLEAR.find_token(run.uid, run.callback_hash or "")


async def pending(ground: Ground, **members: Any) -> Run:
    """An asynchronous run that was accepted and waits for its callback."""
    task = await ground.make_task(exec_type="ASYNC", **members)
    started = await ground.ask("POST", f"/api/v1/tasks/{task['id']}/trigger", status=202)
    return await ground.finish(started["run_id"], "CALLBACK_PENDING")


@pytest.mark.spec("C16", "C17", "X9")
async def test_a_callback_by_token_ends_the_run_and_is_kept_as_it_came(ground: Ground) -> None:
    run = await pending(ground)
    body = b'{"status": "SUCCESS",  "data": {"rows": 7}, "colour": "red"}'
    reply = await ground.http.post(
        f"{CALLBACKS}/{token_of(run)}",
        content=body,
        headers={"Authorization": "Bearer x", "X-Mine": "1"},
    )
    assert (reply.status_code, reply.json()) == (200, {"run_id": run.id, "final_status": "SUCCESS"})
    shown = await ground.ask("GET", f"/api/v1/runs/{run.id}")
    assert (shown["status"], shown["final_status"]) == ("CALLBACK_SUCCESS", "SUCCESS")
    assert (shown["callback_data"], shown["callback_token"]) == ({"rows": 7}, "***")
    assert [(one["body"], one["status"]) for one in shown["callbacks"]] == [
        (body.decode(), "RECEIVED")
    ]

    def headers(tx: Any) -> str:
        return str(tx.runs._session.raw("SELECT headers_json FROM async_callbacks")[0])

    kept = await ground.store.read(headers)
    assert '"authorization":"***"' in kept
    assert '"x-mine":"1"' in kept


@pytest.mark.spec("C16")
async def test_a_failed_callback_says_why(ground: Ground) -> None:
    run = await pending(ground)
    path = f"{CALLBACKS}/{token_of(run)}"
    answer = await ground.ask(
        "POST", path, {"status": "FAILED", "error_message": "no rows"}, status=200
    )
    assert answer == {"run_id": run.id, "final_status": "FAILED"}
    assert (await ground.ask("GET", f"/api/v1/runs/{run.id}"))["error_message"] == "no rows"


@pytest.mark.spec("C16", "C17")
async def test_a_repeat_on_a_finished_run_is_answered_and_recorded_as_ignored(
    ground: Ground,
) -> None:
    run = await pending(ground)
    path = f"{CALLBACKS}/{token_of(run)}"
    await ground.ask("POST", path, {"status": "SUCCESS"}, status=200)
    again = await ground.ask("POST", path, {"status": "FAILED"}, status=200)
    assert again == {"run_id": run.id, "final_status": "SUCCESS"}
    shown = await ground.ask("GET", f"/api/v1/runs/{run.id}")
    assert [one["status"] for one in shown["callbacks"]] == ["RECEIVED", "IGNORED"]


@pytest.mark.spec("C16")
async def test_a_token_outlives_its_run_by_an_hour(ground: Ground) -> None:
    run = await pending(ground)
    path = f"{CALLBACKS}/{token_of(run)}"
    await ground.ask("POST", path, {"status": "SUCCESS"}, status=200)
    await ground.clock.advance(HOUR + MINUTE)
    assert (await ground.ask("POST", path, {"status": "SUCCESS"}, status=404))[
        "code"
    ] == "NOT_FOUND"


@pytest.mark.spec("C16")
async def test_a_callback_before_the_first_call_returned_is_taken(ground: Ground) -> None:
    task = await ground.make_task(exec_type="ASYNC")
    started = await ground.ask("POST", f"/api/v1/tasks/{task['id']}/trigger", status=202)
    run = await ground.start(started["run_id"])
    answer = await ground.ask(
        "POST", f"{CALLBACKS}/{token_of(run)}", {"status": "SUCCESS"}, status=200
    )
    assert answer["final_status"] == "SUCCESS"


@pytest.mark.spec("C16")
async def test_a_running_callback_moves_the_deadline(ground: Ground) -> None:
    run = await pending(ground)
    path = f"{CALLBACKS}/{token_of(run)}"
    await ground.clock.advance(4 * MINUTE)
    answer = await ground.ask(
        "POST", path, {"status": "RUNNING", "progress": 0.4, "extend_sec": 120}, status=200
    )
    assert answer == {
        "run_id": run.id,
        "final_status": None,
        "callback_deadline": "2026-01-01T00:06:00Z",
    }
    kept = await ground.ask("POST", path, {"status": "RUNNING"}, status=200)
    assert kept["callback_deadline"] == "2026-01-01T00:06:00Z"
    await ground.refused("POST", path, {"status": "RUNNING", "extend_sec": -1}, "extend_sec")


@pytest.mark.spec("C16")
@pytest.mark.parametrize("method", ["PUT", "PATCH"])
async def test_the_method_accepted_is_the_tasks_own(ground: Ground, method: str) -> None:
    run = await pending(ground, callback_method=method)
    path = f"{CALLBACKS}/{token_of(run)}"
    wrong = await ground.ask("POST", path, {"status": "SUCCESS"}, status=405)
    assert method in wrong["message"]
    assert (await ground.ask(method, path, {"status": "SUCCESS"}, status=200))[
        "final_status"
    ] == "SUCCESS"


@pytest.mark.spec("C16")
async def test_a_callback_by_get_speaks_in_its_query(ground: Ground) -> None:
    run = await pending(ground, callback_method="GET")
    path = f"{CALLBACKS}/{token_of(run)}"
    await ground.refused("GET", path, None, "status")
    await ground.ask("POST", path, {"status": "SUCCESS"}, status=405)
    assert (await ground.http.head(f"{path}?status=SUCCESS")).status_code == 405
    answer = await ground.ask(
        "GET", f"{path}?status=FAILED&error_message=no+rows&data=x&more=1", status=200
    )
    assert answer["final_status"] == "FAILED"
    shown = await ground.ask("GET", f"/api/v1/runs/{run.id}")
    assert (shown["error_message"], shown["callback_data"]) == ("no rows", "x")


@pytest.mark.spec("C16", "X8")
@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "status"),
        ({"status": "DONE"}, "status"),
        ({"status": 5}, "status"),
        ({"status": "FAILED", "error_message": 5}, "error_message"),
        ({"status": "RUNNING", "progress": "x"}, "progress"),
    ],
)
async def test_a_callback_that_says_nothing_sound_is_refused(
    ground: Ground, body: dict[str, Any], field: str
) -> None:
    run = await pending(ground)
    await ground.refused("POST", f"{CALLBACKS}/{token_of(run)}", body, field)
    assert (await ground.find_run(run.id)).status == "CALLBACK_PENDING"


@pytest.mark.spec("C16", "X8")
async def test_unknown_tokens_and_bodies_that_are_not_json(ground: Ground) -> None:
    run = await pending(ground)
    await ground.ask("POST", f"{CALLBACKS}/{'0' * 32}", {"status": "SUCCESS"}, status=404)
    await ground.ask("POST", f"{CALLBACKS}/x", {"status": "SUCCESS"}, status=404)
    for content in (
        b"",
        b"{",
        b"status=SUCCESS",
        b'{"status":"SUCCESS"} x',
        b'{"status":"SUCCESS","data":"\xff"}',
    ):
        reply = await ground.http.post(f"{CALLBACKS}/{token_of(run)}", content=content)
        assert (reply.status_code, reply.json()["code"]) == (400, "INVALID_JSON"), content


@pytest.mark.spec("C16")
async def test_a_callback_by_task_and_run(ground: Ground) -> None:
    run = await pending(ground)
    other = await ground.make_task(name="other")
    body = {
        "task_id": run.task_id,
        "run_id": run.id,
        "status": "SUCCESS",
        "data": [1],
        "free": True,
    }
    await ground.ask("POST", CALLBACKS, {**body, "task_id": other["id"]}, status=404)
    await ground.ask("POST", CALLBACKS, {**body, "run_id": 99}, status=404)
    await ground.refused("POST", CALLBACKS, {"status": "SUCCESS"}, "task_id")
    await ground.refused("POST", CALLBACKS, {**body, "run_id": "x"}, "run_id")
    answer = await ground.ask("POST", CALLBACKS, {**body, "run_id": str(run.id)}, status=200)
    assert answer == {"run_id": run.id, "final_status": "SUCCESS"}


@pytest.mark.spec("C16")
async def test_a_synchronous_run_takes_no_callback(ground: Ground) -> None:
    task = await ground.make_task()
    started = await ground.ask("POST", f"/api/v1/tasks/{task['id']}/trigger", status=202)
    body = {"task_id": task["id"], "run_id": started["run_id"], "status": "SUCCESS"}
    assert (await ground.ask("POST", CALLBACKS, body, status=409))["current"] == {
        "status": "SCHEDULED"
    }


@pytest.mark.spec("C16")
async def test_the_form_without_a_token_can_be_turned_off(tmp_path: Path) -> None:
    async with open_tasks(tmp_path, identity_mode=False) as ground:
        run = await pending(ground)
        body = {"task_id": run.task_id, "run_id": run.id, "status": "SUCCESS"}
        assert (await ground.ask("POST", CALLBACKS, body, status=404))["code"] == "NOT_FOUND"


@pytest.mark.spec("C16", "X19")
async def test_once_keys_exist_a_token_still_suffices_and_the_other_form_needs_a_write_key(
    ground: Ground,
) -> None:
    run = await pending(ground)
    body = {"task_id": run.task_id, "run_id": run.id, "status": "SUCCESS"}
    await ground.core.keys.create_key("reader", ["tasks:read"])
    await ground.ask("POST", CALLBACKS, body, status=401)
    await ground.ask("POST", f"{CALLBACKS}/{token_of(run)}", {"status": "SUCCESS"}, status=200)
