"""Past slots fired on purpose, over the whole engine on the virtual clock: each once, in order, no
faster than asked, within the task's limit, and every one of them in the ledger."""

from itertools import pairwise

import msgspec
import pytest

from ksana.base.errors import ConflictError
from ksana.base.instant import DAY, HOUR, MINUTE, SECOND, Instant
from ksana.domain.tasks import backfill as rules
from ksana.domain.tasks.backfill import Caps, Span
from ksana.domain.tasks.records import Options, RetryPolicy, Run, Task
from ksana.service.tasks.backfill import BackfillService, Filled
from ksana.service.tasks.explain import ExplainService
from tests.engine.tasks_world import World, answer, cron, every, task_of
from tests.engine.test_ledger import URL, ask, check

pytestmark = pytest.mark.spec("B7")


def service(world: World) -> BackfillService:
    return BackfillService(world.store, world, SECOND)


async def fill(
    world: World, task: Task, since: Instant, until: Instant | None = None, **caps: int
) -> Filled:
    span = Span(since, world.clock.now() if until is None else until)
    return await service(world).backfill(task.id, span, Caps(**caps))


def slots(runs: list[Run]) -> list[Instant]:
    return [run.slot_at for run in runs if run.slot_at is not None and run.trigger == "backfill"]


async def test_slots_from_before_the_task_was_made_are_fired_in_order_and_stand_in_the_ledger(
    world: World,
) -> None:
    task = await world.add(task_of(cron("0 0 * * * *")))
    midnight = world.clock.now() // DAY * DAY - DAY
    filled = await fill(world, task, midnight, midnight + 6 * HOUR)
    expected = [midnight + hour * HOUR for hour in range(6)]
    assert list(filled.plan.slots) == expected
    await world.clock.advance(10 * SECOND)
    runs = await world.all_runs(task)
    assert slots(runs) == expected
    assert {run.status for run in runs} == {"SUCCESS"}
    assert [sent.header("X-Ksana-Scheduled-At")[11:13] for sent in world.caller.sent] == [
        f"{hour:02}" for hour in range(6)
    ]
    # One a second, unless something else is said.
    times = [sent.at for sent in world.caller.sent]
    assert all(later - earlier >= SECOND for earlier, later in pairwise(times))
    check(await ask(world, task, midnight, midnight + DAY // 2), expected=6, fired=6)
    [event] = await world.events("TASK_BACKFILLED")
    assert msgspec.json.decode(event.data)["count"] == 6


async def test_asked_for_again_it_fires_nothing_twice_and_goes_on_where_it_ended(
    world: World,
) -> None:
    task = await world.add(task_of(cron("0 0 * * * *")))
    start = world.clock.now() // DAY * DAY - DAY
    first = await fill(world, task, start, start + DAY, count=10)
    assert (len(first.plan.slots), first.plan.next_from) == (10, start + 10 * HOUR)
    again = await fill(world, task, start, start + DAY, count=10)
    assert again.plan.recorded == 10
    assert again.plan.slots[0] == start + 10 * HOUR
    await world.clock.advance(MINUTE)
    last = await fill(world, task, start, start + DAY, count=10)
    none = await fill(world, task, start, start + DAY, count=10)
    assert (len(last.plan.slots), none.plan.slots, none.run_ids) == (4, (), ())
    await world.clock.advance(MINUTE)
    runs = await world.all_runs(task)
    assert slots(runs) == [start + hour * HOUR for hour in range(24)]
    assert len(world.caller.sent) == 24


async def test_killed_half_way_it_goes_on_with_the_next_instance(world: World) -> None:
    task = await world.add(task_of(cron("0 0 * * * *")))
    start = world.clock.now() // DAY * DAY - DAY
    await fill(world, task, start, start + 20 * HOUR)
    await world.clock.advance(5 * SECOND)
    await world.die()
    await world.clock.advance(HOUR)
    before = len(world.caller.sent)
    assert 4 <= before <= 7
    await world.revive()
    await world.clock.advance(3 * SECOND)
    # Not all at once, though all of them are late by now.
    assert len(world.caller.sent) - before <= 5
    await world.clock.advance(MINUTE)
    runs = [run for run in await world.all_runs(task) if run.trigger == "backfill"]
    assert slots(runs) == [start + hour * HOUR for hour in range(20)]
    assert {run.status for run in runs} == {"SUCCESS"}


async def test_a_run_of_it_waits_while_the_task_is_busy_and_slots_that_fall_due_do_not_wait_for_it(
    world: World,
) -> None:
    world.caller.scripts[URL] = lambda request: None
    task = await world.add(
        task_of(
            cron("0 * * * * *"),
            timeout_us=50 * SECOND,
            concurrency_policy="QUEUE",
            options=Options(max_queued=2),
        )
    )
    start = world.clock.now() // HOUR * HOUR - DAY
    await fill(world, task, start, start + 10 * MINUTE, interval_us=10_000)
    await world.clock.advance(5 * MINUTE)
    runs = await world.all_runs(task)
    scheduled = [run for run in runs if run.trigger == "schedule"]
    assert len(scheduled) == 5
    assert not [run for run in scheduled if run.status == "SKIPPED"]
    assert world.caller.most_open == 1
    assert 0 < len([run for run in runs if run.trigger == "backfill" and run.end_time]) < 10


async def test_a_run_that_waits_says_so_and_all_that_wait_can_be_cancelled(world: World) -> None:
    task = await world.add(task_of(cron("0 0 * * * *")))
    start = world.clock.now() // DAY * DAY - DAY
    filled = await fill(world, task, start, start + 5 * HOUR, interval_us=MINUTE)
    await world.clock.settle()
    why = (await ExplainService(world.store).explain_run(filled.run_ids[3])).why
    assert "WAITS_FOR_BACKFILL" in [reason.code for reason in why.reasons]
    assert await service(world).cancel(task.id) == 4
    await world.clock.advance(3 * MINUTE)
    runs = await world.all_runs(task)
    assert [run.status for run in runs if run.trigger == "backfill"] == ["SUCCESS"] + [
        "CANCELED"
    ] * 4
    assert await service(world).cancel(task.id) == 0


async def test_slots_that_the_scheduler_will_fire_are_left_to_it(world: World) -> None:
    task = await world.add(task_of(every(world, 60)))
    await world.clock.advance(3 * MINUTE + SECOND // 2)
    await world.die()
    await world.clock.advance(10 * MINUTE)  # ten slots fall due while nobody runs
    filled = await fill(world, task, task.created_at, world.clock.now() + DAY)
    assert filled.plan.slots == ()
    assert filled.plan.recorded == 3
    await world.revive()
    await world.clock.advance(MINUTE)
    check(await ask(world, task))


async def test_too_old_and_too_many_are_not_fired(world: World) -> None:
    task = await world.add(task_of(cron("0 0 * * * *")))
    now = world.clock.now()
    filled = await fill(world, task, now - 10 * DAY, count=1000, max_age_us=3 * HOUR)
    assert len(filled.plan.slots) in (2, 3)
    assert min(filled.plan.slots) >= now - 3 * HOUR
    with pytest.raises(ConflictError) as refused:
        await fill(world, task, now - 100 * DAY, count=rules.MOST)
    assert refused.value.code == "QUEUE_FULL"


async def test_enabling_makes_up_the_newest_slots_that_passed_if_that_is_asked_for(
    world: World,
) -> None:
    task = await world.add(task_of(cron("0 0 * * * *")))
    await world.tasks.set_enabled(task.id, False)
    world.slow_down_polls()
    await world.clock.advance(DAY)
    world.poll_again()
    caps = Caps(count=3, max_age_us=12 * HOUR)
    seen = await service(world).preview_resume(task.id, caps)
    assert seen is not None
    filled = await service(world).resume(task.id, caps)
    assert filled is not None
    assert filled.plan.slots == seen.plan.slots
    assert (len(filled.plan.slots), filled.task.status) == (3, "ENABLED")
    assert await service(world).resume(task.id, caps) is None
    await world.clock.advance(10 * SECOND)
    made_up = slots(await world.all_runs(task))
    assert made_up == list(filled.plan.slots)
    assert [later - earlier for earlier, later in pairwise(made_up)] == [HOUR, HOUR]
    assert world.clock.now() - made_up[-1] < 2 * HOUR
    entry = await ask(world, task)
    check(entry, fired=3, skipped={})


async def test_the_ledger_tells_removed_runs_from_missing_ones_beside_a_backfill(
    world: World,
) -> None:
    task = await world.add(task_of(cron("*/10 * * * * *")))
    await world.clock.advance(50 * SECOND)
    await world.tasks.set_enabled(task.id, False)
    await world.clock.advance(50 * SECOND)
    await world.tasks.set_enabled(task.id, True)
    filled = await fill(world, task, task.created_at)
    assert len(filled.plan.slots) in (4, 5)
    await world.clock.advance(20 * SECOND)
    ended = [run for run in await world.all_runs(task) if run.trigger == "schedule"][:2]
    await world.store.transact(lambda tx: tx.history.remove_runs([run.id for run in ended]))
    check(await ask(world, task), forgotten=2)


async def test_a_failed_run_of_it_is_retried_and_counted_as_others_are(world: World) -> None:
    replies = iter([answer(500), answer(200)])
    world.caller.scripts[URL] = lambda request: next(replies, answer(200))
    task = await world.add(task_of(cron("0 0 * * * *"), retry=RetryPolicy(max_retries=1)))
    start = world.clock.now() // DAY * DAY - DAY
    await fill(world, task, start, start + HOUR)
    await world.clock.advance(MINUTE)
    [run] = await world.all_runs(task)
    assert (run.status, run.attempt, run.trigger) == ("SUCCESS", 2, "backfill")
