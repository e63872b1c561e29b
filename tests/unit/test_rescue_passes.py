"""Rescue, pass by pass: what it comes back to, what it writes then, and whom it tells."""

from typing import Any

import pytest

from ksana.base.clock import VirtualClock
from ksana.base.instant import MINUTE, SECOND, Instant
from ksana.domain.tasks.changes import RunChange
from ksana.domain.tasks.firing import Counts
from ksana.domain.tasks.records import RetryPolicy, Run, Task
from ksana.engine.core.pump import AGAIN
from ksana.engine.tasks.claimed_run import AttemptOver
from ksana.engine.tasks.rescue import (
    BATCH,
    FORGOTTEN_AFTER,
    PROMOTE_EVERY,
    RESCUE_EVERY,
    RescueEngine,
    Woken,
    promote_stalled,
    rescue_forgotten,
    rescue_orphans,
    wake_due,
)
from ksana.ports.caller import Reply, Timing
from tests.ground.task_rows import a_finish
from tests.unit.delivery_ground import ScriptedStore, a_claim, is_signalled, step
from tests.unit.scripted_tx import ScriptedTx, Told
from tests.unit.task_ground import NOW, a_run, a_task


def an_over(run_id: int) -> AttemptOver:
    return AttemptOver(a_claim(run_id), None, None, Reply("timeout", Timing()), NOW, NOW)


class Jobs:
    """`OverdueJobs`: each run whose time is over times out."""

    def __init__(self) -> None:
        self.told: list[list[tuple[AttemptOver, str]]] = []

    def expire(self, tx: Any, run: Run, task: Task) -> tuple[RunChange, AttemptOver]:
        assert task.id == run.task_id
        return a_finish(run.id, run.token, run.task_id, new="TIMEOUT"), an_over(run.id)

    def tell(self, overs: list[tuple[AttemptOver, str]]) -> None:
        self.told.append(overs)


class Ground:
    """A rescue engine over a scripted store."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.store = ScriptedStore(sole=False)
        self.jobs = Jobs()
        self.ready: list[str] = []
        self.known: set[int] = set()
        self.keeps_jobs = False
        self.engine = RescueEngine(
            self.store,  # type: ignore[arg-type]
            clock,
            "me",
            self.ready.append,
            lambda: self.known,
            self.jobs,
            lambda: self.keeps_jobs,
        )

    def answer(self, **answers: Any) -> None:
        for name, value in answers.items():
            self.store.answer(name, value)


@pytest.fixture
def ground(clock: VirtualClock) -> Ground:
    return Ground(clock)


def test_it_has_three_loops(ground: Ground) -> None:
    pumps = (ground.engine.wakes, ground.engine.rescue, ground.engine.promote)
    assert [(pump.name, pump._poll_us) for pump in pumps] == [
        ("wakes", 5 * SECOND),
        ("rescue", 10 * SECOND),
        ("promote", PROMOTE_EVERY),
    ]


# The loops


@pytest.mark.parametrize(
    ("is_full", "next_in", "comes_back_in"),
    [(False, None, None), (False, MINUTE, MINUTE), (True, None, AGAIN), (True, MINUTE, AGAIN)],
)
async def test_what_a_pass_woke_is_told_and_it_comes_back_for_the_next(
    ground: Ground, is_full: bool, next_in: int | None, comes_back_in: int | None
) -> None:
    now = ground.clock.now()
    overs = [(an_over(1), "TIMEOUT")]
    next_at = None if next_in is None else now + next_in
    ground.answer(wake_due=Woken({"a"}, next_at, is_full, now, overs))
    comes_back = await step(ground.engine.wakes)
    assert comes_back == (comes_back_in if comes_back_in in (None, AGAIN) else now + MINUTE)
    assert (ground.ready, ground.jobs.told) == (["a"], [overs])
    assert ground.store.asked == [("wake_due", (ground.jobs,))]


async def test_what_is_due_by_the_clock_of_the_store_is_waited_for_by_ours(ground: Ground) -> None:
    now = ground.clock.now()
    ground.answer(wake_due=Woken(set(), now + MINUTE, False, now + 3 * SECOND))
    assert await step(ground.engine.wakes) == now + MINUTE - 3 * SECOND


@pytest.mark.parametrize("keeps_jobs", [True, False])
async def test_orphans_are_taken_and_what_may_start_instead_is_told(
    ground: Ground, keeps_jobs: bool
) -> None:
    ground.keeps_jobs = keeps_jobs
    ground.answer(_list_orphans=[4, 5], rescue_orphans={"a"}, _list_long_held=[])
    assert await step(ground.engine.rescue) == ground.clock.now() + RESCUE_EVERY
    assert ground.store.asked == [
        ("_list_orphans", ("me",)),
        ("rescue_orphans", ([4, 5], "me")),
        ("_list_long_held", ("me",)),
    ]
    assert ground.store.given["rescue_orphans"] == {"keeps_jobs": keeps_jobs}
    assert ground.ready == ["a"]
    assert is_signalled(ground.engine.wakes), "a retry may be due"


async def test_without_orphans_nothing_is_written(ground: Ground) -> None:
    ground.answer(_list_orphans=[], _list_long_held=[])
    await step(ground.engine.rescue)
    assert ground.store.names() == ["_list_orphans", "_list_long_held"]
    assert (ground.ready, is_signalled(ground.engine.wakes)) == ([], False)


async def test_more_orphans_than_a_batch_are_taken_at_once_one_after_the_other(
    ground: Ground,
) -> None:
    ground.answer(_list_orphans=[1] * BATCH, rescue_orphans=set(), _list_long_held=[])
    assert await step(ground.engine.rescue) == AGAIN


async def test_an_instance_that_is_alone_waits_for_the_poll(ground: Ground) -> None:
    ground.store.sole = True
    ground.answer(_list_orphans=[], _list_long_held=[])
    assert await step(ground.engine.rescue) is None


async def test_runs_that_we_hold_without_knowing_are_taken(ground: Ground) -> None:
    ground.known = {2, 9}
    ground.answer(_list_orphans=[], _list_long_held=[3, 2, 1], rescue_forgotten={"a"})
    await step(ground.engine.rescue)
    assert ground.store.asked[-1] == ("rescue_forgotten", ([1, 3],))
    assert (ground.ready, is_signalled(ground.engine.wakes)) == (["a"], True)


async def test_runs_that_just_take_long_are_let_be(ground: Ground) -> None:
    ground.known = {2}
    ground.answer(_list_orphans=[], _list_long_held=[2])
    await step(ground.engine.rescue)
    assert ground.store.names() == ["_list_orphans", "_list_long_held"]
    assert not is_signalled(ground.engine.wakes)


async def test_runs_that_a_lost_promotion_left_behind_are_started(ground: Ground) -> None:
    ground.answer(_list_stalled=[7], promote_stalled={"a"})
    assert await step(ground.engine.promote) is None
    assert (ground.store.asked[-1], ground.ready) == (("promote_stalled", ([7],)), ["a"])
    ground.answer(_list_stalled=[])
    ground.store.names()
    await step(ground.engine.promote)
    assert ground.store.names() == ["_list_stalled"]


# What is written


def tx_of(**answers: Any) -> ScriptedTx:
    def all_done(changes: list[RunChange]) -> list[bool]:
        return [True] * len(changes)

    given: dict[str, Any] = {
        "run_changes_finish": all_done,
        "run_changes_move": all_done,
        "runs_count_open": {},
        "tasks_find": lambda task_id, **_: None if task_id == 404 else a_task(id=task_id),
        "run_due_next_wake_at": NOW + MINUTE,
    }
    return ScriptedTx(**given | answers)


def moves_of(tx: ScriptedTx) -> list[tuple[int, str]]:
    changes = [
        change
        for what in ("run_changes.finish", "run_changes.move")
        for args in tx.args_of(what)
        for change in args[0]
    ]
    return [(change.run_id, change.new) for change in changes]


def waiting_run(run_id: int, status: str = "RUNNING", **members: Any) -> Run:
    return a_run(id=run_id, status=status, held_by=None, wake_at=NOW, **members)


def test_each_run_that_must_be_looked_at_goes_on_by_its_state() -> None:
    runs = [
        waiting_run(1, "RETRYING"),
        waiting_run(2, "CALLBACK_PENDING", exec_type="ASYNC"),
        waiting_run(3, task_id=404),
        waiting_run(4),
        a_run(id=5),
    ]
    tx = tx_of(run_due_list_wakes=runs)
    woken = wake_due(tx, Jobs())
    assert tx.args_of("run_due.list_wakes") == [(NOW, BATCH)]
    assert sorted(moves_of(tx)) == [
        (1, "RETRYING"),
        (2, "FAILED_TIMEOUT"),
        (3, "FAILED"),
        (4, "TIMEOUT"),
    ], "one that an instance holds is its holder's"
    assert woken == Woken({"target"}, NOW + MINUTE, False, NOW, [(an_over(4), "TIMEOUT")])


def test_an_end_that_came_too_late_is_told_to_nobody() -> None:
    tx = tx_of(run_due_list_wakes=[waiting_run(4)], run_changes_finish=[False])
    assert wake_due(tx, Jobs()).overs == []


def test_runs_of_a_backfill_are_let_in_task_by_task() -> None:
    members: dict[str, Any] = {"trigger": "backfill", "is_counted": False, "status": "SCHEDULED"}
    runs = [
        waiting_run(1, task_id=9, host="nine", **members),
        waiting_run(2, task_id=8, host="eight", **members),
        waiting_run(3, task_id=9, host="nine", **members),
        waiting_run(4, "RETRYING"),
    ]
    tx = tx_of(run_due_list_wakes=runs)
    assert wake_due(tx, Jobs()).ready_hosts == {"target", "eight", "nine"}
    entered = [args[0] for args in tx.args_of("run_changes.count_in")]
    assert entered == [[(2, 5)], [(1, 5)]], "one at a time: each has room for one"


def test_a_full_pass_does_not_look_for_what_is_next() -> None:
    runs = [waiting_run(n, "RETRYING") for n in range(BATCH)]
    woken = wake_due(tx_of(run_due_list_wakes=runs), Jobs())
    assert (woken.is_full, woken.next_at) == (True, None)


RETRIED = RetryPolicy(max_retries=3)


def orphans_tx(*runs: Run, begun_to: int | None = 60) -> ScriptedTx:
    def find(task_id: int, **_: Any) -> Task:
        return a_task(id=task_id, retry=RETRIED)

    return tx_of(
        run_due_list_orphans=list(runs),
        instances_find_begun_to=begun_to,
        tasks_find=find,
        runs_find=lambda run_id: next((run for run in runs if run.id == run_id), None),
        runs_count_open={7: Counts(0, 1)},
        run_due_list_waiting=lambda *_: [a_run(id=99, status="SCHEDULED", host="next")],
    )


def reasons_of(tx: ScriptedTx) -> list[tuple[int, str | None]]:
    changes = [change for args in tx.args_of("run_changes.move") for change in args[0]]
    return [(change.run_id, change.reason) for change in changes]


def test_orphans_are_taken_by_what_their_holder_may_have_sent() -> None:
    sent, unsent = a_run(id=60, held_by="gone"), a_run(id=61, held_by="gone")
    beside = a_run(id=62, held_by="gone")
    tx = orphans_tx(sent, unsent, beside)
    rescue_orphans(tx, [60, 61], "me")
    assert tx.args_of("run_due.list_orphans") == [("me", BATCH)]
    assert tx.args_of("instances.find_begun_to") == [("gone",), ("gone",)]
    assert reasons_of(tx) == [(60, "ORPHANED_RETRY_LEFT"), (61, "HELD_NEVER_BEGUN")]


def test_of_an_orphan_without_a_holder_nothing_is_asked() -> None:
    tx = orphans_tx(a_run(id=60, held_by=None))
    rescue_orphans(tx, [60], "me")
    assert tx.args_of("instances.find_begun_to") == []


def test_an_orphan_that_fails_lets_the_next_of_its_task_start() -> None:
    tx = orphans_tx(a_run(id=60, attempt=9))
    assert rescue_orphans(tx, [60], "me") == {"next"}


def test_runs_that_we_were_never_told_of_are_tried_again() -> None:
    tx = orphans_tx(a_run(id=60), a_run(id=61, status="SUCCESS"))
    assert rescue_forgotten(tx, [59, 60, 61]) == set()
    assert [run_id for run_id, _ in reasons_of(tx)] == [60]
    failed = orphans_tx(a_run(id=60, attempt=9))
    assert rescue_forgotten(failed, [60]) == {"next"}


def test_tasks_are_locked_in_one_order_before_their_waiting_runs_start() -> None:
    tx = orphans_tx()
    assert promote_stalled(tx, [9, 7]) == {"next"}
    assert tx.told[0] == Told("tasks.lock", ([7, 9],), {})


async def test_what_is_looked_for_is_bounded_and_old_enough(ground: Ground) -> None:
    asked: list[Any] = []

    class Reading(ScriptedStore):
        async def read(self, fn: Any, *args: Any, **_: Any) -> Any:
            asked.append(fn(tx, *args))
            return []

        transact = read

    tx = ScriptedTx(
        run_due_list_orphans=[a_run(id=3)],
        run_due_list_held=[4],
        run_due_list_stalled=[5],
    )
    engine = RescueEngine(
        Reading(),  # type: ignore[arg-type]
        ground.clock,
        "me",
        ground.ready.append,
        set,
        ground.jobs,
    )
    await step(engine.rescue)
    await step(engine.promote)
    assert asked == [[3], [4], [5]]
    held_before: Instant = NOW - FORGOTTEN_AFTER
    assert tx.told == [
        Told("run_due.list_orphans", ("me", BATCH), {}),
        Told("run_due.list_held", ("me", held_before), {}),
        Told("run_due.list_stalled", (BATCH,), {}),
    ]
