"""A task armed by zone rules that have changed since: whether its slot moves, and to where."""

from typing import Any

import pytest

from ksana.base.instant import HOUR, MINUTE, SECOND
from ksana.domain import schedule as schedules
from ksana.domain.schedule import Once, make_cron
from ksana.domain.tasks.arming import find_moved_slot
from tests.unit.task_ground import EVERY_TEN, a_task

pytestmark = pytest.mark.spec("X5")

NOW = 1_774_742_400 * SECOND
HOURLY = make_cron("0 * * * *", "Europe/Berlin")
ARMED = NOW + HOUR


def task(chosen: Any = HOURLY, **members: Any) -> Any:
    return a_task(chosen, **{"next_slot_at": ARMED, "fire_at": ARMED, **members})


def test_a_slot_that_the_rules_still_name_stays() -> None:
    assert find_moved_slot(task(), NOW) is None


@pytest.mark.parametrize("armed", [ARMED + MINUTE, ARMED + 2 * HOUR, NOW + 1])
def test_a_slot_that_the_rules_no_longer_name_is_moved(armed: int) -> None:
    moved = find_moved_slot(task(next_slot_at=armed, fire_at=armed), NOW)
    assert moved == (ARMED, ARMED)


def test_it_fires_with_its_own_jitter() -> None:
    chosen = make_cron("0 * * * *", "Europe/Berlin", jitter_us=MINUTE)
    moved = find_moved_slot(task(chosen, next_slot_at=ARMED + 1, fire_at=ARMED + 1), NOW)
    assert moved == (ARMED, schedules.fire_at(chosen, "j", ARMED))


def test_a_schedule_that_has_no_slot_left_is_disarmed() -> None:
    ended = make_cron("0 * * * *", "Europe/Berlin", end_at=NOW + MINUTE)
    assert find_moved_slot(task(ended), NOW) == (None, None)


@pytest.mark.parametrize(
    "members",
    [
        {"status": "DISABLED"},
        {"chosen": EVERY_TEN},
        {"chosen": Once(ARMED + MINUTE)},
        {"next_slot_at": None},
        {"next_slot_at": NOW},
        {"next_slot_at": NOW - 1},
        {"fire_at": None},
        {"fire_at": NOW},
        {"fire_at": NOW - 1},
    ],
)
def test_what_is_due_or_goes_by_no_zone_is_left_alone(members: dict[str, Any]) -> None:
    given = {"next_slot_at": ARMED + MINUTE, "fire_at": ARMED + MINUTE, **members}
    assert find_moved_slot(task(**given), NOW) is None
