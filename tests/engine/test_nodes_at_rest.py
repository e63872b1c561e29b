"""How often an instance looks by itself, and that one without nodes does next to nothing."""

import asyncio

from ksana.base.clock import VirtualClock
from ksana.base.instant import SECOND
from ksana.engine.nodes.parameters import NodeParameters
from tests.engine.nodes_world import Instance, NodesWorld, count_steps


async def test_where_nobody_is_nothing_is_read_until_somebody_comes(
    one: Instance, clock: VirtualClock
) -> None:
    one.fabric.is_alone = True
    view = one.engine.upkeep.view
    running = asyncio.create_task(view.run())
    await clock.advance(20 * SECOND)
    assert one.fabric.count("snapshots.read_changes") == 1
    session = await one.session("s")
    await clock.settle()
    assert one.fabric.count("sessions.write_all") + one.fabric.count("sessions.write") == 2
    await clock.advance(3 * SECOND)
    assert one.fabric.count("snapshots.read_changes") == 5
    await one.engine.sessions.leave("s", session.peer)
    await clock.advance(20 * SECOND)
    assert one.fabric.count("snapshots.read_changes") == 6, "once more: that it left"
    assert one.fabric.last("sessions.write")[1] == ["s"]
    await one.node("n")
    await clock.settle()
    assert one.fabric.count("snapshots.read_changes") == 7
    running.cancel()


async def test_where_others_may_come_they_are_looked_for_all_the_time(
    one: Instance, clock: VirtualClock
) -> None:
    assert await count_steps(one.engine.upkeep.view, clock, 10 * SECOND) == 11
    assert one.fabric.count("snapshots.read_changes") == 11


async def test_they_are_looked_for_no_more_often_than_was_set(cluster: NodesWorld) -> None:
    one = await cluster.start("slow", NodeParameters(refresh_us=20 * SECOND))
    assert await count_steps(one.engine.upkeep.view, cluster.clock, 40 * SECOND) == 3


async def test_silence_is_looked_for_three_times_a_heartbeat(
    one: Instance, clock: VirtualClock
) -> None:
    assert await count_steps(one.engine.upkeep.silence, clock, 15 * SECOND) == 4
