"""Instances share what is due by the remainder of the task's id, on every SQL store."""

from typing import Any

import pytest

from ksana.base.instant import HOUR, MILLISECOND, SECOND
from ksana.domain.schedule import Every
from ksana.domain.tasks.records import Definition
from ksana.engine.core.membership import divide_shares
from ksana.engine.tasks.firing import LEFT_FOR, fire_due
from ksana.engine.tasks.host_limits import SlotBudget
from ksana.ports.store import WHOLE, Share
from ksana.store.sql import SqlStore
from tests.ground.task_rows import a_task

COUNT = 30
YOUNG, OLD = 100 * MILLISECOND, 2 * SECOND


def add_due(tx: Any, ago: int, prefix: str, count: int = COUNT) -> list[int]:
    due_at = tx.now - ago
    definition = Definition("t", "", Every(HOUR, due_at, False), target_url="http://h/")
    rows = [a_task(f"{prefix}{n}", definition, due_at, due_at, "T") for n in range(count)]
    return [int(task_id) for task_id in tx.tasks.insert(rows)]


@pytest.mark.spec("C19", "X4")
async def test_what_is_due_falls_into_shares_that_have_nothing_in_common(store: SqlStore) -> None:
    def look(tx: Any) -> tuple[list[int], list[list[int]]]:
        ids = add_due(tx, YOUNG, "young")
        shares = [Share(mine, 3) for mine in range(3)]
        found = [tx.task_due.list_due(tx.now, 100, share=share, left_since=0) for share in shares]
        return ids, [[task.id for task in tasks] for tasks in found]

    ids, found = await store.transact(look)
    assert sorted(found[0] + found[1] + found[2]) == sorted(ids)
    assert all(len(part) == COUNT / 3 for part in found)


@pytest.mark.spec("C19", "X4")
async def test_what_another_left_due_for_too_long_is_anybodys(store: SqlStore) -> None:
    def look(tx: Any) -> tuple[list[int], list[int], list[int]]:
        young, old = add_due(tx, YOUNG, "young"), add_due(tx, OLD, "old")
        due = tx.task_due.list_due(tx.now, 100, share=Share(0, 3), left_since=tx.now - LEFT_FOR)
        return young, old, [task.id for task in due]

    young, old, due = await store.transact(look)
    assert set(old) <= set(due)
    assert set(due) - set(old) == {task_id for task_id in young if task_id % 3 == 0}


@pytest.mark.spec("C19")
async def test_the_next_look_is_for_our_own_at_once_and_for_anothers_later(store: SqlStore) -> None:
    def look(tx: Any) -> list[int | None]:
        def ask(share: Share) -> int | None:
            found: int | None = tx.task_due.next_fire_at(share, tx.now, LEFT_FOR)
            return None if found is None else found - tx.now

        found = [ask(Share(0, 2))]
        (task_id,) = add_due(tx, YOUNG, "one", 1)
        mine, other = Share(task_id % 2, 2), Share((task_id + 1) % 2, 2)
        found += [ask(mine), ask(WHOLE), ask(other)]
        add_due(tx, -10 * MILLISECOND, "soon", 1)
        return [*found, ask(other)]

    # One that is not due yet is waited for, whoever's it is.
    wanted = [None, -YOUNG, -YOUNG, LEFT_FOR - YOUNG, 10 * MILLISECOND]
    assert await store.transact(look) == wanted


@pytest.mark.spec("C19", "X4")
async def test_instances_that_see_each_other_differently_fire_each_slot_once(
    store: SqlStore,
) -> None:
    ids = await store.transact(add_due, YOUNG, "young")

    def fire(tx: Any, instance_id: str, share: Share) -> int:
        budget = SlotBudget({}, 0, 0)
        return len({task.id for task in fire_due(tx, instance_id, 100, budget, share=share).due})

    # One has not seen yet that a third has come, and all ask at once.
    views = [("a", Share(0, 2)), ("b", Share(1, 3)), ("c", Share(2, 3)), ("a", WHOLE)]
    fired = sum([await store.transact(fire, *view) for view in views])
    runs = await store.read(lambda tx: tx.runs.list_runs(limit=500))
    assert fired == COUNT
    assert sorted(run.task_id for run in runs) == sorted(ids)


def test_shares_of_the_same_instances_are_the_same_for_everybody_and_cover_all() -> None:
    shares = divide_shares(["b", "a", "c", "a"])
    assert shares == divide_shares(["c", "b", "a"])
    assert shares == {"a": Share(0, 3), "b": Share(1, 3), "c": Share(2, 3)}
    assert divide_shares(["a"]) == {"a": WHOLE}
