"""`ksana dev`: something alive on every page, and nothing left behind."""

import os
import sys
import time
from pathlib import Path

from tests.ground.child import wait_for
from tests.ground.process import Program


def test_dev_shows_something_on_every_page_and_leaves_nothing(tmp_path: Path) -> None:
    folders = tmp_path / "temporary"
    folders.mkdir()
    # A store that is configured here is not the one that is filled with samples.
    own = tmp_path / "own"
    env = {"TMPDIR": str(folders), "KSANA_DATA": str(own), "KSANA_STORE": f"sqlite:///{own}/x.db"}
    with Program(tmp_path, env=env, command=[sys.executable, "-m", "ksana", "dev"]) as program:
        program.args = ["--port", str(program.port)]
        program.start()
        began = time.monotonic()

        def statuses() -> set[str]:
            return {run["status"] for run in program.get("/api/v1/runs").json()["items"]}

        wait_for(lambda: {"SUCCESS", "FAILED", "SKIPPED"} <= statuses(), "runs of every kind")
        wait_for(lambda: bool(program.get("/api/v1/nodes").json()["nodes"]), "a node")
        jobs = "/api/scheduler/jobs"
        wait_for(lambda: bool(program.get(jobs, params={"state": "DONE"}).json()["jobs"]), "a job")
        audit = "/scheduler/audit"
        wait_for(lambda: "job.ack" in program.get(audit).text, "an object is looked after")
        groups = program.get("/api/v1/dead-letters/groups").json()["groups"]
        assert [group["surface"] for group in groups] == ["tasks"]
        assert time.monotonic() - began < 30
        assert len(os.listdir(folders)) == 1
        assert program.terminate() == 0
    assert os.listdir(folders) == []
    assert not own.exists()
