"""Attempts at runs: retries, orphans, cancels."""

import itertools

import pytest

from ksana.base.errors import ConflictError
from ksana.base.instant import MINUTE, SECOND
from ksana.domain.tasks.call_records import read_attempts
from ksana.domain.tasks.records import Options, RetryPolicy
from tests.engine.tasks_world import World, answer, every, once, task_of


@pytest.mark.fault("F15")
@pytest.mark.spec("C14", "T13")
async def test_retries_follow_their_policy_and_attempts_are_recorded(world: World) -> None:
    world.caller.scripts["http://target/hook"] = lambda request: answer(503)
    retry = RetryPolicy(
        max_retries=3, initial_delay_us=2 * SECOND, strategy="exponential", max_delay_us=5 * SECOND
    )
    task = await world.add(task_of(once(world.clock.now() + SECOND), retry=retry))
    await world.clock.advance(SECOND)
    assert (await world.all_runs(task))[0].status == "RETRYING"
    await world.clock.advance(MINUTE)
    times = [sent.at for sent in world.caller.sent]
    assert [(later - earlier) // SECOND for earlier, later in itertools.pairwise(times)] == [
        2,
        4,
        5,
    ]
    assert [sent.header("X-Ksana-Attempt") for sent in world.caller.sent] == ["1", "2", "3", "4"]
    assert len({sent.header("X-Ksana-Run-Id") for sent in world.caller.sent}) == 1
    run = (await world.all_runs(task))[0]
    assert (run.status, run.attempt) == ("FAILED", 4)
    assert [one["status"] for one in read_attempts(run.attempts)] == [
        "RETRYING",
        "RETRYING",
        "RETRYING",
        "FAILED",
    ]


@pytest.mark.spec("C14")
async def test_a_retry_survives_a_restart(world: World) -> None:
    world.caller.scripts["http://target/hook"] = lambda request: answer(500)
    retry = RetryPolicy(max_retries=1, initial_delay_us=30 * SECOND)
    task = await world.add(task_of(once(world.clock.now() + SECOND), retry=retry))
    await world.clock.advance(5 * SECOND)
    await world.die()
    world.caller.scripts["http://target/hook"] = lambda request: answer(200)
    await world.revive()
    await world.clock.advance(MINUTE)
    assert [run.status for run in await world.all_runs(task)] == ["SUCCESS"]
    assert len(world.caller.sent) == 2


@pytest.mark.spec("T11")
async def test_retry_after_is_honoured_and_other_answers_fail_at_once(world: World) -> None:
    replies = iter([answer(429, retry_after="20"), answer(404)])
    world.caller.scripts["http://target/hook"] = lambda request: next(replies)
    task = await world.add(
        task_of(once(world.clock.now() + SECOND), retry=RetryPolicy(max_retries=5))
    )
    await world.clock.advance(MINUTE)
    times = [sent.at for sent in world.caller.sent]
    assert (times[1] - times[0]) // SECOND == 20
    run = (await world.all_runs(task))[0]
    assert (run.status, run.attempt, run.error_message) == ("FAILED", 2, "HTTP 404 Not Found")


@pytest.mark.spec("T12")
async def test_the_last_attempt_decides_between_timeout_and_failed(world: World) -> None:
    world.caller.scripts["http://target/hook"] = lambda request: None
    task = await world.add(task_of(once(world.clock.now() + SECOND), timeout_us=2 * SECOND))
    await world.clock.advance(5 * SECOND)
    assert (await world.all_runs(task))[0].status == "TIMEOUT"
    assert (await world.tasks.get(task.id)).last_status == "timeout"


@pytest.mark.spec("C19")
async def test_an_orphan_is_tried_again_and_its_lost_attempt_recorded(world: World) -> None:
    world.caller.scripts["http://target/hook"] = lambda request: None
    task = await world.add(
        task_of(once(world.clock.now() + SECOND), retry=RetryPolicy(max_retries=2))
    )
    await world.clock.advance(2 * SECOND)
    await world.die()
    world.caller.scripts["http://target/hook"] = lambda request: answer(200)
    await world.revive()
    await world.clock.advance(20 * SECOND)
    run = (await world.all_runs(task))[0]
    assert (run.status, run.attempt) == ("SUCCESS", 2)
    assert [one["status"] for one in read_attempts(run.attempts)] == ["LOST", "SUCCESS"]


@pytest.mark.spec("C19", "C23")
@pytest.mark.parametrize("options", [Options(on_orphan="fail"), Options(delivery="at_most_once")])
async def test_an_orphan_that_may_not_be_sent_again_fails_with_its_reason(
    world: World, options: Options
) -> None:
    world.caller.scripts["http://target/hook"] = lambda request: None
    task = await world.add(
        task_of(once(world.clock.now() + SECOND), retry=RetryPolicy(max_retries=2), options=options)
    )
    await world.clock.advance(2 * SECOND)
    await world.die()
    await world.revive()
    await world.clock.advance(20 * SECOND)
    run = (await world.all_runs(task))[0]
    assert run.status == "FAILED"
    assert run.reason in ("ORPHANED_ON_ORPHAN_FAIL", "OUTCOME_UNKNOWN_AT_MOST_ONCE")
    assert len(world.caller.sent) == 1


@pytest.mark.spec("C6")
async def test_cancel_aborts_the_call_and_a_late_result_changes_nothing(world: World) -> None:
    world.caller.scripts["http://target/hook"] = lambda request: None
    task = await world.add(task_of(once(world.clock.now() + SECOND)))
    await world.clock.advance(2 * SECOND)
    run = (await world.all_runs(task))[0]
    assert (await world.runs.cancel(run.id)).status == "CANCELED"
    await world.clock.advance(SECOND)
    assert world.caller.open == 0
    assert (await world.runs.get(run.uid)).run.status == "CANCELED"
    with pytest.raises(ConflictError):
        await world.runs.cancel(run.id)
    again = await world.runs.retry(run.id)
    await world.clock.settle()
    assert (await world.runs.get(again.run_id)).run.retry_of == run.id


@pytest.mark.spec("C3", "T17")
async def test_deleting_a_task_cancels_what_waits_and_lets_what_runs_finish(world: World) -> None:
    world.caller.scripts["http://target/hook"] = lambda request: None
    task = await world.add(task_of(every(world, 1), timeout_us=5 * SECOND))
    await world.clock.advance(3_500_000)
    await world.tasks.delete(task.id)
    assert [run.status for run in await world.all_runs(task)] == ["RUNNING", "CANCELED", "CANCELED"]
    await world.clock.advance(10 * SECOND)
    assert [run.status for run in await world.all_runs(task)] == ["TIMEOUT", "CANCELED", "CANCELED"]
    await world.add(task_of(every(world, 1)))  # the name is free again
