"""Slots to come, worked out anew when the rules of time zones have changed.

A task's next slot is stored as an instant, so it was worked out by the rules of its time. The store
remembers the edition of the rules by which all of them were. An instance that starts with another
goes through the enabled tasks once and arms those whose next slot is elsewhere by its own rules;
then it notes its edition. A slot that is due already is left to firing, which works out the
following one by the rules in use. Whoever is interrupted begins again at the next start: twice is
once.
"""

from collections.abc import Callable
from typing import Final

from ksana.base import log
from ksana.base.clock import Clock
from ksana.base.instant import HOUR, MILLISECOND, MINUTE, Instant, Micros, format_instant
from ksana.domain.tasks.arming import find_moved_slot
from ksana.engine.core.pump import Pump
from ksana.ports.store import Store
from ksana.ports.tasks.tables import Advance, TasksTx

FACT: Final = "zone_rules"
"""Under which the store remembers the edition."""

PAGE: Final = 500
"""Tasks looked at in one go, on a reading connection."""
BATCH: Final = 100
"""Tasks armed in one transaction."""
PAUSE: Final[Micros] = 5 * MILLISECOND

LOCK: Final = "zone-rules"
LOCK_US: Final[Micros] = MINUTE


class ZoneRules:
    """Owns the loop. It has work to do after a start with other rules, and then none any more."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        owner: str,
        edition: str,
        hint: Callable[[Instant | None], None],
    ) -> None:
        self._store = store
        self._clock = clock
        self._owner = owner
        self._edition = edition
        self._hint = hint
        self._before: str | None = None
        self._after: int | None = None
        """The task after which the sweep goes on; None if there is none."""
        self._is_done = False
        self.moved = 0
        """Tasks whose next slot was moved since the start."""
        self.pump = Pump("zone-rules", clock, self.step, HOUR)

    async def step(self) -> Instant | None:
        """Look at some tasks; tell when to go on."""
        if self._is_done:
            return None
        if self._after is None:
            self._before = await self._store.read(find_edition)
            if self._before == self._edition:
                self._is_done = True
                return None
            self._after = 0
        last, moved = await self._store.read(list_moved, self._after)
        for at in range(0, len(moved), BATCH):
            ids = moved[at : at + BATCH]
            armed = await self._store.transact(arm_moved, ids, self._owner)
            if armed is None:  # another instance is at it: look again when it should be done
                self._after = None
                return self._clock.now() + LOCK_US
            self.moved += len(armed)
            for due_at in armed:
                self._hint(due_at)
        if last is not None:
            self._after = last
            return self._clock.now() + PAUSE
        await self._store.transact(note_edition, self._edition, self._owner)
        self._is_done = True
        if self._before is not None or self.moved:  # else the store is new, or always was right
            log.info(
                "zone rules are others than before",
                before=self._before or "unknown",
                now=self._edition,
                tasks_moved=self.moved,
            )
        return None


def find_edition(tx: TasksTx) -> str | None:
    """The edition by which the next slots were worked out; None if none was noted."""
    return tx.facts.find(FACT)


def note_edition(tx: TasksTx, edition: str, owner: str) -> None:
    """All next slots are by this edition now."""
    tx.facts.note(FACT, edition)
    tx.locks.drop(LOCK, owner)


def list_moved(tx: TasksTx, after: int) -> tuple[int | None, list[int]]:
    """Of the next tasks by id, those whose next slot is elsewhere by the rules in use; and the last
    that was looked at, if there are more."""
    tasks = tx.tasks.list_tasks(status="ENABLED", after=after, limit=PAGE)
    moved = [task.id for task in tasks if find_moved_slot(task, tx.now) is not None]
    return (tasks[-1].id if len(tasks) == PAGE else None), moved


def arm_moved(tx: TasksTx, task_ids: list[int], owner: str) -> list[Instant] | None:
    """Arm tasks for their next slot by the rules in use; answer when they fire, or None if another
    instance is at it."""
    if not tx.locks.take(LOCK, owner, LOCK_US):
        return None
    armed: list[Instant] = []
    for task_id in task_ids:
        task = tx.tasks.find(task_id, lock=True)
        moved = None if task is None or task.is_deleted else find_moved_slot(task, tx.now)
        if task is None or moved is None or task.next_slot_at is None:
            continue
        slot, due_at = moved
        if slot is not None and tx.runs.list_slots(task_id, slot - 1, slot, 1):
            continue  # it was fired, and the clock went back a little since
        [is_armed] = tx.task_due.advance_unchanged([Advance(task, slot, due_at, 0, "")])
        if is_armed:
            data = {
                "slot": None if slot is None else format_instant(slot),
                "was": format_instant(task.next_slot_at),
                "reason": "ZONE_RULES_CHANGED",
            }
            tx.events.append("TASK", task_id, "TASK_REARMED", data)
            if due_at is not None:
                armed.append(due_at)
    return armed
