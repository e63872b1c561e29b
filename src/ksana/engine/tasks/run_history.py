"""History of runs that grows old or too long: removed in small batches, unfinished work and
definitions never.

By age: registered with the core's retention. By number: a task keeps its newest successes up to its
`history_limit`, and as many dead letters; the runs of letters beyond are left to their age. Which
tasks have too many is not looked for in history: delivery notes each end in passing, and a task is
looked at once it grew by a tenth of what it keeps. What was noted is lost at a restart, so a slow
sweep goes over all tasks as the net. Looking is done on reading connections; the writer only
deletes.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from ksana.base.clock import Clock
from ksana.base.instant import HOUR, MILLISECOND, MINUTE, SECOND, Instant, Micros
from ksana.engine.core.pump import Pump
from ksana.engine.core.retention import Retention
from ksana.engine.tasks.claimed_run import AttemptOver
from ksana.engine.tasks.run_writer import SURFACE
from ksana.ports.retention import OldRows, WalkPlace
from ksana.ports.store import Store
from ksana.ports.tasks.history import HistoryTx, Miscount

EVERY: Final[Micros] = 10 * SECOND
"""Time from a look that found nothing to the next."""

SWEEP_EVERY: Final[Micros] = MINUTE
SWEEP_AGAIN: Final[Micros] = HOUR
"""A sweep takes a few tasks a minute and begins anew an hour after it ended."""

FOLD: Final = 2000
"""Rows of counts that are folded at once: a few for each connection of the last hour."""
PAUSE: Final[Micros] = 20 * MILLISECOND
BATCH: Final = 100
"""Runs in one transaction: about 3 ms of the writer's time, for each stands in several indexes."""
TASKS_A_LOOK: Final = 50
MAX_NOTED: Final = 50_000
"""Tasks whose growth is remembered; others are left to the sweep."""


_ENDS: Final = frozenset({"SUCCESS", "CALLBACK_PENDING", "FAILED", "TIMEOUT"})
"""Ends of attempts that add to what a task keeps."""


class RunHistory:
    """Keeps each task's successes and dead letters within its limit. `removed` counts runs since
    the start."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._grown: dict[int, int] = {}
        self._long: dict[int, int] = {}
        """Tasks to look at, and how many successes each keeps."""
        self._swept_to = 0
        self._sweep_at: Instant = 0
        self._is_recounted = False
        self.removed = 0
        self.pump = Pump("run-history", clock, self.step, EVERY)

    def recorded(self, ended: Sequence[tuple[AttemptOver, str]]) -> None:
        """Attempts are on disk. What a target accepted mostly succeeds by its callback, which may
        come to another instance: it is counted here."""
        tasks = [over.held.task for over, status in ended if status in _ENDS]
        self.note([(task.id, task.definition.options.history_limit) for task in tasks])

    def note(self, ended: Iterable[tuple[int, int]]) -> None:
        """Runs ended: of which task each, and how many it keeps."""
        grown = self._grown
        for task_id, keep in ended:
            count = grown.get(task_id, 0) + 1
            if count * 10 >= keep:
                self._long[task_id] = keep
                grown.pop(task_id, None)
            elif count > 1 or len(grown) < MAX_NOTED:
                grown[task_id] = count

    async def step(self) -> Instant | None:
        """Remove one batch of what is too much; tell when to come back."""
        now = self._clock.now()
        if not self._is_recounted:
            await self._recount()
        if now >= self._sweep_at:
            await self._sweep(now)
        looked_at = dict(list(self._long.items())[:TASKS_A_LOOK])
        if not looked_at:
            return now + EVERY
        surplus = await self._store.read(find_surplus, looked_at, BATCH)
        if surplus:
            self.removed += await self._store.transact(remove_runs, surplus)
        letters = await self._store.read(find_letter_surplus, looked_at, BATCH)
        if letters:
            await self._store.transact(settle_letters, letters)
        if len(surplus) < BATCH and len(letters) < BATCH:
            for task_id in looked_at:
                self._long.pop(task_id, None)
        return now + (PAUSE if self._long else EVERY)

    async def _recount(self) -> None:
        """Once after a start: an instance of an older version beside this one counted nothing."""
        miscounts = await self._store.read(find_miscounts)
        if miscounts:
            await self._store.transact(correct_counts, miscounts)
        self._is_recounted = True

    async def _sweep(self, now: Instant) -> None:
        limits = await self._store.read(list_limits, self._swept_to, TASKS_A_LOOK)
        for task_id, keep in limits:
            self._long.setdefault(task_id, keep)
        is_over = len(limits) < TASKS_A_LOOK
        if is_over:
            await self._store.transact(fold_counts, FOLD)
        self._swept_to = 0 if is_over else limits[-1][0]
        self._sweep_at = now + (SWEEP_AGAIN if is_over else SWEEP_EVERY)


def add_run_history(retention: Retention, keep_us: Micros) -> None:
    """Have finished runs removed by age; dead letters stay."""
    retention.add_walk("runs", keep_us, find_old_runs, remove_runs)


def find_old_runs(tx: HistoryTx, before: Instant, after: WalkPlace, limit: int) -> OldRows:
    """Find up to `limit` runs that ended before."""
    return tx.history.find_old_runs(before, after, limit)


def find_surplus(tx: HistoryTx, limits: dict[int, int], limit: int) -> list[int]:
    """Successes beyond what their tasks keep, up to `limit` in all. The limit in force now decides,
    not the one noted."""
    found: list[int] = []
    for task_id in limits:
        task = tx.tasks.find(task_id)
        if task is not None:
            found += tx.history.list_surplus(
                task_id, task.definition.options.history_limit, limit - len(found)
            )
        if len(found) >= limit:
            break
    return found


def find_letter_surplus(tx: HistoryTx, limits: dict[int, int], limit: int) -> list[str]:
    """Runs whose dead letters are beyond what their tasks keep, up to `limit` in all."""
    found: list[str] = []
    for task_id in limits:
        task = tx.tasks.find(task_id)
        if task is not None and len(found) < limit:
            keep = task.definition.options.history_limit
            found += tx.dead_letters.list_surplus(SURFACE, str(task_id), keep, limit - len(found))
    return found


def settle_letters(tx: HistoryTx, run_ids: list[str]) -> int:
    """Take out dead letters of which a task has too many."""
    return tx.dead_letters.settle(SURFACE, run_ids)


def remove_runs(tx: HistoryTx, run_ids: list[int]) -> int:
    """Remove finished runs."""
    return tx.history.remove_runs(run_ids)


def find_miscounts(tx: HistoryTx) -> list[Miscount]:
    """Where the totals that lists show are wrong, and by how much."""
    return tx.history.find_miscounts()


def fold_counts(tx: HistoryTx, limit: int) -> int:
    """Put together what connections counted, those that are gone too."""
    return tx.row_counts.fold(limit)


def correct_counts(tx: HistoryTx, miscounts: list[Miscount]) -> int:
    """Set the totals right."""
    return tx.history.correct_counts(miscounts)


def list_limits(tx: HistoryTx, after: int, limit: int) -> list[tuple[int, int]]:
    """What the next tasks keep."""
    return tx.history.list_limits(after, limit)
