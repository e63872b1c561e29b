"""What the writers did and how the store fares, for health and metrics."""

import time

from ksana.ports.store import CommitListener
from ksana.store.sql.core.dialects import Trouble


class Tally:
    """What the writers did, for health and metrics. Written under the interpreter's lock only."""

    def __init__(self) -> None:
        self.commits = 0
        self.transactions = 0
        self.retries = 0
        self.round_trips = 0
        self.down_reason: str | None = None
        self.broken_reason: str | None = None
        self.down_until = 0.0
        self.listener: CommitListener | None = None
        """Told of every commit."""
        self.event_types: frozenset[str] = frozenset()
        """The events it is told of."""

    def mark_broken(self, error: BaseException, trouble: Trouble = Trouble.BROKEN) -> str:
        """Note that the store cannot be trusted any more, and answer why. It stays so until a
        restart."""
        if trouble is Trouble.DAMAGED:
            reason = f"the store's file is damaged ({summary(error)}): restore a backup"
        else:
            reason = (
                f"the store refused to make a write durable ({summary(error)}): restart the server"
            )
        self.broken_reason = self.broken_reason or reason
        return self.broken_reason

    def mark_away(self, error: BaseException, pause: float) -> None:
        """Note that the store cannot be reached, and that nobody tries for so many seconds."""
        self.down_reason = summary(error)
        self.down_until = time.monotonic() + pause

    def mark_reached(self) -> None:
        """Note that it can be reached."""
        self.down_reason = None
        self.down_until = 0.0


def summary(error: BaseException) -> str:
    """An error in one line, without the row that SQLite's driver quotes."""
    text = str(error).partition(" with text ")[0]
    return " ".join(text.split())[:300] or type(error).__name__
