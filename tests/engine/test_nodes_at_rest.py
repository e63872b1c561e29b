"""How often an instance looks by itself, and that one without nodes does next to nothing."""

import asyncio

from ksana.base.clock import VirtualClock
from ksana.base.instant import SECOND
from tests.engine.nodes_world import Instance


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
    running = asyncio.create_task(one.engine.upkeep.view.run())
    await clock.advance(10 * SECOND)
    running.cancel()
    assert one.fabric.count("snapshots.read_changes") == 11


async def test_silence_is_looked_for_three_times_a_heartbeat(
    one: Instance, clock: VirtualClock
) -> None:
    running = asyncio.create_task(one.engine.upkeep.silence.run())
    await clock.advance(15 * SECOND)
    running.cancel()
    assert one.engine.upkeep.silence.steps == 4
