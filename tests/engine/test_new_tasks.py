"""Tasks made and listed at the service: what is stored, what is recorded, and what the engine is
told."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ksana.base.clock import VirtualClock
from ksana.base.errors import ConflictError, NotFoundError
from ksana.base.instant import HOUR, SECOND, format_instant
from ksana.domain.tasks.records import Task
from ksana.ports.tasks.tables import TaskFilter
from ksana.service.core.idempotency import ReplayedAnswer, identify
from ksana.service.tasks.definitions import NewTask
from tests.engine.task_services import Services, open_services
from tests.engine.tasks_world import cron, once, task_of

HOURLY = cron("0 0 * * * *")
DAILY = cron("0 0 0 * * *")


@pytest.fixture
async def services(tmp_path: Path, clock: VirtualClock) -> AsyncIterator[Services]:
    async with open_services(tmp_path, clock) as services:
        yield services


@pytest.mark.spec("C1")
async def test_a_new_task_is_armed_recorded_and_told_of(services: Services) -> None:
    definition = task_of(HOURLY)
    task = await services.tasks.create(NewTask("C", definition, job_id="mine"))
    now = services.now
    assert task == Task(
        id=1,
        job_id="mine",
        dialect="C",
        definition=definition,
        status="ENABLED",
        version=1,
        created_at=now,
        updated_at=now,
        is_deleted=False,
        next_slot_at=now + HOUR,
        fire_at=now + HOUR,
        runs_fired=0,
        last_run_at=None,
        last_status="",
        last_error="",
    )
    assert await services.tasks.get(1) == task == await services.tasks.get("mine")
    assert services.hints.take() == [("due", now + HOUR)]
    data = {"name": "t", "job_id": "mine", "dialect": "C", "status": "ENABLED"}
    assert await services.events() == [("TASK", "1", "TASK_CREATED", data)]


@pytest.mark.spec("T1")
async def test_timers_that_come_together_are_told_of_together(services: Services) -> None:
    news = [
        NewTask("T", task_of(DAILY)),
        NewTask("T", task_of(HOURLY)),
        NewTask("T", task_of(cron("0 * * * * *")), "DISABLED"),
    ]
    tasks = await asyncio.gather(*[services.tasks.create(new) for new in news])
    assert [task.id for task in tasks] == [1, 2, 3]
    assert len({task.job_id for task in tasks}) == 3
    assert services.hints.take() == [("made", [1, 2, 3]), ("due", services.now + HOUR)]
    assert [await services.tasks.get(task.job_id) for task in tasks] == tasks
    await services.tasks.create(news[2])
    assert services.hints.take() == [("made", [4]), ("due", None)]


@pytest.mark.spec("C1", "T1")
@pytest.mark.parametrize(
    ("new", "field"),
    [
        (NewTask("C", task_of(HOURLY), job_id="other"), "name"),
        (NewTask("T", task_of(HOURLY), job_id="taken"), "id"),
        (NewTask("C", task_of(HOURLY, "free"), job_id="taken"), "id"),
    ],
)
async def test_a_name_of_c_and_a_job_id_are_given_once(
    services: Services, new: NewTask, field: str
) -> None:
    await services.add(task_of(HOURLY), job_id="taken")
    with pytest.raises(ConflictError) as refused:
        await services.tasks.create(new)
    assert (refused.value.code, refused.value.extra["field"]) == ("ALREADY_EXISTS", field)
    assert services.hints.take() == []


@pytest.mark.spec("T1")
async def test_timers_may_share_a_name_even_with_an_id_of_their_own(services: Services) -> None:
    await services.add(task_of(HOURLY))
    task = await services.tasks.create(NewTask("T", task_of(HOURLY), job_id="mine"))
    assert (task.definition.name, task.job_id) == ("t", "mine")


@pytest.mark.spec("X21")
async def test_a_timer_that_is_sent_again_with_its_key_is_made_once(services: Services) -> None:
    request = identify("make", None, "key", b"body", lambda task: task.job_id.encode())
    new = NewTask("T", task_of(HOURLY))
    task = await services.tasks.create(new, request)
    with pytest.raises(ReplayedAnswer) as replayed:
        await services.tasks.create(new, request)
    assert replayed.value.answer == task.job_id.encode()
    with pytest.raises(NotFoundError):
        await services.tasks.get(2)


@pytest.mark.spec("T6")
async def test_a_one_time_task_in_the_past_is_recorded_as_missed(services: Services) -> None:
    at = services.now - SECOND - 1
    task = await services.add(task_of(once(at)))
    assert (task.next_slot_at, task.fire_at, task.last_status) == (None, None, "missed")
    data = {"slot": format_instant(at), "reason": "PAST_WHEN_SET", "alert": True}
    assert await services.events("TASK_MISSED") == [("TASK", "1", "TASK_MISSED", data)]
    within_grace = await services.add(task_of(once(at + 1), "soon"))
    assert (within_grace.fire_at, within_grace.last_status) == (at + 1, "")
    assert len(await services.events("TASK_MISSED")) == 1


async def test_the_newest_run_comes_with_its_task(services: Services) -> None:
    task = await services.add(task_of(HOURLY))
    assert await services.tasks.get_with_last_run(task.id) == (task, None)
    await services.tasks.run_now(task.id)
    started = await services.tasks.run_now(task.id)
    newest = await services.find_run(started.run_id)
    assert await services.tasks.get_with_last_run(task.id) == (task, newest)


@pytest.mark.spec("C2", "T2")
async def test_tasks_are_listed_by_pages_and_timers_among_them(services: Services) -> None:
    tasks = [await services.add(task_of(HOURLY, f"t{number}")) for number in range(3)]
    waits = await services.add(task_of(HOURLY, "waits", exec_type="ASYNC"))
    rows, total = await services.tasks.list_page(TaskFilter(), page=2, page_size=2)
    assert (rows, total.count) == ([tasks[2], waits], 4)
    rows, _ = await services.tasks.list_page(TaskFilter(), page=1, page_size=2, after=tasks[0].id)
    assert rows == tasks[1:]
    assert await services.tasks.list_timers(tasks[0].id, 10) == tasks[1:]
