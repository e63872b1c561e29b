"""Runs that are done by queue jobs, for tests of one pass or one transaction: a queue that answers
what it is told."""

from collections.abc import Callable, Sequence
from typing import Any

from ksana.base.instant import MINUTE
from ksana.domain.handover import HandedJob
from ksana.domain.tasks.changes import RunChange
from ksana.domain.tasks.records import QUEUE_PLACE, QueueSpec, Run, Task
from ksana.engine.tasks.queue_runs import (
    BATCH,
    Handled,
    start_runs,
)
from ksana.ports.handover import QueueOrder
from tests.unit.scripted_tx import ScriptedTx
from tests.unit.task_ground import a_run, a_task

SPEC = QueueSpec("etl", "nightly")
NOTHING = Handled(False, set(), False, [])


class ScriptedQueue:
    """`QueueJobs` as a test sets it."""

    def __init__(self, *jobs: HandedJob) -> None:
        self.jobs = {job.job_id: job for job in jobs}
        self.fault: str | None = None
        self.taken: set[str] = set()
        self.beside: list[int] = []
        """How many orders each was looked up beside."""
        self.entered: list[QueueOrder] = []
        self.told: list[QueueOrder] = []
        self.canceled: list[tuple[str, str]] = []
        self.hear: Callable[[], None] = lambda: None

    def find_fault(self, addon_id: str, cost_units: int) -> str | None:
        assert (addon_id, cost_units) == ("etl", 1)
        return self.fault

    def submit(self, tx: Any, orders: Sequence[QueueOrder]) -> None:
        assert orders
        self.entered += orders

    def find_conflict(self, tx: Any, order: QueueOrder, beside: Sequence[QueueOrder]) -> str | None:
        self.beside.append(len(beside))
        return "it is taken" if order.request_id in self.taken else None

    def submitted(self, orders: Sequence[QueueOrder]) -> None:
        self.told += orders

    def find_jobs(self, tx: Any, job_ids: Sequence[str]) -> dict[str, HandedJob]:
        assert job_ids
        return {one: self.jobs[one] for one in job_ids if one in self.jobs}

    def cancel(self, tx: Any, job_id: str, reason: str) -> HandedJob | None:
        self.canceled.append((job_id, reason))
        return self.jobs.get(job_id)

    def subscribe(self, hear: Callable[[], None]) -> None:
        self.hear = hear


def all_done(changes: Sequence[RunChange]) -> list[bool]:
    return [True] * len(changes)


def tx_of(**answers: Any) -> ScriptedTx:
    given: dict[str, Any] = {
        "run_changes_finish": all_done,
        "run_changes_move": all_done,
        "runs_count_open": {},
    }
    return ScriptedTx(**given | answers)


def queue_task(**members: Any) -> Task:
    return a_task(**{"type": "queue", "queue": SPEC, "timeout_us": MINUTE, **members})


def ready_run(run_id: int = 60, **members: Any) -> Run:
    given: dict[str, Any] = {"status": "SCHEDULED", "attempt": 1, "held_by": None}
    return a_run(id=run_id, uid=f"{run_id:032x}", **given | members)


def start_one(
    queue: ScriptedQueue, task: Task | None = None, *, is_careful: bool = False, **members: Any
) -> tuple[RunChange, Handled]:
    """Start one run that is ready; the change, and what it came to."""
    is_done = members.pop("is_done", True)
    pair = (ready_run(**members), task or queue_task())
    tx = tx_of(run_due_list_ready=[pair], run_changes_move=[is_done])
    handled = start_runs(tx, queue, "me", is_careful=is_careful)
    assert tx.args_of("run_due.list_ready") == [(QUEUE_PLACE, BATCH)]
    return tx.args_of("run_changes.move")[0][0][0], handled
