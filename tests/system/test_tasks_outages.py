"""The store goes away in the middle of firing, or loses its answer to a COMMIT: nothing lost,
nothing doubled."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ground.child import wait_for
from tests.ground.mariadb import MariaDB
from tests.ground.postgres import Postgres
from tests.ground.process import Program
from tests.ground.proxy import FaultProxy
from tests.ground.target import Answer, Hold, Target
from tests.ground.tasks import (
    FULL,
    SECOND,
    Json,
    Ledger,
    disable,
    list_events,
    make_task,
    note_figures,
    trigger,
    wait_for_run,
    wait_until_quiet,
)
from tests.store.test_unknown_commits import is_commit

AWAY_S = 10.0 if FULL else 3.0


@pytest.fixture(params=["mariadb", "postgres"])
def server_url(request: pytest.FixtureRequest) -> Iterator[tuple[MariaDB | Postgres, str]]:
    """A database server and the URL of a fresh database on it."""
    server: MariaDB | Postgres = request.getfixturevalue(request.param)
    name = server.create_database()
    yield server, server.url(name)
    server.heal()
    server.drop_database(name)


def make_load(program: Program, target: Target, count: int = 20, **members: object) -> list[Json]:
    """Tasks that fire every half second and always have some calls under way."""
    target.on("/slot", Answer(after_ms=100))
    options = {
        "concurrency_policy": "PARALLEL",
        "retry_policy": {"max_retries": 2, "initial_delay": 0.5},
        **members,
    }
    return [
        make_task(program, f"t{n}", target.url("/slot"), "500ms", **options) for n in range(count)
    ]


def check_all(program: Program, target: Target, tasks: list[Json]) -> tuple[int, int, Ledger]:
    """Stop the load, wait for the end of every run, and hold the ledger against the target: (slots,
    repeats)."""
    disable(program, tasks)
    wait_until_quiet(program)
    ledger = Ledger(program)
    slots = sum(ledger.check_slots(task, SECOND // 2) for task in tasks)
    return slots, ledger.check_deliveries(target.requests()), ledger


@pytest.mark.timeout(180)
@pytest.mark.spec("C20", "C10", "X8")
def test_a_store_that_is_away_while_tasks_fire_costs_no_slot_and_doubles_none(
    tmp_path: Path, server_url: tuple[MariaDB | Postgres, str], target: Target
) -> None:
    server, url = server_url
    held = Hold()
    target.on("/held", held)
    with Program(tmp_path, store=url) as program:
        program.start()
        tasks = make_load(program, target)
        across = trigger(
            program, make_task(program, "across", target.url("/held"), timeout_seconds=60)
        )
        target.wait_for(40, "/slot")
        target.wait_for(1, "/held")
        server.kill()
        began = time.monotonic()
        wait_for(lambda: program.get("/readyz").status_code == 503, "the probe tells it")
        answer = program.get("/api/v1/tasks")
        assert (answer.status_code, answer.json()["code"]) == (503, "STORE_DOWN")
        assert int(answer.headers["retry-after"]) >= 1
        answer = program.post(
            "/api/v1/tasks", {"name": "x", "target_url": target.url("/x"), "cron_expr": "* * * * *"}
        )
        assert (answer.status_code, answer.json()["code"]) == (503, "STORE_DOWN")
        assert program.get("/health").status_code == 200
        held.release()  # this call ends while its outcome cannot be written
        time.sleep(max(0.0, AWAY_S - (time.monotonic() - began)))
        server.start()
        came_back = len(target.requests("/slot"))
        back_at = time.monotonic()
        wait_for(
            lambda: len(target.requests("/slot")) > came_back,
            "firing resumes by itself",
            within_s=15,
        )
        resumed_s = time.monotonic() - back_at
        program.wait_until("/api/v1/tasks")
        assert wait_for_run(program, across)["status"] == "SUCCESS"
        assert len(target.requests("/held")) == 1, "the outcome was kept, the call not repeated"
        target.wait_for(came_back + 40, "/slot", within_s=20)
        slots, repeats, ledger = check_all(program, target, tasks)
        assert repeats == 0, "one instance lived all the time: nothing had to be sent again"
        assert "Traceback" not in program.log_text()
        note_figures(
            f"store away for {AWAY_S:g} s on {url.partition(':')[0]}",
            f"{slots} slots, {len(ledger.misfires)} misfire events, {repeats} repeats, "
            f"firing again {resumed_s:.1f} s after",
        )


@pytest.mark.fault("F39")
@pytest.mark.timeout(120)
@pytest.mark.spec("C20", "X4")
def test_lost_answers_to_commit_while_tasks_fire_neither_lose_nor_double_a_run(
    tmp_path: Path, faulty_store: tuple[str, FaultProxy], target: Target
) -> None:
    url, proxy = faulty_store
    with Program(tmp_path, store=url) as program:
        program.start()
        tasks = make_load(program, target, 10)
        for round_ in range(12 if FULL else 4):
            lost = (
                proxy.lose_reply_to(is_commit) if round_ % 2 == 0 else proxy.cut_before(is_commit)
            )
            lost.wait(20)
            target.wait_for(len(target.requests("/slot")) + 10, "/slot", within_s=20)
        slots, repeats, ledger = check_all(program, target, tasks)
        assert repeats == 0
        assert not ledger.misfires, "nobody was away"
        note_figures(
            f"lost answers to COMMIT on {url.partition(':')[0]}",
            f"{slots} slots, {repeats} repeats",
        )
        assert not list_events(program, "RUN_RESULT_REFUSED")


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.spec("C20", "C19")
def test_a_frozen_store_holds_calls_back_and_lets_them_go_on(
    tmp_path: Path, faulty_store: tuple[str, FaultProxy], target: Target
) -> None:
    url, proxy = faulty_store
    with Program(tmp_path, store=url) as program:
        program.start()
        tasks = make_load(program, target, 10)
        target.wait_for(20, "/slot")
        proxy.blackhole()  # connections stay open, nobody answers
        time.sleep(AWAY_S)
        proxy.heal()
        target.wait_for(len(target.requests("/slot")) + 20, "/slot", within_s=20)
        _, repeats, _ = check_all(program, target, tasks)
        assert repeats == 0
