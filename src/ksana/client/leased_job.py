"""A queue job this worker holds."""

from ksana.base.instant import Micros
from ksana.client.handlers import Registered
from ksana.client.held_lease import HeldLease
from ksana.client.shapes import Job


class LeasedJob(HeldLease):
    """A job of the queue under its lease, with what its handler reported."""

    __slots__ = (
        "job",
        "lease_id",
        "lease_token",
        "message",
        "progress",
        "registered",
        "reported",
        "sent",
        "taken_at",
    )

    def __init__(
        self,
        job: Job,
        lease_id: str,
        sent_at: Micros,
        ttl_us: Micros,
        registered: Registered | None = None,
    ) -> None:
        super().__init__(lease_id, job.job_id, sent_at, ttl_us)
        self.job = job
        self.registered = registered
        """Its handler, if this worker has one."""
        if registered is not None:
            self.is_async = registered.is_async
        self.lease_id = lease_id
        self.taken_at = sent_at
        self.lease_token = job.lease_token
        self.progress: float | None = None
        self.message: str | None = None
        self.reported = 0
        """Counts the handler's reports; `sent` is the count the server knows of."""
        self.sent = 0
