"""The ledger over a past in memory: what is counted of a window, where a page ends, and what is
said of slots that nothing is recorded of."""

from typing import Any

import msgspec
import pytest

from ksana.base.errors import NotFoundError
from ksana.base.instant import SECOND
from ksana.domain.schedule import Every
from ksana.domain.tasks.ledger import Sums
from ksana.domain.tasks.records import Task
from ksana.service.tasks import ledger as service
from ksana.service.tasks.ledger import LedgerEntry, LedgerPage, LedgerPlace, LedgerService
from tests.unit.past_ground import Past, PastStore
from tests.unit.task_ground import a_task as make_task

pytestmark = pytest.mark.spec("B2")

S = SECOND
EVERY_TEN = Every(10 * S, 0, False)
NOW = 1000 * S
SINCE, UNTIL = 100 * S, 150 * S
"""The window: slots 100 to 140, every ten seconds."""
GRACE = 2 * S


def a_task(task_id: int = 7, **members: Any) -> Task:
    """A task that was made at second 0 and is armed for what comes next."""
    given = {"version": 1, "next_slot_at": NOW + 10 * S, "fire_at": NOW + 10 * S}
    return make_task(EVERY_TEN, id=task_id, **given | members)


def fire(past: Past, *seconds: int, task_id: int = 7, **members: str) -> None:
    past.fire(task_id, *[second * S for second in seconds], **members)


async def read(
    past: Past,
    since: int = SINCE,
    until: int = UNTIL,
    *,
    task_id: int | None = 7,
    kept_us: int = NOW,
    **asked: Any,
) -> LedgerPage:
    found = LedgerService(PastStore(past), kept_us, GRACE)  # type: ignore[arg-type]
    return await found.list_page(since, until, task_id=task_id, **asked)


async def read_one(past: Past, *window: int, **members: Any) -> LedgerEntry:
    page = await read(past, *window, **members)
    [entry] = page.entries
    return entry


def sums_of(expected: int, fired: int, **members: Any) -> Sums:
    given: dict[str, Any] = {"by_status": {"SUCCESS": fired} if fired else {}, "skipped": {}}
    given |= {"forgotten": 0, "pending": 0, "unrecorded": 0}
    return Sums(expected=expected, fired=fired, **given | members)


# A window


async def test_what_became_of_the_slots_of_a_window() -> None:
    past = Past(NOW, a_task())
    fire(past, 90, 100, 110, 120)
    fire(past, 130, status="FAILED")
    fire(past, 140, status="SKIPPED", reason="QUEUE_FULL")
    fire(past, 150)
    sums = sums_of(
        5, 4, by_status={"SUCCESS": 3, "FAILED": 1}, skipped={"QUEUE_FULL": 1}, pending=0
    )
    entry = LedgerEntry(a_task(), SINCE, UNTIL, None, sums, 0, 0)
    assert await read(past) == LedgerPage([entry], None)


@pytest.mark.parametrize(
    ("since", "until", "fired"),
    [(100 * S, 150 * S, 5), (100 * S + 1, 150 * S, 4), (100 * S, 150 * S + 1, 6)],
)
async def test_a_window_has_its_first_instant_and_not_its_last(
    since: int, until: int, fired: int
) -> None:
    past = Past(NOW, a_task())
    fire(past, *range(90, 170, 10))
    assert (await read_one(past, since, until)).sums == sums_of(fired, fired)


@pytest.mark.parametrize(("until", "pending"), [(150 * S, 2), (150 * S + 1, 3), (130 * S, 0)])
async def test_slots_to_come_are_pending(until: int, pending: int) -> None:
    past = Past(125 * S, a_task(next_slot_at=130 * S, fire_at=130 * S))
    fire(past, 100, 110, 120)
    sums = sums_of(3 + pending, 3, pending=pending)
    assert (await read_one(past, SINCE, until, kept_us=125 * S)).sums == sums


async def test_a_task_without_slots_left_is_expected_up_to_its_last_run() -> None:
    past = Past(NOW, a_task(next_slot_at=None, fire_at=None, runs_fired=3))
    fire(past, 100, 110, 120)
    assert (await read_one(past)).sums == sums_of(3, 3)


async def test_a_task_that_never_was_is_not_found() -> None:
    with pytest.raises(NotFoundError):
        await read(Past(NOW, a_task()), task_id=8)


# What is not recorded


@pytest.mark.parametrize(
    ("runs_fired", "missing"),
    [(3, 2), (4, 2), (5, 1), (6, 0), (9, 0)],
)
async def test_a_slot_is_missing_unless_a_run_was_removed_for_it(
    runs_fired: int, missing: int
) -> None:
    past = Past(NOW, a_task(created_at=5 * S, runs_fired=runs_fired))
    fire(past, 50, 100, 110, 140)
    entry = await read_one(past)
    assert entry.sums == sums_of(5, 3, unrecorded=2)
    assert (entry.missing, entry.forgotten) == (missing, 2 - missing)
    assert past.asked == [("count_fired", 5 * S - GRACE - 1, service.ROWS)]


async def test_nothing_is_called_missing_where_too_many_runs_would_have_to_be_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(service, "ROWS", 4)
    past = Past(NOW, a_task(runs_fired=4))
    fire(past, 100, 110, 130, 140)
    entry = await read_one(past)
    assert (entry.sums.unrecorded, entry.missing, entry.forgotten) == (1, 0, 1)


async def test_slots_from_before_what_is_kept_are_forgotten() -> None:
    past = Past(NOW, a_task(runs_fired=3))
    fire(past, 100, 140)
    entry = await read_one(past, kept_us=NOW - 120 * S)
    # 110 is too old; of 120 and 130 one was removed, for the task fired three.
    assert entry.sums == sums_of(5, 2, forgotten=1, unrecorded=2)
    assert (entry.missing, entry.forgotten) == (1, 2)


def change(past: Past, second: int, *, was: bool = True, **data: Any) -> None:
    """An event that sets the schedule; with `was`, to another than before."""
    given = {"status": "ENABLED", "schedule": msgspec.to_builtins(EVERY_TEN)}
    if was:
        given["schedule_was"] = msgspec.to_builtins(EVERY_TEN)
    past.tell(7, second * S, "TASK_CHANGED", **given | data)


@pytest.mark.parametrize("between", [0, 2, 4])
async def test_only_slots_since_the_schedule_was_set_can_be_missing(
    between: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "FACTS_BEFORE", 2)
    monkeypatch.setattr(service, "PAGES_BACK", 3)
    past = Past(NOW, a_task(version=2, runs_fired=3))
    past.tell(7, 0, "TASK_CREATED", status="ENABLED")
    change(past, 115)
    for number in range(between):
        past.tell(7, 200 * S + number, "TASK_BACKFILLED")
    fire(past, 100, 120, 140, 160)
    entry = await read_one(past)
    # 110 was of the schedule before; of 130 there never was a run.
    assert entry.sums == sums_of(5, 3, forgotten=1, unrecorded=1)
    assert (entry.missing, entry.forgotten) == (1, 1)
    assert past.asked[-1] == ("count_fired", 115 * S - GRACE - 1, service.ROWS)


async def test_what_a_change_of_the_schedule_explains_is_not_counted() -> None:
    past = Past(NOW, a_task(version=2, runs_fired=2))
    past.tell(7, 0, "TASK_CREATED", status="ENABLED")
    change(past, 115)
    fire(past, 100, 120, 130, 140)
    entry = await read_one(past)
    assert (entry.sums, entry.missing) == (sums_of(5, 4, forgotten=1), 0)
    assert past.asked == []


async def test_nothing_is_missing_where_nobody_knows_when_the_schedule_was_set() -> None:
    past = Past(NOW, a_task(version=5, runs_fired=3))
    past.tell(7, 5 * S, "TASK_ENABLED")
    fire(past, 100, 120, 140)
    entry = await read_one(past)
    assert entry.sums == sums_of(5, 3, forgotten=2)
    assert (entry.missing, entry.forgotten) == (0, 2)


# What is known


@pytest.mark.parametrize(
    ("oldest", "known_since", "expected"),
    [
        (SINCE - 1, None, 5),
        (SINCE, None, 5),
        (SINCE + 1, SINCE + 1, 4),
        (125 * S, 125 * S, 2),
        (200 * S, 200 * S, 0),
    ],
)
async def test_what_was_before_the_oldest_event_is_not_counted(
    oldest: int, known_since: int | None, expected: int
) -> None:
    past = Past(NOW, a_task(version=2))
    past.tell(7, oldest, "TASK_CHANGED", status="ENABLED")
    past.tell(8, 300 * S, "TASK_CREATED")
    fire(past, 100, 110, 120, 130, 140)
    entry = await read_one(past)
    assert (entry.known_since, entry.sums) == (known_since, sums_of(expected, expected))


async def test_without_any_event_only_what_comes_is_known() -> None:
    past = Past(NOW, a_task(version=2))
    fire(past, 100, 110)
    entry = await read_one(past)
    assert (entry.known_since, entry.sums) == (NOW, sums_of(0, 0))


async def test_of_a_task_that_was_made_in_the_window_all_is_known() -> None:
    past = Past(NOW, a_task(version=2, created_at=125 * S))
    past.tell(7, 125 * S, "TASK_CREATED", status="ENABLED")
    past.tell(7, 500 * S, "TASK_CHANGED", status="ENABLED")
    fire(past, 130, 140)
    entry = await read_one(past)
    assert (entry.known_since, entry.sums) == (None, sums_of(2, 2))


@pytest.mark.parametrize("between", [0, 2, 4])
async def test_the_state_before_a_window_is_looked_for_behind_other_events(
    between: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "FACTS_BEFORE", 2)
    monkeypatch.setattr(service, "PAGES_BACK", 2)
    past = Past(NOW, a_task(version=3))
    past.tell(7, 50 * S, "TASK_DISABLED")
    for number in range(between):
        past.tell(7, 60 * S + number, "TASK_BACKFILLED")
    change(past, 500, was=False)  # it enables the task
    assert (await read_one(past)).sums == sums_of(0, 0)


@pytest.mark.parametrize(
    ("at", "until"),
    [((101, 102, 103, 104), 103 * S), ((100,) * 4, SINCE + 1), ((200,) * 4, UNTIL)],
)
async def test_a_window_with_too_many_events_is_cut(
    at: tuple[int, ...], until: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "MAX_FACTS", 4)
    past = Past(NOW, a_task())
    for second in at:
        past.tell(7, second * S, "TASK_BACKFILLED")
    page = await read(past)
    assert page.entries[0].until == until
    assert page.next_place == (None if until == UNTIL else LedgerPlace(7, until))
    past.facts.pop()
    assert (await read(past)).next_place is None


# Pages


async def test_a_task_with_too_many_runs_is_cut_and_goes_on_where_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(service, "ROWS", 3)
    past = Past(NOW, a_task(7), a_task(8))
    fire(past, 100, 110, 120, 130, 140)
    fire(past, 100, 110, 120, 130, 140, task_id=8)
    first = await read(past, task_id=None)
    place = LedgerPlace(7, 120 * S + 1)
    entry = LedgerEntry(a_task(), SINCE, 120 * S + 1, None, sums_of(3, 3), 0, 0)
    assert first == LedgerPage([entry], place)
    second = await read(past, task_id=None, after=place)
    rest = LedgerEntry(a_task(), 120 * S + 1, UNTIL, None, sums_of(2, 2), 0, 0)
    cut = LedgerEntry(a_task(8), SINCE, 100 * S + 1, None, sums_of(1, 1), 0, 0)
    assert second == LedgerPage([rest, cut], LedgerPlace(8, 100 * S + 1))


async def test_a_page_always_goes_on_by_a_run_at_least(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "ROWS", 3)
    past = Past(NOW, a_task())
    past.tell(7, 120 * S, "TASK_ENABLED")  # cuts the window in two pieces
    fire(past, 100, 110, 120, 130, 140)
    page = await read(past)
    entry = LedgerEntry(a_task(), SINCE, 130 * S + 1, None, sums_of(4, 4), 0, 0)
    assert page == LedgerPage([entry], LedgerPlace(7, 130 * S + 1))


@pytest.mark.parametrize(
    ("rows", "limit", "seen", "place"),
    [
        (100, 2, [1, 2], LedgerPlace(2, None)),
        (100, 3, [1, 2, 3], None),
        (100, 4, [1, 2, 3], None),
        (10, 4, [1, 2], LedgerPlace(2, None)),
        (9, 4, [1, 2], LedgerPlace(2, 130 * S + 1)),
        (11, 4, [1, 2, 3], LedgerPlace(3, 100 * S + 1)),
        (15, 4, [1, 2, 3], None),
    ],
)
async def test_a_page_ends_after_so_many_tasks_or_runs(
    rows: int,
    limit: int,
    seen: list[int],
    place: LedgerPlace | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(service, "ROWS", rows)
    past = Past(NOW, *[a_task(task_id) for task_id in (1, 2, 3)])
    for task_id in (1, 2, 3):
        fire(past, 100, 110, 120, 130, 140, task_id=task_id)
    page = await read(past, SINCE, 140 * S + 1, task_id=None, limit=limit)
    assert [entry.task.id for entry in page.entries] == seen
    assert page.next_place == place


async def test_a_page_goes_on_after_the_task_it_ended_with() -> None:
    past = Past(NOW, *[a_task(task_id) for task_id in (1, 2, 3)])
    page = await read(past, task_id=None, after=LedgerPlace(1, None))
    assert [(entry.task.id, entry.since) for entry in page.entries] == [(2, SINCE), (3, SINCE)]
    page = await read(past, task_id=None, after=LedgerPlace(2, 130 * S))
    assert [(entry.task.id, entry.since) for entry in page.entries] == [(2, 130 * S), (3, SINCE)]


async def test_a_page_looks_at_so_many_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "TASKS_LOOKED_AT", 2)
    gone = [a_task(task_id, is_deleted=True, updated_at=SINCE - 1) for task_id in (1, 2, 3)]
    past = Past(NOW, *gone)
    assert await read(past, task_id=None) == LedgerPage([], LedgerPlace(2, None))
    assert await read(past, task_id=None, after=LedgerPlace(2, None)) == LedgerPage([], None)
    assert await read(past, task_id=3) == LedgerPage([], None)


@pytest.mark.parametrize(
    ("members", "is_shown"),
    [
        ({"is_deleted": True, "updated_at": SINCE - 1}, False),
        ({"is_deleted": True, "updated_at": SINCE}, True),
        ({"is_deleted": False, "updated_at": SINCE - 1}, True),
        ({"created_at": UNTIL + GRACE}, False),
        ({"created_at": UNTIL + GRACE - 1}, True),
    ],
)
@pytest.mark.parametrize("slot", [None, SINCE - 1, SINCE, UNTIL - 1, UNTIL])
async def test_a_task_is_shown_that_was_there_in_the_window_or_has_a_run_of_it(
    members: dict[str, Any], is_shown: bool, slot: int | None
) -> None:
    past = Past(NOW, a_task(1, **members), a_task(2))
    if slot is not None:
        past.fire(1, slot)
    page = await read(past, task_id=None)
    is_filled = slot is not None and SINCE <= slot < UNTIL
    shown = [1, 2] if is_shown or is_filled else [2]
    assert [entry.task.id for entry in page.entries] == shown


async def test_a_task_that_went_meanwhile_is_passed_over() -> None:
    past = Past(NOW, a_task(1), a_task(2))
    past.list_task_ids = lambda after, limit: [1, 5, 2]  # type: ignore[method-assign]
    page = await read(past, task_id=None)
    assert [entry.task.id for entry in page.entries] == [1, 2]
