"""A job's place among those that wait for capacity: how many of them are before it and compete with
it for the same units."""

from ksana.domain.queue.admission import Denial, Limits
from ksana.domain.queue.jobs import Job
from ksana.ports.queue.tables import QueueTx


def count_pending_rivals(tx: QueueTx, job: Job, denial: Denial | None, limits: Limits) -> int:
    """Count those before it. A job refused for its addon's share waits for units of that addon
    alone. One refused for the total does not compete with jobs of addons whose own share is used
    up: those wait for something else."""
    pending_at = job.pending_at or tx.now
    count = tx.job_order.count_pending_ahead
    if denial is not None and denial.code == "SHARE_EXCEEDED":
        return count(job, pending_at, job.addon_id)
    ahead = count(job, pending_at)
    for addon_id, share in limits.shares:
        if addon_id != job.addon_id and tx.capacity.sum_of_addon(addon_id) >= share:
            ahead -= count(job, pending_at, addon_id)
    return ahead
