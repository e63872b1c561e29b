"""The services of tasks over a real store on the virtual clock, without the engine: nothing fires
by itself, what the engine would be told is remembered, and so is which rows were locked."""

import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ksana.base.clock import VirtualClock
from ksana.base.instant import HOUR, SECOND, Instant
from ksana.domain.queue.admission import Limits
from ksana.domain.secrets import SEALED
from ksana.domain.tasks.records import Definition, Run, Task
from ksana.engine.tasks.claimer import claim_ready
from ksana.engine.tasks.run_writer import write_changes
from ksana.engine.tasks.task_secrets import CLEAR, TaskSecrets
from ksana.ports.secrets import SealError
from ksana.ports.store import Store
from ksana.service.queue.handover import QueueHandover
from ksana.service.queue.service import QueueService
from ksana.service.tasks.backfill import BackfillService
from ksana.service.tasks.callbacks import CallbackService
from ksana.service.tasks.definitions import NewTask, TaskService
from ksana.service.tasks.explain import ExplainService
from ksana.service.tasks.runs import RunService
from ksana.store.sql import open_store
from tests.ground.task_rows import a_finish

HOST = "target"


class HeardHints:
    """Hints that are remembered: (what, of which)."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, Any]] = []

    def due(self, at: Instant | None) -> None:
        self.heard.append(("due", at))

    def made(self, tasks: Sequence[Task]) -> None:
        self.heard.append(("made", [task.id for task in tasks]))

    def ready(self, host: str) -> None:
        self.heard.append(("ready", host))

    def canceled(self, run_id: int) -> None:
        self.heard.append(("canceled", run_id))

    def paced(self) -> None:
        self.heard.append(("paced", None))

    def take(self) -> list[tuple[str, Any]]:
        """What was heard since the last time."""
        heard, self.heard = self.heard, []
        return heard


Found = tuple[str, int, str]
"""(task or run, its id, `locked` or `read`)."""


class _WatchedTable:
    def __init__(self, table: Any, name: str, store: "WatchedStore") -> None:
        self._table = table
        self._name = name
        self._store = store

    def __getattr__(self, name: str) -> Any:
        if name == self._store.loses:
            return lambda given, *args: [False] * len(given) if isinstance(given, list) else False
        return getattr(self._table, name)

    def find(self, row_id: int, *, lock: bool = False) -> Any:
        self._store.found.append((self._name, row_id, "locked" if lock else "read"))
        return None if self._name == self._store.lacks else self._table.find(row_id, lock=lock)


class _WatchedTx:
    def __init__(self, tx: Any, store: "WatchedStore") -> None:
        self._tx = tx
        self.tasks = _WatchedTable(tx.tasks, "task", store)
        self.runs = _WatchedTable(tx.runs, "run", store)
        self.run_changes = _WatchedTable(tx.run_changes, "change", store)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tx, name)


class WatchedStore:
    """A store that remembers what its newest transaction found, in order. Of one guarded write it
    may say that somebody else was faster, and one kind of row it may have lost meanwhile."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.found: list[Found] = []
        self.loses: str | None = None
        self.lacks: str | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def transact(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self.found = []
        return await self._store.transact(lambda tx: fn(_WatchedTx(tx, self), *args, **kwargs))


class Box:
    """A box that seals by turning a text round, with the key's name before it."""

    def __init__(self, key_id: str) -> None:
        self.key_id = key_id
        self.known_ids = frozenset({key_id})
        self.token_keys = (key_id.encode(),)

    def seal(self, text: str, context: str) -> str:
        return f"{SEALED}{self.key_id}:{text[::-1]}"

    def open(self, text: str, context: str) -> str:
        if not text.startswith(f"{SEALED}{self.key_id}:"):
            raise SealError("another key")
        return text.rpartition(":")[2][::-1]


class Services:
    """What callers of tasks can ask for."""

    def __init__(self, store: Store, clock: VirtualClock, secrets: TaskSecrets = CLEAR) -> None:
        self.plain_store = store
        self.store: Any = WatchedStore(store)
        self.clock = clock
        self.hints = HeardHints()
        self.queue = QueueService(store, clock, Limits())
        self.jobs = QueueHandover(self.queue)
        self.tasks = TaskService(self.store, clock, self.hints, SECOND, secrets)
        self.runs = RunService(self.store, self.hints, self.jobs, secrets)
        self.callbacks = CallbackService(self.store, clock, self.hints, HOUR, True, secrets)
        self.backfills = BackfillService(self.store, self.hints, SECOND, secrets)
        self.explain = ExplainService(self.store, self.jobs)

    @property
    def now(self) -> Instant:
        return self.clock.now()

    async def add(self, definition: Definition, **members: Any) -> Task:
        """Make a task of C; forget what was heard of it."""
        new = NewTask(**{"dialect": "C", **members}, definition=definition)
        task = await self.tasks.create(new)
        self.hints.take()
        return task

    async def start(self, run_id: int) -> Run:
        """Take the next ready run as an instance would: it is RUNNING then."""

        def claim(tx: Any) -> Run:
            claimed, _ = claim_ready(tx, HOST, "i1", [77], 1)
            assert [one.run_id for one in claimed] == [run_id]
            run: Run = tx.runs.find(run_id)
            return run

        return await self.plain_store.transact(claim)

    async def end(self, run_id: int, status: str = "SUCCESS", **members: Any) -> Run:
        """Take the next ready run and write the end of its attempt."""
        run = await self.start(run_id)
        is_pending = status == "CALLBACK_PENDING"
        given: dict[str, Any] = {
            "new": status,
            "end_time": None if is_pending or status == "RETRYING" else self.now,
            "callback_deadline": self.now + 300 * SECOND if is_pending else None,
            **members,
        }

        def record(tx: Any) -> Run:
            change = a_finish(run_id, run.token, run.task_id, **given)
            assert write_changes(tx, [change]).done == [True]
            found: Run = tx.runs.find(run_id)
            return found

        return await self.plain_store.transact(record)

    async def find_run(self, run_id: int) -> Run:
        run: Run | None = await self.store.read(lambda tx: tx.runs.find(run_id))
        assert run is not None
        return run

    async def list_runs(self, task: Task) -> list[Run]:
        """The runs of a task, oldest first."""
        runs = await self.store.read(lambda tx: tx.runs.list_runs(task_id=task.id, limit=500))
        return list(reversed(runs))

    async def events(self, kind: str | None = None) -> list[tuple[str, str, str, Any]]:
        """(entity, id, type, data) of all events, or of those of one type."""
        events = await self.store.read(lambda tx: tx.events.list_after(0, 5000))
        return [
            (one.entity_type, one.entity_id, one.type, msgspec.json.decode(one.data))
            for one in events
            if kind in (None, one.type)
        ]


@contextlib.asynccontextmanager
async def open_services(
    path: Path, clock: VirtualClock, secrets: TaskSecrets = CLEAR
) -> AsyncIterator[Services]:
    """Services over an empty store."""
    store = await open_store(f"sqlite:///{path}/ksana.db", clock, inline=True)
    try:
        yield Services(store, clock, secrets)
    finally:
        await store.close()
