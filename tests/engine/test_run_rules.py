"""Runs at the service: started by hand, cancelled, run again, and replayed as dead letters."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ksana.base.clock import VirtualClock
from ksana.base.errors import ConflictError, InvalidError, NotFoundError
from ksana.base.instant import HOUR
from ksana.domain.dead_letters import LetterFilter, LetterRecord
from ksana.domain.handover import job_id_of
from ksana.domain.tasks.records import NewRun, Options, QueueSpec, Run, Task
from ksana.engine.tasks.run_writer import write_runs
from ksana.engine.tasks.task_secrets import CLEAR, TaskSecrets
from ksana.ports.tasks.runs import RunFilter
from ksana.service.core.dead_letters import Operator, ReplayedLetter
from ksana.service.tasks.dead_letters import make_section
from ksana.service.tasks.runs import RunService, RunView
from ksana.service.tasks.triggers import Started
from tests.engine.task_services import HOST, Box, Services, open_services
from tests.engine.tasks_world import cron, task_of

HOURLY = cron("0 0 * * * *")


@pytest.fixture
async def services(tmp_path: Path, clock: VirtualClock) -> AsyncIterator[Services]:
    async with open_services(tmp_path, clock) as services:
        yield services


def facts_of(run: Run) -> dict[str, Any]:
    """What was decided when the run was made."""
    names = ("status", "trigger", "reason", "exec_type", "is_counted", "ready_host", "retry_of")
    return {name: getattr(run, name) for name in names}


# Started by hand


@pytest.mark.spec("C4")
async def test_a_run_by_hand_starts_at_once_where_there_is_room(services: Services) -> None:
    task = await services.add(task_of(HOURLY))
    started = await services.tasks.trigger(task.id, override_body="mine", trace_id="trace")
    run = await services.find_run(started.run_id)
    assert started == Started(run.id, run.uid, HOST, True)
    assert services.store.found[0] == ("task", task.id, "locked")
    assert services.hints.take() == [("ready", HOST)]
    assert facts_of(run) == {
        "status": "SCHEDULED",
        "trigger": "manual",
        "reason": "BELOW_LIMIT",
        "exec_type": "SYNC",
        "is_counted": True,
        "ready_host": HOST,
        "retry_of": None,
    }
    assert (run.slot_at, run.scheduled_time, run.trace_id) == (None, services.now, "trace")
    assert (run.override_body, run.callback_hash) == ("mine", None)
    assert (await services.events("RUN_SCHEDULED"))[0][1] == str(run.id)


@pytest.mark.spec("C4", "C11")
async def test_a_run_by_hand_waits_behind_one_that_is_active(services: Services) -> None:
    task = await services.add(task_of(HOURLY))
    await services.tasks.trigger(task.id)
    services.hints.take()
    started = await services.tasks.trigger(task.id)
    run = await services.find_run(started.run_id)
    assert (started.is_ready, services.hints.take()) == (False, [])
    assert (run.reason, run.ready_host) == ("QUEUED_BEHIND_ACTIVE", None)
    assert len(run.trace_id) == 32


@pytest.mark.spec("C4", "C11")
@pytest.mark.parametrize(
    ("policy", "before", "reason", "counts", "words"),
    [
        ("SKIP", 1, "CONCURRENCY_LIMIT", {"active": 1, "waiting": 0}, "1 of 1 runs are active"),
        ("QUEUE", 3, "QUEUE_FULL", {"active": 1, "waiting": 2}, "2 runs wait already, 2 may"),
    ],
)
async def test_a_run_by_hand_that_the_limit_refuses_is_recorded(
    services: Services,
    policy: Any,
    before: int,
    reason: str,
    counts: dict[str, int],
    words: str,
) -> None:
    options = Options(max_queued=2)
    task = await services.add(task_of(HOURLY, concurrency_policy=policy, options=options))
    for _ in range(before):
        await services.tasks.trigger(task.id)
    services.hints.take()
    with pytest.raises(ConflictError) as refused:
        await services.tasks.trigger(task.id)
    assert (refused.value.code, refused.value.extra["current"]) == (reason, counts)
    assert str(refused.value).startswith(words)
    data = {"reason": reason, **counts, "max_concurrency": 1, "max_queued": 2, "policy": policy}
    event = ("TASK", str(task.id), "TRIGGER_REFUSED", data)
    assert await services.events("TRIGGER_REFUSED") == [event]
    assert services.hints.take() == []
    assert len(await services.list_runs(task)) == before


@pytest.mark.spec("C4")
async def test_one_run_may_be_asynchronous_where_a_target_is_called(services: Services) -> None:
    task = await services.add(task_of(HOURLY))
    started = await services.tasks.trigger(task.id, force_async=True)
    run = await services.find_run(started.run_id)
    assert run.exec_type == "ASYNC"
    assert CLEAR.find_token(run.uid, run.callback_hash or "")
    spec = Options(type="queue", queue=QueueSpec("etl", "nightly"))
    queued = await services.add(task_of(HOURLY, "queued", "", options=spec))
    assert (await services.tasks.trigger(queued.id)).host == "@queue"
    with pytest.raises(InvalidError) as refused:
        await services.tasks.trigger(queued.id, force_async=True)
    assert refused.value.field == "force_async"


@pytest.mark.spec("X2")
async def test_a_body_for_one_run_is_sealed_where_the_tasks_own_is_secret(
    tmp_path: Path, clock: VirtualClock
) -> None:
    async with open_services(tmp_path, clock, TaskSecrets(Box("one"))) as services:
        task = await services.add(task_of(HOURLY, body="x", options=Options(secret_body=True)))
        started = await services.tasks.trigger(task.id, override_body="mine")
        run = await services.find_run(started.run_id)
        assert run.override_body == Box("one").seal("mine", "")


@pytest.mark.spec("T3")
async def test_a_run_now_starts_beside_whatever_runs_and_is_not_counted(
    services: Services,
) -> None:
    task = await services.add(task_of(HOURLY, exec_type="ASYNC"))
    await services.tasks.trigger(task.id)
    services.hints.take()
    started = await services.tasks.run_now(task.id)
    run = await services.find_run(started.run_id)
    assert started == Started(run.id, run.uid, HOST, True)
    assert services.hints.take() == [("ready", HOST)]
    assert facts_of(run) == {
        "status": "SCHEDULED",
        "trigger": "manual",
        "reason": "RUN_NOW",
        "exec_type": "ASYNC",
        "is_counted": False,
        "ready_host": HOST,
        "retry_of": None,
    }
    assert run.override_body is None
    assert len(run.trace_id) == 32
    named = await services.tasks.run_now(task.job_id, trace_id="trace")
    assert (await services.find_run(named.run_id)).trace_id == "trace"


async def test_nothing_is_started_of_a_task_that_is_gone(services: Services) -> None:
    task = await services.add(task_of(HOURLY))
    await services.tasks.delete(task.id)
    for ref in (task.id, task.job_id, 99, "nobody"):
        with pytest.raises(NotFoundError):
            await services.tasks.trigger(ref)
        with pytest.raises(NotFoundError):
            await services.tasks.run_now(ref)
    assert await services.list_runs(task) == []


# Read


@pytest.mark.spec("C5")
async def test_a_run_is_read_by_either_id_with_its_task_and_callbacks(services: Services) -> None:
    task = await services.add(task_of(HOURLY))
    started = await services.tasks.trigger(task.id)
    run = await services.find_run(started.run_id)
    assert await services.runs.get(run.id) == RunView(run, task, [])
    assert await services.runs.get(run.uid) == RunView(run, task, [])
    for ref in (99, "f" * 32):
        with pytest.raises(NotFoundError):
            await services.runs.get(ref)
    page = await services.runs.list_page(RunFilter(task_id=task.id))
    assert (page.runs, page.total.count, page.tasks) == ([run], 1, {task.id: task})


# Cancelled


@pytest.mark.spec("C6")
async def test_a_cancelled_run_makes_room_for_the_next(services: Services) -> None:
    task = await services.add(task_of(HOURLY))
    first = await services.tasks.trigger(task.id)
    second = await services.tasks.trigger(task.id)
    await services.start(first.run_id)
    services.hints.take()
    canceled = await services.runs.cancel(first.uid)
    assert (canceled.id, canceled.status) == (first.run_id, "CANCELED")
    assert (canceled.reason, canceled.end_time) == ("CANCELED_BY_CALLER", services.now)
    assert canceled == await services.find_run(first.run_id)
    assert services.hints.take() == [("canceled", first.run_id), ("ready", HOST)]
    assert (await services.find_run(second.run_id)).ready_host == HOST


@pytest.mark.spec("C6")
async def test_who_cancels_locks_the_task_and_then_the_run(services: Services) -> None:
    task = await services.add(task_of(HOURLY))
    started = await services.tasks.run_now(task.id)
    await services.runs.cancel(started.run_id)
    assert services.store.found[:3] == [
        ("run", started.run_id, "read"),
        ("task", task.id, "locked"),
        ("run", started.run_id, "locked"),
    ]


@pytest.mark.spec("C6")
async def test_a_run_that_is_over_or_was_changed_meanwhile_is_not_cancelled(
    services: Services,
) -> None:
    task = await services.add(task_of(HOURLY))
    started = await services.tasks.trigger(task.id)
    services.store.loses = "move"
    with pytest.raises(ConflictError) as refused:
        await services.runs.cancel(started.run_id)
    assert refused.value.extra["current"] == {"status": "SCHEDULED"}
    services.store.loses = None
    await services.end(started.run_id)
    services.hints.take()
    with pytest.raises(ConflictError) as refused:
        await services.runs.cancel(started.run_id)
    assert (refused.value.code, refused.value.extra["current"]) == (
        "ILLEGAL_TRANSITION",
        {"status": "SUCCESS"},
    )
    assert services.hints.take() == []


class Jobs:
    """Queue jobs of which only the end is asked for."""

    def __init__(self) -> None:
        self.canceled: list[tuple[str, str]] = []

    def cancel(self, tx: Any, job_id: str, reason: str) -> None:
        self.canceled.append((job_id, reason))


@pytest.mark.spec("B5", "C6")
async def test_the_job_that_a_cancelled_run_waits_for_is_cancelled_too(services: Services) -> None:
    jobs = Jobs()
    runs = RunService(services.store, services.hints, jobs)  # type: ignore[arg-type]
    spec = Options(type="queue", queue=QueueSpec("etl", "nightly"))
    task = await services.add(task_of(HOURLY, url="", options=spec))
    waits = NewRun(
        uid="f" * 32,
        task_id=task.id,
        slot_at=None,
        scheduled_time=services.now,
        status="RUNNING",
        trigger="manual",
        exec_type="SYNC",
        is_counted=True,
        host="@queue",
        is_ready=False,
        held_by=None,
        token=1,
        reason="BELOW_LIMIT",
        trace_id="t",
    )
    [run_id] = await services.plain_store.transact(write_runs, [waits])
    await runs.cancel(run_id)
    assert jobs.canceled == [(job_id_of("f" * 32, 1), f"run {run_id} was cancelled")]
    other = await services.tasks.trigger(task.id)  # no job was made for it yet
    await runs.cancel(other.run_id)
    assert len(jobs.canceled) == 1


# Run again


@pytest.mark.spec("C6")
async def test_a_finished_run_is_run_again_as_a_run_of_its_own(services: Services) -> None:
    task = await services.add(task_of(HOURLY))
    started = await services.tasks.trigger(task.id, override_body="mine", force_async=True)
    with pytest.raises(ConflictError) as refused:
        await services.runs.retry(started.run_id)
    assert refused.value.extra["current"] == {"status": "SCHEDULED"}
    await services.end(started.run_id)
    services.hints.take()
    again = await services.runs.retry(started.uid)
    assert services.store.found[1] == ("task", task.id, "locked")
    run = await services.find_run(again.run_id)
    assert again == Started(run.id, run.uid, HOST, True)
    assert services.hints.take() == [("ready", HOST)]
    assert facts_of(run) == {
        "status": "SCHEDULED",
        "trigger": "retry",
        "reason": "RETRIED_BY_CALLER",
        "exec_type": "ASYNC",
        "is_counted": True,
        "ready_host": HOST,
        "retry_of": started.run_id,
    }
    assert run.override_body == "mine"
    assert await services.events("RUN_REPLAYED") == []  # it was no dead letter


async def fail(services: Services, task: Task) -> int:
    """A run that failed for good."""
    started = await services.tasks.trigger(task.id)
    await services.end(started.run_id, "FAILED", error="no disk")
    return started.run_id


async def list_letters(services: Services) -> list[LetterRecord]:
    """The dead letters of tasks, oldest first."""
    found = await services.store.read(
        lambda tx: tx.dead_letters.list_letters("tasks", LetterFilter(), None, 10)
    )
    return list(reversed(found))


@pytest.mark.spec("B12")
async def test_a_dead_letter_that_is_run_again_is_settled(services: Services) -> None:
    task = await services.add(task_of(HOURLY))
    run_id = await fail(services, task)
    assert [letter.entity_id for letter in await list_letters(services)] == [str(run_id)]
    again = await services.runs.retry(run_id)
    assert await list_letters(services) == []
    data = {"task_id": task.id, "as": again.run_id, "actor": None}
    assert await services.events("RUN_REPLAYED") == [("RUN", str(run_id), "RUN_REPLAYED", data)]


@pytest.mark.spec("B12")
async def test_dead_letters_are_replayed_each_with_its_own_outcome(services: Services) -> None:
    section = make_section(services.hints)
    assert (section.surface, section.entity_type) == ("tasks", "RUN")
    assert section.dismissed == "RUN_DISMISSED"
    living = await services.add(task_of(HOURLY, "living"))
    deleted = await services.add(task_of(HOURLY, "deleted"))
    runs = [await fail(services, task) for task in (deleted, living)]
    await services.tasks.delete(deleted.id)
    first, second = await list_letters(services)
    gone = msgspec.structs.replace(second, id=99, entity_id="99")
    services.clock._move_to(services.clock.monotonic() + HOUR)
    outcomes = await services.store.transact(
        section.replay, [first, second, gone], Operator("ann", "r1")
    )
    newest = (await services.list_runs(living))[-1]
    assert isinstance(outcomes[0], NotFoundError)
    assert outcomes[1] == ReplayedLetter(str(newest.id), HOST)
    assert isinstance(outcomes[2], NotFoundError)
    assert (newest.retry_of, newest.trigger) == (runs[1], "retry")
    data = {"task_id": living.id, "as": newest.id, "actor": "ann"}
    assert await services.events("RUN_REPLAYED") == [("RUN", str(runs[1]), "RUN_REPLAYED", data)]
    services.hints.take()
    section.notify(["a", "b", "a"])
    assert sorted(services.hints.take()) == [("ready", "a"), ("ready", "b")]
