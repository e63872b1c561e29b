"""Secrets of tasks brought to the way they should be stored: sealed by the present key, dropped
where their task was deleted. It has work to do after a key was set or replaced, and after an
upgrade from a version that noted nothing.

Which tasks these are is read from an index of the ways that occur, so a store that is in order
costs one look an hour.
"""

from typing import Final

from ksana.base import log
from ksana.base.clock import Clock
from ksana.base.instant import HOUR, MILLISECOND, Instant, Micros
from ksana.domain.tasks.sealing import CLEAR, GONE, drop_secrets
from ksana.engine.core.pump import Pump
from ksana.engine.tasks.task_secrets import TaskSecrets
from ksana.ports.secrets import SealError
from ksana.ports.store import Store
from ksana.ports.tasks.tables import TasksTx

BATCH: Final = 200
PAUSE: Final[Micros] = 20 * MILLISECOND
EVERY: Final[Micros] = HOUR


class Resealer:
    """Owns the loop. `resealed` counts tasks since the start."""

    def __init__(self, store: Store, clock: Clock, secrets: TaskSecrets) -> None:
        self._store = store
        self._clock = clock
        self._secrets = secrets
        self._done_to: dict[str, int] = {}
        """How far each way of storing was gone through in this pass."""
        self.resealed = 0
        self.pump = Pump("task-secrets", clock, self.step, EVERY)

    async def step(self) -> Instant | None:
        """Reseal one batch; tell when to come back."""
        for seal in await self._store.read(list_old_seals, self._secrets):
            after = self._done_to.get(seal, 0)
            found, resealed = await self._store.transact(
                reseal_tasks, seal, self._secrets, after, BATCH
            )
            if found:
                self._done_to[seal] = found[-1]
                self.resealed += resealed
                return self._clock.now() + PAUSE
        if self._done_to:
            log.info("secrets of tasks are stored anew", tasks=self.resealed)
            self._done_to.clear()
        return self._clock.now() + EVERY


def list_old_seals(tx: TasksTx, secrets: TaskSecrets) -> list[str]:
    """The ways of storing secrets that should not be any more."""
    return [
        seal for seal in tx.task_seals.list_seals() if seal not in (secrets.key_id or CLEAR, GONE)
    ]


def reseal_tasks(
    tx: TasksTx, seal: str, secrets: TaskSecrets, after: int, limit: int
) -> tuple[list[int], int]:
    """Store the secrets of some tasks as they should be. Answer the tasks that were looked at, and
    how many were done: one whose secrets cannot be opened is left as it is."""
    tasks = tx.task_seals.list_sealed(seal, after, limit)
    done = 0
    for task in tasks:
        try:
            stored = (
                drop_secrets(task.definition)
                if task.is_deleted
                else secrets.seal(task.definition, task.job_id)
            )
        except SealError as error:
            log.error("a task's secrets cannot be opened", task_id=task.id, err=error.message)
            continue
        done += tx.task_seals.reseal_if_version(task, stored)
    return [task.id for task in tasks], done
