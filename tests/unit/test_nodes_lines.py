"""Nodes: the moves as the table has them, and the line of requests that wait."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ksana.domain.nodes import moves
from ksana.domain.nodes.choice import Wanted
from ksana.domain.nodes.moves import Moved
from ksana.domain.nodes.waiting import WaitingJob, WaitingLine


@pytest.mark.spec("N6")
def test_the_moves_are_those_of_the_lifecycle() -> None:
    assert moves._read_moves() == moves.MOVES
    assert list(moves.MOVES) == ["dispatch", "ack", "start", "finish", "again", "release"]
    assert moves.MOVES["again"].repeats == frozenset()
    assert all(move.target in move.repeats for name, move in moves.MOVES.items() if name != "again")
    assert all(move.name == name for name, move in moves.MOVES.items())


@pytest.mark.parametrize(
    ("result", "holds"),
    [("moved", True), ("repeat", True), ("stale", False), ("illegal", False), ("missing", False)],
)
def test_a_change_holds_if_it_happened_now_or_before(result: str, holds: bool) -> None:
    assert Moved(result).holds is holds  # type: ignore[arg-type]


def a_job(number: int, priority: int, until: int, model: str) -> WaitingJob:
    wanted = Wanted(model=model, key=f"{number}")
    return WaitingJob(f"job-{number}", priority, until, wanted)


STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("add"),
            st.integers(0, 30),
            st.integers(0, 9),
            st.integers(0, 50),
            st.sampled_from("ab"),
        ),
        st.tuples(st.just("remove"), st.integers(0, 30)),
        st.tuples(st.just("overdue"), st.integers(0, 50)),
    ),
    max_size=60,
)


@pytest.mark.spec("N5")
@given(STEPS)
def test_a_line_is_a_list_in_the_order_of_priority_and_age(steps: list[tuple]) -> None:  # type: ignore[type-arg]
    line = WaitingLine()
    known: list[WaitingJob] = []
    for step in steps:
        if step[0] == "add":
            job = a_job(*step[1:])
            line.add(job)
            if all(one.job_id != job.job_id for one in known):
                known.append(job)
        elif step[0] == "remove":
            name = f"job-{step[1]}"
            removed = next((one for one in known if one.job_id == name), None)
            assert (name in line) == (removed is not None)
            assert line.remove(name) == removed
            known = [one for one in known if one is not removed]
        else:
            over = sorted(line.take_overdue(step[1]), key=lambda one: one.job_id)
            wanted = [one for one in known if one.until <= step[1]]
            assert over == sorted(wanted, key=lambda one: one.job_id)
            known = [one for one in known if one.until > step[1]]
        order = sorted(known, key=lambda one: -one.priority)
        assert list(line.in_order()) == order
        assert len(line) == len(known)
        assert line.next_until() == min((one.until for one in known), default=None)
        only_b = [one for one in order if one.wanted.model == "b"]
        without = {one.kind for one in known if one.wanted.model == "a"}
        assert line.first(3, without) == only_b[:3]


@pytest.mark.spec("N5")
def test_requests_that_come_and_go_leave_nothing_behind() -> None:
    line = WaitingLine()
    for number in range(5000):
        line.add(a_job(number, 5, 10_000 - number, "a"))
        if number >= 10:
            line.remove(f"job-{number - 10}")
            assert len(line._untils) <= 66
    assert line.next_until() == 10_000 - 4999
    assert [one.job_id for one in line.take_overdue(10_000 - 4998)] == ["job-4999", "job-4998"]


@pytest.mark.spec("N5")
def test_a_job_that_left_and_came_again_waits_for_its_new_time() -> None:
    line = WaitingLine()
    line.add(a_job(1, 5, 10, "a"))
    line.remove("job-1")
    line.add(a_job(1, 5, 20, "a"))
    assert line.take_overdue(10) == []
    assert line.next_until() == 20
    assert [one.until for one in line.take_overdue(20)] == [20]


@pytest.mark.spec("N5")
def test_what_left_the_line_is_swept_when_it_is_most_of_the_heap() -> None:
    line = WaitingLine()
    for number in range(200):
        line.add(a_job(number, 5, 1000 - number, "a"))
    for number in range(100):
        line.remove(f"job-{number}")
        assert len(line._untils) == 200, "half of it is alive"
    line.remove("job-100")
    assert len(line._untils) == 99
    assert line.next_until() == 1000 - 199
    few = WaitingLine()
    for number in range(65):
        few.add(a_job(number, 5, number, "a"))
    few.remove("job-0")
    for number in range(1, 33):
        few.remove(f"job-{number}")
    assert len(few._untils) == 32, "it is swept when less than half is alive"
    small = WaitingLine()
    for number in range(64):
        small.add(a_job(number, 5, number, "a"))
    for number in range(64):
        small.remove(f"job-{number}")
    assert len(small._untils) == 64, "a small heap is left as it is"
    assert small.next_until() is None
