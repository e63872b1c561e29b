"""Which facts explain gathers about a task or a run, over a past in memory. What they mean in words
is the domain's: the answer must be what it says of just these facts."""

from typing import Any

import msgspec
import pytest

from ksana.base.errors import NotFoundError
from ksana.base.instant import HOUR, MINUTE, SECOND, Instant
from ksana.domain.explain import Fact
from ksana.domain.handover import HandedJob, job_id_of
from ksana.domain.schedule import Every
from ksana.domain.tasks import explain_runs, explain_tasks, resuming
from ksana.domain.tasks.explain_runs import RunFacts
from ksana.domain.tasks.explain_tasks import SlotRun, TaskFacts
from ksana.domain.tasks.firing import Counts
from ksana.domain.tasks.records import Run, Task
from ksana.service.tasks import explain as service
from ksana.service.tasks.explain import ExplainService, RunInsight, TaskInsight
from tests.unit.past_ground import Past, PastStore
from tests.unit.task_ground import a_run
from tests.unit.task_ground import a_task as make_task

pytestmark = pytest.mark.spec("B1")

MINUTELY = Every(MINUTE, 0, False)
HOURLY = Every(HOUR, 0, False)
NOW = 10 * HOUR + 30 * SECOND
SLOT = 10 * HOUR
NEXT = SLOT + MINUTE


def a_task(**members: Any) -> Task:
    given = {"next_slot_at": NEXT, "fire_at": NEXT, "version": 1, "job_id": "j7"}
    return make_task(members.pop("schedule", MINUTELY), **given | members)


def slot_run(run_id: int, slot: Instant = SLOT, **members: Any) -> Run:
    given = {"slot_at": slot, "scheduled_time": slot, "status": "SUCCESS", "held_by": None}
    return a_run(id=run_id, **given | members)


async def ask(past: Past, ref: int | str = 7, at: Instant | None = None) -> TaskInsight:
    return await ExplainService(PastStore(past)).explain_task(ref, at)  # type: ignore[arg-type]


def insight(past: Past, task: Task, at: Instant = NOW, **members: Any) -> TaskInsight:
    """What must be answered if these are the facts."""
    given: dict[str, Any] = {
        "before": (),
        "after": (),
        "slot": SLOT,
        "slot_run": None,
        "last_by_hand": None,
        "counts": Counts(),
        "outages": (),
        "is_anybody_alive": True,
        "schedule": None,
    }
    facts = TaskFacts(task=task, at=at, now=past.now, **given | members)
    run = facts.slot_run.run if facts.slot_run else None
    return TaskInsight(task, at, facts.slot, run, explain_tasks.explain_task(facts))


# Tasks


async def test_now_is_told_by_the_last_slot_its_run_and_what_is_open() -> None:
    task = a_task()
    past = Past(NOW, task)
    first = past.tell(61, SLOT, "RUN_STARTED", entity="RUN", reason="BELOW_LIMIT")
    made = past.tell(7, 0, "TASK_CREATED")
    past.tell(8, 5, "TASK_CREATED")
    past.runs.rows = [slot_run(60, SLOT - MINUTE), slot_run(61), a_run(id=62, task_id=8)]
    past.tell(60, SLOT - MINUTE, "RUN_STARTED", entity="RUN", reason="PARALLEL")
    past.tell(61, SLOT + 1, "RUN_SUCCESS", entity="RUN", reason="ANSWERED_2XX")
    past.runs.counts = {7: Counts(2, 3), 8: Counts(9, 9)}
    expected = insight(
        past,
        task,
        before=(made,),
        slot_run=SlotRun(past.runs.rows[1], first),
        counts=Counts(2, 3),
    )
    assert await ask(past) == expected
    assert await ask(past, "j7") == expected
    assert await ask(past, at=NOW) == expected


async def test_a_run_whose_events_are_gone_is_told_without_them() -> None:
    task = a_task()
    past = Past(NOW, task)
    past.runs.rows = [slot_run(61)]
    run = SlotRun(past.runs.rows[0], None)
    assert await ask(past) == insight(past, task, slot_run=run)


async def test_an_event_that_another_clock_puts_ahead_counts_now() -> None:
    task = a_task(status="DISABLED", fire_at=None)
    past = Past(NOW, task)
    past.tell(7, 0, "TASK_CREATED")
    past.tell(7, NOW + SECOND, "TASK_DISABLED")
    before = tuple(reversed([fact for _, _, fact in past.facts]))
    assert await ask(past) == insight(past, task, before=before)


@pytest.mark.parametrize("alive", [0, 1, 2])
@pytest.mark.parametrize("outage", [(), ((SLOT - 1, SLOT + 20 * SECOND),)])
async def test_a_slot_that_is_late_is_told_by_who_is_alive_and_by_outages(
    alive: int, outage: tuple[tuple[int, int], ...]
) -> None:
    task = a_task(next_slot_at=SLOT, fire_at=SLOT)
    past = Past(NOW, task)
    past.alive = alive
    past.outages = {SLOT: list(outage)}
    expected = insight(past, task, outages=outage, is_anybody_alive=alive > 0)
    assert await ask(past) == expected


async def test_a_task_without_a_slot_to_come_has_no_outage() -> None:
    task = a_task(next_slot_at=None, fire_at=None, status="DISABLED")
    past = Past(NOW, task)
    assert await ask(past) == insight(past, task)


@pytest.mark.parametrize(
    ("trigger", "newest", "has_slot_run", "is_told"),
    [
        ("manual", 62, True, True),
        ("retry", 62, True, True),
        ("manual", 62, False, True),
        ("manual", 59, True, False),
        ("catchup", 62, True, False),
    ],
)
async def test_the_newest_run_is_told_if_people_started_it_after_the_slots(
    trigger: str, newest: int, has_slot_run: bool, is_told: bool
) -> None:
    task = a_task()
    past = Past(NOW, task)
    by_hand = a_run(id=newest, slot_at=None, trigger=trigger, status="SUCCESS", held_by=None)
    of_slot = slot_run(61)
    older = a_run(id=1, slot_at=None, trigger="manual", status="SUCCESS", held_by=None)
    past.runs.rows = [older, by_hand, *([of_slot] if has_slot_run else [])]
    members = {
        "slot_run": SlotRun(of_slot, None) if has_slot_run else None,
        "last_by_hand": by_hand if is_told else None,
    }
    assert await ask(past) == insight(past, task, **members)


async def test_the_future_is_asked_from_what_is_so_now() -> None:
    task = a_task()
    past = Past(NOW, task)
    by_hand = a_run(id=62, slot_at=None, trigger="manual", status="SUCCESS", held_by=None)
    past.runs.rows = [by_hand]
    at = NOW + HOUR
    assert await ask(past, at=at) == insight(past, task, at)


def told(schedule: Every) -> Any:
    return msgspec.to_builtins(schedule)


async def test_the_past_is_judged_by_the_events_around_it_and_the_schedule_then() -> None:
    task = a_task(version=3)
    past = Past(NOW, task)
    past.runs.rows = [
        slot_run(50, 2 * HOUR),
        a_run(id=62, slot_at=None, trigger="manual", status="SUCCESS", held_by=None),
    ]
    past.tell(7, 0, "TASK_CREATED", status="ENABLED")
    past.tell(7, HOUR, "TASK_CHANGED", status="ENABLED", schedule=told(HOURLY))
    past.tell(7, 3 * HOUR, "TASK_CHANGED", status="ENABLED", schedule=told(MINUTELY))
    made, first, second = [fact for _, _, fact in past.facts]
    at = 2 * HOUR + 20 * MINUTE
    assert await ask(past, at=at) == insight(
        past,
        task,
        at,
        before=(first, made),
        after=(second,),
        slot=2 * HOUR,
        slot_run=SlotRun(past.runs.rows[0], None),
        schedule=HOURLY,
    )


@pytest.mark.parametrize(("between", "is_found"), [(0, True), (2, True), (4, True), (6, False)])
async def test_the_schedule_then_is_looked_for_so_far_back(
    between: int, is_found: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "EVENTS_BEFORE", 2)
    monkeypatch.setattr(service, "EVENTS_PAGE", 2)
    monkeypatch.setattr(service, "PAGES_BACK", 2)
    task = a_task(version=3)
    past = Past(NOW, task)
    past.tell(7, HOUR, "TASK_CHANGED", schedule=told(HOURLY))
    for number in range(between):
        past.tell(7, HOUR + 1 + number, "TASK_BACKFILLED")
    at = 2 * HOUR + 20 * MINUTE
    found = await ask(past, at=at)
    assert found.slot == (2 * HOUR if is_found else at)


async def test_where_no_event_before_tells_the_next_one_says_what_the_schedule_was() -> None:
    task = a_task(version=3)
    past = Past(NOW, task)
    change = {"schedule": told(MINUTELY), "schedule_was": told(HOURLY)}
    past.tell(7, 3 * HOUR, "TASK_CHANGED", **change)
    assert (await ask(past, at=2 * HOUR + MINUTE)).slot == 2 * HOUR


async def test_a_deleted_task_is_found_by_its_number_alone() -> None:
    task = a_task(is_deleted=True, next_slot_at=None, fire_at=None)
    past = Past(NOW, task)
    assert (await ask(past, 7)).task == task
    for ref in ("j7", 8, "nobody"):
        with pytest.raises(NotFoundError):
            await ask(past, ref)


async def test_what_enabling_would_do_is_counted_from_when_the_task_was_disabled() -> None:
    task = a_task(status="DISABLED", fire_at=None, updated_at=NOW - MINUTE)
    past = Past(NOW, task)
    past.tell(7, HOUR, "TASK_DISABLED")
    past.tell(7, NOW - MINUTE, "TASK_CHANGED", status="DISABLED")
    found = await ExplainService(PastStore(past)).preview_resume("j7")  # type: ignore[arg-type]
    assert found == (task, resuming.preview_resume(task, HOUR, NOW))
    assert found[1].passed == 9 * 60


# Runs


class Jobs:
    """The queue's jobs that runs wait for."""

    def __init__(self, *jobs: HandedJob) -> None:
        self._jobs = {job.job_id: job for job in jobs}

    def find_jobs(self, tx: Any, job_ids: list[str]) -> dict[str, HandedJob]:
        return {one: self._jobs[one] for one in job_ids if one in self._jobs}


async def ask_run(past: Past, ref: int | str = 60, *jobs: HandedJob) -> RunInsight:
    found = ExplainService(PastStore(past), Jobs(*jobs))  # type: ignore[arg-type]
    return await found.explain_run(ref)


def run_insight(past: Past, run: Run, **members: Any) -> RunInsight:
    """What must be answered if these are the facts."""
    given: dict[str, Any] = {
        "task": past.find(7),
        "events": (),
        "counts": Counts(),
        "ahead": 0,
        "is_ahead_cut": False,
        "holder_lease_until": None,
    }
    facts = RunFacts(run=run, now=past.now, **given | members)
    return RunInsight(run, past.now, explain_runs.explain_run(facts))


async def test_a_run_is_told_with_its_events_its_holder_and_its_task() -> None:
    past = Past(NOW, a_task())
    run = a_run(status="RUNNING", held_by="one")
    past.runs.rows = [run]
    past.runs.counts = {7: Counts(1, 4)}
    past.leases = {"one": NOW + 5 * SECOND, "two": NOW}
    events: list[Fact] = [
        past.tell(60, SLOT, "RUN_SCHEDULED", entity="RUN", reason="BELOW_LIMIT"),
        past.tell(60, SLOT + 1, "RUN_STARTED", entity="RUN", reason="PLACE_FREE"),
    ]
    past.tell(61, SLOT + 2, "RUN_STARTED", entity="RUN", reason="PLACE_FREE")
    expected = run_insight(
        past,
        run,
        events=tuple(events),
        counts=Counts(1, 4),
        holder_lease_until=NOW + 5 * SECOND,
    )
    assert await ask_run(past) == expected
    assert await ask_run(past, run.uid) == expected
    assert past.asked == []
    with pytest.raises(NotFoundError):
        await ask_run(past, 61)


@pytest.mark.parametrize(
    ("members", "is_counted"),
    [
        ({"status": "SCHEDULED", "ready_host": None}, True),
        ({"status": "SCHEDULED", "ready_host": "target"}, True),
        ({"status": "RETRYING", "ready_host": "target"}, True),
        ({"status": "RETRYING", "ready_host": None, "next_retry_time": NOW + 1}, False),
        ({"status": "SUCCESS", "ready_host": None}, False),
    ],
)
@pytest.mark.parametrize(("ahead", "is_cut"), [(0, False), (4, False), (5, True), (9, True)])
async def test_runs_ahead_are_counted_for_one_that_waits_its_turn_or_a_place(
    members: dict[str, Any], is_counted: bool, ahead: int, is_cut: bool, monkeypatch: Any
) -> None:
    monkeypatch.setattr(service, "COUNT_TO", 5)
    past = Past(NOW, a_task())
    past.ahead = ahead
    run = a_run(held_by=None, **members)
    past.runs.rows = [run]
    if is_counted:
        expected = run_insight(past, run, ahead=min(ahead, 5), is_ahead_cut=is_cut)
    else:
        expected = run_insight(past, run)
    assert await ask_run(past) == expected
    assert past.asked == ([("count_before", 60, 5)] if is_counted else [])


@pytest.mark.spec("B5")
async def test_a_run_that_waits_for_a_job_is_told_with_it() -> None:
    past = Past(NOW, a_task())
    run = a_run(status="RUNNING", held_by=None)
    past.runs.rows = [run]
    job_id = job_id_of(run.uid, run.attempt)
    job = HandedJob(job_id, "r", "QUEUED", "{}", SLOT)
    assert await ask_run(past, 60, job) == run_insight(past, run, job=job)
    assert await ask_run(past) == run_insight(past, run)
    held = a_run(status="RUNNING", held_by="one")
    past.runs.rows = [held]
    assert await ask_run(past, 60, job) == run_insight(past, held)
