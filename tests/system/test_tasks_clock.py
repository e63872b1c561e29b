"""The wall clock of the real process is stepped under it (libfaketime); monotonic time goes on.

On SQLite our clock is the store's, so what is due follows it. Slots are wall times: after a step
back those of the past hour were fired already and are not fired again; tasks made now fire at once.
On a network database the server's clock decides and a step of ours moves nothing.
"""

import statistics
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.ground.child import wait_for
from tests.ground.process import Program
from tests.ground.target import Hold, Target
from tests.ground.tasks import (
    SECOND,
    Ledger,
    count_open,
    disable,
    instant_of,
    list_events,
    list_runs,
    make_task,
    trigger,
    wait_for_run,
    wait_until_quiet,
)

HOUR_S = 3600
LIBRARIES = (
    "/usr/lib/*/faketime/libfaketime.so.1",
    "/usr/lib/faketime/libfaketime.so.1",
    "/usr/lib64/faketime/libfaketime.so.1",
)
LIBRARY = next(
    (str(path) for pattern in LIBRARIES for path in Path("/").glob(pattern.lstrip("/"))), None
)

# Slow: the library also wraps the waits of the interpreter itself, which under load stalls the
# program for seconds. The same rules are shown on the virtual clock in tests/engine, where nothing
# depends on the machine.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        LIBRARY is None or sys.platform != "linux",
        reason="libfaketime is not installed: the clock cannot be stepped",
    ),
]


class SteppedProgram(Program):
    """The program with a wall clock of its own."""

    def __init__(self, folder: Path, store: str | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._offset = folder / "offset"
        self.step_to(0)
        env = {
            "LD_PRELOAD": str(LIBRARY),
            "FAKETIME_TIMESTAMP_FILE": str(self._offset),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "DONT_FAKE_MONOTONIC": "1",
        }
        super().__init__(folder, store=store, env=env)

    def step_to(self, offset_s: int) -> None:
        """Set its clock so far from the true one."""
        new = self._offset.with_suffix(".new")
        new.write_text(f"{offset_s:+d}\n", encoding="ascii")
        new.replace(self._offset)


@pytest.fixture
def stepped(tmp_path: Path) -> Iterator[SteppedProgram]:
    with SteppedProgram(tmp_path / "data") as program:
        yield program.start()


def in_s(seconds: float) -> str:
    return (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat()


@pytest.mark.fault("F20")
@pytest.mark.spec("X5")
def test_a_step_back_fires_no_slot_again_and_holds_up_nothing_new(
    stepped: SteppedProgram, target: Target
) -> None:
    old = make_task(stepped, "old", target.url("/old"), "200ms")
    target.wait_for(10, "/old", within_s=60)
    stepped.step_to(-HOUR_S)
    new = make_task(stepped, "new", target.url("/new"), "200ms")
    once = {"kind": "once", "run_at": in_s(2 - HOUR_S)}
    answer = stepped.post(
        "/api/v1/tasks", {"name": "once", "target_url": target.url("/once"), "schedule": once}
    )
    assert answer.status_code == 201, answer.text
    target.wait_for(20, "/new", within_s=60)
    target.wait_for(1, "/once", within_s=60)
    wait_for(
        lambda: '"wall clock stepped"' in stepped.log_text(), "the step is reported", within_s=15
    )
    disable(stepped, [old, new])
    wait_until_quiet(stepped)
    for task in (old, new):
        slots = [run["scheduled_time"] for run in list_runs(stepped, task_id=task["id"])]
        assert len(slots) == len(set(slots))
    slots_called = [request.headers["x-ksana-scheduled-at"] for request in target.requests("/old")]
    assert len(slots_called) == len(set(slots_called)), "a slot was called twice"
    stepped.step_to(0)
    stepped.request("PATCH", f"/api/v1/tasks/{old['id']}/enable")
    target.wait_for(len(slots_called) + 5, "/old", within_s=60)


@pytest.mark.fault("F21")
@pytest.mark.spec("X5", "C10")
def test_a_step_forward_is_one_misfire_and_no_walk_over_every_slot(
    stepped: SteppedProgram, target: Target
) -> None:
    task = make_task(stepped, "t", target.url("/t"), "100ms", concurrency_policy="PARALLEL")
    target.wait_for(5, "/t")
    stepped.step_to(30 * 24 * HOUR_S)
    before = len(target.requests("/t"))
    wait_for(lambda: list_events(stepped, "TASK_MISFIRED"), "the misfire is told", within_s=10)
    target.wait_for(before + 10, "/t", within_s=10)
    disable(stepped, [task])
    wait_until_quiet(stepped)
    ledger = Ledger(stepped)
    (misfire,) = ledger.misfires
    assert misfire["data"]["count"] > 25_000_000, (
        "thirty days of ten a second, counted and not walked"
    )
    made_up = [
        run
        for run in ledger.of(task)
        if run["reason"] == "MISFIRE_FIRE_NOW" or run["status"] == "SUCCESS"
    ]
    assert len(made_up) < 1500, "not the missed ones: at most those within the grace"
    assert (
        instant_of(misfire["data"]["last"]) - instant_of(misfire["data"]["first"])
        > 29 * 24 * HOUR_S * SECOND
    )


@pytest.mark.fault("F20")
@pytest.mark.spec("X5")
def test_a_clock_that_jumps_ahead_and_is_set_back_silences_nobody(
    stepped: SteppedProgram, target: Target
) -> None:
    task = make_task(stepped, "t", target.url("/t"), "1s", concurrency_policy="PARALLEL")
    target.wait_for(3, "/t")
    stepped.step_to(24 * HOUR_S)
    wait_for(lambda: list_events(stepped, "TASK_MISFIRED"), "the jump is seen", within_s=15)
    target.wait_for(len(target.requests("/t")) + 3, "/t", within_s=15)
    stepped.step_to(0)
    wait_for(lambda: list_events(stepped, "TASK_REARMED"), "it is armed anew", within_s=30)
    target.wait_for(len(target.requests("/t")) + 5, "/t", within_s=15)
    disable(stepped, [task])
    wait_until_quiet(stepped)
    slots = [request.headers["x-ksana-scheduled-at"] for request in target.requests("/t")]
    assert len(slots) == len(set(slots)), "a slot was called twice"


@pytest.mark.spec("X5", "C19")
def test_orphans_are_found_at_once_although_the_clock_was_set_back_while_nobody_ran(
    stepped: SteppedProgram, target: Target
) -> None:
    held = Hold()
    target.on("/held", held)
    stepped.step_to(HOUR_S)
    task = make_task(
        stepped,
        "t",
        target.url("/held"),
        timeout_seconds=60,
        retry_policy={"max_retries": 1, "initial_delay": 0},
    )
    run_id = trigger(stepped, task)
    target.wait_for(1, "/held")
    time.sleep(2.5)  # signs of life are written by the clock that is an hour ahead
    stepped.kill9()
    stepped.step_to(0)
    held.release()
    stepped.start()
    run = wait_for_run(stepped, run_id, within_s=15)
    assert [one["status"] for one in run["attempts"]] == ["LOST", "SUCCESS"]
    assert count_open(stepped) == 0


@pytest.mark.fault("F23")
@pytest.mark.slow
@pytest.mark.parametrize("database", ["mariadb", "postgres"])
@pytest.mark.spec("X5", "X4")
def test_on_a_network_store_a_step_of_our_clock_neither_repeats_nor_delays_a_slot(
    request: pytest.FixtureRequest, tmp_path: Path, target: Target, database: str
) -> None:
    server = request.getfixturevalue(database)
    name = server.create_database()
    with SteppedProgram(tmp_path, server.url(name)) as program:
        program.step_to(-HOUR_S)
        program.start()
        task = make_task(program, "t", target.url("/t"), "200ms", concurrency_policy="PARALLEL")
        late = [
            call.at - instant_of(call.headers["x-ksana-scheduled-at"])
            for call in target.wait_for(15, "/t")
        ]
        assert statistics.median(late) < SECOND / 2, (
            "our clock is an hour behind: due is waited for by the store's clock"
        )
        for offset_s in (0, -HOUR_S, HOUR_S):
            program.step_to(offset_s)
            target.wait_for(len(target.requests("/t")) + 10, "/t", within_s=12)
        disable(program, [task])
        wait_until_quiet(program)
        ledger = Ledger(program)
        ledger.check_slots(task, SECOND // 5)
        assert not ledger.misfires
        assert ledger.check_deliveries(target.requests()) == 0
    server.drop_database(name)
