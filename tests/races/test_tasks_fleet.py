"""Several instances over one store, one killed and one frozen midway: each slot once, everything
taken over.

The frozen one stands for a paused machine: it wakes up later, finds its runs gone and its results
refused. KSANA_FULL=1: 4 instances, 200 tasks every second for 60 s.
"""

import contextlib
import functools
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ksana.engine.core.membership import LEASE
from ksana.store.sql.core.dialects.mysql import MysqlDialect
from ksana.store.sql.core.dialects.postgres import PostgresDialect
from tests.ground.child import wait_for
from tests.ground.fleet import fleet
from tests.ground.mariadb import MariaDB
from tests.ground.postgres import Postgres
from tests.ground.process import Program
from tests.ground.target import Answer, Hold, Target
from tests.ground.tasks import (
    FULL,
    SECOND,
    Json,
    Ledger,
    count_open,
    disable,
    get_run,
    instant_of,
    list_events,
    make_task,
    note_figures,
    trigger,
    wait_for_run,
    wait_until_quiet,
)

INSTANCES, TASKS, BEFORE_S, IN_ALL_S = (4, 200, 20.0, 60.0) if FULL else (3, 40, 3.0, 12.0)
TAKEOVER_S = 20.0

Databases = MariaDB | Postgres


Ask = Callable[[str], list[Any]]


@pytest.fixture(params=["mariadb", "postgres"])
def shared(request: pytest.FixtureRequest) -> Iterator[tuple[str, Ask]]:
    """A fresh database that any number of instances may share: its URL, and a way to ask it
    directly."""
    server: Databases = request.getfixturevalue(request.param)
    name = server.create_database()

    def ask(statement: str) -> list[Any]:
        with (
            contextlib.closing(server.connect(name)) as connection,
            contextlib.closing(connection.cursor()) as cursor,
        ):
            cursor.execute(statement)
            return list(cursor.fetchall())

    yield server.url(name), ask
    server.heal()
    server.drop_database(name)


def trigger_on(program: Program, task: Json, ask: Ask, target: Target) -> int:
    """A run that this very instance holds, its call under way. Any instance may take a run, so ask
    until this one did."""
    for _ in range(20):
        run_id = trigger(program, task)
        wait_for_run(program, run_id, "RUNNING")
        holder, uid = map(str, ask(f"SELECT held_by, uid FROM task_runs WHERE id = {run_id}")[0])
        if holder.startswith(program.env["KSANA_INSTANCE_ID"] + "-"):
            # RUNNING is written first: one that dies before the call is no orphan whose outcome is
            # unknown.
            wait_for(
                lambda: any(one.headers.get("x-ksana-run-id") == uid for one in target.requests()),
                "it is called",
            )
            return run_id
    raise AssertionError("this instance takes no run")


@pytest.mark.fault("F01")
@pytest.mark.timeout(300)
@pytest.mark.spec("X4", "C19", "C14")
def test_a_killed_and_a_frozen_instance_lose_nothing_and_are_taken_over(
    tmp_path: Path, shared: tuple[str, Ask], target: Target
) -> None:
    url, ask = shared
    target.on("/slot", Answer(after_ms=150))  # some calls are always under way
    held = Hold()
    target.on("/held", held)
    with fleet(tmp_path, url, INSTANCES) as programs:
        survivor, victim, sleeper = programs[0], programs[1], programs[-1]
        tasks = [
            make_task(
                programs[n % len(programs)],
                f"t{n}",
                target.url("/slot"),
                "1s",
                retry_policy={"max_retries": 3, "initial_delay": 1},
                concurrency_policy="PARALLEL",
            )
            for n in range(TASKS)
        ]
        options = {"concurrency_policy": "PARALLEL", "timeout_seconds": 90}
        again = make_task(
            survivor, "again", target.url("/held"), retry_policy={"max_retries": 1}, **options
        )
        no_more = make_task(survivor, "no more", target.url("/held"), **options)
        began = time.monotonic()
        time.sleep(BEFORE_S)  # the load is the fact here: firing goes on for so long
        on_sleeper, on_victim = (
            trigger_on(sleeper, again, ask, target),
            trigger_on(victim, no_more, ask, target),
        )
        victim.kill9()
        sleeper.pause()
        died_at = time.time_ns() // 1000
        wait_for(
            lambda: (
                get_run(survivor, on_victim)["attempts"]
                and get_run(survivor, on_sleeper)["attempts"]
            ),
            "both are taken over",
            within_s=TAKEOVER_S + 5,
            every_s=0.1,
        )
        failed = get_run(survivor, on_victim)
        assert (failed["status"], failed["reason"]) == ("FAILED", "ORPHANED_NO_RETRY_LEFT")
        assert "instance i1-" in failed["error_message"]
        sleeper.resume()
        held.release()
        assert wait_for_run(survivor, on_sleeper)["status"] == "SUCCESS"
        wait_for(
            lambda: on_sleeper in refused_runs(survivor), "the sleeper's late result is refused"
        )
        sleeper.wait_until("/readyz")
        time.sleep(max(0.0, IN_ALL_S - (time.monotonic() - began)))
        disable(survivor, tasks)
        wait_until_quiet(survivor)

        assert [one["status"] for one in get_run(survivor, on_sleeper)["attempts"]] == [
            "LOST",
            "SUCCESS",
        ]
        ledger = Ledger(survivor)
        slots = sum(ledger.check_slots(task, SECOND) for task in tasks)
        assert slots >= TASKS * (IN_ALL_S - 3)
        assert not ledger.misfires, "somebody was alive all the time"
        # Two of the shares are fired by nobody of their own: long before the leases end.
        assert find_latest(ask, died_at) <= min(TAKEOVER_S * SECOND, LEASE / 2)
        lost = ledger.lost_attempts()
        takeover_s = (max(instant_of(one["ended_at"]) for one in lost) - died_at) / SECOND
        assert takeover_s <= TAKEOVER_S, (
            f"the last takeover came {takeover_s:.1f} s after the death"
        )
        ledger.runs = [run for run in ledger.runs if run["id"] != on_victim]
        repeats = ledger.check_deliveries(
            r for r in target.requests() if r.headers["x-ksana-run-id"] != failed["uid"]
        )
        note_figures(
            f"{INSTANCES} instances on {url.partition(':')[0]}",
            f"{slots} slots, {len(lost)} lost attempts, {repeats} repeats, "
            f"last takeover after {takeover_s:.1f} s",
        )


def find_latest(ask: Ask, since: int) -> int:
    """How late the latest run was made of all slots since then, in microseconds."""
    statement = (
        "SELECT MAX(created_at - slot_at) FROM task_runs"
        f" WHERE trigger_kind = 'schedule' AND slot_at >= {since}"
    )
    return int(ask(statement)[0][0])


def refused_runs(program: Program) -> set[int]:
    return {int(event["entity_id"]) for event in list_events(program, "RUN_RESULT_REFUSED")}


def read_limits(dialect: Any) -> tuple[int, int]:
    """How long a transaction of ours waits for a row, and how long it may be idle, in seconds."""
    is_postgres = isinstance(dialect, PostgresDialect)
    names = (
        ("SHOW lock_timeout", "SHOW idle_in_transaction_session_timeout")
        if is_postgres
        else ("SELECT @@innodb_lock_wait_timeout", "SELECT @@idle_transaction_timeout")
    )
    with (
        contextlib.closing(dialect.connect(read_only=False)) as connection,
        contextlib.closing(connection.cursor()) as cursor,
    ):
        found = []
        for name in names:
            cursor.execute(name)
            found.append(int(str(cursor.fetchone()[0]).removesuffix("s")))
    return found[0], found[1]


def dialect_of(url: str) -> Any:
    return PostgresDialect(url) if url.startswith("postgresql") else MysqlDialect(url)


@pytest.mark.fault("F13")
@pytest.mark.spec("C19", "X4")
def test_a_frozen_writer_lets_go_of_its_rows_before_its_lease_ends(shared: tuple[str, Ask]) -> None:
    wait_s, idle_s = read_limits(dialect_of(shared[0]))
    # One that waits for a row of another gives up before that one is ended, and is ended in turn.
    assert 0 < wait_s < idle_s
    assert (wait_s + idle_s) * SECOND < LEASE


@pytest.mark.slow
@pytest.mark.fault("F13")
@pytest.mark.spec("C19", "X4")
def test_a_chain_of_frozen_writers_lets_go_before_their_lease_ends(
    shared: tuple[str, Ask],
) -> None:
    dialect = dialect_of(shared[0])
    with contextlib.ExitStack() as stack:

        def connect() -> Any:
            connection = dialect.connect(read_only=False)
            stack.callback(_close_quietly, connection)
            return connection.cursor()

        holder, waiter, other = connect(), connect(), connect()
        other.execute("CREATE TABLE chain_of_rows (id INTEGER PRIMARY KEY, n INTEGER)")
        other.execute("INSERT INTO chain_of_rows (id, n) VALUES (1, 0), (2, 0)")
        take = "UPDATE chain_of_rows SET n = n + 1 WHERE id = {}"
        holder.execute("BEGIN")
        holder.execute(take.format(1))
        waiter.execute("BEGIN")
        waiter.execute(take.format(2))
        frozen_at = time.monotonic()  # from here on neither of the two says anything more
        waiting = threading.Thread(target=_try, args=(waiter, take.format(1)), daemon=True)
        waiting.start()
        for row in (1, 2):
            wait_for(
                functools.partial(_try, other, take.format(row)), f"row {row} is free", within_s=25
            )
        assert time.monotonic() - frozen_at < LEASE / SECOND
        waiting.join(30)
        other.execute("DROP TABLE chain_of_rows")


def _try(cursor: Any, sql: str) -> bool:
    try:
        cursor.execute(sql)
    except Exception:  # a lock that was not got in time, or a connection that was ended
        return False
    return True


def _close_quietly(connection: Any) -> None:
    with contextlib.suppress(Exception):
        connection.close()


def create(
    program: Program, body: Json, gate: threading.Barrier, answers: list[tuple[int, str]]
) -> None:
    gate.wait()
    answer = program.post("/api/v1/tasks", body)
    answers.append((answer.status_code, answer.json().get("code", "")))


@pytest.mark.spec("X4", "C1")
def test_of_two_instances_that_make_the_same_name_one_wins_and_the_other_is_told(
    tmp_path: Path, shared: tuple[str, Ask]
) -> None:
    target_url = "http://127.0.0.1:9/never"
    with fleet(tmp_path, shared[0], 2) as programs:
        for round_ in range(10):
            answers: list[tuple[int, str]] = []
            gate = threading.Barrier(4)
            body = {"name": f"same-{round_}", "target_url": target_url, "cron_expr": "0 0 1 1 *"}

            threads = [
                threading.Thread(target=create, args=(program, body, gate, answers))
                for program in programs
                for _ in range(2)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert sorted(answers) == [(201, ""), *[(409, "ALREADY_EXISTS")] * 3]


@pytest.mark.spec("C6", "X4")
def test_cancelling_a_run_that_another_instance_holds_ends_its_call_within_a_second(
    tmp_path: Path, shared: tuple[str, Ask], target: Target
) -> None:
    held = Hold()
    took: list[float] = []
    target.on("/held", held)
    with fleet(tmp_path, shared[0], 2) as (one, other):
        task = make_task(
            one, "t", target.url("/held"), timeout_seconds=60, concurrency_policy="PARALLEL"
        )
        for holder, canceller in ((one, other), (other, one), (one, one), (one, other)):
            run_id = trigger_on(holder, task, shared[1], target)
            target.wait_for(1, "/held")
            began = time.monotonic()
            answer = canceller.post(f"/api/v1/runs/{run_id}/cancel")
            assert (answer.status_code, answer.json()["status"]) == (200, "CANCELED")
            wait_for(lambda: target.open_calls == 0, "the call is dropped", within_s=5)
            took.append(time.monotonic() - began)
            assert get_run(one, run_id)["status"] == "CANCELED"
            target.forget()
            target.on("/held", held)
        assert sorted(took)[1] <= 1.0, took  # a busy machine may hold up some of them
        assert count_open(one) == 0
