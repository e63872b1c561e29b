"""Waits whose length alone matters, and the moments at which idle loops wake together."""

import asyncio

import pytest

from ksana.base.clock import SystemClock, VirtualClock, until_beat
from ksana.base.instant import HOUR, MILLISECOND, SECOND


def test_a_beat_is_never_so_near_that_a_timer_rings_twice() -> None:
    beats = [until_beat(mono * MILLISECOND, SECOND) for mono in (0, 1, 400, 500, 501, 999)]
    assert beats == [ms * MILLISECOND for ms in (1000, 999, 600, 500, 1499, 1001)]


@pytest.mark.parametrize("clock_of", [SystemClock, VirtualClock])
async def test_a_rest_ends_with_the_event_or_with_its_length(
    clock_of: type[SystemClock | VirtualClock],
) -> None:
    resting, event = clock_of(), asyncio.Event()

    async def advance(by_us: int) -> None:
        if isinstance(resting, VirtualClock):
            await resting.advance(by_us)

    ended = asyncio.create_task(resting.rest(event, 20 * MILLISECOND))
    await advance(20 * MILLISECOND)
    assert await ended is False
    ended = asyncio.create_task(resting.rest(event, HOUR))
    await asyncio.sleep(0)
    event.set()
    assert await ended is True
    event.clear()
    ended = asyncio.create_task(resting.rest(event, HOUR))
    await asyncio.sleep(0)
    ended.cancel()
    with pytest.raises(asyncio.CancelledError):
        await ended


async def test_a_step_of_the_wall_clock_does_not_end_a_rest(clock: VirtualClock) -> None:
    resting = asyncio.create_task(clock.rest(asyncio.Event(), 10 * SECOND))
    await clock.settle()
    clock.step(HOUR)
    await clock.advance(9 * SECOND)
    assert not resting.done()
    await clock.advance(SECOND)
    assert await resting is False
