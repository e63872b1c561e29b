"""Everything at once: faults of every kind, one after the other by a seed, while tasks fire, runs
are triggered and jobs submitted. At the end each slot, each delivery and each acknowledged write is
accounted for.

Forty seconds a store by default; KSANA_FULL=1 makes it ten minutes, KSANA_SEED chooses another
order.
"""

import os
import random
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.ground.chaos import Fleet, Writer, fill_disk, make_fleet
from tests.ground.counters import Books
from tests.ground.mariadb import MariaDB
from tests.ground.postgres import Postgres
from tests.ground.process import Program
from tests.ground.target import Answer, Target
from tests.ground.tasks import (
    FULL,
    SECOND,
    Json,
    Ledger,
    disable,
    list_runs,
    make_task,
    note_figures,
    wait_until_quiet,
)
from tests.store.disk import small_disk

FOR_S = 600.0 if FULL else 40.0
HISTORY = 10_000
"""Runs that a task keeps: all of them, for each is accounted for."""
SEED = int(os.environ.get("KSANA_SEED", "1"))

pytestmark = [pytest.mark.slow, pytest.mark.timeout(FOR_S + 900)]


def make_load(program: Program, target: Target) -> list[Json]:
    """Tasks of every policy; some calls are always under way."""
    target.on("/quick", Answer())
    target.on("/slow", Answer(after_ms=300))
    retry = {"max_retries": 10, "initial_delay": 0.2, "max_delay": 1}
    tasks = [
        make_task(
            program,
            f"{policy}-{n}",
            target.url("/slow" if n % 2 else "/quick"),
            "500ms",
            concurrency_policy=policy,
            retry_policy=retry,
            history_limit=HISTORY,
            **({"max_queued": 1000} if policy == "QUEUE" else {}),
        )
        for policy in ("PARALLEL", "SKIP", "QUEUE")
        for n in range(4)
    ]
    tasks += [
        make_task(
            program,
            f"once-{n}",
            target.url("/quick"),
            "500ms",
            concurrency_policy="PARALLEL",
            delivery="at_most_once",
            history_limit=HISTORY,
        )
        for n in range(2)
    ]
    return tasks


def do_harm(fleet: Fleet, for_s: float) -> Counter[str]:
    """One fault after the other, with a little time between."""
    dice = random.Random(SEED)
    done: Counter[str] = Counter()
    until = time.monotonic() + for_s
    while time.monotonic() < until:
        time.sleep(dice.uniform(0.2, 2))
        name = dice.choice(list(fleet.faults))
        fleet.faults[name](dice)
        done[name] += 1
    return done


def check_deliveries(ledger: Ledger, target: Target, tasks: list[Json]) -> tuple[int, int]:
    """Each delivery is recorded, each success was delivered, and at most once means that."""
    requests = target.requests()
    repeats = ledger.check_deliveries(requests, may_fail=True)
    careful = {task["id"] for task in tasks if task["name"].startswith("once-")}
    seen = Counter(one.headers["x-ksana-run-id"] for one in requests)
    doubled = [
        run["id"] for run in ledger.runs if run["task_id"] in careful and seen[run["uid"]] > 1
    ]
    assert not doubled, f"at most once, and sent more often: {doubled}"
    return len(requests), repeats


def check_written(program: Program, writer: Writer, runs: list[Json]) -> None:
    """What was acknowledged is there."""
    uids = {run["uid"] for run in runs}
    assert not writer.runs - uids, "acknowledged runs are gone"
    for task_id, name in writer.tasks.items():
        answer = program.get(f"/api/v1/tasks/{task_id}")
        assert (answer.status_code, answer.json().get("name")) == (200, name)
    for job_id in writer.jobs:
        assert program.get(f"/api/scheduler/jobs/{job_id}").status_code == 200, job_id


def run_chaos(fleet: Fleet, target: Target, url: str, store: str) -> None:
    survivor = fleet.programs[0]
    tasks = make_load(survivor, target)
    writer = Writer(fleet.programs, target.url("/written"), has_queue=True)
    writer.start()
    harm = do_harm(fleet, FOR_S)
    writer.stop()
    assert not writer.surprises, writer.surprises[:5]
    fleet.heal()
    disable(survivor, tasks)
    wait_until_quiet(survivor, within_s=60)
    ledger = Ledger(survivor)
    ledger.check_finished()
    slots = sum(ledger.check_slots(task, SECOND // 2) for task in tasks)
    states = Counter(run["status"] for run in ledger.runs if run["trigger"] != "manual")
    missed = sum(event["data"]["count"] for event in ledger.misfires)
    caught_up = slots - sum(states.values())
    assert caught_up <= missed, "a slot without a run that is not counted as missed"
    deliveries, repeats = check_deliveries(ledger, target, tasks)
    check_written(survivor, writer, list_runs(survivor))
    assert writer.acknowledged > 0
    with Books(url) as books:
        books.check()
    for program in fleet.programs:
        assert "Traceback" not in program.log_text()
    note_figures(
        f"chaos on {store}",
        f"{FOR_S:g} s, seed {SEED}: {', '.join(f'{n} × {name}' for name, n in harm.items())}; "
        f"{slots} slots = {states['SUCCESS']} succeeded + {states['SKIPPED']} skipped + "
        f"{sum(states.values()) - states['SUCCESS'] - states['SKIPPED']} failed or unknown + "
        f"{caught_up} missed without a run; {deliveries} deliveries, {repeats} repeats; "
        f"{writer.acknowledged} acknowledged writes, none lost, {writer.refused} refused",
    )


@pytest.mark.fault("F07", "F09", "F26", "F31")
@pytest.mark.spec("X4", "X10", "C10", "C19", "C20", "C23")
def test_chaos_on_sqlite_loses_nothing_and_doubles_nothing(tmp_path: Path, target: Target) -> None:
    with small_disk(tmp_path, 200_000) as disk:
        url = f"sqlite:///{disk}/ksana.db"
        with make_fleet(tmp_path, url, None) as fleet:
            fleet.faults["disk full"] = fill_disk(disk)
            run_chaos(fleet, target, url, "sqlite")


@pytest.mark.fault("F01", "F07", "F09", "F11", "F12", "F26", "F39")
@pytest.mark.spec("X4", "X10", "C10", "C19", "C20", "C23")
@pytest.mark.parametrize("kind", ["mariadb", "postgres"])
def test_chaos_on_a_database_server_loses_nothing_and_doubles_nothing(
    tmp_path: Path, target: Target, kind: str, request: pytest.FixtureRequest
) -> None:
    server: MariaDB | Postgres = request.getfixturevalue(kind)
    name = server.create_database()
    url = server.url(name)
    try:
        with make_fleet(tmp_path, url, server) as fleet:
            run_chaos(fleet, target, url, kind)
    finally:
        server.heal()
        server.drop_database(name)
