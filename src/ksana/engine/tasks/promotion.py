"""Letting runs start whose turn has come: the one place that moves a task's line of waiting runs
on."""

from ksana.domain.tasks.records import Task, host_of
from ksana.ports.tasks.tables import TasksTx


def promote_waiting(tx: TasksTx, task: Task) -> set[str]:
    """Make as many waiting runs ready as the task has room for; answer the hosts that have ready
    runs now.

    The caller holds the lock on the task's row, or the store has one writer: otherwise a run that
    starts to wait and one that ends could each miss the other.
    """
    hosts: set[str] = set()
    counts = tx.runs.count_open(task.id)
    for _ in range(min(task.definition.max_concurrency - counts.active, counts.waiting)):
        run_id = tx.runs.promote_next(task.id)
        if run_id is None:
            break
        tx.events.append("RUN", run_id, "RUN_PROMOTED", {"task_id": task.id, "reason": "TURN_CAME"})
        hosts.add(host_of(task.definition.target_url))
    return hosts


def promote_tasks(tx: TasksTx, task_ids: list[int]) -> set[str]:
    """The same for several tasks, taking each lock."""
    hosts: set[str] = set()
    for task_id in sorted(task_ids):
        task = tx.tasks.find(task_id, lock=True)
        if task is not None:
            hosts |= promote_waiting(tx, task)
    return hosts
