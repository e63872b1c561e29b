"""Pages of large rows, against the real process on every database: no more is read than shown."""

from pathlib import Path

import pytest

from tests.ground.process import Program
from tests.ground.storms import forget_peak, peak_mib

pytestmark = pytest.mark.spec("X13")

MAX_ANSWER = 9 * 1024 * 1024
NOISE = "x" * 960_000
JOBS = 70


def test_a_page_of_large_rows_is_never_in_memory_as_a_whole(store_url: str, tmp_path: Path) -> None:
    with Program(tmp_path, store=store_url, env={"KSANA_LOG_LEVEL": "error"}) as program:
        program.start()
        for _ in range(JOBS):
            job = {"addon_id": "a", "job_type": "t", "cost_units": 1, "payload": {"noise": NOISE}}
            sent = program.post("/api/scheduler/jobs/submit", job)
            assert sent.status_code == 201
        forget_peak(program)
        _list_jobs(program, 8)  # what any page takes
        before = peak_mib(program)
        assert _list_jobs(program, 500) == JOBS
        assert peak_mib(program) - before < 25


def _list_jobs(program: Program, limit: int) -> int:
    """Follow the pages; how many jobs were on them."""
    seen: list[str] = []
    cursor = None
    while True:
        params = {"limit": str(limit), **({"cursor": cursor} if cursor else {})}
        answer = program.get("/api/scheduler/jobs", params=params)
        assert answer.status_code == 200
        assert len(answer.content) < MAX_ANSWER
        seen += [job["job_id"] for job in answer.json()["jobs"]]
        cursor = answer.json()["next_cursor"]
        if cursor is None:
            break
    assert len(set(seen)) == len(seen)
    return len(seen)


def test_a_page_of_the_audit_ends_at_8_mib_with_a_cursor(store_url: str, tmp_path: Path) -> None:
    with Program(tmp_path, store=store_url, env={"KSANA_LOG_LEVEL": "error"}) as program:
        program.start()
        for number in range(12):
            _end_with_evidence(program, f"m{number}")
        seen: list[str] = []
        cursor, pages = None, 0
        while pages == 0 or cursor:
            params = {"limit": "500", **({"cursor": cursor} if cursor else {})}
            answer = program.get("/scheduler/audit", params=params)
            assert len(answer.content) < MAX_ANSWER, len(answer.content)
            seen += [entry["id"] for entry in answer.json()["events"] if entry["evidence_refs"]]
            cursor, pages = answer.json()["next_cursor"], pages + 1
        assert pages > 1
        assert len(seen) == len(set(seen)) == 12


def _end_with_evidence(program: Program, object_id: str) -> None:
    """Have a job done whose worker names a megabyte of evidence."""
    put = program.client.put(f"/scheduler/objects/memory/{object_id}", json={})
    assert put.status_code == 201, put.text
    job = {
        "object_type": "memory",
        "object_id": object_id,
        "action": "verify",
        "run_at": "2020-01-01T00:00:00Z",
        "allow_past": True,
    }
    made = program.post("/scheduler/jobs", job)
    assert made.status_code == 201, made.text
    (pulled,) = program.post("/scheduler/jobs/pull", {"worker_id": "w", "limit": 1}).json()["jobs"]
    refs = [f"{place}-{'x' * 1000}" for place in range(900)]
    ack = {"lease_token": pulled["lease_token"], "evidence_refs": refs}
    ended = program.post(f"/scheduler/jobs/{pulled['job_id']}/ack", ack)
    assert ended.status_code == 200, ended.text
