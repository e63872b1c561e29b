"""The ledger of slots: what was expected of a task, and what became of it, by arithmetic."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ksana.base.instant import SECOND, Instant, format_instant
from ksana.domain import schedule as schedules
from ksana.domain.explain import Fact
from ksana.domain.schedule import Every, Once
from ksana.domain.tasks.ledger import (
    NEVER,
    MissedSpan,
    Piece,
    SlotCounts,
    Stretch,
    Sums,
    close_ended,
    count_pending,
    cut_at,
    cut_pieces,
    is_making,
    is_turn,
    list_missed,
    list_stretches,
    sets_schedule,
    sum_up,
)
from tests.unit.task_ground import EVERY_TEN, NOW, a_task

pytestmark = pytest.mark.spec("C10", "B1")

TEN = 10 * SECOND
GRACE = 5
OTHER = Every(7 * SECOND, 0, False)
AS_DATA = {"kind": "every", "every_us": 7 * SECOND, "anchor_at": 0, "anchor_given": False}
WAS = {"kind": "every", "every_us": 10 * SECOND, "anchor_at": 0, "anchor_given": False}


def fact(kind: str, at: Instant = NOW, **data: Any) -> Fact:
    return Fact(id=1, at=at, type=kind, data=data)


MADE = fact("TASK_CREATED", NOW - 100, status="ENABLED")


def stretches(*facts: Fact, **task: Any) -> list[Stretch]:
    given = {"created_at": NOW - 100, "next_slot_at": NOW + TEN, **task}
    schedule = given.pop("schedule", EVERY_TEN)
    return list_stretches(a_task(schedule, **given), facts, GRACE)


OPEN = Stretch(NOW - 101, NOW + TEN - 1, EVERY_TEN)


def test_a_task_is_armed_from_its_making_to_its_next_slot() -> None:
    assert stretches() == [OPEN]
    assert stretches(MADE) == [Stretch(NOW - 100, NOW + TEN - 1, EVERY_TEN)]
    assert stretches(fact("OTHER", NOW - 9)) == [OPEN]
    ended = stretches(next_slot_at=None, fire_at=None)
    assert ended == [Stretch(NOW - 101, NEVER, EVERY_TEN, True)]
    assert stretches(status="DISABLED") == []
    assert stretches(is_deleted=True) == []
    assert stretches(created_at=NOW + TEN + 1) == []
    assert stretches(created_at=NOW + TEN) == [], "no slot lies in it"


def test_while_it_is_disabled_nothing_is_expected() -> None:
    off, on = fact("TASK_DISABLED", NOW - 50), fact("TASK_ENABLED", NOW - 20)
    assert stretches(MADE, off, status="DISABLED") == [Stretch(NOW - 100, NOW - 50, EVERY_TEN)]
    assert stretches(MADE, off, on) == [
        Stretch(NOW - 100, NOW - 50, EVERY_TEN),
        Stretch(NOW - 20, NOW + TEN - 1, EVERY_TEN),
    ]
    assert stretches(on) == [Stretch(NOW - 20, NOW + TEN - 1, EVERY_TEN)], "it was off before"
    assert stretches(off, status="DISABLED") == [Stretch(NOW - 101, NOW - 50, EVERY_TEN)]
    gone = fact("TASK_DELETED", NOW - 30)
    assert stretches(MADE, gone, is_deleted=True) == [Stretch(NOW - 100, NOW - 30, EVERY_TEN)]
    changed = fact("TASK_CHANGED", NOW - 50, status="DISABLED")
    assert stretches(MADE, changed, status="DISABLED") == [Stretch(NOW - 100, NOW - 50, EVERY_TEN)]
    born_off = fact("TASK_CREATED", NOW - 100, status="DISABLED")
    assert stretches(born_off, on) == [Stretch(NOW - 20, NOW + TEN - 1, EVERY_TEN)]
    silent = fact("TASK_CHANGED", NOW - 50)
    assert len(stretches(MADE, silent)) == 2
    assert len(stretches(MADE, silent, silent)) == 2, "nothing lies between them"
    assert stretches(MADE, changed, on) == [
        Stretch(NOW - 100, NOW - 50, EVERY_TEN),
        Stretch(NOW - 20, NOW + TEN - 1, EVERY_TEN),
    ]
    assert stretches(changed) == [], "what it says of itself counts, not what is so today"
    kept_on = fact("TASK_CHANGED", NOW - 50, status="ENABLED")
    assert stretches(kept_on, status="DISABLED") == [Stretch(NOW - 101, NOW - 50, EVERY_TEN)]
    imported = fact("TASK_IMPORTED", NOW - 70)
    assert stretches(imported, off, on)[0] == Stretch(NOW - 70, NOW - 50, EVERY_TEN)
    assert stretches(imported, on)[0].after == NOW - 20, "it was imported disabled"


def test_a_change_of_schedule_ends_one_stretch_and_begins_another() -> None:
    changed = fact("TASK_CHANGED", NOW - 50, schedule=AS_DATA, schedule_was=WAS)
    assert stretches(MADE, changed, schedule=OTHER) == [
        Stretch(NOW - 100, NOW - 50, EVERY_TEN),
        Stretch(NOW - 50, NOW + TEN - 1, OTHER),
    ]
    over = fact("TASK_CHANGED", NOW - 50, ended=True)
    assert stretches(MADE, over)[0] == Stretch(NOW - 100, NOW - 50, EVERY_TEN, True)
    assert stretches(MADE, fact("TASK_CHANGED", NOW - 50, ended=1))[0].is_ended is False


def test_a_one_time_slot_may_lie_a_little_before_it_was_set() -> None:
    once = Once(NOW - 3)
    data = {"kind": "once", "run_at": NOW - 3}
    made = fact("TASK_CREATED", NOW, status="ENABLED", schedule=data)
    [only] = stretches(made, schedule=once, created_at=NOW, next_slot_at=None, fire_at=None)
    assert only.after == NOW - GRACE - 1
    changed = fact("TASK_CHANGED", NOW, schedule=data, schedule_was=WAS)
    [before, after] = stretches(MADE, changed, schedule=once, next_slot_at=None, fire_at=None)
    assert (before.until, after.after) == (NOW, NOW), "no slot is expected twice"
    earlier = fact("TASK_CHANGED", NOW - 50, schedule=AS_DATA, schedule_was=WAS)
    three = stretches(MADE, earlier, changed, schedule=once, next_slot_at=None, fire_at=None)
    assert [one.after for one in three] == [NOW - 100, NOW - 50, NOW]
    other = fact("TASK_CHANGED", NOW)
    assert stretches(other, schedule=once, next_slot_at=None)[-1].after == NOW


def test_a_slot_that_its_jitter_put_off_beyond_a_change_is_not_expected() -> None:
    jittered = Every(TEN, 0, False, jitter_us=9 * SECOND)
    for second in range(60):
        at = NOW + second * SECOND
        off = fact("TASK_DISABLED", at)
        [stretch] = stretches(MADE, off, schedule=jittered, status="DISABLED")
        fired = [
            slot for slot in range(NOW, at + 1, TEN) if schedules.fire_at(jittered, "j", slot) <= at
        ]
        open_ = [slot for slot in range(NOW, at + 1, TEN) if slot not in fired]
        assert all(slot <= stretch.until for slot in fired if not open_ or slot < min(open_))
        assert all(slot > stretch.until for slot in open_)
        assert stretch.until == (min(open_) - 1 if open_ else at)


def test_a_slot_that_fires_with_a_change_is_expected_and_one_right_after_it_is_not() -> None:
    every_second = Every(SECOND, 0, False, jitter_us=1)
    put_off = next(
        slot
        for slot in range(NOW, NOW + 100 * SECOND, SECOND)
        if schedules.fire_at(every_second, "j", slot) == slot + 1
    )
    for at, until in ((put_off, put_off - 1), (put_off + 1, put_off + 1)):
        off = fact("TASK_DISABLED", at)
        [stretch] = stretches(MADE, off, schedule=every_second, status="DISABLED")
        assert stretch.until == until


def missed(first: Instant | None, last: Instant | None, policy: str = "SKIP") -> Fact:
    shown = {"first": first, "last": last}
    data = {name: format_instant(at) for name, at in shown.items() if at is not None}
    return fact("TASK_MISFIRED", policy=policy, **data)


def test_misfires_are_in_order_and_none_lies_over_another() -> None:
    found = list_missed(
        [
            missed(NOW + 50, NOW + 60, "FIRE_NOW"),
            missed(NOW, NOW + 20),
            missed(NOW + 10, NOW + 30),
            missed(NOW + 5, NOW + 15),
            missed(NOW + 25, NOW + 35),
            missed(NOW, None),
            missed(None, NOW),
            fact("OTHER", first=format_instant(NOW), last=format_instant(NOW)),
        ]
    )
    assert found == [
        MissedSpan(NOW, NOW + 20, "MISFIRE_SKIP"),
        MissedSpan(NOW + 21, NOW + 30, "MISFIRE_SKIP"),
        MissedSpan(NOW + 31, NOW + 35, "MISFIRE_SKIP"),
        MissedSpan(NOW + 50, NOW + 60, "MISFIRE_FIRE_NOW"),
    ]
    edge = list_missed([missed(NOW, NOW), missed(NOW + 1, NOW + 1)])
    assert [(one.first, one.last) for one in edge] == [(NOW, NOW), (NOW + 1, NOW + 1)]


@pytest.mark.parametrize(
    ("newest", "spans", "until"),
    [
        (None, [], 10),
        (15, [], 15),
        (5, [], 10),
        (None, [MissedSpan(11, 17, "")], 17),
        (18, [MissedSpan(11, 17, "")], 18),
        (None, [MissedSpan(5, 10, ""), MissedSpan(15, 20, ""), MissedSpan(20, 21, "")], 20),
    ],
)
def test_a_task_without_a_slot_left_ends_with_the_last_that_is_recorded(
    newest: int | None, spans: list[MissedSpan], until: int
) -> None:
    stretch = Stretch(10, 20, EVERY_TEN, True)
    assert close_ended(stretch, newest, spans) == Stretch(10, until, EVERY_TEN, True)


@given(
    st.lists(st.integers(0, 60), unique=True, max_size=8).map(sorted),
    st.lists(st.integers(0, 60), unique=True, max_size=8).map(sorted),
    st.integers(0, 60),
    st.integers(0, 60),
)
def test_pieces_tell_of_every_instant_what_holds_there(
    turns: list[int], misses: list[int], since: int, until: int
) -> None:
    armed = [
        Stretch(after, end, OTHER if n % 2 else EVERY_TEN)
        for n, (after, end) in enumerate(zip(turns[::2], turns[1::2], strict=False))
    ]
    spans = [
        MissedSpan(first, last - 1, f"M{first}")
        for first, last in zip(misses[::2], misses[1::2], strict=False)
    ]
    pieces = cut_pieces(armed, spans, since, until)
    for at in range(since, until + 1):
        [piece] = [one for one in pieces if one.after < at <= one.until]
        stretch = next((one for one in armed if one.after < at <= one.until), None)
        span = next((one for one in spans if one.first <= at <= one.last), None)
        assert piece.schedule == (stretch.schedule if stretch else None)
        assert piece.missed == (span.reason if span else "")
    assert [one.after for one in pieces[1:]] == [one.until for one in pieces[:-1]]


def test_pieces_begin_where_they_are_asked_for() -> None:
    stretch = Stretch(8, 20, EVERY_TEN)
    assert cut_pieces([stretch], [], 10, 15) == [Piece(9, 15, EVERY_TEN)]


def test_a_piece_counts_its_slots() -> None:
    assert Piece(NOW - 1, NOW + TEN, EVERY_TEN).slots == 2
    assert Piece(NOW, NOW + TEN - 1, EVERY_TEN).slots == 0
    assert Piece(NOW - 1, NOW + TEN, None).slots == 0


def test_pieces_are_cut_where_what_is_kept_begins() -> None:
    piece = Piece(10, 20, EVERY_TEN, "m")
    assert cut_at([piece], 16) == [Piece(10, 15, EVERY_TEN, "m"), Piece(15, 20, EVERY_TEN, "m")]
    for edge in (11, 21, 5, 30):
        assert cut_at([piece], edge) == [piece]
    assert len(cut_at([piece], 12)) == len(cut_at([piece], 20)) == 2


@pytest.mark.parametrize(
    ("task", "since", "until", "count"),
    [
        ({}, NOW, NOW, 1),
        ({}, NOW - TEN, NOW + TEN, 2),
        ({}, NOW + 1, NOW + 2 * TEN, 2),
        ({}, NOW, NOW - 1, 0),
        ({"next_slot_at": None}, NOW, NOW + TEN, 0),
        ({"fire_at": None}, NOW, NOW + TEN, 0),
        ({"max_runs": 5, "runs_fired": 3}, NOW, NOW + 9 * TEN, 2),
        ({"max_runs": 5, "runs_fired": 3}, NOW + 1, NOW + 9 * TEN, 1),
        ({"max_runs": 5, "runs_fired": 3}, NOW + TEN, NOW + 9 * TEN, 1),
        ({"max_runs": 5, "runs_fired": 3}, NOW + 3 * TEN, NOW + 9 * TEN, 0),
        ({"max_runs": 50}, NOW, NOW + 9 * TEN, 10),
    ],
)
def test_slots_that_are_not_decided_are_pending(
    task: dict[str, Any], since: int, until: int, count: int
) -> None:
    assert count_pending(a_task(**task), since, until) == count


def counts(rows: int = 0, **skipped: int) -> SlotCounts:
    return SlotCounts({"SUCCESS": rows} if rows else {}, skipped, rows + sum(skipped.values()))


def test_slots_are_joined_with_what_is_recorded_of_them() -> None:
    four = Piece(NOW - 1, NOW + 3 * TEN, EVERY_TEN)
    gone = Piece(NOW - 1, NOW + 3 * TEN, EVERY_TEN, "MISFIRE_SKIP")
    assert sum_up([(four, counts(3, LIMIT=1))], 2, 0) == Sums(
        6, 3, {"SUCCESS": 3}, {"LIMIT": 1}, 0, 2, 0
    )
    assert sum_up([(gone, counts(1))], 0, 0).skipped == {"MISFIRE_SKIP": 3}
    assert sum_up([(four, counts(1))], 0, 0).unrecorded == 3
    kept = four.until
    assert sum_up([(four, counts(1))], 0, kept).unrecorded == 3
    assert sum_up([(four, counts(1))], 0, kept + 1).forgotten == 3
    assert sum_up([(four, counts(1))], 0, 0, kept).forgotten == 3
    assert sum_up([(four, counts(1))], 0, 0, kept - 1).unrecorded == 3
    more = sum_up([(four, counts(5))], 0, 0)
    assert (more.expected, more.fired, more.unrecorded) == (5, 5, 0)
    both = sum_up([(four, counts(4)), (gone, counts(0, LIMIT=1))], 0, 0)
    assert both == Sums(8, 4, {"SUCCESS": 4}, {"LIMIT": 1, "MISFIRE_SKIP": 3}, 0, 0, 0)
    rest = sum_up([(four, counts(4)), (four, counts(3))], 0, 0)
    assert (rest.expected, rest.unrecorded) == (8, 1)
    assert sum_up([(four, counts(1)), (four, counts(2))], 0, kept + 1).forgotten == 5
    assert sum_up([(four, counts(1)), (four, counts(2))], 0, 0).unrecorded == 5


def test_events_are_told_apart() -> None:
    kinds = ("TASK_CREATED", "TASK_IMPORTED", "TASK_CHANGED", "TASK_DELETED", "OTHER")
    assert [is_making(fact(kind)) for kind in kinds] == [True, True, False, False, False]
    assert [is_turn(fact(kind)) for kind in kinds] == [True, True, True, True, False]
    assert [sets_schedule(fact(kind)) for kind in kinds] == [True, True, False, False, False]
    assert sets_schedule(fact("TASK_CHANGED", schedule_was=WAS))
