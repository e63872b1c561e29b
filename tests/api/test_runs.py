"""Runs over HTTP (C5, C6, C12)."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from ksana.api.tasks.runs import RunStatus
from ksana.base.instant import MINUTE
from ksana.domain.lifecycle import RUN
from ksana.domain.schedule import Every
from ksana.domain.tasks.records import Definition, target_of
from tests.api.tasks_ground import Ground, open_tasks

RUNS = "/api/v1/runs"


@pytest.fixture
async def ground(tmp_path: Path) -> AsyncIterator[Ground]:
    async with open_tasks(tmp_path) as ground:
        yield ground


async def trigger(ground: Ground, task: dict[str, Any]) -> dict[str, Any]:
    return await ground.ask("POST", f"/api/v1/tasks/{task['id']}/trigger", status=202)  # type: ignore[no-any-return]


@pytest.mark.spec("C12")
def test_the_filter_knows_every_status() -> None:
    assert frozenset(get_args(RunStatus)) == RUN.states


@pytest.mark.spec("C5", "X7")
async def test_a_run_is_answered_whole_by_either_id(ground: Ground) -> None:
    task = await ground.make_task()
    started = await trigger(ground, task)
    await ground.clock.advance(MINUTE)
    attempts = '[{"attempt":1,"status":"SUCCESS","timing":{"total_ms":3}}]'
    await ground.finish(
        started["run_id"],
        request_headers='{"Authorization":"Bearer x","X-A":"1"}',
        request_body="{}",
        response_truncated=1,
        response_encoding="base64",
        attempts=attempts,
    )
    run = await ground.ask("GET", f"{RUNS}/{started['uid']}", status=200)
    assert run == await ground.ask("GET", f"{RUNS}/{started['run_id']}")
    assert run == await ground.ask("GET", f"{RUNS}/{started['uid'].upper()}")
    expected = {
        "id": 1,
        "uid": started["uid"],
        "task_id": 1,
        "job_id": task["job_id"],
        "scheduled_time": "2026-01-01T00:00:00Z",
        "start_time": "2026-01-01T00:01:00Z",
        "end_time": "2026-01-01T00:01:00Z",
        "status": "SUCCESS",
        "final_status": "SUCCESS",
        "attempt": 1,
        "trigger": "manual",
        "request_body": "{}",
        "request_headers": {"Authorization": "***", "X-A": "1"},
        "response_code": 200,
        "response_body": "fine",
        "response_truncated": True,
        "response_encoding": "base64",
        "error_message": None,
        "next_retry_time": None,
        "callback_token": None,
        "callback_deadline": None,
        "callback_data": None,
        "callbacks": [],
        "retry_of": None,
        "reason": "ANSWERED_2XX",
        "created_at": "2026-01-01T00:00:00Z",
    }
    assert {name: run[name] for name in expected} == expected
    assert run["attempts"] == [{"attempt": 1, "status": "SUCCESS", "timing": {"total_ms": 3}}]
    assert len(run["trace_id"]) == 32


@pytest.mark.spec("C5", "X8")
async def test_an_id_that_cannot_be_one_and_one_that_is_unknown(ground: Ground) -> None:
    for method, path in (("GET", ""), ("POST", "/cancel"), ("POST", "/retry")):
        for bad in ("abc", "0", "g" * 32, "-5"):
            assert (await ground.ask(method, f"{RUNS}/{bad}{path}", status=400))[
                "code"
            ] == "INVALID_ID"
        for unknown in ("7", "a" * 32):
            assert (await ground.ask(method, f"{RUNS}/{unknown}{path}", status=404))[
                "code"
            ] == "NOT_FOUND"


@pytest.mark.spec("C5")
async def test_runs_are_listed_newest_first_with_filters_and_totals(ground: Ground) -> None:
    one = await ground.make_task(name="one", concurrency_policy="PARALLEL")
    two = await ground.make_task(name="two")
    ids = []
    for _ in range(3):
        ids.append((await trigger(ground, one))["run_id"])
        await ground.clock.advance(MINUTE)
    other = (await trigger(ground, two))["run_id"]
    await ground.finish(ids[0])
    everything = await ground.ask("GET", RUNS, status=200)
    assert ([run["id"] for run in everything["items"]], everything["total"]) == (
        [other, *reversed(ids)],
        4,
    )
    mine = await ground.ask("GET", f"/api/v1/tasks/{one['id']}/runs?page=2&page_size=2")
    assert (
        [run["id"] for run in mine["items"]],
        mine["total"],
        mine["page"],
        mine["page_size"],
    ) == ([ids[0]], 3, 2, 2)
    assert mine["items"][0]["job_id"] == one["job_id"]
    assert [
        run["id"] for run in (await ground.ask("GET", f"{RUNS}?task_id={two['id']}"))["items"]
    ] == [other]
    assert [run["id"] for run in (await ground.ask("GET", f"{RUNS}?status=SUCCESS"))["items"]] == [
        ids[0]
    ]
    window = await ground.ask(
        "GET", f"{RUNS}?from=2026-01-01T00:01:00Z&to=2026-01-01T08:03:00%2B08:00"
    )
    assert [run["id"] for run in window["items"]] == [ids[2], ids[1]]
    lost_plus = await ground.ask("GET", f"{RUNS}?from=2026-01-01T08:02:00+08:00", status=200)
    assert [run["id"] for run in lost_plus["items"]] == [other, ids[2]]
    await ground.ask("GET", f"{RUNS}?task_id=99", status=404)


@pytest.mark.spec("C5", "X13")
async def test_a_list_goes_on_from_its_cursor_and_says_what_its_total_is(ground: Ground) -> None:
    task = await ground.make_task(concurrency_policy="PARALLEL")
    ids = []
    for _ in range(5):
        ids.append((await trigger(ground, task))["run_id"])
        await ground.clock.advance(MINUTE)
    newest = list(reversed(ids))
    span = "from=2026-01-01T00:01:00Z&to=2026-01-02T00:00:00Z"
    for query, expected in (
        ("", newest),
        ("status=SCHEDULED", newest),
        (f"task_id={task['id']}", newest),
        (f"task_id={task['id']}&status=SCHEDULED", newest),
        (span, newest[:4]),
        (f"{span}&status=SCHEDULED", newest[:4]),
        (f"{span}&status=FAILED", []),
    ):
        seen, cursor, pages = [], None, 0
        while pages == 0 or cursor is not None:
            after = "" if cursor is None else f"&cursor={cursor}"
            page = await ground.ask("GET", f"{RUNS}?{query}&page_size=2{after}", status=200)
            assert (page["total"], page["total_is"]) == (len(expected), "exact"), query
            seen += [run["id"] for run in page["items"]]
            cursor, pages = page["next_cursor"], pages + 1
        assert seen == expected, query
        assert pages == max(1, -(-len(expected) // 2)), query
    by_time = (await ground.ask("GET", f"{RUNS}?{span}&page_size=1"))["next_cursor"]
    for query in (f"cursor={by_time}", f"{span}&cursor=3", "cursor=x", "cursor=1_2_3"):
        refused = await ground.refused("GET", f"{RUNS}?{query}", None, "cursor")
        assert "next_cursor" in refused["message"]


@pytest.mark.spec("C5", "X13")
@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("status=DONE", "status"),
        ("from=yesterday", "from"),
        ("to=2026-01-01T00:00:00", "to"),
        ("page=0", "page"),
        ("page_size=501", "page_size"),
        ("task_id=x", "task_id"),
    ],
)
async def test_a_bad_filter_is_refused_by_name(ground: Ground, query: str, field: str) -> None:
    await ground.refused("GET", f"{RUNS}?{query}", None, field)


@pytest.mark.spec("C6", "C12", "X12")
async def test_unfinished_runs_can_be_cancelled_and_finished_ones_not(ground: Ground) -> None:
    task = await ground.make_task(concurrency_policy="PARALLEL")
    scheduled = await trigger(ground, task)
    answer = await ground.ask("POST", f"{RUNS}/{scheduled['run_id']}/cancel", status=200)
    assert answer == {"run_id": scheduled["run_id"], "status": "CANCELED"}
    again = await ground.ask("POST", f"{RUNS}/{scheduled['uid']}/cancel", status=409)
    assert (again["code"], again["current"]) == ("ILLEGAL_TRANSITION", {"status": "CANCELED"})
    running = await trigger(ground, task)
    held = await ground.start(running["run_id"])
    await ground.ask("POST", f"{RUNS}/{running['run_id']}/cancel", status=200)
    run = await ground.find_run(running["run_id"])
    assert (run.status, run.token != held.token) == ("CANCELED", True)
    pending = await trigger(ground, task)
    await ground.finish(pending["run_id"], "CALLBACK_PENDING")
    await ground.ask("POST", f"{RUNS}/{pending['run_id']}/cancel", status=200)


@pytest.mark.spec("C6", "C11")
async def test_a_cancel_lets_the_next_in_line_start(ground: Ground) -> None:
    task = await ground.make_task()
    first, second = await trigger(ground, task), await trigger(ground, task)
    assert (await ground.find_run(second["run_id"])).ready_host is None
    await ground.ask("POST", f"{RUNS}/{first['run_id']}/cancel", status=200)
    assert (await ground.find_run(second["run_id"])).ready_host == "target.test"


@pytest.mark.spec("C6")
async def test_a_finished_run_is_run_again_as_a_new_one(ground: Ground) -> None:
    task = await ground.make_task()
    first = await trigger(ground, task)
    await ground.ask("POST", f"{RUNS}/{first['run_id']}/retry", status=409)
    await ground.finish(first["run_id"], "FAILED", error_message="HTTP 500")
    again = await ground.ask("POST", f"{RUNS}/{first['uid']}/retry", status=202)
    run = await ground.ask("GET", f"{RUNS}/{again['uid']}")
    assert (run["id"], run["trigger"], run["retry_of"]) == (
        again["run_id"],
        "retry",
        first["run_id"],
    )


@pytest.mark.spec("C3", "C5")
async def test_the_history_of_a_deleted_task_stays(ground: Ground) -> None:
    task = await ground.make_task()
    started = await trigger(ground, task)
    await ground.ask("DELETE", f"/api/v1/tasks/{task['id']}", status=200)
    run = await ground.ask("GET", f"{RUNS}/{started['run_id']}", status=200)
    assert (run["status"], run["job_id"]) == ("CANCELED", task["job_id"])
    assert (await ground.ask("GET", f"/api/v1/tasks/{task['id']}/runs", status=200))["total"] == 1


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://user:secret@api.test:8443/a/b?token=1#x", "POST api.test:8443/a/b"),
        ("http://api.test", "POST api.test"),
        ("http://api.test?key=/1", "POST api.test"),
    ],
)
def test_a_target_in_short_has_no_query_and_no_user(url: str, shown: str) -> None:
    definition = Definition("", "", Every(1, 0, False), http_method="POST", target_url=url)
    assert target_of(definition) == shown
    assert target_of(msgspec.structs.replace(definition, target_url="")) is None
