"""Deadlines of attempts, what follows a failure, storms and the line of waiting requests."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ksana.base.instant import SECOND
from ksana.domain.nodes.attempts import (
    MOST_REFUSALS,
    Again,
    AttemptLimits,
    AttemptTimes,
    GiveUp,
    decide_after_failure,
    next_deadline,
    reservation_life,
    result_deadline,
)
from ksana.domain.nodes.choice import Wanted
from ksana.domain.nodes.records import JobError, JobProgress
from ksana.domain.nodes.storm import StormLimits, judge_mark
from ksana.domain.nodes.waiting import WaitingJob, WaitingLine

LIMITS = AttemptLimits()
T0 = 1_000 * SECOND


@pytest.mark.spec("N12")
@pytest.mark.parametrize(
    ("times", "timeout_us", "expected"),
    [
        (AttemptTimes(T0), None, (T0 + 10 * SECOND, "NO_ACK")),
        (AttemptTimes(T0, T0 + 2 * SECOND), None, (T0 + 32 * SECOND, "NO_START")),
        (AttemptTimes(T0, T0 + 1, T0 + 2), None, (T0 + 60 * SECOND, "NO_RESULT")),
        (AttemptTimes(T0), 3 * SECOND, (T0 + 3 * SECOND, "NO_RESULT")),
        (AttemptTimes(T0), 10 * SECOND, (T0 + 10 * SECOND, "NO_RESULT")),
        (AttemptTimes(T0, T0 + 1), 20 * SECOND, (T0 + 20 * SECOND, "NO_RESULT")),
        (AttemptTimes(T0, T0 + SECOND), 31 * SECOND, (T0 + 31 * SECOND, "NO_RESULT")),
        (AttemptTimes(T0, T0 + 1, T0 + 2), 300 * SECOND, (T0 + 300 * SECOND, "NO_RESULT")),
    ],
)
def test_each_stage_has_its_deadline_and_the_result_bounds_them_all(
    times: AttemptTimes, timeout_us: int | None, expected: tuple[int, str]
) -> None:
    assert next_deadline(LIMITS, times, timeout_us) == expected


@pytest.mark.spec("N6", "N12")
@given(st.none() | st.integers(1, 10**10))
def test_a_reservation_outlives_its_attempt(timeout_us: int | None) -> None:
    assert T0 + reservation_life(LIMITS, timeout_us) > result_deadline(LIMITS, T0, timeout_us)


@pytest.mark.spec("N12")
def test_three_attempts_on_three_nodes_then_the_end() -> None:
    progress = JobProgress()
    for node_id in ("a", "b"):
        decision = decide_after_failure(LIMITS, progress, node_id, "NO_ACK")
        assert isinstance(decision, Again)
        progress = decision.progress
    assert progress.tried == ("a", "b")
    assert progress.last_error is not None
    end = decide_after_failure(LIMITS, progress, "c", "NODE_GONE")
    assert end == GiveUp(error=JobError(code="NODE_GONE", message="the node went away"))


@pytest.mark.spec("N11", "N12")
def test_a_node_without_the_model_costs_no_attempt_but_not_for_ever() -> None:
    progress = JobProgress()
    for number in range(MOST_REFUSALS - 1):
        decision = decide_after_failure(LIMITS, progress, f"n{number}", "MODEL_NOT_AVAILABLE")
        assert isinstance(decision, Again)
        assert decision.progress.failures == 0
        progress = decision.progress
    assert isinstance(decide_after_failure(LIMITS, progress, "z", "MODEL_NOT_AVAILABLE"), GiveUp)


@pytest.mark.spec("N11", "N12")
def test_failures_and_refusals_are_counted_apart() -> None:
    progress = JobProgress(tried=("a", "b", *map(str, range(7))), failures=2)
    decision = decide_after_failure(LIMITS, progress, "y", "MODEL_NOT_AVAILABLE")
    assert isinstance(decision, Again), "two have failed, eight have refused"
    assert (len(decision.progress.tried), decision.progress.failures) == (10, 2)
    progress = JobProgress(tried=("a", *map(str, range(9))), failures=1)
    assert isinstance(decide_after_failure(LIMITS, progress, "y", "MODEL_NOT_AVAILABLE"), GiveUp)
    assert isinstance(decide_after_failure(LIMITS, progress, "y", "NO_ACK"), Again)


@pytest.mark.spec("N12")
def test_a_failure_that_the_node_reports_is_final_and_told_as_it_is() -> None:
    error = JobError(code="OUT_OF_MEMORY", message="no")
    decision = decide_after_failure(LIMITS, JobProgress(), "a", "JOB_FAILED", error)
    assert decision == GiveUp(error=error)


@pytest.mark.spec("N11")
@given(st.lists(st.tuples(st.integers(0, 40_000_000), st.sampled_from("abc")), max_size=200))
def test_marks_are_debounced_and_limited_whatever_comes(said: list[tuple[int, str]]) -> None:
    limits = StormLimits(most=4)
    marked_at: dict[str, int] = {}
    marks: list[int] = []
    for now, model in sorted(said):
        result = judge_mark(limits, now, marked_at.get(model), marks)
        if result == "marked":
            assert now - marked_at.get(model, -(10**9)) >= limits.debounce_us
            marked_at[model] = now
            marks.append(now)
            assert sum(1 for at in marks if at > now - limits.window_us) <= limits.most
        elif result == "debounced":
            assert now - marked_at[model] < limits.debounce_us


def waiting(job_id: str, priority: int = 5, until: int = 10) -> WaitingJob:
    return WaitingJob(job_id=job_id, priority=priority, until=until, wanted=Wanted(model="echo"))


@pytest.mark.spec("N5")
def test_the_line_is_by_priority_then_by_age() -> None:
    line = WaitingLine()
    for job_id, priority in (("a", 5), ("b", 9), ("c", 5), ("d", 0), ("e", 9)):
        line.add(waiting(job_id, priority))
    assert [job.job_id for job in line.in_order()] == ["b", "e", "a", "c", "d"]
    assert [job.job_id for job in line.first(2)] == ["b", "e"]
    line.remove("e")
    assert [job.job_id for job in line.first(2)] == ["b", "a"]
    assert len(line) == 4
    assert "e" not in line


@pytest.mark.spec("N5")
def test_classes_that_found_nothing_are_left_out() -> None:
    line = WaitingLine()
    for number in range(4):
        model = "echo" if number % 2 else "sum"
        wanted = Wanted(model=model, key=str(number))
        line.add(WaitingJob(job_id=str(number), priority=5, until=9, wanted=wanted))
    (first,) = line.first(1)
    assert [job.job_id for job in line.first(9, {first.kind})] == ["1", "3"]
    assert line.first(9, {job.kind for job in line.in_order()}) == []


@pytest.mark.spec("N5")
def test_who_leaves_and_comes_back_stands_at_the_end() -> None:
    line = WaitingLine()
    line.add(waiting("a"))
    line.add(waiting("b"))
    assert line.remove("a") is not None
    assert line.remove("a") is None
    line.add(waiting("a"))
    line.add(waiting("a"))
    assert [job.job_id for job in line.in_order()] == ["b", "a"]


@pytest.mark.spec("N5")
def test_who_waited_too_long_is_taken_out() -> None:
    line = WaitingLine()
    line.add(waiting("a", until=5))
    line.add(waiting("b", until=7))
    assert line.next_until() == 5
    assert [job.job_id for job in line.take_overdue(5)] == ["a"]
    assert line.next_until() == 7
    assert line.take_overdue(6) == []


@given(st.lists(st.tuples(st.sampled_from(["add", "remove"]), st.integers(0, 99)), max_size=300))
def test_the_line_holds_what_was_added_and_not_removed(steps: list[tuple[str, int]]) -> None:
    line = WaitingLine()
    model: dict[str, int] = {}
    for step, number in steps:
        job_id = f"j{number}"
        if step == "add":
            line.add(waiting(job_id, number % 10))
            model.setdefault(job_id, number % 10)
        else:
            assert (line.remove(job_id) is not None) == (model.pop(job_id, None) is not None)
    order = [job.job_id for job in line.in_order()]
    assert sorted(order) == sorted(model)
    priorities = [model[job_id] for job_id in order]
    assert priorities == sorted(priorities, reverse=True)
    assert len(line) == len(model)
