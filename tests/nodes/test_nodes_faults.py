"""The nodes surface under load while Redis is stopped, killed, emptied, failed over or resharded
(X3, N13, N15): every job that was promised ends and is told once, no socket is closed, and all
resumes by itself."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Any

import pytest

from ksana.base.errors import DependencyDownError
from ksana.base.instant import MILLISECOND, SECOND
from ksana.domain.nodes import frames
from ksana.domain.nodes.attempts import AttemptLimits
from ksana.engine.nodes.parameters import NodeParameters
from ksana.fabric.redis.keys import RedisKeys, slot_of
from tests.conformance.fabric.test_faults import has_slot, is_master, move_slot
from tests.ground.child import wait_for
from tests.ground.proxy import FaultProxy
from tests.ground.redis import Redis, RedisCluster
from tests.ground.server import obtain
from tests.nodes.load import Load, slots_are_free
from tests.nodes.world import Instance, NodeTalker, World, until

BRIEF = NodeParameters(
    refresh_us=100 * MILLISECOND,
    progress_us=10 * MILLISECOND,
    presence_ttl_us=6 * SECOND,
    owner_ttl_us=6 * SECOND,
    heartbeat_us=2 * SECOND,
    limits=AttemptLimits(ack_us=2 * SECOND, start_us=4 * SECOND, result_us=8 * SECOND),
)
KEYS = RedisKeys("world")


class Scene:
    """A node on each of two instances, a session on the second."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.nodes: list[NodeTalker] = []
        self.one: Instance
        self.two: Instance
        self.load: Load

    async def set_up(self, settings: NodeParameters = BRIEF) -> "Scene":
        self.one = await self.world.start("one", settings)
        self.two = await self.world.start("two", settings)
        for name, instance in (("n1", self.one), ("n2", self.two)):
            node = await instance.node(name, slots=6)
            node.mode = "work"
            self.nodes.append(node)
        await self.two.sees("n1")
        self.load = Load(await self.two.session("s"))
        return self

    async def check(self, *, may_fail: int = 0) -> None:
        self.load.check(self.nodes, may_fail=may_fail)
        await slots_are_free(self.one, "n1", "n2")
        for instance in (self.one, self.two):
            assert instance.engine.home.jobs == {}


@pytest.fixture
async def single(redis: Redis) -> AsyncIterator[Scene]:
    world = World(redis.url())
    yield Scene(world)
    await world.close()


@pytest.fixture
async def cluster(redis_cluster: RedisCluster) -> AsyncIterator[Scene]:
    world = World(redis_cluster.url())
    yield Scene(world)
    await world.close()


TIMES = [2.0, pytest.param(10.0, marks=pytest.mark.slow)]


@pytest.mark.spec("N15")
@pytest.mark.parametrize("seconds", TIMES)
async def test_redis_stopped_for_a_while_costs_no_job(
    single: Scene, redis: Redis, seconds: float
) -> None:
    scene = await single.set_up()
    async with scene.load.going_on() as load:
        redis.pause()
        await asyncio.sleep(seconds)
        redis.resume()
        await load.more(100)
    await scene.check()
    if seconds > 5:
        assert load.refused > 0  # told, not kept waiting


@pytest.mark.spec("N15", "X3")
@pytest.mark.parametrize("seconds", TIMES)
async def test_redis_killed_and_back_empty_after_a_while_costs_no_job(
    single: Scene, redis: Redis, seconds: float
) -> None:
    scene = await single.set_up()
    async with scene.load.going_on() as load:
        redis.kill()
        await asyncio.sleep(seconds)
        redis.heal()
        await load.more(100)
    await scene.check()


@pytest.mark.spec("N15")
async def test_while_redis_is_away_nodes_work_on_for_sessions_of_their_instance(
    single: Scene, redis: Redis
) -> None:
    scene = await single.set_up()
    node = scene.nodes[1]
    node.mode = "hold"
    scene.nodes[0].mode = "hold"
    session = await scene.two.session("here")
    made = [await session.ask(b"%d" % n) for n in range(4)]
    await until(lambda: sum(len(one.all(frames.JobAssign)) for one in scene.nodes) == 4)
    mine = node.all(frames.JobAssign)
    assert mine
    redis.kill()
    with pytest.raises(DependencyDownError):
        await session.ask(b"5", request_id="r")
    for assign in mine:
        node.finish(assign)
    told = await session.wait(frames.SessionResult, len(mine), within_s=10)
    assert {one.job_id for one in told} == {one.job_id for one in mine}
    redis.heal()
    for assign in scene.nodes[0].all(frames.JobAssign):
        scene.nodes[0].finish(assign)
    told = await session.wait(frames.SessionResult, 4)
    assert sorted(one.job_id for one in told) == sorted(one.job_id for one in made)
    assert all(one.success for one in told)


@pytest.mark.fault("F45")
@pytest.mark.spec("X3", "N13")
async def test_a_wipe_under_load_costs_no_job(single: Scene, redis: Redis) -> None:
    scene = await single.set_up()
    async with scene.load.going_on() as load:
        for _ in range(3):
            await asyncio.sleep(0.3)
            redis.wipe()
            await load.more(30)
    await scene.check()
    assert load.refused == 0


@pytest.mark.spec("N6", "X3")
async def test_after_a_wipe_the_slots_of_running_jobs_are_held_again(
    single: Scene, redis: Redis
) -> None:
    scene = await single.set_up()
    for node in scene.nodes:
        node.mode = "hold"
    session = await scene.two.session("here")
    for number in range(12):
        await session.ask(b"%d" % number)
    await until(lambda: sum(len(node.all(frames.JobAssign)) for node in scene.nodes) == 12)
    redis.wipe()

    async def held() -> list[int]:
        return [await scene.one.fabric.reservations.count(name) for name in ("n1", "n2")]

    async with asyncio.timeout(10):
        while await held() != [6, 6]:
            await asyncio.sleep(0.05)
    await session.ask(b'"late"', wait_sec=20)
    assert [len(node.all(frames.JobAssign)) for node in scene.nodes] == [6, 6]
    for node in scene.nodes:
        for assign in node.all(frames.JobAssign):
            node.finish(assign)
        node.mode = "echo"
    assert all(one.success for one in await session.wait(frames.SessionResult, 13))
    for node in scene.nodes:
        assert node.most_at_once <= 6


@pytest.mark.fault("F45")
@pytest.mark.spec("N13")
async def test_a_replica_that_takes_over_goes_on_with_what_it_has() -> None:
    """A single Redis behind an address that moves: the master dies, its replica is promoted."""
    master = obtain(Redis)
    replica = obtain(Redis)
    try:
        with replica.connect() as client:
            client.replicaof(master.host, master.port)
            wait_for(
                lambda: client.info("replication").get("master_link_status") == "up",
                "the replica follows",
            )
        with FaultProxy(master.host, master.port) as address:
            world = World(address.url(master.url()))
            try:
                scene = await Scene(world).set_up()
                async with scene.load.going_on() as load:
                    await asyncio.to_thread(master.kill)
                    await asyncio.sleep(0.5)
                    with replica.connect() as client:
                        client.replicaof("no", "one")
                    address.upstream = (replica.host, replica.port)
                    address.cut()
                    await load.more(100)
                await scene.check()
            finally:
                await world.close()
    finally:
        master.close()
        replica.close()


@pytest.fixture(scope="module")
def redis_pairs() -> Iterator[RedisCluster]:
    """Three masters with a replica each."""
    server = obtain(partial(RedisCluster, 3, 1))  # type: ignore[arg-type]
    yield server
    server.close()


@pytest.mark.fault("F47")
@pytest.mark.spec("N13")
@pytest.mark.slow
@pytest.mark.parametrize("number", [0, 1, 2])
async def test_a_cluster_master_that_is_killed_costs_no_job(
    redis_pairs: RedisCluster, number: int
) -> None:
    redis_pairs.heal()
    redis_pairs.wipe()
    await asyncio.to_thread(_give_back, redis_pairs)
    world = World(redis_pairs.url())
    try:
        scene = await Scene(world).set_up()
        async with scene.load.going_on() as load:
            await asyncio.to_thread(redis_pairs.masters[number].kill)
            replica = redis_pairs.replicas[number]
            await asyncio.to_thread(
                wait_for, partial(is_master, replica), "the replica takes over", within_s=20
            )
            await load.more(100)
        await scene.check()
    finally:
        await world.close()


def _give_back(server: RedisCluster) -> None:
    """Let the first masters be masters again."""
    for node in server.masters:
        if not is_master(node):
            node.ask("FAILOVER", "TAKEOVER")
    wait_for(lambda: all(is_master(node) for node in server.masters), "the masters are back")
    wait_for(server.is_settled, "the cluster is whole")


@pytest.mark.spec("N13")
async def test_a_cluster_master_away_for_a_moment_is_ridden_out(
    cluster: Scene, redis_cluster: RedisCluster
) -> None:
    scene = await cluster.set_up()
    async with scene.load.going_on() as load:
        redis_cluster.masters[1].pause()
        await asyncio.sleep(0.8)
        redis_cluster.masters[1].resume()
        await load.more(50)
    await scene.check()
    assert load.refused == 0


@pytest.mark.fault("F47")
@pytest.mark.spec("N13")
async def test_slots_that_move_under_load_cost_no_job(
    cluster: Scene, redis_cluster: RedisCluster
) -> None:
    scene = await cluster.set_up()
    moved: list[Any] = [KEYS.reserved("n1"), KEYS.inbox("one"), KEYS.homed("two")]
    async with scene.load.going_on() as load:
        for turn, key in enumerate(moved):
            slot = slot_of(key)
            (source,) = [n for n, one in enumerate(redis_cluster.masters) if has_slot(one, slot)]
            target = redis_cluster.masters[(source + 1 + turn % 2) % 3]
            await asyncio.to_thread(move_slot, redis_cluster, slot, target)
            await load.more(20)
    await scene.check()
    assert load.refused == 0
