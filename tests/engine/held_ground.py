"""Runs that an instance holds, in a real store without loops: what is written when something
becomes of them."""

from collections.abc import Sequence
from typing import Any

import msgspec

from ksana.base.instant import SECOND
from ksana.domain.tasks.records import ClaimedRun, Run, Task
from ksana.engine.tasks.claimed_run import AttemptOver
from ksana.engine.tasks.claimer import claim_ready
from ksana.ports.caller import Reply, Request
from tests.engine.tasks_world import World, answer, every, task_of

ME = "one-1"
"""The first instance of a world."""


async def add_task(world: World, name: str = "t", **members: Any) -> Task:
    """A task that does not fire in the time of a test."""
    return await world.add(task_of(every(world, 3600), name=name, **members))


async def make_ready(world: World, task: Task, count: int = 1) -> list[int]:
    """Runs made by hand that wait to be taken."""
    return [(await world.tasks.run_now(task.id)).run_id for _ in range(count)]


async def hold(world: World, task: Task, token: int = 5) -> ClaimedRun:
    """Make a run and take it."""
    await make_ready(world, task)
    claimed, _ = await world.store.transact(claim_ready, "target", ME, [token], 0, 3)
    return claimed[-1]


def ended(
    held: ClaimedRun, reply: Reply | None = None, *, body: bytes | None = None, **members: Any
) -> AttemptOver:
    """An attempt that was answered 200 after a second."""
    given: dict[str, Any] = {
        "held": held,
        "request": Request("POST", "http://target/hook", body=body),
        "kept_headers": '["ksana/9",1,{"X-A":"1"}]',
        "reply": reply or answer(200),
        "started_at": held.scheduled_time,
        "ended_at": held.scheduled_time + SECOND,
    }
    return AttemptOver(**given | members)


async def read_run(world: World, run_id: int) -> Run:
    run = await world.store.read(lambda tx: tx.runs.find(run_id))
    assert run is not None
    return run


async def events_since(world: World, after: int = 0) -> list[tuple[str, str, str, Any]]:
    """Events as (entity, id, type, data), oldest first."""
    return [
        (one.entity_type, one.entity_id, one.type, msgspec.json.decode(one.data))
        for one in await world.store.read(lambda tx: tx.events.list_after(after, 5000))
    ]


async def last_event(world: World) -> int:
    found = await world.store.read(lambda tx: tx.events.list_after(0, 5000))
    return max((one.id for one in found), default=0)


def statuses_of(runs: Sequence[Run]) -> list[tuple[int, str]]:
    return [(run.id, run.status) for run in runs]
