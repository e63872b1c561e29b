"""The pump: wakes when something is due, sleeps otherwise, and is fooled by no clock."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable

import pytest

from ksana.base.clock import SystemClock, VirtualClock
from ksana.base.instant import HOUR, MILLISECOND, SECOND, Instant
from ksana.engine.core.pump import AGAIN, Pump

Answer = Callable[[], Instant | None]


class CoroutineDriver:
    """A step that notes when it was called and answers as told."""

    def __init__(self, clock: VirtualClock, answer: Answer) -> None:
        self.calls: list[Instant] = []
        self.answer = answer
        self._clock = clock
        self._start = clock.now()

    async def __call__(self) -> Instant | None:
        self.calls.append(self._clock.now() - self._start)
        return self.answer()


@contextlib.asynccontextmanager
async def running(pump: Pump) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(pump.run())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def never() -> Instant | None:
    return None


async def test_it_wakes_exactly_when_something_is_due_and_not_between(clock: VirtualClock) -> None:
    start = clock.now()
    dues = iter([start + 1500 * MILLISECOND, start + 4 * SECOND])
    steps = CoroutineDriver(clock, lambda: next(dues, None))
    async with running(Pump("p", clock, steps, poll_us=HOUR)):
        await clock.advance(10 * SECOND)
    assert steps.calls == [0, 1500 * MILLISECOND, 4 * SECOND]


async def test_the_poll_is_the_net_when_nothing_is_signalled(clock: VirtualClock) -> None:
    steps = CoroutineDriver(clock, never)
    async with running(Pump("p", clock, steps, poll_us=5 * SECOND)):
        await clock.advance(12 * SECOND)
    assert steps.calls == [0, 5 * SECOND, 10 * SECOND]


async def test_a_signal_wakes_it_at_once_and_many_make_one_step(clock: VirtualClock) -> None:
    steps = CoroutineDriver(clock, never)
    pump = Pump("p", clock, steps, poll_us=HOUR)
    async with running(pump):
        await clock.advance(700 * MILLISECOND)
        for _ in range(100):
            pump.signal()
        await clock.settle()
    assert steps.calls == [0, 700 * MILLISECOND]


async def test_a_signal_that_may_wait_does_so_and_never_delays_what_is_due(
    clock: VirtualClock,
) -> None:
    start = clock.now()
    dues = iter([None, start + 2 * SECOND])
    steps = CoroutineDriver(clock, lambda: next(dues, None))
    pump = Pump("p", clock, steps, poll_us=HOUR, delay_us=400 * MILLISECOND)
    async with running(pump):
        await clock.advance(1 * SECOND)
        pump.signal()
        await clock.advance(100 * MILLISECOND)
        pump.signal()  # two hints, one step, counted from the first
        await clock.advance(700 * MILLISECOND)
        assert steps.calls == [0, 1400 * MILLISECOND]
        pump.signal()  # at 1.8 s: what is due at 2 s comes first
        await clock.advance(5 * SECOND)
    assert steps.calls == [0, 1400 * MILLISECOND, 2 * SECOND]


async def test_a_signal_right_before_a_step_is_due_does_not_hasten_it(clock: VirtualClock) -> None:
    steps = CoroutineDriver(clock, never)
    pump = Pump("p", clock, steps, poll_us=HOUR, delay_us=MILLISECOND)
    async with running(pump):
        await clock.advance(SECOND)
        pump.signal()
        await clock.advance(MILLISECOND - 1)
        pump.signal()
        await clock.settle()
        assert steps.calls == [0]
        await clock.advance(1)
    assert steps.calls == [0, SECOND + MILLISECOND]


async def test_a_signal_while_the_step_works_is_not_lost(clock: VirtualClock) -> None:
    calls = 0

    async def step() -> Instant | None:
        nonlocal calls
        calls += 1
        if calls == 1:
            pump.signal()
            await clock.sleep_until(clock.now() + SECOND)
        return None

    pump = Pump("p", clock, step, poll_us=HOUR)
    async with running(pump):
        await clock.advance(2 * SECOND)
    assert calls == 2


@pytest.mark.fault("F20")
@pytest.mark.spec("X5")
async def test_a_clock_stepped_back_does_not_put_it_to_sleep_for_the_step(
    clock: VirtualClock,
) -> None:
    steps = CoroutineDriver(clock, never)
    async with running(Pump("p", clock, steps, poll_us=5 * SECOND)):
        await clock.advance(SECOND)
        clock.step(-HOUR)
        await clock.advance(6 * SECOND)
    assert len(steps.calls) == 2, "the poll came in spite of the step"


@pytest.mark.spec("X5")
async def test_a_clock_stepped_forward_makes_the_due_slot_fire_within_a_second(
    clock: VirtualClock,
) -> None:
    start = clock.now()
    dues = iter([start + HOUR])
    steps = CoroutineDriver(clock, lambda: next(dues, None))
    async with running(Pump("p", clock, steps, poll_us=2 * HOUR)):
        await clock.advance(10 * SECOND)
        assert len(steps.calls) == 1
        clock.step(2 * HOUR)
        await clock.advance(SECOND)
    assert len(steps.calls) == 2


@pytest.mark.fault("F22")
@pytest.mark.spec("X5")
async def test_a_step_back_does_not_wake_a_slot_early_by_wall_time(clock: VirtualClock) -> None:
    start = clock.now()
    steps = CoroutineDriver(clock, lambda: start + 10 * SECOND)
    async with running(Pump("p", clock, steps, poll_us=HOUR)):
        await clock.advance(SECOND)
        clock.step(-5 * SECOND)
        await clock.advance(13 * SECOND)
        assert len(steps.calls) == 1, "13 s on, the wall shows only 9 s"
        await clock.advance(SECOND)
    assert len(steps.calls) > 1


@pytest.mark.fault("F04")
async def test_a_due_instant_that_yields_no_work_does_not_make_it_spin(clock: VirtualClock) -> None:
    start = clock.now()
    steps = CoroutineDriver(clock, lambda: start - SECOND)
    async with running(Pump("p", clock, steps, poll_us=HOUR)):
        await clock.advance(10 * SECOND)
    assert 10 < len(steps.calls) < 25
    assert steps.calls[-1] - steps.calls[-2] == SECOND


async def test_what_became_due_while_it_worked_is_done_at_once(clock: VirtualClock) -> None:
    calls: list[Instant] = []

    async def step() -> Instant | None:
        began = clock.now()
        calls.append(began)
        await clock.sleep_until(began + 10 * MILLISECOND)
        return began + MILLISECOND if len(calls) == 1 else None

    async with running(Pump("p", clock, step, poll_us=HOUR)):
        await clock.advance(SECOND)
    assert calls[1] - calls[0] == 10 * MILLISECOND


async def test_a_step_that_stopped_in_the_middle_is_called_again_after_others_had_their_turn(
    clock: VirtualClock,
) -> None:
    order: list[str] = []

    async def step() -> Instant | None:
        order.append("step")
        if order.count("step") == 1:
            asyncio.get_running_loop().call_soon(order.append, "other")
        return AGAIN if order.count("step") < 3 else None

    async with running(Pump("p", clock, step, poll_us=HOUR)):
        await clock.settle()
    assert order == ["step", "other", "step", "step"]


async def test_what_the_step_raises_is_for_the_supervisor(clock: VirtualClock) -> None:
    async def step() -> Instant | None:
        raise LookupError("broken")

    with pytest.raises(LookupError):
        await Pump("p", clock, step).run()


async def test_on_the_real_clock_it_is_never_early_and_hardly_late() -> None:
    clock = SystemClock()
    dues = [clock.now() + gap * MILLISECOND for gap in (3, 7, 20, 21, 40)]
    woken: list[Instant] = []
    done = asyncio.Event()

    def left() -> Instant | None:
        now = clock.now()
        while dues and dues[0] <= now:
            woken.append(now - dues.pop(0))
        if not dues:
            done.set()
        return dues[0] if dues else None

    async def step() -> Instant | None:
        return left()

    async with running(Pump("p", clock, step)), asyncio.timeout(10):
        await done.wait()
    assert len(woken) == 5
    assert min(woken) >= 0


# How long it waits


async def test_a_due_instant_that_stays_is_tried_after_pauses_that_double(
    clock: VirtualClock,
) -> None:
    start = clock.now()
    steps = CoroutineDriver(clock, lambda: start)
    async with running(Pump("p", clock, steps, poll_us=HOUR)):
        await clock.advance(3 * SECOND + 23 * MILLISECOND)
    gaps = [later - earlier for earlier, later in itertools.pairwise(steps.calls)]
    doubled = [MILLISECOND << n for n in range(10)]
    assert gaps == [*doubled, SECOND, SECOND]


@pytest.mark.parametrize(
    ("rest_ms", "calls_ms"),
    [(None, [0, 1, 3, 7, 7, 8, 10]), (5, [0, 1, 3, 7, 12, 13, 15])],
    ids=["stopped in the middle", "due later"],
)
async def test_a_step_that_got_something_done_makes_the_next_pauses_short_again(
    clock: VirtualClock, rest_ms: int | None, calls_ms: list[int]
) -> None:
    start = clock.now()
    good = AGAIN if rest_ms is None else start + (7 + rest_ms) * MILLISECOND
    answers: list[Instant | None] = [start, start, start, good, start, start]
    steps = CoroutineDriver(clock, lambda: answers.pop(0) if answers else None)
    pump = Pump("p", clock, steps, poll_us=HOUR)
    async with running(pump):
        await clock.advance(SECOND)
    assert [at // MILLISECOND for at in steps.calls] == calls_ms
    assert pump.steps == len(steps.calls)


@pytest.mark.parametrize(
    ("due_us", "calls"),
    [
        (-1, [0, 1000]),
        (0, [0, 1000]),
        (1, [0, 1]),
        (700, [0, 700]),
    ],
)
async def test_only_what_is_due_after_the_step_began_is_believed(
    clock: VirtualClock, due_us: int, calls: list[int]
) -> None:
    start = clock.now()
    dues = iter([start + due_us])
    steps = CoroutineDriver(clock, lambda: next(dues, None))
    async with running(Pump("p", clock, steps, poll_us=HOUR)):
        await clock.advance(SECOND)
    assert steps.calls == calls


@pytest.mark.parametrize(
    ("works_us", "second_us"), [(0, 10_000), (9_999, 10_000), (10_000, 10_000), (15_000, 15_000)]
)
async def test_from_one_step_to_the_next_it_is_at_least_the_interval(
    clock: VirtualClock, works_us: int, second_us: int
) -> None:
    await clock.advance(SECOND)
    start = clock.now()
    calls: list[Instant] = []

    async def step() -> Instant | None:
        calls.append(clock.now() - start)
        pump.signal()
        await clock.sleep_until(clock.now() + works_us)
        return None

    pump = Pump("p", clock, step, poll_us=HOUR, min_interval_us=10 * MILLISECOND)
    async with running(pump):
        await clock.advance(second_us)
    assert calls == [0, second_us]


async def test_a_step_after_a_pause_is_not_delayed_by_the_interval(clock: VirtualClock) -> None:
    steps = CoroutineDriver(clock, never)
    pump = Pump("p", clock, steps, poll_us=HOUR, min_interval_us=10 * MILLISECOND)
    async with running(pump):
        await clock.advance(SECOND)
        pump.signal()
        await clock.settle()
    assert steps.calls == [0, SECOND]


async def test_a_poll_of_nothing_is_one_of_a_millisecond(clock: VirtualClock) -> None:
    steps = CoroutineDriver(clock, never)
    async with running(Pump("p", clock, steps, poll_us=0)):
        await clock.advance(3 * MILLISECOND)
    assert steps.calls == [0, MILLISECOND, 2 * MILLISECOND, 3 * MILLISECOND]


async def test_a_step_that_is_always_due_lets_others_run(clock: VirtualClock) -> None:
    """Each signals itself and never waits."""
    order: list[str] = []

    def make(name: str) -> Pump:
        async def step() -> Instant | None:
            order.append(name)
            if len(order) < 6:
                pump.signal()
            return None

        pump = Pump(name, clock, step, poll_us=HOUR)
        return pump

    async with running(make("a")), running(make("b")):
        await clock.settle()
    assert order[:6] == ["a", "b", "a", "b", "a", "b"]


async def test_a_pump_can_be_run_again_after_its_step_raised(clock: VirtualClock) -> None:
    answers: list[Instant | None] = []
    steps = CoroutineDriver(clock, lambda: answers.pop(0))
    pump = Pump("p", clock, steps)
    for _ in range(2):
        with pytest.raises(IndexError):
            await pump.run()
    assert (pump.steps, pump.name) == (2, "p")


async def test_pumps_at_rest_wake_together(clock: VirtualClock) -> None:
    await clock.advance(300 * MILLISECOND)
    start = clock.now()
    steps = CoroutineDriver(clock, never)
    async with running(Pump("p", clock, steps, poll_us=5 * SECOND)):
        await clock.advance(12 * SECOND)
    assert [start + at for at in steps.calls][1:] == [
        start + 4 * SECOND + 700 * MILLISECOND,
        start + 9 * SECOND + 700 * MILLISECOND,
    ]
    assert steps.calls[0] == 0
