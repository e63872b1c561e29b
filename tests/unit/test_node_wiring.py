"""The nodes surface as it is put together: everything that may come has somebody who takes it, and
nothing was counted before anything happened."""

from typing import get_args

import pytest

from ksana.base.clock import VirtualClock
from ksana.base.instant import SECOND
from ksana.domain.nodes.messages import Finished, Message
from ksana.domain.nodes.records import InstanceInfo
from ksana.engine.nodes.engine import NodesEngine
from ksana.engine.nodes.parameters import NodeParameters
from ksana.fabric.memory.fabric import MemoryFabric
from ksana.fabric.memory.hub import MemoryHub
from tests.engine.nodes_world import FaultyFabric
from tests.nodes.world import QuietStore


@pytest.fixture
def fabric(clock: VirtualClock) -> MemoryFabric:
    return MemoryFabric("one", clock)


@pytest.fixture
def engine(fabric: MemoryFabric, clock: VirtualClock) -> NodesEngine:
    info = InstanceInfo(instance_id="one")
    return NodesEngine(fabric, QuietStore(), clock, info, NodeParameters())  # type: ignore[arg-type]


def test_every_kind_of_message_is_handled_one_by_one_but_for_results(engine: NodesEngine) -> None:
    kinds = set(get_args(Message))
    assert set(engine.courier._handlers) == kinds
    assert engine.courier._alone == kinds - {Finished}


def test_hints_of_other_instances_are_heard(fabric: MemoryFabric, engine: NodesEngine) -> None:
    assert [name for _, name, _ in fabric.signals._hub.hearers] == ["nodes.session", "nodes.free"]


def test_nothing_was_counted_before_anything_happened(engine: NodesEngine) -> None:
    assert (engine.hosting.stale, engine.hosting.partials_lost) == (0, 0)
    assert (engine.home.endings.stale, engine.sessions.undelivered) == (0, 0)
    assert engine.sessions._kept_bytes == 0
    assert (engine.adoption.adopted, engine.adoption.drained) == (0, 0)
    assert (engine.courier.sent, engine.courier.received) == (0, 0)
    assert (engine.courier.failed, engine.courier.buried, engine.recorder.dropped) == (0, 0, 0)
    assert (len(engine.home.jobs), len(engine.view), len(engine.background)) == (0, 0, 0)
    assert not engine.is_closing


def test_the_loops_have_their_names_and_look_by_themselves_now_and_then(
    engine: NodesEngine,
) -> None:
    pumps = [
        engine.recorder.pump,
        engine.upkeep.life,
        engine.upkeep.view,
        engine.upkeep.silence,
        engine.home.watch.deadlines,
        engine.home.watch.offer,
        engine.hosting.progress,
        engine.courier.chores,
        engine.adoption.pump,
    ]
    assert [(pump.name, pump._poll_us / SECOND) for pump in pumps] == [
        ("node-events", 5),
        ("node-presence", 15),
        ("node-view", 5),
        ("node-silence", 5),
        ("node-deadlines", 30),
        ("node-line", 30),
        ("node-progress", 30),
        ("node-inbox-chores", 5),
        ("node-adoption", 60),
    ]
    assert [loop.name for loop in engine.loops()] == [*(p.name for p in pumps), "node-inbox"]


async def test_an_instance_that_is_new_reads_and_writes_everything(clock: VirtualClock) -> None:
    fabric = FaultyFabric("one", clock, NodeParameters(), MemoryHub(clock))
    engine = NodesEngine(fabric, QuietStore(), clock, InstanceInfo(instance_id="one"))  # type: ignore[arg-type]
    await engine.upkeep.refresh()
    assert fabric.last("snapshots.read_changes") == (0,)
    assert fabric.count("presence.list_living") == 1
    assert fabric.last("sessions.write_all") == ([], 45 * SECOND)
    assert engine.upkeep.can_judge()  # an instance that is new was not forgotten


@pytest.mark.parametrize(("presence_s", "owner_s", "renew_s"), [(60, 30, 10), (30, 60, 10)])
def test_what_lives_shortest_says_how_often_all_is_renewed(
    fabric: MemoryFabric, clock: VirtualClock, presence_s: int, owner_s: int, renew_s: int
) -> None:
    info = InstanceInfo(instance_id="one")
    settings = NodeParameters(presence_ttl_us=presence_s * SECOND, owner_ttl_us=owner_s * SECOND)
    engine = NodesEngine(fabric, QuietStore(), clock, info, settings)  # type: ignore[arg-type]
    assert engine.upkeep.life._poll_us == renew_s * SECOND


def test_nobody_is_judged_before_everybody_had_time_to_renew(engine: NodesEngine) -> None:
    """A third of a life, a heartbeat and a second."""
    assert engine.upkeep._settle_us == 31 * SECOND
