"""The governor of the examples, as a program of its own beside a real server."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ground.child import Child, wait_for
from tests.ground.pages import ROOT
from tests.ground.process import Program, clean_environment

FOLDER = ROOT / "examples" / "governor"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    with Program(tmp_path_factory.mktemp("governor")) as program:
        yield program.start()


def start_governor(server: Program, folder: Path) -> Child:
    env = {**clean_environment(), "KSANA_URL": server.url(), "PYTHONUNBUFFERED": "1"}
    return Child(
        [sys.executable, str(FOLDER / "governor.py")], folder / "governor.log", env=env, cwd=folder
    )


@pytest.mark.spec("G3", "G10", "G13")
def test_one_belief_is_supported_and_the_other_stale_when_its_budget_is_spent(
    server: Program, tmp_path: Path
) -> None:
    governor = start_governor(server, tmp_path)
    try:
        env = {**clean_environment(), "KSANA_URL": server.url()}
        done = subprocess.run(
            [sys.executable, str(FOLDER / "believe.py")],
            env=env,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=90,
        )
    finally:
        log = governor.log.read_text()
        os.kill(governor.pid, signal.SIGTERM)
        exit_code = governor.wait(30)
    assert done.returncode == 0, done.stderr + log
    lines = done.stdout.splitlines()
    assert lines[0] == "sky is active, supported, looked at 1 times"
    assert lines[1] == "rain is stale, uncertain, looked at 2 times"
    assert lines[2].startswith("why: ")
    assert exit_code == 0, governor.log.read_text()
    assert "stopped; succeeded 3, failed 0" in governor.log.read_text()


@pytest.mark.spec("G5", "X14")
def test_sigterm_drains_a_governor_and_the_server_may_die_meanwhile(
    server: Program, tmp_path: Path
) -> None:
    governor = start_governor(server, tmp_path)
    try:
        wait_for(lambda: "connected" in governor.log.read_text(), "it is connected", within_s=20)
        server.kill9()
        server.start()
        body = {"object_type": "memory", "object_id": "old", "action": "archive"}
        at = "2026-01-01T00:00:00Z"
        job = server.post("/scheduler/jobs", {**body, "run_at": at, "allow_past": True}).json()
        wait_for(
            lambda: server.get(f"/scheduler/jobs/{job['job_id']}").json()["status"] == "succeeded",
            "it is archived",
            within_s=20,
        )
        os.kill(governor.pid, signal.SIGTERM)
        assert governor.wait(30) == 0
    finally:
        governor.kill()
    text = governor.log.read_text()
    assert "again after" in text
    assert "archiving old" in text
    assert server.get("/scheduler/objects/memory/old").json()["status"] == "archived"
