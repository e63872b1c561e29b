"""Several instances on one store, in one process: changes of one object from all sides."""

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack

import pytest

from ksana.base.clock import SystemClock
from ksana.ports.governance.tables import GovernanceJobFilter
from ksana.store.sql import open_store
from tests.ground.governance import SECOND, Governing


@pytest.fixture(params=["mariadb", "postgres"])
def shared_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """A fresh store that several instances may share."""
    server = request.getfixturevalue(request.param)
    name = server.create_database()
    yield server.url(name)
    server.drop_database(name)


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
