"""Requests for leases through the service on the virtual clock: what is granted, what is refused,
and what a refusal keeps."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ksana.base.clock import VirtualClock
from ksana.base.errors import InvalidError, KsanaError
from ksana.base.instant import SECOND
from ksana.domain.leases import ANYBODY, Proof
from ksana.domain.queue.admission import RESERVE_GRACE, Denial, Limits
from ksana.domain.queue.attempt_ends import Release
from ksana.domain.queue.jobs import CLAIM_TTL_US, JobPosition, Lease, LeasedJob
from ksana.service.queue.leases import HOLDERS, LeaseDenied
from tests.engine.queue_world import QueueWorld, by, open_queue_world

W = by("w")


async def ask(queue: QueueWorld, job_id: str, proof: Proof = W, ttl_sec: float = 30) -> Any:
    return await queue.queue.request_lease(job_id, ttl_sec, proof)


async def granted(queue: QueueWorld, **members: Any) -> LeasedJob:
    answer = await ask(queue, (await queue.claimed(**members)).job_id)
    assert isinstance(answer, LeasedJob)
    return answer


async def denied(queue: QueueWorld, **members: Any) -> LeaseDenied:
    answer = await ask(queue, (await queue.claimed(**members)).job_id)
    assert isinstance(answer, LeaseDenied)
    return answer


async def refused(queue: QueueWorld, job_id: str, proof: Proof = W) -> tuple[str, str, Any]:
    with pytest.raises(KsanaError) as error:
        await ask(queue, job_id, proof)
    return error.value.code, error.value.message, error.value.extra.get("current")


async def give_back(queue: QueueWorld, lease: Lease, status: str = "SUCCEEDED") -> None:
    await queue.queue.release(Release(lease.lease_id, status, proof=by(token=lease.lease_token)))


@pytest.mark.spec("Q8", "Q9")
async def test_a_claimed_job_that_fits_runs_under_a_lease(queue: QueueWorld) -> None:
    job = await queue.claimed(cost=100)
    await queue.clock.advance(SECOND)
    now = queue.clock.now()
    taken = await ask(queue, job.job_id, ttl_sec=2.5)
    assert taken == LeasedJob(
        Lease(
            lease_id=taken.lease.lease_id,
            job_id=job.job_id,
            addon_id="a",
            worker_id="w",
            cost_units=100,
            ttl_sec=2.5,
            state="ACTIVE",
            granted_at=now,
            last_heartbeat_at=now,
            expires_at=now + 2_500_000,
            lease_token=taken.lease.lease_token,
        ),
        msgspec.structs.replace(
            job,
            state="RUNNING",
            lease_id=taken.lease.lease_id,
            lease_token=taken.lease.lease_token,
            lease_ttl_sec=2.5,
            heartbeat_at=now,
            lease_expires_at=now + 2_500_000,
            attempts=1,
            claim_expires_at=None,
            started_at=now,
            updated_at=now,
            position=JobPosition.RUNNING,
        ),
    )
    assert await queue.job(job.job_id) == taken.job
    assert await queue.lease(taken.lease.lease_id) == taken.lease
    assert taken.lease.lease_token not in (0, job.claim_token)
    assert await queue.used() == 100
    assert await queue.event_types(job.job_id) == [
        "JOB_SUBMITTED",
        "JOB_CLAIMED",
        "LEASE_GRANTED",
        "JOB_RUNNING",
    ]


@pytest.mark.spec("Q9")
async def test_the_holder_is_answered_the_same_lease_again(queue: QueueWorld) -> None:
    taken = await granted(queue)
    await queue.clock.advance(SECOND)
    for proof in (W, by(token=taken.job.claim_token), by("w", taken.job.claim_token)):
        assert await ask(queue, taken.job.job_id, proof) == taken
    assert await queue.used() == 10


@pytest.mark.spec("Q12")
async def test_a_lease_in_force_is_shown_to_nobody_else(queue: QueueWorld) -> None:
    taken = await granted(queue)
    assert await refused(queue, taken.job.job_id, ANYBODY) == (
        "LEASE_LOST",
        "this job runs: send the worker_id or the claim_token that holds it",
        {"state": "RUNNING"},
    )
    assert await refused(queue, taken.job.job_id, by("x")) == (
        "CLAIM_LOST",
        "another worker holds this job",
        {"state": "RUNNING", "claimed_by": "w"},
    )
    await queue.clock.advance(30 * SECOND)
    assert await refused(queue, taken.job.job_id) == (
        "LEASE_LOST",
        "the lease of this job has run out",
        {"state": "RUNNING"},
    )


@pytest.mark.spec("Q8")
async def test_a_job_that_is_not_held_gets_no_lease(queue: QueueWorld) -> None:
    job_id = (await queue.submit()).job_id
    code, _, current = await refused(queue, job_id, ANYBODY)
    assert (code, current) == ("ILLEGAL_TRANSITION", {"state": "QUEUED", "requested": "RUNNING"})
    code, _, current = await refused(queue, job_id)
    assert (code, current) == ("CLAIM_LOST", {"state": "QUEUED", "claimed_by": None})
    assert (await refused(queue, "no-such-job"))[:2] == (
        "NOT_FOUND",
        "there is no job no-such-job",
    )


@pytest.mark.spec("Q12")
async def test_a_job_of_another_or_of_a_claim_that_ran_out_gets_no_lease(
    queue: QueueWorld,
) -> None:
    job = await queue.claimed()
    assert await refused(queue, job.job_id, by("x")) == (
        "CLAIM_LOST",
        "another worker holds this job",
        {"state": "CLAIMED", "claimed_by": "w"},
    )
    await queue.clock.advance(CLAIM_TTL_US)
    for proof in (W, ANYBODY):
        assert await refused(queue, job.job_id, proof) == (
            "CLAIM_LOST",
            "the claim on this job has run out",
            {"state": "CLAIMED"},
        )


@pytest.mark.spec("Q12")
async def test_a_job_that_was_claimed_twice_gets_a_lease_by_proof_alone(queue: QueueWorld) -> None:
    async with queue.sweeping():
        await queue.claimed("x")
        await queue.clock.advance(CLAIM_TTL_US)
    [job] = (await queue.claim()).jobs
    code, message, _ = await refused(queue, job.job_id, ANYBODY)
    assert (code, message[:37]) == ("CLAIM_LOST", "this job was claimed more than once: ")
    assert isinstance(await ask(queue, job.job_id), LeasedJob)


REPEATED = [
    ("cost_units", 10, 11),
    ("addon_id", "a", "b"),
    ("job_type", "t", "u"),
    ("constraints", {"gpu_required": False}, {}),
]


@pytest.mark.spec("Q8")
@pytest.mark.parametrize(("name", "own", "other"), REPEATED)
async def test_what_a_request_repeats_of_the_job_must_be_the_same(
    queue: QueueWorld, name: str, own: Any, other: Any
) -> None:
    job = await queue.claimed(constraints={"gpu_required": False})
    with pytest.raises(InvalidError) as error:
        await queue.queue.request_lease(job.job_id, 30, W, (("addon_id", "a"), (name, other)))
    assert error.value.message == f"{name!r} differs from the job's own: it is {own!r}"
    assert error.value.extra == {"field": name}
    assert await queue.job(job.job_id) == job
    answer = await queue.queue.request_lease(job.job_id, 30, W, ((name, own),))
    assert isinstance(answer, LeasedJob)


@pytest.mark.spec("Q8", "Q9")
async def test_a_refusal_says_why_when_and_where_and_keeps_the_claim(queue: QueueWorld) -> None:
    first = await granted(queue, cost=70)
    second = await queue.claimed(cost=40)
    await queue.clock.advance(25 * SECOND + 1)
    now = queue.clock.now()
    answer = await ask(queue, second.job_id)
    why = Denial("CAPACITY_EXCEEDED", "Capacity exceeded: used=70, requested=40, capacity=100")
    wait = 5 * SECOND
    assert answer == LeaseDenied(
        denial=why,
        retry_after_us=wait,
        position=1,
        holders=[first.lease],
        job=msgspec.structs.replace(
            second,
            state="LEASE_PENDING",
            next_retry_at=now + wait,
            claim_expires_at=now + CLAIM_TTL_US,
            pending_at=now,
            updated_at=now,
            position=JobPosition.PENDING,
        ),
    )
    assert await queue.job(second.job_id) == answer.job
    assert (await queue.events(second.job_id))[-2:] == [
        ("JOB_LEASE_PENDING", {"worker_id": "w"}),
        (
            "LEASE_DENIED",
            {
                "code": why.code,
                "reason": why.reason,
                "used": 70,
                "requested": 40,
                "capacity": 100,
                "reserved": 0,
                "position": 1,
            },
        ),
    ]


async def test_a_claim_is_kept_until_after_the_next_try_however_short_it_is_else(
    queue: QueueWorld,
) -> None:
    queue.queue.limits = Limits(100, claim_ttl_us=2 * SECOND)
    await granted(queue, cost=100)
    answer = await denied(queue)
    assert answer.retry_after_us == 10 * SECOND
    assert answer.job.claim_expires_at == queue.clock.now() + 10 * SECOND + RESERVE_GRACE


@pytest.mark.spec("Q9")
async def test_a_refusal_again_keeps_the_place_since_the_first(queue: QueueWorld) -> None:
    await granted(queue, cost=100)
    first = await denied(queue)
    await queue.clock.advance(SECOND)
    second = await denied(queue)
    assert [one.position for one in (first, second)] == [1, 2]
    await queue.clock.advance(SECOND)
    again = await ask(queue, first.job.job_id)
    assert (again.position, again.job.pending_at) == (1, first.job.pending_at)
    assert (await queue.event_types(first.job.job_id))[-2:] == ["LEASE_DENIED"] * 2


@pytest.mark.spec("Q9")
async def test_the_first_in_line_keeps_its_units_from_smaller_ones_behind(
    queue: QueueWorld,
) -> None:
    taken = await granted(queue, cost=70)
    large = await denied(queue, cost=60)
    small = await denied(queue, cost=20)
    assert small.denial.code == "CAPACITY_RESERVED"
    assert small.position == 2
    urgent = await queue.claimed(cost=20, priority="URGENT")
    assert isinstance(await ask(queue, urgent.job_id), LeasedJob), "only who is more urgent passes"
    await give_back(queue, taken.lease)
    assert isinstance(await ask(queue, large.job.job_id), LeasedJob)
    assert isinstance(await ask(queue, small.job.job_id), LeasedJob)
    assert await queue.used() == 100


@pytest.mark.spec("Q9")
async def test_units_are_kept_a_grace_beyond_the_next_try_and_no_longer(
    queue: QueueWorld,
) -> None:
    await granted(queue, cost=70)
    large = await denied(queue, cost=60)
    kept = await queue.store.read(lambda tx: tx.capacity.read(100))
    assert (kept.reserved_for, kept.reserved_units) == (large.job.job_id, 60)
    assert kept.reserved_until == queue.clock.now() + large.retry_after_us + RESERVE_GRACE


@pytest.fixture
async def shared(tmp_path: Path, clock: VirtualClock) -> AsyncIterator[QueueWorld]:
    """A queue where the addon `a` has a share of 30 of 100 units."""
    limits = Limits(100, (("a", 30),))
    async with open_queue_world(tmp_path, clock, limits) as queue:
        yield queue


@pytest.mark.spec("Q9")
async def test_an_addon_is_held_to_its_share_and_keeps_nothing_from_others(
    shared: QueueWorld,
) -> None:
    await granted(shared, cost=20)
    answer = await denied(shared, cost=11)
    assert answer.denial == Denial(
        "SHARE_EXCEEDED", "Share of a exceeded: used=20, requested=11, capacity=30"
    )
    kept = await shared.store.read(lambda tx: tx.capacity.read(100))
    assert kept.reserved_for is None
    await granted(shared, addon="b", cost=80)


@pytest.mark.spec("Q9", "Q10")
async def test_units_of_leases_that_ran_out_are_free_before_the_sweep(queue: QueueWorld) -> None:
    dead = await granted(queue, cost=60, max_attempts=2)
    await granted(queue, cost=40)
    await queue.clock.advance(29 * SECOND)
    waiting = await denied(queue, cost=60)
    assert waiting.denial.code == "CAPACITY_EXCEEDED"
    await queue.clock.advance(SECOND)
    assert isinstance(await ask(queue, waiting.job.job_id), LeasedJob)
    assert (await queue.lease(dead.lease.lease_id)).state == "EXPIRED"
    assert (await queue.job(dead.job.job_id)).state == "QUEUED"


@pytest.mark.spec("Q9")
async def test_a_refusal_names_the_first_to_run_out_up_to_twenty(queue: QueueWorld) -> None:
    ttls = [60 - nth for nth in range(HOLDERS + 1)]
    leases = []
    for ttl_sec in ttls:
        job = await queue.claimed(cost=1)
        leases.append((await ask(queue, job.job_id, ttl_sec=ttl_sec)).lease)
    answer = await denied(queue, cost=90)
    assert answer.holders == leases[:0:-1]
    assert len(answer.holders) == HOLDERS
