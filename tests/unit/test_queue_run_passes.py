"""Runs that are done by queue jobs: what each pass of their loop asks for, and whom it tells."""

from collections.abc import Sequence
from typing import Any

import pytest

from ksana.base.clock import VirtualClock
from ksana.base.errors import ConflictError
from ksana.base.instant import SECOND
from ksana.engine.core.pump import AGAIN
from ksana.engine.tasks.claimed_run import AttemptOver
from ksana.engine.tasks.queue_runs import (
    Handled,
    QueueRuns,
)
from ksana.ports.caller import Reply, Timing
from tests.ground.logs import capture_logs
from tests.unit.delivery_ground import ScriptedStore, a_claim, is_signalled, step
from tests.unit.queue_run_ground import NOTHING, ScriptedQueue, queue_task, start_one
from tests.unit.scripted_tx import ScriptedTx
from tests.unit.task_ground import NOW, a_run


class Ground:
    """The loop over a scripted store."""

    def __init__(self, clock: VirtualClock) -> None:
        self.store = ScriptedStore()
        self.store.answer("look", (False, False))
        self.store.answer("settle_ends", NOTHING)
        self.store.answer("start_runs", NOTHING)
        self.queue = ScriptedQueue()
        self.handled: list[tuple[set[str], bool]] = []
        self.seen: list[tuple[AttemptOver, str]] = []
        self.runs = QueueRuns(
            self.store,  # type: ignore[arg-type]
            clock,
            self.queue,
            "me",
            (self,),
            lambda hosts, wakes: self.handled.append((hosts, wakes)),
        )

    def recorded(self, ended: Sequence[tuple[AttemptOver, str]]) -> None:
        self.seen += ended

    async def step(self) -> int | None:
        return await step(self.runs.pump)

    async def settle(self) -> None:
        """Let it do what a start has to do."""
        await self.step()
        self.store.names()


@pytest.fixture
def ground(clock: VirtualClock) -> Ground:
    return Ground(clock)


def an_over(run_id: int) -> AttemptOver:
    return AttemptOver(a_claim(run_id), None, None, Reply("refused", Timing()), NOW, NOW)


def test_its_loop_gathers_what_comes_together(ground: Ground) -> None:
    pump = ground.runs.pump
    assert (pump.name, pump._poll_us, pump.min_interval_us) == ("queue-runs", 5 * SECOND, 4_000)


async def test_after_a_start_it_looks_for_ends_and_for_ready_runs(ground: Ground) -> None:
    assert await ground.step() is None
    assert ground.store.asked == [
        ("settle_ends", (ground.queue, "me")),
        ("start_runs", (ground.queue, "me")),
    ]
    ground.store.names()
    assert await ground.step() is None
    assert ground.store.names() == ["look"], "then the poll looks"
    assert ground.handled == []


@pytest.mark.parametrize(
    ("has_ready", "has_ended", "asked"),
    [
        (True, False, ["look", "start_runs"]),
        (False, True, ["look", "settle_ends"]),
        (True, True, ["look", "settle_ends", "start_runs"]),
    ],
)
async def test_what_the_poll_finds_is_done(
    ground: Ground, has_ready: bool, has_ended: bool, asked: list[str]
) -> None:
    await ground.settle()
    ground.store.answer("look", (has_ready, has_ended))
    await ground.step()
    assert ground.store.names() == asked


@pytest.mark.parametrize(
    ("hint", "asked"),
    [
        (lambda ground: ground.runs.ready(), ["start_runs"]),
        (lambda ground: ground.queue.hear(), ["settle_ends"]),
    ],
    ids=["ready", "ended"],
)
async def test_a_hint_saves_the_look(ground: Ground, hint: Any, asked: list[str]) -> None:
    await ground.settle()
    hint(ground)
    assert is_signalled(ground.runs.pump)
    await ground.step()
    assert ground.store.names() == asked


async def test_once_stopped_ends_are_settled_and_nothing_is_started(ground: Ground) -> None:
    ground.runs.stop()
    await ground.step()
    assert ground.store.names() == ["settle_ends"]


@pytest.mark.parametrize("full", ["settle_ends", "start_runs"])
async def test_a_full_batch_is_followed_by_the_next_at_once(ground: Ground, full: str) -> None:
    ground.store.answer(full, Handled(True, set(), False, []), NOTHING)
    assert await ground.step() == AGAIN
    ground.store.names()
    assert await ground.step() is None
    assert ground.store.names() == [full]


async def test_a_request_id_that_is_taken_makes_it_look_each_up(ground: Ground) -> None:
    ground.store.answer("start_runs", ConflictError("taken"), Handled(False, {"a"}, False, []))
    with capture_logs() as logs:
        await ground.step()
    assert ground.store.names() == ["settle_ends", "start_runs", "start_runs"]
    assert ground.store.given["start_runs"] == {"is_careful": True}
    assert [(line["log_level"], line["err"]) for line in logs] == [("warning", "taken")]
    assert ground.handled == [({"a"}, False)]


@pytest.mark.parametrize(
    ("hosts", "wakes"), [(set(), False), ({"a"}, False), (set(), True), ({"a"}, True)]
)
async def test_what_came_of_it_is_told_to_those_who_must_know(
    ground: Ground, hosts: set[str], wakes: bool
) -> None:
    ended = [(an_over(1), "SUCCESS"), (an_over(2), "FAILED")]
    order = start_one(ScriptedQueue())[1].orders[0]
    ground.store.answer("settle_ends", Handled(False, hosts, wakes, ended))
    ground.store.answer("start_runs", Handled(False, set(), True, [(an_over(3), "X")], [order]))
    with capture_logs() as logs:
        await ground.step()
    told = [(hosts, wakes)] if hosts or wakes else []
    assert ground.handled == [*told, (set(), True)]
    assert ground.seen == [*ended, (an_over(3), "X")]
    assert [line["run_id"] for line in logs] == [2, 3], "those that failed"
    assert ground.queue.told == [order]


def test_the_loop_that_wakes_runs_asks_here(ground: Ground) -> None:
    change, over = ground.runs.expire(ScriptedTx(), a_run(held_by=None), queue_task())
    assert (change.run_id, over.held.held_by) == (60, "me")
