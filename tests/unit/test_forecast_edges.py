"""Firings to come at the edges of the window, and what is kept of many tasks."""

import pytest

from ksana.base.instant import HOUR, MINUTE, SECOND, Instant
from ksana.domain.schedule import Once, Schedule, make_cron, make_every
from ksana.domain.tasks import forecast
from ksana.domain.tasks.forecast import (
    HEAVIEST,
    SAMPLED,
    ArmedTask,
    Buckets,
    HeavyTask,
    Load,
    add_up,
    count_slots,
    join,
)

pytestmark = pytest.mark.spec("B8")

NOW: Instant = 1_774_742_400 * SECOND
SPANS = Buckets(NOW, MINUTE, 3)


def armed(
    chosen: Schedule,
    slot: Instant = NOW,
    runs_left: int | None = None,
    task_id: int = 1,
    host: str = "h",
) -> ArmedTask:
    return ArmedTask(task_id, f"j{task_id}", f"t{task_id}", chosen, host, slot, runs_left)


def every(us: int, start: Instant = NOW) -> Schedule:
    return make_every(us, now=start - us)


@pytest.mark.parametrize(
    ("at", "counts"),
    [
        (NOW - 1, []),
        (NOW, [1, 0, 0]),
        (NOW + MINUTE - 1, [1, 0, 0]),
        (NOW + MINUTE, [0, 1, 0]),
        (NOW + 3 * MINUTE - 1, [0, 0, 1]),
        (NOW + 3 * MINUTE, []),
    ],
)
def test_a_slot_belongs_to_the_span_that_begins_with_it(at: Instant, counts: list[int]) -> None:
    assert count_slots(armed(Once(at), at), SPANS) == counts


@pytest.mark.parametrize(
    ("slot", "counts"),
    [
        (NOW, [6, 6, 6]),
        (NOW + 10 * SECOND, [5, 6, 6]),
        (NOW + 2 * MINUTE, [0, 0, 6]),
        (NOW + 3 * MINUTE - 10 * SECOND, [0, 0, 1]),
        (NOW + 3 * MINUTE, []),
        (NOW + 4 * MINUTE, []),
    ],
)
@pytest.mark.parametrize(
    "chosen",
    [
        every(10 * SECOND),
        make_every(10 * SECOND, now=NOW - 10 * SECOND, end_at=NOW + HOUR),
        make_cron("*/10 * * * * *"),
    ],
)
def test_slots_are_counted_from_the_one_a_task_is_armed_for(
    chosen: Schedule, slot: Instant, counts: list[int]
) -> None:
    assert count_slots(armed(chosen, slot), SPANS) == counts


@pytest.mark.parametrize(
    ("runs_left", "counts"), [(0, []), (1, [1, 0, 0]), (8, [6, 2, 0]), (100, [6, 6, 6])]
)
def test_a_task_fires_as_often_as_it_may(runs_left: int, counts: list[int]) -> None:
    assert count_slots(armed(every(10 * SECOND), runs_left=runs_left), SPANS) == counts


def test_a_slot_in_the_last_instant_of_a_span_is_counted_there() -> None:
    slot, step = NOW + 10 * SECOND - 1, 10 * SECOND
    for chosen in (every(step, slot), make_every(step, now=slot - step, end_at=NOW + HOUR)):
        assert count_slots(armed(chosen, slot), SPANS) == [6, 6, 6]


def test_as_many_slots_as_spans_and_one_more_are_counted_alike() -> None:
    for us, counts in ((MINUTE, [1, 1, 1]), (45 * SECOND, [2, 1, 1]), (90 * SECOND, [1, 1, 0])):
        assert count_slots(armed(every(us)), SPANS) == counts


def test_tasks_of_one_host_are_told_apart_from_the_rest() -> None:
    tasks = [
        armed(every(MINUTE), task_id=1, host="a"),
        armed(every(30 * SECOND), task_id=2, host="b"),
        armed(Once(NOW - 1), task_id=3, host="a"),
        armed(every(MINUTE), task_id=4, host="a"),
    ]
    load = add_up(tasks, SPANS)
    assert (load.tasks, load.firings, load.elsewhere) == (4, 12, 0)
    assert load.counts == [4, 4, 4]
    assert {name: (one.firings, one.counts) for name, one in load.hosts.items()} == {
        "a": (6, [2, 2, 2]),
        "b": (6, [2, 2, 2]),
    }
    only = add_up(tasks, SPANS, "a")
    assert (only.tasks, only.firings, list(only.hosts)) == (3, 6, ["a"])
    assert add_up([], SPANS).counts == [0, 0, 0]


def test_cron_schedules_that_are_alike_are_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[int] = []
    real = forecast.count_slots

    def count(task: ArmedTask, spans: Buckets) -> list[int]:
        counted.append(task.id)
        return real(task, spans)

    monkeypatch.setattr(forecast, "count_slots", count)
    monkeypatch.setattr(forecast, "MAX_KNOWN", 2)
    minutely, bounded = make_cron("* * * * *"), make_cron("* * * * *", end_at=NOW + HOUR)
    tasks = [
        armed(minutely, task_id=1),
        armed(minutely, task_id=2),
        armed(minutely, task_id=3, runs_left=1),
        armed(bounded, task_id=4),
        armed(bounded, task_id=5),
        armed(make_cron("*/2 * * * *"), task_id=6),
        armed(make_cron("*/3 * * * *"), task_id=7),
        armed(make_cron("*/3 * * * *"), task_id=8),
        armed(make_cron("*/2 * * * *"), task_id=9),
    ]
    memo: forecast.Memo = {}
    load = add_up(tasks, SPANS, None, memo)
    assert counted == [1, 3, 4, 5, 6, 7, 8]  # no more than two are kept
    assert len(memo) == 2
    assert load.firings == 3 + 3 + 1 + 3 + 3 + 2 + 1 + 1 + 2
    counted.clear()
    add_up(tasks[:1], SPANS, None, memo)
    assert counted == []


def heavy(firings: int, task_id: int) -> HeavyTask:
    return HeavyTask(firings, armed(every(MINUTE), task_id=task_id))


def test_the_heaviest_are_kept_in_order_the_first_come_stays() -> None:
    kept: list[HeavyTask] = []
    for firings, task_id in ((5, 1), (9, 2), (5, 3), (5, 4), (6, 5)):
        kept = forecast._keep(kept, heavy(firings, task_id), 3)
    assert [(one.firings, one.task.id) for one in kept] == [(9, 2), (6, 5), (5, 1)]
    assert forecast._keep(kept, heavy(5, 0), 3) is kept
    assert [one.task.id for one in forecast._keep(kept, heavy(5, 0), 4)] == [2, 5, 0, 1]
    assert [one.task.id for one in forecast._keep(kept, heavy(6, 7), 3)] == [2, 5, 7]


def test_two_loads_are_joined_number_by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forecast, "MAX_HOSTS", 2)

    def part(first: int, *hosts: str) -> Load:
        tasks = [
            armed(every(MINUTE), task_id=first + at, host=host) for at, host in enumerate(hosts)
        ]
        return add_up(tasks, SPANS)

    joined = join(part(1, "a", "a", "b"), part(10, "a", "a", "c", "d"))
    assert (joined.tasks, joined.firings, joined.counts) == (7, 21, [7, 7, 7])
    # Of the second, d was not told apart already, and c is not here.
    assert joined.elsewhere == 6
    assert {name: one.firings for name, one in joined.hosts.items()} == {"a": 12, "b": 3}
    assert joined.hosts["a"].counts == [4, 4, 4]
    assert [one.task.id for one in joined.hosts["a"].heaviest] == [1, 2, 10]
    assert len(joined.heaviest) == 7
    fresh = join(part(1, "a"), part(2, "b"))
    assert sorted(fresh.hosts) == ["a", "b"]
    assert (SAMPLED, HEAVIEST) == (3, 50)
