"""How held governance jobs end: many in one call, each on its own, in the order they were named."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ksana.base.clock import VirtualClock
from ksana.base.errors import ConflictError, KsanaError, NotFoundError
from ksana.base.instant import HOUR, MINUTE
from ksana.domain.governance.jobs import AttemptFailure, Renewal
from ksana.domain.governance.objects import ObjectFields
from ksana.domain.governance.records import GovernanceJob
from ksana.engine.governance.ending import (
    Ended,
    ack_jobs,
    expire_leases,
    fail_jobs,
    new_job_ids,
    not_found,
    renew_jobs,
)
from ksana.ports.governance.tables import GovernanceJobFilter
from ksana.store.sql import open_store
from tests.ground.governance import ME, SECOND, Governing

LEASE_US = 120 * SECOND


@pytest.fixture
async def governing(tmp_path: Path, clock: VirtualClock) -> AsyncIterator[Governing]:
    store = await open_store(f"sqlite:///{tmp_path / 'ksana.db'}", clock, inline=True)
    yield Governing(store, clock)
    await store.close()


def show(ended: list[Ended]) -> list[str]:
    """The status of a job, or the code of a refusal."""
    return [one.code if isinstance(one, KsanaError) else one.status for one in ended]


async def ack(governing: Governing, *jobs: GovernanceJob, **more: Any) -> list[Ended]:
    acks = [governing.ack_of(job, **more) for job in jobs]
    return await governing.store.transact(ack_jobs, acks, governing.service.rules, ME)


async def fail(governing: Governing, *jobs: GovernanceJob, **more: Any) -> list[Ended]:
    failures = [
        AttemptFailure(job_id=job.job_id, error="no", token=job.lease_token, **more) for job in jobs
    ]
    return await governing.store.transact(fail_jobs, failures, governing.service.rules, ME)


async def renew(governing: Governing, *jobs: GovernanceJob) -> list[Ended]:
    renewals = [Renewal(job_id=job.job_id, token=job.lease_token) for job in jobs]
    rules = governing.service.rules
    return await governing.store.transact(renew_jobs, renewals, LEASE_US, rules)


async def hold(governing: Governing, *names: str, **more: Any) -> list[GovernanceJob]:
    """Jobs of objects of these names, held by a worker, in this order."""
    for name in names:
        await governing.enqueue(name, **more)
    held = {job.object_id: job for job in await governing.pull(len(names), lease_us=LEASE_US)}
    return [held[name] for name in names]


def with_members(job: GovernanceJob, **members: Any) -> Any:
    """The same job with other members, as a caller may name it."""
    return msgspec.structs.replace(job, **members)


def members_of(job: Any) -> list[Any]:
    """What is kept of a job, whether it is held or not."""
    return [getattr(job, name) for name in GovernanceJob.__struct_fields__]


async def mixed(governing: Governing, clock: VirtualClock) -> list[Any]:
    """An unknown job, one whose lease is over, and two that are held."""
    (late,) = await hold(governing, "late")
    await clock.advance(LEASE_US)
    first, last = await hold(governing, "first", "last")
    return [with_members(late, job_id="job_nobody"), first, late, last]


async def follow_ups(governing: Governing, object_id: str = "m1") -> list[GovernanceJob]:
    """The queued follow-ups of an object."""
    wanted = GovernanceJobFilter(object_id=object_id, status="queued")
    jobs = (await governing.service.list_jobs(wanted, None, 10)).jobs
    return [job for job in jobs if job.follow_key is not None]


@pytest.mark.spec("G3", "G4", "G5")
@pytest.mark.parametrize(
    ("end", "status"), [(ack, "succeeded"), (fail, "queued"), (renew, "running")]
)
async def test_each_of_many_is_answered_on_its_own_and_what_is_late_is_expired(
    governing: Governing, clock: VirtualClock, end: Any, status: str
) -> None:
    jobs = await mixed(governing, clock)
    ended = await end(governing, *jobs)
    assert show(ended) == ["NOT_FOUND", status, "LEASE_LOST", status]
    now = [await governing.job(job) for job in jobs[1:]]
    assert [job.status for job in now] == [status, "queued", status]
    assert (now[1].attempt, now[1].last_error) == (1, "the lease of w1 ran out")
    answered = [members_of(ended[1]), members_of(ended[3])]
    assert answered == [members_of(now[0]), members_of(now[2])], "what is answered is written"


@pytest.mark.spec("G3", "G4", "G5")
@pytest.mark.parametrize("end", [ack, fail, renew])
async def test_a_call_with_nothing_but_late_jobs_expires_them(
    governing: Governing, clock: VirtualClock, end: Any
) -> None:
    jobs = await hold(governing, "a", "b")
    await clock.advance(LEASE_US)
    assert show(await end(governing, *jobs)) == ["LEASE_LOST"] * 2
    assert [(await governing.job(job)).status for job in jobs] == ["queued"] * 2


@pytest.mark.parametrize(
    ("end", "wanted"), [(ack, "succeeded"), (fail, "queued"), (renew, "running")]
)
async def test_a_refusal_names_the_status_and_what_was_wanted(
    governing: Governing, end: Any, wanted: str
) -> None:
    (job,) = await hold(governing, "m1")
    await fail(governing, job, is_final=True)
    [refusal] = await end(governing, with_members(job, lease_token=None))
    assert isinstance(refusal, ConflictError)
    assert refusal.code == "ILLEGAL_TRANSITION"
    assert refusal.extra["current"] == {"state": "failed", "requested": wanted}


@pytest.mark.spec("G3")
async def test_the_same_ack_again_is_answered_as_the_first_and_another_is_refused(
    governing: Governing,
) -> None:
    job, other = await hold(governing, "m1", "m2")
    first, again, late = await ack(governing, job, job, other)
    assert (first, show([again, late])) == (again, ["succeeded", "succeeded"])
    assert show(await ack(governing, job)) == ["succeeded"]
    assert show(await ack(governing, job, evidence_refs="[]")) == ["LEASE_LOST"]


@pytest.mark.spec("G4")
async def test_of_two_failures_of_one_job_in_a_call_the_second_finds_it_ended(
    governing: Governing,
) -> None:
    (job,) = await hold(governing, "m1")
    assert show(await fail(governing, job, job)) == ["queued", "LEASE_LOST"]
    assert (await governing.job(job)).attempt == 1


@pytest.mark.spec("G3")
async def test_an_ack_that_is_refused_by_a_rule_leaves_the_others_alone(
    governing: Governing,
) -> None:
    await governing.put("m1", status="archived")
    jobs = await hold(governing, "m1", "m2", action="verify")
    ended = await ack(governing, *jobs, fields=ObjectFields(status="verified"))
    assert show(ended) == ["ILLEGAL_TRANSITION", "succeeded"]
    assert [(await governing.job(job)).status for job in jobs] == ["running", "succeeded"]
    assert (await governing.object("m2")).status == "verified"


# Follow-ups


@pytest.mark.spec("G3")
async def test_two_acks_of_one_object_in_a_call_leave_one_follow_up(
    governing: Governing, clock: VirtualClock
) -> None:
    for action in ("decay", "verify"):
        await governing.enqueue("m1", action=action)
    jobs = await governing.pull(2)
    at = clock.now() + HOUR
    acks = [
        governing.ack_of(job, next_action_at=at + nth * HOUR, next_action="decay")
        for nth, job in enumerate(jobs)
    ]
    ended: Any = await governing.store.transact(ack_jobs, acks, governing.service.rules, ME)
    (queued,) = await follow_ups(governing)
    assert [job.follow_up_id for job in ended] == [queued.job_id] * 2
    assert queued.run_at == at + HOUR
    governed = await governing.object()
    assert (governed.next_action_at, governed.next_action) == (at + HOUR, "decay")


@pytest.mark.spec("G3")
async def test_an_ack_that_wants_nothing_next_removes_the_follow_up_of_the_one_before(
    governing: Governing, clock: VirtualClock
) -> None:
    for action in ("decay", "verify"):
        await governing.enqueue("m1", action=action)
    one, two = await governing.pull(2)
    acks = [
        governing.ack_of(one, next_action_at=clock.now() + HOUR, next_action="decay"),
        governing.ack_of(two, next_action_at=None),
    ]
    ended = await governing.store.transact(ack_jobs, acks, governing.service.rules, ME)
    assert show(ended) == ["succeeded"] * 2
    assert await follow_ups(governing) == []
    assert (await governing.object()).next_action_at is None


@pytest.mark.spec("G3")
async def test_an_ack_that_says_nothing_of_the_next_action_leaves_the_follow_up_to_others(
    governing: Governing, clock: VirtualClock
) -> None:
    at = clock.now() + HOUR
    await governing.put(next_action_at=at, next_action="decay")
    (before,) = await follow_ups(governing)
    for action in ("decay", "verify"):
        await governing.enqueue("m1", action=action)
    one, two = await governing.pull(2)
    acks = [governing.ack_of(one), governing.ack_of(two, next_action_at=at + HOUR)]
    ended = await governing.store.transact(ack_jobs, acks, governing.service.rules, ME)
    assert show(ended) == ["succeeded"] * 2
    (after,) = await follow_ups(governing)
    assert (after.job_id, after.run_at) == (before.job_id, at + HOUR)


async def hold_follow_ups(
    governing: Governing, clock: VirtualClock, count: int
) -> list[GovernanceJob]:
    """So many follow-ups of one object, all held: each was handed out before the next was made."""
    held = []
    for _ in range(count):
        await clock.advance(SECOND)
        await governing.put(next_action_at=clock.now(), next_action="decay")
        held += await governing.pull(lease_us=LEASE_US)
    assert [bool(job.is_follow_up) for job in held] == [True] * count
    return held


@pytest.mark.spec("G5")
async def test_of_two_follow_ups_that_expire_together_one_is_the_objects_again(
    governing: Governing, clock: VirtualClock
) -> None:
    held = await hold_follow_ups(governing, clock, 2)
    await clock.advance(LEASE_US)
    expired = await governing.store.transact(expire_leases, 10)
    assert [job.status for job in expired] == ["queued"] * 2
    assert {job.job_id for job in expired} == {job.job_id for job in held}
    assert sorted(job.follow_key or "" for job in expired) == ["", "memory:m1"]


@pytest.mark.spec("G4")
@pytest.mark.parametrize("has_other", [False, True])
async def test_a_follow_up_that_failed_is_the_objects_again_unless_there_is_one(
    governing: Governing, clock: VirtualClock, has_other: bool
) -> None:
    (held,) = await hold_follow_ups(governing, clock, 1)
    if has_other:
        await governing.put(next_action_at=clock.now() + HOUR, next_action="decay")
    await fail(governing, held)
    assert (await governing.job(held)).follow_key == (None if has_other else "memory:m1")
    assert len(await follow_ups(governing)) == 1


@pytest.mark.spec("G4")
@pytest.mark.parametrize(
    ("is_final", "has_other", "is_forgotten"),
    [(True, False, True), (True, True, False), (False, False, False)],
)
async def test_a_follow_up_that_ends_by_a_rule_ends_what_the_object_waits_for(
    governing: Governing, clock: VirtualClock, is_final: bool, has_other: bool, is_forgotten: bool
) -> None:
    (held,) = await hold_follow_ups(governing, clock, 1)
    if has_other:
        await governing.put(next_action_at=clock.now() + HOUR, next_action="decay")
    await fail(governing, held, is_final=is_final)
    governed = await governing.object()
    assert (governed.next_action_at is None) is is_forgotten


@pytest.mark.spec("G4")
async def test_a_job_that_a_caller_enqueued_ends_nothing_of_its_object(
    governing: Governing, clock: VirtualClock
) -> None:
    at = clock.now() + HOUR
    await governing.put(next_action_at=at, next_action="decay")
    (held,) = await hold(governing, "m1")
    await fail(governing, held, is_final=True)
    assert (await governing.object()).next_action_at == at


# Leases


@pytest.mark.spec("G5")
async def test_a_renewal_counts_from_now_by_the_stores_clock(
    governing: Governing, clock: VirtualClock
) -> None:
    (held,) = await hold(governing, "m1")
    await clock.advance(MINUTE)
    [renewed] = await renew(governing, held)
    now = await governing.job(held)
    assert members_of(renewed) == members_of(now)
    assert (now.lease_expires_at, now.updated_at) == (clock.now() + LEASE_US, clock.now())
    assert await governing.events("GOV_JOB", held.job_id) == [
        "GOV_JOB_ENQUEUED",
        "GOV_JOB_PULLED",
    ], "a sign of life is no event"


@pytest.mark.spec("G5")
async def test_where_no_lease_is_over_nothing_expires(
    governing: Governing, clock: VirtualClock
) -> None:
    await hold(governing, "m1")
    await clock.advance(LEASE_US - 1)
    assert await governing.store.transact(expire_leases, 10) == []
    await clock.advance(1)
    assert len(await governing.store.transact(expire_leases, 10)) == 1


def test_ids_of_jobs_begin_with_their_time_and_an_unknown_one_is_named() -> None:
    ids = new_job_ids(1_770_000_000_000_000, 3)
    assert ({one[:16] for one in ids}, len(set(ids))) == ({"job_019c1c38a400"}, 3)
    error = not_found("x" * 100)
    assert isinstance(error, NotFoundError)
    assert error.message == "there is no governance job " + "x" * 64
