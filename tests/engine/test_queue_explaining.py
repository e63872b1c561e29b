"""Why a job waits, runs or has ended, and the figures of the queue, through the services on the
virtual clock: which facts are gathered, and of whom."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from ksana.base.clock import VirtualClock
from ksana.base.errors import NotFoundError
from ksana.base.instant import SECOND
from ksana.domain.queue.admission import Limits
from ksana.domain.queue.attempt_ends import Release
from ksana.domain.queue.classes import Wants
from ksana.service.queue.class_cache import KNOWN_FOR
from ksana.service.queue.explain import HOLDERS, JobExplanation, QueueExplainer
from ksana.service.queue.leases import LeaseDenied
from ksana.service.queue.stats import Depth, PriorityDepth, QueueStats
from tests.engine.queue_world import QueueWorld, by, open_queue_world

pytestmark = pytest.mark.spec("B1")


async def explain(queue: QueueWorld, job_id: str) -> JobExplanation:
    explainer = QueueExplainer(queue.store, queue.queue.limits, queue.queue.classes)
    return await explainer.explain(job_id)


def codes(explained: JobExplanation) -> list[str]:
    return [reason.code for reason in explained.reasons]


def only(*kinds: str) -> Wants:
    return Wants(job_types=frozenset(kinds))


async def test_a_ready_job_is_explained_with_its_place_and_the_capacity(queue: QueueWorld) -> None:
    holder = await queue.running(cost=95)
    first = await queue.submit(max_attempts=4)
    second = await queue.submit(constraints={"gpu_required": True, "x": False})
    explained = await explain(queue, first.job_id)
    assert explained.job == await queue.job(first.job_id)
    assert codes(explained) == ["NO_CLAIM", "CAPACITY_EXCEEDED"]
    assert explained.position == 1
    assert explained.holders == [holder.lease]
    assert explained.facts == {
        "capacity": {"total": 100, "used": 95, "reserved": 0},
        "attempts": 0,
        "max_attempts": 4,
    }
    assert explained.events == await queue.queue.list_events(first.job_id)
    explained = await explain(queue, second.job_id)
    assert codes(explained) == ["IN_LINE", "NEEDS", "CAPACITY_EXCEEDED"]
    assert explained.position == 2
    assert explained.reasons[1].data == {"needs": ["gpu_required"]}


async def test_a_job_that_would_fit_is_not_said_to_lack_units(queue: QueueWorld) -> None:
    await queue.running(cost=90)
    job = await queue.submit(cost=10)
    assert codes(await explain(queue, job.job_id)) == ["NO_CLAIM"]


async def test_a_reason_names_the_event_it_was_recorded_in(queue: QueueWorld) -> None:
    job = await queue.claimed()
    explained = await explain(queue, job.job_id)
    [reason] = explained.reasons
    claimed = [event.id for event in explained.events if event.type == "JOB_CLAIMED"]
    assert (reason.code, reason.event_id) == ("CLAIMED", claimed[0])


async def test_a_job_with_a_time_stands_in_line_from_then_on(queue: QueueWorld) -> None:
    await queue.submit()
    job = await queue.submit(run_at=queue.clock.now() + 10 * SECOND)
    await queue.clock.advance(10 * SECOND - 1)
    explained = await explain(queue, job.job_id)
    assert (codes(explained), explained.position) == (["NOT_DUE"], None)
    await queue.clock.advance(1)  # though no sweep has made it ready yet
    explained = await explain(queue, job.job_id)
    assert (codes(explained), explained.position) == (["IN_LINE"], 2)


async def test_a_running_job_is_explained_by_its_lease_alone(queue: QueueWorld) -> None:
    taken = await queue.running(cost=60)
    explained = await explain(queue, taken.job.job_id)
    assert codes(explained) == ["RUNNING"], "that it would not fit once more is no reason"
    assert explained.reasons[0].data["lease_id"] == taken.lease.lease_id
    assert (explained.position, explained.holders) == (None, [taken.lease])
    assert explained.facts["attempts"] == 1


async def test_an_ended_job_is_explained_without_the_present(queue: QueueWorld) -> None:
    taken = await queue.running(cost=60)
    await queue.running(cost=40)
    proof = by(token=taken.lease.lease_token)
    await queue.queue.release(Release(taken.lease.lease_id, "FAILED", proof=proof, error="no disk"))
    await queue.running(cost=60)
    explained = await explain(queue, taken.job.job_id)
    assert codes(explained) == ["ATTEMPTS_USED"]
    assert (explained.position, explained.holders) == (None, [])


async def test_a_job_that_is_not_there_cannot_be_explained(queue: QueueWorld) -> None:
    with pytest.raises(NotFoundError, match=r"^there is no job none$"):
        await explain(queue, "none")


async def test_holders_are_named_up_to_twenty(queue: QueueWorld) -> None:
    for _ in range(HOLDERS + 1):
        await queue.running(cost=1)
    job = await queue.submit()
    assert len((await explain(queue, job.job_id)).holders) == HOLDERS


async def test_only_jobs_for_the_same_workers_are_before_it(queue: QueueWorld) -> None:
    for kind in ("x", "y", "y"):
        await queue.submit(kind=kind)
    await queue.submit("other", "x")
    job = await queue.submit(kind="z")
    assert (await explain(queue, job.job_id)).position == 4, "of its addon: nobody has asked yet"
    await queue.claim(wants=only("none"))
    assert (await explain(queue, job.job_id)).position == 4
    assert len((await queue.claim(wants=Wants("a", frozenset({"x", "z"})))).taken) == 1
    assert (await explain(queue, job.job_id)).position == 1
    await queue.submit(kind="x", priority="URGENT")
    assert (await explain(queue, job.job_id)).position == 2


async def test_a_worker_that_was_not_seen_for_ten_minutes_is_not_counted_on(
    queue: QueueWorld,
) -> None:
    for kind in ("x", "y"):
        await queue.submit(kind=kind)
    job = await queue.submit(kind="z")
    await queue.claim(wants=only("x"))
    await queue.claim(wants=only("z", "none"), limit=0)
    await queue.clock.advance(KNOWN_FOR)
    assert (await explain(queue, job.job_id)).position == 1
    await queue.clock.advance(1)
    assert (await explain(queue, job.job_id)).position == 2


async def test_without_a_cache_no_worker_is_known(queue: QueueWorld) -> None:
    await queue.submit(kind="x")
    job = await queue.submit(kind="z")
    await queue.claim(wants=only("z"), limit=0)
    explained = await QueueExplainer(queue.store, queue.queue.limits).explain(job.job_id)
    assert explained.position == 2


# Who waits for capacity


@pytest.fixture
async def shared(tmp_path: Path, clock: VirtualClock) -> AsyncIterator[QueueWorld]:
    """The addons `a` and `b` have shares of 20 and 40 of 100 units."""
    limits = Limits(100, (("a", 20), ("b", 40)))
    async with open_queue_world(tmp_path, clock, limits) as queue:
        yield queue


async def pending(queue: QueueWorld, addon: str, cost: int, **members: Any) -> LeaseDenied:
    """A job that was refused a lease."""
    await queue.submit(addon, cost=cost, **members)
    [job] = (await queue.claim(wants=Wants(addon))).jobs
    answer = await queue.queue.request_lease(job.job_id, 30, by("w"))
    assert isinstance(answer, LeaseDenied)
    return answer


@pytest.mark.spec("Q9")
async def test_only_who_competes_for_the_same_units_is_before_it(shared: QueueWorld) -> None:
    await shared.running(addon="a", cost=20)
    await shared.running(addon="b", cost=30)
    total = await pending(shared, "c", 90)
    of_share = await pending(shared, "a", 5)
    again = await pending(shared, "a", 5)
    assert (total.denial.code, of_share.denial.code) == ("CAPACITY_EXCEEDED", "SHARE_EXCEEDED")
    assert [one.position for one in (total, of_share, again)] == [1, 1, 2]
    last = await pending(shared, "c", 91)
    assert last.position == 2
    assert (await explain(shared, last.job.job_id)).position == 2
    assert (await explain(shared, again.job.job_id)).position == 2
    assert codes(await explain(shared, last.job.job_id)) == [
        *("CLAIMED", "LEASE_DENIED", "CAPACITY_EXCEEDED")
    ]


@pytest.mark.spec("Q9")
async def test_who_has_units_left_of_its_share_competes_for_the_total(shared: QueueWorld) -> None:
    await shared.running(addon="c", cost=80)
    first = await pending(shared, "b", 30)
    assert first.denial.code == "CAPACITY_EXCEEDED"
    second = await pending(shared, "c", 30)
    assert second.position == 2
    urgent = await pending(shared, "c", 30, priority="URGENT")
    assert urgent.position == 1
    assert (await explain(shared, second.job.job_id)).position == 3


# Figures


async def test_the_figures_are_read_from_the_store(queue: QueueWorld) -> None:
    stats = QueueStats(queue.store, queue.queue.limits)
    await queue.running(priority="HIGH")
    await queue.submit(priority="LOW")
    await queue.submit(priority="LOW", run_at=queue.clock.now() + SECOND)
    none, one = Depth(0, more=False), Depth(1, more=False)
    empty = dict.fromkeys(
        ("ready", "scheduled", "claimed", "preparing", "lease_pending", "running"), none
    )
    assert await stats.depth() == [
        PriorityDepth("URGENT", **empty),
        PriorityDepth("HIGH", **empty | {"running": one}),
        PriorityDepth("NORMAL", **empty),
        PriorityDepth("LOW", **empty | {"ready": one, "scheduled": one}),
    ]
    assert await stats.count_ready() == 1
    snapshot = await stats.snapshot()
    assert snapshot.capacity == {"total": 100, "used": 10, "reserved": 0}
    assert (snapshot.jobs["queued"], snapshot.jobs["running"]) == (2, 1)
