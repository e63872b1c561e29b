"""Messages between instances: at least once, bounded, never lost in silence."""

import asyncio

import pytest

from ksana.base.instant import SECOND
from ksana.ports.fabric import Fabric
from ksana.ports.inbox import InboxEntry, InboxSettings
from tests.conformance.fabric.world import LONG, SHORT, World, eventually


def bodies(deliveries: list[InboxEntry] | None) -> list[bytes]:
    assert deliveries is not None
    return [delivery.body for delivery in deliveries]


async def read_all(fabric: Fabric, count: int) -> list[InboxEntry]:
    """Read until so many came."""
    found: list[InboxEntry] = []
    async with asyncio.timeout(20):
        while len(found) < count:
            found += await fabric.inbox.read(64, SECOND)
    return found


@pytest.mark.fault("F49")
@pytest.mark.spec("N9")
async def test_messages_come_in_order_and_are_gone_when_done(fabric: Fabric, other: Fabric) -> None:
    await fabric.inbox.open()
    for n in range(5):
        assert await other.inbox.send("one", b"m%d" % n) == "sent"
    assert (await fabric.inbox.measure()).length == 5
    found = await read_all(fabric, 5)
    assert bodies(found) == [b"m0", b"m1", b"m2", b"m3", b"m4"]
    state = await fabric.inbox.measure()
    assert (state.length, state.pending) == (5, 5)
    assert await fabric.inbox.done([delivery.id for delivery in found]) == 5
    state = await fabric.inbox.measure()
    assert (state.length, state.pending) == (0, 0)
    assert await fabric.inbox.done([found[0].id]) == 0  # again: nothing


@pytest.mark.spec("N9")
async def test_a_body_is_bytes_and_comes_as_it_was_sent(fabric: Fabric) -> None:
    await fabric.inbox.open()
    body = bytes(range(256)) * 40
    await fabric.inbox.send("one", body)
    (delivery,) = await read_all(fabric, 1)
    assert delivery.body == body


@pytest.mark.spec("N9")
async def test_a_reader_waits_for_what_comes(fabric: Fabric, other: Fabric) -> None:
    await fabric.inbox.open()
    reading = asyncio.create_task(fabric.inbox.read(1, 10 * SECOND))
    await asyncio.sleep(0)
    assert await other.inbox.send("one", b"x") == "sent"
    assert bodies(await reading) == [b"x"]


@pytest.mark.spec("N9")
async def test_a_read_with_nothing_to_read_ends(fabric: Fabric) -> None:
    await fabric.inbox.open()
    assert await fabric.inbox.read(1, SHORT) == []


@pytest.mark.spec("N9")
async def test_an_instance_that_never_opened_its_inbox_cannot_be_written_to(
    fabric: Fabric,
) -> None:
    assert await fabric.inbox.send("nobody", b"x") == "gone"


@pytest.mark.fault("F49")
@pytest.mark.spec("N9")
async def test_above_nine_tenths_the_sender_is_refused_and_nothing_unread_is_lost(
    world: World, other: Fabric
) -> None:
    fabric = world.join("small", InboxSettings(maxlen=100))
    sender = world.join("sender", InboxSettings(maxlen=100))
    await fabric.inbox.open()
    results = [await sender.inbox.send("small", b"%d" % n) for n in range(120)]
    assert results == ["sent"] * 90 + ["full"] * 30
    found = await read_all(fabric, 90)
    assert bodies(found) == [b"%d" % n for n in range(90)]
    assert await sender.inbox.send("small", b"x") == "full"  # pending ones count too
    await fabric.inbox.done([delivery.id for delivery in found[:10]])
    assert await sender.inbox.send("small", b"x") == "sent"


@pytest.mark.spec("N9")
async def test_what_was_handed_out_and_left_alone_is_handed_out_again(fabric: Fabric) -> None:
    await fabric.inbox.open()
    await fabric.inbox.send("one", b"x")
    await read_all(fabric, 1)
    assert await fabric.inbox.reclaim(LONG, 10) == []
    (again,) = await fabric.inbox.reclaim(0, 10)
    assert (again.body, again.deliveries) == (b"x", 2)
    await fabric.inbox.done([again.id])
    assert await fabric.inbox.reclaim(0, 10) == []


@pytest.mark.fault("F14")
@pytest.mark.spec("N9")
async def test_a_message_that_fails_again_and_again_becomes_a_dead_letter(world: World) -> None:
    settings = InboxSettings(dlq_max_deliveries=3, dlq_min_idle_us=1000)
    fabric = world.join("one", settings)
    await fabric.inbox.open()
    await fabric.inbox.send("one", b"poison")
    await fabric.inbox.send("one", b"good")
    first = await read_all(fabric, 2)
    await fabric.inbox.done([delivery.id for delivery in first if delivery.body == b"good"])
    assert await fabric.inbox.bury() == 0
    await fabric.inbox.reclaim(0, 10)
    assert await fabric.inbox.bury() == 0  # two deliveries: not yet
    await fabric.inbox.reclaim(0, 10)
    assert await eventually(fabric.inbox.bury) == 1
    state = await fabric.inbox.measure()
    assert (state.length, state.pending, state.dead_letters) == (0, 0, 1)
    (letter,) = await fabric.dead_letters.list_letters("one", "", 10)
    assert (letter.body, letter.deliveries, letter.instance_id) == (b"poison", 3, "one")
    assert letter.moved_at > 0
    assert await fabric.dead_letters.list_letters("one", letter.id, 10) == []


@pytest.mark.spec("N9", "B12")
async def test_dead_letters_are_listed_newest_first_without_their_messages(world: World) -> None:
    settings = InboxSettings(dlq_max_deliveries=1, dlq_min_idle_us=1000)
    fabric = world.join("one", settings)
    await fabric.inbox.open()
    for body in (b'{"kind":"assign","x":1}', b'{"kind":"push"}', b"garbage"):
        await fabric.inbox.send("one", body)
        await read_all(fabric, 1)
        assert await eventually(fabric.inbox.bury) == 1
    heads = await fabric.dead_letters.list_heads("one", "", 2)
    assert [head.kind for head in heads] == ["", "push"]
    (last,) = await fabric.dead_letters.list_heads("one", heads[-1].id, 2)
    assert (last.kind, last.deliveries) == ("assign", 1)
    assert last.moved_at > 0
    assert await fabric.dead_letters.list_heads("one", last.id, 2) == []
    assert await fabric.dead_letters.list_heads("nobody", "", 2) == []


@pytest.mark.spec("N9")
async def test_nothing_is_buried_where_dead_letters_are_off(world: World) -> None:
    settings = InboxSettings(dlq_enabled=False, dlq_max_deliveries=1, dlq_min_idle_us=1)
    fabric = world.join("one", settings)
    await fabric.inbox.open()
    await fabric.inbox.send("one", b"x")
    await read_all(fabric, 1)
    assert await fabric.inbox.bury() == 0
    assert (await fabric.inbox.measure()).length == 1


@pytest.mark.spec("N14")
async def test_a_dead_letter_can_be_replayed_or_deleted_once(world: World) -> None:
    fabric = world.join("one", InboxSettings(dlq_max_deliveries=1, dlq_min_idle_us=1000))
    other = world.join("two")
    await fabric.inbox.open()
    for body in (b"a", b"b"):
        await fabric.inbox.send("one", body)
    await read_all(fabric, 2)
    moved = 0
    while moved < 2:
        moved += await eventually(fabric.inbox.bury)
    a, b = await other.dead_letters.list_letters("one", "", 10)
    assert await other.dead_letters.replay("one", a.id)
    assert not await other.dead_letters.replay("one", a.id)
    assert bodies(await read_all(fabric, 1)) == [b"a"]
    assert await other.dead_letters.delete("one", b.id)
    assert not await other.dead_letters.delete("one", b.id)
    assert await other.dead_letters.list_letters("one", "", 10) == []


@pytest.mark.fault("F49")
@pytest.mark.spec("N9")
async def test_a_dead_inbox_is_drained_by_one_survivor_pending_and_unread_and_deleted(
    world: World,
) -> None:
    dead, one, two = world.join("dead"), world.join("one"), world.join("two")
    await dead.inbox.open()
    for n in range(6):
        await one.inbox.send("dead", b"%d" % n)
    await dead.inbox.read(2, SECOND)  # two are pending, four unread
    rights = await asyncio.gather(
        one.inbox.begin_drain("dead", LONG), two.inbox.begin_drain("dead", LONG)
    )
    assert sorted(rights) == [False, True]
    winner, loser = (one, two) if rights[0] else (two, one)
    assert await loser.inbox.drain("dead", 10) is None
    assert not await loser.inbox.end_drain("dead")
    first = await winner.inbox.drain("dead", 4)
    assert bodies(first) == [b"0", b"1", b"2", b"3"]
    assert not await winner.inbox.end_drain("dead")  # something is left
    await winner.inbox.done([delivery.id for delivery in first or []], "dead")
    rest = await winner.inbox.drain("dead", 10)
    assert bodies(rest) == [b"4", b"5"]
    await winner.inbox.done([delivery.id for delivery in rest or []], "dead")
    assert await winner.inbox.drain("dead", 10) == []
    assert await winner.inbox.end_drain("dead")
    assert await one.inbox.send("dead", b"late") == "gone"


@pytest.mark.spec("N9")
async def test_the_right_to_drain_passes_on_when_its_holder_falls_silent(
    fabric: Fabric, other: Fabric
) -> None:
    assert await fabric.inbox.begin_drain("dead", SHORT)
    await eventually(lambda: other.inbox.begin_drain("dead", LONG))
    assert not await fabric.inbox.begin_drain("dead", LONG)
    assert await fabric.inbox.drain("dead", 1) is None


@pytest.mark.spec("N9")
async def test_dead_letters_of_a_drained_inbox_are_kept_by_the_survivor(world: World) -> None:
    settings = InboxSettings(dlq_max_deliveries=1, dlq_min_idle_us=1000)
    dead, one = world.join("dead", settings), world.join("one", settings)
    await dead.inbox.open()
    await one.inbox.open()
    await one.inbox.send("dead", b"poison")
    await read_all(dead, 1)
    assert await one.inbox.begin_drain("dead", LONG)
    await eventually(lambda: one.inbox.drain("dead", 10), lambda found: found == [])
    assert await one.inbox.end_drain("dead")
    (letter,) = await one.dead_letters.list_letters("one", "", 10)
    assert (letter.body, letter.instance_id) == (b"poison", "dead")


@pytest.mark.spec("N9")
async def test_messages_from_many_senders_each_come_once(world: World) -> None:
    fabric = world.join("one")
    await fabric.inbox.open()
    senders = [world.join() for _ in range(4)]

    async def send(number: int) -> None:
        sender = senders[number % len(senders)]
        assert await sender.inbox.send("one", b"%d" % number) == "sent"

    sending = asyncio.gather(*(send(n) for n in range(400)))
    found: list[InboxEntry] = []
    async with asyncio.timeout(30):
        while len(found) < 400:
            part = await fabric.inbox.read(50, SECOND)
            await fabric.inbox.done([delivery.id for delivery in part])
            found += part
    await sending
    assert sorted(int(delivery.body) for delivery in found) == list(range(400))
    assert (await fabric.inbox.measure()).length == 0


@pytest.mark.spec("N9", "X3")
async def test_an_inbox_that_was_lost_is_opened_again_by_its_reader(
    world: World, fabric: Fabric, other: Fabric
) -> None:
    await fabric.inbox.open()
    world.wipe()
    await fabric.inbox.read(1, SHORT)
    await eventually(lambda: other.inbox.send("one", b"x"), lambda result: result == "sent")
    assert bodies(await read_all(fabric, 1)) == [b"x"]
