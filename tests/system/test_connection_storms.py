"""Connections that do nothing, against the real process: they take none of what firing needs."""

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ground.child import wait_for
from tests.ground.process import Program
from tests.ground.storms import (
    Punctuality,
    descriptors,
    idle_connections,
    memory_mib,
    wait_answers,
)
from tests.ground.target import Target

pytestmark = pytest.mark.spec("X13")

KEPT = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
HALF = b"GET /health HTTP/1.1\r\nHost: 127."
MAX_MIB = 400


@pytest.fixture
def target() -> Iterator[Target]:
    with Target() as one:
        yield one


def limited(tmp_path: Path, limit: int, **env: str) -> Program:
    prefix = ("sh", "-c", f'ulimit -n {limit}; exec "$@"', "sh")
    return Program(tmp_path, prefix=prefix, env={"KSANA_LOG_LEVEL": "error", **env})


@pytest.mark.fault("F52")
@pytest.mark.parametrize("said", [b"", HALF, KEPT], ids=["silent", "half a head", "kept alive"])
@pytest.mark.parametrize(
    ("limit", "count"),
    [
        (512, 700),
        pytest.param(1024, 1100, marks=pytest.mark.slow),
        pytest.param(1024, 5000, marks=pytest.mark.slow),
        pytest.param(65_536, 5000, marks=pytest.mark.slow),
    ],
)
def test_idle_connections_do_not_stop_firing_or_calls(
    tmp_path: Path, target: Target, limit: int, count: int, said: bytes
) -> None:
    with limited(tmp_path, limit) as program:
        program.start()
        timers = Punctuality(program, target)
        with timers.watch() as firings, idle_connections(program, count, said):
            assert descriptors(program) < limit
            timers.wait_for_more(40)
            wait_answers(program)
            made = program.post("/jobs", _timer(target))
            assert made.status_code == 201
            assert descriptors(program) < limit
            assert memory_mib(program) < MAX_MIB
        assert len(firings.late_ms) >= 40
        wait_answers(program)


@pytest.mark.fault("F52")
@pytest.mark.slow
def test_firing_is_punctual_beside_5000_idle_connections(tmp_path: Path, target: Target) -> None:
    with limited(tmp_path, 65_536) as program:
        program.start()
        timers = Punctuality(program, target)
        with timers.watch() as quiet:  # what the machine itself adds
            timers.wait_for_more(200, within_s=60)
        with idle_connections(program, 5000, KEPT), timers.watch() as firings:
            timers.wait_for_more(400, within_s=60)
        assert firings.p(99) <= 100 + quiet.p(99), (firings.p(99), quiet.p(99))
        assert memory_mib(program) < MAX_MIB


def _timer(target: Target) -> dict[str, object]:
    return {"schedule": {"kind": "every", "every": "1h"}, "http": {"url": target.url()}}


def test_one_address_has_its_own_limit_and_others_are_served(tmp_path: Path) -> None:
    with Program(tmp_path, env={"KSANA_LIMITS_CONNECTIONS": "20"}) as program:
        program.start()
        with contextlib.ExitStack() as opened:
            for _ in range(20):
                opened.enter_context(_open_stream(program, "127.0.0.1"))
            with socket.create_connection((program.host, program.port), timeout=5) as one:
                one.sendall(KEPT)
                told = b""
                while chunk := one.recv(4096):  # the answer closes the connection
                    told += chunk
            assert b"HTTP/1.1 429" in told
            assert b"retry-after: 1" in told.lower()
            assert b'"RATE_LIMITED"' in told
            with socket.create_connection(
                (program.host, program.port), timeout=5, source_address=("127.0.0.2", 0)
            ) as other:
                other.sendall(KEPT)
                assert b"200 OK" in other.recv(4096)
        wait_answers(program)


def test_idle_connections_give_way_to_new_ones_of_their_address(tmp_path: Path) -> None:
    with Program(tmp_path, env={"KSANA_LIMITS_CONNECTIONS": "20"}) as program:
        program.start()
        with idle_connections(program, 200, KEPT):
            wait_answers(program)
        shown = program.get("/metrics").text
        assert 'ksana_http_connections_ended_total{reason="idle"}' in shown


def _open_stream(program: Program, source: str) -> socket.socket:
    """A connection that is busy: an event stream."""
    one = socket.create_connection(
        (program.host, program.port), timeout=5, source_address=(source, 0)
    )
    one.sendall(b"GET /api/v1/events/stream HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    assert b"200 OK" in one.recv(4096)
    return one


def test_a_start_with_few_descriptors_says_how_many_connections_it_takes(tmp_path: Path) -> None:
    with limited(tmp_path, 256, KSANA_LOG_LEVEL="info") as program:
        program.start()
        wait_for(lambda: "raise the descriptor limit" in program.log_text(), "it is said")
