"""What a worker counts about itself."""


class WorkerStats:
    """What a worker has done since its start."""

    __slots__ = (
        "adopted",
        "cancelled",
        "claimed",
        "failed",
        "lost",
        "succeeded",
        "timed_out",
        "unsettled",
    )

    def __init__(self) -> None:
        self.claimed = 0
        self.adopted = 0
        """Claimed in a claim whose answer was lost, and found again."""
        self.succeeded = 0
        self.failed = 0
        self.cancelled = 0
        self.timed_out = 0
        self.lost = 0
        """Dropped because the lease was over or the server refused the result."""
        self.unsettled = 0
        """Results without an answer when the worker ended."""
