"""What a due task does: slots that are due, late, missed or dropped, at their bounds."""

from typing import Any

import pytest

from ksana.base.instant import MINUTE, SECOND, Instant
from ksana.domain import schedule as schedules
from ksana.domain.schedule import Every, Once
from ksana.domain.tasks.clock_steps import LivedSpan, make_windows
from ksana.domain.tasks.firing import (
    SLOTS_PER_PASS,
    Counts,
    Firing,
    Misfire,
    PlannedRun,
    decide_firing,
    drop_due,
    leave_out,
    limits_of,
    next_due,
    prompt_due_at,
)
from ksana.domain.tasks.records import MAX_CATCHUP, Task
from tests.unit.task_ground import EVERY_TEN, NOW, a_definition, a_task

TEN = 10 * SECOND
GRACE = MINUTE
JITTERED = Every(TEN, 0, False, jitter_us=9 * SECOND)


def slots_of(firing: Firing) -> list[Instant]:
    return [run.slot_at for run in firing.runs]


def decide(task: Task, now: Instant, *outages: tuple[Instant, Instant], **counts: int) -> Firing:
    return decide_firing(task, now, list(outages), Counts(**counts))


@pytest.mark.spec("C10")
def test_a_slot_on_time_is_one_run_and_the_next_is_armed() -> None:
    assert decide(a_task(), NOW) == Firing(
        runs=(PlannedRun(NOW, "schedule", "start", "BELOW_LIMIT"),),
        next_slot_at=NOW + TEN,
        fire_at=NOW + TEN,
        started=1,
    )


@pytest.mark.spec("C10")
def test_a_task_that_never_was_armed_for_an_instant_is_due_at_its_slot() -> None:
    assert slots_of(decide(a_task(fire_at=None), NOW)) == [NOW]
    assert decide(a_task(fire_at=NOW - GRACE - 1), NOW).misfire is not None


@pytest.mark.spec("C10")
@pytest.mark.parametrize(("late", "slots"), [(9, 1), (10, 2), (11, 2), (60, 7)])
def test_late_slots_within_the_grace_are_all_fired(late: int, slots: int) -> None:
    fired = decide(a_task(concurrency_policy="PARALLEL"), NOW + late * SECOND)
    assert slots_of(fired) == [NOW + n * TEN for n in range(slots)]
    assert {run.trigger for run in fired.runs} == {"schedule"}
    assert fired.misfire is None
    assert fired.next_slot_at == fired.fire_at == NOW + slots * TEN


@pytest.mark.spec("C10", "X5")
def test_a_hundred_slots_are_decided_in_one_pass_and_the_rest_in_the_next() -> None:
    task = a_task(Every(SECOND // 10, 0, False), concurrency_policy="PARALLEL")
    fired = decide(task, NOW + 30 * SECOND)
    assert len(fired.runs) == SLOTS_PER_PASS
    assert fired.next_slot_at == NOW + SLOTS_PER_PASS * SECOND // 10


@pytest.mark.spec("C10")
@pytest.mark.parametrize(
    ("policy", "made_up"),
    [
        ("FIRE_NOW", [(4, "schedule", "MISFIRE_FIRE_NOW")]),
        ("SKIP", []),
        (
            "CATCH_UP_LIMITED",
            [(n, "catchup", "MISFIRE_CATCH_UP_LIMITED") for n in (2, 3, 4)],
        ),
    ],
)
def test_slots_later_than_the_grace_are_one_misfire_and_the_policy_makes_up_for_it(
    policy: Any, made_up: list[tuple[int, str, str]]
) -> None:
    task = a_task(concurrency_policy="PARALLEL", misfire_policy=policy, catchup_limit=3)
    now = NOW + 5 * TEN + GRACE - 1  # the slot of +50 s is late by one less than the grace
    fired = decide(task, now)
    assert fired.misfire == Misfire(NOW, NOW + 4 * TEN, 5, policy)
    missed = [run for run in fired.runs if run.slot_at <= NOW + 4 * TEN]
    assert [((run.slot_at - NOW) // TEN, run.trigger, run.reason) for run in missed] == made_up
    rest = [run for run in fired.runs if run.slot_at > NOW + 4 * TEN]
    assert [(run.slot_at - NOW) // TEN for run in rest] == [5, 6, 7, 8, 9, 10]
    assert {run.reason for run in rest} == {"PARALLEL"}
    assert fired.next_slot_at == NOW + 11 * TEN


@pytest.mark.spec("C10")
def test_a_slot_is_late_by_the_grace_and_missed_a_microsecond_later() -> None:
    assert decide(a_task(concurrency_policy="PARALLEL"), NOW + GRACE).misfire is None
    missed = decide(a_task(concurrency_policy="PARALLEL"), NOW + GRACE + 1).misfire
    assert missed == Misfire(NOW, NOW, 1, "FIRE_NOW")
    # The next but one slot is late by exactly the grace and is fired as it is.
    fired = decide(a_task(misfire_policy="SKIP"), NOW + TEN + GRACE)
    assert fired.misfire == Misfire(NOW, NOW, 1, "SKIP")
    assert slots_of(fired)[0] == NOW + TEN


@pytest.mark.spec("C10")
@pytest.mark.parametrize(
    ("outage", "misfires"),
    [
        ((NOW - 1, NOW), 1),
        ((NOW, NOW + 1), 0),  # it fell due at the last instant of life
        ((NOW - 1, NOW + TEN), 2),
        ((NOW - 1, NOW + TEN - 1), 1),
        ((NOW - 2, NOW - 1), 0),
    ],
)
def test_slots_of_an_outage_are_missed_however_short_it_was(
    outage: tuple[Instant, Instant], misfires: int
) -> None:
    task = a_task(concurrency_policy="PARALLEL", misfire_policy="SKIP")
    fired = decide(task, NOW + TEN + 1, outage)
    assert (fired.misfire.count if fired.misfire else 0) == misfires
    assert len(fired.runs) == 2 - misfires


@pytest.mark.spec("C10")
def test_an_outage_that_ends_after_now_concerns_slots_up_to_now() -> None:
    fired = decide(a_task(misfire_policy="SKIP"), NOW + 1, (NOW - 1, NOW + 10 * TEN))
    assert fired.misfire == Misfire(NOW, NOW, 1, "SKIP")
    assert fired.next_slot_at == NOW + TEN


@pytest.mark.spec("C10")
def test_an_outage_that_begins_with_the_slot_is_not_why_it_is_late() -> None:
    fired = decide(a_task(), NOW + 10 * TEN, (NOW, NOW + 9 * TEN))
    assert fired.misfire == Misfire(NOW, NOW + 3 * TEN, 4, "FIRE_NOW")


@pytest.mark.spec("C10")
def test_no_slot_before_the_one_in_question_is_missed_with_it() -> None:
    """The clock was set back since: it is not due by it."""
    fired = decide(a_task(), NOW - 1, (NOW - 1, NOW))
    assert fired.misfire == Misfire(NOW, NOW, 1, "FIRE_NOW")


@pytest.mark.spec("C10")
def test_a_second_outage_is_left_to_the_next_pass() -> None:
    task = a_task(concurrency_policy="PARALLEL", misfire_policy="SKIP")
    outages = ((NOW - 1, NOW), (NOW + 2 * TEN - 1, NOW + 2 * TEN))
    fired = decide(task, NOW + 3 * TEN, *outages)
    # Each outage is a misfire of its own, with its own event.
    assert fired.misfire is not None
    assert fired.misfire.last == NOW
    assert slots_of(fired) == [NOW + TEN]
    assert fired.next_slot_at == fired.fire_at == NOW + 2 * TEN


@pytest.mark.spec("C10", "C1")
def test_with_jitter_the_last_missed_slot_is_the_last_that_should_have_fired() -> None:
    task = a_task(JITTERED, misfire_policy="SKIP", fire_at=None)
    for seconds in range(1, 100):
        now = NOW + GRACE + seconds * SECOND
        fired = decide(task, now)
        if fired.misfire is None:
            continue
        last = fired.misfire.last
        assert last >= NOW
        assert schedules.fire_at(JITTERED, "j", last) < now - GRACE or last == NOW
        following = schedules.next_after(JITTERED, last)
        assert following is not None
        assert schedules.fire_at(JITTERED, "j", following) >= now - GRACE
        assert fired.misfire.count == (last - NOW) // TEN + 1


@pytest.mark.spec("C1")
def test_slots_fire_in_their_order_whatever_their_jitter() -> None:
    task = a_task(JITTERED, fire_at=NOW + 25 * SECOND)
    fired = decide(task, NOW + 25 * SECOND)
    assert slots_of(fired) == [NOW, NOW + TEN] or slots_of(fired) == [NOW, NOW + TEN, NOW + 2 * TEN]
    assert fired.fire_at is not None
    assert fired.fire_at >= NOW + 25 * SECOND


@pytest.mark.spec("C4", "C11")
def test_each_slot_of_a_pass_is_admitted_behind_those_before_it() -> None:
    task = a_task(max_concurrency=2, max_queued=2)
    fired = decide(task, NOW + 6 * TEN, active=1, waiting=0)
    assert [(run.start, run.reason) for run in fired.runs] == [
        ("start", "BELOW_LIMIT"),
        ("wait", "QUEUED_BEHIND_ACTIVE"),
        ("wait", "QUEUED_BEHIND_ACTIVE"),
        *[("skip", "QUEUE_FULL")] * 4,
    ]
    assert (fired.started, fired.last_status) == (3, "skipped")
    assert decide(task, NOW, active=1).last_status == ""
    both = decide(task, NOW + 2 * TEN)
    assert [run.start for run in both.runs] == ["start", "start", "wait"]


@pytest.mark.spec("C10")
def test_slots_that_are_made_up_wait_however_many_wait_already() -> None:
    task = a_task(misfire_policy="CATCH_UP_LIMITED", catchup_limit=3, max_queued=0)
    fired = decide(task, NOW + 2 * TEN + GRACE + 1, active=1, waiting=MAX_CATCHUP)
    made_up = [run for run in fired.runs if run.trigger == "catchup"]
    assert [(run.start, run.reason) for run in made_up] == [
        ("wait", "MISFIRE_CATCH_UP_LIMITED")
    ] * 3
    assert {run.start for run in fired.runs if run.trigger != "catchup"} == {"skip"}


@pytest.mark.spec("C10")
def test_a_slot_that_is_made_up_and_not_admitted_says_why() -> None:
    fired = decide(a_task(concurrency_policy="SKIP"), NOW + GRACE + 1, active=1)
    assert (fired.runs[0].start, fired.runs[0].reason) == ("skip", "CONCURRENCY_LIMIT")


@pytest.mark.spec("C1")
@pytest.mark.parametrize(("fired_before", "runs"), [(0, 3), (2, 3), (4, 1), (5, 0), (6, 0)])
def test_a_task_ends_with_the_last_of_its_runs(fired_before: int, runs: int) -> None:
    task = a_task(max_runs=5, runs_fired=fired_before, concurrency_policy="PARALLEL")
    fired = decide(task, NOW + 2 * TEN)
    assert (len(fired.runs), fired.started) == (runs, runs)
    is_over = fired_before + runs >= 5
    assert (fired.next_slot_at is None) == (fired.fire_at is None) == is_over


@pytest.mark.spec("C1")
def test_slots_that_are_skipped_do_not_count_as_runs() -> None:
    task = a_task(max_runs=1, concurrency_policy="SKIP")
    fired = decide(task, NOW, active=1)
    assert (fired.started, fired.next_slot_at) == (0, NOW + TEN)


@pytest.mark.spec("T1", "C10")
def test_a_one_time_slot_that_nobody_was_there_for_is_missed() -> None:
    once = Once(NOW)
    missed = decide(a_task(once, misfire_policy="SKIP"), NOW + GRACE + 1)
    assert (missed.runs, missed.is_missed, missed.last_status) == ((), True, "missed")
    assert (missed.next_slot_at, missed.fire_at) == (None, None)
    made_up = decide(a_task(once), NOW + GRACE + 1)
    assert (len(made_up.runs), made_up.is_missed, made_up.last_status) == (1, False, "")
    repeated = decide(a_task(misfire_policy="SKIP"), NOW + GRACE + 1)
    assert not repeated.is_missed


@pytest.mark.parametrize(
    ("slot_at", "trigger", "reason", "is_prompt"),
    [
        (NOW, "schedule", "BELOW_LIMIT", True),
        (NOW, "schedule", "PARALLEL", True),
        (NOW, "schedule", "QUEUED_BEHIND_ACTIVE", False),
        (NOW, "schedule", "MISFIRE_FIRE_NOW", False),
        (NOW, "catchup", "BELOW_LIMIT", False),
        (NOW, "manual", "PARALLEL", False),
        (None, "schedule", "BELOW_LIMIT", False),
    ],
)
def test_only_a_run_that_nothing_held_up_tells_of_our_lateness(
    slot_at: Instant | None, trigger: str, reason: str, is_prompt: bool
) -> None:
    due_at = prompt_due_at(a_task(JITTERED), slot_at, trigger, reason)
    assert due_at == (schedules.fire_at(JITTERED, "j", NOW) if is_prompt else None)


@pytest.mark.spec("X5")
def test_slots_that_were_decided_while_the_clock_was_ahead_are_left_out() -> None:
    task = a_task(concurrency_policy="SKIP")
    decided = decide(task, NOW + 3 * TEN)
    assert [run.start for run in decided.runs] == ["start", "skip", "skip", "skip"]
    nothing = make_windows([], [])
    assert leave_out(task, decided, frozenset(), nothing) is decided
    assert leave_out(task, decided, {(8, NOW)}, nothing) is decided
    first = leave_out(task, decided, {(7, NOW)}, nothing)
    assert (slots_of(first), first.started) == ([NOW + TEN * n for n in (1, 2, 3)], 0)
    assert first.last_status == "skipped"
    assert first.next_slot_at == decided.next_slot_at
    second = leave_out(task, decided, {(7, NOW + TEN)}, nothing)
    assert (second.started, second.last_status) == (1, "skipped")
    lived = make_windows([], [LivedSpan(NOW, NOW + 3 * TEN, 1)])
    only = leave_out(task, decided, frozenset(), lived)
    assert (slots_of(only), only.started, only.last_status) == ([NOW], 1, "")
    every = {(7, NOW + n * TEN) for n in range(4)}
    none = leave_out(task, decided, every, nothing)
    assert (none.runs, none.started, none.last_status) == ((), 0, "")


@pytest.mark.spec("C10")
def test_slots_that_are_due_when_a_task_is_disabled_are_recorded_with_the_reason() -> None:
    task = a_task(Every(SECOND // 10, 0, False), misfire_policy="SKIP")
    dropped = drop_due(task, NOW + GRACE + 20 * SECOND, [], "TASK_DISABLED")
    assert dropped[0].misfire is not None
    assert dropped[0].misfire.count == 200
    slots = [slot for one in dropped for slot in slots_of(one)]
    assert slots == [NOW + (200 + n) * SECOND // 10 for n in range(601)]
    runs = [run for one in dropped for run in one.runs]
    assert {(run.start, run.reason) for run in runs} == {("skip", "TASK_DISABLED")}
    assert {one.started for one in dropped} == {0}


@pytest.mark.parametrize(
    ("task", "count"),
    [
        (a_task(), 1),
        (a_task(fire_at=NOW + 1), 0),
        (a_task(fire_at=None), 0),
        (a_task(next_slot_at=None), 0),
    ],
)
def test_nothing_is_recorded_of_slots_that_are_not_due(task: Task, count: int) -> None:
    assert len(drop_due(task, NOW, [], "TASK_DELETED")) == count


def test_the_next_slot_is_told_with_when_it_fires() -> None:
    fires = schedules.fire_at(JITTERED, "k", NOW)
    assert next_due("k", JITTERED, NOW - 1) == (NOW, fires)
    assert next_due("k", EVERY_TEN, NOW) == (NOW + TEN, NOW + TEN)
    assert next_due("k", Once(NOW), NOW) == (None, None)


def test_what_a_slot_was_skipped_by_is_told() -> None:
    told = limits_of(a_definition(max_concurrency=4, max_queued=9, concurrency_policy="SKIP"))
    assert told == ',"max_concurrency":4,"max_queued":9,"policy":"SKIP"'
