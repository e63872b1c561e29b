"""Firing on the virtual clock: slots, misfires, overlap, retries, orphans."""

import pytest

from ksana.base.errors import ConflictError, NotFoundError
from ksana.base.instant import HOUR, MINUTE, SECOND
from ksana.boot.task_hints import TaskHints
from ksana.domain.tasks.records import Options, RetryPolicy
from ksana.engine.core.signal_relay import SignalRelay
from ksana.engine.tasks.firing import LEFT_FOR
from ksana.ports.signals import NO_SIGNALS
from ksana.ports.store import Share
from ksana.ports.tasks.runs import RunFilter
from tests.engine.tasks_world import World, answer, cron, data_of, every, once, task_of

SKIPPING = {"concurrency_policy": "SKIP", "misfire_policy": "SKIP"}


@pytest.mark.spec("T6")
async def test_a_one_time_job_fires_at_its_instant_and_never_again(world: World) -> None:
    at = world.clock.now() + 10 * SECOND
    task = await world.add(task_of(once(at)))
    await world.clock.advance(9_999_999)
    assert world.caller.sent == []
    await world.clock.advance(HOUR)
    assert [sent.at for sent in world.caller.sent] == [at]
    assert (await world.tasks.get(task.id)).next_slot_at is None


@pytest.mark.spec("T6", "C10")
async def test_a_one_time_job_that_passed_while_nobody_ran_is_missed_with_an_alert(
    world: World,
) -> None:
    task = await world.add(task_of(once(world.clock.now() + 10 * SECOND), **SKIPPING), dialect="T")
    await world.die()
    await world.clock.advance(MINUTE)
    await world.revive()
    await world.clock.advance(MINUTE)
    assert world.caller.sent == []
    assert (await world.tasks.get(task.id)).last_status == "missed"
    assert data_of((await world.events("TASK_MISSED"))[0])["alert"] is True


@pytest.mark.spec("T6")
async def test_a_one_time_job_set_in_the_past_is_missed_at_once(world: World) -> None:
    task = await world.add(task_of(once(world.clock.now() - 2 * SECOND), **SKIPPING), dialect="T")
    assert task.last_status == "missed"
    assert task.next_slot_at is None
    assert len(await world.events("TASK_MISSED")) == 1
    await world.add(
        task_of(once(world.clock.now() - SECOND // 2), name="near", **SKIPPING), dialect="T"
    )
    await world.clock.advance(SECOND)
    assert len(world.caller.sent) == 1


@pytest.mark.spec("T7")
async def test_every_keeps_to_its_grid_without_drift(world: World) -> None:
    began = world.clock.now()
    await world.add(task_of(every(world, 1.5), **SKIPPING))
    await world.clock.advance(15 * SECOND)
    assert [sent.at - began for sent in world.caller.sent] == [n * 1_500_000 for n in range(1, 11)]


@pytest.mark.spec("T7", "C10")
async def test_after_downtime_every_rolls_on_without_make_up_runs(world: World) -> None:
    began = world.clock.now()
    task = await world.add(task_of(every(world, 10), **SKIPPING), dialect="T")
    await world.clock.advance(15 * SECOND)
    await world.die()
    await world.clock.advance(100 * SECOND)
    await world.revive()
    await world.clock.advance(20 * SECOND)
    assert [(sent.at - began) // SECOND for sent in world.caller.sent] == [10, 120, 130]
    misfire = data_of((await world.events("TASK_MISFIRED"))[0])
    assert (misfire["count"], misfire["policy"]) == (10, "SKIP")
    assert world.metrics.misfires == [(task.id, 10)]


@pytest.mark.fault("F05")
@pytest.mark.spec("C10")
async def test_fire_now_makes_one_run_that_carries_the_latest_missed_slot(world: World) -> None:
    began = world.clock.now()
    task = await world.add(task_of(every(world, 10)))
    await world.die()
    await world.clock.advance(95 * SECOND)
    await world.revive()
    await world.clock.advance(SECOND)
    runs = await world.all_runs(task)
    assert [(run.scheduled_time - began) // SECOND for run in runs] == [90]
    assert runs[0].status == "SUCCESS"


@pytest.mark.fault("F05")
@pytest.mark.spec("C10")
async def test_catch_up_makes_the_newest_slots_oldest_first(world: World) -> None:
    began = world.clock.now()
    task = await world.add(
        task_of(
            every(world, 10),
            misfire_policy="CATCH_UP_LIMITED",
            catchup_limit=3,
            concurrency_policy="PARALLEL",
        )
    )
    await world.die()
    await world.clock.advance(95 * SECOND)
    await world.revive()
    runs = await world.all_runs(task)
    assert [(run.scheduled_time - began) // SECOND for run in runs] == [70, 80, 90]
    assert {run.trigger for run in runs} == {"catchup"}
    assert len(await world.events("TASK_MISFIRED")) == 1


@pytest.mark.fault("F02")
@pytest.mark.spec("C10")
async def test_an_outage_shorter_than_the_grace_is_still_a_misfire(world: World) -> None:
    task = await world.add(task_of(every(world, 1), **SKIPPING))
    await world.clock.advance(1_200_000)
    await world.die()
    await world.clock.advance(2 * SECOND)
    await world.revive()
    await world.clock.advance(SECOND)
    slots = [run.scheduled_time - task.created_at for run in await world.all_runs(task)]
    assert [slot // SECOND for slot in slots] == [1, 4]


@pytest.mark.spec("C10")
async def test_slots_while_disabled_are_no_misfires(world: World) -> None:
    task = await world.add(task_of(every(world, 1)))
    await world.tasks.set_enabled(task.id, False)
    await world.clock.advance(100 * SECOND)
    await world.tasks.set_enabled(task.id, True)
    await world.clock.advance(SECOND)
    assert await world.events("TASK_MISFIRED") == []
    assert len(await world.all_runs(task)) == 1


@pytest.mark.spec("X5")
async def test_a_clock_stepped_back_never_fires_a_slot_again(world: World) -> None:
    task = await world.add(task_of(every(world, 10), concurrency_policy="PARALLEL"))
    await world.clock.advance(35 * SECOND)
    world.clock.step(-20 * SECOND)
    await world.clock.advance(40 * SECOND)
    slots = [run.scheduled_time for run in await world.all_runs(task)]
    assert slots == sorted(set(slots))


@pytest.mark.spec("T8")
async def test_jitter_delays_the_call_but_not_the_slot(world: World) -> None:
    began = world.clock.now()
    task = await world.add(
        task_of(every(world, 10, jitter_us=4 * SECOND), concurrency_policy="PARALLEL")
    )
    await world.clock.advance(200 * SECOND)
    runs = await world.all_runs(task)
    late = [sent.at - run.scheduled_time for sent, run in zip(world.caller.sent, runs, strict=True)]
    assert [(run.scheduled_time - began) % (10 * SECOND) for run in runs] == [0] * len(runs)
    assert all(0 <= by <= 4 * SECOND for by in late)
    assert len(set(late)) > 5


@pytest.mark.spec("T15", "C11")
async def test_a_slot_that_falls_due_while_a_run_is_active_is_skipped(world: World) -> None:
    world.caller.scripts["http://target/hook"] = lambda request: None
    task = await world.add(task_of(every(world, 2), timeout_us=5 * SECOND, **SKIPPING))
    await world.clock.advance(6_500_000)
    runs = await world.all_runs(task)
    assert [run.status for run in runs] == ["RUNNING", "SKIPPED", "SKIPPED"]
    assert (await world.tasks.get(task.id)).last_status == "skipped"
    assert runs[1].reason == "CONCURRENCY_LIMIT"


@pytest.mark.spec("C11")
async def test_queue_keeps_order_really_waits_and_is_bounded(world: World) -> None:
    world.caller.scripts["http://target/hook"] = lambda request: None
    options = Options(max_queued=2)
    task = await world.add(task_of(every(world, 1), timeout_us=10 * SECOND, options=options))
    await world.clock.advance(5_500_000)
    assert [run.status for run in await world.all_runs(task)] == [
        "RUNNING",
        "SCHEDULED",
        "SCHEDULED",
        "SKIPPED",
        "SKIPPED",
    ]
    assert world.caller.open == 1
    world.caller.scripts["http://target/hook"] = lambda request: answer(200)
    await world.tasks.set_enabled(task.id, False)
    await world.clock.advance(10 * SECOND)
    runs = await world.all_runs(task)
    assert [run.status for run in runs] == ["TIMEOUT", "SUCCESS", "SUCCESS", "SKIPPED", "SKIPPED"]
    assert runs[1].start_time is not None
    assert runs[2].start_time is not None
    assert runs[1].start_time <= runs[2].start_time


@pytest.mark.spec("C4", "C11")
async def test_of_a_burst_of_triggers_exactly_the_limit_pass(world: World) -> None:
    world.caller.scripts["http://target/hook"] = lambda request: None
    task = await world.add(
        task_of(every(world, 3600), max_concurrency=2, concurrency_policy="SKIP")
    )
    outcomes = []
    for _ in range(5):
        try:
            await world.tasks.trigger(task.id)
            outcomes.append("ok")
        except ConflictError as error:
            outcomes.append(error.code)
    assert outcomes == ["ok", "ok", *["CONCURRENCY_LIMIT"] * 3]
    assert len(await world.all_runs(task)) == 2


@pytest.mark.spec("C11")
async def test_parallel_ignores_the_limit(world: World) -> None:
    world.caller.scripts["http://target/hook"] = lambda request: None
    await world.add(task_of(every(world, 1), concurrency_policy="PARALLEL"))
    await world.clock.advance(5 * SECOND)
    assert world.caller.open == 5


@pytest.mark.spec("T3")
async def test_run_now_goes_beside_a_running_one_and_leaves_the_schedule_alone(
    world: World,
) -> None:
    world.caller.scripts["http://target/hook"] = lambda request: None
    task = await world.add(task_of(every(world, 60), **SKIPPING), dialect="T", status="DISABLED")
    await world.tasks.run_now(task.id)
    started = await world.tasks.run_now(task.job_id)
    await world.clock.settle()
    assert world.caller.open == 2
    assert len(started.uid) == 32
    assert (await world.tasks.get(task.id)).next_slot_at == task.next_slot_at


@pytest.mark.spec("C3", "C6", "C12")
@pytest.mark.parametrize("by", ["cancel", "delete"])
async def test_a_run_between_retries_is_cancelled(world: World, by: str) -> None:
    world.caller.scripts["http://target/hook"] = lambda request: answer(502)
    retry = RetryPolicy(max_retries=3, initial_delay_us=MINUTE)
    task = await world.add(task_of(once(world.clock.now() + SECOND), retry=retry))
    await world.clock.advance(2 * SECOND)
    [run] = await world.all_runs(task)
    assert run.status == "RETRYING"
    if by == "cancel":
        assert (await world.runs.cancel(run.id)).status == "CANCELED"
    else:
        await world.tasks.delete(task.id)
    await world.clock.advance(5 * MINUTE)
    assert [one.status for one in await world.all_runs(task)] == ["CANCELED"]
    assert len(world.caller.sent) == 1


@pytest.mark.spec("C3")
async def test_a_disabled_task_is_deleted_like_any_other(world: World) -> None:
    task = await world.add(task_of(every(world, 1)), status="DISABLED")
    await world.tasks.delete(task.id)
    with pytest.raises(NotFoundError):
        await world.tasks.get(task.id)
    await world.clock.advance(5 * SECOND)
    assert await world.all_runs(task) == []


@pytest.mark.spec("C8")
async def test_max_runs_and_end_at_end_a_schedule(world: World) -> None:
    task = await world.add(task_of(every(world, 1), options=Options(max_runs=3)))
    bounded = await world.add(
        task_of(cron("* * * * * *", end_at=world.clock.now() + 4 * SECOND), name="bounded")
    )
    await world.clock.advance(MINUTE)
    assert len(await world.all_runs(task)) == 3
    assert len(await world.all_runs(bounded)) == 4
    assert (await world.tasks.get(task.id)).next_slot_at is None


@pytest.mark.spec("T14")
async def test_a_hanging_host_holds_nobody_else_up(world: World) -> None:
    for n in range(40):
        world.caller.scripts[f"http://slow/{n}"] = lambda request: None
        await world.add(
            task_of(
                every(world, 1),
                name=f"slow{n}",
                url=f"http://slow/{n}",
                timeout_us=60 * SECOND,
                **SKIPPING,
            )
        )
    for n in range(10):
        await world.add(
            task_of(every(world, 1), name=f"fast{n}", url=f"http://fast/{n}", **SKIPPING)
        )
    await world.clock.advance(10 * SECOND)
    fast = [sent for sent in world.caller.sent if sent.request.url.startswith("http://fast")]
    assert len(fast) == 100
    assert all((sent.at - world.clock.now()) % SECOND == 0 for sent in fast)
    assert world.caller.open == 16


@pytest.mark.spec("C19", "X4")
async def test_a_slot_of_another_instances_share_is_fired_when_that_one_does_not(
    world: World,
) -> None:
    first = await world.add(task_of(once(world.clock.now() + 10 * SECOND), name="first"))
    await world.add(task_of(once(world.clock.now() + 10 * SECOND), name="second"))
    slot_at = world.clock.now() + 10 * SECOND
    world.share = Share(first.id % 2, 2)  # the other instance is gone, and nobody knows yet
    await world.clock.advance(12 * SECOND)
    assert [sent.at - slot_at for sent in world.caller.sent] == [0, LEFT_FOR]
    assert not await world.events("TASK_MISFIRED")


@pytest.mark.spec("C19", "X4")
async def test_who_made_a_task_that_is_due_soon_fires_it_on_time_whoevers_share_it_is(
    world: World,
) -> None:
    at = world.clock.now() + 2 * SECOND
    task = await world.add(task_of(once(at)))
    world.share = Share((task.id + 1) % 2, 2)
    hints = TaskHints(
        world.firing,
        world.delivery,
        SignalRelay(NO_SIGNALS, world.clock, is_shared=True),
        world.clock,
    )
    hints.due(at)  # nobody can be told: its own instance may look seconds later
    await world.clock.advance(3 * SECOND)
    assert [sent.at for sent in world.caller.sent] == [at]
    later = await world.add(task_of(once(at + 20 * SECOND), name="later"))
    world.share = Share((later.id + 1) % 2, 2)
    hints.due(at + 20 * SECOND)  # the others find that one by their polls
    await world.clock.advance(20 * SECOND)
    assert [sent.at for sent in world.caller.sent][1:] == [at + 20 * SECOND + LEFT_FOR]


@pytest.mark.spec("T16")
async def test_a_season_of_an_hourly_task_passes_in_seconds(world: World) -> None:
    task = await world.add(task_of(cron("0 0 * * * *"), concurrency_policy="PARALLEL"))
    world.slow_down_polls()
    await world.clock.advance(90 * 24 * HOUR)
    assert (await world.runs.list_page(RunFilter(task_id=task.id))).total.count == 90 * 24
