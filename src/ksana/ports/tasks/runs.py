"""What a store keeps of runs, in three tables by purpose: reading them, finding those that must be
looked at, and changing them. Only `engine/tasks/run_writer.py` calls the changes."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import msgspec

from ksana.base.instant import Instant, Micros
from ksana.domain.tasks.changes import RunChange
from ksana.domain.tasks.firing import Counts
from ksana.domain.tasks.records import NewRun, Run, Task
from ksana.ports.pages import PageRows, Place, Total


class Callback(NamedTuple):
    """A callback as it came."""

    id: int
    received_at: Instant
    body: str
    status: str


class TokenRun(msgspec.Struct, frozen=True, gc=False):
    """What a callback token leads to."""

    run_id: int
    task_id: int
    callback_hash: str
    end_time: Instant | None


class Runs(Protocol):
    """One record for each firing."""

    def find(self, run_id: int, *, lock: bool = False) -> Run | None:
        """Read a run. With `lock` its row is locked until the transaction ends."""
        ...

    def find_id(self, uid: str) -> int | None:
        """The run with this uid."""
        ...

    def find_by_token(self, callback_hash: str) -> TokenRun | None:
        """The run whose callback token has this hash."""
        ...

    def measure_callbacks(self, run_id: int) -> tuple[int, int, bool]:
        """How many callbacks of a run are kept, how many bytes they have, and whether a row says
        that no more are."""
        ...

    def list_runs(
        self,
        *,
        task_id: int | None = None,
        slot_at: Instant | None = None,
        is_open: bool = False,
        limit: int = 20,
    ) -> list[Run]:
        """Runs that meet all conditions, newest first. `is_open` asks for the unfinished runs of
        `task_id`, which must be given then."""
        ...

    def count_open(self, task_ids: Sequence[int]) -> dict[int, Counts]:
        """Counted unfinished runs of tasks; a task without any is left out. Exact for a task whose
        row is locked."""
        ...

    def list_slots(self, task_id: int, after: Instant, until: Instant, limit: int) -> list[Instant]:
        """Slots of a task in a span that have a run, in order."""
        ...

    def list_claimed(
        self, task_ids: Sequence[int], since: Instant, until: Instant
    ) -> set[tuple[int, Instant]]:
        """(task, slot) of those slots of some tasks in a span that have a run."""
        ...

    def count_pending_callbacks(self) -> int:
        """How many runs wait for a callback."""
        ...

    def list_callbacks(self, run_id: int) -> list[Callback]:
        """The callbacks that came for a run, in order, the first hundred."""
        ...


class RunFilter(msgspec.Struct, frozen=True):
    """Which runs a list shows; None means any. `since` and `until` bound the scheduled time,
    `until` itself not included."""

    task_id: int | None = None
    status: str | None = None
    since: Instant | None = None
    until: Instant | None = None

    @property
    def is_by_time(self) -> bool:
        """Whether the list is in the order of scheduled times, not of ids."""
        return self.task_id is None and (self.since is not None or self.until is not None)


class RunLists(Protocol):
    """Pages of runs, newest first: by id, and by (scheduled time, id) in a span of time over all
    tasks. Each costs about the same whatever the number of runs. Where no index has the filters
    (another one beside a task or a span), a page looks through LOOK_THROUGH runs and may be short.
    """

    def list_page(
        self, wanted: RunFilter, after: Place | None, limit: int, skip: int = 0
    ) -> PageRows[Run]:
        """Up to `limit` runs and MAX_PAGE_BYTES that come after a place, without the first `skip`;
        `next_place` says where to go on."""
        ...

    def count(self, wanted: RunFilter) -> Total:
        """How many runs match: exact for all, and for one status; counted up to COUNT_LIMIT for a
        task or a span; and among the newest LOOK_THROUGH where no index has the filters."""
        ...


class RunDue(Protocol):
    """Which runs must be looked at now. Everything here is found by an index and bounded."""

    def list_ready_hosts(self) -> list[str]:
        """Hosts with runs about to start."""
        ...

    def list_ready(self, host: str, limit: int) -> list[tuple[Run, Task]]:
        """Runs about to start at a host with their tasks, oldest first, locked; rows another
        instance is at are left out."""
        ...

    def list_waiting(self, task_id: int, limit: int) -> list[Run]:
        """Runs of a task that wait for their turn, in order."""
        ...

    def list_held_back(self, task_id: int, limit: int) -> list[Run]:
        """Runs of a task that wait outside of its line, in order."""
        ...

    def count_unfinished(self, task_id: int, limit: int) -> int:
        """Unfinished runs of a task, counted or not; `limit` at most."""
        ...

    def list_stalled(self, limit: int) -> list[int]:
        """Tasks with runs that wait for their turn."""
        ...

    def list_wakes(self, now: Instant, limit: int) -> list[Run]:
        """Runs whose wake_at has come, earliest first, locked; rows another instance is at are left
        out."""
        ...

    def next_wake_at(self) -> Instant | None:
        """When the next run must be looked at; None if none must."""
        ...

    def list_orphans(self, me: str, limit: int) -> list[Run]:
        """RUNNING runs of other holders whose lease has run out by the store's clock."""
        ...

    def list_held(self, me: str, before: Instant) -> list[int]:
        """Runs this instance has held since before an instant."""
        ...

    def list_void(self, claims: Sequence[tuple[int, int]]) -> list[int]:
        """Of claims, each (run, token): the runs that are no longer RUNNING under their token."""
        ...


class RunChanges(Protocol):
    """Guarded writes, many at once. The store is told every value."""

    def insert(self, runs: Sequence[NewRun]) -> list[int]:
        """Write runs; answer their ids in order. (task, slot) is unique in the database."""
        ...

    def finish(self, changes: Sequence[RunChange]) -> list[bool]:
        """Write the ends of attempts of different runs with their records; answer for each whether
        its run was in the old state under its token. Attempt number, start and callback data stay.
        """
        ...

    def move(self, changes: Sequence[RunChange]) -> list[bool]:
        """Write all members of changes of different runs; answer for each whether its run was in
        the old state under its token. What is recorded of the attempt stays."""
        ...

    def pace(self, runs: Sequence[tuple[int, Instant]]) -> None:
        """Runs (id, until when) that were just made, not counted, wait outside of their task's line
        until an instant."""
        ...

    def count_in(self, runs: Sequence[tuple[int, int]]) -> int:
        """Count runs (id, token) that waited outside of their task's line; answer how many were as
        they were seen."""
        ...

    def put_off(self, task_id: int, by_us: Micros) -> None:
        """Put off all runs of a task that wait outside of its line, each by as much."""
        ...

    def insert_callback(self, run_id: int, headers: str, body: str, status: str) -> None:
        """Keep a callback as it came."""
        ...
