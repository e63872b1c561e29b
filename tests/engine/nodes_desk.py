"""A home of node jobs whose node is connected to another instance, and whose session is here."""

from typing import Any

import msgspec

from ksana.base.instant import HOUR
from ksana.domain.nodes.frames import SessionResult
from ksana.domain.nodes.messages import Assign, Finished
from ksana.domain.nodes.moves import NodeJobChange
from ksana.domain.nodes.records import JobError, JobOutcome, NodeJob
from ksana.engine.nodes.job_watch import HomeJob
from tests.engine.nodes_world import Instance, Socket, a_node, a_request

OUTCOME = JobOutcome(success=True, data=msgspec.Raw(b"7"), finished_at=5)
FAILED = JobOutcome(success=False, error=JobError(code="CANCELED", message="no"))


def finished(job_id: str = "j", attempt: int = 1, **changes: Any) -> Finished:
    members: dict[str, Any] = {"node_id": "n", "outcome": OUTCOME}
    request = a_request(job_id, payload=msgspec.Raw(b"{}"))
    return Finished(request=request, attempt=attempt, **{**members, **changes})


def told(job_id: str = "j", attempt: int = 1, outcome: JobOutcome = OUTCOME) -> SessionResult:
    return SessionResult(
        job_id=job_id,
        attempt_id=attempt,
        success=outcome.success,
        request_id=f"r-{job_id}",
        data=outcome.data,
        error=outcome.error,
    )


class Desk:
    """One is the home of jobs; their node is connected to two, their session to one."""

    def __init__(self, one: Instance, two: Instance, session: Socket) -> None:
        self.one, self.two, self.session = one, two, session
        self.clock, self.fabric = one.clock, one.fabric
        self.endings = one.home.endings
        self.hints: list[int] = []
        two.fabric.signals.subscribe(
            "nodes.free", lambda _: self.hints.append(self.clock.monotonic())
        )

    async def job(self, job_id: str = "j", **changes: Any) -> HomeJob:
        """A job whose first attempt is with the node."""
        await self.one.submit(a_request(job_id, **changes))
        assert [type(one) for one in await self.two.take_messages()] == [Assign]
        await self.one.take_events()
        return self.one.home.jobs[job_id]

    async def record(self, job_id: str = "j") -> NodeJob:
        found = await self.fabric.jobs.find(job_id)
        assert found is not None
        return found

    async def write(self, name: Any, **members: Any) -> None:
        """Move the record behind the back of its home."""
        change = NodeJobChange(name=name, attempt=1, keep_us=HOUR, **members)
        assert (await self.two.fabric.jobs.move("j", change)).result == "moved"


async def open_desk(one: Instance, two: Instance) -> Desk:
    one.engine.view.put(a_node("n", "two", slots=8))
    return Desk(one, two, await one.session("s"))
