"""Nodes: deadlines of attempts and the line of jobs without a node, over a home that only notes."""

import asyncio

import pytest

from ksana.base.clock import VirtualClock
from ksana.base.instant import HOUR, SECOND
from ksana.domain.nodes.choice import Wanted
from ksana.domain.nodes.waiting import WaitingJob
from ksana.engine.core.pump import Pump
from ksana.engine.nodes.background import Background
from ksana.engine.nodes.job_watch import JobWatch


class Home:
    """Notes who is called. Jobs of a model in `full` find no node."""

    def __init__(self, clock: VirtualClock) -> None:
        self.watch = JobWatch(clock, Background(), self)
        self.overdue_ones: list[tuple[str, int]] = []
        self.given_up: list[str] = []
        self.asked: list[str] = []
        self.full: set[str] = set()

    async def overdue(self, job_id: str, attempt: int) -> None:
        self.overdue_ones.append((job_id, attempt))

    async def give_up_waiting(self, job_id: str) -> None:
        self.given_up.append(job_id)

    async def place_waiting(self, job_id: str) -> bool:
        self.asked.append(job_id)
        if job_id[0] in self.full:
            return False
        self.watch.line.remove(job_id)
        return True


@pytest.fixture
def home(clock: VirtualClock) -> Home:
    return Home(clock)


def a_job(job_id: str, until: int = 0, priority: int = 5) -> WaitingJob:
    return WaitingJob(job_id, priority, until, Wanted(model=job_id[0]))


def is_signalled(pump: Pump) -> bool:
    was_set = pump._wake.is_set()
    pump._wake.clear()
    return was_set


def test_the_loop_of_deadlines_is_woken_only_by_one_that_is_sooner(
    home: Home, clock: VirtualClock
) -> None:
    now, woken = clock.now(), []
    for after_us in (5, 9, 5, 4):
        home.watch.arm("j", 1, now + after_us)
        woken.append(is_signalled(home.watch.deadlines))
    assert woken == [True, False, False, True]
    home.watch.wait(a_job("a", now + 99))
    assert is_signalled(home.watch.deadlines)


async def test_all_deadlines_that_have_come_are_told_and_the_next_one_is_answered(
    home: Home, clock: VirtualClock
) -> None:
    at = clock.now() + SECOND
    home.watch.arm("late", 4, at + 1)
    home.watch.arm("a", 1, at)
    home.watch.arm("b", 2, at - 1)
    assert await home.watch.deadlines._step() == at - 1
    await clock.advance(SECOND)
    assert await home.watch.deadlines._step() == at + 1
    await clock.settle()
    assert home.overdue_ones == [("b", 2), ("a", 1)]
    await clock.advance(1)
    assert await home.watch.deadlines._step() is None


async def test_jobs_whose_time_in_line_is_over_give_up(home: Home, clock: VirtualClock) -> None:
    at = clock.now() + SECOND
    for job_id, until in (("a", at), ("b", at + 2)):
        home.watch.wait(a_job(job_id, until))
    assert await home.watch.deadlines._step() == at
    home.watch.arm("j", 1, at + 1)
    await clock.advance(SECOND)
    assert await home.watch.deadlines._step() == at + 1
    await clock.advance(1)
    assert await home.watch.deadlines._step() == at + 2
    assert home.given_up == ["a"]
    assert [job.job_id for job in home.watch.line.in_order()] == ["b"]


async def test_free_slots_are_offered_in_the_order_of_the_line_until_all_have_one(
    home: Home,
) -> None:
    jobs = [f"a{number:02d}" for number in range(40)]
    for job_id in jobs:
        home.watch.line.add(a_job(job_id))
    home.watch.line.add(a_job("b-urgent", priority=9))
    assert await home.watch.offer._step() is None
    assert home.asked == ["b-urgent", *jobs]
    assert len(home.watch.line) == 0


async def test_who_comes_into_an_empty_line_is_offered_at_once_and_every_second(
    home: Home, clock: VirtualClock
) -> None:
    home.full = {"a"}
    running = asyncio.create_task(home.watch.offer.run())
    await clock.advance(10 * SECOND)
    assert home.watch.offer.steps == 1, "nobody waits"
    home.watch.wait(a_job("a1", clock.now() + HOUR))
    await clock.settle()
    assert home.asked == ["a1"], "its slot may have come free before it stood in line"
    home.watch.wait(a_job("a2", clock.now() + HOUR))
    await clock.settle()
    assert home.asked == ["a1"], "the others are asked with the first"
    await clock.advance(2 * SECOND)
    assert home.asked == ["a1", "a1", "a2", "a1", "a2"]
    running.cancel()


async def test_where_the_first_of_a_class_find_nothing_nobody_of_it_is_asked(home: Home) -> None:
    home.full = {"a"}
    for number in range(40):
        home.watch.line.add(a_job(f"a{number:02d}", priority=9))
        home.watch.line.add(a_job(f"b{number:02d}"))
    await home.watch.offer._step()
    assert sorted(home.asked) == [
        *(f"a{number:02d}" for number in range(32)),
        *(f"b{number:02d}" for number in range(40)),
    ]
    assert len(home.watch.line) == 40


def test_the_loops_are_known_by_their_names(home: Home) -> None:
    assert (home.watch.deadlines.name, home.watch.offer.name) == ("node-deadlines", "node-line")
