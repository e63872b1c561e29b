"""`H` in cron expressions, and who is told to use it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ksana.base.errors import InvalidError
from ksana.domain.cron import parse_cron
from ksana.domain.cron_spread import resolve_spread
from ksana.domain.schedule import make_cron, make_every
from ksana.domain.tasks import spreading
from ksana.domain.tasks.forecast import ArmedTask
from ksana.domain.tasks.spreading import SpreadCensus

pytestmark = pytest.mark.spec("B8")


def armed(number: int, expr: str = "0 0 3 * * *", host: str = "h") -> ArmedTask:
    return ArmedTask(number, f"j{number}", f"task {number}", make_cron(expr), host, 0, None)


@given(st.text(max_size=40))
def test_a_name_always_gets_the_same_place_within_the_field(name: str) -> None:
    for expr in ("H H H H H H", "H * * * *", "H(10-20) H(0-7) * * MON-FRI", "H/15 * * * *"):
        resolved = resolve_spread(expr, name)
        assert resolved == resolve_spread(expr, name)
        assert "H" not in resolved.replace("THU", "")
        parse_cron(resolved)  # it is a plain expression
    minute, hour = resolve_spread("H(10-20) H(0-7) * * *", name).split()[1:3]
    assert 10 <= int(minute) <= 20
    assert 0 <= int(hour) <= 7
    day = int(resolve_spread("0 0 H * *", name).split()[3])
    assert 1 <= day <= 28


def test_a_name_keeps_its_place_from_version_to_version() -> None:
    """Who sets a schedule again with the same name finds the times it had."""
    assert resolve_spread("H H H H H H", "report") == "47 4 11 12 8 6"
    assert resolve_spread("H H H H H H", "invoices") == "9 43 9 26 7 4"
    assert resolve_spread("H/15 H(8-17)/3 * * *", "report") == "0 4-59/15 10-17/3 * * *"


def test_it_may_stand_in_a_list() -> None:
    assert resolve_spread("H(0-5),30,H(40-45) * * * *", "report") == "0 4,30,44 * * * *"


def test_many_names_are_spread_over_the_field() -> None:
    minutes = [int(resolve_spread("H * * * *", f"task {n}").split()[1]) for n in range(6_000)]
    counts = [minutes.count(minute) for minute in range(60)]
    assert min(counts) > 50
    assert max(counts) < 170
    # The places in two fields of one task do not hang together.
    pairs = {resolve_spread("H H * * * *", f"task {n}")[:5] for n in range(3_000)}
    assert len(pairs) > 1_500


def test_a_step_begins_below_itself_and_goes_to_the_end() -> None:
    resolved = resolve_spread("H/15 * * * *", "a")
    slots = sorted(
        minute for minute in range(60) if parse_cron(resolved).fields.minutes >> minute & 1
    )
    assert len(slots) == 4
    assert slots[0] < 15
    assert [later - slots[0] for later in slots] == [0, 15, 30, 45]
    assert resolve_spread("H(30-59)/10 * * * *", "a").split()[1].endswith("-59/10")


def test_an_expression_without_it_is_left_as_it_is() -> None:
    for expr in ("0 0 * * THU", "@hourly", "0 0 1 MAR *", "not cron at all", ""):
        assert resolve_spread(expr, "x") == expr


@pytest.mark.parametrize(
    "expr",
    [
        "H(5-2) * * * *",
        "H/0 * * * *",
        "H/99 * * * *",
        "H(0-60) * * * *",
        "H-5 * * * *",
        "* * H(0-31) * *",
    ],
)
def test_one_that_cannot_be_is_refused_with_its_field(expr: str) -> None:
    with pytest.raises(InvalidError, match="is not allowed; allowed with H are"):
        resolve_spread(expr, "x")


def test_tasks_that_fire_together_at_a_host_are_told_to_spread_but_for_the_first() -> None:
    census = SpreadCensus()
    census.add([armed(1), armed(2), armed(3), armed(4), armed(5, host="other")])
    census.add([armed(6, "0 0 * * * *"), armed(7, "0 0 * * * *"), armed(8, "0 */5 * * * *")])
    census.add([ArmedTask(9, "j9", "", make_every(60_000_000, now=0), "h", 0, None)])
    found = census.suggest()
    assert [one.task.id for one in found] == [2, 3, 4]
    for one in found:
        assert (one.together, one.expr) == (4, "0 H 3 * * *")
        assert one.becomes == resolve_spread("0 H 3 * * *", one.task.name)


def test_the_largest_crowd_comes_first_and_small_ones_are_left_alone() -> None:
    nightly, noon, evening = "0 0 3 * * *", "0 0 12 * * *", "0 0 18 * * *"
    interval = ArmedTask(1, "j1", "", make_every(60_000_000, now=0), "h", 0, None)
    exprs = [nightly, noon, nightly, noon, noon, evening, evening, evening, evening]
    census = SpreadCensus()
    census.add([interval, *(armed(number, expr) for number, expr in enumerate(exprs, 2))])
    found = [(one.together, one.task.id) for one in census.suggest()]
    assert found == [(4, 8), (4, 9), (4, 10), (3, 5), (3, 6)]


def test_tasks_that_fire_every_few_minutes_are_not_told_to_spread() -> None:
    census = SpreadCensus()
    census.add([armed(number, "0 */5 * * * *") for number in range(4)])
    census.add([armed(number, "*/5 0 * * * *") for number in range(4)])
    assert census.suggest() == []


def test_a_task_that_would_stay_where_it_is_is_not_told_to_spread() -> None:
    stays = next(n for n in range(1_000) if resolve_spread("H * * * *", f"task {n}")[:4] == "0 0 ")
    census = SpreadCensus()
    census.add([armed(1_001), armed(stays), armed(1_002)])
    assert [one.task.id for one in census.suggest()] == [1_002]


def test_so_many_are_remembered_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spreading, "_MOST_KEPT", 2)
    census = SpreadCensus()
    census.add([armed(number) for number in range(1, 6)])
    assert [(one.task.id, one.together) for one in census.suggest()] == [(2, 5), (3, 5)]
