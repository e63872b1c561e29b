"""The nodes surface while Redis is stopped, emptied or failing (X3, N13, N15)."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from ksana.base.errors import DependencyDownError
from ksana.base.instant import MILLISECOND
from ksana.domain.nodes import frames
from ksana.engine.nodes.parameters import NodeParameters
from tests.ground.redis import Redis, RedisCluster
from tests.nodes.world import World, until

BRIEF = NodeParameters(
    refresh_us=100 * MILLISECOND,
    progress_us=10 * MILLISECOND,
    presence_ttl_us=6_000 * MILLISECOND,
    owner_ttl_us=6_000 * MILLISECOND,
    heartbeat_us=2_000 * MILLISECOND,
)


@pytest.fixture
async def single(redis: Redis) -> AsyncIterator[World]:
    world = World(redis.url())
    yield world
    await world.close()


@pytest.mark.spec("N15")
@pytest.mark.slow
async def test_redis_stopped_for_seconds_keeps_sockets_open_and_all_resumes(
    single: World, redis: Redis
) -> None:
    one, two = await single.start("one", BRIEF), await single.start("two", BRIEF)
    node = await one.node("n", slots=10)
    node.mode = "hold"
    session = await two.session("s")
    await two.sees("n")
    await session.ask(b"1", wait_sec=5.0)
    await until(lambda: node.all(frames.JobAssign))
    redis.kill()
    with pytest.raises(DependencyDownError):
        await session.ask(b"2", request_id="r")
    node.finish(node.all(frames.JobAssign)[0])  # the result waits for Redis
    await asyncio.sleep(2.0)
    assert node.closed is None
    assert session.closed is None
    redis.heal()  # it comes back empty
    (result,) = await session.wait(frames.SessionResult)
    assert bytes(result.data) == b"1"
    node.mode = "echo"

    async def is_served() -> bool:
        try:
            await session.ask(b"3", wait_sec=1.0)
        except DependencyDownError:
            return False
        return True

    async with asyncio.timeout(30):
        while not await is_served():
            await asyncio.sleep(0.1)
    await session.wait(frames.SessionResult, 2)
    assert node.closed is None
    assert session.closed is None


@pytest.mark.spec("X3", "N13")
@pytest.mark.slow
async def test_a_wipe_under_load_ends_every_job_and_tells_its_session(
    single: World, redis: Redis
) -> None:
    one, two = await single.start("one", BRIEF), await single.start("two", BRIEF)
    await one.node("n", slots=20)
    session = await two.session("s")
    await two.sees("n")
    asked, refused = 0, 0
    for turn in range(300):
        try:
            await session.ask(b"%d" % turn, wait_sec=8.0)
            asked += 1
        except DependencyDownError:
            refused += 1
        if turn % 100 == 50:
            redis.wipe()
    results = await session.wait(frames.SessionResult, asked)
    assert len(results) == asked
    assert len({result.job_id for result in results}) == asked  # each once
    await session.ask(b"after", wait_sec=20.0)
    await session.wait(frames.SessionResult, asked + 1)
    assert refused == 0


@pytest.mark.spec("N13")
@pytest.mark.slow
async def test_a_master_away_for_a_moment_is_ridden_out(redis_cluster: RedisCluster) -> None:
    world = World(redis_cluster.url())
    try:
        one, two = await world.start("one", BRIEF), await world.start("two", BRIEF)
        await one.node("n", slots=20)
        session = await two.session("s")
        await two.sees("n")
        redis_cluster.masters[1].pause()
        asking = asyncio.gather(
            *(session.ask(b"%d" % n, wait_sec=10.0) for n in range(60)), return_exceptions=True
        )
        await asyncio.sleep(0.8)
        redis_cluster.masters[1].resume()
        made = await asking
        kept = [one for one in made if isinstance(one, frames.JobCreated)]
        assert len(kept) == 60, [one for one in made if not isinstance(one, frames.JobCreated)][:3]
        results = await session.wait(frames.SessionResult, 60)
        assert len({result.job_id for result in results}) == 60
    finally:
        await world.close()
