"""Runs and the queue jobs they are handed over to, on every SQL store: both or neither, told once,
by however many instances."""

import asyncio
from typing import Any

import pytest

from ksana.base.clock import SystemClock
from ksana.base.errors import ConflictError
from ksana.base.ids import new_run_uid, new_token
from ksana.base.instant import HOUR, SECOND
from ksana.domain.handover import job_id_of
from ksana.domain.leases import Proof
from ksana.domain.queue.admission import Limits
from ksana.domain.queue.attempt_ends import Release
from ksana.domain.queue.classes import Wants, class_of
from ksana.domain.queue.jobs import NewJob
from ksana.domain.schedule import Every
from ksana.domain.tasks.records import (
    QUEUE_PLACE,
    Definition,
    NewRun,
    Options,
    QueueSpec,
    RetryPolicy,
    Run,
)
from ksana.engine.tasks.queue_runs import Handled, expire_job, settle_ends, start_runs
from ksana.engine.tasks.rescue import wake_due
from ksana.ports.handover import QueueOrder
from ksana.service.queue.claims import Claim
from ksana.service.queue.handover import QueueHandover
from ksana.service.queue.service import QueueService
from ksana.service.tasks.runs import RunService
from ksana.store.sql import SqlStore
from tests.conformance.store.ground import Database
from tests.ground.task_rows import a_task

pytestmark = pytest.mark.spec("B5", "X2")

BODY = '{"run":"{{run_uid}}"}'


def enter(tx: Any, count: int, **options: Any) -> list[int]:
    """Ready runs of as many tasks."""
    spec = QueueSpec("etl", "nightly")
    definition = Definition(
        "t",
        "",
        Every(HOUR, tx.now, False),
        body=BODY,
        timeout_us=HOUR,
        retry=RetryPolicy(max_retries=1, initial_delay_us=SECOND),
        options=Options(type="queue", queue=spec, **options),
    )
    tasks = [a_task(f"j{n}", definition, tx.now, tx.now + HOUR, "T") for n in range(count)]
    return list(
        tx.run_changes.insert(
            [
                NewRun(
                    uid=new_run_uid(tx.now),
                    task_id=task_id,
                    slot_at=None,
                    scheduled_time=tx.now,
                    status="SCHEDULED",
                    trigger="manual",
                    exec_type="SYNC",
                    is_counted=True,
                    host=QUEUE_PLACE,
                    is_ready=True,
                    held_by=None,
                    token=new_token(),
                    reason="BELOW_LIMIT",
                    trace_id="t",
                )
                for task_id in tx.tasks.insert(tasks)
            ]
        )
    )


def runs_of(tx: Any, ids: list[int]) -> list[Run]:
    return [tx.runs.find(run_id) for run_id in ids]


class Ground:
    """A queue over the store, and a worker."""

    def __init__(self, store: SqlStore) -> None:
        self.store = store
        self.service = QueueService(store, SystemClock(), Limits())
        self.jobs = QueueHandover(self.service)

    async def start(self, count: int) -> list[Run]:
        ids = await self.store.transact(enter, count)
        handled: Handled = await self.store.transact(start_runs, self.jobs, "i1")
        assert len(handled.orders) == count
        return await self.store.read(runs_of, ids)

    async def finish(self, count: int, status: str = "SUCCEEDED") -> None:
        """Take and end so many jobs as workers do."""
        claimed = await self.service.claim(Claim("w", Wants(), limit=count, has_lease=True))
        assert len(claimed.leases) == count
        await self.service.release_batch(
            [
                Release(one.lease_id, status, proof=Proof(token=one.lease_token), result_json="7")
                for one in claimed.leases
            ]
        )


@pytest.fixture
def ground(store: SqlStore) -> Ground:
    return Ground(store)


async def test_a_run_and_its_job_start_together_and_the_end_is_told_once(ground: Ground) -> None:
    runs = await ground.start(5)
    assert {(run.status, run.held_by) for run in runs} == {("RUNNING", None)}
    jobs = await ground.store.read(
        lambda tx: tx.jobs.find_jobs([job_id_of(run.uid, 1) for run in runs])
    )
    assert {job.payload_json for job in jobs.values()} == {f'{{"run":"{run.uid}"}}' for run in runs}
    await ground.finish(5)
    # Two instances at once: each end is told by one of them.
    told = await asyncio.gather(
        *(ground.store.transact(settle_ends, ground.jobs, name) for name in ("i1", "i2"))
    )
    assert sum(len(one.overs) for one in told) == 5
    ended = await ground.store.read(runs_of, [run.id for run in runs])
    assert {(run.status, run.response_body) for run in ended} == {("SUCCESS", "7")}
    assert await ground.store.transact(lambda tx: tx.handover_ends.list_noted(10)) == []


async def test_if_the_job_cannot_be_entered_the_run_does_not_start(ground: Ground) -> None:
    ids = await ground.store.transact(enter, 2)
    [first, second] = await ground.store.read(runs_of, ids)

    def steal(tx: Any) -> None:
        tx.tasks.find(1)
        ground.jobs.submit(tx, [order])

    order = QueueOrder(
        job_id=ground.service.new_id(),
        request_id=f"run:{second.uid}:1",
        addon_id="etl",
        job_type="x",
        cost_units=1,
        priority="LOW",
        constraints_json="{}",
        payload_json="{}",
        max_attempts=1,
        fairness_key=None,
    )
    await ground.store.transact(steal)
    with pytest.raises(ConflictError):
        await ground.store.transact(start_runs, ground.jobs, "i1")
    assert {run.status for run in await ground.store.read(runs_of, ids)} == {"SCHEDULED"}
    await ground.store.transact(start_runs, ground.jobs, "i1", is_careful=True)
    states = [run.status for run in await ground.store.read(runs_of, ids)]
    assert states == ["RUNNING", "FAILED"]
    assert await ground.store.read(lambda tx: tx.jobs.find_job(job_id_of(first.uid, 1))) is not None


async def test_a_cancel_and_an_end_at_once_leave_one_of_them(ground: Ground) -> None:
    runs = await ground.start(8)
    claimed = await ground.service.claim(Claim("w", Wants(), limit=8, has_lease=True))

    class Silent:
        def __getattr__(self, name: str) -> Any:
            return lambda *_: None

    service = RunService(ground.store, Silent(), ground.jobs)  # type: ignore[arg-type]
    releases = [
        Release(one.lease_id, "SUCCEEDED", proof=Proof(token=one.lease_token))
        for one in claimed.leases
    ]

    async def settle() -> None:
        for _ in range(4):
            await ground.store.transact(settle_ends, ground.jobs, "i1")

    answers = await asyncio.gather(
        *(service.cancel(run.id) for run in runs),
        *(ground.service.release(one) for one in releases),
        settle(),
        settle(),
        return_exceptions=True,
    )
    faults = [one for one in answers if isinstance(one, BaseException)]
    assert all(isinstance(fault, ConflictError) for fault in faults), faults
    await settle()
    ended = await ground.store.read(runs_of, [run.id for run in runs])
    assert {run.status for run in ended} <= {"SUCCESS", "CANCELED"}
    events = await ground.store.read(lambda tx: tx.events.list_after(0, 500, "RUN"))
    ends = [event.entity_id for event in events if event.type in ("RUN_SUCCESS", "RUN_CANCELED")]
    assert sorted(map(int, ends)) == sorted(run.id for run in runs)
    assert await ground.store.transact(lambda tx: tx.handover_ends.list_noted(50)) == []


async def test_an_overdue_run_is_woken_with_its_job_cancelled(
    ground: Ground, database: Database
) -> None:
    [run] = await ground.start(1)

    class Overdue:
        def expire(self, tx: Any, run: Run, task: Any) -> Any:
            return expire_job(tx, ground.jobs, run, task, "i1")

        def tell(self, overs: Any) -> None: ...

    assert await ground.store.read(lambda tx: tx.run_due.next_wake_at()) == run.wake_at
    database.ask(f"UPDATE task_runs SET wake_at = 1 WHERE id = {run.id}")
    await ground.store.transact(wake_due, Overdue())
    [woken] = await ground.store.read(runs_of, [run.id])
    assert (woken.status, woken.error_message) == ("RETRYING", "the job did not end in time")
    job = await ground.store.read(lambda tx: tx.jobs.find_job(job_id_of(run.uid, 1)))
    assert job.state == "CANCELED"
    await ground.store.transact(settle_ends, ground.jobs, "i1")
    [still] = await ground.store.read(runs_of, [run.id])
    assert still.status == "RETRYING"


async def test_only_jobs_that_runs_wait_for_are_noted(ground: Ground) -> None:
    plain = ground.service.new_id()
    [run] = await ground.start(1)
    await ground.service.submit(
        NewJob(plain, "LOW", class_of("a", "b", 1, ()), "{}", "{}", None, 1, None, None)
    )
    await ground.service.cancel(plain, None)
    assert await ground.store.read(lambda tx: tx.handover_ends.has_any()) is False
    await ground.service.cancel(job_id_of(run.uid, 1), "stop")
    noted = await ground.store.transact(lambda tx: tx.handover_ends.list_noted(5))
    assert [one.job_id for one in noted] == [job_id_of(run.uid, 1)]
