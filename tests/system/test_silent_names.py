"""Names that no server answers for, against the real process: nobody else waits for them."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ground.names import NameServer, asking_prefix
from tests.ground.process import Program
from tests.ground.storms import Punctuality, memory_mib
from tests.ground.target import Target

MAX_MIB = 400


@pytest.fixture
def target() -> Iterator[Target]:
    with Target() as one:
        yield one


@pytest.mark.fault("F16")
@pytest.mark.spec("X13", "T14")
@pytest.mark.parametrize("count", [200, pytest.param(600, marks=pytest.mark.slow)])
def test_silent_names_do_not_keep_a_healthy_one_waiting(
    tmp_path: Path, target: Target, count: int
) -> None:
    prefix, env = asking_prefix(tmp_path), {"KSANA_LOG_LEVEL": "error"}
    with NameServer() as names, Program(tmp_path, prefix=prefix, env=env) as program:
        program.start()
        timers = Punctuality(program, target)
        with timers.watch() as quiet:  # what the machine itself adds
            timers.wait_for_more(60)
        for number in range(count):
            made = program.post("/jobs", _timer(f"http://n{number}.silent.test/", "1s"))
            assert made.status_code == 201
        with timers.watch() as firings:
            waited = [_wait_for_call(program, target, number) for number in range(5)]
            timers.wait_for_more(100, within_s=60)
        assert sum(name.endswith(".silent.test") for name in names.asked) > 100
        assert max(waited) < 2, waited
        percent = 99 if count == 600 else 95  # of few calls the worst are the machine's luck
        late_ms, usual_ms = firings.p(percent), quiet.p(percent)
        assert late_ms <= 100 + usual_ms, (late_ms, usual_ms)
        assert memory_mib(program) < MAX_MIB


def _wait_for_call(program: Program, target: Target, number: int) -> float:
    """Call a name that was never looked up before; how long it took."""
    url = target.url(f"/new/{number}").replace("127.0.0.1", f"n{number}.healthy.test")
    made = program.post("/jobs", _timer(url, "1h")).json()["id"]
    began = time.monotonic()
    assert program.post(f"/jobs/{made}/run-now", {}).status_code == 202
    target.wait_for(1, f"/new/{number}", within_s=60)
    return time.monotonic() - began


def _timer(url: str, every: str) -> dict[str, object]:
    return {
        "schedule": {"kind": "every", "every": every},
        "http": {"url": url},
        "max_retries": 0,
        "timeout": "30s",
    }
