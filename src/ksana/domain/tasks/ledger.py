"""What was expected of a task in a span of time, and what became of it. Pure.

The slots are worked out anew from the schedule as it was in force: the task's events tell when it
was made, changed, enabled, disabled and deleted. They are counted by arithmetic, never walked. What
happened is joined piece by piece: a piece of time lies within one schedule and one misfire, or
outside of both. Of every piece

    slots = fired + skipped, by reason + forgotten + missing

Forgotten are slots whose runs retention has removed. Missing are slots of which nothing is recorded
and nothing explains it: always 0, or there is a fault.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Final

import msgspec

from ksana.base.instant import Instant, Micros
from ksana.domain import schedule as schedules
from ksana.domain.explain import Fact
from ksana.domain.schedule import Once, Schedule
from ksana.domain.tasks.past_schedule import schedule_in_force
from ksana.domain.tasks.records import Task

_TURNS: Final = frozenset(
    {
        *("TASK_CREATED", "TASK_IMPORTED", "TASK_CHANGED"),
        *("TASK_ENABLED", "TASK_DISABLED", "TASK_DELETED"),
    }
)
"""Events after which other slots are expected."""

_MADE: Final = ("TASK_CREATED", "TASK_IMPORTED")
NEVER: Final[Instant] = 2**62
"""Later than every slot."""
_JITTERED: Final = 10_000
"""Slots looked at for one that its jitter put off beyond a change."""


class Stretch(msgspec.Struct, frozen=True):
    """A task was armed by one schedule: its slots later than `after`, up to `until`."""

    after: Instant
    until: Instant
    schedule: Schedule
    is_ended: bool = False
    """It had no slot left when the stretch ended: its last one is the last that is recorded."""


class MissedSpan(msgspec.Struct, frozen=True):
    """Slots from one to another that nobody was there for."""

    first: Instant
    last: Instant
    reason: str


class Piece(msgspec.Struct, frozen=True):
    """A piece of a window: the slots later than `after`, up to `until`."""

    after: Instant
    until: Instant
    schedule: Schedule | None
    """None: nothing was expected."""
    missed: str = ""
    """The reason of a misfire that covers it."""

    @property
    def slots(self) -> int:
        """How many slots the schedule has here."""
        if self.schedule is None:
            return 0
        return schedules.count_between(self.schedule, self.after, self.until)


class SlotCounts(msgspec.Struct, frozen=True):
    """What is recorded of the slots of a piece."""

    by_status: Mapping[str, int]
    """Runs that are not skipped, by their status."""
    skipped: Mapping[str, int]
    """Skipped ones by their reason."""
    rows: int
    last: Instant | None = None
    """The last slot that was counted, where counting ended before the piece did."""


class Sums(msgspec.Struct, frozen=True):
    """What became of the slots of a task."""

    expected: int
    fired: int
    by_status: dict[str, int]
    skipped: dict[str, int]
    forgotten: int
    pending: int
    unrecorded: int
    """Of which nothing is recorded, though the schedule is that of today and nothing of their age
    is removed yet. Runs beyond a task's `history_limit` are: how many it has fired tells."""


def list_stretches(task: Task, facts: Sequence[Fact], once_grace_us: Micros) -> list[Stretch]:
    """When the task was armed, from its events, oldest first. What was before the first of them is
    inferred from it."""
    turns = [fact for fact in facts if fact.type in _TURNS]
    is_enabled = _was_enabled(task, turns)
    chosen = schedule_in_force((), turns) or task.definition.schedule
    after = task.created_at - 1
    stretches: list[Stretch] = []
    for at, fact in enumerate(turns):
        if is_enabled and fact.type not in _MADE:
            until = _last_armed(chosen, task.job_id, fact.at)
            if until > after:
                is_ended = fact.data.get("ended") is True
                stretches.append(Stretch(after, until, chosen, is_ended))
        if fact.type not in _MADE:
            chosen = schedule_in_force((fact,), ()) or chosen
        is_enabled = _is_enabled_after(task, turns, at, is_enabled)
        after = fact.at
        if isinstance(chosen, Once) and sets_schedule(fact):
            after = max(stretches[-1].until if stretches else 0, after - once_grace_us - 1)
    if is_enabled and not task.is_deleted and task.status == "ENABLED":
        until = NEVER if task.next_slot_at is None else task.next_slot_at - 1
        if until > after:
            stretches.append(Stretch(after, until, chosen, task.next_slot_at is None))
    return stretches


def list_missed(facts: Iterable[Fact]) -> list[MissedSpan]:
    """The misfires among events, in the order of their slots, none over another."""
    found = []
    for fact in facts:
        if fact.type != "TASK_MISFIRED":
            continue
        first, last = fact.instant("first"), fact.instant("last")
        if first is not None and last is not None:
            found.append(MissedSpan(first, last, f"MISFIRE_{fact.data.get('policy')}"))
    apart: list[MissedSpan] = []
    for span in sorted(found, key=lambda one: (one.first, one.last)):
        first = span.first if not apart else max(span.first, apart[-1].last + 1)
        if first <= span.last:
            apart.append(msgspec.structs.replace(span, first=first))
    return apart


def close_ended(stretch: Stretch, newest: Instant | None, missed: Sequence[MissedSpan]) -> Stretch:
    """A stretch whose task had no slot left ends with the last slot that is recorded in it, as a
    run or as missed."""
    known = [span.last for span in missed if stretch.after < span.last <= stretch.until]
    last = max([stretch.after, *known, *([] if newest is None else [newest])])
    return msgspec.structs.replace(stretch, until=last)


def cut_pieces(
    stretches: Sequence[Stretch], missed: Sequence[MissedSpan], since: Instant, until: Instant
) -> list[Piece]:
    """Cut the slots from `since` to `until`, both included, at every change and every misfire."""
    edges = {since - 1, until}
    for stretch in stretches:
        edges |= {stretch.after, stretch.until}
    for span in missed:
        edges |= {span.first - 1, span.last}
    inside = sorted(edge for edge in edges if since - 1 <= edge <= until)
    pieces = []
    at = span_at = 0
    for after, end in pairwise(inside):
        while at < len(stretches) and stretches[at].until <= after:
            at += 1
        while span_at < len(missed) and missed[span_at].last <= after:
            span_at += 1
        armed = at < len(stretches) and stretches[at].after <= after
        is_missed = span_at < len(missed) and missed[span_at].first <= end
        chosen = stretches[at].schedule if armed else None
        pieces.append(Piece(after, end, chosen, missed[span_at].reason if is_missed else ""))
    return pieces


def count_pending(task: Task, since: Instant, until: Instant) -> int:
    """Slots that are not decided yet: due and about to be, or to come."""
    slot = task.next_slot_at
    if slot is None or task.fire_at is None or slot > until:
        return 0
    definition = task.definition
    count = schedules.count_between(definition.schedule, max(slot, since) - 1, until)
    if definition.options.max_runs is None:
        return count
    left = definition.options.max_runs - task.runs_fired
    earlier = schedules.count_between(definition.schedule, slot - 1, since - 1)
    return max(0, min(count, left - earlier))


def sum_up(
    pieces: Sequence[tuple[Piece, SlotCounts]],
    pending: int,
    kept_since: Instant,
    set_at: Instant = 0,
) -> Sums:
    """Join slots with what is recorded of them. Runs that ended before `kept_since` may be removed,
    and so may those from before the schedule was set at `set_at`."""
    by_status: Counter[str] = Counter()
    skipped: Counter[str] = Counter()
    expected = forgotten = unrecorded = 0
    for piece, counts in pieces:
        recorded = sum(counts.by_status.values()) + sum(counts.skipped.values())
        by_status.update(counts.by_status)
        skipped.update(counts.skipped)
        # A slot that has a run was expected, whatever the events still tell of that time.
        slots = max(piece.slots, recorded)
        expected += slots
        if slots == recorded:
            continue
        if piece.missed:
            skipped[piece.missed] += slots - recorded
        elif piece.until < kept_since or piece.until <= set_at:
            forgotten += slots - recorded
        else:
            unrecorded += slots - recorded
    fired = sum(by_status.values())
    return Sums(
        expected + pending, fired, dict(by_status), dict(skipped), forgotten, pending, unrecorded
    )


def cut_at(pieces: Sequence[Piece], kept_since: Instant) -> list[Piece]:
    """The pieces, cut where what is kept begins."""
    cut: list[Piece] = []
    for piece in pieces:
        if piece.after < kept_since - 1 < piece.until:
            cut.append(msgspec.structs.replace(piece, until=kept_since - 1))
            piece = msgspec.structs.replace(piece, after=kept_since - 1)
        cut.append(piece)
    return cut


def sets_schedule(fact: Fact) -> bool:
    """Whether the schedule was set with this event, so that what it fired is counted from there."""
    return fact.type in _MADE or fact.data.get("schedule_was") is not None


def is_making(fact: Fact) -> bool:
    """Whether the task was not there before this event."""
    return fact.type in _MADE


def is_turn(fact: Fact) -> bool:
    """Whether other slots are expected after this event."""
    return fact.type in _TURNS


def _last_armed(chosen: Schedule, task_key: str, at: Instant) -> Instant:
    """Up to which instant slots were fired or recorded when the task was changed: one that its
    jitter had put off beyond the change is no longer expected, nor those behind it."""
    if not chosen.jitter_us:
        return at
    slot = schedules.next_after(chosen, at - chosen.jitter_us - 1)
    for _ in range(_JITTERED):
        if slot is None or slot > at:
            break
        if schedules.fire_at(chosen, task_key, slot) > at:
            return slot - 1
        slot = schedules.next_after(chosen, slot)
    return at


def _is_enabled_after(task: Task, turns: Sequence[Fact], at: int, was: bool) -> bool:
    fact = turns[at]
    if fact.type == "TASK_IMPORTED":
        return _was_enabled(task, turns[at + 1 :])
    if fact.type in ("TASK_CREATED", "TASK_CHANGED"):
        status = fact.data.get("status")
        return was if status is None else status == "ENABLED"
    return fact.type == "TASK_ENABLED"


def _was_enabled(task: Task, turns: Sequence[Fact]) -> bool:
    """Whether the task was enabled before the first of these events."""
    for fact in turns:
        if fact.type in ("TASK_ENABLED", "TASK_DISABLED"):
            return fact.type == "TASK_DISABLED"
        if (status := fact.data.get("status")) is not None:
            return bool(status == "ENABLED")
    return task.status == "ENABLED"
