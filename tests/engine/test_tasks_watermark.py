"""Runs that were claimed and never sent: after a kill they are told from those that were sent."""

import msgspec
import pytest

from ksana.base.instant import SECOND
from ksana.domain.tasks.call_records import read_attempts
from ksana.domain.tasks.records import Options, RetryPolicy, Run
from ksana.ports.store import WHOLE, Share
from tests.engine.tasks_world import World, answer, every, once, task_of

CROWD = 400
HOST = "http://target/"
IN_DOUBT = 16 + 64
"""CallSlots of the host, and how far the mark runs ahead of a host nothing is known of."""


async def _die_in_a_crowd(world: World, options: Options, retry: RetryPolicy) -> list[Run]:
    """A crowd for one host that never answers; then a kill. The runs as they stand in the store."""
    world.caller.scripts[HOST] = lambda request: None
    at = world.clock.now() + 5 * SECOND
    tasks = [
        await world.add(
            task_of(
                once(at),
                name=f"t{n}",
                url=HOST,
                retry=retry,
                options=options,
                timeout_us=60 * SECOND,
            )
        )
        for n in range(CROWD)
    ]
    await world.clock.advance(6 * SECOND)
    await world.die()
    world.caller.scripts[HOST] = lambda request: answer(200)
    return [(await world.all_runs(task))[0] for task in tasks]


def _sent(world: World) -> list[str]:
    return [sent.header("X-Ksana-Run-Id") for sent in world.caller.sent]


@pytest.mark.spec("C19", "C23")
@pytest.mark.parametrize(
    "options", [Options(), Options(on_orphan="fail"), Options(delivery="at_most_once")]
)
async def test_after_a_kill_only_what_may_have_been_called_fails(
    world: World, options: Options
) -> None:
    before = await _die_in_a_crowd(world, options, RetryPolicy())
    called = set(_sent(world))
    assert len(called) == 16, "one host, its places"
    assert sum(run.status == "RUNNING" for run in before) > 100, "many more were held"
    await world.revive()
    await world.clock.advance(60 * SECOND)
    runs = [(await world.runs.get(run.id)).run for run in before]
    failed = [run for run in runs if run.status == "FAILED"]
    assert {run.status for run in runs} == {"SUCCESS", "FAILED"}
    assert called <= {run.uid for run in failed}
    mark = await world.store.read(lambda tx: tx.instances.find_begun_to("one-1"))
    assert all(run.id <= (mark or 0) for run in failed)
    assert len(failed) <= IN_DOUBT
    uids = _sent(world)
    assert len(uids) == len(set(uids)), "nobody was called twice for one run"
    assert {run.uid for run in runs if run.status == "SUCCESS"} == set(uids) - called


@pytest.mark.spec("C19", "C12", "X11")
async def test_a_run_that_was_never_begun_has_lost_no_attempt(world: World) -> None:
    before = await _die_in_a_crowd(world, Options(), RetryPolicy(max_retries=1))
    mark = await world.store.read(lambda tx: tx.instances.find_begun_to("one-1"))
    assert mark is not None
    waited = [run for run in before if run.status == "RUNNING" and run.id > mark]
    assert waited
    await world.revive()
    await world.clock.advance(60 * SECOND)
    for run in waited[:20]:
        now = (await world.runs.get(run.id)).run
        assert (now.status, now.attempt) == ("SUCCESS", 1)
        assert [one["status"] for one in read_attempts(now.attempts)] == ["SUCCESS"]
    sent = {
        one.header("X-Ksana-Run-Id"): one.header("X-Ksana-Attempt") for one in world.caller.sent
    }
    assert {sent[run.uid] for run in waited} == {"1"}
    moved = [
        msgspec.json.decode(event.data)["reason"] for event in await world.events("RUN_RETRYING")
    ]
    assert moved.count("HELD_NEVER_BEGUN") == len(waited)


@pytest.mark.spec("C19")
async def test_nothing_is_sent_above_the_mark_in_the_store(world: World) -> None:
    runs: dict[str, int] = {}
    for n in range(40):
        url = f"http://h{n % 3}/"
        await world.add(
            task_of(every(world, 1), name=f"t{n}", url=url, concurrency_policy="PARALLEL")
        )
    world.caller.scripts["http://h0/"] = lambda request: None
    for _ in range(20):
        await world.clock.advance(SECOND // 2)
        page = await world.store.read(lambda tx: tx.runs.list_runs(limit=500))
        runs |= {run.uid: run.id for run in page}
        mark = await world.store.read(lambda tx: tx.instances.find_begun_to("one-1"))
        assert mark is not None
        assert max((runs[uid] for uid in _sent(world)), default=0) <= mark


@pytest.mark.spec("T14", "C22")
async def test_a_crowd_that_answers_is_not_held_up_by_the_mark(world: World) -> None:
    at = world.clock.now() + 5 * SECOND
    for n in range(CROWD):
        await world.add(task_of(once(at), name=f"t{n}", url=HOST))
    await world.clock.advance(6 * SECOND)
    assert len(world.caller.sent) == CROWD
    assert max(sent.at for sent in world.caller.sent) - at < SECOND


@pytest.mark.spec("T14")
async def test_how_many_are_held_ahead_depends_on_who_else_could_take_them(world: World) -> None:
    class Late:
        sole = False

    late = Late()
    dispatcher = world.delivery.dispatcher
    dispatcher._store = late  # type: ignore[assignment]
    world.share = Share(1, 3)
    shared = dispatcher.slot_budget()
    world.share = WHOLE
    nobody_else = dispatcher.slot_budget()
    world.share, late.sole = Share(1, 3), True  # known once the store is open
    alone = dispatcher.slot_budget()
    assert sum(shared.take("h") for _ in range(5000)) == 16 + 1024
    assert sum(nobody_else.take("h") for _ in range(5000)) == 16 + 4096
    assert sum(alone.take("h") for _ in range(5000)) == 16 + 4096
    world.delivery.dispatcher._store = world.store


async def test_what_waits_here_at_all_hosts_is_bounded(world: World) -> None:
    budget = world.delivery.dispatcher.slot_budget()
    assert sum(budget.take(f"h{n}") for n in range(20_000)) == 16_384
