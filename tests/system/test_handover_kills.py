"""kill -9 while runs are handed over to queue jobs: no run lost, none stuck, no attempt submitted
twice, and each run ends as its last job did.

Three kills by default; KSANA_FULL=1 makes it thirty.
"""

import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.ground.child import wait_for
from tests.ground.process import Program
from tests.ground.tasks import FULL, disable, list_runs

KILLS = 30 if FULL else 3
RUNS_A_KILL = 25

END_OF = {"DONE": "SUCCESS", "FAILED": "FAILED", "TIMEOUT": "TIMEOUT", "CANCELED": "CANCELED"}

Json = dict[str, Any]


class Puller:
    """A worker that takes jobs and ends them, one in ten as failed, whatever becomes of the server
    meanwhile."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.released = 0
        self._thread.start()

    def close(self) -> None:
        self._over.set()
        self._thread.join(10)

    def _run(self) -> None:
        dice = random.Random(5)
        with httpx.Client(base_url=self._url, trust_env=False, timeout=5) as client:
            while not self._over.is_set():
                try:
                    self._work(client, dice)
                except httpx.HTTPError:
                    time.sleep(0.02)  # the server is down just now

    def _work(self, client: httpx.Client, dice: random.Random) -> None:
        body = {"worker_id": "w", "limit": 20, "lease": True, "ttl_sec": 2, "wait_sec": 0.2}
        answer = client.post("/api/scheduler/jobs/claim", json=body)
        if answer.status_code != 200:
            return
        items = [
            {
                "lease_id": lease["lease_id"],
                "lease_token": lease["lease_token"],
                "status": "SUCCEEDED" if dice.random() < 0.9 else "FAILED",
                "error": "by chance",
            }
            for lease in answer.json()["leases"]
        ]
        done = client.post("/api/scheduler/lease/release-batch", json={"items": items})
        if done.status_code == 200:
            self.released += len(items)


@pytest.fixture
def puller(program: Program) -> Iterator[Puller]:
    puller = Puller(program.url())
    yield puller
    puller.close()


def list_jobs(program: Program) -> list[Json]:
    jobs: list[Json] = []
    cursor = None
    while True:
        params = {"limit": 500, **({"cursor": cursor} if cursor else {})}
        page = program.get("/api/scheduler/jobs", params=params).json()
        jobs += page["jobs"]
        cursor = page["next_cursor"]
        if cursor is None:
            return jobs


def count_runs(program: Program) -> int:
    return int(program.get("/api/v1/runs", params={"page_size": 1}).json()["total"])


@pytest.mark.fault("F07")
@pytest.mark.timeout(600)
@pytest.mark.spec("B5", "X10", "C19", "C14")
def test_kill_9_while_runs_are_handed_over_loses_none_and_submits_none_twice(
    program: Program, puller: Puller
) -> None:
    program.start()
    tasks = [
        program.post(
            "/api/v1/tasks",
            {
                "name": f"q{number}",
                "schedule": {"kind": "every", "every": "100ms"},
                "type": "queue",
                "queue": {"addon_id": "a", "job_type": "t", "payload": {"run": "{{run_uid}}"}},
                "concurrency_policy": "PARALLEL",
                "misfire_policy": "SKIP",
                "retry_policy": {"max_retries": 4, "initial_delay": 0.1},
            },
        ).json()
        for number in range(3)
    ]
    dice = random.Random(11)
    for _ in range(KILLS):
        seen = count_runs(program)
        wait_for(lambda: count_runs(program) >= seen + RUNS_A_KILL, "runs were made", within_s=30)
        time.sleep(dice.random() * 0.05)
        program.kill9()
        program.start()
    disable(program, tasks)
    open_states = ("SCHEDULED", "RUNNING", "RETRYING")
    wait_for(
        lambda: not any(list_runs(program, status=state) for state in open_states),
        "no run is left open",
        within_s=60,
        every_s=0.2,
    )
    runs = [run for run in list_runs(program) if run["status"] != "SKIPPED"]
    jobs = list_jobs(program)
    by_request = Counter(job["client_request_id"] for job in jobs)
    assert max(by_request.values()) == 1
    wanted = [f"run:{run['uid']}:{n}" for run in runs for n in range(1, run["attempt"] + 1)]
    assert sorted(by_request) == sorted(wanted)
    last = {job["job_id"]: job for job in jobs}
    for run in runs:
        job = last[run["handed_to"]["job_id"]]
        assert run["status"] == END_OF[job["state"]], (run, job)
        assert [one["attempt"] for one in run["attempts"]] == list(range(1, run["attempt"] + 1))
        assert job["payload"] == {"run": run["uid"]}
    assert Counter(run["status"] for run in runs)["SUCCESS"] > KILLS * RUNS_A_KILL // 2
    assert puller.released > KILLS * RUNS_A_KILL // 2
    assert program.terminate() == 0
