"""Doors of the real process: what may not pass, by raw bytes."""

import contextlib
import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.ground.child import free_port, wait_for
from tests.ground.process import Program
from tests.ground.target import Target, redirect


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


ASGI = b"GET", b"/health", b""
FAST = b"POST", b"/api/scheduler/jobs/claim", b'{"worker_id":"w"}'
"""A request by each way: through ASGI, and past it."""


def ask(way: tuple[bytes, bytes, bytes], version: bytes, *lines: bytes) -> bytes:
    method, path, body = way
    head = [b"%s %s HTTP/%s" % (method, path, version), *lines]
    if body:
        head += [b"Content-Type: application/json", b"Content-Length: %d" % len(body)]
    return b"\r\n".join([*head, b"", body])


def check_closed(program: Program, data: bytes, why: bytes) -> None:
    """It is refused in our words and the connection ends: alone, and on a kept connection."""
    for before in ([], [ASGI], [FAST], [FAST, ASGI]):
        heard = b""
        with socket.create_connection((program.host, program.port), timeout=5) as one:
            for way in before:
                one.sendall(ask(way, b"1.1", b"Host: 127.0.0.1"))
                assert re.match(rb"HTTP/1.1 20[04] ", one.recv(65_536))
            one.sendall(data)
            while piece := one.recv(65_536):
                heard += piece
        head, _, body = heard.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 400 "), (before, heard)
        told = json.loads(body)
        assert told["code"] == "INVALID_ARGUMENT"
        assert why in told["message"].encode()


@pytest.mark.spec("X8")
@pytest.mark.parametrize("way", [ASGI, FAST])
def test_a_request_without_a_host_is_refused(
    program: Program, way: tuple[bytes, bytes, bytes]
) -> None:
    check_closed(program, ask(way, b"1.1"), b"no Host line")
    method, path, body = way
    whole = method, b"http://127.0.0.1" + path, body
    check_closed(program, ask(whole, b"1.1"), b"no Host line")
    assert re.match(rb"HTTP/1.1 20[04] ", say(program, ask(way, b"1.0")))


@pytest.mark.spec("X8")
@pytest.mark.parametrize("way", [ASGI, FAST])
@pytest.mark.parametrize("version", [b"2.0", b"1.2", b"3.0", b"0.9", b"1.10", b"2"])
def test_no_other_version_of_http_is_served(
    program: Program, way: tuple[bytes, bytes, bytes], version: bytes
) -> None:
    check_closed(program, ask(way, version, b"Host: 127.0.0.1"), b"HTTP/1.1")


def test_a_socket_without_a_host_is_refused(program: Program) -> None:
    upgrade = (
        b"Upgrade: websocket",
        b"Connection: Upgrade",
        b"Sec-WebSocket-Version: 13",
        b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
    )
    node = b"GET", b"/ws/node", b""
    assert b" 101 " in say(program, ask(node, b"1.1", b"Host: 127.0.0.1", *upgrade))
    check_closed(program, ask(node, b"1.1", *upgrade), b"no Host line")


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


OURSELVES = (
    "127.0.0.1",
    "127.8.8.8",
    "localhost",
    "[::1]",
    "[::ffff:127.0.0.1]",
    "0.0.0.0",
    "[::]",
)


def _addresses_here() -> list[str]:
    """A name and an address by which others know this machine."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # sends nothing, but chooses where from
        address = str(probe.getsockname()[0])
    found = {str(entry[4][0]) for entry in socket.getaddrinfo(socket.gethostname(), None)}
    return [address, *([socket.gethostname()] if address in found else [])]


def _wide_addresses_here() -> list[str]:
    """The address of this machine in IPv6, if it has one."""
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as probe:
        for other in ("2001:db8::1", "fd00::1"):
            with contextlib.suppress(OSError):
                probe.connect((other, 9))
                return [f"[{probe.getsockname()[0]}]"]
    return []


@pytest.mark.spec("X20")
def test_tasks_may_not_call_our_own_api_by_any_of_its_addresses(tmp_path: Path) -> None:
    with Program(tmp_path / "loopback") as program:
        program.start()
        for number, host in enumerate(OURSELVES):
            run = _run(program, f"own-{number}", f"http://{host}:{program.port}/health")
            assert run["status"] == "FAILED", (host, run)
            told = "egress.allow" if host not in ("0.0.0.0", "[::]") else "unspecified"
            assert told in run["error_message"], (host, run["error_message"])


@pytest.mark.spec("X20")
@pytest.mark.parametrize("bound", ["0.0.0.0", "::"])
def test_a_server_on_every_address_is_no_target_by_any_of_them(tmp_path: Path, bound: str) -> None:
    with (
        Program(tmp_path, env={"KSANA_HOST": bound}, args=["--insecure"]) as program,
        Target() as target,
    ):
        program.start()
        hosts = ["127.0.0.1", "localhost", *_addresses_here()]
        hosts += _wide_addresses_here() if bound == "::" else []
        for number, host in enumerate(hosts):
            run = _run(program, f"own-{number}", f"http://{host}:{program.port}/health")
            assert run["status"] == "FAILED", (host, run)
            # The address of this machine may lie in a range that is refused to all.
            assert re.search(r"egress\.allow|reserved", run["error_message"]), (host, run)
        assert _run(program, "other", target.url("/"))["status"] == "SUCCESS"


@pytest.mark.spec("X20")
def test_a_redirect_to_our_own_api_is_refused_too(tmp_path: Path) -> None:
    with Program(tmp_path) as program, Target() as target:
        program.start()
        target.on("/away", redirect(program.url("/health")))
        run = _run(program, "away", target.url("/away"), follow_redirects=3)
        assert run["status"] == "FAILED"
        assert "egress.allow" in run["error_message"]


@pytest.mark.spec("X20")
@pytest.mark.parametrize(
    ("rule", "is_open"), [("127.0.0.1", True), ("loopback", False), ("*", False)]
)
def test_our_own_api_is_opened_by_a_rule_that_names_it(
    tmp_path: Path, rule: str, is_open: bool
) -> None:
    (tmp_path / "ksana.toml").write_text(f'[egress]\nallow = ["{rule}"]\n')
    with Program(tmp_path, args=["--config", str(tmp_path / "ksana.toml")]) as program:
        program.start()
        run = _run(program, "own", program.url("/health"))
        assert (run["status"] == "SUCCESS") is is_open, run


def test_a_free_port_is_taken_for_our_own_too(tmp_path: Path) -> None:
    with Program(tmp_path, args=["--port", "0"]) as program:
        program.start(until=None)
        program.wait_for_log('"msg":"started"')
        (port,) = re.findall(r'"address":"http://127.0.0.1:(\d+)"', program.log_text())
        program.port = int(port)
        program.client = httpx.Client(base_url=program.url(), timeout=30, trust_env=False)
        program.wait_until()
        run = _run(program, "own", program.url("/health"))
        assert "egress.allow" in run["error_message"]


def _run(program: Program, name: str, url: str, **more: Any) -> dict[str, Any]:
    body = {"name": name, "cron_expr": "0 0 0 1 1 *", "target_url": url, **more}
    task_id = program.post("/api/v1/tasks", body).json()["id"]
    run_id = program.post(f"/api/v1/tasks/{task_id}/trigger", {}).json()["run_id"]
    path = f"/api/v1/runs/{run_id}"
    wait_for(lambda: program.get(path).json()["status"] in ("SUCCESS", "FAILED"), "it ends")
    run: dict[str, Any] = program.get(path).json()
    return run
