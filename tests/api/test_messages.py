"""What a careless caller is told: each refusal names the member and the way to write it."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.ground.process import Program

TASK = {"name": "a", "target_url": "http://127.0.0.1:9/", "cron_expr": "0 3 * * *"}
TIMER = {"schedule": {"kind": "every", "every": "1h"}, "http": {"url": "http://127.0.0.1:9/"}}
JOB = {"addon_id": "a", "job_type": "b", "cost_units": 5}
TASKS, TIMERS, JOBS = "/api/v1/tasks", "/jobs", "/api/scheduler/jobs/submit"


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    with Program(tmp_path_factory.mktemp("messages")) as served:
        yield served.start()


def refused(answer: Any, field: str | None, words: str) -> None:
    told = answer.json()
    assert answer.status_code == 400, told
    assert told.get("field") == field, told
    assert words in told["message"], told


@pytest.mark.spec("X8", "X9")
@pytest.mark.parametrize(
    ("path", "body", "field", "words"),
    [
        (TASKS, {**TASK, "cron": "x"}, "cron", "did you mean cron_expr? Allowed: cron_expr, body_"),
        (TASKS, {**TASK, "cron_exp": "x"}, "cron_exp", "mean cron_expr? Allowed: cron_expr, "),
        (TASKS, {**TASK, "url": "x"}, "url", "mean target_url? Allowed: target_url, "),
        (TASKS, {**TASK, "timeout": 5}, "timeout", "mean timeout_seconds? Allowed: timeout_s"),
        (TASKS, {**TASK, "method": "GET"}, "method", "mean http_method?"),
        (TASKS, {**TASK, "zzz": 1}, "zzz", "'zzz' is not known here; allowed: body_template, "),
        (TASKS, {**TASK, "schedule": {"cron": "x"}}, "schedule.cron", "mean expr? Allowed: expr, "),
        (TASKS, {**TASK, "schedule": {"interval": 5}}, "schedule.interval", "mean every?"),
        (TASKS, {**TASK, "retry_policy": {"retries": 3}}, "retry_policy.retries", "mean max_retr"),
        (TIMERS, {**TIMER, "url": "x"}, "url", "did you mean http?"),
        (TIMERS, {**TIMER, "http": {"uri": "x"}}, "http.uri", "mean url? Allowed: url, body, "),
        (JOBS, {**JOB, "prioritiy": "LOW"}, "prioritiy", "mean priority? Allowed: priority, addon"),
        ("/scheduler/jobs", {"object_typ": "memory"}, "object_typ", "mean object_type?"),
        ("/api/v1/node-jobs", {"modle": "x"}, "modle", "mean model? Allowed: model, labels, "),
    ],
)
def test_for_an_unknown_member_the_nearest_name_comes_first(
    program: Program, path: str, body: Any, field: str, words: str
) -> None:
    refused(program.post(path, body), field, words)


@pytest.mark.spec("X8")
def test_what_only_the_server_sets_is_not_offered(program: Program) -> None:
    told = program.post(JOBS, {**JOB, "colour": 1}).json()["message"]
    assert "created_at" not in told and "addon_id" in told


@pytest.mark.spec("X8")
@pytest.mark.parametrize(
    ("query", "field", "words"),
    [
        ("runs?pagesize=5", "pagesize", "mean page_size? Allowed: page_size, page, "),
        ("events?limt=5", "limt", "mean limit? Allowed: limit, "),
        ("runs?status=sucess", "status", "did you mean SUCCESS? Allowed: SUCCESS, "),
        ("runs?page_size=abc", "page_size", "must be a whole number, not the text 'abc'"),
    ],
)
def test_a_query_is_told_the_same_way(program: Program, query: str, field: str, words: str) -> None:
    refused(program.get(f"/api/v1/{query}"), field, words)


@pytest.mark.spec("X9")
@pytest.mark.parametrize(
    ("path", "body", "field", "words"),
    [
        (JOBS, {**JOB, "cost_units": 5.0}, "cost_units", "a whole number, not 5.0: write 5"),
        (JOBS, {**JOB, "cost_units": 5.5}, "cost_units", "must be a whole number, not 5.5"),
        (JOBS, {**JOB, "cost_units": "5"}, "cost_units", "not the text '5': write 5 without quo"),
        (JOBS, {**JOB, "cost_units": True}, "cost_units", "must be a whole number, not true"),
        (JOBS, {**JOB, "addon_id": 7}, "addon_id", 'must be a text, not 7: write "7" in quotes'),
        (JOBS, {**JOB, "priority": "high"}, "priority", "did you mean HIGH? Allowed: HIGH, "),
        (JOBS, {**JOB, "priority": 5}, "priority", "not 5; allowed: HIGH, LOW, NORMAL, URGENT"),
        (JOBS, [JOB], None, "the body must be an object, not a list: write an object with memb"),
        (
            TIMERS,
            {**TIMER, "http": {"url": "http://127.0.0.1:9/", "body": {"a": 1}}},
            "http.body",
            'not an object: write it as a text, with its quotes escaped, such as "{\\"a\\": 1}"',
        ),
        (TASKS, {**TASK, "body_template": [1]}, "body_template", "not a list: write it as a text"),
        (TASKS, {**TASK, "max_concurrency": 2.0}, "max_concurrency", "or null, not 2.0: write 2"),
        (TASKS, {**TASK, "template": "true"}, "template", "true, false or null, not the text 'tr"),
        (TASKS, {**TASK, "template": 1}, "template", "not 1: write true"),
        (TASKS, {**TASK, "headers": {"X": 1}}, "headers.X", 'not 1: write "1" in quotes'),
        (TASKS, {**TASK, "tags": "a"}, "tags", "not a text: put it in brackets, [ ]"),
        (TASKS, {**TASK, "retry_policy": 3}, "retry_policy", "an object with members such as max_"),
        (TASKS, {**TASK, "schedule": "0 3 * * *"}, "schedule", "with members such as kind, run_at"),
        (
            TASKS,
            {**TASK, "schedule": {"kind": "once", "run_at": 1_780_000_000}},
            "schedule.run_at",
            'write an RFC 3339 time such as "2026-05-28T20:26:40Z"',
        ),
        (
            TASKS,
            {**TASK, "schedule": {"kind": "once", "run_at": 1_780_000_000_000}},
            "schedule.run_at",
            '"2026-05-28T20:26:40Z"',
        ),
        (
            TASKS,
            {**TASK, "schedule": {"kind": "every", "every": {"minutes": 5}}},
            "schedule.every",
            'write a duration, such as "1h30m", or a number of seconds',
        ),
        (TASKS, {**TASK, "misfire_policy": "skip"}, "misfire_policy", "did you mean SKIP?"),
    ],
)
def test_a_value_of_the_wrong_kind_is_answered_with_the_way_to_write_it(
    program: Program, path: str, body: Any, field: str | None, words: str
) -> None:
    refused(program.post(path, body), field, words)


@pytest.mark.spec("X8")
def test_no_text_that_may_be_a_secret_is_shown(program: Program) -> None:
    for body in ({"headers": "Bearer hush"}, {"headers": {"A": {"b": "hush"}}}, {"tags": "hush"}):
        told = program.post(TASKS, {**TASK, **body}).json()
        assert "hush" not in told["message"], told


@pytest.mark.spec("C4")
@pytest.mark.parametrize(
    ("expr", "words"),
    [
        (
            "TZ=Europe/Berlin 0 3 * * *",
            "'TZ=Europe/Berlin' cannot stand in the expression: write '0 3 * * *' and "
            '"timezone": "Europe/Berlin" beside it',
        ),
        ("CRON_TZ=Asia/Tokyo 0 0 3 * * *", 'write \'0 0 3 * * *\' and "timezone": "Asia/Tokyo"'),
        ("0 3 * * SAT-SUN", "must not run backwards, write SAT,SUN ("),
        ("0 3 * * fri-mon", "write FRI-SAT,SUN-MON ("),
        ("0 3 * * 6-0", "write 6,0 ("),
        ("0 22-2 * * *", "write 22-23,0-2 ("),
        ("0 20-4/3 * * *", "write 20,23,2 ("),
        ("0 3 1 NOV-FEB *", "write NOV-DEC,JAN-FEB ("),
        ("0 3 * * Saturday", "is not valid: write SAT; allowed are"),
        ("@dayly", "did you mean @daily? Allowed are @daily, "),
        ("@every 5m", 'must be written as "schedule": {"kind": "every", "every": "5m"}'),
        ("0 0 3 * * * 2026", "there is no field for the year: bound the schedule by start_at"),
    ],
)
def test_an_expression_of_another_dialect_is_answered_with_ours(
    program: Program, expr: str, words: str
) -> None:
    refused(program.post(TASKS, {**TASK, "cron_expr": expr}), "cron_expr", words)


@pytest.mark.spec("C4")
@pytest.mark.parametrize("hours", ["22-2", "20-4/3", "23-22", "5-4/7"])
def test_what_is_advised_for_a_backward_range_means_what_was_meant(
    program: Program, hours: str
) -> None:
    told = program.post(TASKS, {**TASK, "cron_expr": f"0 {hours} * * *"}).json()["message"]
    advised = told.partition("backwards, write ")[2].partition(" (")[0]
    preview = {"cron_expr": f"0 {advised} * * *", "count": 50, "after": "2026-03-01T00:00:00Z"}
    shown = program.post("/api/v1/schedules/preview", preview).json()["next"]
    span, _, step = hours.partition("/")
    first, last = map(int, span.split("-"))
    meant = {hour % 24 for hour in range(first, last + 25, int(step or 1))}
    assert {int(one["at"][11:13]) for one in shown} == meant


@pytest.mark.spec("C5")
def test_a_city_is_answered_with_its_zone(program: Program) -> None:
    refused(program.post(TASKS, {**TASK, "timezone": "Berlin"}), "timezone", "mean Europe/Berlin?")
