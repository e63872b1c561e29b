"""Tasks changed, paused and deleted at the service: what is stored, what is recorded, and what the
engine is told."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ksana.base.clock import VirtualClock
from ksana.base.errors import ConflictError, NotFoundError
from ksana.base.instant import HOUR, MINUTE, SECOND, Instant, format_instant
from ksana.domain.schedule import Once
from ksana.domain.tasks.records import Definition, Options, Run, Task
from ksana.ports.tasks.tables import Advance
from ksana.service.tasks import definitions
from ksana.service.tasks.definitions import NewTask
from tests.engine.task_services import Services, open_services
from tests.engine.tasks_world import cron, once, task_of

HOURLY = cron("0 0 * * * *")
DAILY = cron("0 0 0 * * *")


@pytest.fixture
async def services(tmp_path: Path, clock: VirtualClock) -> AsyncIterator[Services]:
    async with open_services(tmp_path, clock) as services:
        yield services


def with_members(**members: Any) -> Callable[[Task, Instant], Definition]:
    """A change of some members of the definition."""

    def make(task: Task, now: Instant) -> Definition:
        return msgspec.structs.replace(task.definition, **members)

    return make


async def note_fired(services: Services, task: Task, **members: Any) -> Task:
    """The task as it is after runs of it have started."""
    given = {"next_slot_at": task.next_slot_at, "fire_at": task.fire_at, "started": 3}
    advance = Advance(task, **given | {"last_status": "success"} | members)
    await services.plain_store.transact(lambda tx: tx.task_due.advance_unchanged([advance]))
    return await services.tasks.get(task.id)


def shown(schedule: Any) -> Any:
    return msgspec.json.decode(msgspec.json.encode(schedule))


async def list_skipped(services: Services, task: Task) -> list[tuple[Instant | None, str | None]]:
    """(slot, reason) of the slots that were recorded as skipped."""
    runs = await services.list_runs(task)
    assert {run.status for run in runs} <= {"SKIPPED"}
    return [(run.slot_at, run.reason) for run in runs]


# Changing


@pytest.mark.spec("C3")
async def test_a_change_of_what_is_not_the_schedule_leaves_the_slot_alone(
    services: Services,
) -> None:
    task = await note_fired(services, await services.add(task_of(HOURLY)))
    await services.clock.advance(HOUR + MINUTE)  # its slot is due, and not fired yet
    changed = await services.tasks.change(task.id, with_members(description="new"), version=1)
    assert changed == msgspec.structs.replace(
        task,
        definition=msgspec.structs.replace(task.definition, description="new"),
        version=2,
        updated_at=services.now,
    )
    assert (changed.runs_fired, changed.last_status) == (3, "success")
    assert services.hints.take() == [("due", task.fire_at)]
    assert await services.list_runs(task) == []
    data = {"version": 2, "status": "ENABLED", "schedule": shown(HOURLY)}
    assert await services.events("TASK_CHANGED") == [("TASK", "1", "TASK_CHANGED", data)]


@pytest.mark.spec("C3")
async def test_another_schedule_begins_anew_and_slots_that_were_due_are_recorded(
    services: Services,
) -> None:
    task = await note_fired(services, await services.add(task_of(HOURLY)))
    await services.clock.advance(HOUR + SECOND)
    changed = await services.tasks.change(task.id, with_members(schedule=DAILY))
    tomorrow = services.now - HOUR - SECOND + 24 * HOUR
    assert (changed.next_slot_at, changed.fire_at) == (tomorrow, tomorrow)
    assert (changed.runs_fired, changed.last_status) == (0, "success")
    assert await list_skipped(services, task) == [(task.next_slot_at, "SCHEDULE_CHANGED")]
    data = {
        "version": 2,
        "status": "ENABLED",
        "schedule": shown(DAILY),
        "schedule_was": shown(HOURLY),
    }
    assert await services.events("TASK_CHANGED") == [("TASK", "1", "TASK_CHANGED", data)]
    assert await services.events("TASK_MISSED") == []


@pytest.mark.spec("T6")
async def test_a_change_to_an_instant_that_is_past_is_recorded_as_missed(
    services: Services,
) -> None:
    task = await note_fired(services, await services.add(task_of(HOURLY)))
    at = services.now - MINUTE
    changed = await services.tasks.change(task.id, with_members(schedule=Once(at)))
    assert (changed.next_slot_at, changed.last_status) == (None, "missed")
    [(_, _, _, data)] = await services.events("TASK_MISSED")
    assert data["slot"] == format_instant(at)


@pytest.mark.spec("C3")
@pytest.mark.parametrize(
    ("before", "after", "max_runs", "last_status", "reason"),
    [
        ("ENABLED", "DISABLED", None, "paused", "TASK_DISABLED"),
        ("ENABLED", "ENABLED", 9, "", "SCHEDULE_CHANGED"),
        ("ENABLED", None, 9, "", "SCHEDULE_CHANGED"),
        ("DISABLED", "ENABLED", None, "", None),
        ("DISABLED", "DISABLED", 9, "", None),
    ],
)
async def test_a_change_of_status_or_of_the_number_of_runs_arms_from_now_on(
    services: Services,
    before: Any,
    after: str | None,
    max_runs: int | None,
    last_status: str,
    reason: str | None,
) -> None:
    task = await services.add(task_of(HOURLY), status=before)
    await services.clock.advance(HOUR + SECOND)
    change = with_members(options=Options(max_runs=max_runs))
    changed = await services.tasks.change(task.id, change, status=after)
    slot = task.created_at + 2 * HOUR
    is_enabled = (after or before) == "ENABLED"
    assert (changed.status, changed.last_status) == (after or before, last_status)
    assert (changed.next_slot_at, changed.fire_at) == (slot, slot if is_enabled else None)
    assert services.hints.take() == [("due", changed.fire_at)]
    expected = [] if reason is None else [(task.created_at + HOUR, reason)]
    assert await list_skipped(services, task) == expected


async def test_a_status_that_tasks_do_not_have_is_refused(services: Services) -> None:
    task = await services.add(task_of(HOURLY))
    with pytest.raises(ConflictError):
        await services.tasks.change(task.id, with_members(), status="ARCHIVED")


@pytest.mark.spec("C3")
async def test_a_version_that_is_not_current_is_refused(services: Services) -> None:
    task = await services.add(task_of(HOURLY))
    await services.tasks.change(task.id, with_members(description="a"), version=1)
    with pytest.raises(ConflictError) as refused:
        await services.tasks.change(task.id, with_members(description="b"), version=1)
    assert (refused.value.code, refused.value.extra) == (
        "VERSION_CONFLICT",
        {"current": {"version": 2}},
    )
    assert (await services.tasks.get(task.id)).definition.description == "a"


@pytest.mark.spec("C1")
async def test_a_task_of_c_takes_no_name_that_another_has(services: Services) -> None:
    await services.add(task_of(HOURLY, "taken"))
    task = await services.add(task_of(HOURLY))
    with pytest.raises(ConflictError) as refused:
        await services.tasks.change(task.id, with_members(name="taken"))
    assert (refused.value.code, refused.value.extra["field"]) == ("ALREADY_EXISTS", "name")
    renamed = await services.tasks.change(task.id, with_members(name="free"))
    assert renamed.definition.name == "free"
    timer = await services.tasks.create(NewTask("T", task_of(HOURLY)))
    assert (await services.tasks.change(timer.id, with_members(name="free"))).version == 2


# Pausing


@pytest.mark.spec("C3")
async def test_a_task_is_paused_and_resumed_once_each(services: Services) -> None:
    task = await services.add(task_of(HOURLY))
    await services.clock.advance(HOUR + SECOND)
    paused = await services.tasks.set_enabled(task.id, False)
    slot = task.created_at + 2 * HOUR
    assert paused == msgspec.structs.replace(
        task,
        status="DISABLED",
        version=2,
        updated_at=services.now,
        next_slot_at=slot,
        fire_at=None,
        last_status="paused",
    )
    assert await services.tasks.set_enabled(task.id, False) == paused
    skipped = [(task.next_slot_at, "TASK_DISABLED")]
    assert await list_skipped(services, task) == skipped
    resumed = await services.tasks.set_enabled(task.id, True)
    assert resumed == msgspec.structs.replace(paused, status="ENABLED", version=3, fire_at=slot)
    assert services.hints.take() == [("due", None), ("due", None), ("due", slot)]
    assert await list_skipped(services, task) == skipped
    assert [event for event in await services.events() if event[0] == "TASK"][1:] == [
        ("TASK", "1", "TASK_DISABLED", {"version": 2}),
        ("TASK", "1", "TASK_ENABLED", {"version": 3}),
    ]


Ask = Callable[[Services], Any]


@pytest.mark.spec("B2")
@pytest.mark.parametrize(
    ("kind", "ask"),
    [
        ("TASK_CHANGED", lambda s: s.tasks.change(1, with_members(description="new"))),
        ("TASK_DISABLED", lambda s: s.tasks.set_enabled(1, False)),
        ("TASK_ENABLED", lambda s: s.tasks.set_enabled(1, True)),
        ("TASK_DELETED", lambda s: s.tasks.delete(1)),
    ],
)
@pytest.mark.parametrize("schedule_in", [-HOUR, HOUR])
async def test_what_happens_to_a_task_that_had_no_slot_left_says_so(
    services: Services, kind: str, ask: Ask, schedule_in: int
) -> None:
    status: Any = "DISABLED" if kind == "TASK_ENABLED" else "ENABLED"
    is_ended = status == "ENABLED" and schedule_in < 0
    await services.add(task_of(once(services.now + schedule_in)), status=status)
    await ask(services)
    [(_, _, _, data)] = await services.events(kind)
    assert data.get("ended") is (True if is_ended else None)


@pytest.mark.parametrize(
    ("ask", "write", "code"),
    [
        (lambda s: s.tasks.change(1, with_members()), "change_if_version", "VERSION_CONFLICT"),
        (lambda s: s.tasks.set_enabled(1, False), "change_if_version", "VERSION_CONFLICT"),
        (lambda s: s.tasks.delete(1), "delete_if_living", "NOT_FOUND"),
    ],
)
async def test_who_changes_a_task_locks_it_first_and_is_told_when_another_was_faster(
    services: Services, ask: Ask, write: str, code: str
) -> None:
    task = await services.add(task_of(HOURLY))
    services.store.loses = write
    with pytest.raises((ConflictError, NotFoundError)) as refused:
        await ask(services)
    assert refused.value.code == code
    assert services.store.found[0] == ("task", task.id, "locked")
    assert len(await services.events()) == 1
    services.store.loses = None
    await ask(services)
    assert len(await services.events()) == 2


# Deleting


@pytest.mark.spec("C3")
async def test_a_deleted_task_cancels_what_waits_and_lets_finish_what_is_under_way(
    services: Services,
) -> None:
    definition = task_of(HOURLY, max_concurrency=3, exec_type="ASYNC")
    task = await services.add(definition)
    runs: dict[str, int] = {}
    for status in ("CALLBACK_PENDING", "RETRYING", "RUNNING"):
        runs[status] = (await services.tasks.trigger(task.id)).run_id
        if status == "RUNNING":
            await services.start(runs[status])
        else:
            await services.end(runs[status], status)
    runs["SCHEDULED"] = (await services.tasks.trigger(task.id)).run_id
    services.hints.take()
    await services.clock.advance(HOUR + SECOND)
    await services.tasks.delete(task.id)
    found: dict[str, Run] = {was: await services.find_run(at) for was, at in runs.items()}
    canceled = ("CANCELED", "TASK_DELETED")
    assert {was: (run.status, run.reason) for was, run in found.items()} == {
        "CALLBACK_PENDING": ("CALLBACK_PENDING", "ANSWERED_2XX"),
        "RETRYING": canceled,
        "RUNNING": ("RUNNING", "BELOW_LIMIT"),
        "SCHEDULED": canceled,
    }
    due = [run for run in await services.list_runs(task) if run.status == "SKIPPED"]
    assert [(run.slot_at, run.reason) for run in due] == [(task.next_slot_at, "TASK_DELETED")]
    event = ("TASK", "1", "TASK_DELETED", {"name": "t"})
    assert await services.events("TASK_DELETED") == [event]
    with pytest.raises(NotFoundError):
        await services.tasks.get(task.id)


@pytest.mark.spec("C3")
async def test_a_run_that_waits_behind_many_that_ended_is_cancelled_with_its_task(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(definitions, "MAX_CANCELED", 2)
    task = await services.add(task_of(HOURLY, max_concurrency=5))
    waits = (await services.tasks.trigger(task.id)).run_id
    ended = [(await services.tasks.trigger(task.id)).run_id for _ in range(2)]
    for run_id in ended:
        await services.runs.cancel(run_id)
    await services.tasks.delete(task.id)
    assert (await services.find_run(waits)).reason == "TASK_DELETED"


@pytest.mark.spec("X2")
@pytest.mark.parametrize("is_secret", [True, False])
async def test_secret_bodies_of_runs_go_with_their_task(
    services: Services, is_secret: bool
) -> None:
    options = Options(secret_body=is_secret)
    task = await services.add(task_of(HOURLY, body="x", options=options))
    started = await services.tasks.trigger(task.id, override_body="mine")
    await services.start(started.run_id)
    await services.tasks.delete(task.id)
    body = (await services.find_run(started.run_id)).override_body
    assert (body == "mine") is not is_secret
