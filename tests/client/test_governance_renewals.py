"""When the leases of governance jobs are renewed, and what a handler of one is given."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from ksana.base.clock import VirtualClock
from ksana.base.instant import SECOND
from ksana.client.context import CancelSignal
from ksana.client.errors import TransportError, from_body
from ksana.client.governance_context import GovernanceContext, RetryAfter
from ksana.client.governance_runner import (
    GovernanceHandler,
    GovernanceRenewals,
    HeldGovernanceJob,
)
from ksana.client.governance_shapes import RenewItem
from tests.client.governor_house import FakeGovernance, job
from tests.ground.jumping import LoopClock, loop_time, on_jumping_time

pytestmark = pytest.mark.spec("G5")

TTL = 60 * SECOND
LEASE_LOST = from_body(409, {"code": "LEASE_LOST", "message": "gone"})


class Renewing:
    def __init__(self, clock: VirtualClock) -> None:
        self.server: Any = FakeGovernance()
        self.lost: list[tuple[str, str]] = []
        self.thread = GovernanceRenewals(
            self.server,
            "w",
            {},
            TTL,
            clock,
            lambda held, why: self.lost.append((held.key, why)),
        )


async def test_leases_are_renewed_from_when_the_request_left(
    clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    await clock.advance(100 * SECOND)
    here = Renewing(clock)
    kept, lost, gone, busy = (HeldGovernanceJob(job(name), 0, TTL) for name in "abcd")
    refusals = [
        None,
        LEASE_LOST,
        from_body(404, {"code": "NOT_FOUND"}),
        from_body(503, {"code": "STORE_DOWN"}),
    ]
    here.server.renew_answers = [refusals]
    await here.thread.renew(here.server, [kept, lost, gone, busy])
    items = [RenewItem(job_id=name, lease_token=f"k{name}") for name in "abcd"]
    assert here.server.renewed == [(items, 60.0)]
    assert (kept.beaten_at, kept.fence_at) == (100 * SECOND, 160 * SECOND)
    assert [held.fence_at for held in (lost, gone, busy)] == [100 * SECOND, 100 * SECOND, TTL]
    assert here.lost == [("b", str(LEASE_LOST)), ("c", str(refusals[2]))]
    assert busy.beat_at == 102 * SECOND
    assert caplog.messages == [f"renewal of job d failed: {refusals[3]}"]


async def test_a_renewal_that_failed_is_made_again_soon(
    clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    await clock.advance(10 * SECOND)
    here = Renewing(clock)
    here.server.renew_answers = [TransportError("cut", is_outcome_unknown=True)]
    held = [HeldGovernanceJob(job(name), 0, TTL) for name in "ab"]
    await here.thread.renew(here.server, held)
    assert [(one.beat_at, one.fence_at) for one in held] == [(12 * SECOND, TTL)] * 2
    assert here.lost == []
    assert caplog.messages == ["renewal of 2 leases failed: cut"]
    assert here.thread.most == 500


@on_jumping_time
async def test_the_thread_sleeps_until_a_renewal_is_due_or_somebody_wakes_it() -> None:
    here = Renewing(LoopClock())
    here.thread._wake = asyncio.Event()
    held = HeldGovernanceJob(job(), here.thread._clock.monotonic(), TTL)
    assert here.thread.due_at(held) == held.beat_at
    await here.thread._sleep([])
    assert loop_time() == 10.0  # a sixth of the lease
    held.beat_at = here.thread._clock.monotonic() + 4 * SECOND
    await here.thread._sleep([held])
    assert loop_time() == 14.0
    asyncio.get_running_loop().call_later(1.0, here.thread._wake.set)
    await here.thread._sleep([])
    assert loop_time() == 15.0


@pytest.mark.parametrize(
    ("attempt", "of", "is_last"), [(0, 3, False), (1, 3, False), (2, 3, True), (0, 1, True)]
)
async def test_a_handler_knows_whether_a_failure_would_be_the_last(
    attempt: int, of: int, is_last: bool
) -> None:
    client: Any = SimpleNamespace()
    ctx = GovernanceContext(job(attempt=attempt, max_attempts=of), "w", CancelSignal(), client)
    assert (ctx.attempt, ctx.is_last_attempt, ctx.gates) == (attempt + 1, is_last, {})


@pytest.mark.parametrize("delay_sec", [-0.1, 31_536_001])
def test_a_delay_lies_between_now_and_a_year(delay_sec: float) -> None:
    with pytest.raises(ValueError, match="a delay lies between 0 and a year"):
        RetryAfter(delay_sec)
    for allowed in (0, 0.5, 31_536_000):
        assert RetryAfter(allowed, "x").delay_sec == allowed


async def test_a_handler_asks_for_its_object_on_the_loop_or_in_a_thread() -> None:
    async def find_object(object_type: str, object_id: str) -> Any:
        return (object_type, object_id)

    client: Any = SimpleNamespace(find_object=find_object)
    ctx = GovernanceContext(job(), "w", CancelSignal(), client)
    assert await ctx.find_object() == ("memory", "oj")
    assert await asyncio.to_thread(ctx.find_object_in_thread) == ("memory", "oj")


def test_a_handler_is_checked_when_it_is_registered() -> None:
    with pytest.raises(TypeError, match="the handler of 'verify' takes"):
        GovernanceHandler("verify", lambda: None, None)
    with pytest.raises(ValueError, match="'verify': deadline_sec is for async handlers only"):
        GovernanceHandler("verify", lambda ctx: None, 1.0)
