"""Runs that wait for queue jobs: how tests fire one and work its job off."""

from typing import Any

from ksana.base.instant import HOUR, MILLISECOND, SECOND
from ksana.domain.leases import Proof
from ksana.domain.queue.attempt_ends import Release
from ksana.domain.queue.classes import Wants
from ksana.domain.queue.jobs import Job, LeasedJob
from ksana.domain.tasks.records import Definition, Options, QueueSpec, Run, Task
from ksana.ports.queue.tables import JobFilter
from ksana.service.queue.claims import Claim
from tests.engine.tasks_world import World, once, task_of

SPEC = QueueSpec("etl", "nightly", cost_units=5, priority="HIGH", constraints='{"gpu":true}')


def queue_task(world: World, **members: Any) -> Definition:
    """A task whose one slot is a second ahead."""
    options = members.pop("options", Options(type="queue", queue=SPEC))
    schedule = members.pop("schedule", once(world.clock.now() + SECOND))
    members = {"timeout_us": HOUR, **members}
    return task_of(schedule, url="", options=options, **members)


async def fire(world: World, **members: Any) -> tuple[Task, Run]:
    """Make such a task and let it fire."""
    task = await world.add(queue_task(world, **members))
    await world.clock.advance(SECOND)
    return task, (await world.all_runs(task))[-1]


async def all_jobs(world: World) -> list[Job]:
    """Every queue job, oldest first."""
    page = await world.queue.list_jobs(JobFilter(), None, 500)
    return page.jobs[::-1]


async def take(world: World, ttl_sec: float = 600) -> LeasedJob:
    """Claim and lease the next job as a worker does."""
    claimed = await world.queue.claim(
        Claim("w1", Wants(capabilities=(("gpu_available", True),)), has_lease=True, ttl_sec=ttl_sec)
    )
    return LeasedJob(claimed.leases[0], claimed.jobs[0])


async def release(world: World, taken: LeasedJob, status: str, **members: Any) -> None:
    """Say how the job ended, and let everything settle."""
    proof = Proof(token=taken.lease.lease_token)
    await world.queue.release(Release(taken.lease.lease_id, status, proof=proof, **members))
    await world.clock.advance(10 * MILLISECOND)


async def find(world: World, run: Run) -> Run:
    return (await world.runs.get(run.id)).run
