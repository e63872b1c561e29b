"""Jobs that were taken ahead: they wait for a slot, and go back if none comes."""

import asyncio
import logging

import pytest

from ksana.base.instant import SECOND
from ksana.client import held_lease
from ksana.client.job_runner import JobRunner
from ksana.client.lease_runner import MAX_UNSETTLED
from tests.client.runner_house import House
from tests.ground.jumping import LoopClock, loop_time, on_jumping_time, pass_time

pytestmark = pytest.mark.spec("Q11", "Q16")


async def until(jobs: JobRunner, running: int) -> None:
    for _ in range(20):
        await asyncio.sleep(0)
    assert jobs.running == running


async def test_jobs_beyond_the_slots_wait_and_begin_in_their_order(house: House) -> None:
    for name in "abcde":
        house.begin(name)
    assert (house.jobs.running, house.jobs.begun) == (2, 2)
    assert [held.job_id for held in house.jobs.waiting] == ["c", "d", "e"]
    assert set(house.jobs.held) == {"la", "lb", "lc", "ld", "le"}  # all are beaten for
    assert (house.jobs.count_free_slots(), house.jobs.count_room(5)) == (0, 2)
    house.gate.set()
    await until(house.jobs, 0)
    assert [item.job_id for item in house.sent.items] == ["a", "b", "c", "d", "e"]
    assert (house.jobs.begun, house.stats.claimed, len(house.jobs.waiting)) == (5, 5, 0)
    house.sent.length = MAX_UNSETTLED - 1
    assert house.jobs.count_room(5) == 1


async def test_what_was_not_begun_is_given_back_at_a_stop(house: House) -> None:
    first = house.begin("a")
    house.begin("b")
    lost, kept = house.begin("c"), house.begin("d")
    house.jobs._lose(lost, "gone")
    house.jobs.give_back()
    assert [(item.job_id, item.status) for item in house.sent.items] == [("d", "RETURNED")]
    assert kept.phase == held_lease.FINISHED
    assert set(house.jobs.held) == {"la", "lb", "ld"}
    house.jobs.settle(kept, house.sent.items[0], None)
    assert (house.stats.returned, house.stats.lost, house.lost) == (1, 0, [])
    house.gate.set()
    await until(house.jobs, 0)
    assert first.phase == held_lease.FINISHED
    assert [item.job_id for item in house.sent.items[1:]] == ["a", "b"]


async def test_what_waits_too_long_for_a_slot_is_given_back(house: House) -> None:
    for name in "abc":
        house.begin(name)
    await house.clock.advance(SECOND - 1)
    house.begin("d")
    await house.clock.advance(1)
    house.jobs._give_back_stale()
    assert [(item.job_id, item.status) for item in house.sent.items] == [("c", "RETURNED")]
    assert [held.job_id for held in house.jobs.waiting] == ["d"]
    assert house.jobs._watch is not None
    await house.clock.advance(SECOND)
    house.jobs._give_back_stale()
    assert [item.job_id for item in house.sent.items] == ["c", "d"]
    assert house.jobs._watch is None


@on_jumping_time
async def test_each_job_is_given_back_a_second_after_it_came() -> None:
    house = House(LoopClock())
    for name in "abc":
        house.begin(name)
    await pass_time(0.5)
    house.begin("d")
    await pass_time(0.3)
    house.begin("e")
    given_back = []
    for at in (0.99, 1.01, 1.49, 1.51, 1.79, 1.81):
        await pass_time(at - loop_time())
        given_back.append("".join(item.job_id for item in house.sent.items))
    assert given_back == ["", "c", "c", "cd", "cd", "cde"]
    house.gate.set()
    await pass_time()


async def test_a_slot_that_is_free_begins_one_job(house: House) -> None:
    house.begin("a")
    await until(house.jobs, 1)
    of_first, house.gate = house.gate, asyncio.Event()
    for name in "bcd":
        house.begin(name)
    of_first.set()
    await until(house.jobs, 2)
    assert [ctx.job.job_id for ctx in house.seen] == ["a", "b", "c"]
    assert [held.job_id for held in house.jobs.waiting] == ["d"]
    house.gate.set()
    await until(house.jobs, 0)


async def test_a_job_whose_lease_ran_out_while_it_waited_is_logged(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "ksana.client")
    house.begin("a")
    house.begin("b")
    waiting = house.begin("c")
    waiting.fence_at = house.clock.monotonic()
    house.gate.set()
    await until(house.jobs, 0)
    assert caplog.messages == [
        "job c: taken ahead, and the lease is lost: its own lease time has passed"
    ]
    assert waiting.phase == held_lease.LOST


@pytest.mark.parametrize("cause", ["expired", "lost", "cancelled"])
async def test_a_job_that_ended_while_it_waited_is_not_begun(house: House, cause: str) -> None:
    house.begin("a")
    house.begin("b")
    waiting = house.begin("c")
    if cause == "expired":
        waiting.fence_at = house.clock.monotonic()
    elif cause == "lost":
        house.jobs.on_lost_in_thread(waiting, "gone")
    else:
        house.jobs.on_cancel_in_thread(waiting)
    house.gate.set()
    await until(house.jobs, 0)
    assert [ctx.job.job_id for ctx in house.seen] == ["a", "b"]
    assert (house.jobs.begun, house.stats.lost, house.lost) == (2, 0, [])
    sent = [
        (item.job_id, item.status, item.error)
        for item in house.sent.items
        if item.job_id not in ("a", "b")
    ]
    if cause == "cancelled":
        assert sent == [("c", "CANCELED", "the job was cancelled")]
    else:
        assert sent == []
        assert "lc" not in house.jobs.held
