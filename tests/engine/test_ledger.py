"""The ledger over the whole engine on the virtual clock: what was expected is what happened, and
nothing is missing."""

import random
from typing import Any

import msgspec
import pytest

from ksana.base.instant import DAY, HOUR, MINUTE, SECOND, Instant
from ksana.domain.schedule import make_every
from ksana.domain.tasks.records import Definition, Options, Task
from ksana.service.tasks import ledger as ledger_service
from ksana.service.tasks.ledger import LedgerEntry, LedgerService
from tests.engine.tasks_world import World, answer, cron, every, once, task_of

pytestmark = pytest.mark.spec("B2")

URL = "http://target/hook"
KEPT = 30 * DAY


async def ask(
    world: World, task: Task, since: Instant | None = None, until: Instant | None = None
) -> LedgerEntry:
    """The ledger of one task, from an hour before it was made to now if nothing is said."""
    page = await LedgerService(world.store, KEPT, SECOND).list_page(
        task.created_at - HOUR if since is None else since,
        world.clock.now() + 1 if until is None else until,
        task_id=task.id,
    )
    [entry] = page.entries
    return entry


def check(entry: LedgerEntry, **wanted: Any) -> None:
    """These figures, the sum of all, and nothing missing."""
    sums = entry.sums
    figures = {
        "expected": sums.expected,
        "fired": sums.fired,
        "skipped": sums.skipped,
        "forgotten": entry.forgotten,
        "pending": sums.pending,
    }
    assert {name: figures[name] for name in wanted} == wanted, figures
    parts = sums.fired + sum(sums.skipped.values()) + entry.forgotten + sums.pending
    assert sums.expected == parts + entry.missing
    assert sums.fired == sum(sums.by_status.values())
    assert entry.missing == 0, figures


def change_schedule(seconds: int) -> Any:
    def make(task: Task, now: Instant) -> Definition:
        schedule = make_every(seconds * SECOND, now=now)
        return msgspec.structs.replace(task.definition, schedule=schedule)

    return make


async def test_slots_that_fired_and_those_to_come_add_up(world: World) -> None:
    task = await world.add(task_of(every(world, 60)))
    await world.clock.advance(10 * MINUTE + 30 * SECOND)
    entry = await ask(world, task)
    check(entry, expected=10, fired=10, skipped={}, pending=0)
    assert entry.sums.by_status == {"SUCCESS": 10}
    check(await ask(world, task, until=world.clock.now() + 5 * MINUTE), expected=15, pending=5)
    middle = task.created_at + 4 * MINUTE
    check(await ask(world, task, middle, middle + 2 * MINUTE), expected=2, fired=2)
    tomorrow = world.clock.now() + DAY
    check(await ask(world, task, tomorrow, tomorrow + DAY), expected=1440, pending=1440, fired=0)


async def test_skipped_slots_are_told_by_their_reason(world: World) -> None:
    world.caller.scripts[URL] = lambda request: None
    task = await world.add(
        task_of(every(world, 10), timeout_us=35 * SECOND, concurrency_policy="SKIP")
    )
    await world.clock.advance(41 * SECOND)
    check(await ask(world, task), expected=4, fired=1, skipped={"CONCURRENCY_LIMIT": 3})


@pytest.mark.parametrize(
    ("policy", "limit", "fired", "skipped"),
    [
        ("SKIP", 0, 3, {"MISFIRE_SKIP": 6}),
        ("FIRE_NOW", 0, 4, {"MISFIRE_FIRE_NOW": 5}),
        ("CATCH_UP_LIMITED", 2, 5, {"MISFIRE_CATCH_UP_LIMITED": 4}),
    ],
)
async def test_slots_of_an_outage_are_told_by_their_policy(
    world: World, policy: str, limit: int, fired: int, skipped: dict[str, int]
) -> None:
    task = await world.add(task_of(every(world, 10), misfire_policy=policy, catchup_limit=limit))
    await world.clock.advance(15 * SECOND)
    await world.die()
    await world.clock.advance(60 * SECOND)
    check(await ask(world, task), expected=7, fired=1, pending=6)
    await world.revive()
    await world.clock.advance(20 * SECOND)
    check(await ask(world, task), expected=9, fired=fired, skipped=skipped)
    # A window within the outage: the misfire was recorded after its end.
    began = task.created_at
    part = await ask(world, task, began + 20 * SECOND, began + 40 * SECOND)
    check(part, expected=2, fired=0, skipped={f"MISFIRE_{policy}": 2})


async def test_slots_while_a_task_is_disabled_or_deleted_are_not_expected(world: World) -> None:
    task = await world.add(task_of(every(world, 60)))
    await world.clock.advance(3 * MINUTE + 30 * SECOND)
    await world.tasks.set_enabled(task.id, False)
    await world.clock.advance(7 * MINUTE)
    check(await ask(world, task), expected=3, fired=3)
    await world.tasks.set_enabled(task.id, True)
    await world.clock.advance(2 * MINUTE)
    check(await ask(world, task), expected=5, fired=5)
    await world.tasks.delete(task.id)
    await world.clock.advance(5 * MINUTE)
    check(await ask(world, task), expected=5, fired=5)
    while_disabled = task.created_at + 5 * MINUTE
    check(await ask(world, task, while_disabled, while_disabled + 4 * MINUTE), expected=0)


async def test_a_changed_schedule_is_judged_by_the_one_in_force(world: World) -> None:
    task = await world.add(task_of(every(world, 60)))
    await world.clock.advance(5 * MINUTE + 30 * SECOND)
    await world.tasks.change(task.id, change_schedule(10))
    await world.clock.advance(65 * SECOND)
    await world.tasks.change(task.id, change_schedule(120))
    await world.clock.advance(5 * MINUTE)
    check(await ask(world, task), expected=5 + 6 + 2, fired=13)
    check(await ask(world, task, until=task.created_at + 3 * MINUTE), expected=2, fired=2)


async def test_a_slot_due_when_its_task_is_disabled_is_skipped_with_that_reason(
    world: World,
) -> None:
    task = await world.add(task_of(every(world, 60)))
    await world.begin_drain()
    await world.clock.advance(MINUTE + SECOND)
    await world.tasks.set_enabled(task.id, False)
    entry = await ask(world, task)
    check(entry, expected=1)
    assert sum(entry.sums.skipped.values()) == 1


async def test_a_slot_put_off_by_jitter_beyond_a_change_is_not_expected(world: World) -> None:
    schedule = make_every(MINUTE, now=world.clock.now(), jitter_us=59 * SECOND)
    task = await world.add(task_of(schedule))
    for _ in range(40):  # disabled while some slot is spread: 1 s later in it with every turn
        await world.clock.advance(61 * SECOND)
        await world.tasks.set_enabled(task.id, False)
        await world.tasks.set_enabled(task.id, True)
    entry = await ask(world, task)
    check(entry, skipped={}, forgotten=0)
    assert 0 < entry.sums.fired < 40
    assert entry.sums.expected - entry.sums.pending == entry.sums.fired


async def test_a_task_that_may_run_so_often_is_expected_no_more_after(world: World) -> None:
    task = await world.add(task_of(every(world, 60), options=Options(max_runs=3)))
    await world.clock.advance(90 * SECOND)
    check(await ask(world, task, until=world.clock.now() + HOUR), expected=3, fired=1, pending=2)
    await world.clock.advance(5 * MINUTE)
    check(await ask(world, task), expected=3, fired=3)

    def allow_more(task: Task, now: Instant) -> Definition:
        return msgspec.structs.replace(task.definition, options=Options(max_runs=5))

    await world.tasks.change(task.id, allow_more)
    await world.clock.advance(5 * MINUTE)
    check(await ask(world, task), expected=5, fired=5)


async def test_a_one_time_task_has_one_slot_whenever_it_is_asked(world: World) -> None:
    now = world.clock.now()
    late = await world.add(task_of(once(now - SECOND // 2)))
    future = await world.add(task_of(once(now + MINUTE), name="f", misfire_policy="SKIP"))
    past = await world.add(task_of(once(now - HOUR), name="p"))
    await world.clock.advance(SECOND)
    check(await ask(world, late), expected=1, fired=1)
    check(await ask(world, past), expected=0)
    await world.die()
    await world.clock.advance(HOUR)
    await world.revive()
    check(await ask(world, future), expected=1, skipped={"MISFIRE_SKIP": 1})


async def test_runs_that_retention_removed_are_forgotten_and_not_missing(world: World) -> None:
    task = await world.add(task_of(every(world, 60), options=Options(history_limit=4)))
    await world.clock.advance(10 * MINUTE + SECOND)

    def remove_surplus(tx: Any) -> None:
        tx.history.remove_runs(tx.history.list_surplus(task.id, 4, 100))

    await world.store.transact(remove_surplus)
    check(await ask(world, task), expected=10, fired=4, forgotten=6)
    await world.tasks.change(task.id, change_schedule(30))
    await world.clock.advance(MINUTE)
    check(await ask(world, task), expected=12, fired=6, forgotten=6)


async def test_a_slot_without_a_record_and_without_a_reason_is_missing(world: World) -> None:
    """What is always 0 can be more: here a run is taken away behind retention's back."""
    task = await world.add(task_of(every(world, 60)))
    await world.clock.advance(5 * MINUTE + SECOND)

    def take_away(tx: Any) -> None:
        tx.history.remove_runs([run.id for run in tx.runs.list_runs(task_id=task.id, limit=1)])
        again = tx.tasks.find(task.id)
        tx.tasks.change_if_version(
            again, again.definition, again.status, again.next_slot_at, again.fire_at, 4, "success"
        )

    await world.store.transact(take_away)
    entry = await ask(world, task)
    assert (entry.sums.expected, entry.sums.fired, entry.missing) == (5, 4, 1)


async def test_what_was_before_the_oldest_event_is_said_to_be_unknown(world: World) -> None:
    task = await world.add(task_of(every(world, 60)))
    await world.clock.advance(10 * MINUTE)
    await world.tasks.set_enabled(task.id, False)
    await world.clock.advance(10 * MINUTE)
    await world.store.transact(lambda tx: tx.events.purge(world.clock.now(), 100_000))
    await world.tasks.set_enabled(task.id, True)
    enabled_at = world.clock.now()
    await world.clock.advance(3 * MINUTE)
    entry = await ask(world, task)
    assert entry.known_since is not None
    assert entry.known_since >= enabled_at
    check(entry, expected=3, fired=3)


async def test_a_page_ends_when_it_has_looked_at_enough_and_goes_on(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_service, "ROWS", 7)
    monkeypatch.setattr(ledger_service, "MAX_FACTS", 6)
    tasks = [await world.add(task_of(every(world, 60), name=f"t{at}")) for at in range(3)]
    for _ in range(9):
        await world.clock.advance(MINUTE + 10 * SECOND)
        await world.tasks.set_enabled(tasks[0].id, False)
        await world.tasks.set_enabled(tasks[0].id, True)
    await world.clock.advance(MINUTE)
    service = LedgerService(world.store, KEPT, SECOND)
    since, until = tasks[0].created_at, world.clock.now()
    place, sums, pages = None, {task.id: [0, 0] for task in tasks}, 0
    while True:
        page = await service.list_page(since, until, after=place)
        pages += 1
        for entry in page.entries:
            check(entry)
            sums[entry.task.id][0] += entry.sums.expected
            sums[entry.task.id][1] += entry.sums.fired
        place = page.next_place
        if place is None:
            break
    assert pages > 3
    for task in tasks:
        fired = len(await world.all_runs(task))
        assert sums[task.id] == [fired, fired]


@pytest.mark.parametrize("seed", range(4))
async def test_nothing_is_missing_in_a_random_life(world: World, seed: int) -> None:
    choice = random.Random(seed)
    task = await world.add(
        task_of(
            choice.choice([every(world, 20), cron("*/30 * * * * *"), every(world, 7)]),
            misfire_policy=choice.choice(["SKIP", "FIRE_NOW", "CATCH_UP_LIMITED"]),
            catchup_limit=2,
            concurrency_policy=choice.choice(["SKIP", "QUEUE", "PARALLEL"]),
            options=Options(history_limit=5, max_queued=2),
        )
    )
    edges = [world.clock.now()]
    for _ in range(14):
        match choice.randrange(6):
            case 0:
                await world.tasks.set_enabled(task.id, choice.random() < 0.7)
            case 1:
                await world.tasks.change(task.id, change_schedule(choice.randint(3, 90)))
            case 2:
                await world.die()
                await world.clock.advance(choice.randint(1, 200) * SECOND)
                await world.revive()
            case 3:
                world.caller.scripts[URL] = choice.choice([lambda _: None, lambda _: answer(200)])
            case 4:
                surplus = await world.store.read(
                    lambda tx: tx.history.list_surplus(task.id, 5, 100)
                )
                await world.store.transact(lambda tx, old=surplus: tx.history.remove_runs(old))
            case _:
                pass
        await world.clock.advance(choice.randint(1, 100) * SECOND + choice.randint(0, 999_999))
        edges.append(world.clock.now())
        since, until = sorted(choice.sample([*edges, edges[0] - HOUR, edges[-1] + HOUR], 2))
        check(await ask(world, task, since, until + 1))
    whole = await ask(world, task)
    check(whole)
    assert whole.sums.expected > 0


async def test_a_slot_due_when_max_runs_changes_is_not_lost(world: World) -> None:
    task = await world.add(task_of(every(world, 60)))
    await world.begin_drain()
    await world.clock.advance(MINUTE + SECOND)

    def bound(task: Task, now: Instant) -> Definition:
        return msgspec.structs.replace(task.definition, options=Options(max_runs=9))

    await world.tasks.change(task.id, bound)
    check(await ask(world, task), expected=1)
