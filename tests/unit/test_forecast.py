"""Firings to come, counted span by span: the same as by walking every slot, and bounded."""

import random

import pytest

from ksana.base.instant import DAY, HOUR, MINUTE, SECOND, Instant
from ksana.domain import schedule as schedules
from ksana.domain.schedule import Once, Schedule, make_cron, make_every
from ksana.domain.tasks import forecast
from ksana.domain.tasks.forecast import ArmedTask, Buckets, add_up, count_slots, join

pytestmark = pytest.mark.spec("B8")

NOW: Instant = 1_774_742_400 * SECOND
"""2026-03-29T00:00:00Z: an hour before the clocks of Berlin go forward."""


def armed(
    schedule: Schedule, host: str = "h", task_id: int = 1, runs_left: int | None = None
) -> ArmedTask:
    slot = schedules.next_after(schedule, NOW) or NOW
    return ArmedTask(task_id, f"j{task_id}", f"t{task_id}", schedule, host, slot, runs_left)


def walked(task: ArmedTask, spans: Buckets) -> list[int]:
    """By walking every slot."""
    found, after = [0] * spans.number, max(spans.since, task.next_slot_at) - 1
    left = task.runs_left
    while (slot := schedules.next_after(task.schedule, after)) is not None and slot < spans.until:
        if left is not None:
            if not left:
                break
            left -= 1
        found[(slot - spans.since) // spans.width] += 1
        after = slot
    return found


CHOICES: list[Schedule] = [
    make_every(SECOND, now=NOW - 7),
    make_every(7 * SECOND, now=NOW - 3 * DAY),
    make_every(61 * MINUTE, now=NOW),
    make_every(10 * SECOND, now=NOW, end_at=NOW + 3 * HOUR + 5),
    make_every(10 * SECOND, now=NOW, start_at=NOW + 90 * MINUTE),
    make_cron("*/10 * * * * *", "Europe/Berlin"),
    make_cron("30 2 * * *", "Europe/Berlin"),
    make_cron("0 */2 * * *", "Asia/Kathmandu"),
    make_cron("*/5 * * * *", end_at=NOW + 5 * HOUR, start_at=NOW + HOUR),
    Once(NOW + 2 * HOUR),
    Once(NOW + 9 * DAY),
]


@pytest.mark.parametrize("at", range(len(CHOICES)))
@pytest.mark.parametrize("spans", [Buckets(NOW, HOUR, 24), Buckets(NOW - 20 * MINUTE, MINUTE, 120)])
def test_counts_are_those_of_a_walk(at: int, spans: Buckets) -> None:
    for runs_left in (None, 0, 5):
        task = armed(CHOICES[at], runs_left=runs_left)
        expected = walked(task, spans)
        assert (count_slots(task, spans) or [0] * spans.number) == expected


def test_hosts_and_pages_add_up() -> None:
    choice, spans = random.Random(4), Buckets(NOW, HOUR, 24)
    tasks = [
        armed(choice.choice(CHOICES), f"h{choice.randrange(4)}", number) for number in range(1, 60)
    ]
    whole = add_up(tasks, spans)
    parts = join(add_up(tasks[:20], spans), add_up(tasks[20:], spans))
    assert (whole.counts, whole.firings, whole.tasks) == (parts.counts, parts.firings, 59)
    assert whole.counts == [
        sum(counts) for counts in zip(*(walked(task, spans) for task in tasks), strict=True)
    ]
    assert {name: load.counts for name, load in whole.hosts.items()} == {
        name: load.counts for name, load in parts.hosts.items()
    }
    assert sum(load.firings for load in whole.hosts.values()) == whole.firings
    only = add_up(tasks, spans, "h2")
    assert only.counts == whole.hosts["h2"].counts
    assert [heavy.firings for heavy in whole.heaviest] == sorted(
        (sum(walked(task, spans)) for task in tasks if sum(walked(task, spans))), reverse=True
    )[: forecast.HEAVIEST]


def test_more_hosts_than_are_told_apart_are_counted_in_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(forecast, "MAX_HOSTS", 2)
    spans = Buckets(NOW, HOUR, 24)
    tasks = [armed(make_every(HOUR, now=NOW), f"h{n}", n) for n in range(1, 6)]
    load = add_up(tasks, spans)
    assert (len(load.hosts), load.firings, load.elsewhere) == (2, 5 * 23, 3 * 23)
    joined = join(add_up(tasks[:3], spans), add_up(tasks[3:], spans))
    assert (len(joined.hosts), joined.firings, joined.elsewhere) == (2, 5 * 23, 3 * 23)


def test_a_task_of_every_second_is_not_walked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = 0
    real = schedules.next_after

    def next_after(schedule: Schedule, at: Instant) -> Instant | None:
        nonlocal asked
        asked += 1
        return real(schedule, at)

    task = armed(make_every(SECOND, now=NOW))
    monkeypatch.setattr(schedules, "next_after", next_after)
    assert sum(count_slots(task, Buckets(NOW, HOUR, 168))) == 168 * 3600 - 1
    assert asked == 1
