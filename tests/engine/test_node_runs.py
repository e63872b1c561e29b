"""Runs that are done by a node job, on the virtual clock: submitted, waited for, cancelled, lost,
and taken up by another instance."""

import asyncio
from typing import Any

import msgspec
import pytest

from ksana.base.instant import HOUR, MINUTE, SECOND
from ksana.domain.handover import HandedEnd, job_id_of
from ksana.domain.tasks import rescue
from ksana.domain.tasks.changes import make_ready
from ksana.domain.tasks.records import (
    NODE_PLACE,
    Definition,
    NodeSpec,
    Options,
    RetryPolicy,
    Run,
    Task,
)
from ksana.engine.tasks import node_runs
from ksana.engine.tasks.claimer import claim_ready
from ksana.engine.tasks.run_writer import write_changes
from ksana.ports.tasks.runs import RunFilter
from ksana.service.tasks.explain import explain_run
from tests.engine.tasks_world import World, data_of, every, once, task_of

pytestmark = pytest.mark.spec("B5")

SPEC = NodeSpec("echo", (("zone", "a"),), 7, 30 * SECOND, 20 * SECOND)


def node_task(world: World, **members: Any) -> Definition:
    """A task whose one slot is a second ahead."""
    options = members.pop("options", Options(type="node", node=SPEC))
    schedule = members.pop("schedule", once(world.clock.now() + SECOND))
    return task_of(schedule, url="", options=options, **{"timeout_us": HOUR, **members})


async def fire(world: World, **members: Any) -> tuple[Task, Run]:
    """Make such a task and let it fire."""
    task = await world.add(node_task(world, **members))
    await world.clock.advance(SECOND)
    return task, (await world.all_runs(task))[-1]


async def end(world: World, run: Run, end: HandedEnd) -> Run:
    """The node job of a run's present attempt ends."""
    world.nodes.end(job_id_of(run.uid, run.attempt), end)
    await world.clock.advance(SECOND)
    return await find(world, run)


async def find(world: World, run: Run) -> Run:
    return (await world.runs.get(run.id)).run


async def test_a_slot_submits_a_node_job_and_its_outcome_ends_the_run(world: World) -> None:
    body = '{"run":"{{run_uid}}","try":"{{attempt}}"}'
    _, run = await fire(world, body=body)
    assert run.status == "RUNNING"
    assert run.held_by is not None
    [order] = world.nodes.orders
    assert order.job_id == job_id_of(run.uid, 1)
    assert order.request_id == f"run:{run.uid}:1"
    assert (order.model, order.labels, order.priority) == ("echo", (("zone", "a"),), 7)
    assert (order.wait_us, order.timeout_us) == (30 * SECOND, 20 * SECOND)
    assert order.trace_id == run.trace_id
    assert order.payload_json == f'{{"run":"{run.uid}","try":"1"}}'
    assert world.caller.sent == []
    ended = await end(world, run, HandedEnd("done", result='{"text":"hi"}'))
    assert (ended.status, ended.reason) == ("SUCCESS", "JOB_DONE")
    assert (ended.response_body, ended.request_body) == ('{"text":"hi"}', order.payload_json)
    [attempt] = msgspec.json.decode(ended.attempts)
    assert (attempt["job_id"], attempt["instance"]) == (order.job_id, run.held_by)


@pytest.mark.parametrize(
    ("told", "status", "reason"),
    [
        (HandedEnd("failed", "OUT_OF_MEMORY: no room"), "FAILED", "NO_RETRIES"),
        (HandedEnd("timeout", "NO_RESULT: late"), "TIMEOUT", "NO_RETRIES"),
        (HandedEnd("lost", "gone"), "FAILED", "NO_RETRIES"),
        (HandedEnd("canceled", "by hand"), "CANCELED", "JOB_CANCELED"),
    ],
)
async def test_what_the_end_of_the_job_means_for_the_run(
    world: World, told: HandedEnd, status: str, reason: str
) -> None:
    _, run = await fire(world)
    ended = await end(world, run, told)
    assert (ended.status, ended.reason, ended.error_message) == (status, reason, told.error)


@pytest.mark.spec("C14")
async def test_a_failed_job_is_submitted_again_as_a_new_one(world: World) -> None:
    _, run = await fire(world, retry=RetryPolicy(max_retries=1, initial_delay_us=5 * SECOND))
    retrying = await end(world, run, HandedEnd("failed", "no"))
    assert retrying.status == "RETRYING"
    await world.clock.advance(6 * SECOND)
    second = await find(world, run)
    assert (second.status, second.attempt) == ("RUNNING", 2)
    assert [order.job_id for order in world.nodes.orders] == [
        job_id_of(run.uid, 1),
        job_id_of(run.uid, 2),
    ]
    assert (await end(world, second, HandedEnd("done", result="1"))).status == "SUCCESS"


@pytest.mark.parametrize("trouble", ["no node", "away"])
async def test_a_job_that_cannot_be_submitted_is_a_failed_attempt(
    world: World, trouble: str
) -> None:
    world.nodes.has_node, world.nodes.is_away = trouble != "no node", trouble == "away"
    _, run = await fire(world, retry=RetryPolicy(max_retries=1, initial_delay_us=5 * SECOND))
    assert run.status == "RETRYING"
    code = "NO_AVAILABLE_NODE" if trouble == "no node" else "SCHEDULER_DEPENDENCY_DOWN"
    assert (run.error_message or "").startswith(code)
    world.nodes.has_node, world.nodes.is_away = True, False
    await world.clock.advance(6 * SECOND)
    second = await find(world, run)
    assert (await end(world, second, HandedEnd("done"))).status == "SUCCESS"


@pytest.mark.spec("C6")
async def test_cancelling_the_run_cancels_its_job(world: World) -> None:
    _, run = await fire(world)
    await world.runs.cancel(run.id)
    await world.clock.advance(SECOND)
    assert world.nodes.canceled == [job_id_of(run.uid, 1)]
    assert (await find(world, run)).status == "CANCELED"
    assert len(await world.events("RUN_RESULT_REFUSED")) == 1
    assert world.node_runs.known_runs() == set()


@pytest.mark.spec("C6")
async def test_a_cancel_made_elsewhere_is_found_in_the_store(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, run = await fire(world)
    monkeypatch.setattr(world, "canceled", lambda run_id: None)  # nobody tells us
    await world.runs.cancel(run.id)
    await world.clock.advance(SECOND)
    assert world.nodes.canceled == [job_id_of(run.uid, 1)]


async def test_a_run_whose_time_is_over_times_out_and_cancels_its_job(world: World) -> None:
    _, run = await fire(world, timeout_us=MINUTE)
    await world.clock.advance(MINUTE + SECOND)
    ended = await find(world, run)
    assert (ended.status, ended.error_message) == ("TIMEOUT", "the job did not end in time")
    assert world.nodes.canceled == [job_id_of(run.uid, 1)]


async def test_a_job_that_is_lost_ends_its_run_soon(world: World) -> None:
    _, run = await fire(world)
    world.nodes.here.clear()
    world.nodes.jobs.clear()
    await world.clock.advance(10 * SECOND)
    ended = await find(world, run)
    assert (ended.status, ended.reason) == ("FAILED", "NO_RETRIES")
    assert ended.error_message == "the job is gone, and nobody knows what came of it"


async def test_while_nobody_can_be_asked_the_run_waits_until_its_time_is_over(
    world: World,
) -> None:
    _, run = await fire(world, timeout_us=MINUTE)
    world.nodes.here.clear()
    world.nodes.is_away = True
    await world.clock.advance(50 * SECOND)
    assert (await find(world, run)).status == "RUNNING"
    await world.clock.advance(11 * SECOND)
    assert (await find(world, run)).status == "TIMEOUT"


async def test_a_job_that_another_instance_is_in_charge_of_is_asked_for(world: World) -> None:
    _, run = await fire(world)
    world.nodes.here.clear()  # it was adopted
    await world.clock.advance(10 * SECOND)
    assert (await find(world, run)).status == "RUNNING"
    ended = await end(world, run, HandedEnd("done", result="2"))
    await world.clock.advance(SECOND)
    ended = await find(world, run)
    assert (ended.status, ended.response_body) == ("SUCCESS", "2")


@pytest.mark.fault("F40")
@pytest.mark.spec("C19")
@pytest.mark.parametrize("when", ["before the submit", "while it runs", "after its end"])
async def test_the_next_instance_takes_the_same_job_up(
    world: World, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if when == "before the submit":

        async def never(order: Any) -> None:
            await world.clock.sleep_until(world.clock.now() + HOUR)

        monkeypatch.setattr(world.nodes, "submit", never)
    _, run = await fire(world)
    assert run.status == "RUNNING"
    await world.die()
    monkeypatch.undo()
    job_id = job_id_of(run.uid, 1)
    if when == "after its end":
        world.nodes.end(job_id, HandedEnd("done", result="7"))
    await world.revive()
    await world.clock.advance(20 * SECOND)
    taken = await find(world, run)
    if when != "after its end":
        assert (taken.status, taken.attempt) == ("RUNNING", 1)
        world.nodes.end(job_id, HandedEnd("done", result="7"))
        await world.clock.advance(2 * SECOND)
    ended = await find(world, run)
    assert (ended.status, ended.response_body, ended.attempt) == ("SUCCESS", "7", 1)
    assert [order.job_id for order in world.nodes.orders] == [job_id]
    [told] = await world.events("RUN_RETRYING")
    assert data_of(told)["reason"] == "NODE_JOB_TAKEN_UP"


async def take_up(world: World, run: Run, by: str, *, is_claimed: bool = True) -> None:
    """Our run is taken from us, because we seemed dead, and claimed by an instance."""

    def work(tx: Any) -> None:
        held, task = tx.runs.find(run.id), tx.tasks.find(run.task_id)
        change = rescue.rescue_orphan(held, task, None, tx.now, 71, keeps_jobs=True)
        write_changes(tx, [change])
        write_changes(tx, [make_ready(tx.runs.find(run.id))])
        if is_claimed:
            [claimed], _ = claim_ready(tx, NODE_PLACE, by, [72], 0)
            assert claimed.attempt == run.attempt, "the same job"

    await world.store.transact(work)


@pytest.mark.spec("C19", "C20")
async def test_who_was_frozen_leaves_the_job_to_the_instance_that_took_its_run_up(
    world: World,
) -> None:
    _, run = await fire(world)
    world.generation += 1
    await take_up(world, run, "two-1")
    await world.clock.advance(2 * SECOND)
    assert world.nodes.canceled == []
    assert world.node_runs.known_runs() == set(), "we do not wait for it any more"
    after = await find(world, run)
    assert (after.status, after.held_by, after.attempt) == ("RUNNING", "two-1", 1)


@pytest.mark.spec("C19", "C20")
async def test_who_was_frozen_beyond_the_time_of_a_run_does_not_end_the_job_of_another(
    world: World,
) -> None:
    _, run = await fire(world, timeout_us=10 * SECOND)
    world.generation += 1
    world.clock.step(9 * SECOND)
    await take_up(world, run, "two-1")
    world.clock.step(SECOND)
    await world.clock.settle()
    assert world.node_runs.known_runs() == set()
    assert world.nodes.canceled == []


@pytest.mark.spec("C19", "C20")
async def test_who_was_frozen_may_take_its_own_run_up_again(world: World) -> None:
    _, run = await fire(world)
    world.generation += 1
    await take_up(world, run, "one-1", is_claimed=False)
    world.node_runs.ready()
    await world.clock.advance(2 * SECOND)
    assert (world.nodes.canceled, world.node_runs.known_runs()) == ([], {run.id})
    assert (await end(world, run, HandedEnd("done"))).status == "SUCCESS", "it hears of the end"


@pytest.mark.spec("C19")
@pytest.mark.parametrize(
    ("retries", "on_orphan", "is_durable", "expected"),
    [
        (1, "retry", False, ("RUNNING", 2, "ORPHANED_RETRY_LEFT")),
        (0, "retry", False, ("FAILED", 1, "ORPHANED_NO_RETRY_LEFT")),
        (1, "fail", True, ("FAILED", 1, "ORPHANED_ON_ORPHAN_FAIL")),
    ],
)
async def test_where_the_job_is_lost_with_its_instance_the_retries_decide(
    world: World, retries: int, on_orphan: Any, is_durable: bool, expected: tuple[str, int, str]
) -> None:
    world.nodes.is_durable = is_durable
    options = Options(type="node", node=SPEC, on_orphan=on_orphan)
    _, run = await fire(world, options=options, retry=RetryPolicy(max_retries=retries))
    await world.die()
    await world.revive()
    await world.clock.advance(20 * SECOND)
    after = await find(world, run)
    status, attempt, reason = expected
    assert (after.status, after.attempt) == (status, attempt)
    told = [*await world.events("RUN_RETRYING"), *await world.events("RUN_FAILED")]
    assert [data_of(event)["reason"] for event in told] == [reason]
    [lost] = msgspec.json.decode(after.attempts)
    assert lost["status"] == "LOST"


@pytest.mark.spec("C11")
@pytest.mark.parametrize("policy", ["QUEUE", "SKIP", "PARALLEL"])
async def test_overlap_counts_runs_that_wait_for_their_node_job(world: World, policy: Any) -> None:
    options = Options(type="node", node=SPEC, max_queued=1)
    definition = node_task(
        world, schedule=every(world, 10), concurrency_policy=policy, options=options
    )
    task = await world.add(definition)
    await world.clock.advance(30 * SECOND)
    states = [run.status for run in await world.all_runs(task)]
    expected = {
        "QUEUE": ["RUNNING", "SCHEDULED", "SKIPPED"],
        "SKIP": ["RUNNING", "SKIPPED", "SKIPPED"],
        "PARALLEL": ["RUNNING", "RUNNING", "RUNNING"],
    }
    assert states == expected[policy]
    assert len(world.nodes.orders) == states.count("RUNNING")


async def test_more_than_one_instance_waits_for_stay_in_the_store(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_runs, "MOST", 3)
    at = world.clock.now() + SECOND
    for number in range(5):
        await world.add(node_task(world, schedule=once(at), name=f"t{number}"))
    await world.clock.advance(2 * SECOND)
    runs = (await world.runs.list_page(RunFilter(), page_size=50)).runs
    assert sorted(run.status for run in runs) == ["RUNNING"] * 3 + ["SCHEDULED"] * 2
    for order in list(world.nodes.orders):
        world.nodes.end(order.job_id, HandedEnd("done"))
    await world.clock.advance(SECOND)
    runs = (await world.runs.list_page(RunFilter(), page_size=50)).runs
    assert sorted(run.status for run in runs) == ["RUNNING"] * 2 + ["SUCCESS"] * 3


@pytest.mark.spec("X14")
async def test_a_shutdown_waits_for_node_jobs_and_leaves_the_rest_to_others(world: World) -> None:
    _, run = await fire(world)
    draining = asyncio.ensure_future(world.node_runs.drain())
    await world.clock.advance(SECOND)
    assert not draining.done()
    world.nodes.end(job_id_of(run.uid, 1), HandedEnd("done"))
    await world.clock.advance(SECOND)
    assert draining.done()
    assert (await find(world, run)).status == "SUCCESS"


async def test_a_run_made_before_the_type_changed_fails_with_the_reason(world: World) -> None:
    world.node_runs.close()
    task, run = await fire(world)
    assert run.status == "SCHEDULED"
    await world.tasks.change(task.id, lambda old, now: task_of(once(now + HOUR)))
    await world.die()
    await world.revive()
    await world.clock.advance(SECOND)
    ended = await find(world, run)
    assert (ended.status, ended.error_message) == (
        "FAILED",
        "the task is of type http since this run was made",
    )


async def test_explain_tells_who_waits_for_which_job(world: World) -> None:
    _, run = await fire(world)
    insight = await world.store.read(explain_run, run.id, world.queue_runs.jobs)
    waits_for = insight.why.waits_for
    assert waits_for is not None
    assert (waits_for.what, waits_for.job_id) == ("job", job_id_of(run.uid, 1))
    assert waits_for.instance == run.held_by
    assert insight.why.reasons[-1].code == "WAITS_FOR_NODE_JOB"
