"""Rules of time zones change between two starts: the next slots are worked out anew, once, with an
event; what was fired is not fired again, and what is due is left to firing."""

from collections.abc import Callable, Iterator
from zoneinfo import ZoneInfo

import pytest

from ksana.base.instant import HOUR, MINUTE, SECOND, Instant, format_instant
from ksana.domain import timetable, zones
from ksana.domain.tasks.arming import find_moved_slot
from ksana.domain.tasks.records import Task
from ksana.engine.tasks import zone_rules
from ksana.engine.tasks.zone_rules import ZoneRules, find_edition
from ksana.store.sql.tasks import definitions
from tests.engine.tasks_world import World, cron, data_of, every, once, task_of

pytestmark = [pytest.mark.fault("F24"), pytest.mark.spec("X5")]

ZONE = "Europe/Berlin"
Change = Callable[[str], None]


@pytest.fixture
def change_rules(monkeypatch: pytest.MonkeyPatch) -> Iterator[Change]:
    """From now on the zone has the rules of another."""
    load = zones._load

    def forget() -> None:
        zones.get_zone.cache_clear()
        timetable.get_timetable.cache_clear()
        timetable._clock_of.cache_clear()
        definitions._decode_schedule.cache_clear()

    def change(other: str) -> None:
        def load_other(name: str) -> ZoneInfo:
            return load(other if name == ZONE else name)

        monkeypatch.setattr(zones, "_load", load_other)
        forget()

    yield change
    monkeypatch.undo()
    forget()


def sweep_of(world: World, edition: str = "new", owner: str = "me") -> ZoneRules:
    return ZoneRules(world.store, world.clock, owner, edition, world.firing.hint)


async def run_through(sweep: ZoneRules) -> int:
    """Step until it has nothing to do; how many tasks were moved."""
    while (await sweep.step()) is not None:
        pass
    return sweep.moved


async def read(world: World, task: Task) -> Task:
    found = await world.store.read(lambda tx: tx.tasks.find(task.id))
    assert found is not None
    return found


async def edition_of(world: World) -> str | None:
    return await world.store.read(find_edition)


async def test_a_task_fires_at_its_local_time_by_the_new_rules(
    world: World, change_rules: Change
) -> None:
    task = await world.add(task_of(cron("0 0 9 * * *", ZONE)))
    assert await run_through(sweep_of(world, "old")) == 0
    assert task.next_slot_at is not None
    change_rules("Asia/Tokyo")
    assert await run_through(sweep_of(world)) == 1
    moved = await read(world, task)
    change_rules("Asia/Tokyo")
    tokyo = await world.add(task_of(cron("0 0 9 * * *", "Asia/Tokyo"), name="beside"))
    assert moved.next_slot_at == tokyo.next_slot_at != task.next_slot_at
    assert moved.fire_at == moved.next_slot_at
    assert moved.version == task.version, "the task itself was not changed"
    [event] = await world.events("TASK_REARMED")
    assert data_of(event) == {
        "slot": format_instant(moved.next_slot_at or 0),
        "was": format_instant(task.next_slot_at),
        "reason": "ZONE_RULES_CHANGED",
    }
    world.slow_down_polls()
    await world.clock.advance((moved.next_slot_at or 0) - world.clock.now() + SECOND)
    assert [run.slot_at for run in await world.all_runs(task)] == [moved.next_slot_at]


async def test_an_earlier_slot_wakes_firing_that_waits_for_the_later_one(
    world: World, change_rules: Change
) -> None:
    change_rules("Pacific/Honolulu")
    task = await world.add(task_of(cron("0 0 9 * * *", ZONE)))
    world.slow_down_polls()
    await world.clock.advance(SECOND)
    change_rules("Asia/Kathmandu")
    await run_through(sweep_of(world))
    slot = (await read(world, task)).next_slot_at or 0
    assert slot < (task.next_slot_at or 0)
    await world.clock.advance(slot - world.clock.now() + SECOND)
    assert [run.slot_at for run in await world.all_runs(task)] == [slot]


async def test_the_edition_is_noted_after_the_last_task_and_then_nothing_is_looked_at(
    world: World, monkeypatch: pytest.MonkeyPatch, change_rules: Change
) -> None:
    monkeypatch.setattr(zone_rules, "PAGE", 2)
    monkeypatch.setattr(zone_rules, "BATCH", 1)
    for n in range(5):
        await world.add(task_of(cron(f"0 {n} 9 * * *", ZONE), name=f"t{n}"))
    change_rules("Asia/Tokyo")
    sweep = sweep_of(world)
    moved = []
    while (await sweep.step()) is not None:
        moved.append(sweep.moved)
        assert await edition_of(world) is None, "a kill here makes the next start begin again"
    assert (moved, sweep.moved) == ([2, 4], 5)
    assert await edition_of(world) == "new"
    monkeypatch.setattr(zone_rules, "list_moved", None)  # nobody may call it
    assert await sweep_of(world).step() is None
    assert await sweep.step() is None


async def test_one_instance_at_a_time_moves_slots_and_the_other_looks_again(
    world: World, change_rules: Change
) -> None:
    task = await world.add(task_of(cron("0 0 9 * * *", ZONE)))
    change_rules("Asia/Tokyo")
    taken = await world.store.transact(
        lambda tx: tx.locks.take(zone_rules.LOCK, "other", zone_rules.LOCK_US)
    )
    assert taken
    sweep = sweep_of(world)
    again_at = await sweep.step()
    assert again_at == world.clock.now() + zone_rules.LOCK_US
    assert (await read(world, task)).next_slot_at == task.next_slot_at
    assert await edition_of(world) is None
    await world.store.transact(lambda tx: tx.locks.drop(zone_rules.LOCK, "other"))
    assert await run_through(sweep) == 1


async def test_what_was_fired_is_not_fired_again_when_the_clock_went_back_a_little(
    world: World, change_rules: Change
) -> None:
    task = await world.add(task_of(cron("0 * * * * *", ZONE)))
    await world.clock.advance(MINUTE)
    [run] = await world.all_runs(task)
    assert run.slot_at is not None
    world.clock.step(run.slot_at - world.clock.now() - SECOND)
    assert await run_through(sweep_of(world)) == 0
    assert len(await world.all_runs(task)) == 1


def armed(schedule: object, next_slot_at: Instant | None, **members: object) -> Task:
    given: dict[str, object] = {
        "id": 1,
        "job_id": "j",
        "dialect": "C",
        "definition": task_of(schedule),  # type: ignore[arg-type]
        "status": "ENABLED",
        "version": 1,
        "created_at": 0,
        "updated_at": 0,
        "is_deleted": False,
        "next_slot_at": next_slot_at,
        "fire_at": next_slot_at,
        "runs_fired": 0,
        "last_run_at": None,
        "last_status": "",
        "last_error": "",
    } | members
    return Task(**given)  # type: ignore[arg-type]


HOURLY = cron("0 0 * * * *")
NOW = 10 * HOUR + MINUTE


@pytest.mark.parametrize(
    ("why", "task", "moved"),
    [
        ("by the rules it is elsewhere", armed(HOURLY, 12 * HOUR), (11 * HOUR, 11 * HOUR)),
        ("it is where it should be", armed(HOURLY, 11 * HOUR), None),
        ("it is due", armed(HOURLY, NOW), None),
        ("it is overdue", armed(HOURLY, 9 * HOUR), None),
        ("its jitter runs", armed(HOURLY, 10 * HOUR, fire_at=NOW + 1), None),
        ("it fires now", armed(HOURLY, NOW + 1, fire_at=NOW), None),
        ("it has no slot", armed(HOURLY, None), None),
        ("it is not armed", armed(HOURLY, 12 * HOUR, fire_at=None), None),
        ("it is disabled", armed(HOURLY, 12 * HOUR, status="DISABLED"), None),
        ("an instant has no zone", armed(once(11 * HOUR), 12 * HOUR), None),
        (
            "there is no slot any more",
            armed(cron("0 0 * * * *", end_at=10 * HOUR), 12 * HOUR),
            (None, None),
        ),
    ],
)
def test_only_a_slot_to_come_of_a_calendar_can_move(
    why: str, task: Task, moved: tuple[Instant | None, Instant | None] | None
) -> None:
    assert find_moved_slot(task, NOW) == moved, why


async def test_an_interval_has_no_zone(world: World, change_rules: Change) -> None:
    task = await world.add(task_of(every(world, 3600)))
    change_rules("Asia/Tokyo")
    assert await run_through(sweep_of(world)) == 0
    assert (await read(world, task)).next_slot_at == task.next_slot_at
