"""Runs that are done by a queue job, on the virtual clock: they start together, the job's end ends
the run, and nothing that dies in between loses or doubles one."""

from typing import Any

import msgspec
import pytest

from ksana.base.errors import ConflictError
from ksana.base.instant import DAY, HOUR, MILLISECOND, MINUTE, SECOND
from ksana.domain.dead_letters import LetterFilter
from ksana.domain.handover import job_id_of
from ksana.domain.leases import Proof
from ksana.domain.queue.attempt_ends import Release
from ksana.domain.queue.classes import Wants, class_of
from ksana.domain.queue.jobs import Job, LeasedJob, NewJob
from ksana.domain.tasks.records import Definition, Options, QueueSpec, RetryPolicy, Run, Task
from ksana.engine.tasks import queue_runs
from ksana.ports.queue.tables import JobFilter
from ksana.ports.tasks.runs import RunFilter
from ksana.service.queue.claims import Claim
from ksana.service.tasks.explain import explain_run
from tests.engine.tasks_world import World, data_of, every, once, task_of

pytestmark = pytest.mark.spec("B5")

SPEC = QueueSpec("etl", "nightly", cost_units=5, priority="HIGH", constraints='{"gpu":true}')


def queue_task(world: World, **members: Any) -> Definition:
    """A task whose one slot is a second ahead."""
    options = members.pop("options", Options(type="queue", queue=SPEC))
    schedule = members.pop("schedule", once(world.clock.now() + SECOND))
    members = {"timeout_us": HOUR, **members}
    return task_of(schedule, url="", options=options, **members)


async def fire(world: World, **members: Any) -> tuple[Task, Run]:
    """Make such a task and let it fire."""
    task = await world.add(queue_task(world, **members))
    await world.clock.advance(SECOND)
    return task, (await world.all_runs(task))[-1]


async def all_jobs(world: World) -> list[Job]:
    """Every queue job, oldest first."""
    page = await world.queue.list_jobs(JobFilter(), None, 500)
    return page.jobs[::-1]


async def take(world: World, ttl_sec: float = 600) -> LeasedJob:
    """Claim and lease the next job as a worker does."""
    claimed = await world.queue.claim(
        Claim("w1", Wants(capabilities=(("gpu_available", True),)), has_lease=True, ttl_sec=ttl_sec)
    )
    return LeasedJob(claimed.leases[0], claimed.jobs[0])


async def release(world: World, taken: LeasedJob, status: str, **members: Any) -> None:
    """Say how the job ended, and let everything settle."""
    proof = Proof(token=taken.lease.lease_token)
    await world.queue.release(Release(taken.lease.lease_id, status, proof=proof, **members))
    await world.clock.advance(10 * MILLISECOND)


async def find(world: World, run: Run) -> Run:
    return (await world.runs.get(run.id)).run


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
