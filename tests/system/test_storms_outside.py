"""Readers that do not read, against the real process: firing goes on, and memory is bounded."""

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ground.process import Program
from tests.ground.storms import Punctuality, peak_mib, wait_answers
from tests.ground.target import Target

MAX_MIB = 400


@pytest.fixture
def target() -> Iterator[Target]:
    with Target() as one:
        yield one


@pytest.mark.fault("F51")
@pytest.mark.spec("X13")
@pytest.mark.parametrize("count", [200, pytest.param(1000, marks=pytest.mark.slow)])
def test_readers_that_do_not_read_take_no_memory_and_no_firing(
    tmp_path: Path, target: Target, count: int
) -> None:
    with Program(tmp_path, env={"KSANA_LOG_LEVEL": "error"}) as program:
        program.start()
        noise = "x" * 960_000
        for _ in range(12):
            job = {"addon_id": "a", "job_type": "t", "cost_units": 1, "payload": {"noise": noise}}
            assert program.post("/api/scheduler/jobs/submit", job).status_code == 201
        timers = Punctuality(program, target)
        with timers.watch() as quiet:  # what the machine itself adds
            timers.wait_for_more(60)
        with timers.watch() as firings, _slow_readers(program, count):
            timers.wait_for_more(100, within_s=60)
            wait_answers(program)
        assert peak_mib(program) < MAX_MIB
        percent = 99 if count == 1000 else 50  # of few calls the worst are the machine's luck
        late_ms, usual_ms = firings.p(percent), quiet.p(percent)
        assert late_ms <= 100 + usual_ms, (late_ms, usual_ms)
        assert len(program.get("/api/scheduler/jobs").json()["jobs"]) == 8


@contextlib.contextmanager
def _slow_readers(program: Program, count: int) -> Iterator[None]:
    """Callers that ask for a page of 8 MiB and take a few bytes of it."""
    asked = b"GET /api/scheduler/jobs?limit=500 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    with contextlib.ExitStack() as opened:
        for _ in range(count):
            one = opened.enter_context(socket.socket())
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            one.settimeout(10)
            with contextlib.suppress(OSError):  # it may be refused or dropped: that is the point
                one.connect((program.host, program.port))
                one.sendall(asked)
        yield
