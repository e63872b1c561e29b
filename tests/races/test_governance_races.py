"""Several instances on one store: each job is acknowledged once, whoever dies, and the audit
verifies."""

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack

import pytest

from ksana.base.clock import SystemClock
from ksana.base.errors import KsanaError
from ksana.engine.governance.sweep import sweep
from ksana.ports.governance.tables import GovernanceJobFilter
from ksana.store.sql import open_store
from tests.ground.governance import ME, SECOND, Governing

JOBS, PULLERS = 600, 16


@pytest.fixture(params=["mariadb", "postgres"])
def shared_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """A fresh store that several instances may share."""
    server = request.getfixturevalue(request.param)
    name = server.create_database()
    yield server.url(name)
    server.drop_database(name)


@pytest.mark.spec("G2", "G5", "G12", "X4")
async def test_each_job_is_acknowledged_once_although_an_instance_dies(shared_url: str) -> None:
    async with AsyncExitStack() as stack:
        instances: list[Governing] = []
        for _ in range(3):
            store = await open_store(shared_url, SystemClock())
            stack.push_async_callback(store.close)
            instances.append(Governing(store))
        first = instances[0]
        await asyncio.gather(*(first.enqueue(f"m{number}") for number in range(JOBS)))
        acked: list[str] = []
        lost: set[str] = set()

        async def work(number: int) -> None:
            governing = instances[number % 3]
            worker = f"w{number}"
            is_dying = number % 3 == 2
            lease_us = SECOND if is_dying else 60 * SECOND
            while jobs := await governing.pull(5, worker, lease_us=lease_us):
                if is_dying and acked:  # its instance dies with all that its workers hold
                    lost.update(job.job_id for job in jobs)
                    return
                acks = [governing.ack_of(job) for job in jobs]
                for one in await governing.service.ack_batch(acks, ME):
                    if not isinstance(one, KsanaError):
                        acked.append(one.job_id)

        await asyncio.gather(*(work(number) for number in range(PULLERS)))
        while len(acked) < JOBS:
            # What the dead held comes back when its leases are over.
            await first.store.transact(sweep, 100)
            await work(0)
        assert len(acked) == len(set(acked)) == JOBS
        again = [await first.job(job_id) for job_id in lost]
        assert {job.attempt for job in again} <= {1}
        for governing in instances:
            await governing.assert_audit_is_whole()


@pytest.mark.spec("G3", "G8", "X4")
async def test_changes_of_one_object_from_all_sides_leave_one_follow_up(shared_url: str) -> None:
    async with AsyncExitStack() as stack:
        instances: list[Governing] = []
        for _ in range(2):
            store = await open_store(shared_url, SystemClock())
            stack.push_async_callback(store.close)
            instances.append(Governing(store))
        now = instances[0].clock.now()
        await instances[0].put("m1")
        for number in range(20):
            await instances[0].enqueue("m1", run_at=now - number, action="verify")
        jobs = await instances[0].pull(50)

        async def change(number: int) -> None:
            governing = instances[number % 2]
            at = now + (number + 1) * 3600 * SECOND
            if number % 3:
                await governing.ack(jobs[number], next_action_at=at)
            else:
                await governing.put("m1", next_action_at=at, next_action="verify")

        await asyncio.gather(*(change(number) for number in range(20)))
        governed = await instances[1].object("m1")
        wanted = GovernanceJobFilter(object_id="m1", status="queued")
        follow_ups = (await instances[0].service.list_jobs(wanted, None, 50)).jobs
        assert [job.run_at for job in follow_ups] == [governed.next_action_at]
        await instances[0].assert_audit_is_whole()
