"""The supervisor: a loop that falls gets up again, and everybody can see it."""

import asyncio
from collections.abc import AsyncIterator
from random import Random

import pytest

from ksana.base.clock import VirtualClock
from ksana.base.errors import StoreDownError
from ksana.base.instant import MILLISECOND, MINUTE, SECOND
from ksana.engine.core.supervisor import Loop, LoopReport, Supervisor
from tests.ground.logs import capture_logs


@pytest.fixture
async def supervisor(clock: VirtualClock) -> AsyncIterator[Supervisor]:
    supervisor = Supervisor(clock, Random(7))
    yield supervisor
    await supervisor.stop(0)


class Script:
    """A loop whose first runs end as told; later ones go on for ever."""

    def __init__(self, clock: VirtualClock, *ends: BaseException | None) -> None:
        self.starts: list[int] = []
        self.ended = 0
        self._ends = list(ends)
        self._clock = clock
        self._origin = clock.now()

    async def __call__(self) -> None:
        self.starts.append(self._clock.now() - self._origin)
        if self._ends:
            end = self._ends.pop(0)
            if end is not None:
                raise end
            return
        try:
            await asyncio.Event().wait()
        finally:
            self.ended += 1


def report(supervisor: Supervisor) -> LoopReport:
    (only,) = supervisor.readiness()
    return only


async def test_a_loop_that_runs_is_ready(clock: VirtualClock, supervisor: Supervisor) -> None:
    supervisor.start(Loop("firing", Script(clock)))
    await clock.settle()
    assert report(supervisor) == LoopReport("firing", "running", clock.now(), 0)
    assert report(supervisor).ok


@pytest.mark.fault("F44")
@pytest.mark.spec("X18")
async def test_a_crashed_loop_is_restarted_with_growing_pauses_and_shown(
    clock: VirtualClock, supervisor: Supervisor
) -> None:
    body = Script(clock, *(ValueError(f"no {n}") for n in range(8)))
    with capture_logs() as logs:
        supervisor.start(Loop("firing", body))
        await clock.settle()
        shown = report(supervisor)
        assert (shown.state, shown.ok, shown.last_error) == (
            "recovering",
            False,
            "ValueError: no 0",
        )
        await clock.advance(MINUTE)
    gaps = [later - earlier for earlier, later in zip(body.starts, body.starts[1:], strict=False)]
    assert len(body.starts) == 9
    assert all(50 * MILLISECOND << n <= gap <= 100 * MILLISECOND << n for n, gap in enumerate(gaps))
    assert sum(log["log_level"] == "error" for log in logs) == 8
    assert report(supervisor).restarts == 8
    assert report(supervisor).last_error == "ValueError: no 7"


async def test_a_restarted_loop_is_ready_only_after_it_has_proven_itself(
    clock: VirtualClock, supervisor: Supervisor
) -> None:
    with capture_logs():
        supervisor.start(Loop("firing", Script(clock, ValueError("once"))))
        await clock.advance(SECOND)
        assert report(supervisor).state == "recovering"
        await clock.advance(10 * SECOND)
    assert report(supervisor).state == "running"


async def test_pauses_stop_growing(clock: VirtualClock, supervisor: Supervisor) -> None:
    body = Script(clock, *(ValueError() for _ in range(30)))
    with capture_logs():
        supervisor.start(Loop("firing", body))
        await clock.advance(30 * 30 * SECOND)
    gaps = [later - earlier for earlier, later in zip(body.starts, body.starts[1:], strict=False)]
    assert max(gaps) <= 30 * SECOND


async def test_a_store_that_is_down_is_a_quiet_pause(
    clock: VirtualClock, supervisor: Supervisor
) -> None:
    body = Script(clock, *(StoreDownError("gone") for _ in range(20)))
    with capture_logs() as logs:
        supervisor.start(Loop("firing", body))
        await clock.settle()
        assert report(supervisor).state == "paused"
        await clock.advance(2 * MINUTE)
    assert [log["log_level"] for log in logs] == ["warning"]
    assert "exc_info" not in logs[0]
    gaps = [later - earlier for earlier, later in zip(body.starts, body.starts[1:], strict=False)]
    assert max(gaps) <= SECOND
    assert report(supervisor).ok


@pytest.mark.spec("X18")
async def test_a_loop_that_waited_for_the_store_is_ready_soon_after_it_is_back(
    clock: VirtualClock, supervisor: Supervisor
) -> None:
    body = Script(clock, *(StoreDownError("gone") for _ in range(10)))
    with capture_logs():
        supervisor.start(Loop("firing", body))
        while len(body.starts) < 10:
            await clock.advance(50 * MILLISECOND)
            assert not report(supervisor).ok
        await clock.advance(1500 * MILLISECOND)  # the longest pause, and a moment of running
    assert report(supervisor).ok


@pytest.mark.fault("F44")
@pytest.mark.parametrize("end", [None, asyncio.CancelledError()])
async def test_a_loop_that_ends_by_itself_is_started_again(
    clock: VirtualClock, supervisor: Supervisor, end: BaseException | None
) -> None:
    body = Script(clock, end)
    with capture_logs():
        supervisor.start(Loop("firing", body))
        await clock.advance(SECOND)
    assert len(body.starts) == 2


async def test_restarts_are_counted(clock: VirtualClock) -> None:
    restarted: list[str] = []
    supervisor = Supervisor(clock, Random(1), restarted.append)
    with capture_logs():
        supervisor.start(Loop("a", Script(clock, ValueError(), ValueError())))
        await clock.advance(SECOND)
    assert restarted == ["a", "a"]
    await supervisor.stop(0)


async def test_loops_stop_in_the_reverse_order(clock: VirtualClock) -> None:
    supervisor = Supervisor(clock, Random(1))
    order: list[str] = []

    def loop(name: str) -> Loop:
        async def run() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                order.append(name)

        return Loop(name, run)

    for name in ("a", "b", "c"):
        supervisor.start(loop(name))
    await clock.settle()
    assert await supervisor.stop(SECOND) == ()
    assert order == ["c", "b", "a"]
    assert {shown.state for shown in supervisor.readiness()} == {"stopped"}


async def test_a_loop_that_will_not_end_is_named_when_the_time_is_over(clock: VirtualClock) -> None:
    supervisor = Supervisor(clock, Random(1))
    release = asyncio.Event()

    async def stubborn() -> None:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    supervisor.start(Loop("stubborn", stubborn))
    await clock.settle()
    stopping = asyncio.create_task(supervisor.stop(2 * SECOND))
    await clock.advance(3 * SECOND)
    assert await stopping == ("stubborn",)
    release.set()
    with capture_logs():
        await supervisor.stop(SECOND)


async def test_two_loops_of_one_name_are_refused(
    clock: VirtualClock, supervisor: Supervisor
) -> None:
    supervisor.start(Loop("a", Script(clock)))
    with pytest.raises(ValueError, match="already"):
        supervisor.start(Loop("a", Script(clock)))
