"""What a store keeps for tasks (T and C): definitions, and where their schedules stand. Guards are
in the names; the conformance suite holds every store to it. Runs are in `runs.py`."""

from collections.abc import Callable, Collection, Sequence
from typing import Protocol

import msgspec

from ksana.base.instant import Instant, Micros
from ksana.domain.tasks.records import Definition, Task
from ksana.ports.clock_steps import ClockStepTx
from ksana.ports.dead_letters import DeadLetterTx
from ksana.ports.pages import PageRows, Total
from ksana.ports.store import WHOLE, Share
from ksana.ports.tasks.runs import RunChanges, RunDue, RunLists, Runs


class Advance(msgspec.Struct, frozen=True, gc=False):
    """A slot to claim and what follows it. An empty last_status keeps the old one."""

    task: Task
    next_slot_at: Instant | None
    fire_at: Instant | None
    started: int
    last_status: str


FindTask = Callable[[int, int], Task | None]
"""Finds a task by its id and version, if it is known."""


def find_no_task(task_id: int, version: int) -> Task | None:
    """Knows none."""
    return None


class Tasks(Protocol):
    """Definitions, and what became of them last."""

    def insert(self, tasks: Sequence[Task]) -> list[int]:
        """Write new tasks, complete but for their ids; answer the ids in order. Names and job ids
        are checked by the caller in the same transaction."""
        ...

    def restore(self, task: Task) -> None:
        """Put back a task under its own id, which is free."""
        ...

    def change_if_version(
        self,
        task: Task,
        definition: Definition,
        status: str,
        next_slot_at: Instant | None,
        fire_at: Instant | None,
        runs_fired: int,
        last_status: str,
    ) -> bool:
        """Replace the definition if the task lives and has the version it was read with; the
        version rises by one."""
        ...

    def delete_if_living(self, task: Task, kept: Definition) -> bool:
        """Soft-delete: disarmed, the name and the job id free again, headers, body and options as
        in `kept`, which has no secrets. Answer whether it lived."""
        ...

    def find(self, task_id: int, *, lock: bool = False) -> Task | None:
        """Read a task, deleted ones included. With `lock` its row is locked: it is the lock for its
        concurrency."""
        ...

    def lock(self, task_ids: Sequence[int]) -> None:
        """Lock the rows of some tasks, the lowest id first: whoever locks several does it in this
        order. Ids of none are passed over."""
        ...

    def find_id(self, *, job_id: str | None = None, name: str | None = None) -> int | None:
        """The living task with this job id, or with this name among those made through C."""
        ...

    def list_tasks(
        self, *, status: str | None = None, after: int = 0, limit: int = 100
    ) -> list[Task]:
        """Living tasks after an id, oldest first."""
        ...

    def note_last(self, facts: Sequence[tuple[int, str, str]], at: Instant) -> None:
        """Write (task, last_status, last_error) of different tasks, each unless a later fact is
        known of it."""
        ...


class TaskDue(Protocol):
    """Where the schedules of tasks stand: which are due, and their slots claimed."""

    def list_due(
        self,
        now: Instant,
        limit: int,
        find: FindTask = find_no_task,
        share: Share = WHOLE,
        left_since: Instant = 0,
    ) -> list[Task]:
        """Armed tasks of a share whose fire_at has come, and others due since `left_since` or
        earlier; earliest first, locked; rows another instance is at are left out. Of a task that
        `find` knows with the version it has now only where it stands is read."""
        ...

    def next_fire_at(
        self, share: Share = WHOLE, now: Instant = 0, left_us: Micros = 0
    ) -> Instant | None:
        """When the next armed task is due; None if none is armed. One that is due and of another
        share counts `left_us` later."""
        ...

    def advance_unchanged(self, advances: Sequence[Advance]) -> list[bool]:
        """Claim slots of different tasks; answer for each whether it happened: only if (task,
        version, slot) are as read."""
        ...

    def arm_if_ended(self, task: Task, slot_at: Instant, fire_at: Instant) -> bool:
        """Arm an enabled task that has no slot left. Answer whether it happened: only if it is
        still so, in the version that was read."""
        ...


class TaskFilter(msgspec.Struct, frozen=True):
    """Which living tasks a list shows; None means any. `name` matches a part, `tag` a whole tag,
    `last_status` what happened last, the empty text those of which nothing has happened yet.
    `is_timer` asks for SYNC tasks that call a target."""

    status: str | None = None
    name: str | None = None
    tag: str | None = None
    last_status: str | None = None
    is_timer: bool = False


class TaskLists(Protocol):
    """Pages of living tasks, oldest first. Each costs about the same whatever the number of tasks.
    By name, tag, last status and for timers a page looks through LOOK_THROUGH tasks and may be
    short."""

    def list_page(
        self, wanted: TaskFilter, after: int, limit: int, skip: int = 0
    ) -> PageRows[Task]:
        """Up to `limit` tasks and MAX_PAGE_BYTES after an id, without the first `skip`;
        `next_place` says where to go on."""
        ...

    def count(self, wanted: TaskFilter) -> Total:
        """How many match: exact for all, and for one status; among the oldest LOOK_THROUGH
        otherwise."""
        ...

    def count_by_status(self) -> dict[str, int]:
        """How many living tasks there are, by status."""
        ...

    def find_tasks(self, task_ids: Collection[int]) -> dict[int, Task]:
        """Tasks by id, deleted ones included."""
        ...


class TaskSeals(Protocol):
    """How the secrets of tasks are stored: by a key's id, `clear`, `gone` (deleted with their
    task) or `unknown` (stored before this was noted)."""

    def list_seals(self) -> list[str]:
        """Every way that occurs, in a few steps along an index."""
        ...

    def count(self, sealed_by: str) -> int:
        """How many tasks' secrets are stored in one way."""
        ...

    def list_sealed(self, sealed_by: str, after: int, limit: int) -> list[Task]:
        """Some of these tasks after an id, by id, deleted ones included."""
        ...

    def reseal_if_version(self, task: Task, definition: Definition) -> bool:
        """Store a task's secrets another way, if it has the version it was read with; the version
        stays, for nothing changed."""
        ...

    def drop_override_bodies(self, task_id: int) -> int:
        """Forget the bodies that triggers of a task sent in place of its own; how many."""
        ...


class TasksTx(DeadLetterTx, ClockStepTx, Protocol):
    """A transaction with the tables of tasks and runs."""

    @property
    def tasks(self) -> Tasks: ...

    @property
    def task_lists(self) -> TaskLists: ...

    @property
    def task_due(self) -> TaskDue: ...

    @property
    def runs(self) -> Runs: ...

    @property
    def run_lists(self) -> RunLists: ...

    @property
    def run_due(self) -> RunDue: ...

    @property
    def run_changes(self) -> RunChanges: ...

    @property
    def task_seals(self) -> TaskSeals: ...
