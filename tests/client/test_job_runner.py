"""The jobs a worker holds, from the claim's answer to the answer to their results, on the virtual
clock."""

import asyncio
from typing import Any

import pytest

from ksana.base.instant import SECOND
from ksana.client import held_lease
from ksana.client.context import JobCancelled, JobContext
from ksana.client.errors import from_body
from ksana.client.handlers import HandlerOutcome, Registered
from ksana.client.lease_runner import MAX_UNSETTLED
from ksana.client.shapes import ReleaseItem
from ksana.client.stats import WorkerStats
from tests.client.runner_house import TTL, House

pytestmark = pytest.mark.spec("Q11", "Q16")


async def test_a_job_runs_and_its_result_is_sent_under_its_lease(house: House) -> None:
    held = house.begin()
    assert (house.jobs.running, house.jobs.count_free_slots()) == (1, 1)
    assert held.fence_at == 80 * SECOND
    assert house.jobs.tasks == [held.task]
    await asyncio.sleep(0)
    house.gate.set()
    await held.task
    [item] = house.sent.items
    assert (item.lease_id, item.job_id, item.worker_id, item.lease_token) == ("lj", "j", "w", "k")
    assert (item.status, item.error, item.retry) == ("SUCCEEDED", None, True)
    assert held.phase == held_lease.FINISHED
    assert (house.jobs.running, house.jobs.has_room.is_set()) == (0, True)
    assert "lj" in house.jobs.held  # until the server has answered
    house.jobs.settle(held, item, None)
    assert house.jobs.held == {}
    assert (house.stats.claimed, house.stats.succeeded) == (1, 1)


@pytest.mark.parametrize(
    ("status", "counted"),
    [
        ("SUCCEEDED", "succeeded"),
        ("FAILED", "failed"),
        ("CANCELED", "cancelled"),
        ("TIMEOUT", "timed_out"),
        ("RETURNED", "returned"),
    ],
)
async def test_an_answer_is_counted_by_how_the_job_ended(
    house: House, status: str, counted: str
) -> None:
    held = house.begin()
    item = ReleaseItem(lease_id="lj", job_id="j", worker_id="w", status=status)
    house.jobs.settle(held, item, None)
    counts = {name: getattr(house.stats, name) for name in WorkerStats.__slots__}
    assert counts.pop("claimed") == 1
    assert [name for name, count in counts.items() if count] == [counted]
    assert getattr(house.stats, counted) == 1
    assert house.jobs.has_room.is_set()
    house.jobs.settle(held, item, None)
    assert getattr(house.stats, counted) == 2


async def test_a_refused_result_is_lost_and_told(house: House) -> None:
    held = house.begin()
    item = ReleaseItem(lease_id="lj", job_id="j", worker_id="w", status="SUCCEEDED")
    house.jobs.settle(held, item, from_body(409, {"code": "LEASE_LOST", "message": "gone"}))
    assert (held.phase, house.stats.lost, house.stats.succeeded) == (held_lease.LOST, 1, 0)
    assert house.lost == [("j", "409 LEASE_LOST: gone")]


async def test_a_job_comes_once_and_not_without_a_lease(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    first = house.begin()
    assert house.begin() is first
    assert house.begin("x", lease_id=None) is None
    assert (house.jobs.running, house.stats.claimed) == (1, 1)
    assert caplog.messages == ["job x was claimed with a lease and came without"]


async def test_a_lease_kept_meanwhile_counts_from_its_last_beat(house: House) -> None:
    house.beats.kept = {"la": 55 * SECOND, "lb": 10 * SECOND}
    assert house.begin("a").fence_at == 85 * SECOND
    assert house.begin("b").fence_at == 80 * SECOND
    assert house.beats.kept == {}


async def test_a_job_of_an_unknown_type_fails_and_says_so(house: House) -> None:
    held = house.begin(job_type="other")
    assert held.is_async is False
    await held.task
    [item] = house.sent.items
    assert (item.status, item.retry) == ("FAILED", True)
    assert "no handler for 'other'" in str(item.error)
    assert house.begin("k").is_async is True


async def test_free_slots_are_bounded_by_results_that_wait(house: House) -> None:
    house.sent.length = MAX_UNSETTLED - 1
    assert house.jobs.count_free_slots() == 1
    house.sent.length = MAX_UNSETTLED - 5
    assert house.jobs.count_free_slots() == 2
    assert await house.jobs.drain(1.0) == 0
    house.sent.is_drained = False
    assert await house.jobs.drain(1.0) == 2


async def test_progress_wakes_the_heartbeats_once_until_it_was_sent(house: House) -> None:
    held = house.begin()
    await asyncio.sleep(0)
    [ctx] = house.seen
    ctx.progress(0.5)
    ctx.progress(None, "more")
    assert (held.progress, held.message, held.reported) == (0.5, "more", 2)
    assert house.beats.wakes == 1
    held.sent = 2
    ctx.progress(0.0)
    assert (held.progress, held.message, house.beats.wakes) == (0.0, "more", 2)


@pytest.mark.parametrize("by_thread", [False, True])
async def test_a_lost_lease_stops_the_handler_and_sends_nothing(
    house: House, by_thread: bool
) -> None:
    held = house.begin()
    await asyncio.sleep(0)
    if by_thread:
        house.jobs.on_lost_in_thread(held, "gone")
        assert held.cancelled.reason == "the lease is lost: gone"
        assert held.phase == held_lease.RUNNING  # the rest happens on the loop
        await asyncio.sleep(0)
    else:
        house.jobs._lose(held, "gone")
    assert held.phase == held_lease.LOST
    await asyncio.wait([held.task])
    assert (house.sent.items, house.jobs.held, house.jobs.running) == ([], {}, 0)
    assert house.lost == [("j", "gone")]
    assert house.stats.lost == 1
    house.jobs._lose(held, "again")
    house.jobs.on_lost_in_thread(held, "again")
    assert house.stats.lost == 1


@pytest.mark.parametrize("passed", [TTL - 1, TTL])
async def test_a_result_after_its_own_lease_time_is_dropped(house: House, passed: int) -> None:
    held = house.begin()
    await asyncio.sleep(0)
    await house.clock.advance(passed)
    house.gate.set()
    await asyncio.wait([held.task])
    assert len(house.sent.items) == (1 if passed < TTL else 0)
    assert house.lost == ([] if passed < TTL else [("j", "its own lease time has passed")])
    assert ("lj" in house.jobs.held) is (passed < TTL)


async def test_a_cancelled_job_ends_cancelled(house: House) -> None:
    held = house.begin()
    await asyncio.sleep(0)
    house.jobs.on_cancel_in_thread(held)
    assert held.cancelled.reason == "the job was cancelled"
    assert held.cause == held_lease.BY_CANCEL
    await asyncio.sleep(0)
    await asyncio.wait([held.task])
    [item] = house.sent.items
    assert (item.status, item.error) == ("CANCELED", "the job was cancelled")


async def test_a_cancel_that_is_told_twice_interrupts_once(house: House) -> None:
    held = house.begin()
    await asyncio.sleep(0)
    house.jobs._notify_cancel(held)
    house.jobs._notify_cancel(held)
    assert held.task.cancelling() == 1
    await asyncio.wait([held.task])


async def test_a_handler_that_is_not_to_be_interrupted_is_only_told(house: House) -> None:
    house.jobs._handlers = {"t": Registered("t", house.handler, None, False, None)}
    held = house.begin()
    await asyncio.sleep(0)
    house.jobs.on_cancel_in_thread(held)
    await asyncio.sleep(0)
    assert (held.task.cancelling(), house.seen[0].is_cancelled) == (0, True)
    house.gate.set()
    await asyncio.wait([held.task])
    assert house.sent.items[0].status == "SUCCEEDED"


async def test_a_stop_interrupts_what_still_runs_and_it_may_be_tried_again(house: House) -> None:
    held = house.begin()
    await asyncio.sleep(0)
    await house.jobs.interrupt_all(5.0)
    assert held.cause == held_lease.BY_STOP
    [item] = house.sent.items
    assert (item.status, item.error, item.retry) == (
        "FAILED",
        "the worker stopped before the job ended",
        True,
    )
    await house.jobs.interrupt_all(5.0)
    assert (len(house.sent.items), house.lost) == (1, [])


async def test_a_handler_that_does_not_end_is_lost_with_the_stop(house: House) -> None:
    held = house.begin()
    await asyncio.sleep(0)
    held.is_async = False  # like a thread: it cannot be ended
    await house.jobs.interrupt_all(0.01)
    assert held.phase == held_lease.LOST
    assert house.lost == [("j", "the worker stopped before the handler did")]
    held.task.cancel()


async def test_a_stop_leaves_alone_what_has_ended_or_was_lost_before(house: House) -> None:
    async def stay(_: JobContext) -> None:
        await asyncio.Event().wait()

    endless = Registered("endless", stay, None, True, None)
    house.jobs._handlers = {**house.jobs._handlers, "endless": endless}
    ended, lost = house.begin("a"), house.begin("b", "endless")
    await asyncio.sleep(0)
    lost.is_async = False  # like a thread: it goes on although its lease is lost
    house.jobs._lose(lost, "gone")
    house.gate.set()
    await asyncio.wait([ended.task])
    await house.jobs.interrupt_all(0.01)
    lost.task.cancel()
    assert (ended.cause, ended.cancelled.reason) == (None, None)
    assert house.lost == [("b", "gone")]
    assert [item.job_id for item in house.sent.items] == ["a"]


async def test_a_lost_lease_wakes_who_waits_for_it_and_leaves_a_thread_its_slot(
    house: House,
) -> None:
    held = house.begin()
    await asyncio.sleep(0)
    held.is_async = False
    waiting = asyncio.create_task(house.seen[0].cancelled.wait())
    await asyncio.sleep(0)
    house.jobs.on_lost_in_thread(held, "gone")
    await asyncio.wait_for(waiting, 5)
    assert (held.task.cancelling(), house.jobs.running) == (0, 1)
    house.gate.set()
    await asyncio.wait([held.task])
    assert (house.jobs.running, house.sent.items) == (0, [])


async def test_a_handler_that_gives_up_by_itself_has_failed(house: House) -> None:
    held = house.begin()
    given_up = HandlerOutcome(status="CANCELED", error="x", metrics={"m": 1}, is_given_up=True)
    found = house.jobs._classify_interrupted(held, given_up)
    assert (found.status, found.error, found.metrics) == ("FAILED", "x", {"m": 1})
    bare = HandlerOutcome(status="CANCELED", is_given_up=True)
    assert house.jobs._classify_interrupted(held, bare).error == (
        "the handler was cancelled from within"
    )
    held.cancelled.mark("the lease is lost")
    assert house.jobs._classify_interrupted(held, given_up) is given_up
    held.cause = held_lease.BY_STOP
    assert house.jobs._classify_interrupted(held, given_up).metrics == {"m": 1}


async def test_a_mistake_of_on_lost_stops_nobody(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any) -> None:
        raise JobCancelled("mine")

    house.jobs._on_lost = fail
    house.jobs.report_lost(house.begin(), "gone")
    assert [one.getMessage() for one in caplog.records] == [
        "job j: result dropped, the lease is lost: gone",
        "on_lost failed",
    ]
