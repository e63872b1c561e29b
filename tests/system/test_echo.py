"""`ksana echo`, the target that comes with the program."""

import socket
import sys
from pathlib import Path

from tests.ground.child import free_port
from tests.ground.process import Program, run_cli


def start(folder: Path, *args: str) -> Program:
    port = free_port()
    command = [sys.executable, "-m", "ksana", "echo", "--port", str(port), *args]
    echo = Program(folder, command=command, port=port)
    return echo.start(until=None)


def test_every_request_is_shown_and_answered(tmp_path: Path) -> None:
    with start(tmp_path) as echo:
        echo.wait_until("/")
        answer = echo.post("/orders?n=1", {"a": 1})
        assert answer.status_code == 200
        assert answer.json() == {"method": "POST", "path": "/orders?n=1", "body": '{"a":1}'}
        assert echo.request("DELETE", "/orders").json()["method"] == "DELETE"
        assert echo.request("HEAD", "/").content == b""
        shown = echo.log_text()
        assert 'POST /orders?n=1\n    {"a":1}\n' in shown
        assert "DELETE /orders\n" in shown
        assert "user-agent" not in shown


def test_it_answers_badly_if_told_so_and_shows_headers(tmp_path: Path) -> None:
    with start(tmp_path, "--status", "503", "--headers") as echo:
        echo.wait_until("/", status=503)
        assert "user-agent: " in echo.log_text().lower()


def test_nobody_writes_into_the_terminal_or_fills_it(tmp_path: Path) -> None:
    with start(tmp_path) as echo:
        echo.wait_until("/")
        echo.request("POST", "/", content=b"\x1b[2Jgone\nfake line " + b"x" * 5000)
        assert "\x1b" not in echo.log_text()
        assert "\nfake line" not in echo.log_text()
        assert "x" * 2001 not in echo.log_text()
        with socket.create_connection((echo.host, echo.port), timeout=5) as one:
            one.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9999999999\r\n\r\n")
            assert b" 413 " in one.recv(4096)


def test_a_taken_port_is_told_in_a_sentence(tmp_path: Path) -> None:
    with start(tmp_path) as echo:
        echo.wait_until("/")
        code, text = run_cli("echo", "--port", str(echo.port), cwd=tmp_path)
        assert code == 1
        assert "choose another with --port" in text
        assert "Traceback" not in text
