"""Slots that move with the rules of time zones: how the sweep goes through all tasks once, and what
it writes of those that moved."""

from typing import Any

import pytest

from ksana.base.clock import VirtualClock
from ksana.base.instant import HOUR, Instant, format_instant
from ksana.domain.tasks.records import Task
from ksana.engine.tasks.zone_rules import (
    BATCH,
    LOCK,
    LOCK_US,
    PAGE,
    PAUSE,
    ZoneRules,
    arm_moved,
    find_edition,
    list_moved,
    note_edition,
)
from ksana.ports.tasks.tables import Advance
from tests.engine.tasks_world import cron
from tests.ground.logs import capture_logs
from tests.unit.delivery_ground import ScriptedStore
from tests.unit.scripted_tx import ScriptedTx, Told
from tests.unit.task_ground import a_task

pytestmark = [pytest.mark.fault("F24"), pytest.mark.spec("X5")]


class Ground:
    def __init__(self, clock: VirtualClock, before: str | None = "old") -> None:
        self.clock = clock
        self.store = ScriptedStore()
        self.store.answer("find_edition", before)
        self.store.answer("list_moved", (None, []))
        self.store.answer("note_edition", None)
        self.hints: list[Instant | None] = []
        self.rules = ZoneRules(
            self.store,  # type: ignore[arg-type]
            clock,
            "me",
            "new",
            self.hints.append,
        )

    async def step(self) -> int | None:
        comes_back = await self.rules.step()
        return None if comes_back is None else comes_back - self.clock.now()


# The sweep


async def test_rules_that_did_not_change_cost_one_look(clock: VirtualClock) -> None:
    ground = Ground(clock, before="new")
    assert (ground.rules.pump.name, ground.rules.pump._poll_us) == ("zone-rules", HOUR)
    assert (await ground.step(), await ground.step()) == (None, None)
    assert ground.store.names() == ["find_edition"]
    assert ground.rules.moved == 0


async def test_all_tasks_are_gone_through_in_pages_and_the_edition_is_noted_then(
    clock: VirtualClock,
) -> None:
    ground = Ground(clock)
    moved = list(range(BATCH + 1))
    ground.store.answer("list_moved", (500, moved), (1000, []), (None, [7]))
    ground.store.answer("arm_moved", [11, 12], [13], [14])
    with capture_logs() as logs:
        assert [await ground.step() for _ in range(4)] == [PAUSE, PAUSE, None, None]
    assert ground.store.asked == [
        ("find_edition", ()),
        ("list_moved", (0,)),
        ("arm_moved", (moved[:BATCH], "me")),
        ("arm_moved", (moved[BATCH:], "me")),
        ("list_moved", (500,)),
        ("list_moved", (1000,)),
        ("arm_moved", ([7], "me")),
        ("note_edition", ("new", "me")),
    ]
    assert (ground.hints, ground.rules.moved) == ([11, 12, 13, 14], 4)
    [line] = logs
    assert {name: line[name] for name in ("before", "now", "tasks_moved")} == {
        "before": "old",
        "now": "new",
        "tasks_moved": 4,
    }


@pytest.mark.parametrize(
    ("before", "armed", "told"),
    [(None, [], None), (None, [5], "unknown"), ("old", [], "old")],
    ids=["a new store", "no edition", "nothing moved"],
)
async def test_a_change_of_rules_is_logged_unless_the_store_is_new(
    clock: VirtualClock, before: str | None, armed: list[int], told: str | None
) -> None:
    ground = Ground(clock, before)
    ground.store.answer("list_moved", (None, [7]))
    ground.store.answer("arm_moved", armed)
    with capture_logs() as logs:
        await ground.step()
    assert [line["before"] for line in logs] == ([] if told is None else [told])


async def test_while_another_instance_is_at_it_it_looks_again_later(clock: VirtualClock) -> None:
    ground = Ground(clock)
    ground.store.answer("list_moved", (500, [7]))
    ground.store.answer("arm_moved", None)
    assert await ground.step() == LOCK_US
    assert "note_edition" not in ground.store.names()
    ground.store.answer("find_edition", "new")
    assert await ground.step() is None, "the other has done it"
    assert ground.store.names() == ["find_edition"]


# What is written

NOW = 10 * HOUR + HOUR // 2
HOURLY = cron("0 0 * * * *")


def a_calendar_task(task_id: int, next_slot_at: Instant | None = 12 * HOUR, **members: Any) -> Task:
    """A task that is armed for noon, although it is due at eleven by the rules in use."""
    given: dict[str, Any] = {"next_slot_at": next_slot_at, "fire_at": next_slot_at}
    schedule = members.pop("schedule", HOURLY)
    return a_task(schedule, id=task_id, **given | members)


def moved_tx(*tasks: Task, **answers: Any) -> ScriptedTx:
    by_id = {task.id: task for task in tasks}
    given: dict[str, Any] = {
        "locks_take": True,
        "tasks_find": lambda task_id, **_: by_id.get(task_id),
        "tasks_list_tasks": list(tasks),
        "runs_list_slots": [],
        "task_due_advance_unchanged": [True],
    }
    return ScriptedTx(NOW, **given | answers)


def test_the_edition_is_noted_and_the_lock_given_back() -> None:
    tx = ScriptedTx(facts_find="2026a")
    assert find_edition(tx) == "2026a"
    note_edition(tx, "2026b", "me")
    assert tx.told == [
        Told("facts.find", ("zone_rules",), {}),
        Told("facts.note", ("zone_rules", "2026b"), {}),
        Told("locks.drop", (LOCK, "me"), {}),
    ]


def test_tasks_that_moved_are_found_among_those_that_are_enabled() -> None:
    tx = moved_tx(a_calendar_task(3), a_calendar_task(4, 11 * HOUR), a_calendar_task(5))
    assert list_moved(tx, 2) == (None, [3, 5])
    assert tx.told[0] == Told(
        "tasks.list_tasks", (), {"status": "ENABLED", "after": 2, "limit": PAGE}
    )


def test_a_full_page_is_followed_by_the_next() -> None:
    tasks = [a_calendar_task(n, 11 * HOUR) for n in range(PAGE)]
    assert list_moved(moved_tx(*tasks), 0) == (PAGE - 1, [])


def test_a_task_that_moved_is_armed_with_an_event() -> None:
    task = a_calendar_task(3)
    tx = moved_tx(task)
    assert arm_moved(tx, [3], "me") == [11 * HOUR]
    assert tx.told == [
        Told("locks.take", (LOCK, "me", LOCK_US), {}),
        Told("tasks.find", (3,), {"lock": True}),
        Told("runs.list_slots", (3, 11 * HOUR - 1, 11 * HOUR, 1), {}),
        Told("task_due.advance_unchanged", ([Advance(task, 11 * HOUR, 11 * HOUR, 0, "")],), {}),
        Told(
            "events.append",
            (
                "TASK",
                3,
                "TASK_REARMED",
                {
                    "slot": format_instant(11 * HOUR),
                    "was": format_instant(12 * HOUR),
                    "reason": "ZONE_RULES_CHANGED",
                },
            ),
            {},
        ),
    ]


def test_a_task_without_a_slot_by_the_new_rules_ends() -> None:
    task = a_calendar_task(3, schedule=cron("0 0 * * * *", end_at=10 * HOUR))
    tx = moved_tx(task)
    assert arm_moved(tx, [3], "me") == []
    assert tx.args_of("runs.list_slots") == []
    assert tx.args_of("task_due.advance_unchanged") == [([Advance(task, None, None, 0, "")],)]
    assert tx.args_of("events.append")[0][3]["slot"] is None


@pytest.mark.parametrize(
    ("why", "first"),
    [
        ("gone", None),
        ("deleted", a_calendar_task(3, is_deleted=True)),
        ("where it should be", a_calendar_task(3, 11 * HOUR)),
        ("it has no slot", a_calendar_task(3, None)),
    ],
)
def test_a_task_that_need_not_move_holds_up_no_other(why: str, first: Task | None) -> None:
    tasks = [a_calendar_task(4)] if first is None else [first, a_calendar_task(4)]
    tx = moved_tx(*tasks)
    assert arm_moved(tx, [3, 4], "me") == [11 * HOUR], why
    assert [args[1] for args in tx.args_of("events.append")] == [4]


def test_a_slot_that_was_fired_is_not_armed_again() -> None:
    fired = {3: [11 * HOUR], 4: []}
    tx = moved_tx(
        a_calendar_task(3),
        a_calendar_task(4),
        runs_list_slots=lambda task_id, *_: fired[task_id],
    )
    assert arm_moved(tx, [3, 4], "me") == [11 * HOUR]
    assert [args[1] for args in tx.args_of("events.append")] == [4]


def test_a_task_that_somebody_changed_meanwhile_is_let_be() -> None:
    tx = moved_tx(a_calendar_task(3), task_due_advance_unchanged=[False])
    assert arm_moved(tx, [3], "me") == []
    assert "events.append" not in tx.verbs()


def test_one_instance_at_a_time_arms() -> None:
    tx = moved_tx(a_calendar_task(3), locks_take=False)
    assert arm_moved(tx, [3], "me") is None
    assert tx.verbs() == ["locks.take"]
