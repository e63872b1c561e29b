"""Corner cases of firing, delivery and triggers, each once wrong."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from ksana.base.clock import VirtualClock
from ksana.base.errors import ConflictError
from ksana.base.instant import HOUR, MINUTE, SECOND
from ksana.domain import schedule as schedules
from ksana.domain.tasks.call_records import read_attempts
from ksana.domain.tasks.records import Options, RetryPolicy, Task
from ksana.engine.tasks.rescue import rescue_forgotten
from ksana.ports.caller import Reply, Request, Timing
from tests.engine.tasks_world import (
    World,
    answer,
    cron,
    data_of,
    every,
    once,
    open_world,
    task_of,
)

HOOK = "http://target/hook"
SKIPPING = {"concurrency_policy": "SKIP", "misfire_policy": "SKIP"}
NOT_SENT = Reply("unreachable", Timing(), error="connection refused", sends=0)
CUT_OFF = Reply("unreachable", Timing(), error="connection reset", sends=1)


@pytest.mark.spec("T8", "C10")
@pytest.mark.parametrize("dialect", ["T", "C"])
async def test_jitter_longer_than_the_grace_loses_no_slot(world: World, dialect: str) -> None:
    began = world.clock.now()
    schedule = every(world, 240, jitter_us=100 * SECOND)
    task = await world.add(task_of(schedule, **SKIPPING), dialect=dialect)
    await world.clock.advance(50 * MINUTE)
    slots = [(run.scheduled_time - began) // MINUTE for run in await world.all_runs(task)]
    assert slots == list(range(4, 52, 4))
    assert await world.events("TASK_MISFIRED") == []


@pytest.mark.spec("T8", "C10")
async def test_lateness_counts_from_the_instant_a_slot_fires(world: World) -> None:
    schedule = every(world, 7200, jitter_us=100 * SECOND)
    task = await world.add(task_of(schedule, options=Options(misfire_grace_us=10 * SECOND)))
    slot = task.next_slot_at
    assert slot is not None
    fires_at = schedules.fire_at(schedule, task.job_id, slot)
    world.firing.stop()  # firing lags, although the instance runs
    await world.clock.advance(fires_at + 11 * SECOND - world.clock.now())
    world.firing._stopped = False
    await world.clock.advance(6 * SECOND)
    assert [data_of(event)["count"] for event in await world.events("TASK_MISFIRED")] == [1]


@pytest.mark.spec("T8")
async def test_slots_with_a_jitter_beyond_the_next_slot_all_fire_in_order(world: World) -> None:
    task = await world.add(
        task_of(cron("0 * * * * *", jitter_us=10 * MINUTE), concurrency_policy="PARALLEL")
    )
    await world.clock.advance(2 * HOUR)
    slots = [run.scheduled_time for run in await world.all_runs(task)]
    assert slots == [slots[0] + n * MINUTE for n in range(len(slots))]
    assert len(slots) >= 108
    assert await world.events("TASK_MISFIRED") == []


@pytest.mark.spec("C10", "X14")
@pytest.mark.parametrize(
    ("policy", "slots"), [("FIRE_NOW", [80]), ("CATCH_UP_LIMITED", [40, 50, 60, 70, 80])]
)
async def test_slots_due_while_a_shutdown_drains_belong_to_the_outage(
    world: World, policy: Any, slots: list[int]
) -> None:
    began = world.clock.now()
    task = await world.add(
        task_of(
            every(world, 10),
            misfire_policy=policy,
            catchup_limit=0 if policy == "FIRE_NOW" else 5,
            concurrency_policy="PARALLEL",
        )
    )
    await world.clock.advance(5 * SECOND)
    await world.begin_drain()
    await world.clock.advance(20 * SECOND)
    await world.die()
    await world.store.transact(lambda tx: tx.instances.stop("one-1"))
    await world.clock.advance(60 * SECOND)
    await world.revive()
    await world.clock.advance(SECOND)
    runs = await world.all_runs(task)
    assert [(run.scheduled_time - began) // SECOND for run in runs] == slots
    assert [data_of(event)["count"] for event in await world.events("TASK_MISFIRED")] == [8]


@pytest.mark.spec("C10", "C11")
async def test_the_slots_of_a_catch_up_all_wait_whatever_max_queued_says(world: World) -> None:
    began = world.clock.now()
    task = await world.add(
        task_of(
            every(world, 10),
            misfire_policy="CATCH_UP_LIMITED",
            catchup_limit=6,
            options=Options(max_queued=2),
        )
    )
    await world.die()
    await world.clock.advance(95 * SECOND)
    await world.revive()
    await world.clock.advance(SECOND)
    runs = await world.all_runs(task)
    assert [(run.scheduled_time - began) // SECOND for run in runs] == [40, 50, 60, 70, 80, 90]
    assert {run.status for run in runs} == {"SUCCESS"}


@pytest.mark.spec("C23")
async def test_at_most_once_is_tried_again_when_nothing_was_sent(world: World) -> None:
    replies = iter([NOT_SENT, answer(200)])
    world.caller.scripts[HOOK] = lambda request: next(replies)
    options = Options(delivery="at_most_once")
    task = await world.add(
        task_of(once(world.clock.now() + SECOND), retry=RetryPolicy(max_retries=1), options=options)
    )
    await world.clock.advance(MINUTE)
    run = (await world.all_runs(task))[0]
    assert (run.status, run.attempt) == ("SUCCESS", 2)
    attempts = read_attempts(run.attempts)
    assert [one.get("sends", "absent") for one in attempts] == [0, "absent"]


@pytest.mark.spec("C23")
async def test_at_most_once_is_not_tried_again_when_it_may_have_arrived(world: World) -> None:
    world.caller.scripts[HOOK] = lambda request: CUT_OFF
    options = Options(delivery="at_most_once")
    task = await world.add(
        task_of(once(world.clock.now() + SECOND), retry=RetryPolicy(max_retries=3), options=options)
    )
    await world.clock.advance(MINUTE)
    run = (await world.all_runs(task))[0]
    assert (run.status, run.reason) == ("FAILED", "OUTCOME_UNKNOWN_AT_MOST_ONCE")
    assert len(world.caller.sent) == 1


@pytest.mark.spec("C16", "C18")
async def test_a_failed_callback_that_leads_to_a_retry_answers_no_final_status(
    world: World,
) -> None:
    task = await world.add(
        task_of(
            once(world.clock.now() + SECOND),
            exec_type="ASYNC",
            http_method="POST",
            retry=RetryPolicy(max_retries=1),
            options=Options(retry_on_callback_failure=True),
        )
    )
    await world.clock.advance(SECOND)
    token = world.caller.sent[-1].header("X-Callback-Token")
    assert (await world.call_back(token, "FAILED")).final_status is None
    assert (await world.all_runs(task))[0].status == "RETRYING"
    await world.clock.advance(10 * SECOND)
    assert (await world.call_back(token, "FAILED")).final_status == "FAILED"


@pytest.mark.spec("C4", "X11")
@pytest.mark.parametrize(
    ("policy", "max_queued", "code"),
    [("SKIP", 100, "CONCURRENCY_LIMIT"), ("QUEUE", 0, "QUEUE_FULL")],
)
async def test_a_refused_trigger_is_an_event_with_its_reason(
    world: World, policy: Any, max_queued: int, code: str
) -> None:
    world.caller.scripts[HOOK] = lambda request: None
    task = await world.add(
        task_of(
            every(world, 3600), concurrency_policy=policy, options=Options(max_queued=max_queued)
        )
    )
    await world.tasks.trigger(task.id)
    with pytest.raises(ConflictError) as refused:
        await world.tasks.trigger(task.id)
    assert refused.value.code == code
    [event] = await world.events("TRIGGER_REFUSED")
    told = data_of(event)
    assert (told["reason"], told["active"], told["waiting"]) == (code, 1, 0)
    assert len(await world.all_runs(task)) == 1


async def lag(world: World, seconds: int) -> None:
    """Firing does nothing for a while, although the instance runs."""
    world.firing.stop()
    await world.clock.advance(seconds * SECOND)


def change_of(world: World) -> Any:
    def change(old: Task, now: int) -> Any:
        return msgspec.structs.replace(old.definition, schedule=every(world, 3600))

    return change


@pytest.mark.fault("F02")
@pytest.mark.spec("C10", "X11")
@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("disable", "TASK_DISABLED"),
        ("change", "SCHEDULE_CHANGED"),
        ("delete", "TASK_DELETED"),
    ],
)
async def test_slots_due_while_firing_lags_are_recorded_when_their_task_is_taken_away(
    world: World, what: str, reason: str
) -> None:
    began = world.clock.now()
    task = await world.add(task_of(every(world, 1)))
    await lag(world, 3)
    if what == "disable":
        await world.tasks.set_enabled(task.id, False)
    elif what == "change":
        await world.tasks.change(task.id, change_of(world))
    else:
        await world.tasks.delete(task.id)
    runs = await world.all_runs(task)
    assert [(run.scheduled_time - began) // SECOND for run in runs] == [1, 2, 3]
    assert {(run.status, run.reason) for run in runs} == {("SKIPPED", reason)}
    assert world.caller.sent == []


@pytest.mark.fault("F06")
@pytest.mark.spec("C10", "X11")
async def test_slots_of_an_outage_are_misfires_also_when_their_task_is_disabled_first(
    world: World,
) -> None:
    task = await world.add(task_of(every(world, 10)))
    await world.die()
    await world.clock.advance(95 * SECOND)
    await world.store.transact(
        lambda tx: tx.instances.register("one-2", "h", "0", 15 * SECOND, True)
    )
    await world.tasks.set_enabled(task.id, False)
    assert [data_of(event)["count"] for event in await world.events("TASK_MISFIRED")] == [9]
    assert [run.status for run in await world.all_runs(task)] == ["SKIPPED"]


async def wait_behind_a_call(tmp_path: Path, clock: VirtualClock) -> tuple[World, Task, Task]:
    """Two at-most-once runs of a host with one call slot: one is in flight, one waits in memory."""
    world = await open_world(tmp_path, clock, per_host=1)

    def hang_once(request: Request) -> Reply | None:
        return None if len(world.caller.sent) == 1 else answer(200)

    world.caller.scripts[HOOK] = hang_once
    at = clock.now() + SECOND
    options = Options(delivery="at_most_once")
    tasks = [
        await world.add(task_of(once(at), name=name, options=options, timeout_us=5 * SECOND))
        for name in ("first", "second")
    ]
    await clock.advance(2 * SECOND)
    assert len(world.caller.sent) == 1
    return world, tasks[0], tasks[1]


@pytest.mark.spec("C19", "C23")
async def test_a_run_claimed_before_the_lease_was_lost_is_sent_once(
    tmp_path: Path, clock: VirtualClock
) -> None:
    world, _, second = await wait_behind_a_call(tmp_path, clock)
    waiting = (await world.all_runs(second))[0]
    world.generation += 1  # frozen, and the lease is held again
    await clock.advance(20 * SECOND)
    assert len(world.caller.sent) == 2
    run = (await world.runs.get(waiting.id)).run
    assert (run.status, run.attempt) == ("SUCCESS", 1)
    [moved] = await world.events("RUN_RETRYING")
    assert data_of(moved)["reason"] == "HELD_NEVER_BEGUN"
    await world.check_events()
    await world.die()
    await world.store.close()


@pytest.mark.spec("C19", "C23")
async def test_a_run_that_was_taken_over_while_we_were_frozen_is_not_sent_by_us(
    tmp_path: Path, clock: VirtualClock
) -> None:
    world, _, second = await wait_behind_a_call(tmp_path, clock)
    waiting = (await world.all_runs(second))[0]
    await world.store.transact(rescue_forgotten, [waiting.id])  # somebody else took it and ended it
    world.generation += 1
    await clock.advance(20 * SECOND)
    assert len(world.caller.sent) == 1
    assert (await world.runs.get(waiting.id)).run.status == "FAILED"
    assert len(await world.events("RUN_RESULT_REFUSED")) == 1
    await world.check_events()
    await world.die()
    await world.store.close()


@pytest.mark.spec("C19", "C23")
async def test_a_call_that_waited_for_its_connection_while_we_were_frozen_is_not_sent_by_us(
    tmp_path: Path, clock: VirtualClock
) -> None:
    world = await open_world(tmp_path, clock)
    world.caller.connects = False
    options = Options(delivery="at_most_once")
    task = await world.add(task_of(once(clock.now() + SECOND), options=options))
    await clock.advance(2 * SECOND)
    assert len(world.caller.connecting) == 1
    world.generation += 1  # frozen, and the lease is held again
    world.caller.connect()
    await clock.settle()
    await clock.advance(2 * SECOND)
    # It was still ours, so it is given back, and begun under the lease of now.
    assert len(world.caller.sent) == 1
    [run] = await world.all_runs(task)
    assert (run.status, run.attempt) == ("SUCCESS", 1)
    [moved] = await world.events("RUN_RETRYING")
    assert data_of(moved)["reason"] == "HELD_NEVER_BEGUN"
    await world.check_events()
    await world.die()
    await world.store.close()
