"""The view of all nodes, their slots, and what they said they have not got."""

import asyncio

import pytest

from ksana.base.instant import SECOND
from ksana.domain.nodes.storm import StormLimits
from ksana.ports.fabric import Fabric
from tests.conformance.fabric.world import LONG, SHORT, World, a_node, eventually


@pytest.mark.spec("N10")
async def test_every_instance_sees_every_node(fabric: Fabric, other: Fabric) -> None:
    node = a_node("a", "one", models=("echo",), labels={"gpu": "yes"}, slots=3, load=0.5)
    await fabric.snapshots.publish([node], LONG)
    await other.snapshots.publish([a_node("b", "two")], LONG)
    for reader in (fabric, other):
        seen = (await reader.snapshots.read_changes(0)).nodes
        assert set(seen) == {"a", "b"}
        assert seen["a"] == node


@pytest.mark.spec("N10")
async def test_a_reader_sees_what_changed_after_its_last_reading(
    fabric: Fabric, other: Fabric
) -> None:
    await fabric.snapshots.publish([a_node("a"), a_node("b")], LONG)
    first = await other.snapshots.read_changes(0)
    await fabric.snapshots.publish([a_node("b", running=1)], LONG)
    await fabric.snapshots.withdraw(["a"])
    changes = (await other.snapshots.read_changes(first.mark)).nodes
    assert changes["a"] is None
    assert changes["b"] == a_node("b", running=1)


@pytest.mark.spec("N10")
async def test_a_node_that_is_not_written_again_is_seen_no_more(fabric: Fabric) -> None:
    await fabric.snapshots.publish([a_node("a")], SHORT)
    await eventually(
        lambda: fabric.snapshots.read_changes(0), lambda changes: changes.nodes == {"a": None}
    )


@pytest.mark.spec("N10")
async def test_nodes_that_are_long_gone_leave_the_list(fabric: Fabric) -> None:
    await fabric.snapshots.publish([a_node("a")], LONG)
    assert await fabric.snapshots.sweep(LONG) == 0
    assert await eventually(lambda: fabric.snapshots.sweep(1000)) == 1
    assert (await fabric.snapshots.read_changes(0)).nodes == {}
    await fabric.snapshots.publish([a_node("a")], LONG)
    assert set((await fabric.snapshots.read_changes(0)).nodes) == {"a"}


@pytest.mark.spec("N10", "X3")
async def test_a_node_is_seen_again_with_its_next_heartbeat_after_everything_was_lost(
    world: World, fabric: Fabric, other: Fabric
) -> None:
    await fabric.snapshots.publish([a_node("a")], LONG)
    mark = (await other.snapshots.read_changes(0)).mark
    world.wipe()
    await fabric.snapshots.publish([a_node("a")], LONG)
    assert set((await other.snapshots.read_changes(mark)).nodes) == {"a"}


@pytest.mark.spec("N10")
async def test_a_thousand_nodes_are_written_and_read(fabric: Fabric, other: Fabric) -> None:
    await fabric.snapshots.publish([a_node(f"n{n}") for n in range(1_000)], LONG)
    assert len((await other.snapshots.read_changes(0)).nodes) == 1_000


@pytest.mark.spec("N6")
async def test_no_more_slots_are_held_than_a_node_has(fabric: Fabric, other: Fabric) -> None:
    assert await fabric.reservations.reserve("n", "j1", 2, "echo", LONG) == "reserved"
    assert await other.reservations.reserve("n", "j2", 2, "echo", LONG) == "reserved"
    assert await fabric.reservations.reserve("n", "j3", 2, "echo", LONG) == "full"
    assert await fabric.reservations.count("n") == 2
    assert await other.reservations.release("n", "j1")
    assert not await other.reservations.release("n", "j1")
    assert await fabric.reservations.reserve("n", "j3", 2, "echo", LONG) == "reserved"


@pytest.mark.spec("N6")
async def test_a_job_holds_one_slot_however_often_it_asks(fabric: Fabric) -> None:
    for _ in range(3):
        assert await fabric.reservations.reserve("n", "j", 1, "echo", LONG) == "reserved"
    assert await fabric.reservations.count("n") == 1


@pytest.mark.spec("N6")
async def test_a_slot_that_nobody_releases_runs_out(fabric: Fabric) -> None:
    await fabric.reservations.reserve("n", "j1", 1, "echo", SHORT)
    await eventually(
        lambda: fabric.reservations.reserve("n", "j2", 1, "echo", LONG),
        lambda result: result == "reserved",
    )
    assert await fabric.reservations.count("n") == 1


@pytest.mark.spec("N6")
async def test_slots_are_never_exceeded_by_instances_that_reserve_at_once(world: World) -> None:
    instances = [world.join() for _ in range(8)]
    slots, most = 5, 0
    is_over = False

    async def watch() -> None:
        nonlocal most
        while not is_over:
            most = max(most, await instances[0].reservations.count("n"))
            await asyncio.sleep(0)

    async def hold(number: int) -> int:
        fabric = instances[number % len(instances)]
        won = 0
        for turn in range(6):
            job_id = f"j{number}-{turn}"
            if await fabric.reservations.reserve("n", job_id, slots, "echo", LONG) == "reserved":
                won += 1
                await asyncio.sleep(0.002)
                assert await fabric.reservations.release("n", job_id)
        return won

    watching = asyncio.create_task(watch())
    won = await asyncio.gather(*(hold(n) for n in range(40)))
    is_over = True
    await watching
    assert sum(won) > slots
    assert 0 < most <= slots
    assert await instances[0].reservations.count("n") == 0


@pytest.mark.spec("N5", "N11")
async def test_a_model_that_is_away_is_not_reserved_anywhere(fabric: Fabric, other: Fabric) -> None:
    limits = StormLimits(away_us=300_000, debounce_us=1000)
    assert await fabric.marks.mark_away("n", "echo", limits) == "marked"
    assert await other.reservations.reserve("n", "j", 1, "echo", LONG) == "away"
    assert await other.reservations.reserve("n", "j", 1, "sum", LONG) == "reserved"
    assert set(await other.marks.list_away("n")) == {"echo"}
    assert 0 < (await other.marks.list_away("n"))["echo"] <= 300_000
    await eventually(
        lambda: other.reservations.reserve("n", "k", 2, "echo", LONG),
        lambda result: result == "reserved",
    )
    assert await other.marks.list_away("n") == {}


@pytest.mark.spec("N11")
async def test_marks_of_one_model_are_debounced_over_all_instances(
    fabric: Fabric, other: Fabric
) -> None:
    limits = StormLimits(away_us=LONG, debounce_us=30 * SECOND)
    assert await fabric.marks.mark_away("n", "echo", limits) == "marked"
    results = await asyncio.gather(
        *(one.marks.mark_away("n", "echo", limits) for one in [fabric, other] * 10)
    )
    assert set(results) == {"debounced"}
    assert await other.marks.mark_away("m", "echo", limits) == "marked"


@pytest.mark.spec("N11")
async def test_a_node_may_make_thirty_marks_in_ten_seconds_over_all_instances(
    fabric: Fabric, other: Fabric
) -> None:
    limits = StormLimits()
    results = await asyncio.gather(
        *((fabric, other)[n % 2].marks.mark_away("n", f"model-{n}", limits) for n in range(40))
    )
    assert results.count("marked") == 30
    assert results.count("limited") == 10
    assert await other.marks.mark_away("m", "model-0", limits) == "marked"


@pytest.mark.spec("N11")
async def test_a_model_can_be_marked_again_after_the_debounce(fabric: Fabric) -> None:
    limits = StormLimits(away_us=LONG, debounce_us=SHORT)
    await fabric.marks.mark_away("n", "echo", limits)
    await eventually(
        lambda: fabric.marks.mark_away("n", "echo", limits), lambda result: result == "marked"
    )


@pytest.mark.spec("N5", "N14")
async def test_a_draining_node_gets_no_new_slot_and_keeps_what_it_has(
    fabric: Fabric, other: Fabric
) -> None:
    await fabric.reservations.reserve("n", "old", 3, "echo", LONG)
    await other.marks.set_draining("n", True, LONG)
    assert await fabric.marks.is_draining("n")
    assert await fabric.reservations.reserve("n", "new", 3, "echo", LONG) == "draining"
    assert await fabric.reservations.reserve("n", "old", 3, "echo", LONG) == "reserved"
    await other.marks.set_draining("n", False, LONG)
    assert not await fabric.marks.is_draining("n")
    assert await fabric.reservations.reserve("n", "new", 3, "echo", LONG) == "reserved"
