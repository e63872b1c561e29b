"""Zones as numbers: offsets, the jumps of their clocks, and the assumption by which jumps are
found."""

import re
import struct
from importlib import resources
from itertools import pairwise

import pytest

from ksana.base.instant import SECOND, parse_instant
from ksana.domain import zones
from ksana.domain.zones import Transition, format_offset, get_zone, rules_version, zone_names


def second(text: str) -> int:
    return parse_instant(text) // SECOND


@pytest.mark.spec("C9")
def test_the_jumps_of_a_year_are_found_to_the_second() -> None:
    berlin = get_zone("Europe/Berlin")
    found = berlin.transitions_between(
        second("2026-01-01T00:00:00Z"), second("2027-01-01T00:00:00Z")
    )
    assert found == [
        Transition(second("2026-03-29T01:00:00Z"), 3600, 7200),
        Transition(second("2026-10-25T01:00:00Z"), 7200, 3600),
    ]
    assert berlin.transitions_between(found[0].at, found[1].at - 1) == []
    assert berlin.transitions_between(found[0].at - 1, found[0].at) == found[:1]


@pytest.mark.spec("C9")
def test_offsets_of_history_have_seconds() -> None:
    assert (
        format_offset(get_zone("Africa/Monrovia").offset_at(second("1971-01-01T00:00:00Z")))
        == "-00:44:30"
    )
    assert format_offset(get_zone("Asia/Kathmandu").offset_at(0)) == "+05:30"
    assert format_offset(get_zone("-09:30").offset_at(0)) == "-09:30"


@pytest.mark.spec("C9")
def test_every_iana_name_is_a_zone() -> None:
    assert len(zone_names()) > 590
    for name in zone_names():
        assert get_zone(name).name == name
        assert abs(get_zone(name).offset_at(second("2026-06-01T00:00:00Z"))) <= 14 * 3600


def test_the_version_of_the_rules_is_known() -> None:
    assert rules_version()[:2] == "20"


def read_jumps(data: bytes) -> list[int]:
    """The instants at which a compiled zone file changes its offset (RFC 8536, second block)."""

    def header(at: int) -> tuple[int, ...]:
        return struct.unpack(">6l", data[at + 20 : at + 44])

    isut, isstd, leap, times, types, chars = header(0)
    at = 44 + times * 5 + types * 6 + chars + leap * 8 + isstd + isut
    _, _, _, times, types, _ = header(at)
    at += 44
    instants = struct.unpack(f">{times}q", data[at : at + 8 * times])
    kinds = data[at + 8 * times : at + 9 * times]
    offsets = [
        struct.unpack(">l", data[i : i + 4])[0]
        for i in range(at + 9 * times, at + 9 * times + 6 * types, 6)
    ]
    found, before = [], offsets[0]
    for instant, kind in zip(instants, kinds, strict=True):
        if offsets[kind] != before:
            found.append(instant)
            before = offsets[kind]
    return found


@pytest.mark.spec("C9")
def test_no_two_jumps_ever_lie_closer_than_the_step_they_are_looked_for_with() -> None:
    for name in zone_names():
        data = resources.files("tzdata").joinpath("zoneinfo", *name.split("/")).read_bytes()
        closest = min((b - a for a, b in pairwise(read_jumps(data))), default=zones._PROBE_STEP + 1)
        assert closest > max(zones._PROBE_STEP, zones.MARGIN), (name, closest)
        rule = (
            data.rstrip(b"\n").rsplit(b"\n", 1)[1].decode()
        )  # what holds after the last jump of the file
        months = [int(month) for month in re.findall(r",M(\d+)\.", rule)]
        assert ("," not in rule and not months) or 2 <= abs(months[1] - months[0]) <= 10, (
            name,
            rule,
        )


@pytest.mark.spec("C9")
@pytest.mark.parametrize(
    "name", ["Europe/Berlin", "Africa/Casablanca", "Asia/Gaza", "America/Recife"]
)
def test_all_jumps_of_the_zone_file_are_found(name: str) -> None:
    instants = read_jumps(
        resources.files("tzdata").joinpath("zoneinfo", *name.split("/")).read_bytes()
    )
    wanted = [
        at
        for at in instants
        if second("1950-01-01T00:00:00Z") < at <= second("2037-12-31T00:00:00Z")
    ]
    found = get_zone(name).transitions_between(
        second("1950-01-01T00:00:00Z"), second("2037-12-31T00:00:00Z")
    )
    assert [jump.at for jump in found if jump.at <= instants[-1]] == wanted
