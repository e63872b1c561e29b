"""The list of sessions, on every fabric."""

import pytest

from ksana.domain.nodes.records import SessionRecord
from ksana.ports.fabric import Fabric
from tests.conformance.fabric.world import LONG, SHORT, World, eventually


def a_session(session_id: str, fabric: Fabric, connected_at: int = 1) -> SessionRecord:
    return SessionRecord(
        session_id=session_id,
        instance_id=fabric.instance_id,
        key_id="k",
        connected_at=connected_at,
    )


async def ids(fabric: Fabric, after: str = "", limit: int = 100) -> list[str]:
    return [one.session_id for one in await fabric.sessions.read(["one", "two"], after, limit)]


@pytest.mark.spec("N4")
async def test_sessions_of_all_instances_are_read_in_the_order_of_their_ids_page_by_page(
    fabric: Fabric, other: Fabric
) -> None:
    mine = [a_session(name, fabric) for name in ("a", "c~1", "c", "e")]
    await fabric.sessions.write(mine, [], LONG)
    await other.sessions.write([a_session(name, other) for name in ("b", "c-", "d")], [], LONG)
    assert await ids(other) == ["a", "b", "c", "c-", "c~1", "d", "e"]
    assert await ids(fabric, limit=3) == ["a", "b", "c"]
    assert await ids(fabric, "c", 3) == ["c-", "c~1", "d"]
    assert await ids(fabric, "d", 3) == ["e"]
    assert await ids(fabric, "e") == []
    (first,) = await other.sessions.read(["one"], "", 1)
    assert first == mine[0]


async def test_a_session_is_listed_once_however_often_it_is_written(fabric: Fabric) -> None:
    await fabric.sessions.write([a_session("s", fabric), a_session("s1", fabric)], [], LONG)
    await fabric.sessions.write([a_session("s", fabric, connected_at=2)], [], LONG)
    found = await fabric.sessions.read(["one"], "", 10)
    assert [(one.session_id, one.connected_at) for one in found] == [("s", 2), ("s1", 1)]


async def test_one_that_is_gone_is_struck_and_its_neighbours_stay(
    fabric: Fabric, other: Fabric
) -> None:
    await fabric.sessions.write([a_session(name, fabric) for name in ("s", "s1", "s-")], [], LONG)
    await other.sessions.write([a_session("s", other)], [], LONG)
    await fabric.sessions.write([], ["s", "never"], LONG)
    found = await fabric.sessions.read(["one", "two"], "", 10)
    listed = [(one.session_id, one.instance_id) for one in found]
    assert listed == [("s", "two"), ("s-", "one"), ("s1", "one")]


async def test_all_of_them_take_the_place_of_whatever_was_listed(fabric: Fabric) -> None:
    await fabric.sessions.write([a_session(f"old{at}", fabric) for at in range(300)], [], LONG)
    await fabric.sessions.write_all([a_session(f"new{at}", fabric) for at in range(300)], LONG)
    found = await ids(fabric, limit=500)
    assert len(found) == 300
    assert all(name.startswith("new") for name in found)
    await fabric.sessions.write_all([], LONG)
    assert await ids(fabric) == []


@pytest.mark.spec("X3")
async def test_a_list_that_nobody_renews_is_not_seen_and_a_lost_one_is_noticed(
    world: World, fabric: Fabric, other: Fabric
) -> None:
    await fabric.sessions.write([a_session("a", fabric)], [], SHORT)
    await other.sessions.write([a_session("b", other)], [], SHORT)
    assert await other.sessions.renew(LONG) in (0, 1)  # on a busy machine it may have run out
    await other.sessions.write([a_session("b", other)], [], LONG)
    assert await eventually(lambda: ids(fabric), lambda seen: "a" not in seen) == ["b"]
    assert await other.sessions.renew(LONG) == 1
    world.wipe()
    assert await other.sessions.renew(LONG) == 0
