"""Runs that wait for queue jobs: what is left behind, lost, refused or chosen by others."""

import msgspec
import pytest

from ksana.base.instant import DAY, HOUR, MILLISECOND, MINUTE
from ksana.domain.queue.classes import class_of
from ksana.domain.queue.jobs import NewJob
from ksana.domain.tasks.records import Options, QueueSpec
from tests.engine.queue_runs_ground import all_jobs, find, fire, queue_task, release, take
from tests.engine.tasks_world import World, once, task_of

pytestmark = pytest.mark.spec("B5")


SPEC = QueueSpec("etl", "nightly", cost_units=5, priority="HIGH", constraints='{"gpu":true}')


@pytest.mark.spec("C19")
@pytest.mark.parametrize("dies", ["before the start", "before the end is told"])
async def test_what_an_instance_left_behind_is_taken_up_by_the_next(
    world: World, dies: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if dies == "before the start":
        world.queue_runs.stop()
        _, run = await fire(world)
        assert (run.status, await all_jobs(world)) == ("SCHEDULED", [])
    else:
        _, run = await fire(world)
        taken = await take(world)
        await world.die()
        await release(world, taken, "SUCCEEDED")
        assert (await find(world, run)).status == "RUNNING"
        await world.revive()
        assert (await find(world, run)).status == "SUCCESS"
        return
    await world.die()
    await world.revive()
    [job] = await all_jobs(world)
    await release(world, await take(world), "SUCCEEDED")
    ended = await find(world, run)
    assert (ended.status, ended.attempt) == ("SUCCESS", 1)
    assert [one.job_id for one in await all_jobs(world)] == [job.job_id]


async def test_a_run_waits_for_its_job_however_long_its_instance_is_dead(world: World) -> None:
    _, run = await fire(world, timeout_us=2 * DAY)
    await world.die()
    await world.clock.advance(HOUR)
    await world.revive()
    await world.clock.advance(MINUTE)
    assert (await find(world, run)).status == "RUNNING"
    await release(world, await take(world), "SUCCEEDED")
    assert (await find(world, run)).status == "SUCCESS"


async def test_an_end_that_nobody_noted_is_found_when_the_time_is_over(world: World) -> None:
    _, run = await fire(world, timeout_us=MINUTE)
    taken = await take(world)
    await world.die()
    await release(world, taken, "SUCCEEDED", result_json="1")
    await world.store.transact(lambda tx: tx.handover_ends.remove(tx.handover_ends.list_noted(10)))
    await world.revive()
    await world.clock.advance(2 * MINUTE)
    ended = await find(world, run)
    assert (ended.status, ended.response_body) == ("SUCCESS", "1")


async def test_a_job_that_is_gone_does_not_keep_its_run(world: World) -> None:
    _, run = await fire(world, timeout_us=MINUTE)
    taken = await take(world)
    await world.die()
    await release(world, taken, "SUCCEEDED")
    await world.store.transact(lambda tx: tx.jobs.remove([taken.job.seq]))
    await world.revive()
    assert (await find(world, run)).status == "RUNNING"
    await world.clock.advance(2 * MINUTE)
    ended = await find(world, run)
    assert (ended.status, ended.reason) == ("FAILED", "NO_RETRIES")
    assert ended.error_message == "the job is gone, and nobody knows what came of it"


async def test_a_request_id_that_somebody_took_fails_that_run_alone(world: World) -> None:
    world.queue_runs.stop()
    _, taken = await fire(world)
    _, other = await fire(world, name="other")
    foreign = NewJob(
        job_id=world.queue.new_id(),
        priority="LOW",
        job_class=class_of("etl", "x", 1, ()),
        constraints_json="{}",
        payload_json="{}",
        client_request_id=f"run:{taken.uid}:1",
        max_attempts=1,
        run_at=None,
        fairness_key=None,
    )
    await world.queue.submit(foreign)
    await world.die()
    await world.revive()
    refused = await find(world, taken)
    assert (refused.status, refused.reason) == ("FAILED", "JOB_REFUSED")
    assert "client_request_id" in (refused.error_message or "")
    assert (await find(world, other)).status == "RUNNING"


async def test_nobody_ends_a_run_by_choosing_its_request_id(world: World) -> None:
    _, run = await fire(world)
    foreign = NewJob(
        job_id=world.queue.new_id(),
        priority="URGENT",
        job_class=class_of("somebody-else", "x", 1, ()),
        constraints_json="{}",
        payload_json="{}",
        client_request_id=f"run:{run.uid}:1",
        max_attempts=1,
        run_at=None,
        fairness_key=None,
    )
    await world.queue.submit(foreign)
    taken = await take(world)
    assert taken.job.job_id == foreign.job_id
    await release(world, taken, "SUCCEEDED")
    # Even if the note of a foreign job came to be, it would not be believed.
    await world.store.transact(lambda tx: tx.handover_ends.note([foreign.job_id]))
    world.queue_runs.ended()
    await world.clock.advance(10 * MILLISECOND)
    assert (await find(world, run)).status == "RUNNING"


async def test_more_units_than_there_are_refuse_the_run_with_the_reason(world: World) -> None:
    options = Options(type="queue", queue=msgspec.structs.replace(SPEC, cost_units=101))
    _, run = await fire(world, options=options)
    assert (run.status, run.reason) == ("FAILED", "JOB_REFUSED")
    assert "allowed: 1 to 100" in (run.error_message or "")
    assert await all_jobs(world) == []


async def test_a_payload_that_is_too_large_once_filled_refuses_the_run(world: World) -> None:
    name = "n" * 128
    body = msgspec.json.encode(["{{task_name}}"] * 9000).decode()
    _, run = await fire(world, name=name, body=body)
    assert (run.status, run.reason) == ("FAILED", "JOB_REFUSED")
    assert "1048576 bytes" in (run.error_message or "")


async def test_a_trigger_may_give_its_own_payload(world: World) -> None:
    task = await world.add(
        queue_task(world, schedule=once(world.clock.now() + HOUR), body='{"a":1}')
    )
    await world.tasks.trigger(task.id, override_body='{"a":"{{attempt}}"}')
    await world.clock.advance(10 * MILLISECOND)
    [job] = await all_jobs(world)
    assert job.payload_json == '{"a":"1"}'


async def test_runs_that_were_made_before_the_type_changed_fail_with_the_reason(
    world: World,
) -> None:
    world.queue_runs.stop()
    task, run = await fire(world)
    to_http = task_of(once(world.clock.now() + HOUR))
    await world.tasks.change(task.id, lambda old, now: to_http)
    await world.die()
    await world.revive()
    ended = await find(world, run)
    assert (ended.status, ended.error_message) == (
        "FAILED",
        "the task is of type http since this run was made",
    )
