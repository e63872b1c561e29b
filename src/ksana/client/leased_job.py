"""A job this worker holds: what the claimer, the handler's task, the heartbeats and the release
share about it.

Phases move one way: RUNNING, then FINISHED (its release is on the way) or LOST (nothing will be
sent). They change on the worker's event loop only. `fence_at` and `beat_at` are written by the
heartbeat thread, and single reads and writes of them are atomic in CPython.
"""

import asyncio

from ksana.base.instant import Micros
from ksana.client.context import CancelSignal
from ksana.client.shapes import Job

RUNNING, FINISHED, LOST = "RUNNING", "FINISHED", "LOST"
BY_CANCEL, BY_STOP = "BY_CANCEL", "BY_STOP"


class LeasedJob:
    """One job, one lease, one attempt."""

    __slots__ = (
        "beat_at",
        "beaten_at",
        "cancelled",
        "cause",
        "fence_at",
        "job",
        "lease_id",
        "lease_token",
        "message",
        "phase",
        "progress",
        "reported",
        "sent",
        "task",
    )

    def __init__(self, job: Job, lease_id: str, sent_at: Micros, ttl_us: Micros) -> None:
        self.job = job
        self.lease_id = lease_id
        self.lease_token = job.lease_token
        self.phase = RUNNING
        self.cancelled = CancelSignal()
        self.task: asyncio.Task[None] | None = None
        self.cause: str | None = None
        """Why the handler was told to stop: BY_CANCEL, BY_STOP, or not at all."""
        self.progress: float | None = None
        self.message: str | None = None
        self.reported = 0
        """Counts the handler's reports; `sent` is the count the server knows of."""
        self.sent = 0
        self.beaten_at = sent_at
        self.fence_at = sent_at + ttl_us
        self.beat_at = sent_at + ttl_us // 3

    def renew(self, sent_at: Micros, ttl_us: Micros) -> None:
        """Count the lease's time from when the heartbeat left: the server counted it from no
        earlier."""
        self.beaten_at = sent_at
        self.fence_at = sent_at + ttl_us
        self.beat_at = sent_at + ttl_us // 3
