"""What a store keeps for tasks and runs (T and C). Guards are in the names; the conformance suite
holds every store to it."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

import msgspec

from ksana.base.instant import Instant
from ksana.domain.tasks.firing import Counts
from ksana.domain.tasks.records import Definition, ExecType, Run, Task, Trigger
from ksana.ports.store import Tx


class NewRun(msgspec.Struct, frozen=True, gc=False):
    """A run to write: RUNNING and held, SCHEDULED and ready or waiting, or SKIPPED."""

    uid: str
    task_id: int
    slot_at: Instant | None
    scheduled_time: Instant
    status: str
    trigger: Trigger
    exec_type: ExecType
    is_counted: bool
    host: str
    is_ready: bool
    held_by: str | None
    token: int
    reason: str | None
    trace_id: str
    callback_token: str | None = None
    override_body: str | None = None
    retry_of: int | None = None


class AttemptEnd(msgspec.Struct, frozen=True, gc=False):
    """What the holder writes when an attempt is over."""

    status: str
    start_time: Instant
    end_time: Instant | None
    open_task: int | None
    wake_at: Instant | None
    request_headers: str | None
    request_body: str | None
    response_code: int | None
    response_body: str | None
    response_truncated: int
    response_encoding: str | None
    error_message: str | None
    reason: str
    next_retry_time: Instant | None
    callback_deadline: Instant | None
    attempts: str


class RunEnd(msgspec.Struct, frozen=True, gc=False):
    """A move made by somebody else than the holder: cancel, callback, deadline, rescue."""

    status: str
    end_time: Instant | None
    open_task: int | None
    wake_at: Instant | None
    held_by: str | None
    new_token: int
    error_message: str | None
    reason: str
    next_retry_time: Instant | None
    callback_deadline: Instant | None
    callback_data: str | None
    attempts: str
    attempt: int | None = None
    """None leaves the count of attempts as it is."""


class Advance(msgspec.Struct, frozen=True, gc=False):
    """A slot to claim and what follows it. An empty last_status keeps the old one."""

    task: Task
    next_slot_at: Instant | None
    fire_at: Instant | None
    started: int
    last_status: str


class Tasks(Protocol):
    """Definitions and where their schedules stand."""

    def insert(
        self,
        job_id: str,
        dialect: str,
        definition: Definition,
        status: str,
        next_slot_at: Instant | None,
        fire_at: Instant | None,
        last_status: str = "",
    ) -> int:
        """Write a new task, version 1; answer its id. Names and job ids are checked by the caller
        in the same function."""
        ...

    def insert_many(self, tasks: Sequence[Task]) -> list[int]:
        """The same for many, that stand ready but for their ids; answer the ids in order."""
        ...

    def restore(self, task: Task) -> None:
        """Put back a task under its own id."""
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

    def delete_if_living(self, task: Task) -> bool:
        """Soft-delete: disarmed, the name and the job id free again."""
        ...

    def find(self, task_id: int, *, lock: bool = False) -> Task | None:
        """Read a task, deleted ones included. With `lock` its row is locked: it is the lock for its
        concurrency."""
        ...

    def find_id(self, job_id: str) -> int | None: ...

    def find_by_name(self, name: str) -> int | None:
        """Who has a living C name."""
        ...

    def list_tasks(
        self,
        *,
        status: str | None = None,
        name: str | None = None,
        tag: str | None = None,
        exec_type: str | None = None,
        after: int = 0,
        limit: int = 100,
        skip: int = 0,
    ) -> list[Task]:
        """Living tasks, oldest first; `name` and `tag` match a part and a whole tag."""
        ...

    def count(
        self,
        *,
        status: str | None = None,
        name: str | None = None,
        tag: str | None = None,
        exec_type: str | None = None,
    ) -> int: ...

    def count_by_status(self) -> dict[str, int]: ...

    def list_due(
        self, now: Instant, limit: int, known: Mapping[int, Task] = MappingProxyType({})
    ) -> list[Task]:
        """Armed tasks whose fire_at has come, earliest first, locked; rows another instance is at
        are left out. Of a task in `known` whose version is still the current one only where it
        stands is read."""
        ...

    def next_fire_at(self) -> Instant | None: ...

    def advance_unchanged(self, advances: Sequence[Advance]) -> list[bool]:
        """Claim slots of different tasks; answer for each whether it happened: only if (task,
        version, slot) are as read."""
        ...

    def note_last(self, task_id: int, last_status: str, last_error: str, at: Instant) -> None:
        """Write the latest fact about a task's runs, unless a later one is known."""
        ...

    def note_last_of(self, facts: Sequence[tuple[int, str, str]], at: Instant) -> None:
        """The same for (task, last_status, last_error) of different tasks."""
        ...


class Runs(Protocol):
    """One record per firing."""

    def insert_many(self, runs: Sequence[NewRun]) -> list[int]:
        """Write runs; answer their ids in order. (task, slot) is unique in the database."""
        ...

    def find(self, run_id: int, *, lock: bool = False) -> Run | None: ...

    def find_id_by_uid(self, uid: str) -> int | None: ...

    def find_id_by_callback_token(self, token: str) -> int | None: ...

    def list_runs(
        self,
        *,
        task_id: int | None = None,
        status: str | None = None,
        since: Instant | None = None,
        until: Instant | None = None,
        limit: int = 20,
        skip: int = 0,
    ) -> list[Run]:
        """Newest first."""
        ...

    def count_runs(
        self,
        *,
        task_id: int | None = None,
        status: str | None = None,
        since: Instant | None = None,
        until: Instant | None = None,
    ) -> int: ...

    def find_last(self, task_id: int) -> Run | None: ...

    def count_open(self, task_id: int) -> Counts:
        """Counted unfinished runs. Exact while the task's row is locked."""
        ...

    def count_open_of(self, task_ids: Sequence[int]) -> dict[int, Counts]:
        """The same for many tasks; a task without any is left out."""
        ...

    def hold_ready(
        self, host: str, limit: int, instance_id: str, tokens: Sequence[int]
    ) -> list[tuple[Run, Task]]:
        """Take up to `limit` ready runs of a host, oldest first, each under a fresh token: RUNNING,
        held by us."""
        ...

    def list_ready_hosts(self) -> list[str]: ...

    def finish_held(self, ends: Sequence[tuple[int, int, AttemptEnd]]) -> list[bool]:
        """Write the outcomes of attempts, each (run, token, outcome); answer for each whether its
        run was RUNNING under it."""
        ...

    def end_if_unchanged(self, run: Run, end: RunEnd) -> bool:
        """Move a run if its state and token are as read."""
        ...

    def make_ready_if_retrying(self, run_id: int) -> bool:
        """A retry's pause is over: about to start."""
        ...

    def promote_next(self, task_id: int) -> int | None:
        """Let the first waiting run of a task be about to start; answer its id."""
        ...

    def list_wakes(self, now: Instant, limit: int) -> list[tuple[int, str, int]]:
        """(run, status, task) whose wake_at has come, locked; rows another instance is at are left
        out."""
        ...

    def next_wake_at(self) -> Instant | None: ...

    def list_held(self, me: str, before: Instant) -> list[int]:
        """Runs this instance has held since before an instant."""
        ...

    def list_orphans(self, me: str, limit: int) -> list[int]:
        """RUNNING runs whose holder's lease has run out by the store's clock."""
        ...

    def is_held(self, run_id: int, token: int) -> bool:
        """Whether a run is still RUNNING under this token."""
        ...

    def list_stalled(self, limit: int) -> list[int]:
        """Tasks with runs that wait for their turn."""
        ...

    def list_open_of_task(self, task_id: int, limit: int = 10_000) -> list[int]: ...

    def extend_deadline_if_pending(self, run_id: int, deadline: Instant) -> bool: ...

    def count_pending_callbacks(self) -> int: ...

    def insert_callback(self, run_id: int, headers: str, body: str, status: str) -> None: ...

    def list_callbacks(self, run_id: int) -> list[tuple[int, Instant, str, str]]: ...


class TasksTx(Tx, Protocol):
    """A transaction with the tables of tasks and runs."""

    @property
    def tasks(self) -> Tasks: ...

    @property
    def runs(self) -> Runs: ...
