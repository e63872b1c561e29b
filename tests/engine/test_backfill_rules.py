"""Backfills at the service, without the engine: which slots are chosen, what is written, and what
the engine is told."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ksana.base.clock import VirtualClock
from ksana.base.errors import ConflictError, InvalidError, NotFoundError
from ksana.base.instant import MINUTE, SECOND, Instant, format_instant
from ksana.domain.tasks import backfill as rules
from ksana.domain.tasks.backfill import BackfillPlan, Caps, Span
from ksana.domain.tasks.records import Definition, Options, Task
from ksana.engine.tasks.task_secrets import CLEAR
from ksana.service.tasks import backfill as service
from ksana.service.tasks.backfill import Filled
from tests.engine.task_services import HOST, Services, open_services
from tests.engine.tasks_world import cron, task_of

pytestmark = pytest.mark.spec("B7")

EDGE = 2 * SECOND
"""The grace of one-time tasks in these tests, and a second: what is newer is the scheduler's."""


@pytest.fixture
async def services(tmp_path: Path, clock: VirtualClock) -> AsyncIterator[Services]:
    async with open_services(tmp_path, clock) as services:
        yield services


async def a_task(services: Services, status: str = "DISABLED", **members: Any) -> Task:
    """A task with a slot in every second."""
    return await services.add(task_of(cron("* * * * * *"), **members), status=status)


def at(services: Services, *seconds: int) -> tuple[Instant, ...]:
    """Slots, by their seconds from the beginning of the test's day."""
    midnight = services.now - services.now % (86_400 * SECOND)
    return tuple(midnight + second * SECOND for second in seconds)


async def fill(
    services: Services, task: Task, since: Instant, until: Instant, **caps: Any
) -> Filled:
    return await services.backfills.backfill(task.id, Span(since, until), Caps(**caps))


@pytest.mark.parametrize(
    ("since_us", "until_us", "chosen"),
    [
        (0, 0, [10, 11, 12]),
        (1, 0, [11, 12]),
        (-1, 0, [10, 11, 12]),
        (0, 1, [10, 11, 12, 13]),
        (0, -1, [10, 11, 12]),
    ],
)
async def test_a_range_has_its_first_instant_and_not_its_last(
    services: Services, since_us: int, until_us: int, chosen: list[int]
) -> None:
    task = await a_task(services)
    await services.clock.advance(MINUTE)
    since, until = at(services, 10, 13)
    span = Span(since + since_us, until + until_us)
    seen = await services.backfills.preview(task.id, span, Caps(interval_us=MINUTE))
    slots = at(services, *chosen)
    starts = tuple(services.now + number * MINUTE for number in range(len(slots)))
    plan = BackfillPlan(span, slots, len(slots), 0, None)
    assert seen == Filled(task, plan, starts)
    assert await services.list_runs(task) == []


async def test_the_newest_slots_are_left_to_the_scheduler(services: Services) -> None:
    task = await a_task(services)
    await services.clock.advance(MINUTE)
    now = services.now
    seen = await services.backfills.preview(task.id, Span(now - 5 * SECOND, now), Caps())
    assert seen.plan.span == Span(now - 5 * SECOND, now - EDGE)
    assert seen.plan.slots == (now - 5 * SECOND, now - 4 * SECOND, now - 3 * SECOND)


async def test_slots_with_a_run_are_passed_over_wherever_they_lie(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "_PORTION", 3)
    task = await a_task(services)
    await services.clock.advance(MINUTE)
    for second in (10, 12, 14, 15):
        [slot] = at(services, second)
        await fill(services, task, slot, slot + 1)
    since, until = at(services, 10, 20)
    filled = await fill(services, task, since, until, count=3)
    assert filled.plan == BackfillPlan(
        Span(since, until), at(services, 11, 13, 16), 10, 4, *at(services, 17)
    )
    rest = await fill(services, task, since, until)
    assert (rest.plan.slots, rest.plan.recorded) == (at(services, 17, 18, 19), 7)
    assert rest.plan.next_from is None


async def test_so_many_slots_are_looked_at_and_where_to_go_on_is_said(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "_PORTION", 1)
    task = await a_task(services)
    await services.clock.advance(MINUTE)
    since, until = at(services, 10, 20)
    await fill(services, task, since, until)
    monkeypatch.setattr(rules, "LOOK", 4)
    seen = await services.backfills.preview(task.id, Span(since, until), Caps())
    assert seen.plan == BackfillPlan(Span(since, until), (), 10, 4, *at(services, 14))


async def test_a_range_of_ten_years_is_the_longest(services: Services) -> None:
    task = await services.add(task_of(cron("0 0 0 1 1 *")), status="DISABLED")
    longest = Span(services.now - rules.LONGEST, services.now)
    assert (await services.backfills.preview(task.id, longest, Caps())).plan.in_span == 10
    with pytest.raises(InvalidError) as refused:
        await services.backfills.preview(
            task.id, msgspec.structs.replace(longest, since=longest.since - 1), Caps()
        )
    assert refused.value.field == "from"


async def test_runs_of_a_backfill_wait_in_order_outside_of_their_tasks_line(
    services: Services,
) -> None:
    task = await a_task(services)
    await services.clock.advance(MINUTE)
    now = services.now
    since, until = at(services, 10, 13)
    filled = await fill(services, task, since, until, interval_us=10 * SECOND)
    assert filled.hosts == {HOST}
    runs = await services.list_runs(task)
    assert tuple(run.id for run in runs) == filled.run_ids
    first, *others = runs
    assert (first.ready_host, first.is_counted, first.wake_at) == (HOST, True, None)
    assert [(run.ready_host, run.is_counted, run.wake_at) for run in others] == [
        (None, False, now + 10 * SECOND),
        (None, False, now + 20 * SECOND),
    ]
    for run, slot in zip(runs, at(services, 10, 11, 12), strict=True):
        assert (run.slot_at, run.scheduled_time, run.status) == (slot, slot, "SCHEDULED")
        assert (run.trigger, run.reason, run.exec_type) == ("backfill", "BACKFILL", "SYNC")
        assert (run.trace_id, run.callback_hash, run.host) == (run.uid, None, HOST)
    assert len({run.uid for run in runs} | {run.token for run in runs}) == 6
    data = {
        "from": format_instant(since),
        "to": format_instant(until),
        "count": 3,
        "first": format_instant(at(services, 10)[0]),
        "last": format_instant(at(services, 12)[0]),
        "per_minute": 6,
    }
    event = ("TASK", str(task.id), "TASK_BACKFILLED", data)
    assert await services.events("TASK_BACKFILLED") == [event]


async def test_runs_that_wait_for_callbacks_get_tokens(services: Services) -> None:
    task = await a_task(services, exec_type="ASYNC")
    await services.clock.advance(MINUTE)
    await fill(services, task, *at(services, 10, 12))
    runs = await services.list_runs(task)
    assert len(runs) == 2
    for run in runs:
        assert CLEAR.find_token(run.uid, run.callback_hash or "")


async def test_the_engine_is_told_of_the_run_that_starts_and_of_those_that_wait(
    services: Services,
) -> None:
    task = await a_task(services, max_concurrency=5, concurrency_policy="PARALLEL")
    await services.clock.advance(MINUTE)
    since, until = at(services, 10, 12)
    await services.backfills.preview(task.id, Span(since, until), Caps())
    assert services.hints.take() == []
    await fill(services, task, since, until)
    assert services.hints.take() == [("ready", HOST), ("paced", None)]
    await fill(services, task, since, until)
    assert services.hints.take() == []
    # Another waits already, and is not due yet.
    await fill(services, task, *at(services, 20, 21))
    assert services.hints.take() == [("paced", None)]


async def test_one_run_is_let_in_at_a_time_even_where_several_are_due(services: Services) -> None:
    task = await a_task(services, max_concurrency=5, concurrency_policy="PARALLEL")
    await services.clock.advance(MINUTE)
    await fill(services, task, *at(services, 10, 12), interval_us=SECOND)
    await services.clock.advance(SECOND)
    await fill(services, task, *at(services, 20, 21), interval_us=SECOND)
    ready = [run.slot_at for run in await services.list_runs(task) if run.ready_host]
    assert tuple(ready) == at(services, 10, 11)


async def test_a_task_may_have_so_many_unfinished_runs_with_those_of_a_backfill(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rules, "MOST", 3)
    task = await a_task(services, options=Options(max_queued=9))
    await services.clock.advance(MINUTE)
    await services.tasks.run_now(task.id)
    filled = await fill(services, task, *at(services, 10, 12))
    assert len(filled.run_ids) == 2
    with pytest.raises(ConflictError) as refused:
        await fill(services, task, *at(services, 12, 13))
    assert (refused.value.code, refused.value.extra["current"]) == ("QUEUE_FULL", {"unfinished": 3})
    for _ in range(2):
        await services.tasks.run_now(task.id)
    with pytest.raises(ConflictError) as refused:
        await fill(services, task, *at(services, 12, 13))
    # Counted to one more than may be.
    assert refused.value.extra["current"] == {"unfinished": 4}
    assert len(await services.list_runs(task)) == 5


async def test_all_that_wait_are_cancelled_and_it_is_recorded_once(services: Services) -> None:
    task = await a_task(services)
    await services.clock.advance(MINUTE)
    await fill(services, task, *at(services, 10, 13))
    assert await services.backfills.cancel(task.id) == 2
    assert await services.backfills.cancel(task.id) == 0
    runs = await services.list_runs(task)
    assert [(run.status, run.reason) for run in runs] == [
        ("SCHEDULED", "BACKFILL"),
        ("CANCELED", "BACKFILL_CANCELED"),
        ("CANCELED", "BACKFILL_CANCELED"),
    ]
    event = ("TASK", str(task.id), "BACKFILL_CANCELED", {"count": 2})
    assert await services.events("BACKFILL_CANCELED") == [event]


# Enabling with a catch-up


def rename(task: Task, now: Instant) -> Definition:
    return msgspec.structs.replace(task.definition, name="renamed")


async def disable_for_ten_seconds(services: Services, more_us: int = 0) -> Task:
    """A task that was disabled at second 0; its name is changed at second 5."""
    task = await a_task(services, "ENABLED")
    await services.tasks.set_enabled(task.id, False)
    await services.clock.advance(5 * SECOND)
    task = await services.tasks.change(task.id, rename)
    await services.clock.advance(5 * SECOND + more_us)
    services.hints.take()
    return task


@pytest.mark.parametrize(
    ("more_us", "caps", "chosen", "in_span"),
    [
        (0, Caps(), range(1, 8), 7),
        (1, Caps(), range(1, 9), 8),
        (0, Caps(count=3), range(5, 8), 7),
        (0, Caps(max_age_us=5 * SECOND), range(5, 8), 3),
        (0, Caps(max_age_us=5 * SECOND - 1), range(6, 8), 2),
        (0, Caps(max_age_us=5 * SECOND + 1), range(5, 8), 3),
    ],
)
async def test_enabling_makes_up_the_newest_slots_since_the_task_was_disabled(
    services: Services, more_us: int, caps: Caps, chosen: range, in_span: int
) -> None:
    task = await disable_for_ten_seconds(services, more_us)
    seen = await services.backfills.preview_resume(task.id, caps)
    assert seen is not None
    slots = at(services, *chosen)
    assert (seen.plan.slots, seen.plan.in_span, seen.plan.recorded) == (slots, in_span, 0)
    assert seen.plan.next_from is None
    assert seen.starts == tuple(services.now + number * SECOND for number in range(len(slots)))
    filled = await services.backfills.resume(task.id, caps)
    assert filled is not None
    assert (filled.plan, filled.starts) == (seen.plan, seen.starts)
    assert (seen.task.status, filled.task.status) == ("DISABLED", "ENABLED")
    assert tuple(run.slot_at for run in await services.list_runs(task)) == slots
    [(_, _, _, data)] = await services.events("TASK_BACKFILLED")
    assert (data["count"], data["resumed"]) == (len(slots), True)


@pytest.mark.parametrize(("recorded", "left"), [((5,), (6, 7)), ((7,), (5, 6)), ((6,), (5, 7))])
async def test_enabling_makes_up_no_slot_that_has_a_run(
    services: Services, recorded: tuple[int, ...], left: tuple[int, ...]
) -> None:
    task = await disable_for_ten_seconds(services)
    for slot in at(services, *recorded):
        await fill(services, task, slot, slot + 1)
    filled = await services.backfills.resume(task.id, Caps(count=3))
    assert filled is not None
    assert (filled.plan.slots, filled.plan.recorded) == (at(services, *left), len(recorded))


async def test_the_engine_is_told_when_a_resumed_task_fires_next(services: Services) -> None:
    task = await disable_for_ten_seconds(services)
    await services.backfills.resume(task.id, Caps(count=2))
    [next_slot] = at(services, 11)
    assert services.hints.take() == [("due", next_slot), ("ready", HOST), ("paced", None)]
    assert await services.backfills.resume(task.id, Caps()) is None
    assert await services.backfills.preview_resume(task.id, Caps()) is None
    assert services.hints.take() == []


async def test_enabling_with_nothing_to_make_up_only_enables(services: Services) -> None:
    task = await a_task(services)
    filled = await services.backfills.resume(task.id, Caps())
    assert filled is not None
    assert (filled.plan.slots, filled.run_ids, filled.task.status) == ((), (), "ENABLED")
    assert services.hints.take() == [("due", filled.task.fire_at)]
    assert await services.events("TASK_BACKFILLED") == []


Ask = Callable[[Services, int], Any]


@pytest.mark.parametrize(
    "ask",
    [
        lambda s, task_id: s.backfills.backfill(task_id, Span(s.now - MINUTE, s.now), Caps()),
        lambda s, task_id: s.backfills.resume(task_id, Caps()),
        lambda s, task_id: s.backfills.cancel(task_id),
    ],
)
async def test_who_fires_past_slots_locks_the_task_first(services: Services, ask: Ask) -> None:
    task = await a_task(services)
    await ask(services, task.id)
    assert services.store.found[0] == ("task", task.id, "locked")
    with pytest.raises(NotFoundError):
        await ask(services, 99)
