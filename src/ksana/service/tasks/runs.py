"""Use cases of runs: read, list, cancel, run again."""

import msgspec

from ksana.base.errors import ConflictError, NotFoundError
from ksana.base.ids import new_token, new_uid
from ksana.domain.handover import job_id_of
from ksana.domain.lifecycle import RUN
from ksana.domain.tasks.changes import cancel
from ksana.domain.tasks.job_runs import is_waiting_for_job
from ksana.domain.tasks.records import Run, Task
from ksana.engine.tasks.run_writer import SURFACE, write_changes
from ksana.engine.tasks.task_secrets import CLEAR, TaskSecrets
from ksana.ports.handover import NO_QUEUE, QueueJobs
from ksana.ports.pages import Place
from ksana.ports.store import Store
from ksana.ports.tasks.runs import Callback, RunFilter
from ksana.ports.tasks.tables import TasksTx
from ksana.service.tasks import reading
from ksana.service.tasks.definitions import Hints
from ksana.service.tasks.triggers import Started, find_task, start_run

RunRef = int | str
"""A run by its integer id or its uid."""


class RunView(msgspec.Struct, frozen=True):
    """A run with its task and the callbacks that came for it."""

    run: Run
    task: Task | None
    callbacks: list[Callback]
    """In order."""


class RunService:
    """Read, list, cancel, retry."""

    def __init__(
        self,
        store: Store,
        hints: Hints,
        jobs: QueueJobs = NO_QUEUE,
        secrets: TaskSecrets = CLEAR,
    ) -> None:
        self._store = store
        self._hints = hints
        self._jobs = jobs
        self._secrets = secrets

    async def get(self, ref: RunRef) -> RunView:
        """Read one run."""
        return await self._store.read(_get, ref)

    async def list_page(
        self, wanted: RunFilter, *, page: int = 1, page_size: int = 20, after: Place | None = None
    ) -> reading.RunPage:
        """One page of runs, by its number or after a place; an unknown task is NOT_FOUND."""
        return await self._store.read_list(reading.list_runs, wanted, page, page_size, after)

    async def cancel(self, ref: RunRef) -> Run:
        """Cancel an unfinished run; a call in flight is aborted, on whichever instance holds it,
        and a job that it waits for is cancelled."""
        run, hosts = await self._store.transact(_cancel, ref, self._jobs)
        self._hints.canceled(run.id)
        for host in hosts:
            self._hints.ready(host)
        return run

    async def retry(self, ref: RunRef) -> Started:
        """Run a finished run's task again, as a new run of its own."""
        started = await self._store.transact(_retry, ref, self._secrets)
        self._hints.ready(started.host)
        return started


def find_run(tx: TasksTx, ref: RunRef, *, lock: bool = False) -> Run:
    """Find a run by either id, or raise NOT_FOUND."""
    run_id = ref if isinstance(ref, int) else tx.runs.find_id(ref)
    run = None if run_id is None else tx.runs.find(run_id, lock=lock)
    if run is None:
        raise NotFoundError(f"no run has the id {ref}")
    return run


def _get(tx: TasksTx, ref: RunRef) -> RunView:
    run = find_run(tx, ref)
    return RunView(run, tx.tasks.find(run.task_id), tx.runs.list_callbacks(run.id))


def _cancel(tx: TasksTx, ref: RunRef, jobs: QueueJobs) -> tuple[Run, set[str]]:
    tx.tasks.find(find_run(tx, ref).task_id, lock=True)
    run = find_run(tx, ref, lock=True)
    if run.status in RUN.final:
        raise ConflictError(
            f"the run is finished: {run.status}",
            code="ILLEGAL_TRANSITION",
            current={"status": run.status},
        )
    written = write_changes(tx, [cancel(run, "CANCELED_BY_CALLER", tx.now, new_token())])
    if not written.done[0]:
        raise ConflictError("the run changed meanwhile: try again", current={"status": run.status})
    if is_waiting_for_job(run):
        jobs.cancel(tx, job_id_of(run.uid, run.attempt), f"run {run.id} was cancelled")
    return find_run(tx, run.id), written.ready_hosts


def _retry(tx: TasksTx, ref: RunRef, secrets: TaskSecrets) -> Started:
    run = find_run(tx, ref)
    started = run_again(tx, run, secrets)
    if tx.dead_letters.settle(SURFACE, [str(run.id)]):
        record_replay(tx, run, started, None)
    return started


def record_replay(tx: TasksTx, run: Run, started: Started, actor: str | None) -> None:
    """A dead letter was run again."""
    data = {"task_id": run.task_id, "as": started.run_id, "actor": actor}
    tx.events.append("RUN", run.id, "RUN_REPLAYED", data)


def run_again(tx: TasksTx, run: Run, secrets: TaskSecrets) -> Started:
    """Make a new run of a finished one. Raise before anything is written."""
    if run.status not in RUN.final:
        raise ConflictError(
            f"the run is not finished: {run.status}; only a finished run can be run again",
            current={"status": run.status},
        )
    task = find_task(tx, run.task_id, lock=True)
    return start_run(
        tx,
        task,
        trigger="retry",
        reason="RETRIED_BY_CALLER",
        is_ready=True,
        is_counted=True,
        trace_id=new_uid(),
        exec_type=run.exec_type,
        secrets=secrets,
        override_body=run.override_body,
        retry_of=run.id,
    )
