"""What a worker and a node count about themselves."""

import msgspec


class WorkerStats:
    """What a worker has done since its start."""

    __slots__ = (
        "adopted",
        "cancelled",
        "claimed",
        "failed",
        "lost",
        "returned",
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
        self.returned = 0
        """Taken ahead, not begun, and given back."""
        self.unsettled = 0
        """Results without an answer when the worker ended."""


class NodeStats(msgspec.Struct, kw_only=True):
    """What a node did since it started."""

    connections: int = 0
    """Sockets over which it registered."""
    assigned: int = 0
    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0
    """Attempts that the server did not want any more."""
    lost: int = 0
    """Attempts given up because the connection over which they came was lost."""
    partials_lost: int = 0
