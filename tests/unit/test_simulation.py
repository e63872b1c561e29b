"""What tasks would do: decided as production decides, bounded in steps."""

from typing import Any

import pytest

from ksana.base.instant import DAY, HOUR, MINUTE, SECOND, Instant
from ksana.domain.schedule import Every
from ksana.domain.tasks.records import Definition, Options, RetryPolicy
from ksana.domain.tasks.simulation import (
    MAX_RUNS,
    Scenario,
    SimulatedTask,
    Simulation,
    merge_spans,
    simulate,
)

pytestmark = pytest.mark.spec("B3")

NOON: Instant = 1_800_000_000 * SECOND


def a_task(every_us: int, takes_us: int = SECOND, **members: Any) -> SimulatedTask:
    fails = members.pop("fails", ())
    given = {"timeout_us": HOUR, **members}
    return SimulatedTask(
        Definition("t", "", Every(every_us, NOON, False), **given), takes_us, tuple(fails)
    )


def run(*tasks: SimulatedTask, lasts: int = 10 * MINUTE, **members: Any) -> Simulation:
    return simulate(Scenario(NOON, NOON + lasts + 1, tasks, **members))


def states(found: Simulation) -> list[str]:
    return [run.status for run in found.runs]


def test_slots_are_fired_and_their_calls_end_after_their_time() -> None:
    found = run(a_task(MINUTE, 10 * SECOND))
    assert len(found.runs) == found.tallies[0].fired == 10
    assert states(found)[:9] == ["SUCCESS"] * 9
    first = found.runs[0]
    assert (first.slot_at, first.attempts[0].started_at) == (NOON + MINUTE, NOON + MINUTE)
    assert first.ended_at == NOON + MINUTE + 10 * SECOND
    assert (found.most_calls, found.is_cut) == (1, False)


@pytest.mark.parametrize(
    ("policy", "fired", "skipped"),
    [
        ("SKIP", 4, {"CONCURRENCY_LIMIT": 6}),
        ("QUEUE", 7, {"QUEUE_FULL": 3}),
        ("PARALLEL", 10, {}),
    ],
)
def test_a_call_that_is_longer_than_its_interval_meets_the_policy(
    policy: str, fired: int, skipped: dict[str, int]
) -> None:
    found = run(
        a_task(MINUTE, 150 * SECOND, concurrency_policy=policy, options=Options(max_queued=3))
    )
    tally = found.tallies[0]
    assert (tally.fired, dict(tally.skipped)) == (fired, skipped)
    assert tally.most_active == (3 if policy == "PARALLEL" else 1)
    assert tally.most_waiting == (3 if policy == "QUEUE" else 0)


@pytest.mark.parametrize(
    ("policy", "limit", "fired", "skipped"),
    [("SKIP", 0, 5, 5), ("FIRE_NOW", 0, 6, 4), ("CATCH_UP_LIMITED", 3, 8, 2)],
)
def test_slots_of_an_outage_meet_the_misfire_policy(
    policy: str, limit: int, fired: int, skipped: int
) -> None:
    outage = (NOON + 90 * SECOND, NOON + 390 * SECOND)
    found = run(a_task(MINUTE, misfire_policy=policy, catchup_limit=limit), outages=(outage,))
    tally = found.tallies[0]
    assert tally.fired == fired
    assert dict(tally.skipped) == {f"MISFIRE_{policy}": skipped}


def test_a_call_under_way_when_an_outage_begins_is_lost_and_tried_again() -> None:
    outage = (NOON + 65 * SECOND, NOON + 100 * SECOND)
    task = a_task(MINUTE, 10 * SECOND, retry=RetryPolicy(max_retries=1))
    found = run(task, lasts=2 * MINUTE, outages=(outage,))
    first = found.runs[0]
    assert [one.end for one in first.attempts] == ["LOST", "SUCCESS"]
    assert first.attempts[1].started_at == outage[1]
    found = run(a_task(MINUTE, 10 * SECOND), lasts=2 * MINUTE, outages=(outage,))
    assert (found.runs[0].status, found.runs[0].reason) == ("FAILED", "ORPHANED_NO_RETRY_LEFT")


def test_a_failing_target_is_tried_again_with_the_pauses_of_its_policy() -> None:
    retry = RetryPolicy(max_retries=3, initial_delay_us=10 * SECOND, strategy="exponential")
    failing = (NOON, NOON + 95 * SECOND)
    found = run(a_task(MINUTE, retry=retry, fails=[failing]), lasts=3 * MINUTE)
    first = found.runs[0]
    starts = [(one.started_at - NOON) // SECOND for one in first.attempts]
    assert starts == [60, 71, 92, 133]
    assert [one.end for one in first.attempts] == ["FAILED", "FAILED", "FAILED", "SUCCESS"]
    never = run(a_task(MINUTE, fails=[(NOON, NOON + DAY)]), lasts=3 * MINUTE)
    assert {run.reason for run in never.runs[:2]} == {"NO_RETRIES"}
    slow = run(a_task(MINUTE, 20 * SECOND, timeout_us=5 * SECOND), lasts=2 * MINUTE)
    assert slow.runs[0].status == "TIMEOUT"


def test_capacity_holds_calls_back_and_never_more_are_under_way() -> None:
    tasks = [a_task(MINUTE, 20 * SECOND) for _ in range(6)]
    found = run(*tasks, capacity=2)
    assert (found.most_calls, found.most_ready) == (2, 4)
    assert max(tally.longest_wait_us for tally in found.tallies) == 40 * SECOND
    assert run(*tasks).most_calls == 6


def test_a_simulation_is_bounded_in_steps_and_in_what_it_tells() -> None:
    found = run(a_task(SECOND, SECOND // 2), lasts=30 * DAY)
    assert found.is_cut
    assert NOON < found.until < NOON + 3 * HOUR
    assert len(found.runs) == MAX_RUNS
    assert found.runs_left_out == found.tallies[0].fired - MAX_RUNS > 1000


def test_a_long_outage_costs_no_more_than_a_short_one() -> None:
    task = a_task(SECOND, misfire_policy="SKIP")
    found = run(task, lasts=30 * DAY + 10 * SECOND, outages=((NOON, NOON + 30 * DAY),))
    assert not found.is_cut
    assert found.tallies[0].skipped == {"MISFIRE_SKIP": 30 * 86_400}
    assert found.tallies[0].fired == 10


def test_max_runs_ends_it() -> None:
    found = run(a_task(MINUTE, options=Options(max_runs=3)))
    assert found.tallies[0].fired == 3


def test_spans_that_touch_are_one() -> None:
    assert merge_spans([(5, 9), (1, 3), (3, 4), (8, 12)]) == ((1, 4), (5, 12))
    assert merge_spans([(1, 9), (20, 29), (22, 25), (23, 24)]) == ((1, 9), (20, 29))
