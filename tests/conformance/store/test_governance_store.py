"""Governance on every SQL store: hand-outs, ends, follow-ups, gates, budgets."""

import asyncio
from itertools import product
from typing import Any

import pytest

from ksana.base.errors import ConflictError, KsanaError
from ksana.engine.governance.sweep import sweep
from ksana.ports.governance.tables import GovernanceJobFilter, ObjectFilter
from ksana.ports.retention import START
from ksana.store.sql import SqlStore
from tests.ground.governance import ME, SECOND, Governing


@pytest.fixture
def governing(store: SqlStore) -> Governing:
    return Governing(store)


@pytest.mark.spec("G1")
async def test_the_same_key_queues_one_job_for_each_object_type(governing: Governing) -> None:
    first = await governing.service.enqueue(governing.new_job(idempotency_key="k"), ME)
    again = await governing.service.enqueue(governing.new_job(idempotency_key="k"), ME)
    other = await governing.service.enqueue(
        governing.new_job(idempotency_key="k", object_type="cognition"), ME
    )
    assert (first.is_duplicate, again.is_duplicate, other.is_duplicate) == (False, True, False)
    assert again.job.job_id == first.job.job_id
    assert len(await governing.pull(10)) == 2


@pytest.mark.spec("G1")
async def test_the_same_key_at_once_from_many_callers_queues_one_job(governing: Governing) -> None:
    made = await asyncio.gather(
        *(governing.service.enqueue(governing.new_job(idempotency_key="k"), ME) for _ in range(20))
    )
    assert sum(not one.is_duplicate for one in made) == 1
    assert len({one.job.job_id for one in made}) == 1


@pytest.mark.spec("G2")
async def test_jobs_come_by_second_then_priority_or_by_priority_first(
    governing: Governing,
) -> None:
    now = governing.clock.now() - 100 * SECOND
    now -= now % SECOND
    for object_id, at, priority in (
        ("late-high", 20, "high"),
        ("early-low", 0, "low"),
        ("early-high", 0, "high"),
        ("early-medium", 0, "medium"),
    ):
        # Within one second priority counts, not the fraction.
        run_at = now + at * SECOND + (500_000 if priority == "high" else 0)
        await governing.enqueue(object_id, run_at=run_at, priority=priority)
    await governing.enqueue("future", run_at=governing.clock.now() + 3600 * SECOND)
    jobs = await governing.pull(10)
    assert [job.object_id for job in jobs] == [
        "early-high",
        "early-medium",
        "early-low",
        "late-high",
    ]
    for job in jobs:
        await governing.fail(job, retry_delay_us=0)
    # Each connection carries the store's clock on by itself: they differ by a little.
    again = await governing.pull(10, order="priority", now=governing.clock.now() + SECOND)
    assert [job.urgency for job in again] == [0, 0, 1, 2]


@pytest.mark.spec("G2")
async def test_a_pull_takes_only_the_kinds_it_names(governing: Governing) -> None:
    await governing.enqueue("a", action="decay")
    await governing.enqueue("b", action="archive", object_type="cognition")
    await governing.enqueue("c", action="archive")
    only = await governing.pull(10, actions=("archive",), object_types=("memory",))
    assert [job.object_id for job in only] == ["c"]
    assert {job.object_id for job in await governing.pull(10)} == {"a", "b"}


@pytest.mark.spec("G2")
@pytest.mark.parametrize("order", ["run_at", "priority"])
@pytest.mark.parametrize("before", [0, 100])
async def test_a_job_due_later_in_this_second_hides_none_that_is_due(
    governing: Governing, order: str, before: int
) -> None:
    """`before` jobs of another kind are in front, more than a pull with a filter looks at first."""
    now = governing.clock.now() // SECOND * SECOND + SECOND // 2  # somewhere in a second
    for number in range(before):
        await governing.enqueue(f"a{number}", action="archive", run_at=now - 60 * SECOND)
    await governing.enqueue("later", priority="high", run_at=now + 1)
    due = await governing.enqueue("due", priority="low", run_at=now)
    (job,) = await governing.pull(1, now=now, order=order, actions=("decay",))
    assert job.job_id == due.job_id


@pytest.mark.spec("G2", "X4")
async def test_pullers_at_once_never_share_a_job(governing: Governing) -> None:
    for number in range(200):
        await governing.enqueue(f"m{number}")
    seen: list[str] = []

    async def pull_all(worker: str) -> None:
        while jobs := await governing.pull(7, worker):
            seen.extend(job.job_id for job in jobs)
            await asyncio.gather(*(governing.ack(job) for job in jobs))

    # A pull may find all that is left locked by others: somebody asks once more at the end.
    await asyncio.gather(*(pull_all(f"w{number}") for number in range(8)))
    await pull_all("last")
    assert len(seen) == len(set(seen)) == 200
    await governing.assert_audit_is_whole()


@pytest.mark.spec("G3")
async def test_ack_writes_the_object_and_queues_one_follow_up(governing: Governing) -> None:
    await governing.enqueue()
    at = governing.clock.now() + 3600 * SECOND
    (job,) = await governing.pull()
    done = await governing.ack(job, next_action_at=at, next_action="verify", audit_event_id="aud_7")
    assert (done.status, done.audit_event_id) == ("succeeded", "aud_7")
    governed = await governing.object()
    assert (governed.next_action_at, governed.next_action) == (at, "verify")
    assert done.follow_up_id is not None
    follow_up = await governing.job(done.follow_up_id)
    assert (follow_up.status, follow_up.run_at, follow_up.action) == ("queued", at, "verify")


@pytest.mark.spec("G3")
async def test_the_same_ack_again_is_answered_the_same_and_another_is_refused(
    governing: Governing,
) -> None:
    await governing.enqueue()
    (job,) = await governing.pull()
    at = governing.clock.now() + SECOND
    first = await governing.ack(job, next_action_at=at)
    again = await governing.ack(job, next_action_at=at)
    assert again.follow_up_id == first.follow_up_id
    assert again.finished_at == first.finished_at
    with pytest.raises(ConflictError):
        await governing.ack(job, next_action_at=at + 1)
    queued = await governing.service.list_jobs(GovernanceJobFilter(status="queued"), None, 10)
    assert len(queued.jobs) == 1


@pytest.mark.spec("G3")
async def test_acks_of_one_object_in_one_batch_leave_one_follow_up(governing: Governing) -> None:
    now = governing.clock.now()
    for number in range(5):
        await governing.enqueue("m1", run_at=now - number)
    jobs = await governing.pull(10)
    acks = [
        governing.ack_of(job, next_action_at=now + (place + 1) * 3600 * SECOND)
        for place, job in enumerate(jobs)
    ]
    results = await governing.service.ack_batch([*acks, acks[0]], ME)
    assert not any(isinstance(one, KsanaError) for one in results)
    queued = await governing.service.list_jobs(GovernanceJobFilter(status="queued"), None, 10)
    assert [job.run_at for job in queued.jobs] == [now + 5 * 3600 * SECOND]
    assert (await governing.object()).next_action_at == now + 5 * 3600 * SECOND
    await governing.assert_audit_is_whole()


@pytest.mark.spec("G3")
async def test_acks_at_once_of_an_object_nobody_registered_make_it_once(
    governing: Governing,
) -> None:
    now = governing.clock.now()
    for number in range(12):
        await governing.enqueue("m1", run_at=now - number)
    jobs = await governing.pull(20)
    await asyncio.gather(
        *(
            governing.ack(job, next_action_at=now + (place + 1) * 3600 * SECOND)
            for place, job in enumerate(jobs)
        )
    )
    queued = await governing.service.list_jobs(GovernanceJobFilter(status="queued"), None, 10)
    assert len(queued.jobs) == 1
    assert queued.jobs[0].run_at == (await governing.object()).next_action_at


@pytest.mark.fault("F14")
@pytest.mark.spec("G4")
async def test_failures_lead_to_a_dead_letter_that_holds_nobody_up(governing: Governing) -> None:
    job = await governing.enqueue("bad")
    for _ in range(3):
        (held,) = await governing.pull()
        await governing.fail(held, retry_delay_us=0)
    dead = await governing.job(job)
    assert (dead.status, dead.attempt, dead.last_error) == ("dead_letter", 3, "no")
    assert (await governing.events("GOV_JOB", job.job_id))[-1] == "GOV_JOB_DEAD_LETTER"
    await governing.enqueue("good")
    assert [one.object_id for one in await governing.pull(10)] == ["good"]


@pytest.mark.spec("G6")
async def test_dead_letters_are_queued_again_one_or_all_that_match(governing: Governing) -> None:
    for object_id, action in (("a", "decay"), ("b", "decay"), ("c", "archive")):
        await governing.enqueue(object_id, action=action, max_attempts=1)
    for job in await governing.pull(10):
        await governing.fail(job)
    wanted = GovernanceJobFilter(action="decay")
    assert await governing.service.count_dead_letters(wanted) == 2
    assert await governing.service.requeue_all(wanted, ME) == 2
    assert {job.object_id for job in await governing.pull(10)} == {"a", "b"}
    (left,) = (
        await governing.service.list_jobs(GovernanceJobFilter(status="dead_letter"), None, 10)
    ).jobs
    again = await governing.service.requeue(left.job_id, ME)
    assert (again.status, again.attempt) == ("queued", 0)
    with pytest.raises(ConflictError):
        await governing.service.requeue(left.job_id, ME)


@pytest.mark.fault("F12")
@pytest.mark.spec("G5")
async def test_a_worker_that_lost_its_lease_cannot_end_the_job(governing: Governing) -> None:
    await governing.enqueue()
    (zombie,) = await governing.pull(lease_us=1)
    with pytest.raises(ConflictError) as lost:
        await governing.ack(zombie)
    assert lost.value.code == "LEASE_LOST"
    (held,) = await governing.pull()
    assert held.attempt == 1
    for refused in (governing.ack(zombie), governing.fail(zombie)):
        with pytest.raises(ConflictError) as lost:
            await refused
        assert lost.value.code == "LEASE_LOST"
    with pytest.raises(ConflictError):
        await governing.renew(zombie, SECOND)
    assert (await governing.ack(held)).status == "succeeded"


@pytest.mark.fault("F09")
@pytest.mark.spec("G5")
async def test_a_worker_killed_with_a_hundred_jobs_gives_all_back_each_counted_once(
    governing: Governing,
) -> None:
    for number in range(100):
        await governing.enqueue(f"m{number}")
    held = await governing.pull(100, lease_us=1)
    assert len(held) == 100
    swept = [await governing.store.transact(sweep, 40) for _ in range(4)]
    assert sum(one.requeued for one in swept) == 100
    again = await governing.pull(200)
    assert {job.job_id for job in again} == {job.job_id for job in held}
    assert {job.attempt for job in again} == {1}
    assert {job.lease_token for job in again}.isdisjoint(job.lease_token for job in held)


@pytest.mark.fault("F10")
@pytest.mark.spec("G5")
async def test_a_renewed_lease_lasts_and_needs_the_token(governing: Governing) -> None:
    await governing.enqueue()
    (job,) = await governing.pull(lease_us=60 * SECOND)
    renewed = await governing.renew(job, 600 * SECOND)
    assert renewed.lease_expires_at is not None
    assert job.lease_expires_at is not None
    assert renewed.lease_expires_at > job.lease_expires_at + 500 * SECOND
    with pytest.raises(ConflictError):
        await governing.renew(job, SECOND, job.lease_token + 1)


@pytest.mark.spec("X13")
async def test_retention_removes_ended_jobs_and_never_dead_letters(governing: Governing) -> None:
    for object_id in ("done", "dead", "waits"):
        await governing.enqueue(object_id, max_attempts=1)
    held = {job.object_id: job for job in await governing.pull(2)}
    await governing.ack(held["done"])
    await governing.fail(held["dead"])
    later = governing.clock.now() + 10 * SECOND

    def purge(tx: Any) -> int:
        return int(tx.governance.remove(tx.governance.find_old(later, START, 1).keys))

    removed = [await governing.store.transact(purge) for _ in range(4)]
    assert sum(removed) == 1
    left = (await governing.service.list_jobs(GovernanceJobFilter(), None, 10)).jobs
    assert {job.object_id for job in left} == {"dead", "waits"}


@pytest.mark.spec("G7", "X13")
async def test_objects_are_listed_whole_by_any_filters_in_the_order_of_bytes(
    governing: Governing,
) -> None:
    """Ids that a database with a language of its own would sort otherwise."""
    ids = [
        "a",
        "B",
        "a-1",
        "a1",
        "a 1",
        "aé",
        "ab",
        "_",
        "一",
        "\U0001f600",
        "Z%",
        "z_",
    ]
    for number, object_id in enumerate(ids):
        for object_type in ("memory", "cognition"):
            status = "active" if number % 3 else "candidate"
            await governing.put(object_id, object_type=object_type, status=status)
    store = governing.store
    whole = await store.read_list(lambda tx: tx.objects.list_page(ObjectFilter(), "", 100))
    assert not whole.is_cut
    assert [one.key for one in whole] == sorted(
        f"{object_type}:{object_id}" for object_type in ("memory", "cognition") for object_id in ids
    )
    for object_type, status, prefix in product(
        (None, "memory", "experience"), (None, "active", "archived"), ("", "a", "一")
    ):
        if prefix and object_type is None:
            continue
        wanted = ObjectFilter(object_type=object_type, status=status, id_prefix=prefix)
        expected = [
            one.key
            for one in whole
            if object_type in (None, one.object_type)
            and status in (None, one.status)
            and one.object_id.startswith(prefix)
        ]
        found: list[str] = []
        for _ in range(30):
            after = found[-1] if found else ""
            page = await store.read_list(
                lambda tx, wanted=wanted, after=after: tx.objects.list_page(wanted, after, 3)
            )
            found += [one.key for one in page]
            if not page.is_cut:
                break
        assert found == expected, wanted


@pytest.mark.spec("X13")
async def test_a_page_of_large_objects_ends_early_and_goes_on(governing: Governing) -> None:
    for number in range(12):
        await governing.put(f"m{number:02}", data='{"text":"' + "x" * 1_000_000 + '"}')
    store, found = governing.store, []
    for _ in range(12):
        after = found[-1] if found else ""
        page = await store.read_list(
            lambda tx, after=after: tx.objects.list_page(ObjectFilter(), after, 100)
        )
        assert 1 <= len(page) <= 8
        found += [one.key for one in page]
        if not page.is_cut:
            break
    assert found == [f"memory:m{number:02}" for number in range(12)]
