"""A lease this worker holds: what the one who takes jobs, the handler's task, the renewals and the
results share about it, on any surface.

Phases move one way: RUNNING, then FINISHED (its result is on the way) or LOST (nothing will be
sent). They change on the worker's event loop only. `fence_at` and `beat_at` are written by the
thread that renews, and single reads and writes of them are atomic in CPython.
"""

import asyncio

from ksana.base.instant import Micros
from ksana.client.context import CancelSignal

RUNNING, FINISHED, LOST = "RUNNING", "FINISHED", "LOST"
BY_CANCEL, BY_STOP = "BY_CANCEL", "BY_STOP"


class HeldLease:
    """One job, one lease, one attempt."""

    __slots__ = (
        "beat_at",
        "beaten_at",
        "cancelled",
        "cause",
        "fence_at",
        "is_async",
        "job_id",
        "key",
        "phase",
        "task",
    )

    def __init__(self, key: str, job_id: str, sent_at: Micros, ttl_us: Micros) -> None:
        self.key = key
        """Its name among those that the worker holds."""
        self.job_id = job_id
        self.is_async = False
        """Whether its handler runs on the event loop, where it can be ended."""
        self.phase = RUNNING
        self.cancelled = CancelSignal()
        self.task: asyncio.Task[None] | None = None
        self.cause: str | None = None
        """Why the handler was told to stop: BY_CANCEL, BY_STOP, or not at all."""
        # As `renew` does: a call for each job is counted in microseconds.
        self.beaten_at = sent_at
        self.fence_at = sent_at + ttl_us
        self.beat_at = sent_at + ttl_us // 3

    def renew(self, sent_at: Micros, ttl_us: Micros) -> None:
        """Count the lease's time from when the request left: the server counted it from no
        earlier."""
        self.beaten_at = sent_at
        self.fence_at = sent_at + ttl_us
        self.beat_at = sent_at + ttl_us // 3
