"""Nodes, sessions and instances that come, fall silent and go."""

import asyncio

import pytest

from ksana.base.errors import ConflictError
from ksana.base.instant import MILLISECOND, SECOND
from ksana.domain.nodes import frames
from ksana.domain.nodes.attempts import AttemptLimits
from ksana.domain.nodes.records import InstanceInfo
from ksana.engine.nodes.home import NoNodeError
from ksana.engine.nodes.parameters import NodeParameters
from ksana.service.nodes.cluster import ClusterService
from tests.nodes.load import slots_are_free
from tests.nodes.world import FAST, PATIENCE_S, Instance, NodeTalker, World, until

SLOW = NodeParameters(refresh_us=100 * MILLISECOND, progress_us=10 * MILLISECOND)


@pytest.mark.spec("N3")
async def test_a_second_live_node_with_the_same_id_is_refused_here_and_elsewhere(
    world: World,
) -> None:
    one, two = await world.start("one", FAST), await world.start("two", FAST)
    first = await one.node("n")
    for instance in (one, two):
        with pytest.raises(ConflictError) as caught:
            await instance.node("n")
        assert caught.value.code == "NODE_ID_CONFLICT"
    assert first.closed is None


@pytest.mark.spec("N3")
async def test_a_node_that_does_not_answer_is_replaced_by_the_new_one(world: World) -> None:
    one, two = await world.start("one", FAST), await world.start("two", FAST)
    first = await one.node("n")
    first.mode = "dead"
    second = await one.node("n")
    assert first.closed is not None
    second.mode = "dead"
    await two.node("n")
    assert second.closed is not None
    assert await one.fabric.owners.find("node", "n") == "two"
    assert "n" not in one.engine.hosting.nodes


@pytest.mark.spec("N14", "N5")
async def test_a_draining_node_gets_no_jobs_until_it_is_undrained(world: World) -> None:
    one, two = await world.start("one", SLOW), await world.start("two", SLOW)
    await one.node("n")
    await two.sees("n")
    session = await one.session("s")
    await two.engine.registration.set_draining("n", True, "one")
    await until(lambda: one.engine.hosting.nodes["n"].record.is_draining)
    with pytest.raises(NoNodeError):
        await session.ask()
    await two.engine.registration.set_draining("n", False, "one")
    await until(lambda: not one.engine.hosting.nodes["n"].record.is_draining)
    await session.ask()
    await session.wait(frames.SessionResult)


@pytest.mark.spec("N4")
async def test_a_result_waits_for_a_session_that_comes_back_elsewhere(world: World) -> None:
    one, two = await world.start("one", SLOW), await world.start("two", SLOW)
    node = await one.node("n")
    node.mode = "hold"
    session = await one.session("s")
    await session.ask(b"7")
    await until(lambda: node.all(frames.JobAssign))
    await session.disconnect()
    node.finish(node.all(frames.JobAssign)[0])
    await until(lambda: not one.engine.home.jobs)
    back = await two.session("s")
    (result,) = await back.wait(frames.SessionResult)
    assert bytes(result.data) == b"7"


@pytest.mark.fault("F50")
@pytest.mark.spec("N3")
async def test_a_silent_socket_is_pinged_and_then_closed(world: World) -> None:
    settings = NodeParameters(
        heartbeat_us=200 * MILLISECOND, dead_after_us=1500 * MILLISECOND, refresh_us=SECOND
    )
    one = await world.start("one", settings)
    node = NodeTalker(one.engine, "dead")
    await node.register("n", 1, "echo")
    await node.wait(frames.Ping)
    await until(lambda: node.closed is not None)


@pytest.mark.spec("N1", "N9", "N12")
async def test_what_a_dead_instance_left_is_taken_over(world: World) -> None:
    brief = NodeParameters(
        refresh_us=100 * MILLISECOND,
        progress_us=10 * MILLISECOND,
        presence_ttl_us=1500 * MILLISECOND,
        owner_ttl_us=1500 * MILLISECOND,
    )
    dead, one = await world.start("dead", brief), await world.start("one", brief)
    held, lost = await one.node("held", slots=5), await dead.node("lost", slots=5)
    held.mode = lost.mode = "hold"
    session = await one.session("s")
    await until(lambda: len(dead.engine.view) == 2 and len(one.engine.view) == 2)
    # Jobs whose home is the dead instance, for a session that comes back elsewhere.
    orphan = await dead.session("orphan")
    theirs = [await orphan.ask(b"1") for _ in range(4)]
    ours = [await session.ask(b"2") for _ in range(4)]
    await until(lambda: len(held.all(frames.JobAssign)) + len(lost.all(frames.JobAssign)) == 8)
    assert lost.all(frames.JobAssign)
    await dead.die()
    back = await one.session("orphan")
    held.mode = "echo"
    for frame in held.all(frames.JobAssign):
        held.finish(frame)
    mine = await session.wait(frames.SessionResult, len(ours))
    others = await back.wait(frames.SessionResult, len(theirs))
    assert {result.job_id for result in mine} == {created.job_id for created in ours}
    assert {result.job_id for result in others} == {created.job_id for created in theirs}
    await until(lambda: not one.engine.home.jobs)

    async def is_forgotten() -> bool:
        return await one.fabric.presence.list_dead() == []

    async with asyncio.timeout(20):
        while not await is_forgotten():
            await asyncio.sleep(0.05)
    assert await one.fabric.inbox.send("dead", b"x") == "gone"
    assert [info.instance_id for info in await one.fabric.presence.list_living()] == ["one"]


@pytest.mark.spec("N9", "N12")
async def test_an_outcome_in_the_inbox_of_a_dead_home_is_told_and_nothing_is_done_again(
    world: World,
) -> None:
    brief = NodeParameters(
        refresh_us=100 * MILLISECOND,
        progress_us=10 * MILLISECOND,
        presence_ttl_us=1500 * MILLISECOND,
        owner_ttl_us=1500 * MILLISECOND,
        limits=AttemptLimits(ack_us=500 * MILLISECOND),
    )
    dead, one = await world.start("dead", brief), await world.start("one", brief)
    node = await one.node("n", slots=5)
    node.mode = "silent"  # it takes jobs, and answers once their home is dead
    await dead.sees("n")
    orphan = await dead.session("orphan")
    made = [await orphan.ask(b"%d" % number) for number in range(5)]
    await until(lambda: len(node.all(frames.JobAssign)) == 5)
    await dead.die()
    for frame in node.all(frames.JobAssign):
        node.finish(frame)
    back = await one.session("orphan")
    told = await back.wait(frames.SessionResult, 5)
    assert {one.job_id for one in told} == {created.job_id for created in made}
    assert {(one.success, one.attempt_id) for one in told} == {(True, 1)}
    assert len(node.all(frames.JobAssign)) == 5
    await slots_are_free(one, "n")


@pytest.mark.spec("N1")
async def test_an_instance_that_closes_in_order_tells_its_peers(world: World) -> None:
    one, two = await world.start("one", SLOW), await world.start("two", SLOW)
    node = await one.node("n")
    await two.sees("n")
    await one.engine.close()
    assert node.closed is not None
    await until(lambda: two.engine.view.get("n") is None)

    def is_listed(infos: list[InstanceInfo]) -> bool:
        return any(info.instance_id == "one" for info in infos)

    assert not is_listed(await two.fabric.presence.list_living())


@pytest.mark.spec("N4", "X3")
async def test_every_instance_lists_the_sessions_of_all_even_after_the_list_was_lost(
    world: World,
) -> None:
    one, two = await world.start("one", FAST), await world.start("two", FAST)

    async def listed(instance: Instance) -> list[tuple[str, str]]:
        found, _ = await ClusterService(instance.engine).list_sessions("", 10)
        return [(session.session_id, session.instance_id) for session in found]

    async def wait_for(expected: list[tuple[str, str]]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while [await listed(one), await listed(two)] != [expected, expected]:
                await asyncio.sleep(0.02)

    await one.session("a")
    await one.session("b")
    moving = await two.session("c")
    await wait_for([("a", "one"), ("b", "one"), ("c", "two")])
    await one.session("c")  # it comes back elsewhere before the old socket is known to be dead
    await wait_for([("a", "one"), ("b", "one"), ("c", "one")])
    assert moving.peer is not None
    await two.engine.sessions.leave("c", moving.peer)
    async with asyncio.timeout(PATIENCE_S):
        while await two.fabric.sessions.read(["two"], "", 10):
            await asyncio.sleep(0.02)
    assert await listed(two) == [("a", "one"), ("b", "one"), ("c", "one")]
    await one.fabric.sessions.write_all([], FAST.presence_ttl_us)
    assert await listed(two) == []
    one.engine.upkeep.life.signal()
    await wait_for([("a", "one"), ("b", "one"), ("c", "one")])
    await one.engine.close()
    await wait_for([])
