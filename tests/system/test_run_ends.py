"""Every way in which a run or a job can end, against the real process: each is counted once in
/metrics, and each that is not a success is one line of the log."""

import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.ground.child import wait_for
from tests.ground.process import Program
from tests.ground.target import Answer, Hang, Hold, Target
from tests.ground.tasks import list_runs, make_task, trigger, wait_for_run, wait_until_quiet

ENDS = (
    *("SUCCESS", "CALLBACK_SUCCESS", "FAILED", "TIMEOUT"),
    *("FAILED_TIMEOUT", "SKIPPED", "CANCELED"),
)


def read_metrics(program: Program) -> dict[str, dict[str, float]]:
    """Values by name, then by the values of their labels."""
    found: dict[str, dict[str, float]] = {}
    for family in text_string_to_metric_families(program.get("/metrics").text):
        for sample in family.samples:
            found.setdefault(sample.name, {})[",".join(sample.labels.values())] = sample.value
    return found


def read_log(program: Program, **members: Any) -> list[dict[str, Any]]:
    """The lines that have these members."""
    lines = [json.loads(line) for line in program.log_text().splitlines() if line.startswith("{")]
    return [line for line in lines if members.items() <= line.items()]


def call_back(target: Target, program: Program, path: str, status: str) -> None:
    """Answer the one call that came to a path, by its callback."""
    [request] = target.wait_for(1, path)
    token = request.headers["x-callback-token"]
    answer = program.post(f"/api/v1/callbacks/{token}", {"status": status})
    assert answer.status_code == 200, answer.text


@pytest.mark.spec("C21", "X17")
def test_every_series_of_ends_is_there_at_0_from_the_start(program: Program) -> None:
    program.start()
    found = read_metrics(program)
    assert found["cronjob_run_total"] == dict.fromkeys(ENDS, 0)
    assert found["ksana_misfires_total"] == {"": 0}
    ended = found["ksana_queue_jobs_ended_total"]
    assert ended == {"DONE": 0, "FAILED": 0, "CANCELED": 0, "TIMEOUT": 0}
    for name in (
        "ksana_queue_jobs_submitted_total",
        "ksana_queue_leases_expired_total",
        "ksana_queue_wait_seconds_count",
        "ksana_queue_run_seconds_count",
        "ksana_run_lateness_seconds_count",
    ):
        assert found[name] == {"": 0}, name
    assert set(found["ksana_loop_restarts_total"].values()) == {0}
    assert {"firing", "queue-leasing"} <= set(found["ksana_loop_restarts_total"])
    assert set(found["ksana_alert_events_total"].values()) == {0}
    assert {"RUN_FAILED", "TASK_MISSED", "JOB_TIMEOUT"} <= set(found["ksana_alert_events_total"])
    assert set(found["ksana_clock_steps_total"]) == {"back", "forward"}


def end_in_every_way(program: Program, target: Target) -> dict[str, int]:
    """Let runs end in every way there is; their ids by what happened to them."""
    held = Hold()
    target.on("/held", held)
    target.on("/hang", Hang())
    target.on("/missing", Answer(404))
    target.on("/flaky", Answer(503), Answer(200))
    for path in ("/well", "/badly", "/never"):
        target.on(path, Answer(202))
    once: dict[str, Any] = {"retry_policy": {"max_retries": 0}}
    later: dict[str, Any] = {**once, "exec_type": "ASYNC", "callback_timeout_sec": 30}
    ways: dict[str, dict[str, Any]] = {
        "ok": {},
        "missing": once,
        "hang": {**once, "timeout_seconds": 1},
        "flaky": {"retry_policy": {"max_retries": 1, "initial_delay": 0}},
        "well": later,
        "badly": later,
        "never": {**later, "callback_timeout_sec": 1},
        "held": {"timeout_seconds": 60},
    }
    ended = {
        name: trigger(program, make_task(program, name, target.url(f"/{name}"), **members))
        for name, members in ways.items()
    }
    target.wait_for(1, "/held")
    policy: dict[str, Any] = {"concurrency_policy": "SKIP", "max_concurrency": 1}
    busy = make_task(program, "busy", target.url("/held"), "100ms", **policy)
    for name, status in (("well", "SUCCESS"), ("badly", "FAILED")):
        wait_for_run(program, ended[name], "CALLBACK_PENDING")
        call_back(target, program, f"/{name}", status)
    wait_for(lambda: list_runs(program, status="SKIPPED"), "a slot is skipped")
    program.request("DELETE", f"/api/v1/tasks/{busy['id']}")
    assert program.post(f"/api/v1/runs/{ended['held']}/cancel").status_code == 200
    held.release()
    for run_id in ended.values():
        wait_for_run(program, run_id)
    wait_until_quiet(program)
    return ended


@pytest.mark.spec("C21", "X16", "X17")
def test_every_end_of_a_run_is_counted_once_and_the_bad_ones_are_logged(
    program: Program, target: Target
) -> None:
    program.start()
    ended = end_in_every_way(program, target)
    by_status = Counter(run["status"] for run in list_runs(program))
    assert set(by_status) == set(ENDS)
    found = read_metrics(program)
    assert found["cronjob_run_total"] == by_status
    assert found["ksana_run_lateness_seconds_count"][""] >= 1
    assert found["ksana_alert_events_total"]["RUN_FAILED"] == by_status["FAILED"]
    assert found["ksana_alert_events_total"]["RUN_FAILED_TIMEOUT"] == 1

    def lines(name: str) -> list[tuple[str, str]]:
        return [(one["status"], one["level"]) for one in read_log(program, run_id=ended[name])]

    wait_for(lambda: lines("never"), "the last end is logged")
    assert lines("ok") == lines("well") == []
    assert lines("missing") == [("FAILED", "warning")]
    assert lines("hang") == [("TIMEOUT", "warning")]
    assert lines("flaky") == [("RETRYING", "warning")], "an answer that is retried is a line too"
    assert lines("badly") == [("FAILED", "warning")]
    assert lines("never") == [("FAILED_TIMEOUT", "warning")]
    assert lines("held") == [("CANCELED", "info")]
    skipped = read_log(program, status="SKIPPED")
    assert len(skipped) == by_status["SKIPPED"] and skipped[0]["level"] == "info"
    alerts = Counter(line["status"] for line in read_log(program, alert=True))
    assert alerts == {"FAILED": by_status["FAILED"], "TIMEOUT": 1, "FAILED_TIMEOUT": 1}
    check_floats(program)


def check_floats(program: Program) -> None:
    """A number with a fraction has three digits of it at most."""

    def refuse_long(text: str) -> float:
        assert len(text.partition(".")[2]) <= 3, f"{text} is a raw float"
        return float(text)

    for line in program.log_text().splitlines():
        if line.startswith("{"):
            json.loads(line, parse_float=refuse_long)


@pytest.mark.spec("C19", "X16")
def test_a_run_whose_holder_died_is_counted_and_logged_by_who_ends_it(
    program: Program, target: Target
) -> None:
    target.on("/held", Hang())
    program.start()
    task = make_task(
        program, "held", target.url("/held"), timeout_seconds=60, retry_policy={"max_retries": 0}
    )
    run_id = trigger(program, task)
    target.wait_for(1, "/held")
    program.kill9()
    program.start()
    assert wait_for_run(program, run_id, within_s=30)["status"] == "FAILED"
    assert read_metrics(program)["cronjob_run_total"]["FAILED"] == 1
    wait_for(lambda: read_log(program, run_id=run_id), "it is logged")
    [line] = read_log(program, run_id=run_id)
    assert (line["level"], line["alert"]) == ("warning", True)
    assert "died" in line["err"]


@pytest.mark.fault("F02")
@pytest.mark.spec("C10", "C21", "T6")
def test_slots_missed_in_an_outage_are_counted_by_the_start_after_it(
    tmp_path: Path, target: Target
) -> None:
    with Program(tmp_path) as program:
        program.start()
        task = make_task(program, "often", target.url("/often"), "1s", misfire_policy="SKIP")
        target.wait_for(1, "/often")
        program.kill9()
        time.sleep(2.5)  # slots pass while nobody runs
        program.start()
        wait_for(lambda: read_metrics(program)["ksana_misfires_total"][""] >= 2, "they are counted")
        found = read_metrics(program)
        assert found["cronjob_misfire_total"][str(task["id"])] == found["ksana_misfires_total"][""]


@pytest.mark.spec("Q8", "Q14", "X16", "X17")
def test_every_end_of_a_queue_job_is_counted_once_and_the_bad_ones_are_logged(
    program: Program,
) -> None:
    program.start()

    def call(path: str, **body: Any) -> Any:
        answer = program.post(f"/api/scheduler{path}", body)
        assert answer.status_code in (200, 201), answer.text
        return answer.json()

    def submit(**members: Any) -> str:
        body = {"addon_id": "a", "job_type": "t", "cost_units": 1, **members}
        return str(call("/jobs/submit", **body)["job"]["job_id"])

    def lease(ttl_sec: int = 30) -> dict[str, Any]:
        found = call("/jobs/claim", worker_id="w", lease=True, ttl_sec=ttl_sec)
        return {"worker_id": "w", **{n: found["job"][n] for n in ("job_id", "lease_id")}}

    def release(held: dict[str, Any], **members: Any) -> None:
        call(f"/lease/{held['lease_id']}/release", worker_id="w", **members)

    done = submit()
    release(lease(), status="SUCCEEDED")
    failed = submit()
    release(lease(), status="FAILED", error="no disk")
    again = submit(max_attempts=2)
    release(lease(), status="FAILED", error="not yet")
    cancelled = submit(priority="LOW")
    call(f"/jobs/{cancelled}/cancel", reason="not wanted")
    late = submit(priority="URGENT")
    lease(ttl_sec=1)
    wait_for(
        lambda: program.get(f"/api/scheduler/jobs/{late}").json()["job"]["state"] == "TIMEOUT",
        "the lease runs out",
    )

    found = read_metrics(program)
    ended = {"DONE": 1, "FAILED": 1, "CANCELED": 1, "TIMEOUT": 1}
    assert found["ksana_queue_jobs_ended_total"] == ended
    assert found["ksana_queue_jobs_submitted_total"] == {"": 5}
    assert found["ksana_queue_leases_expired_total"] == {"": 1}
    assert found["ksana_queue_wait_seconds_count"] == {"": 4}
    waited = found["ksana_queue_wait_seconds_bucket"]
    assert waited["+Inf"] == 4 and waited["8.192"] == 4
    assert 0 < found["ksana_queue_wait_seconds_sum"][""] < 10
    assert found["ksana_queue_run_seconds_sum"][""] >= 1

    wait_for(lambda: read_log(program, job_id=late), "the last end is logged")
    assert read_log(program, job_id=done) == []
    for job_id, event, level, words in (
        (failed, "JOB_FAILED", "warning", "no disk"),
        (again, "JOB_REQUEUED", "warning", "not yet"),
        (cancelled, "JOB_CANCELED", "info", None),
        (late, "JOB_TIMEOUT", "warning", None),
    ):
        [line] = read_log(program, job_id=job_id)
        assert (line["event_type"], line["level"]) == (event, level)
        assert words is None or line["err"] == words
