"""`ksana backfill`, through the running server."""

from pathlib import Path

import pytest

from tests.ground.process import Program, run_cli
from tests.ground.target import Answer, Target

pytestmark = pytest.mark.spec("B7")
RANGE = ("--from", "2025-12-31T00:00:00Z", "--to", "2025-12-31T05:00:00Z")


def test_it_says_what_would_be_fired_then_fires_it_once(tmp_path: Path) -> None:
    with Target() as target, Program(tmp_path) as program:
        target.on("/", Answer(200))
        program.start()
        body = {
            "name": "hourly",
            "schedule": {"kind": "cron", "expr": "0 0 * * * *"},
            "target_url": target.url("/"),
        }
        task_id = str(program.post("/api/v1/tasks", json=body).json()["id"])
        at = ("--url", program.url())
        code, said = run_cli("backfill", task_id, *RANGE, "--dry-run", *at, cwd=tmp_path)
        assert code == 0, said
        assert "5 of 5 slots would be fired, 0 have a run." in said
        assert "2025-12-31T04:00:00Z" in said
        _, said = run_cli("backfill", task_id, *RANGE, "--limit", "2", *at, cwd=tmp_path)
        assert "2 of 5 slots are fired" in said
        assert "--from 2025-12-31T02:00:00Z" in said
        code, said = run_cli("backfill", "99", *RANGE, *at, cwd=tmp_path)
        assert (code, "no task has the id 99" in said) == (1, True), said
