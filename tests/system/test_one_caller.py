"""One caller against the real process: what it holds, fills or floods is bounded."""

import socket
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.ground.child import wait_for
from tests.ground.process import Program, run_cli
from tests.ground.storms import memory_mib
from tests.ground.target import Answer, Target

NEVER = "0 0 0 1 1 *"


@pytest.fixture
def target() -> Iterator[Target]:
    with Target() as one:
        yield one


def make_task(program: Program, target: Target, **members: Any) -> int:
    body = {
        "name": "t",
        "cron_expr": NEVER,
        "target_url": target.url("/t"),
        "http_method": "POST",
        "max_concurrency": 1000,
        "concurrency_policy": "PARALLEL",
        **members,
    }
    answer = program.post("/api/v1/tasks", body)
    assert answer.status_code == 201, answer.text
    return int(answer.json()["id"])


@pytest.mark.spec("C17", "X13")
def test_a_token_holder_cannot_fill_the_disk_with_callbacks(tmp_path: Path, target: Target) -> None:
    target.on("/t", Answer(202))
    with Program(tmp_path) as program:
        program.start()
        task_id = make_task(program, target, exec_type="ASYNC")
        run_id = program.post(f"/api/v1/tasks/{task_id}/trigger", {}).json()["run_id"]
        token = target.wait_for(1)[0].headers["x-callback-token"]
        path = f"/api/v1/callbacks/{token}"
        for size in (*[10] * 130, *[900_000] * 4):
            body = {"status": "RUNNING", "progress": 0.1, "noise": "x" * size}
            assert program.post(path, body).status_code == 200
        assert program.post(path, {"status": "SUCCESS", "data": 7}).status_code == 200
        for _ in range(5):
            assert program.post(path, {"status": "SUCCESS"}).status_code == 200
        run = program.get(f"/api/v1/runs/{run_id}").json()
        assert (run["status"], run["callback_data"]) == ("CALLBACK_SUCCESS", 7)
        with closing(sqlite3.connect(tmp_path / "ksana.db", timeout=10)) as database:
            kept = database.execute("SELECT status FROM async_callbacks ORDER BY id").fetchall()
        assert len(kept) == 102
        assert kept[-2:] == [("CAPPED",), ("RECEIVED",)]
        events = program.get(f"/api/v1/events?entity_type=RUN&entity_id={run_id}").json()["events"]
        capped = [event for event in events if event["type"] == "CALLBACKS_CAPPED"]
        assert len(capped) == 1
        assert capped[0]["data"]["kept"] == 100


@pytest.mark.spec("C17", "X13")
def test_large_callbacks_are_kept_up_to_2_mib(tmp_path: Path, target: Target) -> None:
    target.on("/t", Answer(202))
    with Program(tmp_path) as program:
        program.start()
        task_id = make_task(program, target, exec_type="ASYNC")
        run_id = program.post(f"/api/v1/tasks/{task_id}/trigger", {}).json()["run_id"]
        path = f"/api/v1/callbacks/{target.wait_for(1)[0].headers['x-callback-token']}"
        for _ in range(5):
            body = {"status": "RUNNING", "progress": 0.1, "noise": "x" * 900_000}
            assert program.post(path, body).status_code == 200
        large = {"status": "SUCCESS", "data": 7, "noise": "x" * 900_000}
        assert program.post(path, large).status_code == 200
        run = program.get(f"/api/v1/runs/{run_id}").json()
        assert (run["status"], run["callback_data"]) == ("CALLBACK_SUCCESS", 7)
        with closing(sqlite3.connect(tmp_path / "ksana.db", timeout=10)) as database:
            kept = database.execute(
                "SELECT status, LENGTH(body) FROM async_callbacks ORDER BY id"
            ).fetchall()
        assert [status for status, _ in kept] == ["RECEIVED", "RECEIVED", "CAPPED", "RECEIVED"]
        assert sum(size for _, size in kept) <= 2 << 20
        assert kept[-1][1] == 4096, "the one that ends the run is kept, cut"


@pytest.mark.spec("X19")
def test_a_stream_ends_when_its_key_is_revoked(tmp_path: Path) -> None:
    with Program(tmp_path) as program:
        assert run_cli("migrate", env=program.env, cwd=tmp_path)[0] == 0
        run_cli("migrate", env=program.env, cwd=tmp_path)
        made = run_cli(
            "key", "create", "--name", "a", "--scope", "*:read", env=program.env, cwd=tmp_path
        )[1]
        key = made.strip().splitlines()[-1]
        program.start()
        with socket.create_connection((program.host, program.port), timeout=15) as one:
            one.sendall(
                b"GET /api/v1/events/stream HTTP/1.1\r\nHost: 127.0.0.1\r\n"
                b"Authorization: Bearer %s\r\n\r\n" % key.encode()
            )
            assert b"200 OK" in one.recv(4096)
            code, _ = run_cli("key", "revoke", key, env=program.env, cwd=tmp_path)
            assert code == 0
            rest = b""
            while piece := one.recv(4096):
                rest += piece
                if rest.endswith(b"0\r\n\r\n"):
                    break
            assert rest.endswith(b"0\r\n\r\n")


@pytest.mark.spec("X8", "X13")
@pytest.mark.parametrize("has_keys", [False, True])
def test_a_caller_that_asks_too_fast_is_told_when_to_come_back(
    tmp_path: Path, has_keys: bool
) -> None:
    with Program(tmp_path, env={"KSANA_LIMITS_RATE": "3"}) as program:
        keys = ["", ""]
        if has_keys:
            assert run_cli("migrate", env=program.env, cwd=tmp_path)[0] == 0
            command = ("key", "create", "--name", "a", "--scope", "*:read")
            made = [run_cli(*command, env=program.env, cwd=tmp_path)[1] for _ in range(2)]
            keys = [text.strip().splitlines()[-1] for text in made]
        program.start(until=None)
        wait_for(lambda: '"msg":"started"' in program.log_text(), "it serves")
        headers = [{"X-API-Key": key} if key else {} for key in keys]
        answers = [program.get("/api/v1/tasks", headers=headers[0]) for _ in range(20)]
        refused = [answer for answer in answers if answer.status_code == 429]
        assert refused
        assert refused[0].json()["code"] == "RATE_LIMITED"
        assert int(refused[0].headers["retry-after"]) >= 1
        assert answers[0].status_code == 200
        if has_keys:  # another key has a bucket of its own
            assert program.get("/api/v1/tasks", headers=headers[1]).status_code == 200


SOCKET = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
}


@pytest.mark.spec("X8", "X13", "X19")
@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/api/v1/tasks", {"X-API-Key": "wrong"}, 401),
        ("/api/v1/tasks", {}, 401),
        ("/api/v1/tasks", {"Host": "evil.example"}, 403),
        ("/api/v1/tasks", {"Origin": "http://evil.example"}, 403),
        ("/nowhere", {}, 404),
        ("/ws/node", {**SOCKET, "X-API-Key": "wrong"}, 401),
        ("/ws/nowhere", SOCKET, 404),
    ],
)
def test_a_caller_that_is_refused_is_counted_too(
    limited: Program, path: str, headers: dict[str, str], status: int
) -> None:
    wait_for(lambda: limited.get("/health").status_code == 200, "the bucket has something again")
    answers = [limited.get(path, headers=headers).status_code for _ in range(20)]
    assert set(answers) <= {status, 429}
    assert answers[-1] == 429, answers
    whole = limited.get("/api/v1/keys/self", headers={"X-API-Key": limited.env["A_KEY"]})
    assert whole.status_code == 200, "a key has a bucket of its own"


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    """A server that takes three requests a second, and a key for it."""
    folder = tmp_path_factory.mktemp("limited")
    with Program(folder, env={"KSANA_LIMITS_RATE": "3"}) as program:
        assert run_cli("migrate", env=program.env, cwd=folder)[0] == 0
        command = ("key", "create", "--name", "a", "--scope", "*:read")
        made = run_cli(*command, env=program.env, cwd=folder)[1]
        program.env["A_KEY"] = made.strip().splitlines()[-1]
        program.start(until=None)
        program.wait_for_log('"msg":"started"')
        yield program


@pytest.mark.spec("X13", "Q7", "C2", "C5")
@pytest.mark.parametrize("count", [24, pytest.param(500, marks=pytest.mark.slow)])
def test_a_page_ends_at_8_mib_with_a_cursor(tmp_path: Path, count: int) -> None:
    with Program(tmp_path, env={"KSANA_LOG_LEVEL": "error"}) as program:
        program.start()
        noise = "x" * 960_000
        for number in range(count):
            job = {"addon_id": "a", "job_type": "t", "cost_units": 1, "payload": {"noise": noise}}
            assert program.post("/api/scheduler/jobs/submit", job).status_code == 201
            if number < 60:
                task = {
                    "name": f"t{number}",
                    "cron_expr": NEVER,
                    "target_url": "http://127.0.0.1:9/",
                }
                task["body_template"] = noise
                assert program.post("/api/v1/tasks", task).status_code == 201
        jobs, cursor, pages = 0, None, 0
        while pages == 0 or cursor:
            params = {"limit": "500", **({"cursor": cursor} if cursor else {})}
            answer = program.get("/api/scheduler/jobs", params=params)
            assert len(answer.content) < 9 * 1024 * 1024
            jobs, cursor = jobs + len(answer.json()["jobs"]), answer.json()["next_cursor"]
            pages += 1
        assert jobs == count
        names: list[str] = []
        after = 0
        while True:
            path = f"/api/v1/tasks?page_size=500&cursor={after}"
            answer = program.get(path)
            assert len(answer.content) < 9 * 1024 * 1024
            names += [task["name"] for task in answer.json()["items"]]
            after = answer.json()["next_cursor"]
            if after is None:
                break
        assert names == [f"t{number}" for number in range(min(count, 60))]
        assert memory_mib(program) < 400


@pytest.mark.parametrize("count", [60, pytest.param(300, marks=pytest.mark.slow)])
def test_large_triggers_do_not_stay_in_memory(tmp_path: Path, target: Target, count: int) -> None:
    with Program(tmp_path, env={"KSANA_LOG_LEVEL": "error"}) as program:
        program.start()
        task_id = make_task(program, target, history_limit=10)
        _trigger(program, target, task_id, 40)  # what the allocator keeps for the next
        before = memory_mib(program)
        _trigger(program, target, task_id, count)
        assert memory_mib(program) - before < max(45, 0.3 * count)
        assert memory_mib(program) < 400


def _trigger(program: Program, target: Target, task_id: int, count: int) -> None:
    target.forget()
    for number in range(count):
        body = f"{count} {number} {{{{run_id}}}} " + "x" * 900_000
        sent = program.post(f"/api/v1/tasks/{task_id}/trigger", {"override_body": body})
        assert sent.status_code == 202
    target.wait_for(count, "/t", within_s=100)
    path = f"/api/v1/runs?task_id={task_id}&status=RUNNING"
    wait_for(lambda: program.get(path).json()["total"] == 0, "they are recorded")
