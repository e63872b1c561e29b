"""Work of every surface that has failed for good, made on any store."""

from typing import Any

from ksana.base.clock import SystemClock
from ksana.base.ids import new_token, new_uid, new_uuid
from ksana.base.instant import HOUR, Instant
from ksana.domain.queue.admission import Limits
from ksana.domain.queue.attempt_ends import Release
from ksana.domain.queue.classes import Wants, class_of
from ksana.domain.queue.jobs import NewJob
from ksana.domain.schedule import Every
from ksana.domain.tasks.changes import facts, move
from ksana.domain.tasks.records import Definition, NewRun, Options
from ksana.engine.tasks.run_writer import write_changes, write_runs
from ksana.ports.store import Store
from ksana.service.core.dead_letters import DeadLetterService, Operator
from ksana.service.governance import dead_letters as governance_letters
from ksana.service.queue import dead_letters as queue_letters
from ksana.service.queue.claims import Claim
from ksana.service.queue.service import QueueService
from ksana.service.tasks import dead_letters as task_letters
from tests.ground.governance import Governing
from tests.ground.task_rows import a_task

ME = Operator("tester", "req-1")


class _Hints:
    """Remembers what the engine would be told."""

    def __init__(self) -> None:
        self.hosts: list[str] = []

    def due(self, at: Instant | None) -> None: ...

    def made(self, tasks: Any) -> None: ...

    def ready(self, host: str) -> None:
        self.hosts.append(host)

    def canceled(self, run_id: int) -> None: ...


class Failing:
    """Makes dead letters of each surface, and the service that has them in one place."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.hints = _Hints()
        self.queue = QueueService(store, SystemClock(), Limits())
        self.governing = Governing(store)
        self.letters = DeadLetterService(store)
        self.letters.add(task_letters.make_section(self.hints))
        self.letters.add(queue_letters.make_section(self.queue))
        self.letters.add(governance_letters.make_section(self.governing.service))

    @property
    def surfaces(self) -> list[str]:
        return list(self.letters.sections)

    async def add_task(self, name: str = "t", history_limit: int = 1000) -> int:
        options = Options(history_limit=history_limit)

        def insert(tx: Any) -> int:
            definition = Definition(
                name, "", Every(HOUR, tx.now, False), target_url="http://h/", options=options
            )
            ids: list[int] = tx.tasks.insert([a_task(new_uid(), definition, tx.now, None)])
            return ids[0]

        return await self.store.transact(insert)

    async def fail_run(
        self, task_id: int, error: str | None = "no route", status: str = "FAILED"
    ) -> int:
        """A run that ends so; its id."""
        return await self.store.transact(_fail_run, task_id, error, status)

    async def fail_job(self, addon_id: str = "a", error: str | None = "no route") -> str:
        """A queue job whose worker gives it up; its id."""
        job_id = new_uuid()
        await self.queue.submit(
            NewJob(
                job_id,
                "NORMAL",
                class_of(addon_id, "k", 1, ()),
                "{}",
                '{"n":1}',
                None,
                2,
                None,
                None,
            )
        )
        claimed = await self.queue.claim(Claim("w", Wants(addon_id=addon_id), 1, has_lease=True))
        [lease] = claimed.leases
        await self.queue.release(Release(lease.lease_id, "FAILED", error=error, may_retry=False))
        return job_id

    async def fail_governance_job(self, object_id: str = "m1", error: str = "no route") -> str:
        """A governance job that is given up; its id."""
        await self.governing.enqueue(object_id, max_attempts=1)
        [job] = await self.governing.pull()
        await self.governing.fail(job, error)
        return job.job_id

    async def events(self, entity_type: str, entity_id: str | int) -> list[str]:
        """The types of an entity's events, in order."""
        return await self.governing.events(entity_type, str(entity_id))


def _fail_run(tx: Any, task_id: int, error: str | None, status: str) -> int:
    old = "CALLBACK_PENDING" if status == "FAILED_TIMEOUT" else "RUNNING"
    run = NewRun(
        uid=new_uid(),
        task_id=task_id,
        slot_at=None,
        scheduled_time=tx.now,
        status="RUNNING",
        trigger="manual",
        exec_type="SYNC",
        is_counted=True,
        host="http://h",
        is_ready=False,
        held_by="one",
        token=new_token(),
        reason="BELOW_LIMIT",
        trace_id="t",
    )
    [run_id] = write_runs(tx, [run])
    if old != "RUNNING":
        _move(tx, run_id, old, None)
    _move(tx, run_id, status, error)
    return run_id


def _move(tx: Any, run_id: int, new: str, error: str | None) -> None:
    found = tx.runs.find(run_id)
    data = facts(found, "BY_TEST", error=error)
    change = move(found, new, tx.now, new_token(), reason="BY_TEST", error=error, data=data)
    assert write_changes(tx, [change]).done == [True]
