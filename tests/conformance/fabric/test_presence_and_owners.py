"""Who lives, and who holds which socket."""

import pytest

from ksana.ports.fabric import Fabric
from tests.conformance.fabric.world import LONG, SHORT, World, an_instance, eventually


@pytest.mark.spec("N1")
async def test_an_instance_is_seen_by_the_others_until_its_presence_runs_out(
    fabric: Fabric, other: Fabric
) -> None:
    await fabric.presence.renew(an_instance(fabric), LONG)
    await other.presence.renew(an_instance(other), SHORT)
    assert {one.instance_id for one in await fabric.presence.list_living()} >= {"one"}
    dead = await eventually(fabric.presence.list_dead)
    assert dead == ["two"]
    assert [one.instance_id for one in await other.presence.list_living()] == ["one"]


@pytest.mark.spec("N1")
async def test_an_instance_that_ends_in_order_is_dead_at_once_and_can_be_forgotten(
    fabric: Fabric, other: Fabric
) -> None:
    await fabric.presence.renew(an_instance(fabric), LONG)
    await other.presence.renew(an_instance(other), LONG)
    await other.presence.withdraw()
    assert await fabric.presence.list_dead() == ["two"]
    assert await fabric.presence.forget("two")
    assert await fabric.presence.list_dead() == []
    assert await fabric.presence.forget("two")  # again: the same


@pytest.mark.spec("N1")
async def test_an_instance_that_lives_is_not_forgotten(fabric: Fabric, other: Fabric) -> None:
    await other.presence.renew(an_instance(other), LONG)
    assert not await fabric.presence.forget("two")
    assert [one.instance_id for one in await fabric.presence.list_living()] == ["two"]


@pytest.mark.spec("N1", "X3")
async def test_presence_is_back_with_the_next_renewal_after_everything_was_lost(
    world: World, fabric: Fabric
) -> None:
    await fabric.presence.renew(an_instance(fabric), LONG)
    world.wipe()
    assert await fabric.presence.list_living() == []
    await fabric.presence.renew(an_instance(fabric), LONG)
    assert [one.instance_id for one in await fabric.presence.list_living()] == ["one"]


@pytest.mark.spec("N2")
@pytest.mark.parametrize("kind", ["node", "session"])
async def test_the_first_to_claim_is_the_owner(fabric: Fabric, other: Fabric, kind: str) -> None:
    assert await fabric.owners.claim(kind, "n", LONG) == "one"  # type: ignore[arg-type]
    assert await fabric.owners.claim(kind, "n", LONG) == "one"  # type: ignore[arg-type]
    assert await other.owners.claim(kind, "n", LONG) == "one"  # type: ignore[arg-type]
    assert await other.owners.find(kind, "n") == "one"  # type: ignore[arg-type]


@pytest.mark.spec("N2")
async def test_nodes_and_sessions_with_the_same_id_do_not_meet(
    fabric: Fabric, other: Fabric
) -> None:
    await fabric.owners.claim("node", "x", LONG)
    assert await other.owners.claim("session", "x", LONG) == "two"


@pytest.mark.spec("N2")
async def test_an_owner_is_removed_only_by_itself(fabric: Fabric, other: Fabric) -> None:
    await fabric.owners.claim("node", "n", LONG)
    assert not await other.owners.drop_if_ours("node", "n")
    assert await fabric.owners.find("node", "n") == "one"
    assert await fabric.owners.drop_if_ours("node", "n")
    assert await fabric.owners.find("node", "n") is None
    assert await fabric.owners.drop_if_ours("node", "n")  # again: the same


@pytest.mark.spec("N2", "N3")
async def test_an_owner_is_replaced_only_if_it_is_the_one_that_was_seen(
    world: World, fabric: Fabric, other: Fabric
) -> None:
    third = world.join("three")
    await fabric.owners.claim("node", "n", LONG)
    assert await other.owners.replace_if("node", "n", "one", LONG)
    assert await other.owners.replace_if("node", "n", "one", LONG)  # again: the same
    assert not await third.owners.replace_if("node", "n", "one", LONG)
    assert await fabric.owners.find("node", "n") == "two"


@pytest.mark.spec("N2")
async def test_renewal_tells_what_is_lost_and_brings_back_what_ran_out(
    world: World, fabric: Fabric, other: Fabric
) -> None:
    for name in ("a", "b", "c"):
        await fabric.owners.claim("node", name, LONG)
    await other.owners.replace_if("node", "b", "one", LONG)
    assert await fabric.owners.renew("node", ["a", "b", "c"], LONG) == [True, False, True]
    world.wipe()
    assert await fabric.owners.renew("node", ["a"], LONG) == [True]
    assert await other.owners.find("node", "a") == "one"
    assert await fabric.owners.renew("node", [], LONG) == []


@pytest.mark.spec("N2")
async def test_an_owner_that_is_not_renewed_runs_out(fabric: Fabric, other: Fabric) -> None:
    await fabric.owners.claim("node", "n", SHORT)
    await eventually(lambda: fabric.owners.find("node", "n"), lambda found: found is None)
    assert await other.owners.claim("node", "n", LONG) == "two"


@pytest.mark.spec("N2")
async def test_renewing_a_thousand_owners_is_one_call(fabric: Fabric) -> None:
    ids = [f"n{n}" for n in range(1_000)]
    assert await fabric.owners.renew("node", ids, LONG) == [True] * 1_000
    assert await fabric.owners.find("node", "n999") == "one"
