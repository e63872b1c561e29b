"""Slots of nodes connected here: each is taken and counted once, whatever comes at the same
moment."""

import pytest

from tests.engine.nodes_world import Instance, Socket
from tests.engine.test_nodes_hosting import assign, gone, result


@pytest.fixture
async def node(one: Instance, two: Instance) -> Socket:
    """A node with two slots, whose snapshot is written."""
    node = await one.node("n", 2)
    await one.refresh()
    return node


async def test_the_slot_of_a_job_is_counted_once_whatever_its_attempts(
    one: Instance, node: Socket
) -> None:
    for attempt in (1, 2, 3):
        await one.hear(assign(attempt=attempt))
        assert one.held("n") == 1
    await one.hosting.on_result(node.hosted, result(attempt=3))
    assert one.held("n") == 0


async def test_an_attempt_of_another_home_leaves_its_slot_to_the_one_of_our_own(
    one: Instance, node: Socket
) -> None:
    await one.hear(assign(home="two"))
    await one.hear(assign(attempt=2, home="one"))
    assert one.held("n") == 0  # the home has counted it when it reserved the slot


@pytest.mark.spec("N6")
async def test_a_slot_is_given_to_who_waits_for_it_before_anybody_else_comes(
    one: Instance, node: Socket
) -> None:
    for job_id in ("a", "b", "parked"):
        await one.hear(assign(job_id))
    await one.hosting.on_result(node.hosted, result("a"))
    await one.hosting._on_assign(assign("late"))  # nothing else has run in between
    assert [frame.job_id for frame in node.take()] == ["a", "b", "parked"]
    assert (list(node.hosted.assigned), list(node.hosted.parked)) == (["b", "parked"], ["late"])
    assert one.held("n") == 2


async def test_a_parked_job_is_not_replaced_by_an_earlier_attempt(
    one: Instance, node: Socket
) -> None:
    for job_id in ("a", "b"):
        await one.hear(assign(job_id))
    for attempt in (2, 1):
        await one.hear(assign("parked", attempt=attempt))
    assert node.hosted.parked["parked"].attempt == 2


async def test_a_parked_job_whose_node_does_not_read_when_its_turn_comes_has_failed(
    one: Instance, two: Instance, node: Socket
) -> None:
    for job_id in ("a", "b", "parked"):
        await one.hear(assign(job_id))
    await two.take_messages()
    node.is_stuck = True
    await one.hosting.on_result(node.hosted, result("a"))
    await one.clock.settle()
    assert gone("parked") in await two.take_messages()
    assert (list(node.hosted.assigned), one.held("n")) == (["b"], 1)


async def test_what_a_former_socket_ends_frees_no_slot_of_the_node_that_is_back(
    one: Instance, two: Instance, node: Socket
) -> None:
    await one.hear(assign("old"))
    back: list[Socket] = []

    async def send(instance_id: str, body: bytes) -> str:
        await one.hosting.leave(node.hosted)
        back.append(await one.node("n", 2))
        await one.hosting._on_assign(assign("new"))
        return "sent"

    one.fabric.answer("inbox.send", send)
    await one.hosting.on_result(node.hosted, result("old"))
    assert (list(back[0].hosted.assigned), one.held("n")) == (["new"], 1)
