"""CallSlots when they are short: hosts that hang do not take them from hosts that answer, and
nobody keeps what it has."""

import itertools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import pytest

from ksana.base.clock import VirtualClock
from ksana.base.instant import MILLISECOND, SECOND, Micros
from ksana.domain.tasks.records import RetryPolicy
from ksana.engine.tasks.claimer import claim_ready
from ksana.engine.tasks.host_limits import ALONE, SHARED, CallSlots, HostQueue
from tests.engine.tasks_world import World, answer, every, open_world, task_of


class FakeFlight(NamedTuple):
    """A call in flight, which is a call itself."""

    is_resolving: bool
    queue: HostQueue
    since_mono: Micros

    @property
    def call(self) -> "FakeFlight":
        return self

    def abort(self) -> None: ...


@pytest.fixture
async def world(tmp_path: Path, clock: VirtualClock) -> AsyncIterator[World]:
    world = await open_world(tmp_path, clock, workers=8)
    yield world
    await world.die()
    await world.store.close()


@pytest.mark.fault("F16")
@pytest.mark.spec("T14")
async def test_hosts_that_answer_stay_on_time_while_more_hosts_hang_than_there_are_workers(
    world: World,
) -> None:
    for n in range(18):
        world.caller.scripts[f"http://hang{n}/"] = lambda request: None
        members = {
            "url": f"http://hang{n}/",
            "timeout_us": 5 * SECOND,
            "concurrency_policy": "PARALLEL",
        }
        await world.add(task_of(every(world, 1), name=f"hang{n}", **members))  # type: ignore[arg-type]
    for n in range(2):
        await world.add(
            task_of(
                every(world, 1),
                name=f"well{n}",
                url=f"http://well{n}/",
                concurrency_policy="PARALLEL",
            )
        )
    await world.clock.advance(30 * SECOND)
    calls = [sent for sent in world.caller.sent if sent.request.url.startswith("http://well")]
    assert len(calls) == 60, "every slot of the healthy ones was called"
    in_time = [sent for sent in calls if sent.at % SECOND == world.clock.now() % SECOND]
    assert len(in_time) >= 58, "all but the first calls, when nothing was known of any host"
    assert world.caller.most_open <= 16, "at most twice the workers"


@pytest.mark.fault("F16")
@pytest.mark.spec("T14")
async def test_one_late_answer_does_not_put_a_host_behind_those_that_hang(world: World) -> None:
    for n in range(18):
        world.caller.scripts[f"http://hang{n}/"] = lambda request: None
        members = {"url": f"http://hang{n}/", "timeout_us": 5 * SECOND}
        await world.add(task_of(every(world, 1), name=f"hang{n}", **members))  # type: ignore[arg-type]
    answers = iter([*["at once"] * 5, "late", *["at once"] * 30])
    world.caller.scripts["http://well/"] = lambda request: (
        answer(200) if next(answers) == "at once" else None
    )
    well = {"url": "http://well/", "timeout_us": 800 * MILLISECOND}
    await world.add(task_of(every(world, 1), name="well", **well))  # type: ignore[arg-type]
    await world.clock.advance(20 * SECOND)
    sent = [one.at for one in world.caller.sent if one.request.url == "http://well/"]
    assert len(sent) == 20
    gaps = [later - sooner for sooner, later in itertools.pairwise(sent[5:])]
    assert max(gaps) <= SECOND + 100 * MILLISECOND, gaps


@pytest.mark.spec("T14")
@pytest.mark.parametrize("is_resolving", [True, False], ids=["looked up", "connected"])
def test_calls_that_wait_for_names_take_no_slot_of_others(is_resolving: bool) -> None:
    calls: dict[int, FakeFlight] = {}
    slots, new = CallSlots(calls, workers=4), HostQueue("new", 4)
    for number in range(8):
        calls[number] = FakeFlight(is_resolving, HostQueue(f"silent{number}", 4), 0)
    assert not slots.has_slot(new, 0)
    assert slots.has_slot(new, 200 * MILLISECOND) == is_resolving
    assert all(flying.queue.is_slow == is_resolving for flying in calls.values())
    assert not slots.has_slot(calls[0].queue, 600 * MILLISECOND), "slow ones share the workers"


@pytest.mark.spec("T14")
def test_a_server_alone_holds_a_crowd_ahead_and_nothing_for_a_host_that_hangs() -> None:
    held = HostQueue("h", 16)
    for n in range(1, 41):  # 200 answers a second, as a busy machine may let them through
        held.began((n - 1) * 5 * MILLISECOND)
        held.ended((n - 1) * 5 * MILLISECOND, n * 5 * MILLISECOND)
    assert held.room(200 * MILLISECOND, ALONE) > 4096, (
        "what would be written as ready costs a second write"
    )
    held.began(200 * MILLISECOND)
    held.room(300 * MILLISECOND, ALONE)
    assert held.room(3 * SECOND, ALONE) <= 16, "half a second without an answer, and more: it hangs"


def _call(queue: HostQueue, began: int, lasted: int) -> None:
    queue.began(began)
    queue.ended(began, began + lasted)


@pytest.mark.spec("T14")
def test_what_a_host_can_take_is_told_by_how_long_its_calls_last_not_by_how_few_there_were() -> (
    None
):
    quick, slow = HostQueue("quick", 16), HostQueue("slow", 16)
    for n in range(4):  # four calls in 100 ms: we were slow to make more
        _call(quick, n * 25 * MILLISECOND, 4 * MILLISECOND)
        _call(slow, n * 25 * MILLISECOND, 400 * MILLISECOND)
    after = 600 * MILLISECOND
    assert quick.room(after, SHARED) == 16 + 4096, "16 calls of 4 ms each: 4,000 a second"
    assert slow.room(after, SHARED) == 16 + 80, "16 calls of 400 ms each: 40 a second"


@pytest.mark.spec("T14")
def test_a_host_that_was_not_called_for_a_while_can_take_what_it_could() -> None:
    queue = HostQueue("h", 16)
    for n in range(4):
        _call(queue, n * 25 * MILLISECOND, 20 * MILLISECOND)
    assert queue.room(200 * MILLISECOND, SHARED) == 16 + 1600
    for minute in range(1, 60):
        assert queue.room(minute * 60 * SECOND, SHARED) == 16 + 1600
    queue.began(3600 * SECOND)
    queue.room(3600 * SECOND + 100 * MILLISECOND, SHARED)
    assert queue.room(3602 * SECOND, SHARED) == 15, "it was asked, and does not answer"


@pytest.mark.spec("T14")
async def test_places_go_round_among_hosts_that_all_hang(world: World) -> None:
    for n in range(20):
        world.caller.scripts[f"http://hang{n}/"] = lambda request: None
        members = {
            "url": f"http://hang{n}/",
            "timeout_us": 2 * SECOND,
            "concurrency_policy": "PARALLEL",
        }
        await world.add(task_of(every(world, 1), name=f"hang{n}", **members))  # type: ignore[arg-type]
    await world.clock.advance(60 * SECOND)
    counts = [
        sum(sent.request.url == f"http://hang{n}/" for sent in world.caller.sent) for n in range(20)
    ]
    assert min(counts) >= max(counts) // 2, counts


@pytest.mark.spec("C19", "C20")
async def test_a_run_that_is_ours_in_the_store_although_we_were_never_told_is_found(
    world: World,
) -> None:
    hanging = "http://hang/"
    world.caller.scripts[hanging] = lambda request: None
    long = await world.add(
        task_of(every(world, 3600), name="long", url=hanging, timeout_us=600 * SECOND)
    )
    task = await world.add(task_of(every(world, 3600), name="t", retry=RetryPolicy(max_retries=1)))
    known = await world.tasks.run_now(long.id)
    await world.clock.settle()
    started = await world.tasks.trigger(task.id)
    # The claim that follows is not ours: its answer is lost for good.
    world.delivery.claimer._ready.clear()
    await world.store.transact(lambda tx: claim_ready(tx, "target", "one-1", [77], 1))
    await world.clock.advance(110 * SECOND)
    assert (await world.runs.get(started.run_id)).run.status == "RUNNING"
    await world.clock.advance(20 * SECOND)
    run = (await world.runs.get(started.run_id)).run
    assert (run.status, run.attempt) == ("SUCCESS", 2)
    assert '"LOST"' in run.attempts
    assert (await world.runs.get(known.run_id)).run.status == "RUNNING", (
        "a call that just takes long is let be"
    )


@pytest.mark.spec("C12", "C19")
async def test_an_outcome_the_store_will_not_take_takes_no_other_with_it(world: World) -> None:
    bad = answer(2**70)  # no column holds it
    world.caller.scripts["http://h3/"] = lambda request: (
        bad if ("X-Ksana-Attempt", "1") in request.headers else answer(200)
    )
    tasks = [
        await world.add(
            task_of(
                every(world, 3600),
                name=f"t{n}",
                url=f"http://h{n}/",
                retry=RetryPolicy(max_retries=1),
            )
        )
        for n in range(6)
    ]
    await world.clock.advance(3601 * SECOND)
    statuses = [(await world.all_runs(task))[-1].status for task in tasks]
    assert statuses == ["SUCCESS"] * 3 + ["RUNNING"] + ["SUCCESS"] * 2
    await world.clock.advance(200 * SECOND)
    run = (await world.all_runs(tasks[3]))[-1]
    assert (run.status, run.attempt) == ("SUCCESS", 2), "the orphan rule has it"
