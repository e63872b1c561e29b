"""The clock watch and the lease: what moved is told, and who may act is known without asking."""

import asyncio
from typing import Any

import pytest

from ksana.base.clock import VirtualClock
from ksana.base.errors import StoreDownError
from ksana.base.instant import HOUR, MILLISECOND, SECOND, Instant, Micros
from ksana.engine.core.clock_watch import (
    STEP_TOLERANCE,
    ClockWatch,
    proven_skew,
    watch_loop_lag,
)
from ksana.engine.core.membership import LEASE, Membership
from tests.ground.logs import capture_logs


@pytest.mark.spec("X5")
@pytest.mark.parametrize("step", [-HOUR, -SECOND, SECOND, HOUR])
async def test_a_step_of_the_wall_clock_is_told_once(clock: VirtualClock, step: Micros) -> None:
    told: list[Micros] = []
    watch = asyncio.create_task(ClockWatch(clock, told.append).run())
    with capture_logs() as logs:
        await clock.advance(20 * SECOND)
        assert told == []
        clock.step(step)
        await clock.advance(20 * SECOND)
    watch.cancel()
    assert told == [step]
    assert logs == [
        {
            "event": "wall clock stepped",
            "log_level": "warning",
            "step_ms": step // MILLISECOND,
            "direction": "forward" if step > 0 else "back",
        }
    ]


@pytest.mark.spec("X5")
@pytest.mark.parametrize(
    ("step", "told"),
    [
        (STEP_TOLERANCE, 0),
        (-STEP_TOLERANCE, 0),
        (STEP_TOLERANCE + 1, STEP_TOLERANCE + 1),
        (-STEP_TOLERANCE - 1, -STEP_TOLERANCE - 1),
    ],
)
async def test_a_step_is_what_the_wall_clock_moved_beyond_the_time_that_passed(
    clock: VirtualClock, step: Micros, told: Micros
) -> None:
    await clock.advance(HOUR)
    heard: list[Micros] = []
    watch = ClockWatch(clock, heard.append)
    await clock.advance(SECOND)
    clock.step(step)
    with capture_logs():
        assert watch.check_steps() == told
        assert watch.check_steps() == 0, "a step is told once"
    assert heard == ([told] if told else [])


@pytest.mark.spec("X5")
async def test_slewing_is_no_step(clock: VirtualClock) -> None:
    told: list[Micros] = []
    watch = ClockWatch(clock, told.append)
    for _ in range(100):
        await clock.advance(SECOND)
        clock.step(2 * MILLISECOND)
        watch.check_steps()
    assert told == []


@pytest.mark.fault("F23")
@pytest.mark.spec("X5")
async def test_a_store_clock_more_than_a_second_off_is_told_and_so_is_its_return(
    clock: VirtualClock,
) -> None:
    off: Micros = 3 * SECOND
    seen: list[Micros] = []

    async def store_now() -> Instant:
        return clock.now() + off

    watch = ClockWatch(clock, lambda _: None, store_now, seen.append)
    with capture_logs() as logs:
        await watch.check_skew()
        await watch.check_skew()
        assert watch.is_skewed
        off = 999 * MILLISECOND
        await watch.check_skew()
    assert not watch.is_skewed
    assert seen == [3 * SECOND, 3 * SECOND, 999 * MILLISECOND]
    assert [(log["log_level"], log["skew_ms"]) for log in logs] == [
        ("warning", 3000),
        ("info", 999),
    ]


@pytest.mark.spec("X5")
@pytest.mark.parametrize(
    ("took_us", "ahead_us", "skew_us", "is_skewed"),
    [
        (0, SECOND, SECOND, False),
        (0, SECOND + 1, SECOND + 1, True),
        (0, -SECOND, -SECOND, False),
        (0, -SECOND - 1, -SECOND - 1, True),
        # Asked for 4 s: it was read 2 s after we asked, give or take 2 s.
        (4 * SECOND, 2 * SECOND, 0, False),
        (4 * SECOND, 5 * SECOND, 3 * SECOND, False),
        (4 * SECOND, 5 * SECOND + 1, 3 * SECOND + 1, True),
        (4 * SECOND, -SECOND, -3 * SECOND, False),
        (4 * SECOND, -SECOND - 1, -3 * SECOND - 1, True),
    ],
)
async def test_the_time_that_the_question_took_is_doubt_in_our_favour(
    clock: VirtualClock, took_us: Micros, ahead_us: Micros, skew_us: Micros, is_skewed: bool
) -> None:
    await clock.advance(HOUR)

    async def store_now() -> Instant:
        at = clock.now() + ahead_us
        await clock.sleep_until(clock.now() + took_us)
        return at

    watch = ClockWatch(clock, lambda _: None, store_now)
    assert (watch.skew_us, watch.is_skewed) == (0, False)
    checking = asyncio.create_task(watch.check_skew())
    with capture_logs() as logs:
        await clock.advance(took_us)
    await checking
    assert (watch.skew_us, watch.is_skewed, len(logs)) == (skew_us, is_skewed, int(is_skewed))


async def test_both_clocks_are_compared_every_few_seconds(clock: VirtualClock) -> None:
    asked: list[Instant] = []

    async def store_now() -> Instant:
        asked.append(clock.now())
        return clock.now()

    began_at = clock.now()
    watch = ClockWatch(clock, lambda _: None, store_now, every_us=2 * SECOND)
    await clock.advance(SECOND)
    watching = asyncio.create_task(watch.run())
    await clock.advance(5 * SECOND)
    watching.cancel()
    assert asked == [began_at + 3 * SECOND, began_at + 5 * SECOND]


@pytest.mark.spec("X5")
@pytest.mark.parametrize(
    ("store_at", "skew_us"), [(9, -1), (10, 0), (15, 0), (20, 0), (21, 1), (30, 10), (0, -10)]
)
def test_only_what_lies_outside_of_question_and_answer_is_proven(
    store_at: Instant, skew_us: Micros
) -> None:
    assert proven_skew(store_at, asked_at=10, answered_at=20) == skew_us


async def test_a_slow_answer_is_not_taken_for_skew(clock: VirtualClock) -> None:
    async def store_now() -> Instant:
        at = clock.now()
        await clock.sleep_until(at + 4 * SECOND)
        return at

    watch = ClockWatch(clock, lambda _: None, store_now)
    checking = asyncio.create_task(watch.check_skew())
    await clock.advance(5 * SECOND)
    await checking
    assert not watch.is_skewed


async def test_a_store_that_is_away_is_not_the_watch_s_business(clock: VirtualClock) -> None:
    async def store_now() -> Instant:
        raise StoreDownError("gone")

    await ClockWatch(clock, lambda _: None, store_now).check_skew()


@pytest.mark.fault("F11")
async def test_lag_of_the_event_loop_is_measured(clock: VirtualClock) -> None:
    lags: list[Micros] = []
    watching = asyncio.create_task(watch_loop_lag(clock, lags.append))
    await clock.advance(3 * SECOND)
    watching.cancel()
    assert lags == [0, 0, 0]


class BlockedClock(VirtualClock):
    """Whoever sleeps is woken so much late."""

    late_us: Micros = 0

    async def sleep_until(self, at: Instant) -> None:
        await super().sleep_until(at + self.late_us)


@pytest.mark.fault("F11")
@pytest.mark.parametrize(("late_us", "lag_us"), [(300 * MILLISECOND, 300 * MILLISECOND), (-5, 0)])
async def test_what_wakes_us_late_is_told_and_what_wakes_us_early_is_no_lag(
    late_us: Micros, lag_us: Micros
) -> None:
    clock, lags = BlockedClock(), list[Micros]()
    clock.late_us = late_us
    await clock.advance(HOUR)
    watching = asyncio.create_task(watch_loop_lag(clock, lags.append, 2 * SECOND))
    await clock.advance(2 * (2 * SECOND + abs(late_us)))
    watching.cancel()
    assert lags == [lag_us, lag_us]


class Moody:
    """A store, as far as membership sees it, that can be away or forgetful."""

    sole = False

    def __init__(self) -> None:
        self.is_down = False
        self.is_forgetful = False
        self.calls: list[str] = []

    async def transact(self, fn: Any, *args: Any) -> Any:
        if self.is_down:
            raise StoreDownError("gone")
        self.calls.append(fn.__name__)
        return (not self.is_forgetful, []) if fn.__name__ == "_renew" else (None, [])


async def test_the_lease_is_lost_by_our_own_clock_before_others_may_act(
    clock: VirtualClock,
) -> None:
    store = Moody()
    membership = Membership(store, clock, "i", "h", "1")  # type: ignore[arg-type]
    assert not membership.is_held()
    await membership.join()
    renewing = asyncio.create_task(membership.run())
    with capture_logs():
        await clock.advance(60 * SECOND)
        assert membership.is_held()
        store.is_down = True
        await clock.advance(LEASE)
        assert not membership.is_held()
        clock.step(-HOUR)
        assert not membership.is_held()
        store.is_down = False
        await clock.advance(2 * SECOND)
        assert membership.is_held()
    renewing.cancel()


async def test_an_instance_that_was_forgotten_enters_again(clock: VirtualClock) -> None:
    store = Moody()
    membership = Membership(store, clock, "i", "h", "1")  # type: ignore[arg-type]
    await membership.join()
    store.is_forgetful = True
    renewing = asyncio.create_task(membership.run())
    with capture_logs():
        await clock.advance(SECOND)
    renewing.cancel()
    assert store.calls == ["_register", "_renew", "_register"]


async def test_leaving_is_recorded_and_survives_a_store_that_is_away(clock: VirtualClock) -> None:
    store = Moody()
    membership = Membership(store, clock, "i", "h", "1")  # type: ignore[arg-type]
    await membership.join()
    await membership.leave()
    assert store.calls[-1] == "_stop"
    assert not membership.is_held()
    store.is_down = True
    with capture_logs() as logs:
        await membership.leave()
    assert logs[0]["log_level"] == "warning"
