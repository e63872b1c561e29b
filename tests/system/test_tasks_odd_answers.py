"""Answers with bytes that a database or a log could choke on: each is recorded, on every store."""

from pathlib import Path

import pytest

from tests.ground.process import Program
from tests.ground.target import Garbage, Target
from tests.ground.tasks import make_task, trigger, wait_for_run

ODD = {
    "/nul": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\na\x00b\xf0\x9f",
    "/nul-text": b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\na\x00b",
    "/emoji": "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n😀".encode(),
    "/surrogate": b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n\xed\xa0\x80",
    "/cut-rune": b"HTTP/1.1 200 OK\r\nContent-Length: 70000\r\n\r\n" + "é".encode() * 35_000,
    "/strange-status": b"HTTP/1.1 299 \xff\xfe\x1b[31m\r\nContent-Length: 0\r\n\r\n",
    "/location": b"HTTP/1.1 302 Found\r\nLocation: http://\xff\xfe\x01/\r\nContent-Length: 0\r\n\r\n",
    "/relative": b"HTTP/1.1 302 Found\r\nLocation: ///\xc3\xa9\xed\xa0\x80?\x7f\r\nContent-Length: 0\r\n\r\n",
    "/status-999": b"HTTP/1.1 999 Odd\r\nContent-Length: 0\r\n\r\n",
    "/retry-after": b"HTTP/1.1 503 Busy\r\nRetry-After: \xff99999999999999999999\r\nContent-Length: 0\r\n\r\n",
    "/many-headers": b"HTTP/1.1 200 OK\r\n" + b"X-A: b\r\n" * 2000 + b"Content-Length: 0\r\n\r\n",
    "/long-header": b"HTTP/1.1 200 OK\r\nX-A: " + b"b" * 500_000 + b"\r\nContent-Length: 0\r\n\r\n",
}


@pytest.mark.spec("X13", "T12")
def test_odd_answers_are_recorded_and_harm_no_other_run(
    tmp_path: Path, store_url: str, target: Target
) -> None:
    with Program(tmp_path / "data", store=store_url) as program:
        program.start()
        runs = {}
        for path, data in ODD.items():
            target.on(path, Garbage(data))
            task = make_task(program, path, target.url(path), timeout_seconds=2, follow_redirects=1)
            runs[path] = trigger(program, task)
        ended = {path: wait_for_run(program, run_id) for path, run_id in runs.items()}
        well = trigger(program, make_task(program, "well", target.url("/well")))
        assert wait_for_run(program, well)["status"] == "SUCCESS"
        statuses = {path: run["status"] for path, run in ended.items()}
        failing = {
            "/location",
            "/relative",
            "/status-999",
            "/retry-after",
            "/many-headers",
            "/long-header",
        }
        assert {path for path, status in statuses.items() if status != "SUCCESS"} <= failing, (
            statuses
        )
        for run in ended.values():
            line = run["error_message"] or ""
            assert line.isprintable(), line
        assert ended["/nul"]["response_encoding"] == "base64"
        assert ended["/nul-text"]["response_encoding"] == "base64"
        assert ended["/surrogate"]["response_encoding"] == "base64"
        assert ended["/emoji"]["response_body"] == "😀"
        cut = ended["/cut-rune"]
        assert (
            cut["response_truncated"]
            and cut["response_encoding"] is None
            and set(cut["response_body"]) == {"é"}
        )
        assert "Traceback" not in program.log_text()
        assert "\x1b" not in program.log_text()
