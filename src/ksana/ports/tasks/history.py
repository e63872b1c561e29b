"""What a store answers about the past of tasks and runs, and how it forgets. Nothing here reads
more than it is told to."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from ksana.base.instant import Instant
from ksana.domain.explain import Fact
from ksana.domain.tasks.records import Run
from ksana.ports.retention import OldRows, WalkPlace
from ksana.ports.tasks.tables import TasksTx


class Miscount(NamedTuple):
    """A total that lists show and that is wrong."""

    kind: str
    entry: str
    by: int
    """How many rows it lacks."""
    seen: int
    """What was corrected of it before, all in all."""


class History(Protocol):
    """Bounded questions about the past, by index, and the removal of what is old."""

    def find_event_id_at(self, at: Instant) -> int:
        """The id of the last event not later than `at`, 0 if there is none. Ids grow with time,
        give or take a commit, so it is found by halving: a few dozen reads of one row, however long
        the log is."""
        ...

    def list_events_down(
        self, entity_type: str, entity_id: int, upto: int, limit: int
    ) -> list[Fact]:
        """Events of one entity with an id up to `upto`, newest first."""
        ...

    def list_events_up(
        self, entity_type: str, entity_id: int, after: int, limit: int
    ) -> list[Fact]:
        """Events of one entity with a greater id, oldest first."""
        ...

    def count_before(self, run: Run, limit: int) -> int:
        """Runs before this one, up to `limit`: at its host if it is about to start, else among
        those of its task that wait for their turn."""
        ...

    def find_lease_until(self, instance_id: str) -> Instant | None:
        """Until when an instance's lease lasts; None: no such instance is known."""
        ...

    def count_alive(self) -> int:
        """Instances that give a sign of life, by the store's clock."""
        ...

    def list_limits(self, after: int, limit: int) -> list[tuple[int, int]]:
        """(task, successes it keeps) by id, after an id."""
        ...

    def list_surplus(self, task_id: int, keep: int, limit: int) -> list[int]:
        """Up to `limit` finished successes beyond the newest `keep`. Looks through a bounded number
        of the task's runs; a success hidden behind more failures than that is left to its age."""
        ...

    def find_miscounts(self) -> list[Miscount]:
        """Where the counts that lists show differ from the rows. Reads all of an index."""
        ...

    def correct_counts(self, miscounts: Sequence[Miscount]) -> int:
        """Add these to the counts, but for those that another instance has corrected since they
        were found; answer how many. Rows that came or went since were counted then."""
        ...

    def remove_runs(self, run_ids: Sequence[int]) -> int:
        """Forget those of these runs that are finished and no dead letters, with their callbacks;
        answer how many."""
        ...

    def find_old_runs(self, before: Instant, after: WalkPlace, limit: int) -> OldRows:
        """Find up to `limit` runs that ended before. Unfinished ones and dead letters are passed
        over; a bounded number of runs is looked at."""
        ...


class HistoryTx(TasksTx, Protocol):
    """A transaction that can be asked about the past."""

    @property
    def history(self) -> History: ...
