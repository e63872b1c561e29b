"""The loop of runs that are done by node jobs, alone: over a scripted store, and nodes that do as
they are told."""

from typing import Any

from ksana.base.clock import VirtualClock
from ksana.base.instant import SECOND
from ksana.domain.handover import HandedEnd, job_id_of
from ksana.domain.tasks.records import NODE_PLACE, ClaimedRun, NodeSpec
from ksana.engine.tasks.claimed_run import AttemptOver
from ksana.engine.tasks.node_runs import (
    NodeRuns,
)
from tests.engine.node_ground import ScriptedNodes
from tests.unit.delivery_ground import HeldLease, ScriptedStore, a_claim, step
from tests.unit.task_ground import a_task

TASK = a_task(type="node", node=NodeSpec("echo"), body='{"n":1}', timeout_us=60 * SECOND)
DONE = HandedEnd("done", result="{}")


def uid_of(run_id: int) -> str:
    return f"{run_id:08x}{0:024x}"


def node_run(run_id: int, **members: Any) -> ClaimedRun:
    given: dict[str, Any] = {"task": TASK, "uid": uid_of(run_id), "token": 10 + run_id}
    return a_claim(run_id, NODE_PLACE, **given | members)


def job_of(run_id: int) -> str:
    return job_id_of(uid_of(run_id), 1)


class Ground:
    """The loop over a scripted store and nodes that do as they are told."""

    def __init__(self, clock: VirtualClock, nodes: ScriptedNodes | None = None) -> None:
        self.clock = clock
        self.store = ScriptedStore()
        self.store.answer("_is_ready", False)
        self.store.answer("_list_void", [])
        self.nodes = nodes or ScriptedNodes(clock)
        self.lease = HeldLease()
        self.overs: list[AttemptOver] = []
        self.runs = NodeRuns(
            self.store,  # type: ignore[arg-type]
            clock,
            self.nodes,
            "me",
            self.lease,
            self.overs.append,
        )

    async def step(self) -> int | None:
        return await step(self.runs.pump)

    async def begin(self, *runs: ClaimedRun) -> None:
        """Claim runs and let them submit their jobs."""
        self.store.answer("claim_ready", (list(runs), 0))
        await self.step()
        await self.clock.settle()
        self.store.asked.clear()

    def ends(self) -> list[tuple[int, str, str | None]]:
        """The runs that ended, how and why."""
        found = []
        for over in self.overs:
            assert over.job is not None
            assert over.job.end is not None
            found.append((over.held.run_id, over.job.end.kind, over.job.end.error))
        return found
