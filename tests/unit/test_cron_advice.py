"""What a refused expression is told: the way to write it."""

import pytest

from ksana.base.errors import InvalidError
from ksana.domain.cron import CronExpr, parse_cron
from ksana.domain.cron_fields import split_fields

pytestmark = pytest.mark.spec("C7")


def refusal(text: str) -> str:
    with pytest.raises(InvalidError) as refused:
        parse_cron(text)
    assert refused.value.field == "cron_expr"
    return refused.value.message


@pytest.mark.parametrize(
    ("text", "way"),
    [
        ("* * * * 5-1", "write 5-6,0-1 ("),
        ("* * * * FRI-MON", "write FRI-SAT,SUN-MON ("),
        ("* * * * SAT-SUN", "write SAT,SUN ("),
        ("* * * * FRI-1", "write FRI-SAT,SUN-MON ("),
        ("* * * * 5-MON", "write FRI-SAT,SUN-MON ("),
        ("* * * * 5-2/2", "write 5,0,2 ("),
        ("* * * * FRI-TUE/2", "write FRI,SUN,TUE ("),
        ("* * * * 5-1/3", "write 5,1 ("),
        ("* * * NOV-FEB *", "write NOV-DEC,JAN-FEB ("),
        ("* * * 11-2 *", "write 11-12,1-2 ("),
        ("* * * 11-2/2 *", "write 11,1 ("),
        ("* * * 11-3/2 *", "write 11,1,3 ("),
        ("* * * 12-1 *", "write 12,1 ("),
        ("50-10 * * * *", "write 50-59,0-10 ("),
        ("50-10/10 * * * *", "write 50,0,10 ("),
        ("50-10/1 * * * *", "write 50-59,0-10 ("),
        ("* 22-6 * * *", "write 22-23,0-6 ("),
        ("* * 28-3 * *", "write 28-31,1-3 ("),
    ],
)
def test_a_range_that_runs_backwards_is_shown_as_a_list(text: str, way: str) -> None:
    assert way in refusal(text)


@pytest.mark.parametrize(
    ("text", "zone", "rest"),
    [
        ("CRON_TZ=Europe/Berlin 0 5 * * *", "Europe/Berlin", "0 5 * * *"),
        ("TZ=UTC   0 5 * * *", "UTC", "0 5 * * *"),
    ],
)
def test_a_zone_in_the_expression_goes_beside_it(text: str, zone: str, rest: str) -> None:
    said = refusal(text)
    assert f'"timezone": "{zone}"' in said
    assert f"write {rest!r}" in said


@pytest.mark.parametrize(
    ("text", "is_year"),
    [
        ("0 0 5 * * * 2027", True),
        ("0 0 5 * * * *", True),
        ("0 0 5 * * * 2027-2030", True),
        ("0 0 5 * * * 2027/2", True),
        ("0 0 5 * * * 27", False),
        ("0 0 5 * * * MON", False),
        ("0 0 5 * * * 2027 *", False),
        ("5 * * *", False),
    ],
)
def test_a_field_for_the_year_is_answered_with_bounds(text: str, is_year: bool) -> None:
    said = refusal(text)
    assert ("there is no field for the year" in said) is is_year
    assert said.startswith(f"cron_expr has {len(text.split())} fields: ")
    assert is_year or said.endswith("(second minute hour day month weekday)")


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("* * * * MONDAY", "write MON; "),
        ("* * * * TUE-FRIDAY", "write FRI; "),
        ("* * * JANUARY *", "write JAN; "),
        ("* * * * SOMEDAY", ""),
        ("* * * * MOX", ""),
        ("* * * * 8", ""),
        ("* * * * MO", ""),
        ("* * * * MON-MONX", "write MON; "),
    ],
)
def test_a_long_name_is_answered_with_its_short_one(text: str, advice: str) -> None:
    said = refusal(text)
    assert f"is not valid: {advice}allowed are " in said


@pytest.mark.parametrize(
    ("text", "near"),
    [("@dayly", "@daily"), ("@hourli", "@hourly"), ("@Weekli", "@weekly"), ("@never", None)],
)
def test_an_unknown_alias_is_answered_with_the_nearest_first(text: str, near: str | None) -> None:
    said = refusal(text)
    if near is None:
        assert "is not known: allowed are @" in said
        return
    assert f"did you mean {near}? Allowed are {near}, @" in said
    assert said.count(near) == 2


def test_an_expression_of_five_fields_begins_at_second_zero() -> None:
    assert split_fields("5 4 * * mon") == ("0", "5", "4", "*", "*", "MON")
    assert isinstance(parse_cron("@daily"), CronExpr)
