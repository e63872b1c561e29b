"""What the supervisor shows and says of its loops, how long it waits before each restart, and how
it stops some of them."""

import asyncio
from collections.abc import AsyncIterator
from itertools import pairwise
from random import Random
from typing import Any

import pytest

from ksana.base.clock import VirtualClock
from ksana.base.errors import StoreDownError
from ksana.base.instant import HOUR, MILLISECOND, SECOND, Micros
from ksana.engine.core.supervisor import Loop, LoopReport, Supervisor
from tests.engine.test_supervisor import Script, report
from tests.ground.logs import capture_logs


class Loaded(Random):
    """Dice that always fall the same way."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.value = value

    def random(self) -> float:
        return self.value


@pytest.fixture
async def supervisor(clock: VirtualClock) -> AsyncIterator[Supervisor]:
    """Pauses are as long as they may be."""
    await clock.advance(HOUR)
    supervisor = Supervisor(clock, Loaded(1.0))
    yield supervisor
    await supervisor.stop(0)


def gaps_of(body: Script) -> list[Micros]:
    return [later - earlier for earlier, later in pairwise(body.starts)]


# Restarts


@pytest.mark.spec("X18")
@pytest.mark.parametrize(
    ("error", "chance", "gaps_ms"),
    [
        (ValueError("no"), 1.0, [100, 200, 400, 800, 1600, 3200, 6400, 12800, 25600, 30000, 30000]),
        (ValueError("no"), 0.0, [50, 100, 200, 400, 800, 1600, 3200, 6400, 12800, 15000, 15000]),
        (ValueError("no"), 0.5, [75, 150, 300]),
        (StoreDownError("gone"), 1.0, [100, 200, 400, 800, 1000, 1000]),
    ],
)
async def test_each_pause_is_twice_the_last_up_to_a_ceiling_and_half_of_it_by_chance(
    clock: VirtualClock, error: Exception, chance: float, gaps_ms: list[int]
) -> None:
    supervisor = Supervisor(clock, Loaded(chance))
    body = Script(clock, *(error for _ in gaps_ms))
    with capture_logs():
        supervisor.start(Loop("firing", body))
        await clock.advance(sum(gaps_ms) * MILLISECOND)
    assert gaps_of(body) == [gap * MILLISECOND for gap in gaps_ms]
    await supervisor.stop(0)


@pytest.mark.spec("X18")
@pytest.mark.parametrize(
    ("ran_us", "gap_ms"), [(10 * SECOND - 1, 400), (10 * SECOND, 100), (HOUR, 100)]
)
async def test_a_loop_that_ran_long_enough_starts_its_count_of_failures_anew(
    clock: VirtualClock, supervisor: Supervisor, ran_us: Micros, gap_ms: int
) -> None:
    starts: list[int] = []

    async def run() -> None:
        starts.append(clock.now())
        if len(starts) == 3:
            await clock.sleep_until(clock.now() + ran_us)
        if len(starts) < 5:
            raise ValueError("no")
        await asyncio.Event().wait()

    with capture_logs():
        supervisor.start(Loop("firing", run))
        await clock.advance(ran_us + 2 * SECOND)
    assert [starts[1] - starts[0], starts[2] - starts[1]] == [100_000, 200_000]
    assert starts[3] - starts[2] - ran_us == gap_ms * MILLISECOND
    assert report(supervisor).restarts == 4


# What is shown


@pytest.mark.spec("X18")
async def test_a_loop_is_shown_with_its_last_error_and_since_when_it_is_what_it_is(
    clock: VirtualClock, supervisor: Supervisor
) -> None:
    began_at = clock.now()
    with capture_logs():
        supervisor.start(Loop("firing", Script(clock, ValueError("no"))))
        assert report(supervisor) == LoopReport("firing", "running", began_at, 0)
        await clock.settle()
        error = ("ValueError: no", began_at)
        shown = LoopReport("firing", "recovering", began_at, 1, *error)
        assert (report(supervisor), report(supervisor).ok) == (shown, False)
        await clock.advance(99 * MILLISECOND)
        assert report(supervisor) == shown
        await clock.advance(MILLISECOND)
        again_at = clock.now()
        await clock.advance(10 * SECOND - 1)
        assert report(supervisor) == LoopReport("firing", "recovering", again_at, 1, *error)
        await clock.advance(1)
    assert report(supervisor) == LoopReport("firing", "running", again_at, 1, *error)
    assert report(supervisor).ok


@pytest.mark.spec("X18")
async def test_a_loop_that_waits_for_the_store_is_paused_until_it_has_run_for_a_moment(
    clock: VirtualClock, supervisor: Supervisor
) -> None:
    began_at = clock.now()
    error = ("StoreDownError: gone", began_at)
    with capture_logs():
        supervisor.start(Loop("firing", Script(clock, StoreDownError("gone"))))
        await clock.settle()
        assert report(supervisor) == LoopReport("firing", "paused", began_at, 1, *error)
        await clock.advance(100 * MILLISECOND)
        again_at = clock.now()
        await clock.advance(250 * MILLISECOND - 1)
        assert report(supervisor) == LoopReport("firing", "paused", again_at, 1, *error)
        await clock.advance(1)
    assert report(supervisor) == LoopReport("firing", "running", again_at, 1, *error)


async def test_a_long_error_is_shown_by_its_beginning(
    clock: VirtualClock, supervisor: Supervisor
) -> None:
    with capture_logs():
        supervisor.start(Loop("firing", Script(clock, ValueError("x" * 5000))))
        await clock.settle()
    assert report(supervisor).last_error == ("ValueError: " + "x" * 5000)[:1024]


@pytest.mark.parametrize(
    ("end", "error"),
    [
        (None, "RuntimeError: the loop ended by itself"),
        (asyncio.CancelledError("stray"), "CancelledError: stray"),
    ],
)
async def test_a_loop_that_ended_without_being_asked_is_shown_as_fallen(
    clock: VirtualClock, supervisor: Supervisor, end: BaseException | None, error: str
) -> None:
    with capture_logs():
        supervisor.start(Loop("firing", Script(clock, end)))
        await clock.settle()
    assert (report(supervisor).state, report(supervisor).last_error) == ("recovering", error)


async def test_a_keeper_that_died_is_never_shown_as_well(
    clock: VirtualClock, supervisor: Supervisor
) -> None:
    supervisor.start(Loop("firing", Script(clock)))
    await clock.settle()
    [keeper] = [task for task in asyncio.all_tasks() if task.get_name() == "loop:firing"]
    keeper.cancel()
    await clock.settle()
    assert report(supervisor).state == "recovering"
    await supervisor.stop(0)
    assert report(supervisor).state == "stopped"


async def test_loops_are_shown_in_the_order_of_their_start(
    clock: VirtualClock, supervisor: Supervisor
) -> None:
    for name in ("b", "a", "c"):
        supervisor.start(Loop(name, Script(clock)))
    assert [shown.name for shown in supervisor.readiness()] == ["b", "a", "c"]


# What is said


async def test_a_fall_is_said_with_its_loop_its_pause_and_its_cause(
    clock: VirtualClock, supervisor: Supervisor
) -> None:
    errors = [ValueError(f"no {n}") for n in range(5)]
    with capture_logs() as logs:
        supervisor.start(Loop("firing", Script(clock, *errors)))
        await clock.advance(5 * SECOND)
    assert logs == [
        {
            "event": "loop fell and will be restarted",
            "log_level": "error",
            "loop": "firing",
            "delay_ms": delay_ms,
            "exc_info": error,
        }
        for error, delay_ms in zip(errors, (100, 200, 400, 800, 1600), strict=True)
    ]


async def test_a_store_that_stays_away_is_said_once_and_again_after_it_was_back(
    clock: VirtualClock, supervisor: Supervisor
) -> None:
    starts = 0

    async def run() -> None:
        nonlocal starts
        starts += 1
        if starts == 4:
            await clock.sleep_until(clock.now() + 10 * SECOND)
        if starts < 6:
            raise StoreDownError("gone")
        await asyncio.Event().wait()

    said = {"event": "loop paused", "log_level": "warning", "loop": "firing", "err": "gone"}
    with capture_logs() as logs:
        supervisor.start(Loop("firing", run))
        await clock.settle()
        assert logs == [said], "at once"
        await clock.advance(5 * SECOND)
        assert logs == [said]
        await clock.advance(10 * SECOND)
    assert logs == [said, said]


# Stopping


def stubborn(release: asyncio.Event) -> Any:
    """A loop that ends when it is released, however often it is cancelled."""

    async def run() -> None:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    return run


async def test_only_the_loops_that_are_named_are_stopped(
    clock: VirtualClock, supervisor: Supervisor
) -> None:
    bodies = {name: Script(clock) for name in "abc"}
    for name, body in bodies.items():
        supervisor.start(Loop(name, body))
    await clock.settle()
    assert await supervisor.stop(SECOND, ("a", "b")) == ()
    states = {shown.name: (shown.state, shown.since) for shown in supervisor.readiness()}
    now = clock.now()
    assert states == {"a": ("stopped", now), "b": ("stopped", now), "c": ("running", now)}
    assert [body.ended for body in bodies.values()] == [1, 1, 0]
    await clock.advance(SECOND)
    assert await supervisor.stop(SECOND) == ()
    since = [shown.since for shown in supervisor.readiness()]
    assert since == [now, now, clock.now()], "what was stopped is left alone"


async def test_the_time_for_stopping_is_for_all_loops_together(clock: VirtualClock) -> None:
    await clock.advance(HOUR)
    supervisor = Supervisor(clock, Loaded(1.0))
    release = asyncio.Event()
    supervisor.start(Loop("first", stubborn(release)))
    supervisor.start(Loop("last", stubborn(release)))
    await clock.settle()
    stopping = asyncio.ensure_future(supervisor.stop(2 * SECOND))
    await clock.advance(2 * SECOND - 1)
    assert not stopping.done()
    await clock.advance(1)
    assert stopping.done()
    assert stopping.result() == ("last", "first")
    assert await supervisor.stop(0) == ("last", "first"), "they are still there"
    release.set()
    await clock.settle()
    assert [shown.state for shown in supervisor.readiness()] == ["stopped", "stopped"]
    assert await supervisor.stop(SECOND) == ()


@pytest.mark.parametrize("within_us", [0, 2 * SECOND])
async def test_a_loop_that_is_willing_to_end_is_not_late_behind_one_that_is_not(
    clock: VirtualClock, within_us: int
) -> None:
    supervisor = Supervisor(clock, Loaded(1.0))
    release = asyncio.Event()
    willing = Script(clock)
    supervisor.start(Loop("willing", willing))
    supervisor.start(Loop("stubborn", stubborn(release)))
    await clock.settle()
    stopping = asyncio.ensure_future(supervisor.stop(within_us))
    await clock.advance(within_us)
    late = await stopping
    release.set()
    await clock.settle()
    assert (late, willing.ended) == (("stubborn",), 1)


async def test_a_loop_that_will_not_end_leaves_time_to_tidy_up_to_the_others(
    clock: VirtualClock,
) -> None:
    supervisor = Supervisor(clock, Loaded(1.0))
    release = asyncio.Event()

    async def tidy() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await clock.sleep_until(clock.now() + SECOND // 2)

    supervisor.start(Loop("tidy", tidy))
    supervisor.start(Loop("stubborn", stubborn(release)))
    await clock.settle()
    stopping = asyncio.ensure_future(supervisor.stop(2 * SECOND))
    await clock.advance(2 * SECOND)
    late = await stopping
    release.set()
    await clock.settle()
    assert late == ("stubborn",)


async def test_a_step_of_the_wall_clock_takes_no_time_from_loops_that_stop(
    clock: VirtualClock,
) -> None:
    supervisor = Supervisor(clock, Loaded(1.0))
    release = asyncio.Event()
    supervisor.start(Loop("slow", stubborn(release)))
    await clock.settle()
    stopping = asyncio.ensure_future(supervisor.stop(2 * SECOND))
    await clock.advance(SECOND)
    clock.step(HOUR)
    await clock.settle()
    release.set()
    await clock.settle()
    assert await stopping == ()


async def test_a_loop_that_ends_in_its_own_time_after_it_was_cancelled_is_not_started_again(
    clock: VirtualClock, supervisor: Supervisor
) -> None:
    release = asyncio.Event()
    starts = 0

    async def run() -> None:
        nonlocal starts
        starts += 1
        await stubborn(release)()

    supervisor.start(Loop("slow", run))
    await clock.settle()
    stopping = asyncio.ensure_future(supervisor.stop(2 * SECOND))
    await clock.advance(SECOND)
    release.set()
    await clock.advance(5 * SECOND)
    assert (await stopping, starts, report(supervisor).state) == ((), 1, "stopped")
