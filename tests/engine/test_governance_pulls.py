"""Governance jobs at the service: enqueued once, pulled at once or after a wait, held and ended."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ksana.base.clock import VirtualClock
from ksana.base.errors import ConflictError, InvalidError, NotFoundError, UnavailableError
from ksana.base.instant import SECOND
from ksana.domain.governance.jobs import AttemptFailure, Renewal
from ksana.domain.governance.records import Rules
from ksana.engine.governance.pulling import Pull, Pulled
from ksana.ports.governance.tables import GovernanceJobFilter
from ksana.service.governance.service import AT_ONCE, RACES
from ksana.service.governance.transactions import Enqueued
from tests.engine.governance_services import Watched, open_governing
from tests.ground.governance import ME

WAIT = 10 * SECOND


@pytest.fixture
async def governing(tmp_path: Path, clock: VirtualClock) -> AsyncIterator[Watched]:
    async with open_governing(tmp_path, clock) as governing:
        yield governing


def a_pull(**members: Any) -> Pull:
    return Pull(**{"worker_id": "w1", "limit": 5, "lease_us": 60 * SECOND, **members})


# Enqueued


@pytest.mark.spec("G1")
async def test_a_job_is_enqueued_once_for_its_key_and_told_of_once(governing: Watched) -> None:
    new = governing.new_job(is_past_allowed=False)
    made = await governing.service.enqueue(new, ME)
    stored = await governing.job(new.job_id)
    assert made == Enqueued(msgspec.structs.replace(stored, seq=0), False)
    assert governing.take_told()
    assert [fact[:2] for fact in await governing.facts("GOV_JOB_ENQUEUED")] == [
        ("GOV_JOB", new.job_id)
    ]
    await governing.virtual.advance(60 * SECOND)  # its time is past by now
    again = await governing.service.enqueue(new, ME)
    assert again == Enqueued(stored, True)
    assert not governing.take_told()
    await governing.assert_audit_is_whole()


@pytest.mark.spec("G1")
async def test_a_time_that_is_past_is_refused(governing: Watched) -> None:
    new = governing.new_job(is_past_allowed=False, run_at=governing.clock.now() - 2 * SECOND)
    with pytest.raises(InvalidError) as refused:
        await governing.service.enqueue(new, ME)
    assert refused.value.field == "run_at"
    with pytest.raises(NotFoundError):
        await governing.job(new.job_id)


@pytest.mark.spec("G1")
async def test_who_is_slower_with_the_same_key_gets_the_others_job(governing: Watched) -> None:
    first = await governing.job(await governing.enqueue())
    hidden = [True]

    async def transact(fn: Any, *args: Any) -> Any:
        def look_away(tx: Any) -> Any:
            find = tx.governance.find_by_key

            def find_by_key(*key: str) -> Any:
                return None if hidden and hidden.pop() else find(*key)

            tx.governance.find_by_key = find_by_key
            return fn(tx, *args)

        return await governing.races._store.transact(look_away)

    governing.races.transact = transact  # type: ignore[method-assign]
    governing.take_told()
    found = await governing.service.enqueue(governing.new_job(), ME)
    assert (found, hidden) == (Enqueued(first, True), [])
    assert not governing.take_told()


@pytest.mark.spec("G11")
async def test_a_refusal_by_the_objects_limit_is_recorded(governing: Watched) -> None:
    await governing.put("m1", unknown_type="ontic_unknowable", verify_count=2)
    governing.take_told()
    new = governing.new_job(action="verify")
    with pytest.raises(ConflictError) as refused:
        await governing.service.enqueue(new, ME)
    current = {"reason": "VERIFY_LIMIT", "verify_count": 2, "verify_limit": 2}
    assert refused.value.extra["current"] == current
    assert await governing.facts("ENQUEUE_REFUSED") == [
        ("OBJECT", "memory:m1", {"action": "verify", **current})
    ]
    assert not governing.take_told()


def test_ids_of_jobs_are_new_each_time(governing: Watched) -> None:
    first, second = governing.service.new_id(), governing.service.new_id()
    assert first.startswith("job_")
    assert first != second


# Pulled


@pytest.mark.spec("G2")
@pytest.mark.parametrize(
    ("ahead", "allow", "is_refused"),
    [
        (5 * SECOND, False, False),
        (5 * SECOND + 1, False, True),
        (5 * SECOND + 1, True, False),
        (-60 * SECOND, False, False),
        (None, False, False),
    ],
)
async def test_now_may_be_a_little_ahead(
    tmp_path: Path, clock: VirtualClock, ahead: int | None, allow: bool, is_refused: bool
) -> None:
    async with open_governing(tmp_path, clock, Rules(allow_simulation=allow)) as governing:
        now = None if ahead is None else clock.now() + ahead
        if is_refused:
            with pytest.raises(InvalidError) as refused:
                await governing.service.pull(a_pull(now=now), ME)
            assert refused.value.field == "now"
        else:
            assert await governing.service.pull(a_pull(now=now), ME) == Pulled([])


@pytest.mark.spec("G2")
async def test_who_does_not_wait_is_answered_at_once(governing: Watched) -> None:
    assert await governing.service.pull(a_pull(), ME) == Pulled([])
    job = await governing.enqueue(run_at=governing.clock.now() + 3 * SECOND)
    assert await governing.service.pull(a_pull(), ME, 0) == Pulled([], job.run_at)
    assert await governing.service.pull(a_pull(), ME, -1) == Pulled([], job.run_at)


async def wait_for(governing: Watched, pull: Pull, seconds: float) -> tuple[list[str], float]:
    """Pull with a wait of ten seconds while the clock runs on for so many; answer the jobs, and
    after how long they came."""
    began = governing.clock.now()
    ended: list[float] = []

    async def ask() -> list[str]:
        pulled = await governing.service.pull(pull, ME, WAIT)
        ended.append((governing.clock.now() - began) / SECOND)
        return [one.job.job.job_id for one in pulled.handed]

    waiting = asyncio.ensure_future(ask())
    await governing.virtual.advance(round(seconds * SECOND))
    assert waiting.done()
    return await waiting, ended[0]


@pytest.mark.spec("G2")
async def test_who_waits_gets_the_next_job_at_its_time(governing: Watched) -> None:
    job = await governing.enqueue(run_at=governing.clock.now() + 3 * SECOND)
    assert await wait_for(governing, a_pull(), 10) == ([job.job_id], 3.0)


@pytest.mark.spec("G2")
async def test_who_waits_for_a_jobs_time_gets_one_that_comes_earlier(governing: Watched) -> None:
    await governing.enqueue(run_at=governing.clock.now() + 8 * SECOND)
    pulling = asyncio.ensure_future(governing.service.pull(a_pull(), ME, WAIT))
    await governing.virtual.advance(SECOND)
    sooner = await governing.enqueue("m2")
    await governing.virtual.settle()
    assert [one.job.job.job_id for one in (await pulling).handed] == [sooner.job_id]


@pytest.mark.spec("G2")
@pytest.mark.parametrize("due_in", [None, 10, 30])
async def test_who_waits_in_vain_is_answered_when_its_time_is_over(
    governing: Watched, due_in: int | None
) -> None:
    if due_in is not None:
        await governing.enqueue(run_at=governing.clock.now() + due_in * SECOND + 1)
    assert await wait_for(governing, a_pull(), 10) == ([], 10.0)


@pytest.mark.spec("G2")
async def test_a_due_job_that_is_not_for_the_caller_keeps_it_from_nothing(
    governing: Watched,
) -> None:
    await governing.enqueue()
    before = governing.races.pulls
    found = await wait_for(governing, a_pull(actions=("verify",)), 10)
    assert (found, governing.races.pulls - before) == (([], 10.0), 1)


@pytest.mark.spec("G2")
@pytest.mark.parametrize(
    ("filters", "is_for_it"),
    [
        ({}, True),
        ({"actions": ("decay", "verify")}, True),
        ({"actions": ("verify",)}, False),
        ({"object_types": ("memory",)}, True),
        ({"object_types": ("cognition",)}, False),
        ({"actions": ("decay",), "object_types": ("memory",)}, True),
        ({"actions": ("decay",), "object_types": ("cognition",)}, False),
        ({"actions": ("verify",), "object_types": ("memory",)}, False),
    ],
)
async def test_a_job_that_comes_wakes_those_it_is_for_and_nobody_else(
    governing: Watched, filters: dict[str, Any], is_for_it: bool
) -> None:
    pulling = asyncio.ensure_future(governing.service.pull(a_pull(**filters), ME, WAIT))
    await governing.virtual.advance(SECOND)
    job = await governing.enqueue()
    await governing.virtual.settle()
    assert pulling.done() is is_for_it
    assert governing.races.pulls == (2 if is_for_it else 1)
    await governing.virtual.advance(WAIT)
    handed = [one.job.job.job_id for one in (await pulling).handed]
    assert handed == ([job.job_id] if is_for_it else [])


@pytest.mark.spec("G2")
@pytest.mark.parametrize("has_job_ahead", [True, False])
async def test_nobody_waits_once_the_server_goes_down(
    governing: Watched, has_job_ahead: bool
) -> None:
    if has_job_ahead:
        await governing.enqueue(run_at=governing.clock.now() + 8 * SECOND)
    pulling = asyncio.ensure_future(governing.service.pull(a_pull(), ME, WAIT))
    await governing.virtual.advance(SECOND)
    governing.service.waiting.close()
    await governing.virtual.settle()
    assert pulling.done()
    assert (await pulling).handed == []


@pytest.mark.spec("G2")
async def test_who_has_gone_meanwhile_is_handed_nothing(governing: Watched) -> None:
    gone: list[bool] = []
    pulling = asyncio.ensure_future(governing.service.pull(a_pull(), ME, WAIT, lambda: bool(gone)))
    await governing.virtual.advance(SECOND)
    gone.append(True)
    job = await governing.enqueue()
    await governing.virtual.settle()
    assert (await pulling).handed == []
    assert (await governing.job(job)).status == "queued"


@pytest.mark.spec("G2")
async def test_on_a_shared_store_a_few_of_those_who_wait_try_at_a_time(
    governing: Watched,
) -> None:
    governing.races.sole = False
    for _ in range(AT_ONCE + 1):  # each gives its turn back
        assert await wait_for(governing, a_pull(), 10) == ([], 10.0)
    job = await governing.enqueue()
    assert await wait_for(governing, a_pull(), 0) == ([job.job_id], 0.0)
    for _ in range(AT_ONCE):
        assert await governing.service._turns.take(0)
    await governing.enqueue("m2")
    before = governing.races.pulls
    asked = asyncio.ensure_future(governing.service.pull(a_pull(), ME, 1))
    while not governing.service._turns._line:
        await asyncio.sleep(0)
    while governing.service._turns._line:  # it gives up by itself
        await asyncio.sleep(0)
    await governing.virtual.advance(1)
    assert await asked == Pulled([])
    assert governing.races.pulls == before
    # Who does not wait needs no turn.
    assert len((await governing.service.pull(a_pull(), ME, 0)).handed) == 1


@pytest.mark.spec("G2", "X4")
async def test_what_another_instance_enqueues_is_seen_by_those_who_wait_here(
    governing: Watched,
) -> None:
    governing.races.sole = False
    other = Watched(governing.races, governing.virtual)
    async with governing.beside(governing.service.waiting.watch):
        pulling = asyncio.ensure_future(governing.service.pull(a_pull(), ME, WAIT))
        await governing.virtual.advance(SECOND)
        job = await other.enqueue()
        await governing.virtual.advance(SECOND)
        assert pulling.done()
        assert [one.job.job.job_id for one in (await pulling).handed] == [job.job_id]


# Held


@pytest.mark.spec("G5")
async def test_a_lease_ends_when_it_says(governing: Watched) -> None:
    async with governing.beside(governing.service.sweep.pump.run):
        await governing.enqueue()
        [job] = await governing.pull(lease_us=3 * SECOND)
        await governing.virtual.advance(3 * SECOND - 1)
        assert (await governing.job(job)).status == "running"
        await governing.virtual.advance(1)
        assert (await governing.job(job)).status == "queued"


@pytest.mark.spec("G5")
async def test_a_lease_that_was_made_shorter_ends_when_it_says(governing: Watched) -> None:
    async with governing.beside(governing.service.sweep.pump.run):
        for name in ("a", "b"):
            await governing.enqueue(name)
        jobs = await governing.pull(2, lease_us=60 * SECOND)
        await governing.virtual.settle()
        renewals = [Renewal(job_id="job_nobody"), *[Renewal(job_id=one.job_id) for one in jobs]]
        nobody, *renewed = await governing.service.renew_batch(renewals, 3 * SECOND)
        assert isinstance(nobody, NotFoundError)
        assert [one.lease_expires_at for one in renewed] == [  # type: ignore[union-attr]
            governing.clock.now() + 3 * SECOND
        ] * 2
        await governing.virtual.advance(3 * SECOND)
        assert [(await governing.job(job)).status for job in jobs] == ["queued"] * 2


@pytest.mark.spec("G3", "G4")
async def test_who_waits_is_told_of_every_end(governing: Watched) -> None:
    for name in ("a", "b", "c"):
        await governing.enqueue(name)
    done, failed, held = await governing.pull(3)
    governing.take_told()
    assert (await governing.ack(done)).status == "succeeded"
    assert governing.take_told()
    assert (await governing.fail(failed)).status == "queued"
    assert governing.take_told()
    assert (await governing.renew(held, 5 * SECOND)).lease_expires_at is not None
    with pytest.raises(ConflictError):
        await governing.renew(held, SECOND, token=7)
    failure = AttemptFailure(job_id=held.job_id, error="no", token=7)
    with pytest.raises(ConflictError):
        await governing.service.fail(failure, ME)


@pytest.mark.spec("G3")
async def test_a_decision_is_made_again_where_another_was_faster(governing: Watched) -> None:
    job = await governing.enqueue()
    governing.races.races = RACES - 1
    [pulled] = await governing.pull()
    assert pulled.job_id == job.job_id
    governing.races.races = RACES
    with pytest.raises(UnavailableError):
        await governing.ack(pulled)
    assert (await governing.ack(pulled)).status == "succeeded"


# Listed


@pytest.mark.spec("G6")
@pytest.mark.parametrize(("limit", "pages"), [(1, 3), (2, 2), (3, 1), (4, 1)])
async def test_jobs_are_listed_newest_first_by_pages(
    governing: Watched, limit: int, pages: int
) -> None:
    jobs = [await governing.enqueue(name) for name in ("a", "b", "c")]
    seen: list[str] = []
    before, count = None, 0
    while True:
        page = await governing.service.list_jobs(GovernanceJobFilter(), before, limit)
        seen += [job.job_id for job in page.jobs]
        before, count = page.next_before, count + 1
        if before is None:
            break
    assert seen == [job.job_id for job in reversed(jobs)]
    assert count == pages
