"""Firing: what is remembered of tasks, what one pass asks for, and what it passes on."""

from typing import Any

import msgspec
import pytest

from ksana.base.clock import VirtualClock
from ksana.base.instant import MILLISECOND, SECOND, Instant
from ksana.domain.schedule import Once
from ksana.domain.tasks.clock_steps import NO_WINDOWS
from ksana.domain.tasks.records import ClaimedRun, Task
from ksana.engine.core.pump import AGAIN
from ksana.engine.tasks.firing import FIRST_BATCH, LEFT_FOR, Fired, FiringEngine
from ksana.engine.tasks.host_limits import SlotBudget
from ksana.engine.tasks.task_cache import KEPT_OUT, LARGEST_CACHED, TaskCache
from ksana.engine.tasks.task_secrets import CLEAR
from ksana.ports.store import WHOLE, Share
from tests.unit.delivery_ground import ScriptedStore, a_called_task, a_claim, is_signalled, step
from tests.unit.task_ground import NOW, a_task

HALF = "x" * (LARGEST_CACHED // 2)
"""Two of these are more than is remembered of a task."""

# What is remembered of tasks


def remembered(cache: TaskCache, *tasks: Task) -> list[bool]:
    return [cache.find(task.id, task.version) is task for task in tasks]


def some_tasks(count: int, **members: Any) -> list[Task]:
    return [a_task(id=number, **members) for number in range(1, count + 1)]


def test_the_newest_tasks_are_remembered_by_their_version() -> None:
    tasks, cache = some_tasks(4), TaskCache(most=3)
    cache.add(tasks[:3])
    assert (len(cache), remembered(cache, *tasks)) == (3, [True, True, True, False])
    cache.add(tasks[3:])
    assert (len(cache), remembered(cache, *tasks)) == (3, [False, True, True, True])
    assert cache.find(2, 4) is None, "of that version"


def test_a_task_that_was_changed_takes_the_place_of_what_it_was() -> None:
    [old], cache = some_tasks(1), TaskCache()
    same, new = msgspec.structs.replace(old), msgspec.structs.replace(old, version=4)
    cache.add([old])
    cache.add([same])
    assert cache.find(1, 3) is old
    cache.add([new])
    assert (cache.find(1, 3), cache.find(1, 4)) == (None, new)


@pytest.mark.parametrize(
    ("members", "is_remembered"),
    [
        ({"body": HALF}, True),
        ({"body": HALF + HALF}, False),
        ({"headers": {"A": HALF}}, True),
        ({"headers": {"A": HALF, "B": HALF}}, False),
        ({"headers": {"A": HALF}, "body": HALF}, False),
        ({"headers": {}, "body": None}, True),
    ],
)
def test_a_large_task_is_read_each_time(members: dict[str, Any], is_remembered: bool) -> None:
    cache, task = TaskCache(), a_called_task("a", **members)
    cache.add([task])
    assert remembered(cache, task) == [is_remembered]
    assert len(cache) == is_remembered


def test_a_task_that_fired_is_remembered_unless_it_has_no_other_slot() -> None:
    cache, again, last = TaskCache(), a_task(id=1), a_task(Once(NOW), id=2)
    cache.add([last])
    cache.add_fired([again, last])
    cache.add_fired([last, again])
    assert (len(cache), remembered(cache, again)) == (1, [True])


def test_a_task_that_fired_as_another_version_is_remembered_as_that() -> None:
    cache, task = TaskCache(), a_task()
    cache.add_fired([task])
    cache.add_fired([same := msgspec.structs.replace(task)])
    assert cache.find(7, 3) is task is not same
    cache.add_fired([new := msgspec.structs.replace(task, version=9)])
    assert (cache.find(7, 9), len(cache)) == (new, 1)


def test_of_tasks_that_come_round_one_in_so_many_takes_a_place_when_all_are_taken() -> None:
    held, cache = some_tasks(2), TaskCache(most=2)
    cache.add_fired(held)
    others = [a_task(id=100 + number) for number in range(2 * KEPT_OUT)]
    changed = msgspec.structs.replace(held[1], version=4)
    cache.add_fired([*others[: KEPT_OUT - 1], changed])
    assert remembered(cache, held[0], changed) == [True, True]
    cache.add_fired(others[KEPT_OUT - 1 :])
    assert [task.id - 100 for task in others if remembered(cache, task) == [True]] == [
        KEPT_OUT - 1,
        2 * KEPT_OUT - 1,
    ]
    assert len(cache) == 2


# One pass


class Ticking(VirtualClock):
    """A clock that moves while the store works."""

    def tick(self, us: int) -> None:
        self._move_to(self.monotonic() + us)


class Pass:
    """A firing engine and all that it is told and tells."""

    def __init__(self) -> None:
        self.clock = Ticking()
        self.store = ScriptedStore()
        self.store.answer("write_unseen_steps", None)
        self.store.answer("read_windows", NO_WINDOWS)
        self.budget = SlotBudget({}, 1, 1)
        self.delivered: list[Any] = []
        self.figures: list[Any] = []
        self.engine = FiringEngine(
            self.store,  # type: ignore[arg-type]
            self.clock,
            "me",
            lambda: self.budget,
            lambda *claimed: self.delivered.append(claimed),
            lambda hosts: self.delivered.append(hosts),
            self,
            batch_limit=300,
            poll_us=7 * SECOND,
            share=lambda: Share(1, 2),
        )

    def scanned(self, seconds: float, fired: int) -> None:
        self.figures.append((seconds, fired))

    def misfired(self, task_id: int, count: int) -> None:
        self.figures.append(("misfired", task_id, count))

    def fired(self, **members: Any) -> Fired:
        given: dict[str, Any] = {
            "claimed": [],
            "ready_hosts": set(),
            "next_at": None,
            "is_full": False,
            "misfires": [],
            "fired": 0,
            "now": self.clock.now(),
        }
        return Fired(**given | members)

    async def fire(self, **members: Any) -> tuple[Instant | None, tuple[Any, ...]]:
        """One pass whose transaction came to this: when it comes back, and what it asked for."""
        self.store.answer("fire_due", self.fired(**members))
        comes_back = await step(self.engine.pump)
        asked = [args for name, args in self.store.asked if name == "fire_due"]
        return comes_back, asked[-1] if asked else ()


@pytest.fixture
def one() -> Pass:
    return Pass()


def test_its_loop_is_quick_and_has_a_net(one: Pass) -> None:
    pump = one.engine.pump
    assert (pump.name, pump._poll_us, pump.min_interval_us) == ("firing", 7 * SECOND, 4_000)


async def test_a_pass_asks_for_what_is_due_with_what_may_be_claimed(one: Pass) -> None:
    comes_back, asked = await one.fire()
    assert comes_back is None
    assert asked == (
        "me",
        FIRST_BATCH,
        one.budget,
        one.engine.cache.find,
        CLEAR,
        NO_WINDOWS,
        Share(1, 2),
    )
    assert one.store.names() == ["write_unseen_steps", "read_windows", "fire_due"]
    await one.fire()
    assert one.store.names() == ["fire_due"], "what was written down is read once"
    assert one.delivered == []


async def test_after_a_full_pass_a_larger_one_follows_at_once(one: Pass) -> None:
    assert (await one.fire(is_full=True, next_at=5))[0] == AGAIN
    assert (await one.fire())[1][1] == 300
    assert (await one.fire())[1][1] == FIRST_BATCH


async def test_a_small_limit_binds_the_first_pass_too(one: Pass) -> None:
    one.engine._batch_limit = 9
    assert (await one.fire())[1][1] == 9


@pytest.mark.parametrize(
    ("claimed", "hosts"), [([a_claim(1)], set()), ([], {"a"}), ([a_claim(1)], {"a"})]
)
async def test_what_was_fired_is_delivered(
    one: Pass, claimed: list[ClaimedRun], hosts: set[str]
) -> None:
    await one.fire(claimed=claimed, ready_hosts=hosts, watermark=8)
    told = [(claimed, 8)] if claimed else []
    assert one.delivered == [*told, *([hosts] if hosts else [])]


async def test_a_pass_is_counted_with_its_time_and_its_misfires(one: Pass) -> None:
    one.clock.tick(5 * SECOND)

    def work(*_: Any) -> Fired:
        one.clock.tick(250 * MILLISECOND)
        return one.fired(misfires=[(7, 3)], fired=2)

    one.store.answer("fire_due", work)
    await step(one.engine.pump)
    assert one.figures == [("misfired", 7, 3), (0.25, 2)]


async def test_a_task_that_was_due_is_remembered(one: Pass) -> None:
    await one.fire(due=[task := a_task()])
    assert one.engine.cache.find(7, 3) is task


async def test_a_step_of_the_clock_between_two_passes_is_seen(one: Pass) -> None:
    await one.fire()
    await step(one.engine.steps.pump)
    await one.fire()
    assert not is_signalled(one.engine.steps.pump)
    await one.fire(now=one.clock.now() + 60 * SECOND)
    assert is_signalled(one.engine.steps.pump)


async def test_it_comes_back_for_the_first_that_is_due_whoever_told_it(one: Pass) -> None:
    at = one.clock.now() + 9 * SECOND
    assert (await one.fire(next_at=at))[0] == at
    for told, known, first in [
        (at - 1, at, at - 1),
        (at, at - 1, at - 1),
        (at, None, at),
        (None, None, None),
    ]:

        def work(*_: Any, told: Any = told, known: Any = known) -> Fired:
            one.engine.hint(told)
            return one.fired(next_at=known)

        one.store.answer("fire_due", work)
        assert await step(one.engine.pump) == first


@pytest.mark.parametrize("ahead", [3 * SECOND, -3 * SECOND, 0])
async def test_what_is_due_by_the_clock_of_the_store_is_waited_for_by_ours(
    one: Pass, ahead: int
) -> None:
    at = one.clock.now() + 9 * SECOND
    assert (await one.fire(next_at=at, now=one.clock.now() + ahead))[0] == at - ahead


async def test_only_a_hint_of_something_earlier_wakes_it(one: Pass) -> None:
    at = one.clock.now() + 9 * SECOND
    one.engine.hint(None)
    assert not is_signalled(one.engine.pump)
    one.engine.hint(at)
    assert is_signalled(one.engine.pump)
    await one.fire(next_at=at)
    for hint, wakes in [(None, False), (at + 1, False), (at, False), (at - 1, True)]:
        one.engine.hint(hint)
        assert is_signalled(one.engine.pump) is wakes, hint


async def test_a_task_made_here_is_fired_here_whosever_share_it_is_of(one: Pass) -> None:
    until = one.clock.now() + SECOND
    one.engine.fire_all_until(until)
    one.engine.fire_all_until(until - SECOND)
    assert (await one.fire())[1][-1] == WHOLE
    one.clock.tick(SECOND + LEFT_FOR)
    assert (await one.fire())[1][-1] == WHOLE
    one.clock.tick(1)
    assert (await one.fire())[1][-1] == Share(1, 2)


async def test_once_stopped_it_fires_nothing(one: Pass) -> None:
    one.engine.stop()
    assert await step(one.engine.pump) is None
    assert one.store.asked == []
