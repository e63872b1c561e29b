"""The `schedule` member: every kind read, written, and refused by the member at fault."""

from typing import Any

import pytest

from ksana.base.errors import InvalidError
from ksana.base.instant import DAY, MINUTE, SECOND, parse_instant
from ksana.domain import schedule
from ksana.domain.schedule import Cron, Every, Once
from ksana.domain.schedule_json import read_schedule, write_schedule

NOW = parse_instant("2026-01-01T00:00:00Z")


@pytest.mark.spec("C8", "T6", "T7", "X6")
@pytest.mark.parametrize(
    ("members", "read"),
    [
        ({"kind": "once", "run_at": "2026-01-02T08:00:00+08:00"}, Once(NOW + DAY)),
        (
            {"kind": "every", "every": "5m", "start_at": "", "jitter": "5s"},
            Every(5 * MINUTE, NOW, False, 5 * SECOND),
        ),
        ({"kind": "every", "every": "PT5M"}, Every(5 * MINUTE, NOW, False)),
        ({"kind": "every", "every": 1.5, "max_runs": 3}, Every(1_500_000, NOW, False)),
        (
            {"kind": "every", "every": "1h30m", "start_at": "2026-01-02T00:00:00Z", "end_at": None},
            Every(90 * MINUTE, NOW + DAY, True, 0, NOW + DAY),
        ),
        ({"kind": "cron", "expr": "*/5 * * * *"}, Cron("0 */5 * * * *", "UTC")),
        (
            {
                "kind": "cron",
                "expr": "@daily",
                "timezone": "Asia/Shanghai",
                "end_at": "2026-01-02T00:00:00Z",
            },
            Cron("0 0 0 * * *", "Asia/Shanghai", end_at=NOW + DAY),
        ),
    ],
)
def test_every_kind_is_read_and_comes_back_the_same(
    members: dict[str, Any], read: schedule.Schedule
) -> None:
    assert read_schedule(members, NOW) == read
    assert read_schedule(write_schedule(read), NOW) == read


@pytest.mark.spec("C8", "X9", "T18")
@pytest.mark.parametrize(
    ("members", "field"),
    [
        ({}, "schedule.kind"),
        ({"kind": "sometimes"}, "schedule.kind"),
        ({"kind": 1}, "schedule.kind"),
        ({"kind": "once"}, "schedule.run_at"),
        ({"kind": "once", "run_at": "2026-01-01T00:00:00"}, "schedule.run_at"),
        ({"kind": "once", "run_at": 5}, "schedule.run_at"),
        ({"kind": "once", "run_at": "2026-01-01T00:00:00Z", "every": "5m"}, "schedule.every"),
        ({"kind": "every"}, "schedule.every"),
        ({"kind": "every", "every": "5 parsecs"}, "schedule.every"),
        ({"kind": "every", "every": "50ms"}, "schedule.every"),
        ({"kind": "every", "every": True}, "schedule.every"),
        ({"kind": "every", "every": "5s", "jitter": "5s"}, "schedule.jitter"),
        ({"kind": "every", "every": "5s", "jitter": -1}, "schedule.jitter"),
        ({"kind": "every", "every": "5s", "start_at": "soon"}, "schedule.start_at"),
        ({"kind": "every", "every": "5s", "max_runs": 0}, "schedule.max_runs"),
        ({"kind": "every", "every": "5s", "max_runs": True}, "schedule.max_runs"),
        ({"kind": "cron"}, "schedule.expr"),
        ({"kind": "cron", "expr": "61 * * * *"}, "schedule.expr"),
        ({"kind": "cron", "expr": "* * * * *", "timezone": "Nowhere"}, "schedule.timezone"),
        ({"kind": "cron", "expr": "* * * * *", "timezone": 8}, "schedule.timezone"),
        ({"kind": "cron", "expr": "* * * * *", "colour": "red"}, "schedule.colour"),
    ],
)
def test_a_bad_schedule_is_refused_by_the_name_of_its_member(
    members: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidError) as refused:
        read_schedule(members, NOW)
    assert refused.value.field == field


@pytest.mark.spec("T7")
def test_an_interval_keeps_its_anchor_in_stored_documents_only() -> None:
    stored = write_schedule(Every(5 * MINUTE, NOW - 17, False))
    assert read_schedule(stored, NOW, keep_anchor=True) == Every(5 * MINUTE, NOW - 17, False)
    assert read_schedule(stored, NOW) == Every(5 * MINUTE, NOW, False)


@pytest.mark.spec("C9")
def test_rules_and_zone_of_the_task_are_used_where_the_schedule_names_none() -> None:
    members = {"kind": "cron", "expr": "0 2 * * *"}
    read = read_schedule(members, NOW, timezone="Europe/Berlin", dst_gap="skip", dst_overlap="both")
    assert read == Cron("0 0 2 * * *", "Europe/Berlin", "skip", "both")


@pytest.mark.spec("X2")
def test_a_member_that_is_not_known_is_refused_with_those_that_callers_may_give() -> None:
    with pytest.raises(InvalidError) as refused:
        read_schedule({"kind": "every", "evry": "5m"}, NOW)
    assert str(refused.value) == (
        "schedule.evry is not known: a schedule of kind every has "
        "end_at, every, jitter, kind, max_runs, start_at"
    )
