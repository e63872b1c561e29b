"""What Redis does to us: stopped, frozen, wiped, failed over, resharded (N13, N15, F45–F49)."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import redis as redis_client

from ksana.base.clock import SystemClock
from ksana.base.errors import DependencyDownError
from ksana.base.instant import SECOND
from ksana.domain.nodes.records import Binding
from ksana.fabric.redis.fabric import RedisFabric
from ksana.fabric.redis.keys import RedisKeys, slot_of
from tests.conformance.fabric.world import LONG, World, a_job, an_instance, change, eventually
from tests.ground.child import wait_for
from tests.ground.redis import ClusterNode, Redis, RedisCluster
from tests.ground.server import obtain

KEYS = RedisKeys("test")
NODES = 6


@pytest.fixture
async def single(redis: Redis) -> AsyncIterator[World]:
    world = World(redis)
    yield world
    await world.close()


@pytest.fixture
async def cluster(redis_cluster: RedisCluster) -> AsyncIterator[World]:
    world = World(redis_cluster)
    yield world
    await world.close()


@pytest.fixture(scope="module")
def redis_pairs_server() -> Iterator[RedisCluster]:
    """Three masters with a replica each."""
    server = obtain(partial(RedisCluster, 3, 1))  # type: ignore[arg-type]
    yield server
    server.close()


@asynccontextmanager
async def load(
    step: Callable[[int], Awaitable[Any]], workers: int = 8
) -> AsyncIterator[list[BaseException]]:
    """Work that goes on while something is done to Redis. What it raises is collected."""
    errors: list[BaseException] = []
    is_over = False

    async def work(worker: int) -> None:
        number = 0
        while not is_over:
            try:
                await step(worker * 1_000_000 + number)
            except Exception as error:
                errors.append(error)
            number += 1

    tasks = [asyncio.create_task(work(n)) for n in range(workers)]
    try:
        yield errors
    finally:
        is_over = True
        await asyncio.gather(*tasks)


async def live(fabric: Any, number: int) -> None:
    """One job from its binding to its release."""
    job_id, node_id = f"job-{number}", f"node-{number % NODES}"
    bound = await fabric.requests.bind(f"r-{number}", Binding(job_id=job_id), LONG)
    assert bound.job_id == job_id
    result = await fabric.reservations.reserve(node_id, job_id, 1_000, "echo", LONG)
    assert result == "reserved"
    await fabric.jobs.create(a_job(job_id), "one", LONG, change("dispatch", 1, node_id))
    assert (await fabric.jobs.move(job_id, change("finish", 1, node_id))).holds
    await fabric.reservations.release(node_id, job_id)
    assert (await fabric.jobs.move(job_id, change("release", 1))).holds
    assert await fabric.reservations.reserve(node_id, job_id, 0, "echo", LONG) == "full"


@pytest.mark.spec("N15")
async def test_redis_that_is_away_is_refused_soon_and_then_at_once_and_comes_back_by_itself(
    single: World,
) -> None:
    fabric = single.join("one")
    await fabric.presence.renew(an_instance(fabric), LONG)
    assert single.server is not None
    single.server.kill()
    began = time.monotonic()
    with pytest.raises(DependencyDownError) as caught:
        await fabric.presence.list_living()
    assert caught.value.code == "SCHEDULER_DEPENDENCY_DOWN"
    assert time.monotonic() - began < 8
    assert not fabric.health().ok
    began = time.monotonic()
    for _ in range(20):
        with pytest.raises(DependencyDownError):
            await fabric.presence.list_living()
    assert time.monotonic() - began < 2  # nobody waits for what is known to be away
    single.server.heal()

    async def is_back() -> bool:
        try:
            await fabric.presence.renew(an_instance(fabric), LONG)
        except DependencyDownError:
            return False
        return True

    await eventually(is_back)
    assert fabric.health().ok
    assert fabric.count_ops()["presence", "error"] >= 20


@pytest.mark.spec("N15")
async def test_a_frozen_redis_does_not_hold_anybody_for_long(single: World) -> None:
    fabric = single.join("one")
    await fabric.presence.renew(an_instance(fabric), LONG)
    assert single.server is not None
    single.server.pause()
    began = time.monotonic()
    answers = await asyncio.gather(
        *(fabric.jobs.find(f"j{n}") for n in range(50)), return_exceptions=True
    )
    assert all(isinstance(answer, DependencyDownError) for answer in answers)
    assert time.monotonic() - began < 10
    single.server.resume()

    async def finds() -> bool:
        try:
            return await fabric.jobs.find("j") is None
        except DependencyDownError:
            return False

    await eventually(finds)


@pytest.mark.spec("N15")
async def test_a_blocking_read_survives_a_restart_and_goes_on(single: World) -> None:
    fabric, other = single.join("one"), single.join("two")
    await fabric.inbox.open()
    reading = asyncio.create_task(fabric.inbox.read(10, 30 * SECOND))
    await asyncio.sleep(0.05)
    assert single.server is not None
    single.server.kill()
    with pytest.raises(DependencyDownError):
        await reading
    single.server.heal()

    async def sends() -> bool:
        try:
            await fabric.inbox.read(1, 1000)
            return await other.inbox.send("one", b"x") == "sent"
        except DependencyDownError:
            return False

    await eventually(sends)
    found = await eventually(lambda: fabric.inbox.read(10, SECOND))
    assert [delivery.body for delivery in found] == [b"x"]


@pytest.mark.spec("N9")
async def test_a_read_that_is_cut_off_loses_no_message(single: World) -> None:
    fabric, other = single.join("one"), single.join("two")
    await fabric.inbox.open()
    for turn in range(10):
        reading = asyncio.create_task(fabric.inbox.read(10, 30 * SECOND))
        await asyncio.sleep(0.005)
        sending = asyncio.create_task(other.inbox.send("one", b"%d" % turn))
        await asyncio.sleep(0.0005 * turn)
        reading.cancel()
        assert await sending == "sent"
        (result,) = await asyncio.gather(reading, return_exceptions=True)
        found = [] if isinstance(result, BaseException) else result
        while not found:
            found = await fabric.inbox.read(10, SECOND)
        assert [delivery.body for delivery in found] == [b"%d" % turn]
        await fabric.inbox.done([delivery.id for delivery in found])
    assert (await fabric.inbox.measure()).length == 0


@pytest.mark.spec("N13")
async def test_scripts_are_loaded_again_where_a_server_has_forgotten_them(single: World) -> None:
    fabric = single.join("one")
    await live(fabric, 1)
    assert single.server is not None
    with single.server.connect() as client:
        client.script_flush()
    await live(fabric, 2)


@pytest.mark.spec("X3", "N13")
async def test_a_wipe_under_load_breaks_nothing_but_what_was_lost(single: World) -> None:
    fabric = single.join("one")

    async def bind(number: int) -> None:
        binding = Binding(job_id=f"job-{number}")
        await fabric.requests.bind(f"r-{number}", binding, LONG)
        await fabric.jobs.create(a_job(f"job-{number}"), "one", LONG)
        moved = await fabric.jobs.move(f"job-{number}", change("finish"))
        assert moved.result in ("moved", "missing")

    async with load(bind) as errors:
        for _ in range(5):
            await asyncio.sleep(0.05)
            single.wipe()
    assert errors == []


def move_slot(cluster: RedisCluster, slot: int, target: ClusterNode) -> None:
    """Move a slot as `redis-cli --cluster reshard` does, key by key, while it is in use."""
    (source,) = [node for node in cluster.masters if has_slot(node, slot)]
    if source is target:
        return
    target.ask("SETSLOT", slot, "IMPORTING", source.node_id())
    source.ask("SETSLOT", slot, "MIGRATING", target.node_id())
    with source.connect() as client:
        while keys := client.execute_command("CLUSTER GETKEYSINSLOT", slot, 10):
            for key in keys:
                client.execute_command("MIGRATE", target.host, target.port, key, 0, 5000)
                time.sleep(0.002)
    for node in (target, source, *cluster.masters):
        node.ask("SETSLOT", slot, "NODE", target.node_id())


def has_slot(node: ClusterNode, slot: int) -> bool:
    with node.connect() as client:
        for first, last, *owners in client.execute_command("CLUSTER SLOTS"):
            if first <= slot <= last:
                port = owners[0][1] if isinstance(owners[0], list) else owners[0]["port"]
                return int(port) == node.port
    return False


@pytest.mark.fault("F47")
@pytest.mark.spec("N13")
@pytest.mark.slow
async def test_slots_that_move_under_load_disturb_nobody(
    cluster: World, redis_cluster: RedisCluster
) -> None:
    fabric = cluster.join("one")
    for number in range(NODES):
        await live(fabric, -number - 1)
    slots = [slot_of(KEYS.reserved(f"node-{n}")) for n in range(NODES)]
    async with load(partial(live, fabric)) as errors:
        for turn, slot in enumerate(slots):
            target = redis_cluster.masters[turn % 3]
            await asyncio.to_thread(move_slot, redis_cluster, slot, target)
            await asyncio.sleep(0.05)
    assert errors == []
    assert any(result == "retried" for _, result in fabric.count_ops())


@pytest.mark.spec("N13")
@pytest.mark.slow
async def test_a_master_that_is_lost_is_ridden_out_and_nothing_is_doubled(
    redis_pairs_server: RedisCluster,
) -> None:
    server = redis_pairs_server
    server.heal()
    server.wipe()
    world = World(server)
    fabric = world.join("one")
    lost: list[str] = []

    async def step(number: int) -> None:
        # Failing over may lose what was written last (F45): such a job is missing, never doubled.
        job_id = f"job-{number}"
        await fabric.jobs.create(a_job(job_id), "one", LONG, change("dispatch", 1, "n"))
        moved = await fabric.jobs.move(job_id, change("finish", 1, "n"))
        assert moved.result in ("moved", "repeat", "missing"), moved
        if moved.result == "missing":
            lost.append(job_id)

    try:
        for number in range(30):
            await step(-number - 1)
        await asyncio.to_thread(wait_for, server.is_settled, "the cluster is whole")
        async with load(step) as errors:
            await asyncio.sleep(0.2)
            server.masters[0].kill()
            replica = server.replicas[0]
            await asyncio.to_thread(
                wait_for, partial(is_master, replica), "the replica takes over", within_s=20
            )
            await asyncio.sleep(1.0)
        away = [error for error in errors if not isinstance(error, DependencyDownError)]
        assert away == []
        assert len(errors) < 50  # most waited until the replica had taken over
        for number in range(30):
            await step(10**9 + number)
    finally:
        await world.close()


def is_master(node: ClusterNode) -> bool:
    with node.connect() as client:
        try:
            return bool(client.info("replication")["role"] == "master")
        except redis_client.RedisError:
            return False


@pytest.mark.spec("N13")
async def test_one_master_that_is_away_does_not_stop_work_on_the_others(
    cluster: World, redis_cluster: RedisCluster
) -> None:
    fabric = cluster.join("one")
    await fabric.presence.renew(an_instance(fabric), LONG)
    dead = redis_cluster.masters[1]
    job_ids = [f"j{n}" for n in range(60)]
    there = [job_id for job_id in job_ids if not has_slot(dead, slot_of(KEYS.job(job_id)))]
    gone = [job_id for job_id in job_ids if job_id not in there]
    dead.kill()
    refused = await asyncio.gather(*map(fabric.jobs.find, gone), return_exceptions=True)
    assert {type(answer) for answer in refused} == {DependencyDownError}
    assert await asyncio.gather(*map(fabric.jobs.find, there)) == [None] * len(there)


@pytest.mark.spec("N13")
async def test_a_cluster_is_found_by_any_of_its_addresses(redis_cluster: RedisCluster) -> None:
    dead = Redis()
    for seed in redis_cluster.masters:
        url = f"redis+cluster://{dead.host}:{dead.port},{seed.host}:{seed.port}"
        fabric = RedisFabric(url, "one", SystemClock(), "test")
        try:
            await live(fabric, 1 + redis_cluster.masters.index(seed))
        finally:
            await fabric.close()


async def test_callers_that_wait_together_share_round_trips(single: World) -> None:
    fabric = single.join("one")
    await fabric.jobs.find("j")
    before = fabric.health().round_trips
    await asyncio.gather(*(fabric.jobs.find(f"j{n}") for n in range(200)))
    assert fabric.health().round_trips - before <= 3


@pytest.mark.fault("F43")
async def test_a_caller_that_gives_up_does_not_mix_up_the_answers_of_others(
    single: World,
) -> None:
    fabric = single.join("one")
    for n in range(40):
        await fabric.jobs.create(a_job(f"j{n}"), "one", LONG)
    tasks = [asyncio.create_task(fabric.jobs.find(f"j{n}")) for n in range(40)]
    await asyncio.sleep(0)
    for task in tasks[::3]:
        task.cancel()
    found = await asyncio.gather(*tasks, return_exceptions=True)
    for n, job in enumerate(found):
        if n % 3:
            assert not isinstance(job, BaseException)
            assert job is not None
            assert job.request.job_id == f"j{n}"
