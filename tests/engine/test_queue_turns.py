"""Claims that wait for their turn at a shared store."""

import asyncio
from typing import Any

import pytest

from ksana.base.clock import SystemClock
from ksana.base.instant import SECOND
from ksana.domain.queue.admission import Limits
from ksana.domain.queue.classes import Wants
from ksana.engine.core.turns import WaitTurns
from ksana.service.queue.claims import Claim, Claimed
from ksana.service.queue.service import QueueService


class HeldStore:
    """A shared store whose transactions end when they are let go."""

    sole = False

    def __init__(self) -> None:
        self.gate = asyncio.Event()

    async def transact(self, *_: Any) -> Claimed:
        await self.gate.wait()
        taken: Any = ["a job"]
        return Claimed(taken=taken)


@pytest.mark.parametrize("is_let_go_first", [False, True])
async def test_a_claim_that_is_cancelled_in_line_takes_no_turn_with_it(
    is_let_go_first: bool,
) -> None:
    held: Any = HeldStore()
    service = QueueService(held, SystemClock(), Limits(10))
    service._turns = WaitTurns(SystemClock(), 1)
    claim = Claim("w", Wants())
    first = asyncio.create_task(service.claim(claim, 5 * SECOND))
    await asyncio.sleep(0)
    second = asyncio.create_task(service.claim(claim, 5 * SECOND))
    for _ in range(3):
        await asyncio.sleep(0)
    if is_let_go_first:
        held.gate.set()
        await first
    second.cancel()
    held.gate.set()
    await asyncio.gather(first, second, return_exceptions=True)
    assert second.cancelled() or second.result().taken
    async with asyncio.timeout(5):
        assert (await service.claim(claim, 5 * SECOND)).taken
    assert service._turns.free == 1
