"""A clock that jumps ahead and is set back, on the virtual clock: what it jumped over is fired at
its time, what it lived through never again, and nobody is silent for as long as it was ahead."""

import itertools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from ksana.base.clock import VirtualClock
from ksana.base.instant import HOUR, MILLISECOND, MINUTE, SECOND, Instant
from ksana.domain.schedule import Schedule
from ksana.domain.tasks.records import Options, Task
from ksana.engine.tasks.clock_steps import read_windows
from tests.engine.tasks_world import World, cron, data_of, every, once, open_world, task_of

pytestmark = pytest.mark.spec("X5")

AHEAD = 4 * HOUR


@pytest.fixture
async def world(tmp_path: Path, clock: VirtualClock) -> AsyncIterator[World]:
    world = await open_world(tmp_path, clock)
    yield world
    await world.check_events()
    if world.is_alive:
        await world.die()
    await world.store.close()


async def rest(world: World, us: int, *others: World) -> None:
    """Let time pass in which nothing but slots happens: the polls, which are a net, stand still."""
    for one in (world, *others):
        one.slow_down_polls()
        one.renew_every_us = MINUTE
    await world.clock.advance(us)
    for one in (world, *others):
        one.poll_again()
    await world.clock.settle()


async def jump_and_return(world: World, lived: int = MINUTE, ahead: int = AHEAD) -> None:
    """The clock is ahead for a while."""
    world.clock.step(ahead)
    await world.clock.advance(MINUTE)
    await rest(world, lived - MINUTE)
    world.clock.step(-ahead)
    await world.clock.advance(30 * SECOND)


async def slots_of(world: World, task: Task) -> list[Instant]:
    runs = await world.store.read(lambda tx: tx.runs.list_runs(task_id=task.id, limit=100_000))
    found = sorted(run.slot_at for run in runs if run.slot_at is not None)
    assert len(found) == len(set(found)), "a slot has two runs"
    return found


def parallel(schedule: Schedule, **members: Any) -> Any:
    given = {"concurrency_policy": "PARALLEL", "misfire_policy": "SKIP", **members}
    return task_of(schedule, **given)


@pytest.mark.parametrize("policy", ["SKIP", "FIRE_NOW", "CATCH_UP_LIMITED"])
@pytest.mark.parametrize("kind", ["every", "cron"])
async def test_slots_that_were_jumped_over_come_at_their_time(
    world: World, kind: str, policy: Any
) -> None:
    schedule = every(world, 600) if kind == "every" else cron("0 */10 * * * *")
    limit = 5 if policy == "CATCH_UP_LIMITED" else 0
    task = await world.add(parallel(schedule, misfire_policy=policy, catchup_limit=limit))
    await rest(world, 25 * MINUTE)
    began = world.clock.now()
    sent = len(world.caller.sent)
    await jump_and_return(world)
    while_ahead = [slot for slot in await slots_of(world, task) if slot > began + HOUR]
    await rest(world, 2 * HOUR)
    until = world.clock.now()
    fired = [slot for slot in await slots_of(world, task) if began < slot <= until]
    assert len(fired) == 12, "every ten minutes for two hours"
    assert {b - a for a, b in itertools.pairwise(fired)} == {10 * MINUTE}
    calls = [one.at for one in world.caller.sent[sent:] if one.at <= until]
    assert [at - slot for at, slot in zip(sorted(calls), fired, strict=True)] == [0] * 12
    # Later it comes to what was decided while the clock was ahead, and passes over it.
    await rest(world, 3 * HOUR)
    whole = await slots_of(world, task)
    assert {b - a for a, b in itertools.pairwise(whole)} == {10 * MINUTE}
    assert set(while_ahead) <= set(whole)


async def test_the_time_lived_ahead_is_passed_over_even_if_its_runs_are_gone(world: World) -> None:
    task = await world.add(parallel(every(world, 60)))
    await world.clock.advance(MINUTE)
    lived_until = world.clock.now() + HOUR + 10 * MINUTE
    await jump_and_return(world, lived=10 * MINUTE, ahead=HOUR)
    await world.store.transact(
        lambda tx: tx.history.remove_runs(
            [run.id for run in tx.runs.list_runs(task_id=task.id, limit=1000)]
        )
    )
    await rest(world, HOUR + 15 * MINUTE)
    slots = await slots_of(world, task)
    in_lived = [slot for slot in slots if lived_until - 10 * MINUTE < slot <= lived_until]
    assert in_lived == [], "they were fired while the clock was ahead"
    assert slots[-1] > lived_until + 3 * MINUTE


async def test_a_slot_with_jitter_fires_once_and_within_its_jitter(world: World) -> None:
    schedule = cron("0 0 * * * *", jitter_us=20 * MINUTE)
    tasks = [await world.add(parallel(schedule, name=f"t{n}")) for n in range(4)]
    await rest(world, 90 * MINUTE)
    await jump_and_return(world, lived=2 * HOUR)
    began = world.clock.now()
    await rest(world, AHEAD + 4 * HOUR)
    for task in tasks:
        slots = [slot for slot in await slots_of(world, task) if slot > began]
        gaps = {b - a for a, b in itertools.pairwise(slots)}
        assert gaps == {HOUR}, "an hour missing, or twice"
        assert slots[0] - began < HOUR
    for sent in world.caller.sent:
        assert sent.at % HOUR <= 20 * MINUTE + SECOND


@pytest.mark.parametrize("dialect", ["C", "T"])
async def test_a_one_time_task_is_neither_lost_nor_fired_twice(world: World, dialect: str) -> None:
    now = world.clock.now()
    policy = {"misfire_policy": "SKIP"}
    jumped = await world.add(task_of(once(now + HOUR), name="j", **policy), dialect=dialect)
    lived_at = now + AHEAD + MINUTE
    lived = await world.add(task_of(once(lived_at), name="l", **policy), dialect=dialect)
    await world.clock.advance(30 * SECOND)
    await jump_and_return(world, lived=2 * MINUTE)
    assert await slots_of(world, jumped) == []
    assert await slots_of(world, lived) == [lived_at]
    await rest(world, AHEAD + HOUR)
    assert await slots_of(world, jumped) == [now + HOUR]
    assert await slots_of(world, lived) == [lived_at]


async def test_a_task_whose_end_was_jumped_over_lives_to_its_end(world: World) -> None:
    now = world.clock.now()
    end = now + 3 * HOUR
    task = await world.add(parallel(cron("0 0 * * * *", end_at=end)))
    few = await world.add(parallel(cron("0 0 * * * *"), name="few", options=Options(max_runs=2)))
    await rest(world, 90 * MINUTE)
    await jump_and_return(world)
    await rest(world, AHEAD)
    assert [slot - now for slot in await slots_of(world, task)] == [n * HOUR for n in range(1, 4)]
    assert len(await slots_of(world, few)) == 2


async def test_what_is_armed_anew_is_told(world: World) -> None:
    task = await world.add(parallel(every(world, 3600)))
    off = await world.add(parallel(every(world, 3600), name="off"), status="DISABLED")
    await jump_and_return(world)
    [event] = await world.events("TASK_REARMED")
    assert event.entity_id == str(task.id)
    assert data_of(event)["reason"] == "CLOCK_SET_BACK"
    assert data_of(event)["slot"] < data_of(event)["was"]
    told = [data_of(event)["direction"] for event in await world.events("CLOCK_STEPPED")]
    assert told == ["ahead", "back"]
    assert (await world.tasks.get(off.id)).fire_at is None


async def test_a_mere_step_back_fires_nothing_again_and_arms_nothing(world: World) -> None:
    task = await world.add(parallel(every(world, 60)))
    await rest(world, 2 * HOUR)
    calls = [(one.header("X-Ksana-Scheduled-At"), one.request.url) for one in world.caller.sent]
    before = world.clock.now()
    world.clock.step(-HOUR)
    await rest(world, HOUR - MINUTE)
    assert len(world.caller.sent) == len(calls)
    assert await world.events("TASK_REARMED") == []
    await world.clock.advance(2 * MINUTE)
    assert len(world.caller.sent) > len(calls)
    assert (await slots_of(world, task))[-1] > before


@pytest.mark.parametrize("step", [-1500 * MILLISECOND, 1500 * MILLISECOND])
async def test_a_small_step_is_not_written_down(world: World, step: int) -> None:
    await world.add(parallel(every(world, 1)))
    await world.clock.advance(10 * SECOND)
    world.clock.step(step)
    await world.clock.advance(10 * SECOND)
    assert await world.events("CLOCK_STEPPED") == []


@pytest.mark.parametrize("dies_ahead", [True, False])
async def test_the_clock_may_be_set_back_while_nobody_runs(world: World, dies_ahead: bool) -> None:
    """A machine that boots with a wrong clock, or a server that is restarted while it is wrong."""
    task = await world.add(parallel(cron("0 */10 * * * *")))
    await rest(world, 25 * MINUTE)
    began = world.clock.now()
    if not dies_ahead:
        await world.die()
    world.clock.step(AHEAD)
    if not dies_ahead:
        await world.revive()
    await world.clock.advance(MINUTE)
    await rest(world, 13 * MINUTE)
    await world.clock.advance(MINUTE)
    await world.die()
    world.clock.step(-AHEAD)
    await world.clock.advance(MINUTE)
    await world.revive()
    await rest(world, 3 * HOUR)
    fired = [slot for slot in await slots_of(world, task) if began < slot <= world.clock.now()]
    assert len(fired) == 18
    assert {b - a for a, b in itertools.pairwise(fired)} == {10 * MINUTE}
    await rest(world, AHEAD)
    await slots_of(world, task)


async def test_a_server_that_dies_after_the_step_back_still_knows(world: World) -> None:
    task = await world.add(parallel(cron("0 * * * * *")))
    await world.clock.advance(MINUTE)
    await jump_and_return(world, lived=10 * MINUTE, ahead=2 * HOUR)
    await world.die()
    await world.revive()
    await rest(world, 3 * HOUR)
    slots = await slots_of(world, task)
    gaps = [(b - a) // MINUTE for a, b in itertools.pairwise(slots)]
    assert gaps[0] == 11, (
        "those that passed while the clock was ahead: the jump made misfires of them"
    )
    assert set(gaps[1:]) == {1}


async def test_a_task_that_is_enabled_after_the_step_back_passes_over_what_was_fired(
    world: World,
) -> None:
    task = await world.add(parallel(every(world, 60)))
    await world.clock.advance(5 * MINUTE)
    await jump_and_return(world, lived=10 * MINUTE, ahead=HOUR)
    await world.tasks.set_enabled(task.id, False)
    await world.tasks.set_enabled(task.id, True)
    other = await world.add(parallel(every(world, 60), name="other"))
    await rest(world, 2 * HOUR)
    slots = await slots_of(world, task)
    gaps = [(b - a) // MINUTE for a, b in itertools.pairwise(slots)]
    assert sorted(set(gaps)) == [1, 11], "and those that passed while the clock was ahead"
    assert gaps.count(11) == 1
    assert len(await slots_of(world, other)) == 120, "made after the step: all of it is new"


@pytest.mark.fault("F01")
@pytest.mark.spec("X4")
async def test_several_instances_arm_and_fire_each_slot_once(
    tmp_path: Path, clock: VirtualClock
) -> None:
    one = await open_world(tmp_path, clock)
    two = World(one.store, clock, "two")
    two.joins = True
    await two.revive()
    tasks = [await one.add(parallel(cron("0 */5 * * * *"), name=f"t{n}")) for n in range(5)]
    await clock.advance(7 * MINUTE)
    began = clock.now()
    await jump_and_return(one, ahead=2 * HOUR)
    await rest(one, HOUR, two)
    for task in tasks:
        slots = [slot for slot in await slots_of(one, task) if began < slot <= clock.now()]
        assert len(slots) == 12
    rearmed = [event.entity_id for event in await one.events("TASK_REARMED")]
    assert sorted(rearmed) == sorted(str(task.id) for task in tasks), "each once"
    await rest(one, 2 * HOUR, two)
    for task in tasks:
        await slots_of(one, task)
    for instance in (one, two):
        await instance.die()
    await one.store.close()


async def test_many_silent_tasks_are_armed_page_by_page(world: World) -> None:
    def insert(tx: Any) -> None:
        from tests.ground.task_rows import a_task

        definition = parallel(cron("0 0 * * * *"))
        later = tx.now + 3 * HOUR
        tx.tasks.insert([a_task(f"j{n}", definition, tx.now, later, "T") for n in range(1201)])

    await world.store.transact(insert)
    await jump_and_return(world)
    armed = await world.events("TASK_REARMED")
    assert len(armed) == 1201


async def test_nothing_is_known_once_the_time_is_over(world: World) -> None:
    await world.add(parallel(every(world, 600)))
    await jump_and_return(world, ahead=HOUR)
    assert world.firing.steps.windows.lived
    await rest(world, 3 * HOUR)
    windows = await world.store.read(read_windows)
    assert (windows.lived, windows.skipped) == ((), ())
    await world.clock.advance(2 * MINUTE)
    assert world.firing.steps.windows.lived == ()
