"""A replica that never finished its first sync does not take over: it is seen before its master is
lost, and after that the other masters serve on until the lost one is back (F48)."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from functools import partial

import pytest

from ksana.base.errors import DependencyDownError
from ksana.boot.surfaces.nodes import describe_replicas
from ksana.fabric.redis.keys import RedisKeys, slot_of
from ksana.fabric.redis.replicas import read_replicas
from ksana.ports.fabric import FabricHealth
from tests.conformance.fabric.test_faults import has_slot, is_master
from tests.conformance.fabric.world import LONG, World, eventually
from tests.ground.child import wait_for
from tests.ground.redis import NODE_TIMEOUT_MS, ClusterNode, RedisCluster
from tests.ground.server import obtain

KEYS = RedisKeys("test")


@pytest.fixture
def cluster() -> Iterator[RedisCluster]:
    """Three masters; the first has a replica that waits for its first sync for ever."""
    cluster = obtain(partial(RedisCluster, 3, 0))  # type: ignore[arg-type]
    replica = obtain(ClusterNode)
    cluster.replicas.append(replica)
    first = cluster.masters[0]
    set_delay(first, 3600)
    replica.ask("MEET", first.host, first.port)
    wait_for(partial(follows, replica, first), "the replica knows whom to follow", every_s=0.05)
    wait_for(partial(has_state, first, "wait_bgsave"), "it waits for its sync", every_s=0.05)
    yield cluster
    cluster.close()


@pytest.fixture
async def world(cluster: RedisCluster) -> AsyncIterator[World]:
    world = World(cluster)
    yield world
    await world.close()


def set_delay(master: ClusterNode, seconds: int) -> None:
    """After which a master begins to send its data to a new replica."""
    with master.connect() as client:
        client.config_set("repl-diskless-sync", "yes")
        client.config_set("repl-diskless-sync-delay", seconds)


def follows(replica: ClusterNode, master: ClusterNode) -> bool:
    try:
        replica.ask("REPLICATE", master.node_id())
    except Exception:
        return False
    return True


def has_state(master: ClusterNode, state: str) -> bool:
    with master.connect() as client:
        return bool(client.info("replication").get("slave0", {}).get("state") == state)


def node_on(master: ClusterNode) -> str:
    """The id of a node whose reservations lie on a master."""
    names = (f"node-{n}" for n in range(1000))
    return next(name for name in names if has_slot(master, slot_of(KEYS.reserved(name))))


@pytest.mark.fault("F48")
@pytest.mark.spec("N13", "N15")
async def test_a_replica_without_its_first_sync_is_told_of_and_its_masters_loss_is_ridden_out(
    cluster: RedisCluster, world: World
) -> None:
    fabric = world.join("one")
    lost, other = cluster.masters[0], cluster.masters[1]
    replica = cluster.replicas[0]
    on_lost, on_other = node_on(lost), node_on(other)
    for name in (on_lost, on_other):
        assert await fabric.reservations.reserve(name, "before", 9, "echo", LONG) == "reserved"
    await fabric.look_at_replicas()
    health = fabric.health()
    assert health.ok
    assert (health.replicas, health.replicas_behind) == (0, (f"{replica.host}:{replica.port}",))

    lost.kill()
    began = time.monotonic()
    with pytest.raises(DependencyDownError):
        await fabric.reservations.reserve(on_lost, "while", 9, "echo", LONG)
    assert time.monotonic() - began < 8, "refused in time, not kept waiting"
    while time.monotonic() < began + 3 * NODE_TIMEOUT_MS / 1000:
        number = f"{time.monotonic()}"
        got = await fabric.reservations.reserve(on_other, number, 9_999, "echo", LONG)
        assert got == "reserved", "the other masters serve on"
        await asyncio.sleep(0.2)
    assert not is_master(replica), "it has nothing, so it must not take over"

    await asyncio.to_thread(lost.heal)

    async def is_back() -> bool:
        try:
            got = await fabric.reservations.reserve(on_lost, "after", 9, "echo", LONG)
        except DependencyDownError:
            return False
        return got == "reserved"

    await eventually(is_back)
    set_delay(lost, 0)
    await asyncio.to_thread(wait_for, partial(has_state, lost, "online"), "it is in step")
    await fabric.look_at_replicas()
    assert (fabric.health().replicas, fabric.health().replicas_behind) == (1, ())


def test_what_a_master_says_of_its_replicas_is_read() -> None:
    said = (
        b"# Replication\r\nrole:master\r\nconnected_slaves:2\r\n"
        b"slave0:ip=10.0.0.1,port=7001,state=online,offset=14,lag=0\r\n"
        b"slave1:ip=10.0.0.2,port=7002,state=wait_bgsave,offset=0,lag=0\r\n"
        b"slave_repl_offset:3\r\n"
    )
    assert read_replicas(said) == [("10.0.0.1:7001", True), ("10.0.0.2:7002", False)]
    assert read_replicas(b"role:master\r\nconnected_slaves:0\r\n") == []
    assert read_replicas(PermissionError("NOPERM")) == []


def test_readiness_tells_of_replicas_that_could_not_take_over_and_stays_ready() -> None:
    assert describe_replicas(FabricHealth(ok=True, replicas=3)) is None
    said = describe_replicas(FabricHealth(ok=True, replicas_behind=("a:1", "b:2", "c:3", "d:4")))
    assert said is not None
    assert said.startswith("4 replicas of Redis have not finished their first sync (a:1, b:2, c:3)")
