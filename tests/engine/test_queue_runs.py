"""Runs that are done by a queue job, on the virtual clock: they start together, the job's end ends
the run, and nothing that dies in between loses or doubles one."""

from typing import Any

import msgspec
import pytest

from ksana.base.errors import ConflictError
from ksana.base.instant import MILLISECOND, MINUTE, SECOND
from ksana.domain.dead_letters import LetterFilter
from ksana.domain.handover import job_id_of
from ksana.domain.tasks.records import Options, QueueSpec, RetryPolicy
from ksana.engine.tasks import queue_runs
from ksana.ports.tasks.runs import RunFilter
from ksana.service.tasks.explain import explain_run
from tests.engine.queue_runs_ground import all_jobs, find, fire, queue_task, release, take
from tests.engine.tasks_world import World, data_of, every, once

pytestmark = pytest.mark.spec("B5")


SPEC = QueueSpec("etl", "nightly", cost_units=5, priority="HIGH", constraints='{"gpu":true}')


async def test_a_slot_submits_a_job_and_its_end_ends_the_run(world: World) -> None:
    body = '{"day":"{{scheduled_at}}","run":"{{run_uid}}","by":"{{task_name}} #{{attempt}}"}'
    task, run = await fire(world, name='a "quoted" name', body=body)
    [job] = await all_jobs(world)
    assert (run.status, run.held_by, run.attempt) == ("RUNNING", None, 1)
    assert (job.addon_id, job.job_type, job.cost_units) == ("etl", "nightly", 5)
    assert (job.priority, job.constraints_json) == ("HIGH", '{"gpu":true}')
    assert job.client_request_id == f"run:{run.uid}:1"
    assert job.job_id == job_id_of(run.uid, 1)
    payload = msgspec.json.decode(job.payload_json)
    assert payload["by"] == 'a "quoted" name #1'
    assert payload["run"] == run.uid
    assert world.caller.sent == []

    await world.clock.advance(10 * SECOND)
    await release(world, await take(world), "SUCCEEDED", result_json='{"rows":7}')
    ended = await find(world, run)
    assert (ended.status, ended.reason, ended.response_body) == (
        "SUCCESS",
        "JOB_DONE",
        '{"rows":7}',
    )
    assert ended.request_body == job.payload_json
    [attempt] = msgspec.json.decode(ended.attempts)
    assert (attempt["job_id"], attempt["status"], attempt["response_code"]) == (
        job.job_id,
        "SUCCESS",
        None,
    )
    assert attempt["timing"]["total_ms"] >= 10_000
    stored = await world.tasks.get(task.id)
    assert stored.last_status == "success"
    [started] = [e for e in await world.events("RUN_STARTED") if e.entity_id == str(run.id)]
    assert data_of(started)["job_id"] == job.job_id


async def test_a_failed_job_is_submitted_again_as_a_new_one_while_tries_are_left(
    world: World,
) -> None:
    _, run = await fire(world, retry=RetryPolicy(max_retries=1, initial_delay_us=30 * SECOND))
    await release(world, await take(world), "FAILED", error="disk full")
    waiting = await find(world, run)
    assert (waiting.status, waiting.error_message) == ("RETRYING", "disk full")
    await world.clock.advance(30 * SECOND)
    second = await find(world, run)
    assert (second.status, second.attempt) == ("RUNNING", 2)
    jobs = await all_jobs(world)
    assert [job.client_request_id for job in jobs] == [f"run:{run.uid}:1", f"run:{run.uid}:2"]
    await release(world, await take(world), "FAILED", error="disk still full")
    ended = await find(world, run)
    assert (ended.status, ended.reason) == ("FAILED", "RETRIES_USED_UP")
    assert [one["error"] for one in msgspec.json.decode(ended.attempts)] == [
        "disk full",
        "disk still full",
    ]


async def test_the_attempts_of_the_job_come_before_the_tries_of_the_run(world: World) -> None:
    options = Options(type="queue", queue=msgspec.structs.replace(SPEC, max_attempts=2))
    _, run = await fire(world, options=options)
    await release(world, await take(world), "FAILED", error="once")
    assert (await find(world, run)).status == "RUNNING"
    await world.clock.advance(10 * SECOND)
    await release(world, await take(world), "SUCCEEDED")
    assert (await find(world, run)).status == "SUCCESS"
    assert len(await all_jobs(world)) == 1


async def test_a_worker_that_gives_up_for_good_ends_the_run_whatever_tries_are_left(
    world: World,
) -> None:
    options = Options(type="queue", queue=msgspec.structs.replace(SPEC, max_attempts=3))
    _, run = await fire(world, options=options, retry=RetryPolicy(max_retries=5))
    await release(world, await take(world), "FAILED", error="no such file", may_retry=False)
    ended = await find(world, run)
    assert (ended.status, ended.reason, ended.error_message) == (
        "FAILED",
        "NOT_RETRYABLE",
        "no such file",
    )


@pytest.mark.spec("B12")
async def test_the_run_becomes_the_dead_letter_and_its_job_does_not(world: World) -> None:
    _, run = await fire(world, retry=RetryPolicy(max_retries=1, initial_delay_us=SECOND))

    async def letters(surface: str) -> list[str]:
        found = await world.store.read(
            lambda tx: tx.dead_letters.list_letters(surface, LetterFilter(), None, 10)
        )
        return [letter.entity_id for letter in found]

    await release(world, await take(world), "FAILED", error="first")
    assert (await letters("queue"), await letters("tasks")) == ([], [])
    await world.clock.advance(2 * SECOND)
    await release(world, await take(world), "FAILED", error="second")
    assert (await letters("queue"), await letters("tasks")) == ([], [str(run.id)])


@pytest.mark.parametrize(
    ("delivery", "expected"),
    [
        ("at_least_once", ("RETRYING", "RETRY_LEFT")),
        ("at_most_once", ("FAILED", "OUTCOME_UNKNOWN_AT_MOST_ONCE")),
    ],
)
async def test_a_lease_that_runs_out_is_a_timeout_of_the_run(
    world: World, delivery: Any, expected: tuple[str, str]
) -> None:
    options = Options(type="queue", queue=SPEC, delivery=delivery)
    _, run = await fire(world, options=options, retry=RetryPolicy(max_retries=1))
    taken = await take(world, ttl_sec=30)
    await world.clock.advance(31 * SECOND)
    with pytest.raises(ConflictError):  # the late word writes down that the lease ran out
        await release(world, taken, "SUCCEEDED")
    await world.clock.advance(10 * MILLISECOND)
    ended = await find(world, run)
    assert (ended.status, ended.reason) == expected


@pytest.mark.spec("C6")
async def test_cancelling_the_run_cancels_its_job(world: World) -> None:
    _, waiting = await fire(world)
    await world.runs.cancel(waiting.id)
    await world.clock.advance(10 * MILLISECOND)
    [job] = await all_jobs(world)
    assert (job.state, (await find(world, waiting)).status) == ("CANCELED", "CANCELED")

    _, running = await fire(world, name="other")
    taken = await take(world)
    await world.runs.cancel(running.id)
    asked = await world.queue.get_job(taken.job.job_id)
    assert (asked.state, bool(asked.cancel_requested)) == ("RUNNING", True)
    await release(world, taken, "SUCCEEDED")
    assert (await find(world, running)).status == "CANCELED"
    left = await world.store.transact(lambda tx: tx.handover_ends.list_noted(10))
    assert left == []


async def test_cancelling_the_job_ends_the_run(world: World) -> None:
    _, run = await fire(world, retry=RetryPolicy(max_retries=3))
    [job] = await all_jobs(world)
    await world.queue.cancel(job.job_id, "not today")
    await world.clock.advance(10 * MILLISECOND)
    ended = await find(world, run)
    assert (ended.status, ended.reason, ended.error_message) == (
        "CANCELED",
        "JOB_CANCELED",
        "not today",
    )


@pytest.mark.parametrize("is_begun", [False, True])
async def test_a_run_whose_time_is_over_times_out_and_cancels_its_job(
    world: World, is_begun: bool
) -> None:
    _, run = await fire(world, timeout_us=MINUTE)
    taken = await take(world) if is_begun else None
    await world.clock.advance(MINUTE + SECOND)
    ended = await find(world, run)
    assert (ended.status, ended.error_message) == ("TIMEOUT", "the job did not end in time")
    [job] = await all_jobs(world)
    assert job.cancel_requested
    assert job.state == ("RUNNING" if is_begun else "CANCELED")
    if taken is not None:
        await release(world, taken, "SUCCEEDED")
        assert (await find(world, run)).status == "TIMEOUT"


async def test_at_most_once_tries_again_after_a_timeout_only_if_nobody_began(world: World) -> None:
    options = Options(type="queue", queue=SPEC, delivery="at_most_once")
    retry = RetryPolicy(max_retries=1, initial_delay_us=SECOND)
    _, run = await fire(world, options=options, retry=retry, timeout_us=MINUTE)
    await world.clock.advance(MINUTE + 2 * SECOND)
    second = await find(world, run)
    assert (second.status, second.attempt) == ("RUNNING", 2)
    await take(world)
    _, other = await fire(world, name="o", options=options, retry=retry, timeout_us=MINUTE)
    await take(world)
    await world.clock.advance(MINUTE + 2 * SECOND)
    ended = await find(world, other)
    assert (ended.status, ended.reason) == ("FAILED", "OUTCOME_UNKNOWN_AT_MOST_ONCE")


@pytest.mark.spec("C11")
@pytest.mark.parametrize("policy", ["QUEUE", "SKIP", "PARALLEL"])
async def test_overlap_counts_runs_that_wait_for_their_job(world: World, policy: Any) -> None:
    schedule = every(world, 10)
    task = await world.add(
        queue_task(
            world,
            schedule=schedule,
            concurrency_policy=policy,
            options=Options(type="queue", queue=SPEC, max_queued=1),
        )
    )
    await world.clock.advance(30 * SECOND)
    states = [run.status for run in await world.all_runs(task)]
    jobs = len(await all_jobs(world))
    expected = {
        "QUEUE": (["RUNNING", "SCHEDULED", "SKIPPED"], 1),
        "SKIP": (["RUNNING", "SKIPPED", "SKIPPED"], 1),
        "PARALLEL": (["RUNNING", "RUNNING", "RUNNING"], 3),
    }
    assert (states, jobs) == expected[policy]
    await release(world, await take(world), "SUCCEEDED")
    states = [run.status for run in await world.all_runs(task)]
    assert states[0] == "SUCCESS"
    assert len(await all_jobs(world)) == (2 if policy == "QUEUE" else jobs)


async def test_explain_tells_what_the_run_waits_for(world: World) -> None:
    _, run = await fire(world)
    jobs = world.queue_runs.jobs
    insight = await world.store.read(explain_run, run.id, jobs)
    waits_for = insight.why.waits_for
    assert waits_for is not None
    assert (waits_for.what, waits_for.state) == ("job", "QUEUED")
    assert waits_for.job_id == job_id_of(run.uid, 1)
    codes = [reason.code for reason in insight.why.reasons]
    assert codes[0] == "JOB_SUBMITTED"
    assert codes[-1] == "WAITS_FOR_JOB"
    assert "is QUEUED" in insight.why.reasons[-1].words


@pytest.mark.spec("C21")
async def test_ends_by_jobs_are_counted_like_ends_by_answers(world: World) -> None:
    seen: list[tuple[int, str]] = []
    world.metrics.recorded = lambda ended: seen.extend(  # type: ignore[method-assign]
        (over.held.run_id, status) for over, status in ended
    )
    _, done = await fire(world)
    await release(world, await take(world), "SUCCEEDED")
    _, late = await fire(world, name="late", timeout_us=MINUTE)
    await world.clock.advance(2 * MINUTE)
    assert seen == [(done.id, "SUCCESS"), (late.id, "TIMEOUT")]


async def test_many_that_are_due_at_once_are_started_in_batches(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_runs, "BATCH", 3)
    at = world.clock.now() + SECOND
    for number in range(10):
        await world.add(queue_task(world, schedule=once(at), name=f"t{number}"))
    await world.clock.advance(SECOND)
    jobs = await all_jobs(world)
    assert len(jobs) == 10
    for _ in range(10):
        await release(world, await take(world), "SUCCEEDED")
    runs = (await world.runs.list_page(RunFilter(), page_size=50)).runs
    assert {run.status for run in runs} == {"SUCCESS"}
