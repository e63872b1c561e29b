"""A timetable over one jump of a clock, under every choice of its rules, against a walk through
real time: the next slot, the latest, and how many."""

from datetime import UTC, datetime

import pytest

from ksana.domain.timetable import get_timetable
from tests.properties.cron_walk import Walk, load_zone

pytestmark = pytest.mark.spec("C7", "X5")

FORWARD = int(datetime(2026, 3, 29, 1, tzinfo=UTC).timestamp())
BACK = int(datetime(2026, 10, 25, 1, tzinfo=UTC).timestamp())
EXPRESSIONS = ("30 2 * * *", "*/20 * * * *", "0 3 * * *", "15 1-3 * * *", "7 7 7 * * *")
WALKS = {at: Walk(load_zone("Europe/Berlin"), at, 60, reach=5 * 3600) for at in (FORWARD, BACK)}


@pytest.mark.parametrize("expr", EXPRESSIONS)
@pytest.mark.parametrize("jump", [FORWARD, BACK], ids=["forward", "back"])
@pytest.mark.parametrize("overlap", ["first", "second", "both", None])
@pytest.mark.parametrize("gap", ["next", "skip", "shift", None])
def test_slots_about_a_jump_are_those_of_a_walk(
    expr: str, jump: int, gap: str | None, overlap: str | None
) -> None:
    walk = WALKS[jump]
    slots = walk.slots(expr, gap, overlap)
    get_timetable.cache_clear()
    table = get_timetable(expr, "Europe/Berlin", gap, overlap)  # type: ignore[arg-type]
    found, at = [], walk.start - 1
    while (slot := table.next_after(at)) is not None and slot <= walk.end:
        found.append(slot)
        at = slot
    assert found == slots
    back, at = [], walk.end
    while (before := table.latest_at_or_before(at)) is not None and before >= walk.start:
        back.append(before)
        at = before - 1
    assert back[::-1] == slots
    edges = sorted({walk.start, jump - 1, jump, jump + 3600, walk.end, *slots})
    for low in edges:
        for high in edges:
            expected = sum(low < slot <= high for slot in slots)
            assert table.count_between(low, high) == expected
