"""How much of each task's history is kept: what one pass looks at, removes and comes back for."""

from typing import Any

import pytest

from ksana.base.clock import VirtualClock
from ksana.base.instant import SECOND
from ksana.engine.tasks import run_history
from ksana.engine.tasks.claimed_run import AttemptOver
from ksana.engine.tasks.run_history import (
    BATCH,
    EVERY,
    FOLD,
    PAUSE,
    SWEEP_AGAIN,
    SWEEP_EVERY,
    TASKS_A_LOOK,
    RunHistory,
    add_run_history,
    find_letter_surplus,
    find_surplus,
)
from tests.unit.delivery_ground import ScriptedStore, a_called_task, a_claim, answered
from tests.unit.scripted_tx import ScriptedTx, Told
from tests.unit.task_ground import NOW, a_task

pytestmark = pytest.mark.spec("X13")


class Ground:
    """The loop after its first sweep: a test of a pass looks at what was noted alone."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.store = ScriptedStore()
        for name, value in {
            "find_miscounts": [],
            "list_limits": [],
            "fold_counts": 0,
            "find_surplus": [],
            "find_letter_surplus": [],
            "settle_letters": 0,
        }.items():
            self.store.answer(name, value)
        self.store.answer("remove_runs", lambda ids: len(ids))
        self.history = RunHistory(self.store, clock)  # type: ignore[arg-type]

    async def step(self) -> int | None:
        """One pass: in how long it comes back."""
        comes_back = await self.history.step()
        assert comes_back is not None
        return comes_back - self.clock.now()

    async def start(self) -> None:
        await self.step()
        self.store.asked.clear()

    def looked_at(self) -> list[dict[int, int]]:
        return [args[0] for name, args in self.store.asked if name == "find_surplus"]


@pytest.fixture
def ground(clock: VirtualClock) -> Ground:
    return Ground(clock)


def test_its_loop_has_a_name(ground: Ground) -> None:
    pump = ground.history.pump
    assert (pump.name, pump._poll_us, ground.history.removed) == ("run-history", EVERY, 0)


# What is noted


@pytest.mark.parametrize(
    ("keep", "ends", "is_looked_at"),
    [
        (10, 1, True),
        (11, 1, False),
        (11, 2, True),
        (50, 4, False),
        (50, 5, True),
        (100, 9, False),
        (100, 10, True),
        (0, 1, True),
    ],
)
async def test_a_task_is_looked_at_once_it_grew_by_a_tenth_of_what_it_keeps(
    ground: Ground, keep: int, ends: int, is_looked_at: bool
) -> None:
    await ground.start()
    for _ in range(ends):
        ground.history.note([(7, keep)])
    await ground.step()
    assert ground.looked_at() == ([{7: keep}] if is_looked_at else [])


async def test_after_a_look_it_is_counted_anew(ground: Ground) -> None:
    await ground.start()
    ground.history.note([(7, 20)] * 2)
    await ground.step()
    ground.history.note([(7, 20)])
    await ground.step()
    assert len(ground.looked_at()) == 1
    ground.history.note([(7, 20)])
    await ground.step()
    assert len(ground.looked_at()) == 2


async def test_of_very_many_tasks_those_that_are_noted_go_on_counting(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_history, "MAX_NOTED", 2)
    await ground.start()
    for _ in range(3):
        ground.history.note([(1, 30), (2, 30), (3, 30)])
    await ground.step()
    assert ground.looked_at() == [{1: 30, 2: 30}], "the third is left to the sweep"


@pytest.mark.parametrize(
    ("status", "is_counted"),
    [
        ("SUCCESS", True),
        ("CALLBACK_PENDING", True),
        ("FAILED", True),
        ("TIMEOUT", True),
        ("RETRYING", False),
        ("CANCELED", False),
    ],
)
async def test_ends_that_add_to_what_is_kept_are_counted(
    ground: Ground, status: str, is_counted: bool
) -> None:
    await ground.start()
    task = a_called_task("a", id=8, history_limit=1)
    over = AttemptOver(a_claim(1, task=task), None, None, answered(), NOW, NOW)
    ground.history.recorded([(over, status)])
    await ground.step()
    assert ground.looked_at() == ([{8: 1}] if is_counted else [])


# One pass


async def test_what_is_too_much_is_removed_and_letters_are_settled(ground: Ground) -> None:
    await ground.start()
    ground.history.note([(7, 5)])
    ground.store.answer("find_surplus", [1, 2, 3])
    ground.store.answer("find_letter_surplus", ["9"])
    assert await ground.step() == EVERY
    assert ground.store.asked == [
        ("find_surplus", ({7: 5}, BATCH)),
        ("remove_runs", ([1, 2, 3],)),
        ("find_letter_surplus", ({7: 5}, BATCH)),
        ("settle_letters", (["9"],)),
    ]
    assert ground.history.removed == 3
    ground.store.asked.clear()
    assert await ground.step() == EVERY
    assert ground.store.asked == [], "it was looked at"


async def test_where_nothing_is_too_much_nothing_is_written(ground: Ground) -> None:
    await ground.start()
    ground.history.note([(7, 5)])
    assert await ground.step() == EVERY
    assert ground.store.names() == ["find_surplus", "find_letter_surplus"]


@pytest.mark.parametrize(
    ("runs", "letters", "is_left"),
    [
        (BATCH - 1, BATCH - 1, False),
        (BATCH, 0, True),
        (0, BATCH, True),
        (BATCH, BATCH, True),
    ],
)
async def test_a_full_batch_is_followed_by_the_next_soon(
    ground: Ground, runs: int, letters: int, is_left: bool
) -> None:
    await ground.start()
    ground.history.note([(7, 5)])
    ground.store.answer("find_surplus", list(range(runs)))
    ground.store.answer("find_letter_surplus", [str(n) for n in range(letters)])
    assert await ground.step() == (PAUSE if is_left else EVERY)
    await ground.step()
    assert len(ground.looked_at()) == (2 if is_left else 1)


async def test_so_many_tasks_are_looked_at_in_one_pass(ground: Ground) -> None:
    await ground.start()
    ground.history.note([(task_id, 5) for task_id in range(TASKS_A_LOOK + 1)])
    assert await ground.step() == PAUSE
    assert await ground.step() == EVERY
    assert [len(limits) for limits in ground.looked_at()] == [TASKS_A_LOOK, 1]


@pytest.mark.parametrize("miscounts", [[], ["wrong"]])
async def test_totals_are_set_right_once_after_a_start(
    ground: Ground, miscounts: list[str]
) -> None:
    ground.store.answer("find_miscounts", miscounts)
    ground.store.answer("correct_counts", 1)
    await ground.step()
    await ground.step()
    asked = [name for name in ground.store.names() if "counts" in name and name != "fold_counts"]
    assert asked == ["find_miscounts"] + ["correct_counts"] * len(miscounts)


# The sweep


async def test_a_sweep_takes_some_tasks_a_minute_and_begins_anew_after_an_hour(
    ground: Ground,
) -> None:
    page = [(10 + n, 5) for n in range(TASKS_A_LOOK)]
    ground.store.answer("list_limits", page, page[:3], [])
    await ground.step()
    assert ground.looked_at() == [dict(page)]
    assert "fold_counts" not in ground.store.names()
    await ground.clock.advance(SWEEP_EVERY - 1)
    await ground.step()
    assert ground.store.names() == []
    await ground.clock.advance(1)
    await ground.step()
    assert ground.store.asked[:2] == [
        ("list_limits", (page[-1][0], TASKS_A_LOOK)),
        ("fold_counts", (FOLD,)),
    ]
    assert ground.looked_at() == [dict(page[:3])]
    ground.store.asked.clear()
    await ground.clock.advance(SWEEP_AGAIN - 1)
    await ground.step()
    assert ground.store.names() == []
    await ground.clock.advance(1)
    await ground.step()
    assert ground.store.asked[0] == ("list_limits", (0, TASKS_A_LOOK))


async def test_the_first_sweep_begins_with_the_first_task(ground: Ground) -> None:
    await ground.step()
    assert ("list_limits", (0, TASKS_A_LOOK)) in ground.store.asked


async def test_a_sweep_does_not_change_what_was_noted(ground: Ground) -> None:
    ground.history.note([(10, 7)])
    ground.store.answer("list_limits", [(10, 5)])
    await ground.step()
    assert ground.looked_at() == [{10: 7}]


# What is read and written


def limits_tx(**answers: Any) -> ScriptedTx:
    """Tasks that keep three; the eighth is gone."""
    return ScriptedTx(
        tasks_find=lambda task_id: None if task_id == 8 else a_task(id=task_id, history_limit=3),
        **answers,
    )


def test_the_limit_in_force_decides_how_many_runs_are_too_many() -> None:
    tx = limits_tx(history_list_surplus=lambda task_id, keep, limit: [task_id] * min(4, limit))
    assert find_surplus(tx, {7: 99, 8: 99, 9: 99}, 10) == [7] * 4 + [9] * 4
    assert tx.args_of("history.list_surplus") == [(7, 3, 10), (9, 3, 6)]


def test_so_many_runs_at_most_are_found_in_one_look() -> None:
    tx = limits_tx(history_list_surplus=lambda task_id, keep, limit: [task_id] * min(4, limit))
    assert find_surplus(tx, {5: 9, 6: 9, 7: 9}, 8) == [5] * 4 + [6] * 4
    assert tx.args_of("tasks.find") == [(5,), (6,)], "then nobody looks further"


def test_letters_are_counted_by_the_same_limit() -> None:
    tx = limits_tx(dead_letters_list_surplus=lambda _, task, keep, limit: [task] * min(4, limit))
    assert find_letter_surplus(tx, {7: 99, 8: 99, 9: 99, 10: 99}, 8) == ["7"] * 4 + ["9"] * 4
    assert tx.args_of("dead_letters.list_surplus") == [
        ("tasks", "7", 3, 8),
        ("tasks", "9", 3, 4),
    ]


@pytest.mark.parametrize(
    ("work", "args", "told"),
    [
        (run_history.find_old_runs, (NOW, None, 5), ("history.find_old_runs", (NOW, None, 5))),
        (run_history.remove_runs, ([1],), ("history.remove_runs", ([1],))),
        (run_history.settle_letters, (["1"],), ("dead_letters.settle", ("tasks", ["1"]))),
        (run_history.find_miscounts, (), ("history.find_miscounts", ())),
        (run_history.correct_counts, (["m"],), ("history.correct_counts", (["m"],))),
        (run_history.fold_counts, (5,), ("row_counts.fold", (5,))),
        (run_history.list_limits, (3, 5), ("history.list_limits", (3, 5))),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_each_transaction_answers_what_the_store_said(work: Any, args: Any, told: Any) -> None:
    what, given = told
    tx = ScriptedTx(**{what.replace(".", "_"): "said"})
    assert work(tx, *args) == "said"
    assert tx.told == [Told(what, given, {})]


def test_old_runs_are_removed_by_the_walk_of_retention() -> None:
    added: list[Any] = []

    class Walks:
        def add_walk(self, *args: Any) -> None:
            added.append(args)

    add_run_history(Walks(), 5 * SECOND)  # type: ignore[arg-type]
    assert added == [("runs", 5 * SECOND, run_history.find_old_runs, run_history.remove_runs)]
