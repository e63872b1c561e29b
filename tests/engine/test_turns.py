"""Turns of those who wait: so many at a time, nobody in line for ever, and none is lost."""

import asyncio
from typing import Any

import pytest

from ksana.base.clock import SystemClock
from ksana.base.instant import MILLISECOND, SECOND
from ksana.domain.governance.jobs import Rules
from ksana.domain.governance.records import Who
from ksana.engine.core.turns import WaitTurns
from ksana.engine.governance.pulling import Pull, Pulled
from ksana.service.governance.service import AT_ONCE, GovernanceService


def in_a_moment() -> int:
    return SystemClock().now() + 50 * MILLISECOND


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_turn_that_is_given_back_goes_to_the_first_in_line() -> None:
    turns = WaitTurns(SystemClock(), 1)
    assert await turns.take(in_a_moment())
    order: list[str] = []

    async def stand(name: str) -> None:
        assert await turns.take(SystemClock().now() + 5 * SECOND)
        order.append(name)

    first, second = asyncio.create_task(stand("first")), asyncio.create_task(stand("second"))
    await settle()
    turns.give_back()
    late = asyncio.create_task(stand("late"))
    await first
    turns.give_back()
    await second
    turns.give_back()
    await late
    assert order == ["first", "second", "late"]
    turns.give_back()
    assert turns.free == 1


async def test_whoever_waits_for_a_turn_gives_up_when_its_time_is_over() -> None:
    turns = WaitTurns(SystemClock(), 1)
    assert await turns.take(in_a_moment())
    async with asyncio.timeout(5):
        assert await turns.take(in_a_moment()) is False
    turns.give_back()
    assert turns.free == 1, "nobody is in line any more, so the turn is free"


@pytest.mark.parametrize("is_given_first", [False, True])
async def test_whoever_is_cancelled_in_line_takes_no_turn_along(is_given_first: bool) -> None:
    turns = WaitTurns(SystemClock(), 1)
    assert await turns.take(in_a_moment())
    gone = asyncio.create_task(turns.take(SystemClock().now() + 5 * SECOND))
    await settle()
    if is_given_first:
        turns.give_back()
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    assert gone.cancelled()
    if not is_given_first:
        turns.give_back()
    assert turns.free == 1


class HeldStore:
    """A shared store whose transactions end when they are let go."""

    sole = False

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.begun = 0

    async def transact(self, *_: Any) -> Pulled:
        self.begun += 1
        await self.gate.wait()
        return Pulled([])


@pytest.mark.spec("G2")
async def test_a_pull_in_line_at_a_held_store_ends_at_its_wait() -> None:
    held: Any = HeldStore()
    service = GovernanceService(held, SystemClock(), Rules())
    pull, who = Pull(worker_id="w", limit=1, lease_us=SECOND), Who(actor="w")
    others = [asyncio.create_task(service.pull(pull, who, 60 * SECOND)) for _ in range(AT_ONCE)]
    await settle()
    assert held.begun == AT_ONCE
    async with asyncio.timeout(5):
        pulled = await service.pull(pull, who, 50 * MILLISECOND)
    assert pulled.handed == []
    assert held.begun == AT_ONCE, "it never had its turn"
    for other in others:
        other.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    assert service._turns.free == AT_ONCE
