"""How often a node job asks Redis: a budget, by operation and in round trips."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from ksana.base.instant import SECOND
from ksana.domain.nodes import frames
from ksana.engine.nodes.parameters import NodeParameters
from tests.ground.redis import Redis
from tests.nodes.world import Instance, SessionTalker, World

QUIET = NodeParameters(refresh_us=SECOND)
JOBS = 60

ACROSS = {
    "bind": 1,
    "reserve": 1,
    "homed": 1,
    "job_create": 1,
    "inbox_send": 2,
    "inbox_read": 2,
    "inbox_done": 2,
    "release": 1,
    "job_finish": 1,
}
"""Operations of one job whose node is on another instance than its session."""

MOST_TRIPS_ACROSS = 6
"""bind + reserve; list + create + send; read here; send back; read there; free + finish."""

HERE = {"bind": 1, "reserve": 1, "homed": 1, "job_create": 1, "release": 1, "job_finish": 1}
MOST_TRIPS_HERE = 3

BACKGROUND = {"presence", "snapshot", "owner", "inbox_open", "inbox_measure", "dlq_move"} | {
    "inbox_reclaim",
    "signal",
}


@pytest.fixture
async def single(redis: Redis) -> AsyncIterator[World]:
    world = World(redis.url())
    yield world
    await world.close()


def look(instances: list[Instance]) -> tuple[int, dict[str, int]]:
    ops: dict[str, int] = {}
    for instance in instances:
        for (op, result), count in instance.fabric.count_ops().items():
            if result == "ok":
                ops[op] = ops.get(op, 0) + count
    return sum(one.fabric.health().round_trips for one in instances), ops


async def lone_jobs(session: SessionTalker, first: int) -> None:
    for number in range(first, first + JOBS):
        await session.ask(b"%d" % number, request_id=f"r{number}")
        await session.wait(frames.SessionResult, number + 1)


async def count_ways(
    instances: list[Instance], session: SessionTalker
) -> tuple[float, dict[str, float]]:
    """Round trips and operations a job, without those that instances make anyhow."""
    await lone_jobs(session, 0)  # connections, scripts
    loop = asyncio.get_running_loop()
    began, (trips, _) = loop.time(), look(instances)
    await asyncio.sleep(2.0)
    idle = (look(instances)[0] - trips) / (loop.time() - began)
    began, (trips, ops) = loop.time(), look(instances)
    await lone_jobs(session, JOBS)
    spent = loop.time() - began
    more_trips, more_ops = look(instances)
    each = {
        op: (count - ops.get(op, 0)) / JOBS
        for op, count in more_ops.items()
        if op not in BACKGROUND and count > ops.get(op, 0)
    }
    return (more_trips - trips - idle * spent) / JOBS, each


def check(each: dict[str, float], allowed: dict[str, int]) -> None:
    assert set(each) <= set(allowed), each
    for op, most in allowed.items():
        # A little more: ended jobs are struck off together, an idle inbox is read every second.
        assert most - 0.1 <= each[op] <= most + 0.2, (op, each)


@pytest.mark.spec("N6", "N7", "N9")
async def test_a_lone_job_across_instances_keeps_to_its_round_trips(single: World) -> None:
    one, two = await single.start("one", QUIET), await single.start("two", QUIET)
    await one.node("n", slots=8)
    await two.sees("n")
    trips, each = await count_ways([one, two], await two.session("s"))
    check(each, ACROSS)
    assert trips <= MOST_TRIPS_ACROSS + 0.3, (trips, each)


@pytest.mark.spec("N6", "N7")
async def test_a_lone_job_on_one_instance_keeps_to_its_round_trips(single: World) -> None:
    one = await single.start("one", QUIET)
    await one.node("n", slots=8)
    trips, each = await count_ways([one], await one.session("s"))
    check({op: count for op, count in each.items() if op != "inbox_read"}, HERE)
    assert trips <= MOST_TRIPS_HERE + 0.3, (trips, each)


@pytest.mark.spec("N8", "N6")
async def test_a_repeat_gives_the_slot_back_that_was_asked_for_too_early(single: World) -> None:
    one = await single.start("one", QUIET)
    node = await one.node("n", slots=8)
    node.mode = "hold"
    session = await one.session("s")
    first = await session.ask(b"1", request_id="r")
    for _ in range(5):
        again = await session.ask(b"1", request_id="r")
        assert (again.job_id, again.is_repeat) == (first.job_id, True)
    async with asyncio.timeout(5):
        while await one.fabric.reservations.count("n") != 1:
            await asyncio.sleep(0.01)
    view = one.engine.view.get("n")
    assert view is not None
    assert view.running == 1
