"""Steps of the store's clock, as firing sees them, and tasks that are armed anew after a step back.

Firing tells the clock of each of its passes. A step shows against monotonic time: the bounds allow
for all the time a transaction may have waited, so what is taken for a step is one. A step ahead is
written down with the time it skipped; what is due then is late, and firing decides that. A step
back is written down with the time that was lived, and tasks whose next slot was worked out by a
clock that was ahead are armed for the first slot that was jumped over: they would be silent for as
long as the clock was ahead. Slots of time that was lived are not fired again, nor those made up.

What was written down is read at the start: the clock may be set back while nobody runs.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from ksana.base.clock import Clock
from ksana.base.instant import HOUR, MILLISECOND, MINUTE, SECOND, Instant, Micros, format_instant
from ksana.domain.tasks.clock_steps import (
    NO_WINDOWS,
    ClockWindows,
    LivedSpan,
    SkippedSpan,
    find_skipped_slot,
    make_windows,
)
from ksana.domain.tasks.records import Task
from ksana.engine.core.pump import Pump
from ksana.ports.clock_steps import ClockStep
from ksana.ports.store import Store
from ksana.ports.tasks.tables import Advance, TasksTx

TOLERANCE: Final[Micros] = 2 * SECOND
"""Smaller steps silence nobody for longer than this."""

POLL: Final[Micros] = MINUTE
"""How often what other instances wrote down is read."""

KNOWN_FOR: Final[Micros] = HOUR
"""How long what is over is known."""

PAGE: Final = 500
"""Tasks looked at in one go, on a reading connection."""
BATCH: Final = 100
"""Tasks armed in one transaction."""
PAUSE: Final[Micros] = 5 * MILLISECOND
MAX_CLAIMED: Final = 10_000

LOCK: Final = "clock-steps"
LOCK_US: Final[Micros] = MINUTE


class _Reading(NamedTuple):
    """What the store's clock showed, and between which monotonic instants it was read."""

    now: Instant
    asked: Micros
    answered: Micros


class ClockSteps:
    """What is known of steps. `windows` concerns time to come; mostly it is empty."""

    def __init__(
        self, store: Store, clock: Clock, owner: str, hint: Callable[[Instant], None]
    ) -> None:
        self._store = store
        self._clock = clock
        self._owner = owner
        self._hint = hint
        self._last: _Reading | None = None
        self._life_from: Instant = 0
        """Since when the clock went on without a step."""
        self._seen: list[ClockStep] = []
        self._sweep_after: int | None = None
        """The task after which the sweep goes on; None if there is none."""
        self.is_loaded = False
        self.windows = NO_WINDOWS
        self.pump = Pump("clock-steps", clock, self._step, POLL)

    async def load(self) -> None:
        """Look at what was written down, and whether the clock was set back since somebody ran:
        once, before anything is fired."""
        await self._store.transact(write_unseen_steps, self._owner)
        self.windows = await self._store.read(read_windows)
        self.is_loaded = True
        if self.windows.lived:
            self._sweep_after = 0
            self.pump.signal()

    def observe(self, now: Instant, asked: Micros, answered: Micros) -> None:
        """A pass of firing saw this instant, between these of the monotonic clock."""
        last, self._last = self._last, _Reading(now, asked, answered)
        if last is None:
            self._life_from = now
        elif now > last.now + (answered - last.asked) + TOLERANCE:
            self._note(ClockStep(is_back=False, from_at=last.now, to_at=now, seen_at=now))
        elif now < last.now + max(0, asked - last.answered) - TOLERANCE:
            self._note(
                ClockStep(is_back=True, from_at=self._life_from, to_at=last.now, seen_at=now)
            )
            # Known at once: a task that is enabled now may come to a slot that was fired.
            self.windows = make_windows(
                self.windows.skipped,
                (*self.windows.lived, LivedSpan(self._life_from, last.now, now)),
            )
            self._sweep_after = 0
        else:
            return
        self._life_from = now
        self.pump.signal()

    def _note(self, step: ClockStep) -> None:
        self._seen.append(step)

    async def _step(self) -> Instant | None:
        """Write down what was seen, read what others wrote, arm some tasks."""
        if self._seen:
            seen, self._seen = self._seen, []
            await self._store.transact(write_steps, seen)
        self.windows = await self._store.read(read_windows)
        if self._sweep_after is None or not self.windows.skipped:
            self._sweep_after = None
            return None
        tasks = await self._store.read(list_after, self._sweep_after)
        self._sweep_after = tasks[-1].id if len(tasks) == PAGE else None
        await self._arm(tasks)
        return None if self._sweep_after is None else self._clock.now() + PAUSE

    async def _arm(self, tasks: list[Task]) -> None:
        now = self._clock.now() if self._last is None else self._last.now
        silent = [
            task.id for task in tasks if find_skipped_slot(task, now, self.windows, ()) is not None
        ]
        for at in range(0, len(silent), BATCH):
            ids = silent[at : at + BATCH]
            for due_at in await self._store.transact(arm_tasks, ids, self.windows, self._owner):
                self._hint(due_at)


def write_steps(tx: TasksTx, steps: list[ClockStep]) -> None:
    """Remember steps, with their events."""
    for step in steps:
        tx.clock_steps.add(step)
        data = {
            "direction": "back" if step.is_back else "ahead",
            "from": format_instant(step.to_at if step.is_back else step.from_at),
            "to": format_instant(step.seen_at),
        }
        tx.events.append("STORE", "clock", "CLOCK_STEPPED", data)


def write_unseen_steps(tx: TasksTx, owner: str) -> None:
    """Remember steps back that nobody saw: another instance gave signs of life later than it is
    now."""
    known = tx.clock_steps.list_beyond(tx.now)
    for one in tx.instances.list_instances():
        if one.id == owner or one.alive_at <= tx.now + TOLERANCE:
            continue
        # It lived since it began, or since the clock jumped under it.
        jumps = [step.to_at for step in known if not step.is_back and step.to_at <= one.alive_at]
        step = ClockStep(
            is_back=True,
            from_at=max([one.started_at, *jumps]),
            to_at=one.alive_at,
            seen_at=tx.now,
        )
        if all(old.to_at != step.to_at for old in known if old.is_back):
            write_steps(tx, [step])


def read_windows(tx: TasksTx) -> ClockWindows:
    """What is known of the time to come: steps, and outages that ended later than it is now. What
    was just over is known for a while yet: slots may be late."""
    skipped: list[SkippedSpan] = []
    lived: list[LivedSpan] = []
    for step in tx.clock_steps.list_beyond(tx.now - KNOWN_FOR):
        if step.is_back:
            lived.append(LivedSpan(step.from_at, step.to_at, step.seen_at))
        else:
            skipped.append(SkippedSpan(step.from_at, step.to_at))
    if not lived:
        return NO_WINDOWS
    for instance in tx.instances.list_instances():
        if instance.outage_from is not None and instance.started_at > tx.now:
            skipped.append(SkippedSpan(instance.outage_from, instance.started_at))
    return make_windows(skipped, lived)


def list_after(tx: TasksTx, after: int) -> list[Task]:
    """The next tasks that are enabled, by id."""
    return tx.tasks.list_tasks(status="ENABLED", after=after, limit=PAGE)


def arm_tasks(tx: TasksTx, task_ids: list[int], windows: ClockWindows, owner: str) -> list[Instant]:
    """Arm tasks for the first slot to come that the clock jumped over; answer when they fire. One
    instance at a time does it; twice is once."""
    if not tx.locks.take(LOCK, owner, LOCK_US):
        return []
    armed: list[Instant] = []
    for task_id in task_ids:
        task = tx.tasks.find(task_id, lock=True)
        if task is None or task.is_deleted:
            continue
        since = tx.now - task.definition.schedule.jitter_us
        claimed = tx.runs.list_slots(task_id, since, windows.skipped_until, MAX_CLAIMED)
        found = find_skipped_slot(task, tx.now, windows, frozenset(claimed))
        if found is None:
            continue
        slot, due_at = found
        if task.fire_at is None:
            is_armed = tx.task_due.arm_if_ended(task, slot, due_at)
        else:
            [is_armed] = tx.task_due.advance_unchanged([Advance(task, slot, due_at, 0, "")])
        if is_armed:
            was = None if task.next_slot_at is None else format_instant(task.next_slot_at)
            data = {"slot": format_instant(slot), "was": was, "reason": "CLOCK_SET_BACK"}
            tx.events.append("TASK", task_id, "TASK_REARMED", data)
            armed.append(due_at)
    return armed
