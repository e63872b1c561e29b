"""`jobs.json` under load and kill -9, by the real program: always readable, nothing acknowledged
lost."""

import asyncio
import json
import os
import random
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.ground.process import Program
from tests.ground.target import Target
from tests.store.disk import fill, small_disk

ROUNDS = 200 if os.environ.get("KSANA_FULL") else 12
CALLERS = 6


def read_jobs(path: Path) -> dict[str, dict[str, Any]]:
    """The jobs by id; a torn file fails here."""
    document = json.loads(path.read_bytes())
    assert list(document)[:3] == ["version", "updated_at", "jobs"]
    return {job["id"]: job for job in document["jobs"]}


class Ledger:
    """What the program has acknowledged: which jobs must be there, which must not, and which nobody
    knows."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}
        self.deleted: set[str] = set()
        self.unsure: set[str] = set()
        self.counter = 0

    async def load(self, base: str, target_url: str, dice: random.Random) -> None:
        """Create, rename and delete jobs until the program is gone."""
        async with httpx.AsyncClient(base_url=base, timeout=10, trust_env=False) as client:
            while True:
                chosen = dice.choice([*self.names]) if self.names and dice.random() < 0.6 else None
                try:
                    await (
                        self._create(client, target_url)
                        if chosen is None
                        else self._change(client, chosen, dice)
                    )
                except httpx.HTTPError:
                    return

    async def _create(self, client: httpx.AsyncClient, target_url: str) -> None:
        self.counter += 1
        job_id = f"job-{self.counter}"
        self.unsure.add(job_id)
        body = {
            "id": job_id,
            "name": "new",
            "http": {"url": target_url},
            "schedule": {"kind": "every", "every": "200ms"},
        }
        answer = await client.post("/jobs", json=body)
        assert answer.status_code == 201, answer.text
        self.unsure.discard(job_id)
        self.names[job_id] = "new"

    async def _change(self, client: httpx.AsyncClient, job_id: str, dice: random.Random) -> None:
        del self.names[job_id]  # nobody else touches it meanwhile
        self.unsure.add(job_id)
        if dice.random() < 0.5:
            answer = await client.delete(f"/jobs/{job_id}")
            assert answer.status_code == 204, answer.text
            self.deleted.add(job_id)
        else:
            name = f"name-{dice.randrange(10**9)}"
            answer = await client.patch(f"/jobs/{job_id}", json={"name": name})
            assert answer.status_code == 200, answer.text
            self.names[job_id] = name
        self.unsure.discard(job_id)

    def check(self, jobs: dict[str, dict[str, Any]]) -> None:
        """Hold a file, or an answer of the program, against what was acknowledged."""
        for job_id, name in self.names.items():
            assert jobs.get(job_id, {}).get("name") == name, (
                f"{job_id}: an acknowledged change is lost"
            )
        assert not self.deleted & set(jobs), "an acknowledged deletion is undone"

    def settle(self, jobs: dict[str, dict[str, Any]]) -> None:
        """After the restart it is known what became of the calls that got no answer."""
        for job_id in self.unsure:
            if job_id in jobs:
                self.names[job_id] = jobs[job_id]["name"]
            else:
                self.deleted.add(job_id)
        self.unsure.clear()


@pytest.mark.fault("F27")
@pytest.mark.spec("T20", "X10")
@pytest.mark.timeout(1800)
async def test_the_file_is_readable_and_complete_after_every_kill(
    tmp_path: Path, target: Target
) -> None:
    dice = random.Random(20)
    ledger = Ledger()
    path = tmp_path / "data" / "jobs.json"
    with Program(tmp_path / "data", store=f"json:///{path}") as program:
        for _ in range(ROUNDS):
            program.start()
            shown = {job["id"]: job for job in program.get("/jobs").json()}
            ledger.check(shown)
            ledger.settle(shown)
            assert len({job["task_id"] for job in shown.values()}) == len(shown)
            load = [
                asyncio.create_task(ledger.load(program.url(), target.url("/ok"), dice))
                for _ in range(CALLERS)
            ]
            await asyncio.sleep(
                dice.uniform(0.02, 0.4)
            )  # the kill comes at a random instant, that is the point
            program.kill9()
            await asyncio.gather(*load)
            ledger.check(read_jobs(path))
        program.start()
        shown = {job["id"]: job for job in program.get("/jobs").json()}
        ledger.check(shown)
        ledger.settle(shown)
        assert program.terminate() == 0
        jobs = read_jobs(path)
        ledger.check(jobs)
        assert set(jobs) == set(ledger.names)
        assert not path.with_name("jobs.json.tmp").exists()


@pytest.mark.spec("T21", "T22", "X1", "X18")
def test_the_start_tells_what_it_found_and_readyz_says_so(tmp_path: Path) -> None:
    path = tmp_path / "data" / "jobs.json"
    path.parent.mkdir()
    path.write_text('{"version": 1, "jobs": [{"id"')
    with Program(tmp_path / "data", store=f"json:///{path}") as program:
        program.start()
        ready = program.get("/readyz").json()
        assert ready["status"] == "ready" and "jobs.bad.json" in ready["checks"]["store"]
        log = program.log_text()
        assert "in memory" in log and "jobs.bad.json" in log
        assert program.terminate() == 0


@pytest.mark.fault("F31")
@pytest.mark.spec("T20")
def test_a_full_disk_is_a_503_and_the_old_file_stays(tmp_path: Path) -> None:
    with (
        small_disk(tmp_path, 512) as disk,
        Program(tmp_path / "data", store=f"json:///{disk}") as program,
    ):
        program.start()
        body = {
            "http": {"url": "http://127.0.0.1:9/"},
            "schedule": {"kind": "every", "every": "1h"},
        }
        assert program.post("/jobs", json=body).status_code == 201
        ballast = fill(disk)
        before = (disk / "jobs.json").read_bytes()
        refused = program.post(
            "/jobs", json={**body, "name": "n" * 100, "http": {**body["http"], "body": "y" * 9000}}
        )
        assert (refused.status_code, refused.json()["code"]) == (503, "STORE_DOWN")
        assert "retry-after" in refused.headers
        assert (disk / "jobs.json").read_bytes() == before
        assert program.get("/readyz").status_code == 503
        assert len(program.get("/jobs").json()) == 1
        ballast.unlink()
        assert program.post("/jobs", json=body).status_code == 201
        program.wait_until(
            "/readyz", 200
        )  # a loop that met the full disk rests for a moment before it tries again
        assert program.terminate() == 0


@pytest.mark.spec("T23")
def test_a_new_sqlite_store_takes_the_jobs_over_once(tmp_path: Path, target: Target) -> None:
    data = tmp_path / "data"
    with Program(data, store=f"json:///{data}") as program:
        program.start()
        body = {
            "id": "mine",
            "http": {"url": target.url("/ok")},
            "schedule": {"kind": "every", "every": "1h"},
        }
        made = program.post("/jobs", json=body).json()
        assert program.terminate() == 0
    before = (data / "jobs.json").read_bytes()
    with Program(data) as program:
        program.start()
        (job,) = program.get("/jobs").json()
        assert job == made, "the same record, under its own ids"
        assert "1 jobs were taken over" in program.log_text()
        events = program.get("/api/v1/events?type=TASK_IMPORTED").json()["events"]
        assert [(event["entity_id"], event["data"]["job_id"]) for event in events] == [
            ("1", "mine")
        ]
        assert program.request("DELETE", "/jobs/mine").status_code == 204
        assert program.terminate() == 0
        program.start()
        assert program.get("/jobs").json() == []
        assert (data / "jobs.json").read_bytes() == before
        assert program.terminate() == 0
