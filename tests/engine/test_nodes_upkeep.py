"""What an instance does again and again: say that it lives, write and read nodes, find the
silent."""

import pytest

from ksana.base.clock import VirtualClock
from ksana.base.errors import DependencyDownError
from ksana.base.instant import MINUTE, SECOND
from ksana.domain.nodes.choice import Wanted
from ksana.domain.nodes.frames import Ping
from ksana.domain.nodes.records import InstanceInfo
from ksana.domain.nodes.waiting import WaitingJob
from ksana.engine.nodes.parameters import NodeParameters
from tests.engine.nodes_desk import Desk, finished
from tests.engine.nodes_world import (
    Instance,
    NodesWorld,
    a_node,
    a_request,
    count_steps,
    is_signalled,
    step,
)
from tests.ground.logs import capture_logs

TTL = 45 * SECOND
SETTLE = 31 * SECOND
"""A third of the time to live, a heartbeat, and a second."""


async def renew(*instances: Instance) -> None:
    for instance in instances:
        await step(instance.engine.upkeep.life)


# ---- how often ----


@pytest.mark.parametrize(
    ("presence_ttl_us", "owner_ttl_us", "each_us"),
    [(45 * SECOND, 45 * SECOND, 15 * SECOND), (60 * SECOND, 30 * SECOND, 10 * SECOND)],
)
async def test_what_runs_out_is_renewed_three_times_within_its_life(
    cluster: NodesWorld, presence_ttl_us: int, owner_ttl_us: int, each_us: int
) -> None:
    settings = NodeParameters(presence_ttl_us=presence_ttl_us, owner_ttl_us=owner_ttl_us)
    one = await cluster.start("one", settings)
    is_signalled(one.engine.upkeep.life)
    assert await count_steps(one.engine.upkeep.life, cluster.clock, each_us - 1) == 1
    assert await count_steps(one.engine.upkeep.life, cluster.clock, each_us) == 3
    assert one.engine.upkeep.life.name == "node-presence"


# ---- saying that we live ----


@pytest.mark.spec("N1")
async def test_an_instance_says_that_it_lives_and_what_it_has(
    one: Instance, two: Instance, clock: VirtualClock
) -> None:
    await one.node("n")
    await one.session("s")
    await renew(one)
    assert one.fabric.last("presence.renew") == (
        InstanceInfo(
            instance_id="one",
            host="h",
            version="1",
            started_at=clock.now(),
            nodes=1,
            sessions=1,
        ),
        TTL,
    )
    assert await two.fabric.presence.list_dead() == []


async def test_an_inbox_that_was_lost_is_opened_again(one: Instance, cluster: NodesWorld) -> None:
    cluster.hub.mailboxes.clear()
    await renew(one)
    assert list(cluster.hub.mailboxes) == ["one"]


@pytest.mark.spec("N2")
async def test_owners_are_renewed_and_a_socket_that_another_instance_owns_is_closed(
    one: Instance, two: Instance, clock: VirtualClock, cluster: NodesWorld
) -> None:
    kept, lost = await one.node("kept"), await one.node("lost")
    session, stolen = await one.session("s"), await one.session("stolen")
    await clock.advance(30 * SECOND)
    cluster.hub.owners.put("node:lost", "two", TTL)
    cluster.hub.owners.put("session:stolen", "two", TTL)
    with capture_logs() as logs:
        await renew(one)
    assert (kept.closed, lost.closed) == (None, (4013, "OWNED_ELSEWHERE"))
    assert (session.closed, stolen.closed) == (None, (4013, "OWNED_ELSEWHERE"))
    assert [(line["log_level"], line["kind"], line["id"]) for line in logs] == [
        ("warning", "node", "lost"),
        ("warning", "session", "stolen"),
    ]
    await clock.advance(44 * SECOND)
    assert await one.fabric.owners.find("node", "kept") == "one"
    assert await one.fabric.owners.find("session", "s") == "one"


async def test_the_mark_of_a_draining_node_is_kept_up(one: Instance, clock: VirtualClock) -> None:
    await one.node("other")
    node = await one.node("n")
    node.hosted.record.is_draining = True
    await renew(one)
    assert one.fabric.last("marks.set_draining") == ("n", True, 600 * SECOND)
    assert one.fabric.count("marks.set_draining") == 1


async def test_the_list_of_sessions_is_renewed(one: Instance, clock: VirtualClock) -> None:
    await one.session("s")
    await one.refresh()
    await clock.advance(30 * SECOND)
    await renew(one)
    await clock.advance(30 * SECOND)
    assert len(await one.fabric.sessions.read(["one"], "", 10)) == 1


# ---- whether we may judge ----


async def test_nobody_is_held_to_be_dead_right_after_the_fabric_was_away(one: Instance) -> None:
    upkeep = one.engine.upkeep
    assert upkeep.can_judge()
    one.fabric.ok_us = SETTLE - 1
    assert not upkeep.can_judge()
    one.fabric.ok_us = SETTLE
    assert upkeep.can_judge()


@pytest.mark.spec("X3")
async def test_nobody_is_held_to_be_dead_right_after_the_fabric_forgot_us(
    one: Instance, clock: VirtualClock, cluster: NodesWorld
) -> None:
    await renew(one)
    assert one.engine.upkeep.can_judge()
    await clock.advance(SECOND)
    cluster.hub.presence.clear()
    await renew(one)
    await clock.advance(SETTLE - 1)
    assert not one.engine.upkeep.can_judge()
    await clock.advance(1)
    assert one.engine.upkeep.can_judge()


@pytest.mark.spec("X3")
async def test_an_instance_that_was_forgotten_writes_all_that_is_its_own_again(
    desk: Desk, clock: VirtualClock, cluster: NodesWorld
) -> None:
    one = desk.one
    await desk.job()
    await one.node("here")
    await one.fabric.snapshots.publish([a_node("n", "two", slots=8)], MINUTE)
    await one.refresh()
    is_signalled(one.engine.upkeep.life)
    cluster.hub.wipe()
    await clock.advance(2 * SECOND)
    await one.refresh()
    assert is_signalled(one.engine.upkeep.life)
    assert one.hosting.changed == {"here"}
    assert await one.fabric.reservations.count("n") == 1
    await one.refresh()
    assert list((await one.fabric.snapshots.read_changes(0)).nodes) == ["here"]


# ---- writing our nodes ----


@pytest.mark.spec("N10")
async def test_nodes_that_changed_are_written_with_the_jobs_they_have(
    one: Instance, two: Instance, clock: VirtualClock
) -> None:
    node = await one.node("n", 3)
    await one.submit(a_request("a"))
    await one.submit(a_request("b"))
    one.hosting.changed.add("gone")
    await one.refresh()
    assert one.fabric.last("snapshots.publish") == ([node.hosted.record], TTL)
    seen = (await two.fabric.snapshots.read_changes(0)).nodes["n"]
    assert seen is not None
    assert (seen.running, one.hosting.changed) == (2, set())
    await one.refresh()
    assert one.fabric.last("snapshots.publish") == ([], TTL)


async def test_nodes_that_could_not_be_written_are_written_next_time(one: Instance) -> None:
    await one.node("n")
    one.fabric.broken.add("snapshots.publish")
    with pytest.raises(DependencyDownError):
        await one.refresh()
    assert one.hosting.changed == {"n"}


async def test_with_the_nodes_go_the_sessions_and_the_jobs_that_have_ended(desk: Desk) -> None:
    await desk.job()
    await desk.endings.finished([finished()])
    await desk.one.refresh()
    assert len(await desk.fabric.sessions.read(["one"], "", 10)) == 1
    assert await desk.fabric.jobs.list_homed("one", 10) == []


async def test_a_result_that_was_kept_goes_out_with_the_next_reading(
    desk: Desk, clock: VirtualClock
) -> None:
    await desk.job(session_id="later")
    await desk.endings.finished([finished()])
    session = await desk.two.session("later")
    await clock.settle()
    await desk.one.refresh()
    await desk.two.read()
    assert len(session.frames) == 1


# ---- reading the nodes of all ----


@pytest.mark.spec("N10")
async def test_the_nodes_of_others_are_seen_and_forgotten(
    one: Instance, two: Instance, clock: VirtualClock
) -> None:
    node = await two.node("n", 3)
    await two.refresh()
    is_signalled(one.home.watch.offer)
    await one.refresh()
    assert one.engine.view.get("n") == node.hosted.record
    assert not is_signalled(one.home.watch.offer), "nobody waits for a slot"
    one.home.watch.line.add(WaitingJob("j", 5, clock.now(), Wanted(model="m")))
    await one.refresh()
    assert is_signalled(one.home.watch.offer)
    await two.hosting.leave(node.hosted)
    await clock.settle()
    await one.refresh()
    assert one.engine.view.get("n") is None


async def test_what_is_connected_here_is_known_better_here(one: Instance, two: Instance) -> None:
    node = await one.node("n", 3)
    await one.fabric.snapshots.publish([a_node("n", "two")], TTL)
    await one.fabric.snapshots.publish([a_node("other", "two")], TTL)
    await one.refresh()
    assert one.engine.view.get("n") is node.hosted.record
    assert one.engine.view.get("other") is not None
    await one.fabric.snapshots.withdraw(["n"])
    await one.refresh()
    assert one.engine.view.get("n") is node.hosted.record


async def test_a_snapshot_of_ours_that_outlived_its_node_is_not_believed(
    one: Instance, two: Instance
) -> None:
    one.engine.view.put(a_node("n", "two"))
    await one.fabric.snapshots.publish([a_node("n", "one"), a_node("m", "two")], TTL)
    await one.refresh()
    assert [node.node_id for node in one.engine.view] == ["m"]


async def test_the_jobs_of_a_node_that_is_gone_go_to_others(desk: Desk) -> None:
    job = await desk.job(wait_us=MINUTE)
    await desk.fabric.snapshots.withdraw(["n"])
    await desk.one.refresh()
    assert (desk.one.engine.view.get("n"), job.attempt) == (None, 2)


async def test_the_whole_view_is_read_every_ten_seconds_and_else_what_changed(
    one: Instance, two: Instance, clock: VirtualClock
) -> None:
    marks, looks = [], []
    await two.node("n")
    await two.refresh()
    for _ in range(23):
        before = one.fabric.count("presence.list_living")
        await one.refresh()
        marks.append(one.fabric.last("snapshots.read_changes")[0])
        looks.append(one.fabric.count("presence.list_living") - before)
        await clock.advance(SECOND)
    mark = marks[1]
    assert mark > 0
    assert marks == [0, *[mark] * 9, 0, *[mark] * 9, 0, *[mark] * 2]
    assert looks == [1, 0] * 11 + [1]


# ---- nodes that ran out in silence ----


async def age(clock: VirtualClock, by: int, *instances: Instance) -> None:
    """Let time pass while these instances go on saying that they live."""
    for _ in range(by // SECOND):
        await clock.advance(SECOND)
        await renew(*instances)


async def test_the_nodes_of_an_instance_that_does_not_live_are_forgotten(
    one: Instance, two: Instance, clock: VirtualClock, cluster: NodesWorld
) -> None:
    await two.node("n")
    await one.node("here")
    await two.refresh()
    await age(clock, SETTLE, one, two)
    await one.refresh()
    assert one.engine.view.get("n") is not None
    cluster.hub.presence.pop("two")
    await clock.advance(SECOND)
    await one.refresh()
    assert one.engine.view.get("n") is not None  # it is not looked that often
    await clock.advance(SECOND)
    await one.refresh()
    assert [node.node_id for node in one.engine.view] == ["here"]


async def test_a_node_that_is_not_in_a_whole_reading_is_forgotten(
    one: Instance, two: Instance, clock: VirtualClock
) -> None:
    await age(clock, SETTLE, one, two)
    for name in ("swept", "listed"):
        one.engine.view.put(a_node(name, "two"))
    await one.fabric.snapshots.publish([a_node("listed", "two")], MINUTE)
    await one.refresh()
    assert [node.node_id for node in one.engine.view] == ["listed"]
    one.engine.view.put(a_node("late", "two"))
    await clock.advance(2 * SECOND)
    await one.refresh()  # what changed, and who lives
    assert one.engine.view.get("late") is not None


async def test_until_everybody_has_renewed_what_is_its_own_nothing_is_forgotten(
    one: Instance, clock: VirtualClock, cluster: NodesWorld
) -> None:
    cluster.hub.presence.pop("one")  # it is new
    await renew(one)
    assert one.engine.upkeep.can_judge()
    one.engine.view.put(a_node("n", "silent"))
    await age(clock, SETTLE - SECOND, one)
    await one.refresh()
    assert one.engine.view.get("n") is not None
    await age(clock, SECOND, one)
    await one.refresh()
    assert one.engine.view.get("n") is None


async def test_marks_of_nodes_that_nobody_writes_are_swept_once_a_minute(
    one: Instance, clock: VirtualClock
) -> None:
    counts = []
    for _ in range(3):
        await clock.advance(MINUTE - 1)
        await one.refresh()
        counts.append(one.fabric.count("snapshots.sweep"))
        await clock.advance(1)
        await one.refresh()
        counts.append(one.fabric.count("snapshots.sweep"))
    assert counts == [0, 1, 1, 2, 2, 3]
    assert one.fabric.last("snapshots.sweep") == (600 * SECOND,)


# ---- silence ----


@pytest.mark.spec("N3")
async def test_a_quiet_socket_is_pinged_once_and_a_silent_one_closed(
    one: Instance, clock: VirtualClock
) -> None:
    sockets = [await one.node("n"), await one.session("s")]
    silence = one.engine.upkeep.silence
    seen = []
    for rest_us in (16 * SECOND - 1, 1, SECOND, 28 * SECOND - 1, 1):
        await clock.advance(rest_us)
        await step(silence)
        seen.append([(len(socket.take()), socket.closed) for socket in sockets])
    closed = (4011, "SILENT")
    assert seen == [
        [(0, None)] * 2,
        [(1, None)] * 2,
        [(0, None)] * 2,
        [(0, None)] * 2,
        [(0, closed)] * 2,
    ]


async def test_a_socket_that_answers_is_pinged_again_after_another_heartbeat(
    one: Instance, clock: VirtualClock
) -> None:
    node = await one.node("n")
    for _ in range(3):
        await clock.advance(16 * SECOND)
        await step(one.engine.upkeep.silence)
        assert node.take() == [Ping(id="life")]
        node.peer.hear(clock.monotonic())
    assert node.closed is None
