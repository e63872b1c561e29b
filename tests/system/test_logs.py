"""The log of the real process: JSON and nothing else, a line for each request if asked for, and a
level that changes while it runs."""

import json
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import connect

from tests.ground.child import wait_for
from tests.ground.process import Program, run_cli

pytestmark = pytest.mark.spec("X16")


def read_lines(program: Program, **members: Any) -> list[dict[str, Any]]:
    """All lines, each of which must be JSON, that have these members."""
    lines = [json.loads(line) for line in program.log_text().splitlines()]
    return [line for line in lines if members.items() <= line.items()]


def change(program: Program, **members: Any) -> dict[str, Any]:
    answer = program.request("PATCH", "/api/v1/logging", json=members)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


@pytest.mark.spec("X1", "X14")
def test_stdout_and_stderr_together_are_json_line_by_line(program: Program) -> None:
    program.start()
    program.get("/api/v1/tasks")
    assert program.terminate() == 0
    [started] = read_lines(program, msg="started")
    assert started["address"] == f"http://127.0.0.1:{program.port}"
    assert started["store"] == f"sqlite:///{program.data_dir / 'ksana.db'}"
    assert (started["found"]["tasks"], started["last_served"]) == (0, None)
    assert read_lines(program)[-1]["msg"] == "stopped"
    program.start()
    assert read_lines(program, msg="started")[-1]["last_served"] is not None


def test_each_request_is_a_line_if_that_is_turned_on(program: Program) -> None:
    program.args = ["--log-access"]
    program.start()
    submit = {"addon_id": "a", "job_type": "t", "cost_units": 1}
    assert program.post("/api/scheduler/jobs/submit", submit).status_code == 201
    token = "0123456789abcdef0123456789abcdef"
    program.post(f"/api/v1/callbacks/{token}", {"status": "SUCCESS"})
    program.get("/api/v1/runs?status=FAILED&page=2", headers={"X-Request-Id": "mine"})
    program.get("/nowhere?token=hush&limit=1")
    lines = {line["url"]: line for line in read_lines(program, msg="request")}
    line = lines["/api/scheduler/jobs/submit"]
    assert (line["status"], line["method"], line["client"]) == (201, "POST", "127.0.0.1")
    assert line["route"] == line["url"] and line["bytes"] > 100
    assert 0 < line["latency_ms"] < 10_000
    assert lines["/api/v1/runs?status=FAILED&page=2"]["request_id"] == "mine"
    assert lines["/api/v1/callbacks/***"]["status"] == 404
    unknown = lines["/nowhere?token=***&limit=1"]
    assert (unknown["status"], unknown["route"]) == (404, "unknown")
    assert "hush" not in program.log_text() and token not in program.log_text()


def test_streams_and_sockets_are_lines_when_they_end(program: Program) -> None:
    program.args = ["--log-access"]
    program.start()
    with program.client.stream("GET", "/api/v1/events/stream") as stream:
        next(stream.iter_lines())
    with connect(f"ws://127.0.0.1:{program.port}/ws/node"):
        pass

    def routes() -> set[tuple[str, int]]:
        return {(one["route"], one["status"]) for one in read_lines(program, msg="request")}

    wanted = {("/api/v1/events/stream", 200), ("/ws/node", 101)}
    wait_for(lambda: wanted <= routes(), "both are logged")


def test_the_log_is_changed_while_the_server_runs(program: Program) -> None:
    program.start()
    assert program.get("/api/v1/logging").json() == {"level": "info", "access": False}
    program.get("/health?before=1")
    assert change(program, access=True) == {"level": "info", "access": True}
    program.get("/health?before=2")
    assert change(program, level="error") == {"level": "error", "access": True}
    program.get("/health?before=3")
    change(program, level="debug", access=True)
    program.get("/health?before=4")
    change(program, access=False)
    program.get("/health?before=5")
    urls = [line["url"] for line in read_lines(program, route="/health")]
    assert urls == ["/health?before=2", "/health?before=4"]
    for body, field in (({"level": "loud"}, "level"), ({"volume": 1}, "volume")):
        answer = program.request("PATCH", "/api/v1/logging", json=body)
        assert (answer.status_code, answer.json()["field"]) == (400, field)
    program.restart()
    assert program.get("/api/v1/logging").json() == {"level": "info", "access": False}


@pytest.mark.spec("X19")
def test_only_who_may_administer_everything_changes_the_log(program: Program) -> None:
    program.start()
    env = {"KSANA_DATA": str(program.data_dir)}
    keys = {}
    for scope in ("*:write", "*:admin"):
        code, text = run_cli(
            "key", "create", "--name", scope, "--scope", scope, env=env, cwd=program.data_dir
        )
        assert code == 0, text
        keys[scope] = next(word for word in text.split() if word.startswith("ksana_"))

    def ask(scope: str) -> int:
        head = {"Authorization": f"Bearer {keys[scope]}"}
        body = {"access": True}
        return program.request("PATCH", "/api/v1/logging", json=body, headers=head).status_code

    wait_for(lambda: ask("*:write") == 403, "the key binds")
    assert ask("*:admin") == 200


def test_a_terminal_gets_lines_for_people(tmp_path: Path) -> None:
    with Program(tmp_path, args=["--log-format", "console"]) as program:
        program.start()
        text = program.log_text()
    assert f"listens on http://127.0.0.1:{program.port}" in text
    assert "INFO    started" in text and not text.startswith("{")
