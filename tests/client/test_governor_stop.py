"""How a governor ends: what runs may finish within the grace, what came of it is brought home, and
nothing holds it up for ever."""

import asyncio
import contextlib
import threading
from typing import Any

import pytest

from ksana.base.clock import SystemClock
from ksana.client import Governor
from ksana.client.errors import TransportError
from ksana.client.governance_context import GovernanceContext
from ksana.client.governance_shapes import FailItem
from tests.client.fake_transport import FakeTransport
from tests.client.governor_house import GovernorHouse, QuietGovernor, at_work, job
from tests.ground.jumping import loop_time, on_jumping_time, pass_time

pytestmark = pytest.mark.spec("G5", "Q16")

NOT_REACHED = TransportError("not reached", is_outcome_unknown=False)


@on_jumping_time
async def test_a_stop_takes_no_more_and_lets_handlers_finish() -> None:
    house = GovernorHouse(wait_sec=10.0)
    house.server.jobs = [[job("a")]]
    house.start()
    await pass_time(1.0)
    assert not house.governor.is_stopping
    house.governor.stop()
    assert house.governor.is_stopping
    await pass_time(4.0)
    house.gate.set()
    await house.end()
    assert house.counts == {"claimed": 1, "succeeded": 1}
    # The pull under way is let end first: it may bring jobs.
    assert (house.server.pulled_at, loop_time()) == ([0.0, 0.0], 10.0)
    assert house.governor.thread.life == ["started", "stopped"]
    assert house.server.is_closed is False, "who made the client closes it"


@on_jumping_time
async def test_a_job_that_the_last_pull_brought_is_worked_on() -> None:
    house = GovernorHouse()

    async def pull(worker_id: str, **how: Any) -> list[Any]:
        await asyncio.sleep(5.0)
        return [job("late")]

    house.server.pull = pull  # type: ignore[method-assign]
    house.gate.set()
    house.start()
    await pass_time(1.0)
    house.governor.stop()
    await house.end()
    assert house.counts == {"claimed": 1, "succeeded": 1}


@pytest.mark.parametrize(
    ("grace_sec", "second", "ends_at"),
    [(4.0, None, 5.0), (30.0, 4.0, 5.0), (30.0, 0.0, 3.2), (2.0, 6.0, 7.0)],
)
@on_jumping_time
async def test_a_handler_that_does_not_end_within_the_grace_is_interrupted(
    grace_sec: float, second: float | None, ends_at: float
) -> None:
    house = GovernorHouse(grace_sec=grace_sec, concurrency=1)
    house.server.jobs = [[job("a")]]
    house.start()
    await pass_time(1.0)
    house.governor.stop()
    await pass_time(1.9)
    if second is not None:
        house.governor.stop(second)
    await house.end()
    stopped = "the worker stopped before the job ended"
    assert house.server.failed == [
        [FailItem(job_id="a", error=stopped, retry_delay_sec=0.0, lease_token="ka", worker_id="w")]
    ]
    assert house.seen[0].cancelled.reason == "the worker stops"
    assert house.counts == {"claimed": 1, "failed": 1}
    assert ends_at - 0.21 <= loop_time() <= ends_at


@on_jumping_time
async def test_the_second_signal_cuts_the_grace() -> None:
    house = GovernorHouse(concurrency=1)
    house.server.jobs = [[job("a")]]
    house.start()
    await pass_time(1.0)
    house.governor._stop_by_signal()
    await pass_time(0.5)
    assert house.running is not None and not house.running.done()
    house.governor._stop_by_signal()
    await house.end()
    assert loop_time() < 1.71


@pytest.mark.parametrize(("grace_sec", "ends_at"), [(3.0, 8.8), (0.0, 5.8)])
@on_jumping_time
async def test_results_that_nobody_answers_for_are_counted_at_the_end(
    caplog: pytest.LogCaptureFixture, grace_sec: float, ends_at: float
) -> None:
    house = GovernorHouse(wait_sec=0.5, grace_sec=grace_sec)
    house.server.jobs = [[job("a")]]
    house.server.ack_answers = [NOT_REACHED] * 50
    house.gate.set()
    house.start()
    await pass_time(0.8)
    house.governor.stop()
    await house.end()
    assert house.counts == {"claimed": 1, "unsettled": 1}
    # What is left of the grace, and five seconds more.
    assert loop_time() == ends_at
    assert "stopped with 1 results the server has not answered for" in caplog.messages


@on_jumping_time
async def test_a_governor_runs_once_and_needs_a_handler() -> None:
    async with at_work() as house:
        await pass_time()
        with pytest.raises(RuntimeError, match="a worker runs once"):
            await house.governor.run()
    with pytest.raises(ValueError, match=r"has no handler: register one with @governor\.action"):
        await Governor("http://h").run()


@on_jumping_time
async def test_a_pull_that_lasts_longer_than_the_grace_is_cut() -> None:
    house = GovernorHouse(wait_sec=20.0, grace_sec=2.0)
    house.start()
    await pass_time(1.0)
    house.governor.stop()
    await house.end()
    assert (loop_time(), house.counts) == (3.0, {})
    assert asyncio.all_tasks() == {asyncio.current_task()}, "nothing is left behind"


@on_jumping_time
async def test_a_handler_that_will_not_end_is_left_behind() -> None:
    house = GovernorHouse(concurrency=1, grace_sec=2.0)

    @house.governor.action("archive")
    async def stubborn(_: GovernanceContext) -> None:
        while True:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(500)
                return

    house.server.jobs = [[job("a", action="archive")]]
    house.start()
    await pass_time(1.0)
    house.governor.stop()
    await house.end()
    assert house.lost == [("a", "the worker stopped before the handler did")]
    assert (loop_time(), house.counts) == (5.5, {"claimed": 1, "lost": 1})


async def test_threads_end_with_the_worker_and_do_not_hold_it_up() -> None:
    house = GovernorHouse(clock=SystemClock(), concurrency=2)
    begun, may_end = threading.Event(), threading.Event()

    @house.governor.action("archive")
    def wait(_: GovernanceContext) -> None:
        begun.set()
        may_end.wait(20)

    def count_threads() -> int:
        names = [thread.name for thread in threading.enumerate()]
        return sum(name.startswith("ksana-governor") for name in names)

    house.server.jobs = [[job("a", action="archive")]]
    house.start()
    await asyncio.to_thread(begun.wait, 10)
    assert count_threads() == 1
    task = house.governor.held["a"].task
    assert task is not None
    house.governor.jobs.interrupt_all = no_time  # type: ignore[method-assign]
    house.governor.stop(0.0)
    await house.end()
    assert not may_end.is_set()
    may_end.set()
    await asyncio.wait_for(task, 10)
    async with asyncio.timeout(10):
        while count_threads():
            await asyncio.sleep(0.005)


async def no_time(_: float) -> None:
    """A thread is not waited for."""


@on_jumping_time
async def test_a_client_that_the_worker_made_itself_is_closed_in_the_end() -> None:
    governor = QuietGovernor("http://h", "w")
    governor.add_action("verify", lambda ctx: None)
    wire = FakeTransport(governor.client)
    wire.answers = [{"jobs": []}]
    await governor.run(burst=True)
    assert wire.is_closed
