"""Claims that wait, through the service on the virtual clock: what they are woken by, when they
look again, and when they give up."""

import asyncio
from typing import Any

import pytest

from ksana.base.instant import MILLISECOND, MINUTE, SECOND
from ksana.domain.queue.attempt_ends import Release
from ksana.domain.queue.classes import Wants
from ksana.domain.queue.escrow import IDLE
from ksana.domain.queue.jobs import LeasedJob
from ksana.engine.core.long_poll import LOOK_EVERY
from ksana.engine.queue.claims import FREE_UNITS, LOOK_AGAIN
from ksana.service.queue.claims import LATER, NOTHING, SHORT, Claim, Claimed
from ksana.service.queue.service import QueueService
from tests.engine.queue_world import QueueWorld, by
from tests.ground.receivers import AwaitedStore

pytestmark = pytest.mark.spec("Q3")

ANY = Wants()


def begin(queue: QueueWorld, wait_us: int, **members: Any) -> "asyncio.Task[Claimed]":
    is_gone = members.pop("is_gone", bool)
    claim = Claim("late", members.pop("wants", ANY), **members)
    return asyncio.create_task(queue.queue.claim(claim, wait_us, is_gone))


async def give_back(queue: QueueWorld, taken: LeasedJob) -> None:
    proof = by(token=taken.lease.lease_token)
    await queue.queue.release(Release(taken.lease.lease_id, "SUCCEEDED", proof=proof))


@pytest.mark.parametrize("wait_us", [0, -1])
async def test_who_does_not_wait_is_answered_at_once(queue: QueueWorld, wait_us: int) -> None:
    assert await queue.queue.claim(Claim("w", ANY), wait_us) == NOTHING
    job = await queue.submit()
    claimed = await queue.queue.claim(Claim("w", ANY), wait_us)
    assert [one.job_id for one in claimed.jobs] == [job.job_id]


async def test_who_waits_is_answered_at_once_if_there_is_a_job(queue: QueueWorld) -> None:
    job = await queue.submit()
    claimed = await queue.queue.claim(Claim("w", ANY), MINUTE)
    assert [one.job_id for one in claimed.jobs] == [job.job_id]
    assert not queue.queue.poll.waiters


async def test_who_waits_gives_up_when_its_time_is_over(queue: QueueWorld) -> None:
    waiting = begin(queue, 5 * SECOND)
    await queue.clock.advance(5 * SECOND - 1)
    assert not waiting.done()
    await queue.clock.advance(1)
    assert waiting.result() == NOTHING
    assert not queue.queue.poll.waiters


async def test_who_was_woken_and_came_too_late_waits_on(queue: QueueWorld) -> None:
    waiting = [begin(queue, 9 * SECOND) for _ in range(2)]
    await queue.clock.advance(SECOND)
    job = await queue.submit()
    await queue.clock.settle()
    [quick], [slow] = [[one for one in waiting if one.done() is done] for done in (True, False)]
    assert [one.job_id for one in quick.result().jobs] == [job.job_id]
    await queue.clock.advance(8 * SECOND)
    assert slow.result() == NOTHING


async def test_a_caller_that_has_gone_takes_no_job(queue: QueueWorld) -> None:
    gone: list[bool] = []
    waiting = begin(queue, MINUTE, is_gone=lambda: bool(gone))
    await queue.clock.settle()
    gone.append(True)
    job = await queue.submit()
    await queue.clock.settle()
    assert waiting.result() == NOTHING
    assert (await queue.job(job.job_id)).state == "QUEUED"


async def test_who_is_short_of_units_is_told_so_when_its_time_is_over(queue: QueueWorld) -> None:
    await queue.running(cost=100)
    await queue.submit()
    waiting = begin(queue, 5 * SECOND, has_lease=True)
    await queue.clock.advance(5 * SECOND)
    assert waiting.result() == SHORT


async def test_units_that_became_free_during_its_try_are_not_missed(queue: QueueWorld) -> None:
    taken = await queue.running(cost=100)
    job = await queue.submit()
    waiting = begin(queue, MINUTE, has_lease=True)
    releasing = asyncio.create_task(give_back(queue, taken))
    await queue.clock.settle()
    await releasing
    assert [one.job_id for one in waiting.result().jobs] == [job.job_id]


async def test_who_found_no_job_is_not_woken_by_units(queue: QueueWorld) -> None:
    taken = await queue.running()
    waiting = begin(queue, MINUTE, has_lease=True)
    await queue.clock.settle()
    commits = queue.store.health().commits
    await give_back(queue, taken)
    await queue.clock.settle()
    assert queue.store.health().commits == commits + 1, "the release, and no claim"
    waiting.cancel()


class SharedStore(AwaitedStore):
    """A store that others share: claims get what is laid ready, in order."""

    sole = False

    def __init__(self, *answers: Claimed) -> None:
        self.answers = list(answers)
        self.asked_at: list[int] = []
        self.claims: list[Claim] = []
        self.arrivals = 0
        self.clock: Any = None

    async def transact(self, fn: Any, *args: Any) -> list[Claimed]:
        self.asked_at.append(self.clock.monotonic())
        made: list[Claimed] = fn(None, *args)
        return made

    async def read(self, fn: Any, *args: Any) -> int:
        return self.arrivals


async def test_who_may_have_more_in_a_moment_comes_again_by_itself(
    queue: QueueWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    store: Any = SharedStore(LATER, LATER, SHORT)
    store.clock = queue.clock

    def hand_out(_: Any, claims: list[Claim], *__: Any, **___: Any) -> list[Claimed]:
        store.claims += claims
        return [store.answers.pop(0) for _ in claims]

    monkeypatch.setattr("ksana.service.queue.service.claim_together", hand_out)
    service = QueueService(store, queue.clock, queue.queue.limits)
    waiting = asyncio.create_task(service.claim(Claim("w", ANY, has_lease=True), 5 * SECOND))
    await queue.clock.advance(4 * SECOND)
    assert store.asked_at == [0, IDLE, 2 * IDLE], "and no more once others have nothing to spare"
    assert all(claim.can_wait for claim in store.claims)
    await queue.clock.advance(SECOND)
    assert waiting.result() == SHORT


async def test_who_comes_again_does_not_wait_longer_than_it_said(
    queue: QueueWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    store: Any = SharedStore()
    store.clock = queue.clock
    monkeypatch.setattr(
        "ksana.service.queue.service.claim_together",
        lambda _, claims, *__, **___: [LATER] * len(claims),
    )
    service = QueueService(store, queue.clock, queue.queue.limits)
    waiting = asyncio.create_task(service.claim(Claim("w", ANY), IDLE + IDLE // 2))
    await queue.clock.advance(IDLE + IDLE // 2 - 1)
    assert not waiting.done()
    await queue.clock.advance(1)
    assert waiting.result() == LATER
    assert store.asked_at == [0, IDLE]


async def test_what_came_on_another_instance_wakes_who_waits_here(
    queue: QueueWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    store: Any = SharedStore()
    store.clock = queue.clock
    taken: Any = ["a job"]
    monkeypatch.setattr(
        "ksana.service.queue.service.claim_together",
        lambda _, claims, *__, **___: (
            [Claimed(taken=taken) if store.arrivals else NOTHING] * len(claims)
        ),
    )
    service = QueueService(store, queue.clock, queue.queue.limits)
    watching = asyncio.create_task(service.poll.watch())
    waiting = asyncio.create_task(service.claim(Claim("w", ANY), MINUTE))
    await queue.clock.advance(SECOND)
    assert not waiting.done()
    store.arrivals = 1
    await queue.clock.advance(LOOK_EVERY + MILLISECOND)
    assert waiting.done() and waiting.result().taken == taken
    watching.cancel()


@pytest.mark.parametrize(("wait_us", "can_wait"), [(-1, False), (0, False), (1, True)])
async def test_a_claim_is_patient_only_if_it_waits(
    queue: QueueWorld, monkeypatch: pytest.MonkeyPatch, wait_us: int, can_wait: bool
) -> None:
    """One that does not come again gets what others have to spare at once."""
    store: Any = SharedStore()
    store.clock = queue.clock

    def hand_out(_: Any, claims: list[Claim], *__: Any, **___: Any) -> list[Claimed]:
        store.claims += claims
        return [NOTHING] * len(claims)

    monkeypatch.setattr("ksana.service.queue.service.claim_together", hand_out)
    service = QueueService(store, queue.clock, queue.queue.limits)
    waiting = asyncio.create_task(service.claim(Claim("w", ANY), wait_us))
    await queue.clock.advance(SECOND)
    assert waiting.result() == NOTHING
    assert {claim.can_wait for claim in store.claims} == {can_wait}


async def test_units_wake_who_found_no_job_only_if_it_has_not_looked_for_a_while(
    queue: QueueWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    store: Any = SharedStore()
    store.clock = queue.clock
    monkeypatch.setattr(
        "ksana.service.queue.service.claim_together",
        lambda _, claims, *__, **___: [NOTHING] * len(claims),
    )
    service = QueueService(store, queue.clock, queue.queue.limits)
    waiting = asyncio.create_task(service.claim(Claim("w", ANY, has_lease=True), MINUTE))
    await queue.clock.advance(10 * SECOND)
    service.poll.notify([queue.new_job().job_class])
    await queue.clock.advance(LOOK_AGAIN - 1)
    service.poll.notify([FREE_UNITS])
    await queue.clock.advance(1)
    assert store.asked_at == [0, 10 * SECOND]
    service.poll.notify([FREE_UNITS])
    await queue.clock.settle()
    assert store.asked_at == [0, 10 * SECOND, 10 * SECOND + LOOK_AGAIN]
    waiting.cancel()
