"""Doors of the real process: what may not pass, by raw bytes."""

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.ground.child import free_port, wait_for
from tests.ground.process import Program
from tests.ground.target import Target


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    with Program(tmp_path_factory.mktemp("doors")) as served:
        yield served.start()


def say(program: Program, data: bytes) -> bytes:
    """Send bytes and read until the connection ends or is quiet."""
    with socket.create_connection((program.host, program.port), timeout=5) as one:
        one.sendall(data)
        heard = b""
        one.settimeout(2)
        try:
            while piece := one.recv(65_536):
                heard += piece
        except TimeoutError:
            pass
        return heard


@pytest.mark.spec("X19")
@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1", 200),
        ("localhost:7100", 200),
        ("[::1]:1", 200),
        ("localhost:80.evil.example", 403),
        ("localhost:evil", 403),
        ("localhost@evil.example", 403),
        ("localhost, evil.example", 403),
        ("127.0.0.1.evil.example", 403),
        ("[::1].evil.example", 403),
    ],
)
def test_a_host_is_compared_whole(program: Program, host: str, status: int) -> None:
    data = f"GET /health HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode()
    assert say(program, data).startswith(b"HTTP/1.1 %d" % status)


@pytest.mark.parametrize("second", [b"Host: 127.0.0.1", b"hOsT: evil.example"])
@pytest.mark.parametrize("path", [b"/health", b"/jobs"])
def test_two_host_lines_are_refused(program: Program, second: bytes, path: bytes) -> None:
    heard = say(program, b"GET %s HTTP/1.1\r\nHost: 127.0.0.1\r\n%s\r\n\r\n" % (path, second))
    assert heard.startswith(b"HTTP/1.1 400")
    assert b"two Host lines" in heard


def test_http_0_9_is_refused(program: Program) -> None:
    for data in (b"GET /health\r\n\r\n", b"GET /health HTTP/0.9\r\nHost: 127.0.0.1\r\n\r\n"):
        heard = say(program, data)
        assert heard.startswith(b"HTTP/1.1 400"), heard


@pytest.mark.spec("X21")
def test_a_trailer_never_becomes_a_header(program: Program) -> None:
    body = b'{"schedule":{"kind":"every","every":"1h"},"http":{"url":"http://127.0.0.1:9/"}}'
    data = (
        b"POST /jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        b"Transfer-Encoding: chunked\r\nTrailer: X-Request-Id, Host\r\nConnection: close\r\n\r\n"
        b"%x\r\n%s\r\n0\r\nX-Request-Id: planted\r\nHost: evil.example\r\n\r\n" % (len(body), body)
    )
    heard = say(program, data)
    assert heard.startswith(b"HTTP/1.1 201"), heard
    assert b"planted" not in heard


@pytest.mark.spec("X11")
def test_head_of_a_stream_ends(program: Program) -> None:
    heard = say(program, b"HEAD /api/v1/events/stream HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 2)
    assert heard.count(b"HTTP/1.1 200 OK") == 2
    assert b"connected" not in heard


@pytest.mark.spec("C2")
def test_underscore_and_percent_match_themselves(program: Program) -> None:
    for name in ("a_b", "axb", "50%", "500"):
        body = {"name": name, "cron_expr": "0 0 0 1 1 *", "target_url": "http://127.0.0.1:9/"}
        body["tags"] = [name]  # type: ignore[assignment]
        assert program.post("/api/v1/tasks", body).status_code == 201
    for member in ("name", "tag"):
        for wanted in ("a_b", "50%"):
            found = program.get("/api/v1/tasks", params={member: wanted}).json()["items"]
            assert [task["name"] for task in found] == [wanted]


@pytest.mark.spec("X16", "X18")
def test_the_login_of_the_store_is_shown_nowhere(tmp_path: Path) -> None:
    url = f"postgresql://ops:hidden1@127.0.0.1:{free_port()}/db?password=hidden2"
    with Program(tmp_path, store=url) as program:
        program.start(until=None)
        program.wait_until("/readyz", status=503)
        wait_for(lambda: "is away" in program.get("/readyz").text, "the store was tried")
        shown = program.get("/readyz").text + program.get("/api/v1/tasks").text
        assert "hidden" not in shown + program.log_text()
        assert "postgresql://***@127.0.0.1" in shown


@pytest.mark.spec("X20")
@pytest.mark.parametrize("is_allowed", [False, True])
def test_tasks_may_not_call_our_own_redis_unless_it_is_allowed(
    tmp_path: Path, is_allowed: bool
) -> None:
    with Target() as redis:
        config = f"[egress]\nallow = {['127.0.0.0/8'] if is_allowed else []}\n".replace("'", '"')
        (tmp_path / "ksana.toml").write_text(config)
        env = {"KSANA_COORDINATION": f"redis://127.0.0.1:{redis.port}"}
        with Program(tmp_path, env=env) as program:
            program.start(until="/health")
            wait_for(lambda: program.get("/api/v1/tasks").status_code == 200, "it serves")
            run = _run(program, "redis", redis.url("/x"))
            assert (run["status"] == "SUCCESS") is is_allowed, run
            if not is_allowed:
                assert "Ksana" in run["error_message"]


def _run(program: Program, name: str, url: str) -> dict[str, Any]:
    body = {"name": name, "cron_expr": "0 0 0 1 1 *", "target_url": url}
    task_id = program.post("/api/v1/tasks", body).json()["id"]
    run_id = program.post(f"/api/v1/tasks/{task_id}/trigger", {}).json()["run_id"]
    path = f"/api/v1/runs/{run_id}"
    wait_for(lambda: program.get(path).json()["status"] in ("SUCCESS", "FAILED"), "it ends")
    run: dict[str, Any] = program.get(path).json()
    return run
