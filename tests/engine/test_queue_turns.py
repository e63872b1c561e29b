"""Claims that wait together at a store: one set under way, the next one growing behind it."""

import asyncio
from typing import Any

import pytest

from ksana.base.clock import SystemClock, VirtualClock
from ksana.base.instant import SECOND
from ksana.domain.queue.admission import Limits
from ksana.domain.queue.classes import Wants
from ksana.service.queue.claims import Claim, Claimed
from ksana.service.queue.service import QueueService
from tests.ground.receivers import AwaitedStore


class HeldStore(AwaitedStore):
    """A shared store whose transactions begin when they are let go, and give each claim a job."""

    sole = False

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.begun = 0

    async def transact(self, fn: Any, *args: Any) -> list[Claimed]:
        self.begun += 1
        await self.gate.wait()
        made: list[Claimed] = fn(None, *args)
        return made


class SlowStore(HeldStore):
    """The same, but what is begun is run at once, and answered when it is let go."""

    async def transact(self, fn: Any, *args: Any) -> list[Claimed]:
        self.begun += 1
        made: list[Claimed] = fn(None, *args)
        await self.gate.wait()
        return made


@pytest.mark.spec("Q2", "Q3")
@pytest.mark.parametrize("is_let_go_first", [False, True])
async def test_a_claim_that_is_cancelled_in_line_takes_no_job_and_no_turn_with_it(
    monkeypatch: pytest.MonkeyPatch, is_let_go_first: bool
) -> None:
    served: list[str] = []

    def hand_out(_: Any, claims: list[Claim], *__: Any, **___: Any) -> list[Claimed]:
        served.extend(claim.worker_id for claim in claims)
        taken: Any = ["a job"]
        return [Claimed(taken=taken) for _ in claims]

    monkeypatch.setattr("ksana.service.queue.service.claim_together", hand_out)
    held: Any = HeldStore()
    service = QueueService(held, SystemClock(), Limits(10))
    first = asyncio.create_task(service.claim(Claim("first", Wants()), 5 * SECOND))
    while not held.begun:
        await asyncio.sleep(0)
    second = asyncio.create_task(service.claim(Claim("second", Wants()), 5 * SECOND))
    for _ in range(3):
        await asyncio.sleep(0)
    if is_let_go_first:
        held.gate.set()
        await first
    second.cancel()
    await asyncio.gather(second, return_exceptions=True)
    held.gate.set()
    assert (await first).taken
    async with asyncio.timeout(5):
        assert (await service.claim(Claim("third", Wants()), 5 * SECOND)).taken
    if not is_let_go_first:
        assert served == ["first", "third"]
    assert set(served) - {"second"} == {"first", "third"}


@pytest.mark.spec("Q2")
async def test_a_claim_that_waits_for_the_set_before_it_is_answered_when_its_time_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    served: list[str] = []

    def hand_out(_: Any, claims: list[Claim], *__: Any, **___: Any) -> list[Claimed]:
        served.extend(claim.worker_id for claim in claims)
        taken: Any = ["a job"]
        return [Claimed(taken=taken) for _ in claims]

    monkeypatch.setattr("ksana.service.queue.service.claim_together", hand_out)
    held: Any = SlowStore()
    clock = VirtualClock()
    service = QueueService(held, clock, Limits(10))
    first = asyncio.create_task(service.claim(Claim("first", Wants()), 2 * SECOND))
    await clock.settle()
    assert held.begun == 1
    second = asyncio.create_task(service.claim(Claim("second", Wants()), 5 * SECOND))
    await clock.advance(4 * SECOND)
    assert not second.done()
    await clock.advance(2 * SECOND)
    assert second.done() and not second.result().taken
    assert not first.done()  # its set is under way: what it gets must reach it
    held.gate.set()
    assert (await first).taken
    assert served == ["first"]
