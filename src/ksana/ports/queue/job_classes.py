"""The classes of queue jobs as a transaction sees them: `tx.job_classes`. See `tables`."""

from collections.abc import Sequence
from typing import Protocol

from ksana.base.instant import Instant
from ksana.domain.queue.classes import JobClass
from ksana.ports.retention import OldRows, WalkPlace


class JobClassTable(Protocol):
    """The classes of jobs. One is entered with a job that needs it, and stays at least until the
    instant given; it goes when that is over and no job of it waits or is held."""

    def enter(self, classes: Sequence[JobClass], until: Instant) -> None:
        """Make classes known, or let known ones stay longer; none stays shorter for it."""
        ...

    def keep(self, job_seqs: Sequence[int], until: Instant, soon_at: Instant) -> None:
        """Let the classes of jobs stay until `until`. Guard: they would end before `soon_at`."""
        ...

    def list_classes(self, since: Instant = 0) -> list[JobClass]:
        """The classes that stay at least until `since`; with 0 all of them."""
        ...

    def count(self, limit: int) -> int:
        """How many there are, counted up to a limit."""
        ...

    def find_known(self, ids: Sequence[int]) -> set[int]:
        """Those of these that are there."""
        ...

    def find_old(self, before: Instant, after: WalkPlace, limit: int) -> OldRows:
        """Find up to `limit` classes that need not stay until `before`, and of which no job is
        ready or held. Those with jobs are passed over."""
        ...

    def remove(self, ids: Sequence[int], before: Instant) -> int:
        """Remove those of these that need not stay until `before` and of which no job is ready;
        answer how many."""
        ...
