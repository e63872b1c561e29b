"""A simulation step by step: what is counted, where it ends, and outages that meet calls."""

from typing import Any

import pytest

from ksana.base.instant import HOUR, MINUTE, SECOND, Instant
from ksana.domain.schedule import Every, Once
from ksana.domain.tasks.records import Definition, Options, RetryPolicy
from ksana.domain.tasks.simulation import Scenario, SimulatedTask, Simulation, simulate

pytestmark = pytest.mark.spec("B3")

NOON: Instant = 1_800_000_000 * SECOND


def a_task(takes_us: int = SECOND, every_us: int = MINUTE, **members: Any) -> SimulatedTask:
    fails = members.pop("fails", ())
    given = {"timeout_us": HOUR, **members}
    schedule = given.pop("schedule", Every(every_us, NOON, False))
    return SimulatedTask(Definition("t", "", schedule, **given), takes_us, tuple(fails))


def run(*tasks: SimulatedTask, lasts: int = 10 * MINUTE, steps: int = 20_000, **more: Any) -> Any:
    return simulate(Scenario(NOON, NOON + lasts, tasks, **more), steps)


def at(minutes: float) -> Instant:
    return NOON + round(minutes * MINUTE)


def test_the_end_of_its_time_is_not_of_its_time() -> None:
    assert len(run(a_task(), lasts=MINUTE).runs) == 0
    assert len(run(a_task(), lasts=MINUTE + 1).runs) == 1
    found: Simulation = run(a_task(), lasts=5 * MINUTE)
    assert (len(found.runs), found.until, found.is_cut) == (4, at(5), False)


@pytest.mark.parametrize(
    ("steps", "runs", "attempts", "is_cut"),
    [
        (0, 0, 0, True),
        # A slot is decided, its run is entered, its call begins, and ends: four steps.
        (3, 1, 1, True),
        (4, 1, 1, True),
        (5, 2, 2, True),
        (7, 2, 2, True),
        (8, 2, 2, True),
        (16, 4, 4, False),
        (17, 4, 4, False),
    ],
)
def test_a_simulation_makes_so_many_steps(
    steps: int, runs: int, attempts: int, is_cut: bool
) -> None:
    found = run(a_task(), lasts=5 * MINUTE, steps=steps)
    assert (len(found.runs), found.tallies[0].attempts) == (runs, attempts)
    assert found.is_cut is is_cut
    assert found.until == (at(5) if not is_cut else found.until)
    if is_cut and steps:
        assert found.until <= at(runs) + SECOND


def test_every_end_is_counted_once_by_its_status() -> None:
    retry = RetryPolicy(max_retries=1, initial_delay_us=5 * SECOND)
    found = run(a_task(retry=retry, fails=[(at(2), at(3))]), lasts=4 * MINUTE)
    tally = found.tallies[0]
    assert (tally.fired, tally.attempts) == (3, 4)
    assert dict(tally.by_status) == {"SUCCESS": 2, "FAILED": 1}
    assert [one.status for one in found.runs] == ["SUCCESS", "FAILED", "SUCCESS"]
    assert [len(one.attempts) for one in found.runs] == [1, 2, 1]
    assert (tally.most_active, tally.longest_wait_us) == (1, 0)
    assert found.runs[1].attempts[0].end == "FAILED"


def test_a_slot_that_is_skipped_ends_where_it_was_decided() -> None:
    found = run(a_task(150 * SECOND, concurrency_policy="SKIP"), lasts=3 * MINUTE)
    first, second = found.runs
    assert (first.status, second.status) == ("RUNNING", "SKIPPED")
    assert (second.ended_at, second.attempts) == (at(2), [])
    assert dict(found.tallies[0].skipped) == {"CONCURRENCY_LIMIT": 1}


def test_a_run_that_waits_is_scheduled_until_its_turn() -> None:
    task = a_task(90 * SECOND, concurrency_policy="QUEUE", options=Options(max_queued=5))
    found = run(task, lasts=130 * SECOND)
    assert [one.status for one in found.runs] == ["RUNNING", "SCHEDULED"]
    later = run(task, lasts=4 * MINUTE)
    assert later.runs[1].attempts[0].started_at == at(2.5)
    assert later.tallies[0].longest_wait_us == 30 * SECOND
    assert later.tallies[0].most_waiting == 1


def test_a_run_that_found_no_capacity_is_scheduled() -> None:
    found = run(a_task(HOUR), a_task(), lasts=2 * MINUTE, capacity=1)
    assert [one.status for one in found.runs] == ["RUNNING", "SCHEDULED"]
    assert (found.most_calls, found.most_ready) == (1, 1)
    nothing = run(a_task(), lasts=MINUTE)
    assert (nothing.most_calls, nothing.most_ready) == (0, 0)


def test_calls_beyond_the_capacity_wait_in_order() -> None:
    slow = a_task(150 * SECOND, concurrency_policy="PARALLEL", max_concurrency=9)
    found = run(slow, a_task(), lasts=4 * MINUTE, capacity=1)
    assert found.most_calls == 1
    assert found.most_ready >= 2
    first, second = found.runs[0], found.runs[1]
    assert (first.task, second.task) == (0, 1)  # those that are due together, in their order
    assert second.attempts[0].started_at == at(3.5)


def test_a_call_under_way_when_an_outage_begins_is_lost_and_tried_again() -> None:
    retry = RetryPolicy(max_retries=3, initial_delay_us=SECOND)
    task = a_task(30 * SECOND, 5 * MINUTE, retry=retry)
    found = run(task, lasts=9 * MINUTE, outages=((at(5.25), at(7)),))
    [one] = found.runs
    assert (one.attempts[0].end, one.attempts[0].ended_at) == ("LOST", at(5.25))
    assert one.attempts[1].started_at >= at(7)
    assert (one.status, found.tallies[0].attempts) == ("SUCCESS", 2)
    assert found.most_calls == 1


def test_of_several_attempts_the_one_under_way_is_lost() -> None:
    retry = RetryPolicy(max_retries=3, initial_delay_us=SECOND)
    task = a_task(30 * SECOND, 5 * MINUTE, retry=retry, fails=[(at(5), at(5.01))])
    found = run(task, lasts=9 * MINUTE, outages=((at(5.75), at(7)),))
    ends = [(call.end, call.ended_at) for call in found.runs[0].attempts]
    assert ends == [("FAILED", at(5.5)), ("LOST", at(5.75)), ("SUCCESS", at(7.5))]


def test_after_an_outage_the_capacity_is_what_it_was() -> None:
    tasks = (a_task(30 * SECOND), a_task(30 * SECOND))
    found = run(*tasks, lasts=2 * MINUTE, capacity=1, outages=((at(0.2), at(0.4)),))
    assert [one.attempts[0].started_at for one in found.runs] == [at(1), at(1.5)]


def test_a_run_that_was_lost_and_finds_no_capacity_waits_for_its_next_attempt() -> None:
    lost = a_task(10 * MINUTE, schedule=Once(at(1)), retry=RetryPolicy(max_retries=1))
    missed = a_task(30 * MINUTE, schedule=Once(at(3)))
    found = run(lost, missed, lasts=6 * MINUTE, capacity=1, outages=((at(2), at(4)),))
    assert [one.status for one in found.runs] == ["RETRYING", "RUNNING"]


def test_a_call_that_ends_with_its_timeout_is_in_time() -> None:
    found = run(a_task(5 * SECOND, timeout_us=5 * SECOND), lasts=2 * MINUTE)
    assert found.runs[0].status == "SUCCESS"


def test_a_pause_that_ends_in_an_outage_is_over_when_it_ends() -> None:
    retry = RetryPolicy(max_retries=3, initial_delay_us=20 * SECOND)
    task = a_task(SECOND, 5 * MINUTE, retry=retry, fails=[(at(5), at(5.01))])
    found = run(task, lasts=9 * MINUTE, outages=((at(5.1), at(6)), (at(6.5), at(7))))
    [one] = found.runs
    assert [call.started_at for call in one.attempts] == [at(5), at(6)]
    assert one.status == "SUCCESS"
    # One whose pause goes on beyond the outage is left to it.
    long = RetryPolicy(max_retries=3, initial_delay_us=3 * MINUTE)
    task = a_task(SECOND, 5 * MINUTE, retry=long, fails=[(at(5), at(5.01))])
    found = run(task, lasts=9 * MINUTE, outages=((at(5.1), at(6)),))
    assert [call.started_at for call in found.runs[0].attempts] == [at(5), at(8) + SECOND]


def test_slots_of_the_second_outage_are_judged_by_the_second() -> None:
    task = a_task(misfire_policy="SKIP")
    found = run(task, lasts=10 * MINUTE, outages=((at(1.5), at(3.5)), (at(5.5), at(8.5))))
    slots = [(one.slot_at - NOON) // MINUTE for one in found.runs]
    assert slots == [1, 4, 5, 9]
    assert dict(found.tallies[0].skipped) == {"MISFIRE_SKIP": 5}


def test_a_task_without_a_slot_left_fires_no_more() -> None:
    found = run(a_task(schedule=Once(at(2))), lasts=5 * MINUTE, outages=((at(3), at(4)),))
    assert [one.slot_at for one in found.runs] == [at(2)]
    assert found.until == at(5)
