"""Cron in zones against a walk through real time, minute by minute, that shares no code with the
product.

The oracle reads each expression value by value from the contract's wording, walks the real minutes
around a jump of the clock, converts each with zoneinfo, and looks at what the wall clock showed,
skipped and repeated. By default a sample of zones and years runs; with KSANA_FULL=1 all zones,
every jump of ten years, all expressions. Zones whose clocks jump at the same instants by the same
amounts in those years are checked once (links such as Europe/Vatican).
"""

import os
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from importlib import resources

import pytest
from cronsim import CronSim

from ksana.domain import schedule, timetable, zones
from tests.properties.cron_walk import EPOCH, REACH, Walk, jumps, load_zone

FULL = bool(os.environ.get("KSANA_FULL"))


YEARS = (2020, 2029) if FULL else (2024, 2025)


SAMPLE = [
    "Europe/Berlin",
    "Europe/London",
    "Europe/Dublin",
    "America/New_York",
    "America/Sao_Paulo",
    "America/Santiago",
    "America/Havana",
    "America/Asuncion",
    "America/Scoresbysund",
    "America/Nuuk",
    "Africa/Cairo",
    "Africa/Casablanca",
    "Asia/Beirut",
    "Asia/Gaza",
    "Asia/Almaty",
    "Asia/Tehran",
    "Asia/Shanghai",
    "Australia/Lord_Howe",
    "Australia/Sydney",
    "Pacific/Auckland",
    "Pacific/Chatham",
    "Antarctica/Troll",
]


EXPRESSIONS = [
    "* * * * *",
    "*/5 * * * *",
    "*/7 * * * *",
    "0 * * * *",
    "30 * * * *",
    "15,45 * * * *",
    "*/30 */2 * * *",
    "0 */3 * * *",
    "*/20 2 * * *",
    "0-59/10 1-3 * * *",
    "0 0 * * *",
    "30 0 * * *",
    "0 1 * * *",
    "30 1 * * *",
    "59 1 * * *",
    "0 2 * * *",
    "1 2 * * *",
    "15 2 * * *",
    "30 2 * * *",
    "59 2 * * *",
    "0 3 * * *",
    "30 3 * * *",
    "0,20,40 2 * * *",
    "30 1,2,3 * * *",
    "0/15 0-4 * * *",
    "30 23 * * *",
    "0 12 * * 1-5",
    "30 2 * * SUN",
    "45 1 L * *",
    "15 0 LW * *",
    "30 2 15W * *",
    "30 2 * * 0#2",
    "0 1 * * 0L",
    "30 0 * * FRIL",
    "30 2 25-31 3,10 ?",
    "5 2 1-7 * */7",
    "30 30 2 * * *",
    "*/20 59 1,2 * * *",
    "*/30 * * * * *",
    "15 */15 0-3 * * *",
]


OVERRIDDEN = ("*/30 * * * *", "30 1,2 * * *", "0,20,40 0-3 * * *", "15 0 * * *", "*/30 10 2 * * *")


HISTORY = (
    ("Pacific/Apia", 2011),
    ("Pacific/Kwajalein", 1993),
    ("Asia/Pyongyang", 2015),
    ("Asia/Pyongyang", 2018),
    ("America/Caracas", 2007),
    ("Antarctica/Casey", 2020),
    ("Asia/Kathmandu", 1985),
    ("Africa/Monrovia", 1972),
    ("Europe/Amsterdam", 1937),
    ("Pacific/Enderbury", 1994),
    ("America/Recife", 2000),
    ("Europe/Lisbon", 1992),
)


def clusters() -> Iterator[tuple[str, tuple[tuple[int, int, int], ...], int]]:
    """One zone of each set that jumps alike, its jumps, and how many zones it stands for."""
    names = resources.files("tzdata").joinpath("zones").read_text().split() if FULL else SAMPLE
    alike: dict[tuple[tuple[int, int, int], ...], list[str]] = {}
    for name in names:
        alike.setdefault(jumps(load_zone(name), *YEARS), []).append(name)
    for key, members in alike.items():
        yield members[0], key, len(members)


def ours(wanted: schedule.Cron, after: int, until: int) -> list[int]:
    slots, at = [], schedule.next_after(wanted, after * 1_000_000)
    while at is not None and at <= until * 1_000_000:
        slots.append(at // 1_000_000)
        at = schedule.next_after(wanted, at)
    return slots


def compare(
    walk: Walk, zone: str, expr: str, expected: list[int], gap: str | None, overlap: str | None
) -> str | None:
    """Ask all four questions about the inside of the walk; tell the first difference."""
    after, until = walk.start + 3600, walk.end - 3600
    expected = [slot for slot in expected if after < slot <= until]
    wanted = schedule.make_cron(expr, zone, dst_gap=gap, dst_overlap=overlap)  # type: ignore[arg-type]
    found = ours(wanted, after, until)
    if found != expected:
        wrong = sorted(set(found) ^ set(expected))[:4]
        moments = [str(EPOCH + timedelta(seconds=s)) for s in wrong]
        return f"{zone} {expr!r} {gap} {overlap}: differs at {moments}"
    count = schedule.count_between(wanted, after * 1_000_000, until * 1_000_000)
    half = (after + until) // 2
    halves = [
        schedule.count_between(wanted, a * 1_000_000, b * 1_000_000)
        for a, b in ((after, half), (half, until))
    ]
    if count != len(expected) or sum(halves) != count:
        return f"{zone} {expr!r} {gap} {overlap}: counted {count}, {halves}, not {len(expected)}"
    newest = expected[-200:]
    if [
        s // 1_000_000
        for s in schedule.latest_n(wanted, until * 1_000_000, len(newest), after * 1_000_000)
    ] != newest:
        return f"{zone} {expr!r} {gap} {overlap}: looking back differs"
    return None


@pytest.mark.fault("F18")
@pytest.mark.spec("C7", "C9")
@pytest.mark.timeout(3600)
def test_every_jump_of_every_clock_gives_the_slots_of_a_walk_through_real_time(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert len(EXPRESSIONS) == 40
    modes = [(g, o) for g in ("next", "skip", "shift") for o in ("first", "second", "both")]
    cases = [(expr, None, None) for expr in EXPRESSIONS] + [
        (e, g, o) for e in OVERRIDDEN for g, o in modes
    ]
    expected: dict[tuple[int, int, int], list[list[int]]] = {}
    walks: dict[tuple[int, int, int], Walk] = {}
    differences, checks, clocks, standing_for, begun = [], 0, 0, 0, time.process_time()
    for zone, key, members in clusters():
        clocks, standing_for = clocks + 1, standing_for + members
        for jump in key:
            if jump not in expected:
                walks[jump] = walk = Walk(load_zone(zone), jump[0], 60)
                expected[jump] = [walk.slots(*case) for case in cases]
                walk.steps, walk.shown = [], {}
            for case, slots in zip(cases, expected[jump], strict=True):
                checks += 1
                difference = compare(walks[jump], zone, case[0], slots, case[1], case[2])
                if difference:
                    differences.append(difference)
    with capsys.disabled():
        sys.stdout.write(
            f"\n{standing_for} zones as {clocks} clocks, {len(expected)} jumps, "
            f"{len(cases)} cases: {checks} comparisons, "
            f"{len(differences)} differences, {time.process_time() - begun:.0f} s\n"
        )
    assert not differences, differences[:10]


@pytest.mark.fault("F19")
@pytest.mark.spec("C9")
@pytest.mark.parametrize(("zone", "year"), HISTORY)
def test_odd_jumps_of_history_give_the_slots_of_a_walk_step_by_step(zone: str, year: int) -> None:
    found = jumps(load_zone(zone), year, year)
    assert found
    for jump in found:
        unit = 1 if any(number % 60 for number in jump) else 60
        walk = Walk(
            load_zone(zone),
            jump[0] // unit * unit,
            unit,
            4 * 3600 + abs(jump[2] - jump[1]) // unit * unit,
        )
        for expr in (
            "* * * * *",
            "30 * * * *",
            "*/20 10 * * * *",
            "15 0-3 * * *",
            "40 12 * * *",
            "59 23 * * *",
            "0 0 * * *",
        ):
            for gap, overlap in (
                (None, None),
                ("shift", "second"),
                ("next", "both"),
                ("skip", "first"),
            ):
                assert (
                    compare(walk, zone, expr, walk.slots(expr, gap, overlap), gap, overlap) is None
                )


@pytest.mark.spec("C9")
@pytest.mark.parametrize(
    "zone", ["Europe/Berlin", "Australia/Lord_Howe", "America/Santiago", "Pacific/Apia"]
)
def test_a_jump_beside_the_edge_of_what_is_kept_gives_the_same_slots(
    zone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Stretches of 2 h 16 min instead of a year: every jump then reaches over edges, on both sides.
    monkeypatch.setattr(zones, "STRETCH_BITS", 13)
    monkeypatch.setattr(timetable, "STRETCH_BITS", 13)
    clear_caches()
    for jump in jumps(load_zone(zone), 2011, 2011):
        walk = Walk(load_zone(zone), jump[0], 60)
        for expr in ("*/30 * * * *", "30 1,2 * * *", "15 0-3 * * *", "40 12 * * *"):
            for gap in ("next", "skip", "shift"):
                for overlap in ("first", "second", "both"):
                    assert (
                        compare(walk, zone, expr, walk.slots(expr, gap, overlap), gap, overlap)
                        is None
                    )
    clear_caches()


def clear_caches() -> None:
    zones.get_zone.cache_clear()
    timetable.get_timetable.cache_clear()
    timetable._clock_of.cache_clear()


# Where cronsim differs, and why ours holds by the contract:
# - it applies the Debian rule for fixed times to five-field expressions only, so six-field ones are
#   not compared;
# - it reads no `?`, no `nW` and no names before L;
# - with `*` in minute or hour it steps whole real hours, so beside a jump of half an hour (Lord
#   Howe) it misses or adds slots. There the walk above decides.
@pytest.mark.fault("F18")
@pytest.mark.spec("C7", "C9")
@pytest.mark.parametrize(
    "zone",
    SAMPLE
    if FULL
    else [
        "Europe/Berlin",
        "America/New_York",
        "America/Santiago",
        "Africa/Cairo",
        "Australia/Lord_Howe",
    ],
)
def test_cronsim_agrees_where_it_follows_the_same_rule(zone: str) -> None:
    comparable = [
        e for e in EXPRESSIONS if len(e.split()) == 5 and not {"?", "W", "FRIL"} & {*e, *e.split()}
    ]
    assert len(comparable) > 30
    for at, before, after in jumps(load_zone(zone), *YEARS):
        for expr in comparable:
            if (after - before) % 3600 and "*" in (expr.split()[0][0], expr.split()[1][0]):
                continue
            slots = CronSim(
                expr, (EPOCH + timedelta(seconds=at - REACH)).astimezone(load_zone(zone))
            )
            theirs = []
            while (slot := int(next(slots).timestamp())) <= at + REACH:
                theirs.append(slot)
            assert ours(schedule.make_cron(expr, zone), at - REACH, at + REACH) == theirs, (
                zone,
                expr,
                at,
            )
