"""The store's troubles that pass: no descriptor to be had, no room on the disk, lost answers to
COMMIT. The server waits for them and is ready within seconds of their end, and no run stays behind.
"""

import itertools
import os
import resource
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.ground.child import wait_for
from tests.ground.process import Program
from tests.ground.proxy import FaultProxy
from tests.ground.target import Target
from tests.ground.tasks import (
    Json,
    Ledger,
    disable,
    list_runs,
    make_task,
    note_figures,
    trigger,
    wait_until_quiet,
)
from tests.store.disk import fill, small_disk

_numbers = itertools.count()

READY_WITHIN_S = 5.0
HALF_SECOND = 500_000

pytestmark = [pytest.mark.timeout(120), pytest.mark.spec("C20", "X18")]


def make_load(program: Program, target: Target, count: int = 10) -> list[Json]:
    return [
        make_task(
            program,
            f"t{n}",
            target.url("/slot"),
            "500ms",
            concurrency_policy="PARALLEL",
            retry_policy={"max_retries": 3, "initial_delay": 0.2},
        )
        for n in range(count)
    ]


def wait_until_ready(program: Program, target: Target, what: str) -> None:
    """The cause has ended just now: ready within seconds, and firing goes on."""
    began = time.monotonic()
    seen = len(target.requests("/slot"))
    wait_for(
        lambda: program.get("/readyz", timeout=2).status_code == 200,
        "ready again",
        within_s=READY_WITHIN_S,
        every_s=0.05,
    )
    ready_s = time.monotonic() - began
    target.wait_for(seen + 10, "/slot", within_s=READY_WITHIN_S)
    note_figures(what, f"ready {ready_s:.1f} s after its end")


def check_all(program: Program, target: Target, tasks: list[Json]) -> None:
    disable(program, tasks)
    wait_until_quiet(program)
    ledger = Ledger(program)
    for task in tasks:
        ledger.check_slots(task, HALF_SECOND)
    ledger.check_deliveries(target.requests())
    assert "Traceback" not in program.log_text()


@pytest.mark.skipif(sys.platform != "linux", reason="limits a running process by prlimit")
def test_a_server_without_descriptors_waits_for_them_and_leaves_no_run_behind(
    tmp_path: Path, target: Target
) -> None:
    with Program(tmp_path) as program:
        program.start()
        before = resource.prlimit(program.pid, resource.RLIMIT_NOFILE)
        made = make_task(
            program,
            "t",
            target.url("/slot"),
            concurrency_policy="PARALLEL",
            retry_policy={"max_retries": 20, "initial_delay": 0.2, "strategy": "fixed"},
        )
        used = len(os.listdir(f"/proc/{program.pid}/fd"))
        resource.prlimit(program.pid, resource.RLIMIT_NOFILE, (used, before[1]))
        runs = [trigger(program, made) for _ in range(60)]
        # Enough commits that the log is copied back, and calls that find no socket.
        wait_for(
            lambda: any(run["attempts"] for run in list_runs(program)),
            "an attempt that failed",
            every_s=0.1,
        )
        time.sleep(1)
        resource.prlimit(program.pid, resource.RLIMIT_NOFILE, before)
        wait_for(
            lambda: program.get("/readyz", timeout=2).status_code == 200,
            "ready again",
            within_s=READY_WITHIN_S,
        )
        wait_until_quiet(program)
        ended = {run["id"]: run["status"] for run in list_runs(program)}
        assert ended == dict.fromkeys(runs, "SUCCESS")
        assert "Traceback" not in program.log_text()


@pytest.mark.fault("F31")
def test_a_full_disk_is_waited_for_and_the_server_is_ready_soon_after(
    tmp_path: Path, target: Target
) -> None:
    with small_disk(tmp_path, 6000) as disk, Program(disk / "data") as program:
        program.log = tmp_path / "program.log"
        program.start()
        tasks = make_load(program, target)
        target.wait_for(20, "/slot")
        ballast = fill(disk)
        wait_for(
            lambda: (
                (told := program.get("/readyz", timeout=2)).status_code == 503
                and "no room" in told.text
            ),
            "the probe tells it",
            within_s=20,
            every_s=0.05,
        )
        # What fits into the log as it is may still be taken.
        answers = (create(program, target) for _ in range(1000))
        answer = next(one for one in answers if one.status_code != 201)
        assert (answer.status_code, answer.json()["code"]) == (503, "STORE_DOWN")
        time.sleep(3)  # long enough for every pause to have grown to its longest
        ballast.unlink()
        wait_until_ready(program, target, "full disk")
        assert create(program, target).status_code == 201
        check_all(program, target, tasks)


def create(program: Program, target: Target) -> Any:
    body = {"name": f"x{next(_numbers)}", "target_url": target.url("/x"), "cron_expr": "0 0 1 1 *"}
    return program.post("/api/v1/tasks", body)


def test_after_lost_commits_the_server_is_ready_soon(
    tmp_path: Path, faulty_store: tuple[str, FaultProxy], target: Target
) -> None:
    url, proxy = faulty_store
    with Program(tmp_path, store=url) as program:
        program.start()
        tasks = make_load(program, target)
        target.wait_for(20, "/slot")
        lost = proxy.lose_reply_to(is_commit, times=1000)
        for _ in range(8):
            lost.wait(20)
        time.sleep(3)
        proxy.heal()
        wait_until_ready(program, target, f"lost commits on {url.partition(':')[0]}")
        check_all(program, target, tasks)


def is_commit(seen: bytes) -> bool:
    return b"COMMIT" in seen
