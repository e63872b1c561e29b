"""Pages of the event log over a table in memory: which events they show, where they end, where they
go on."""

import pytest

from ksana.base.clock import VirtualClock
from ksana.base.instant import HOUR, SECOND
from ksana.ports.pages import MAX_PAGE_BYTES
from ksana.service.core.events import (
    CLOCK_SLACK,
    EVERYTHING,
    SETTLE_US,
    EventFilter,
    EventLog,
    EventPage,
    EventSpan,
)
from tests.unit.events_ground import EventStore, an_event, ids_of

pytestmark = pytest.mark.spec("X11")


def make(clock: VirtualClock, *, sole: bool = True) -> tuple[EventStore, EventLog]:
    store = EventStore(clock, sole=sole)
    return store, EventLog(store, clock)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("wanted", "is_wanted"),
    [
        (EVERYTHING, True),
        (EventFilter(entity_type="JOB", entity_id="7", type="JOB_CREATED"), True),
        (EventFilter(entity_type="JOB"), True),
        (EventFilter(entity_id="7"), True),
        (EventFilter(type="JOB_CREATED"), True),
        (EventFilter(entity_type="LEASE", entity_id="7", type="JOB_CREATED"), False),
        (EventFilter(entity_type="JOB", entity_id="8", type="JOB_CREATED"), False),
        (EventFilter(entity_type="JOB", entity_id="7", type="JOB_ENDED"), False),
    ],
)
def test_an_event_is_wanted_if_all_that_is_named_is_its_own(
    wanted: EventFilter, is_wanted: bool
) -> None:
    assert wanted.matches(an_event(7)) is is_wanted


async def test_a_page_ends_at_its_limit_and_the_next_goes_on_after_its_last() -> None:
    store, log = make(VirtualClock())
    store.commit(1, 2, 3)
    page = await log.list_events(EVERYTHING, 0, 2)
    assert page == EventPage(events=[store.events.rows[1], store.events.rows[2]], next_after=2)
    assert await log.list_events(EVERYTHING, 2, 2) == EventPage([store.events.rows[3]], 3)
    assert await log.list_events(EVERYTHING, 3, 2) == EventPage([], 3)


@pytest.mark.spec("X13")
async def test_pages_for_callers_are_bounded_by_bytes_in_both_directions() -> None:
    store, log = make(VirtualClock())
    await log.list_events(EVERYTHING, 0, 5)
    await log.list_newest(EVERYTHING, None, 0, 5)
    assert [one["max_bytes"] for one in store.events.asked] == [MAX_PAGE_BYTES] * 2


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (EventFilter(entity_type="LEASE"), [2]),
        (EventFilter(entity_id="x"), [3]),
        (EventFilter(type="JOB_ENDED"), [4]),
    ],
)
async def test_a_page_is_filtered_in_both_directions(wanted: EventFilter, found: list[int]) -> None:
    store, log = make(VirtualClock())
    store.commit(1)
    store.commit(2, entity_type="LEASE")
    store.commit(3, entity_id="x")
    store.commit(4, type="JOB_ENDED")
    assert ids_of((await log.list_events(wanted, 0, 9)).events) == found
    assert ids_of((await log.list_newest(wanted, None, 0, 9)).events) == found


@pytest.mark.parametrize(
    ("before", "after", "limit", "shown", "next_after", "next_before"),
    [
        (None, 0, 2, [5, 4], 5, 4),
        (4, 0, 2, [3, 2], 3, 2),
        (2, 0, 2, [1], 1, None),
        (1, 0, 2, [], 0, None),
        (None, 3, 9, [5, 4], 5, None),
        (5, 3, 9, [4], 4, None),
        (None, 9, 9, [], 9, None),
    ],
)
async def test_from_the_newest_back_a_page_says_where_both_ways_go_on(
    before: int | None,
    after: int,
    limit: int,
    shown: list[int],
    next_after: int,
    next_before: int | None,
) -> None:
    store, log = make(VirtualClock())
    store.commit(1, 2, 3, 4, 5)
    page = await log.list_newest(EVERYTHING, before, after, limit)
    assert (ids_of(page.events), page.next_after) == (shown, next_after)
    assert page.next_before == next_before


async def test_a_page_that_was_cut_for_its_size_goes_on_though_it_is_short() -> None:
    store, log = make(VirtualClock())
    store.commit(1, 2, 3)
    store.events.most = 2
    page = await log.list_newest(EVERYTHING, None, 0, 9)
    assert (ids_of(page.events), page.next_before) == ([3, 2], 2)
    page = await log.list_newest(EVERYTHING, 2, 0, 9)
    assert (ids_of(page.events), page.next_before) == ([1], None)


async def test_a_span_is_read_between_its_ids_with_room_for_a_clock_that_was_set() -> None:
    clock = VirtualClock()
    store, log = make(clock)
    start = clock.now()
    for event_id in range(1, 7):
        store.commit(event_id)
        await clock.advance(HOUR)
    span = EventSpan(start + HOUR + CLOCK_SLACK, start + 3 * HOUR)
    assert ids_of((await log.list_events(EVERYTHING, 0, 9, span)).events) == [3]
    assert ids_of((await log.list_newest(EVERYTHING, None, 0, 9, span)).events) == [3]
    # What lies within the slack around the span is looked through too.
    bounds = [(one["after"], one["before"]) for one in store.events.asked]
    assert bounds == [(1, 5), (1, 5)]
    assert ids_of((await log.list_events(EVERYTHING, 3, 9, EventSpan(start, None))).events) == [
        4,
        5,
        6,
    ]
    assert ids_of((await log.list_events(EVERYTHING, 0, 9, EventSpan(None, start + 1))).events) == [
        1
    ]


async def test_from_the_newest_back_the_nearer_of_place_and_span_is_the_end() -> None:
    clock = VirtualClock()
    store, log = make(clock)
    start = clock.now()
    for event_id in range(1, 7):
        store.commit(event_id)
        await clock.advance(HOUR)
    span = EventSpan(None, start + 4 * HOUR)
    for before, expected in ((None, [4, 3, 2, 1]), (3, [2, 1]), (9, [4, 3, 2, 1])):
        found = await log.list_newest(EVERYTHING, before, 0, 9, span)
        assert ids_of(found.events) == expected
    assert [one["before"] for one in store.events.asked] == [6, 3, 6]


async def test_an_event_out_of_the_order_of_time_is_found_in_its_span() -> None:
    """A clock was set back by less than the slack between two events."""
    clock = VirtualClock()
    store, log = make(clock)
    start = clock.now()
    store.events.rows[1] = an_event(1, start + CLOCK_SLACK - SECOND)
    store.events.rows[2] = an_event(2, start)
    store.events.rows[3] = an_event(3, start + CLOCK_SLACK)
    span = EventSpan(start, start + SECOND)
    assert ids_of((await log.list_events(EVERYTHING, 0, 9, span)).events) == [2]
    span = EventSpan(start + CLOCK_SLACK - SECOND, None)
    assert ids_of((await log.list_events(EVERYTHING, 0, 9, span)).events) == [1, 3]


NARROW = EventFilter(entity_type="JOB")


@pytest.mark.spec("X4")
@pytest.mark.parametrize("wanted", [EVERYTHING, NARROW], ids=["everything", "filtered"])
async def test_a_page_ends_before_a_gap_that_may_still_be_filled(wanted: EventFilter) -> None:
    clock = VirtualClock()
    store, log = make(clock, sole=False)
    store.commit(1, 2, 4)
    page = await log.list_events(wanted, 0, 9)
    assert (ids_of(page.events), page.next_after) == ([1, 2], 2)
    assert ids_of((await log.list_events(wanted, 2, 9)).events) == []
    await clock.advance(SETTLE_US - 1)
    assert ids_of((await log.list_events(wanted, 0, 9)).events) == [1, 2]
    await clock.advance(1)
    assert ids_of((await log.list_events(wanted, 0, 9)).events) == [1, 2, 4]


@pytest.mark.spec("X4")
async def test_a_gap_behind_old_events_is_waited_for_all_the_same() -> None:
    clock = VirtualClock()
    store, log = make(clock, sole=False)
    store.commit(1)
    await clock.advance(SETTLE_US + SECOND)
    store.commit(3)
    assert ids_of((await log.list_events(EVERYTHING, 0, 9)).events) == [1]


@pytest.mark.spec("X4")
@pytest.mark.parametrize("is_span", [False, True], ids=["filtered", "a span"])
async def test_what_a_filter_or_a_span_leaves_out_is_no_gap(is_span: bool) -> None:
    clock = VirtualClock()
    store, log = make(clock, sole=False)
    store.commit(1)
    store.commit(2, entity_type="LEASE")
    store.commit(3)
    if not is_span:
        assert ids_of((await log.list_events(NARROW, 0, 9)).events) == [1, 3]
        return
    store.events.rows[2] = an_event(2, clock.now() - SECOND)  # by a clock that was set
    span = EventSpan(clock.now(), None)
    assert ids_of((await log.list_events(EVERYTHING, 0, 9, span)).events) == [1, 3]


@pytest.mark.spec("X4")
async def test_a_gap_before_where_the_reader_stands_keeps_nothing_back() -> None:
    store, log = make(VirtualClock(), sole=False)
    store.commit(1, 3, 4)
    assert ids_of((await log.list_events(EVERYTHING, 3, 9)).events) == [4]


async def test_a_page_of_a_span_ends_before_a_gap_too() -> None:
    clock = VirtualClock()
    store, log = make(clock, sole=False)
    store.commit(1, 2, 4)
    span = EventSpan(clock.now(), None)
    assert ids_of((await log.list_events(EVERYTHING, 0, 9, span)).events) == [1, 2]


async def test_where_nobody_else_writes_a_gap_is_no_reason_to_wait() -> None:
    store, log = make(VirtualClock())
    store.commit(1, 2, 4)
    assert ids_of((await log.list_events(EVERYTHING, 0, 9)).events) == [1, 2, 4]
    assert ids_of((await log.list_events(NARROW, 0, 9)).events) == [1, 2, 4]


async def test_from_the_newest_back_all_that_is_committed_is_shown() -> None:
    store, log = make(VirtualClock(), sole=False)
    store.commit(1, 2, 4)
    assert ids_of((await log.list_newest(EVERYTHING, None, 0, 9)).events) == [4, 2, 1]
