"""The queue on every SQL store: what the tables promise, through the transactions that use them."""

from typing import Any

import pytest

from ksana.base.errors import ConflictError, KsanaError
from ksana.base.ids import new_uuid
from ksana.base.instant import SECOND
from ksana.domain.leases import Proof
from ksana.domain.queue.admission import Limits
from ksana.domain.queue.attempt_ends import Release
from ksana.domain.queue.classes import Wants, class_of
from ksana.domain.queue.jobs import LeasedJob, NewJob
from ksana.engine.queue.leasing import recount, sweep
from ksana.ports.retention import START
from ksana.service.queue.claims import Claim, JobClassCache, claim_jobs
from ksana.service.queue.jobs import Report, cancel_job, read_events, report_status, submit_jobs
from ksana.service.queue.leases import Heartbeat, LeaseDenied, LeaseRequest, extend_leases
from ksana.service.queue.leases import request_lease as request
from ksana.service.queue.releases import release_compactly, release_leases
from ksana.service.queue.stats import read_series, read_snapshot
from ksana.store.sql import SqlStore

LIMITS = Limits(100)
DAY = 86_400 * SECOND


def new_job(addon: str = "a", kind: str = "t", cost: int = 1, **more: Any) -> NewJob:
    values: dict[str, Any] = {
        "job_id": new_uuid(),
        "priority": "NORMAL",
        "job_class": class_of(addon, kind, cost, more.pop("needs", ())),
        "constraints_json": "{}",
        "payload_json": '{"é":"刹那"}',
        "client_request_id": None,
        "max_attempts": 1,
        "run_at": None,
        "fairness_key": None,
        **more,
    }
    return NewJob(**values)


async def submit(store: SqlStore, *jobs: NewJob, is_batch: bool = False) -> list[str]:
    lines = list({job.job_class.id: job.job_class for job in jobs}.values())
    return [job.job_id for job in await store.transact(submit_jobs, jobs, lines, is_batch)]


async def claim(
    store: SqlStore, limit: int = 1, worker: str = "w", wants: Wants | None = None, **more: Any
) -> list[Any]:
    order = Claim(worker, wants or Wants(), limit, **more)
    return (await store.transact(claim_jobs, order, JobClassCache(), LIMITS)).jobs


async def lease(store: SqlStore, job_id: str, ttl_sec: float = 30) -> LeasedJob | LeaseDenied:
    return await store.transact(request, LeaseRequest(job_id, ttl_sec), LIMITS)


@pytest.mark.spec("Q1", "Q2", "X2")
async def test_jobs_come_back_as_they_went_in_and_in_order(store: SqlStore) -> None:
    low, normal, urgent = await submit(
        store, *(new_job(priority=p) for p in ("LOW", "NORMAL", "URGENT"))
    )
    jobs = await claim(store, 5)
    assert [job.job_id for job in jobs] == [urgent, normal, low]
    assert jobs[0].payload_json == '{"é":"刹那"}'
    assert await claim(store) == []


@pytest.mark.spec("Q2")
async def test_a_claim_finds_its_line_behind_many_others(store: SqlStore) -> None:
    others = [new_job(kind=f"k{n % 40}") for n in range(400)]
    await submit(store, *others, is_batch=True)
    wanted = await submit(store, new_job("b", "x"), new_job("b", "y", 7, needs=("gpu_required",)))
    assert [job.job_id for job in await claim(store, 5, wants=Wants("b"))] == wanted[:1]
    able = Wants("b", capabilities=(("gpu_available", True),))
    assert [job.job_id for job in await claim(store, 5, wants=able)] == wanted[1:]
    kinds = frozenset(f"k{n}" for n in range(20, 40))
    jobs = await claim(store, 50, wants=Wants(job_types=kinds))
    assert len(jobs) == 50
    assert {job.job_type for job in jobs} <= kinds
    assert [job.seq for job in jobs] == sorted(job.seq for job in jobs)


@pytest.mark.spec("Q2")
async def test_fairness_keys_rotate(store: SqlStore) -> None:
    await submit(store, *(new_job(fairness_key="a") for _ in range(5)), is_batch=True)
    await submit(store, *(new_job(fairness_key="b") for _ in range(3)), is_batch=True)
    jobs = await claim(store, 3)
    await submit(store, new_job(fairness_key="c"))
    jobs += await claim(store, 9)
    assert "".join(job.fairness_key or "-" for job in jobs) == "ababcabaa"


@pytest.mark.spec("Q1")
async def test_a_duplicate_request_refuses_the_whole_batch(store: SqlStore) -> None:
    first = await submit(store, new_job(client_request_id="r"))
    with pytest.raises(ConflictError) as refused:
        await submit(store, new_job(), new_job(client_request_id="r"), is_batch=True)
    assert (refused.value.code, refused.value.extra["index"]) == ("DUPLICATE_REQUEST", 1)
    with pytest.raises(ConflictError):
        await submit(store, new_job(client_request_id="r"))
    await submit(store, new_job("other", client_request_id="r"))
    assert [job.job_id for job in await claim(store, 10)][:1] == first
    assert (await store.read(read_snapshot, 100)).jobs["queued"] == 0


@pytest.mark.spec("Q9", "Q10", "Q11")
async def test_the_cycle_leaves_no_unit_behind(store: SqlStore) -> None:
    (job_id,) = await submit(store, new_job(cost=60, max_attempts=2))
    await claim(store)
    await store.transact(
        report_status, Report(job_id, "PREPARING", 0.1, "n", Proof(worker_id="w")), LIMITS
    )
    granted = await lease(store, job_id)
    assert isinstance(granted, LeasedJob)
    (other,) = await submit(store, new_job(cost=60))
    await claim(store)
    denied = await lease(store, other)
    assert isinstance(denied, LeaseDenied)
    assert denied.denial.reason == "Capacity exceeded: used=60, requested=60, capacity=100"
    beat = (await store.transact(extend_leases, [Heartbeat(granted.lease.lease_id, progress=0.5)]))[
        0
    ]
    assert isinstance(beat, LeasedJob)
    item = Release(granted.lease.lease_id, "FAILED", error="x", result_json="1")
    first, again = [(await store.transact(release_leases, [item])).answers[0] for _ in range(2)]
    assert isinstance(first, LeasedJob) and isinstance(again, LeasedJob)
    assert (first.job.state, first.job.attempts) == ("QUEUED", 1)
    assert again.lease == first.lease
    late = (
        await store.transact(release_leases, [Release(granted.lease.lease_id, "SUCCEEDED")])
    ).answers[0]
    assert isinstance(late, KsanaError) and late.code == "LEASE_LOST"
    assert isinstance(await lease(store, other), LeasedJob)
    snapshot = await store.read(read_snapshot, 100)
    assert snapshot.capacity == {"total": 100, "used": 60, "reserved": 0}
    assert snapshot.jobs["queued"] == 1
    assert await store.transact(recount, 100) == (0, 0)


@pytest.mark.fault("F09")
@pytest.mark.spec("Q3", "Q12")
async def test_what_ran_out_is_swept_by_the_stores_clock(store: SqlStore) -> None:
    limits = Limits(100, (), 1)
    (claimed_id,) = await submit(store, new_job())
    await store.transact(claim_jobs, Claim("w", Wants()), JobClassCache(), limits)
    ended, again = await submit(store, new_job(), new_job(max_attempts=2))
    order = Claim("w", Wants(), 2, has_lease=True, ttl_sec=0.000001)
    leases = (await store.transact(claim_jobs, order, JobClassCache(), LIMITS)).leases
    assert len(leases) == 2
    zombie = (await store.transact(extend_leases, [Heartbeat(leases[0].lease_id)]))[0]
    assert isinstance(zombie, KsanaError) and zombie.code == "LEASE_LOST"
    swept = await store.transact(sweep, 50)
    freed = sum(change.lease_end is not None for change in swept.changes)
    ready = sum(change.new == "QUEUED" for change in swept.changes)
    assert (freed, ready) == (2, 2)
    states = [
        (await store.read(lambda tx, one: tx.jobs.find_job(one), one)).state
        for one in (claimed_id, ended, again)
    ]
    assert states == ["QUEUED", "TIMEOUT", "QUEUED"]
    assert [job.job_id for job in await claim(store, 5)] == [claimed_id, again]
    assert (await store.read(read_snapshot, 100)).capacity["used"] == 0


@pytest.mark.spec("Q6", "Q15")
async def test_figures_and_gauges_agree_with_the_rows(store: SqlStore) -> None:
    ids = await submit(store, *(new_job(cost=2) for _ in range(10)), is_batch=True)
    await store.transact(cancel_job, ids[9], "no")
    claimed = await store.transact(
        claim_jobs, Claim("w", Wants(), 6, has_lease=True), JobClassCache(), LIMITS
    )
    items = [Release(one.lease_id, "SUCCEEDED") for one in claimed.leases[:4]]
    assert all(
        isinstance(one, LeasedJob) for one in (await store.transact(release_leases, items)).answers
    )
    now = await store.read(read_snapshot, 100)
    assert (
        now.jobs["queued"],
        now.jobs["running"],
        now.capacity["used"],
        now.leases["active"],
    ) == (3, 2, 4, 2)
    for metric, value in (
        ("jobs_submitted", 10),
        ("jobs_done", 4),
        ("jobs_queued", 3),
        ("capacity_used", 4),
    ):
        series = await store.read(read_series, metric, 60 * SECOND, 600 * SECOND)
        total = (
            sum(value or 0 for value in series.values)
            if metric in ("jobs_submitted", "jobs_done")
            else None
        )
        assert (series.values[-1] if total is None else total) == value
    assert await store.transact(recount, 100) == (0, 0)


@pytest.mark.fault("F34")
@pytest.mark.spec("X13")
async def test_finished_jobs_are_purged_and_nothing_else(store: SqlStore) -> None:
    await submit(store, *(new_job() for _ in range(4)), is_batch=True)
    claimed = await store.transact(
        claim_jobs, Claim("w", Wants(), 3, has_lease=True), JobClassCache(), LIMITS
    )
    await store.transact(
        release_leases, [Release(one.lease_id, "SUCCEEDED") for one in claimed.leases[:2]]
    )
    old = await store.read(lambda tx: tx.jobs.find_old(tx.now + DAY, START, 100))
    assert old.is_end
    assert await store.transact(lambda tx: tx.jobs.remove(old.keys)) == 2
    left = await store.read(
        lambda tx: [tx.leases.find_lease(one.lease_id) for one in claimed.leases]
    )
    assert [one is not None for one in left] == [False, False, True]
    assert len(await claim(store, 5)) == 1


@pytest.mark.spec("Q8", "Q16", "X11")
async def test_many_jobs_leave_the_same_history_as_a_few(store: SqlStore) -> None:
    seen = []
    for count in (2, 12):
        jobs = [new_job(cost=2) for _ in range(count)]
        order = Claim("w", Wants(), count, has_lease=True)

        def submit_and_claim(tx: Any, jobs: list[NewJob] = jobs, order: Claim = order) -> Any:
            submit_jobs(
                tx, jobs, [jobs[0].job_class], False
            )  # told in the same commit, and told first
            return claim_jobs(tx, order, JobClassCache(), LIMITS)

        claimed = await store.transact(submit_and_claim)
        bad = claimed.leases[-1].lease_id
        items = [
            Release(
                one.lease_id,
                *(("FAILED", None, Proof(), None, "no") if one.lease_id == bad else ("SUCCEEDED",)),
            )
            for one in claimed.leases
        ]
        assert {one.state for one in (await store.transact(release_compactly, items)).answers} == {
            "DONE",
            "FAILED",
        }
        for job, lease in zip(claimed.jobs, claimed.leases, strict=True):
            row = await store.read(lambda tx, one: tx.leases.find_lease(one), lease.lease_id)
            assert (row.job_id, row.worker_id, row.cost_units, row.ttl_sec) == (
                job.job_id,
                "w",
                2,
                30,
            )
            assert (row.granted_at, row.expires_at, row.state) == (
                lease.granted_at,
                lease.expires_at,
                "RELEASED",
            )
            told = []
            for event in await store.read(read_events, job.job_id):
                data = (
                    bytes(event.data)
                    .decode()
                    .replace(job.job_id, "JOB")
                    .replace(lease.lease_id, "LEASE")
                )
                entity = {job.job_id: "JOB", lease.lease_id: "LEASE"}[event.entity_id]
                assert entity == event.entity_type
                told.append((entity, event.type, data))
            assert [one[1] for one in told[:5]] == [
                "JOB_SUBMITTED",
                "JOB_CLAIMED",
                "LEASE_GRANTED",
                "JOB_RUNNING",
                "LEASE_RELEASED",
            ]
            assert told[5][1] == ("JOB_FAILED" if lease.lease_id == bad else "JOB_DONE")
            seen.append((count, lease.lease_id == bad, tuple(told)))
    histories = {(is_bad, told) for _, is_bad, told in seen}
    assert len(histories) == 2
