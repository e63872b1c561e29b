"""Signals: hints to the other instances."""

import asyncio

import pytest

from ksana.ports.fabric import Fabric
from tests.conformance.fabric.world import World


async def hears(fabric: Fabric, name: str) -> "asyncio.Queue[str]":
    heard: asyncio.Queue[str] = asyncio.Queue()
    fabric.signals.subscribe(name, heard.put_nowait)
    return heard


async def tell_until_heard(teller: Fabric, name: str, heard: "asyncio.Queue[str]") -> str:
    """A signal may be lost, above all while a listener connects: tell it until it is heard."""
    async with asyncio.timeout(20):
        while heard.empty():
            teller.signals.publish(name, "detail")
            await asyncio.sleep(0.02)
    return heard.get_nowait()


@pytest.mark.spec("X3")
async def test_a_signal_is_heard_by_the_others_by_its_name(fabric: Fabric, other: Fabric) -> None:
    for one in (fabric, other):
        await one.start()
    heard = await hears(other, "queue.ready")
    strange = await hears(other, "tasks.due")
    own = await hears(fabric, "queue.ready")
    assert await tell_until_heard(fabric, "queue.ready", heard) == "detail"
    assert own.empty()
    assert strange.empty()


@pytest.mark.spec("X3")
async def test_who_no_longer_listens_hears_nothing(fabric: Fabric, other: Fabric) -> None:
    for one in (fabric, other):
        await one.start()
    deaf: list[str] = []
    end = other.signals.subscribe("keys.revoked", deaf.append)
    end()
    end()
    heard = await hears(other, "keys.revoked")
    await tell_until_heard(fabric, "keys.revoked", heard)
    assert deaf == []


@pytest.mark.spec("X3")
async def test_signals_are_heard_again_after_everything_was_lost(
    world: World, fabric: Fabric, other: Fabric
) -> None:
    for one in (fabric, other):
        await one.start()
    heard = await hears(other, "governance.gate")
    await tell_until_heard(fabric, "governance.gate", heard)
    world.wipe()
    await tell_until_heard(fabric, "governance.gate", heard)


@pytest.mark.spec("X3")
async def test_whether_others_are_heard_is_known_without_asking(
    world: World, fabric: Fabric, other: Fabric
) -> None:
    for one in (fabric, other):
        await one.start()
    heard = await hears(other, "queue.ready")
    await tell_until_heard(fabric, "queue.ready", heard)
    assert other.signals.is_live


@pytest.mark.spec("X3")
async def test_what_was_told_is_on_its_way_once_it_is_flushed(
    fabric: Fabric, other: Fabric
) -> None:
    await other.start()
    heard = await hears(other, "keys.changed")
    await tell_until_heard(fabric, "keys.changed", heard)
    fabric.signals.publish("keys.changed", "last words")
    await fabric.signals.flush()
    await fabric.close()
    async with asyncio.timeout(20):
        while await heard.get() != "last words":
            pass
