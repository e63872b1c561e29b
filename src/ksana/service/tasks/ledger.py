"""The ledger: expected, fired, skipped, forgotten, pending, missing, for one task or a page of all.

A page costs a bounded number of rows, however long the window and the history: it ends early, with
the place to go on from, which may lie in the midst of a task's window.
"""

from typing import Final, NamedTuple

import msgspec

from ksana.base.errors import NotFoundError
from ksana.base.instant import Instant, Micros
from ksana.domain.explain import Fact
from ksana.domain.tasks import ledger
from ksana.domain.tasks.ledger import Piece, SlotCounts, Sums
from ksana.domain.tasks.records import Task
from ksana.ports.store import Store
from ksana.ports.tasks.ledger import LedgerTx

MAX_FACTS: Final = 1_000
"""Events of one task that are read at once. Where there are more, its window is cut."""
FACTS_BEFORE: Final = 100
PAGES_BACK: Final = 10
"""How far back the state of a task at the start of a window is looked for."""
ROWS: Final = 20_000
"""Runs that one page looks at."""
TASKS_LOOKED_AT: Final = 2_000
"""Tasks that one page looks at; those deleted before the window are passed over."""


class LedgerPlace(NamedTuple):
    """Where to go on: with the tasks after one, or with the rest of the window of that one."""

    task_id: int
    since: Instant | None


class LedgerEntry(msgspec.Struct, frozen=True):
    """One task and the part of the window that was counted: from `since` to before `until`."""

    task: Task
    since: Instant
    until: Instant
    known_since: Instant | None
    """What the task was before is not known any more, and not counted."""
    sums: Sums
    forgotten: int
    missing: int


class LedgerPage(msgspec.Struct, frozen=True):
    """Some entries, and where to go on."""

    entries: list[LedgerEntry]
    next_place: LedgerPlace | None


class LedgerService:
    """Answers what became of the slots of tasks."""

    def __init__(self, store: Store, kept_us: Micros, once_grace_us: Micros) -> None:
        self._store = store
        self._kept_us = kept_us
        self._once_grace_us = once_grace_us

    async def list_page(
        self,
        since: Instant,
        until: Instant,
        *,
        task_id: int | None = None,
        after: LedgerPlace | None = None,
        limit: int = 50,
    ) -> LedgerPage:
        """The ledger of the slots from `since` to before `until`, of one task or of all by id."""
        return await self._store.read_list(
            read_ledger,
            Window(since, until, self._kept_us, self._once_grace_us),
            task_id,
            after,
            limit,
        )


class Window(NamedTuple):
    """What is asked, and what holds here."""

    since: Instant
    until: Instant
    kept_us: Micros
    """How long finished runs are kept."""
    once_grace_us: Micros


def read_ledger(
    tx: LedgerTx, window: Window, task_id: int | None, after: LedgerPlace | None, limit: int
) -> LedgerPage:
    """One page."""
    if task_id is not None:
        ids = [task_id]
        if tx.tasks.find(task_id) is None:
            raise NotFoundError(f"no task has the id {task_id}")
    elif after is not None and after.since is not None:
        ids = [after.task_id, *tx.slot_ledger.list_task_ids(after.task_id, TASKS_LOOKED_AT)]
    else:
        ids = tx.slot_ledger.list_task_ids(after.task_id if after else 0, TASKS_LOOKED_AT)
    entries: list[LedgerEntry] = []
    rows = ROWS
    filled: set[int] | None = None
    for one in ids:
        begun = after.since if after is not None and after.task_id == one else None
        task = tx.tasks.find(one)
        if task is None:
            continue
        if _is_outside(task, window):
            if filled is None:  # a backfill may have fired slots from before the task was made
                filled = tx.slot_ledger.list_filled(ids, window.since - 1, window.until - 1)
            if one not in filled:
                continue
        entry, looked = _read_entry(tx, task, window, begun or window.since, rows)
        entries.append(entry)
        rows -= looked
        if entry.until < window.until:
            return LedgerPage(entries, LedgerPlace(one, entry.until))
        if (len(entries) >= limit or rows <= 0) and one != ids[-1]:
            return LedgerPage(entries, LedgerPlace(one, None))
    is_end = task_id is not None or len(ids) < TASKS_LOOKED_AT
    return LedgerPage(entries, None if is_end else LedgerPlace(ids[-1], None))


def _is_outside(task: Task, window: Window) -> bool:
    """Whether the task was not there in the window."""
    is_gone = task.is_deleted and task.updated_at < window.since
    return is_gone or task.created_at - window.once_grace_us >= window.until


def _read_entry(
    tx: LedgerTx, task: Task, window: Window, since: Instant, rows: int
) -> tuple[LedgerEntry, int]:
    facts, known_since, cut = _read_facts(tx, task, since)
    until = window.until if cut is None else min(window.until, max(cut, since + 1))
    counted_from = since if known_since is None else min(max(since, known_since), until)
    missed = ledger.list_missed(facts)
    stretches = [
        ledger.close_ended(
            stretch,
            tx.slot_ledger.find_newest_slot(task.id, stretch.after, stretch.until),
            missed,
        )
        if stretch.is_ended
        else stretch
        for stretch in ledger.list_stretches(task, facts, window.once_grace_us)
    ]
    kept_since = tx.now - window.kept_us
    pieces = ledger.cut_at(
        ledger.cut_pieces(stretches, missed, counted_from, until - 1), kept_since
    )
    counted, looked, last = _count(tx, task.id, pieces, rows)
    if last is not None:
        until = last + 1
    pending = ledger.count_pending(task, since, until - 1)
    sums = ledger.sum_up(counted, pending, kept_since)
    missing = 0
    if sums.unrecorded:
        sums, missing = _look_for_missing(tx, task, counted, pending, window)
    forgotten = sums.forgotten + sums.unrecorded - missing
    entry = LedgerEntry(task, since, until, known_since, sums, forgotten, missing)
    return entry, looked


def _read_facts(
    tx: LedgerTx, task: Task, since: Instant
) -> tuple[list[Fact], Instant | None, Instant | None]:
    """The task's events from the last before `since` that tells its state, oldest first; since when
    it is known, if not for all that is asked; and where there are too many, how far they reach."""
    history = tx.history
    start = history.find_event_id_at(since - 1)
    before = history.list_events_down("TASK", task.id, start, FACTS_BEFORE)
    page = before
    for _ in range(PAGES_BACK):
        if len(page) < FACTS_BEFORE or any(ledger.is_turn(fact) for fact in before):
            break
        page = history.list_events_down("TASK", task.id, page[-1].id - 1, FACTS_BEFORE)
        before = [*before, *page]
    after = history.list_events_up("TASK", task.id, start, MAX_FACTS)
    cut = after[MAX_FACTS // 2].at if len(after) >= MAX_FACTS else None
    first = next((fact for fact in after if ledger.is_turn(fact)), None)
    is_made_after = first is not None and ledger.is_making(first)
    is_known = task.version == 1 or is_made_after or any(map(ledger.is_turn, before))
    known_since = None
    if not is_known:
        oldest = tx.events.list_after(0, 1)
        known_since = oldest[0].ts if oldest else tx.now
        known_since = None if known_since <= since else known_since
    return [*reversed(before), *after], known_since, cut


def _count(
    tx: LedgerTx, task_id: int, pieces: list[Piece], rows: int
) -> tuple[list[tuple[Piece, SlotCounts]], int, Instant | None]:
    """What is recorded of each piece; how many rows that took; and the last slot that was counted,
    if there were more."""
    counted: list[tuple[Piece, SlotCounts]] = []
    looked = 0
    for piece in pieces:
        counts = tx.slot_ledger.count_slots(
            task_id, piece.after, piece.until, max(1, rows - looked)
        )
        looked += counts.rows
        if counts.last is not None and counts.last < piece.until:
            counted.append((msgspec.structs.replace(piece, until=counts.last), counts))
            return counted, looked, counts.last
        counted.append((piece, counts))
    return counted, looked, None


def _look_for_missing(
    tx: LedgerTx,
    task: Task,
    counted: list[tuple[Piece, SlotCounts]],
    pending: int,
    window: Window,
) -> tuple[Sums, int]:
    """Tell removed runs from slots of which there never was one: a task knows how many it has fired
    since its schedule was set."""
    kept_since = tx.now - window.kept_us
    set_at = _find_set_at(tx, task)
    sums = ledger.sum_up(counted, pending, kept_since, tx.now if set_at is None else set_at)
    if not sums.unrecorded or set_at is None:
        return sums, 0
    fired = tx.slot_ledger.count_fired(task.id, set_at - window.once_grace_us - 1, ROWS)
    removed = task.runs_fired - fired
    return sums, 0 if fired >= ROWS else max(0, sums.unrecorded - max(0, removed))


def _find_set_at(tx: LedgerTx, task: Task) -> Instant | None:
    """When the schedule of today was set; None: that is no longer known."""
    if task.version == 1:
        return task.created_at
    upto = 2**62
    for _ in range(PAGES_BACK):
        page = tx.history.list_events_down("TASK", task.id, upto, FACTS_BEFORE)
        for fact in page:
            if ledger.sets_schedule(fact):
                return fact.at
        if len(page) < FACTS_BEFORE:
            break
        upto = page[-1].id - 1
    return None
