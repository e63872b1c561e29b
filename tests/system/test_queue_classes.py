"""A caller who invents a job type for every job meets a bound; everybody else goes on, on the real
process."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.ground.process import Program

CLASSES = 40
JOBS = "/api/scheduler/jobs"


def a_job(kind: str) -> dict[str, Any]:
    return {"addon_id": "a", "job_type": kind, "cost_units": 1}


@pytest.mark.spec("X13", "Q1", "X8")
def test_job_types_without_end_are_refused_and_nobody_else_is(tmp_path: Path) -> None:
    with Program(tmp_path, env={"KSANA_QUEUE_CLASSES": str(CLASSES)}) as program:
        program.start()
        assert program.post(f"{JOBS}/submit", a_job("ours")).status_code == 201
        answers = [program.post(f"{JOBS}/submit", a_job(f"k{n}")) for n in range(2 * CLASSES)]
        assert [one.status_code for one in answers] == [201] * (CLASSES - 1) + [409] * (CLASSES + 1)
        told = answers[-1].json()
        assert (told["code"], told["current"]) == ("QUEUE_FULL", {"classes": CLASSES})
        assert "belongs into payload" in told["message"] and told["detail"] == told["message"]
        batch = {"jobs": [a_job("ours"), a_job("k0"), a_job("other")]}
        refused = program.post(f"{JOBS}/submit-batch", batch)
        assert (refused.status_code, refused.json()["code"]) == (409, "QUEUE_FULL")
        assert refused.json()["index"] == 2
        keyed = {"idempotency-key": "one"}
        refused = program.post(f"{JOBS}/submit", a_job("keyed"), headers=keyed)
        assert (refused.status_code, refused.json()["code"]) == (409, "QUEUE_FULL")
        program.kill9()
        program.start()  # with nothing remembered: those that are there are told from new ones
        assert program.post(f"{JOBS}/submit", a_job("ours")).status_code == 201
        assert program.post(f"{JOBS}/submit", a_job("k99")).status_code == 409
        wanted = {"worker_id": "w", "accept_job_types": ["ours"], "limit": 9}
        claimed = program.post(f"{JOBS}/claim", wanted).json()["jobs"]
        assert [job["job_type"] for job in claimed] == ["ours"] * 2
        rest = program.post(f"{JOBS}/claim", {"worker_id": "w", "limit": 100}).json()["jobs"]
        assert len(rest) == CLASSES - 1
    with closing(sqlite3.connect(tmp_path / "ksana.db")) as db:
        assert db.execute("SELECT COUNT(*) FROM job_classes").fetchone() == (CLASSES,)
