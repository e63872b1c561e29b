"""Explain over the whole engine on the virtual clock: what happened is what is told."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from ksana.base.clock import VirtualClock
from ksana.base.errors import NotFoundError
from ksana.base.instant import DAY, HOUR, MINUTE, SECOND, Instant, format_instant
from ksana.domain.schedule import make_every
from ksana.domain.tasks.explain_runs import RunExplanation
from ksana.domain.tasks.records import Definition, Options, RetryPolicy, Task
from ksana.service.tasks.explain import ExplainService, TaskInsight
from ksana.store.sql.tasks.history import SqlHistory
from tests.engine.tasks_world import World, answer, cron, every, once, open_world, task_of

pytestmark = pytest.mark.spec("B1")

URL = "http://target/hook"


async def ask(world: World, task: Task, at: Instant | None = None) -> TaskInsight:
    return await ExplainService(world.store).explain_task(task.id, at)


async def ask_run(world: World, run_id: int) -> RunExplanation:
    return (await ExplainService(world.store).explain_run(run_id)).why


def codes(why: Any) -> list[str]:
    return [one.code for one in why.reasons]


async def test_a_task_is_not_due_then_ran_and_the_answer_names_the_run(world: World) -> None:
    task = await world.add(task_of(every(world, 60)))
    found = await ask(world, task)
    assert (found.why.verdict, found.why.reasons[-1].data["rest"]) == ("not_due", "1m")
    await world.clock.advance(70 * SECOND)
    found = await ask(world, task)
    assert found.why.verdict == "ran"
    assert codes(found.why) == ["SLOT_RAN", "BELOW_LIMIT", "ANSWERED_2XX", "NOT_DUE"]
    assert found.slot_run is not None
    assert found.why.next_run_at == task.created_at + 120 * SECOND
    assert (await ask(world, task, task.created_at + 59 * SECOND)).why.verdict == "not_due"


async def test_a_skipped_slot_and_one_that_waits_name_the_concurrency(world: World) -> None:
    world.caller.scripts[URL] = lambda request: None
    skipping = await world.add(
        task_of(every(world, 10), timeout_us=35 * SECOND, concurrency_policy="SKIP")
    )
    queueing = await world.add(task_of(every(world, 10), name="q", timeout_us=35 * SECOND))
    await world.clock.advance(31 * SECOND)
    found = await ask(world, skipping)
    assert (found.why.verdict, codes(found.why)[0]) == ("skipped", "CONCURRENCY_LIMIT")
    assert found.why.decision is not None
    assert (found.why.decision.source, found.why.decision.action) == ("recorded", "skip")
    found = await ask(world, queueing)
    assert (found.why.verdict, codes(found.why)[1]) == ("waiting", "QUEUED_BEHIND_ACTIVE")
    assert found.slot_run is not None
    why = await ask_run(world, found.slot_run.id)
    assert why.waits_for is not None
    assert (why.waits_for.what, why.waits_for.position) == ("turn", 2)
    assert why.reasons[-1].data["active"] == 1


@pytest.mark.spec("C10")
async def test_slots_of_an_outage_are_missed_by_their_policy(world: World) -> None:
    began = world.clock.now()
    skipping = await world.add(task_of(every(world, 10), misfire_policy="SKIP"))
    firing = await world.add(task_of(every(world, 10), name="f"))
    await world.clock.advance(15 * SECOND)
    await world.die()
    await world.clock.advance(60 * SECOND)
    due = await ExplainService(world.store).explain_task(skipping.id)
    assert due.why.verdict == "due"
    assert "NO_INSTANCE_ALIVE" in codes(due.why)
    assert due.why.decision is not None
    assert due.why.decision.source == "replayed"
    await world.revive()
    await world.clock.advance(SECOND)
    for task, slot, verdict, code in (
        (skipping, 40, "missed", "MISFIRE_SKIP"),
        (firing, 40, "missed", "MISFIRE_FIRE_NOW"),
        (firing, 70, "ran", "SLOT_RAN"),
        (skipping, 10, "ran", "SLOT_RAN"),
    ):
        found = await ask(world, task, began + slot * SECOND)
        assert (found.why.verdict, codes(found.why)[0]) == (verdict, code), (
            task.definition.name,
            slot,
        )
        if verdict == "missed":
            assert found.why.reasons[0].event_id is not None
            assert found.why.reasons[0].data["count"] == 6
    assert "MISFIRE_FIRE_NOW" in codes((await ask(world, firing, began + 70 * SECOND)).why)


@pytest.mark.spec("T6")
async def test_a_one_time_task_that_nobody_was_there_for_is_missed(world: World) -> None:
    at = world.clock.now() + 10 * SECOND
    task = await world.add(task_of(once(at), misfire_policy="SKIP"), dialect="T")
    late = await world.add(task_of(once(world.clock.now() - MINUTE), name="late"), dialect="T")
    assert codes((await ask(world, late)).why) == ["PAST_WHEN_SET", "NO_MORE_SLOTS"]
    await world.die()
    await world.clock.advance(MINUTE)
    await world.revive()
    await world.clock.advance(SECOND)
    found = await ask(world, task)
    assert (found.why.verdict, codes(found.why)) == ("missed", ["NO_INSTANCE_RAN", "NO_MORE_SLOTS"])


async def test_a_pause_is_told_for_the_time_it_lasted(world: World) -> None:
    began = world.clock.now()
    task = await world.add(task_of(every(world, 10)))
    await world.clock.advance(12 * SECOND)
    await world.tasks.set_enabled(task.id, False)
    await world.clock.advance(30 * SECOND)
    found = await ask(world, task)
    assert (found.why.verdict, codes(found.why), found.why.next_run_at) == (
        "disabled",
        ["DISABLED"],
        None,
    )
    await world.tasks.set_enabled(task.id, True)
    await world.clock.advance(20 * SECOND)
    assert (await ask(world, task)).why.verdict == "ran"
    then = await ask(world, task, began + 25 * SECOND)
    assert (then.why.verdict, then.why.reasons[0].code) == ("disabled", "DISABLED")
    assert then.why.reasons[0].event_id is not None


async def test_used_up_runs_end_of_schedule_and_runs_by_hand_are_told(world: World) -> None:
    counted = await world.add(task_of(every(world, 10), options=Options(max_runs=2)))
    ending = await world.add(
        task_of(every(world, 10, end_at=world.clock.now() + 15 * SECOND), name="e")
    )
    await world.clock.advance(45 * SECOND)
    found = await ask(world, counted)
    assert (found.why.verdict, codes(found.why)) == ("ended", ["MAX_RUNS_REACHED"])
    found = await ask(world, ending)
    assert (found.why.verdict, codes(found.why)[-1]) == ("ran", "NO_MORE_SLOTS")
    started = await world.tasks.trigger(counted.id)
    await world.clock.settle()
    found = await ask(world, counted)
    assert found.why.reasons[1].data["run_id"] == started.run_id
    assert codes(found.why)[1] == "RUN_BY_HAND"


async def test_the_future_is_told_by_the_schedule(world: World) -> None:
    task = await world.add(task_of(cron("0 0 * * *")))
    assert (await ask(world, task, world.clock.now() + HOUR)).why.verdict == "not_due"
    found = await ask(world, task, world.clock.now() + 10 * DAY)
    assert (found.why.verdict, found.why.reasons[0].data["count"]) == ("will_run", 10)


async def test_a_retrying_run_and_a_failed_one_are_told_with_their_timeline(world: World) -> None:
    world.caller.scripts[URL] = lambda request: answer(503)
    task = await world.add(
        task_of(once(world.clock.now() + SECOND), retry=RetryPolicy(1, 30 * SECOND))
    )
    await world.clock.advance(2 * SECOND)
    run = (await world.all_runs(task))[0]
    why = await ask_run(world, run.id)
    assert codes(why) == ["RETRY_LEFT", "BELOW_LIMIT", "WAITS_FOR_RETRY"]
    assert why.waits_for is not None
    assert why.waits_for.what == "retry"
    await world.clock.advance(MINUTE)
    why = await ask_run(world, run.id)
    assert [moment.type for moment in why.timeline] == [
        "RUN_STARTED",
        "RUN_RETRYING",
        "RUN_STARTED",
        "RUN_FAILED",
    ]
    assert why.waits_for is None
    assert codes(why)[0] == "RETRIES_USED_UP"
    assert (why.attempts["ended"], why.attempts["allowed"]) == (2, 2)
    assert all(moment.words for moment in why.timeline)


async def test_a_run_in_flight_names_its_holder_and_then_that_it_died(world: World) -> None:
    world.caller.scripts[URL] = lambda request: None
    task = await world.add(task_of(once(world.clock.now() + SECOND), timeout_us=HOUR))
    await world.clock.advance(2 * SECOND)
    run = (await world.all_runs(task))[0]
    why = await ask_run(world, run.id)
    assert why.waits_for is not None
    assert (codes(why)[-1], why.waits_for.instance) == ("HELD", run.held_by)
    await world.die()
    await world.clock.advance(MINUTE)
    assert codes(await ask_run(world, run.id))[-1] == "HOLDER_LOST"
    await world.revive()
    await world.clock.advance(10 * SECOND)
    why = await ask_run(world, run.id)
    assert codes(why)[0] == "ORPHANED_NO_RETRY_LEFT"
    assert why.attempts["list"][0]["status"] == "LOST"


async def test_a_pending_callback_says_how_long_it_may_take_and_then_that_it_did_not_come(
    world: World,
) -> None:
    task = await world.add(
        task_of(once(world.clock.now() + SECOND), exec_type="ASYNC", callback_timeout_us=MINUTE)
    )
    await world.clock.advance(2 * SECOND)
    run = (await world.all_runs(task))[0]
    why = await ask_run(world, run.id)
    assert codes(why)[-1] == "WAITS_FOR_CALLBACK"
    assert why.reasons[-1].data["rest"] == "59s"
    await world.clock.advance(MINUTE)
    assert codes(await ask_run(world, run.id))[0] == "NO_CALLBACK"


async def test_a_run_that_waits_for_a_place_knows_its_host(
    tmp_path: Path, clock: VirtualClock
) -> None:
    world = await open_world(tmp_path, clock, workers=1, per_host=1)
    world.caller.scripts[URL] = lambda request: None
    await world.die()
    world.is_alive = True
    task = await world.add(task_of(cron("0 0 1 1 *"), concurrency_policy="PARALLEL"))
    ids = [(await world.tasks.trigger(task.id)).run_id for _ in range(3)]
    why = await ask_run(world, ids[2])
    assert why.waits_for is not None
    assert (why.waits_for.what, why.waits_for.host, why.waits_for.position) == (
        "place",
        "target",
        3,
    )
    await world.store.close()


async def test_what_is_unknown_is_not_found(world: World) -> None:
    insight = ExplainService(world.store)
    for asked in (insight.explain_task(99), insight.explain_run(99), insight.explain_run("a" * 32)):
        with pytest.raises(NotFoundError):
            await asked


@pytest.mark.spec("B1")
async def test_a_deleted_task_is_explained_before_and_after_its_end(world: World) -> None:
    insight = ExplainService(world.store)
    task = await world.add(task_of(every(world, 10)))
    await world.clock.advance(25 * SECOND)
    await world.tasks.delete(task.id)
    deleted_at = world.clock.now()
    await world.clock.advance(MINUTE)
    now = await insight.explain_task(task.id)
    assert now.why.verdict == "deleted"
    assert [one.code for one in now.why.reasons] == ["DELETED"]
    assert now.why.reasons[0].event_id is not None
    then = await insight.explain_task(task.id, deleted_at - SECOND)
    assert (then.why.verdict, then.slot) == ("ran", task.created_at + 20 * SECOND)
    with pytest.raises(NotFoundError):
        await insight.explain_task(task.job_id)


@pytest.mark.spec("B1")
async def test_an_instant_is_judged_by_the_schedule_that_was_in_force_then(world: World) -> None:
    insight = ExplainService(world.store)
    began = world.clock.now()
    task = await world.add(task_of(every(world, 10)))
    await world.clock.advance(25 * SECOND)

    def change(old: Task, now: Instant) -> Definition:
        return msgspec.structs.replace(old.definition, schedule=make_every(7 * HOUR, now=now))

    await world.tasks.change(task.id, change)
    await world.clock.advance(HOUR)
    then = await insight.explain_task(task.id, began + 24 * SECOND)
    assert (then.slot, then.why.verdict) == (began + 20 * SECOND, "ran")
    assert "NEXT_SLOT" in [one.code for one in then.why.reasons]
    assert then.why.reasons[-1].data["slot"] == format_instant(began + 30 * SECOND)
    later = await insight.explain_task(task.id, began + MINUTE)
    assert later.slot is None, "the new schedule had no slot yet"
    await world.store.transact(lambda tx: tx.events.purge(began + 20 * SECOND, 1))
    then = await insight.explain_task(task.id, began + 24 * SECOND)
    assert then.slot == began + 20 * SECOND, "the change itself tells what was before"


async def test_the_last_event_before_an_instant_is_found_by_halving_over_gaps(world: World) -> None:
    began = world.clock.now()
    for _ in range(60):
        await world.store.transact(lambda tx: tx.events.append("TASK", 1, "X"))
        await world.clock.advance(SECOND)

    def thin_out(tx: Any) -> list[tuple[int, int]]:
        for id_ in (1, 2, 17, 18, 19, 20, 40):
            tx._session.run("core.delete_events_to", first=id_, last=id_, before=2**60)
        return [(event.id, event.ts) for event in tx.events.list_after(0, 100)]

    rows = await world.store.transact(thin_out)
    for at in range(began - SECOND, began + 62 * SECOND, SECOND // 2):
        found = await world.store.read(lambda tx, at=at: tx.history.find_event_id_at(at))
        expected = max((id_ for id_, ts in rows if ts <= at), default=rows[0][0] - 1)
        assert [id_ for id_, _ in rows if id_ <= found] == [
            id_ for id_, _ in rows if id_ <= expected
        ], at
    await world.store.transact(lambda tx: tx.events.purge(2**60, 1000))
    assert await world.store.read(lambda tx: tx.history.find_event_id_at(began)) == 0


async def test_no_question_scans_history(world: World) -> None:
    """Each statement of explain names an index in its plan; none reads a table from end to end."""
    statements = {
        "core.list_entity_events": {"entity_id": "1", "entity_type": "RUN", "low": 1, "limit": 1},
        "core.list_entity_events_back": {
            "entity_id": "1",
            "entity_type": "RUN",
            "low": 1,
            "limit": 1,
        },
        "core.first_event_after": {"after": 1},
        "count_waiting_before": {"task_id": 1, "id": 1, "limit": 1},
        "count_ready_before": {"host": "h", "id": 1, "limit": 1},
        "lease_of": {"id": "i"},
        "newest_surplus": {"task_id": 1, "keep": 1, "look": 1},
        "list_surplus": {"task_id": 1, "upto": 1, "look": 1, "limit": 1},
        "oldest_runs": {"after": 1, "limit": 1},
    }

    def plan(tx: Any, name: str, params: dict[str, Any]) -> str:
        history: SqlHistory = tx.history
        session: Any = history._session
        statement = session._statements[name if "." in name else f"history.{name}"]
        session._cursor.execute(f"EXPLAIN QUERY PLAN {statement.sql}", statement.bind(params))
        return " / ".join(str(row[3]) for row in session._cursor.fetchall())

    for name, params in statements.items():
        told = await world.store.read(plan, name, params)
        assert "SEARCH" in told, (name, told)
        assert "SCAN event_packs" not in told, (name, told)
        assert "SCAN task_runs" not in told, (name, told)


async def test_a_run_is_found_by_an_index_however_it_is_named(world: World) -> None:
    """Statements with conditions: the one that was asked for is looked up, not searched for."""
    asked = [
        ("runs.list_runs", {"task_id": 1, "slot_at": 1}, "task_id=? AND slot_at=?"),
        ("runs.list_runs", {"task_id": 1}, "task_id=?"),
        ("runs.list_runs", {"open_task": 1}, "open_task=?"),
        ("runs.find_id", {"uid": "u"}, "uid=?"),
        ("runs.find_by_token", {"callback_token": "t"}, "callback_token=?"),
        ("tasks.find_id", {"job_id": "j"}, "job_id=?"),
        ("tasks.find_id", {"name": "n"}, "living_name=?"),
    ]

    def plan(tx: Any, name: str, filters: dict[str, Any]) -> str:
        session: Any = tx.runs._session
        statement = session._statements[name]
        sql, bind = statement.with_filters(key for key in filters if key in statement.filter_names)
        more = {"limit": 1, "skip": 0} if "LIMIT" in sql else {}
        session._cursor.execute(f"EXPLAIN QUERY PLAN {sql}", bind({**filters, **more}))
        return " / ".join(str(row[3]) for row in session._cursor.fetchall())

    for name, filters, by in asked:
        told = await world.store.read(plan, name, filters)
        assert by in told, (name, told)
