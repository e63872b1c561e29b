"""Two steps on one way: what each of them promises holds as if it were alone."""

import asyncio

import pytest

from ksana.base.instant import SECOND
from ksana.domain.nodes.records import Binding, JobOutcome
from ksana.ports.fabric import Fabric, JobEnd, SlotWish
from ksana.ports.inbox import Post
from tests.conformance.fabric.world import LONG, World, a_job, change, eventually


def wish(job_id: str, node_id: str = "n", slots: int = 2) -> SlotWish:
    return SlotWish(node_id=node_id, job_id=job_id, slots=slots, model="echo", ttl_us=LONG)


def end_of(job_id: str, node_id: str = "n", attempt: int = 1) -> JobEnd:
    finish = change("finish", attempt, node_id, outcome=JobOutcome(success=True))
    return JobEnd(job_id=job_id, node_id=node_id, change=finish)


async def bodies(fabric: Fabric, count: int) -> list[bytes]:
    found: list[bytes] = []
    async with asyncio.timeout(10):
        while len(found) < count:
            found += [entry.body for entry in await fabric.inbox.read(10, SECOND)]
    return found


@pytest.mark.spec("N8", "N6")
async def test_a_request_is_bound_once_and_a_slot_held_only_within_the_slots(world: World) -> None:
    instances = [world.join() for _ in range(8)]
    answers = await asyncio.gather(
        *(
            one.requests.bind_and_reserve("r", Binding(job_id=f"j{n}"), LONG, wish(f"j{n}"))
            for n, one in enumerate(instances)
        )
    )
    assert len({bound.job_id for bound, _ in answers}) == 1
    held = [reserved for _, reserved in answers if reserved == "reserved"]
    assert await instances[0].reservations.count("n") == len(held) <= 2
    assert {reserved for _, reserved in answers} <= {"reserved", "full", None}


@pytest.mark.spec("N6", "N11")
async def test_a_slot_that_is_asked_for_on_the_way_is_refused_like_any_other(
    fabric: Fabric,
) -> None:
    await fabric.marks.set_draining("n", True, LONG)
    bound, reserved = await fabric.requests.bind_and_reserve(
        "r", Binding(job_id="j"), LONG, wish("j")
    )
    assert bound.job_id == "j"
    assert reserved in ("draining", None)
    assert await fabric.reservations.count("n") == 0


@pytest.mark.spec("N7", "N9")
async def test_a_job_is_written_before_its_message_can_be_read(
    fabric: Fabric, other: Fabric
) -> None:
    await other.inbox.open()
    for number in range(20):
        job_id = f"j{number}"
        making = asyncio.create_task(
            fabric.jobs.create(
                a_job(job_id),
                "one",
                LONG,
                change("dispatch", 1, "n"),
                Post(instance_id="two", body=job_id.encode()),
            )
        )
        assert await bodies(other, 1) == [job_id.encode()]
        assert await other.jobs.find(job_id) is not None
        created = await making
        assert (created.is_new, created.state, created.sent) == (True, "DISPATCHED", "sent")


@pytest.mark.spec("N7")
async def test_a_job_that_is_created_twice_by_a_lost_answer_is_new_both_times(
    fabric: Fabric, other: Fabric
) -> None:
    request, dispatch = a_job("j", trace_id="t"), change("dispatch", 1, "n")
    for _ in range(2):
        assert (await fabric.jobs.create(request, "one", LONG, dispatch)).is_new
    assert not (await other.jobs.create(request, "two", LONG, dispatch)).is_new
    assert not (await fabric.jobs.create(a_job("j", trace_id="u"), "one", LONG, dispatch)).is_new


@pytest.mark.spec("N9")
async def test_a_message_that_cannot_be_sent_does_not_undo_its_job(fabric: Fabric) -> None:
    post = Post(instance_id="nobody", body=b"x")
    created = await fabric.jobs.create(a_job("j"), "one", LONG, change("dispatch", 1, "n"), post)
    assert (created.is_new, created.sent) == (True, "gone")
    moved, sent = await fabric.jobs.move_and_post("j", change("start", 1, "n"), post)
    assert (moved.result, sent) == ("moved", "gone")


@pytest.mark.spec("N7", "N9")
async def test_a_move_and_its_message(fabric: Fabric, other: Fabric) -> None:
    await other.inbox.open()
    await fabric.jobs.create(a_job("j"), "one", LONG)
    post = Post(instance_id="two", body=b"x")
    moved, sent = await fabric.jobs.move_and_post("j", change("dispatch", 1, "n"), post)
    assert (moved.result, moved.state, sent) == ("moved", "DISPATCHED", "sent")
    moved, sent = await fabric.jobs.move_and_post("j", change("dispatch", 1, "m"), post)
    assert (moved.result, sent) == ("stale", "sent")
    assert await bodies(other, 2) == [b"x", b"x"]


@pytest.mark.spec("N6", "N7")
async def test_jobs_are_settled_each_for_itself(fabric: Fabric) -> None:
    for number in range(12):
        job_id, node_id = f"j{number}", f"n{number % 3}"
        await fabric.reservations.reserve(node_id, job_id, 9, "echo", LONG)
        await fabric.jobs.create(a_job(job_id), "one", LONG, change("dispatch", 1, node_id))
    ends = [end_of(f"j{n}", f"n{n % 3}") for n in range(12)]
    ends[4] = end_of("unknown", "n0")
    ends[5] = end_of("j5", "n2", attempt=2)
    moved = await fabric.jobs.settle(ends, hint=True)
    assert [one.result for one in moved] == ["moved"] * 4 + ["missing", "stale"] + ["moved"] * 6
    for end, one in zip(ends, moved, strict=True):
        if one.result != "moved":
            continue
        record = await fabric.jobs.find(end.job_id)
        assert record is not None
        assert (record.state, record.has_ended) == (one.state, True)
        if one.state == "FINISHED":  # the rest is the caller's
            await fabric.reservations.release(end.node_id, end.job_id)
            assert (await fabric.jobs.move(end.job_id, change("release", 1))).holds
    assert await fabric.reservations.count("n0") == 0
    assert await fabric.reservations.count("n1") == 1  # of j4
    assert [one.result for one in await fabric.jobs.settle(ends[:4])] == ["repeat"] * 4


@pytest.mark.spec("N7", "N12")
async def test_a_settled_job_stays_on_the_list_of_its_home_until_it_is_struck(
    fabric: Fabric,
) -> None:
    await fabric.jobs.create(a_job("j"), "one", LONG)
    finish = change("finish", 1, outcome=JobOutcome(success=False))
    (moved,) = await fabric.jobs.settle([JobEnd(job_id="j", node_id="", change=finish)])
    assert (moved.result, moved.state) == ("moved", "RELEASED")  # no slot, nothing else to wait for
    assert await fabric.jobs.list_homed("one", 10) == ["j"]
    await fabric.jobs.strike_homed("one", ["j"])
    assert await fabric.jobs.list_homed("one", 10) == []


@pytest.mark.spec("N9")
async def test_what_is_done_goes_with_the_next_read(fabric: Fabric, other: Fabric) -> None:
    await fabric.inbox.open()
    for number in range(3):
        await other.inbox.send("one", b"%d" % number)
    found = await fabric.inbox.read(10, SECOND)
    while len(found) < 3:
        found += await fabric.inbox.read(10, SECOND)
    ids = [entry.id for entry in found]
    reading = asyncio.create_task(fabric.inbox.read(10, 10 * SECOND, ids[:2]))
    # Removed before anything is waited for.
    await eventually(other_length(fabric), lambda length: length == 1)
    await other.inbox.send("one", b"next")
    assert [entry.body for entry in await reading] == [b"next"]
    state = await fabric.inbox.measure()
    assert (state.length, state.pending) == (2, 2)


def other_length(fabric: Fabric):  # type: ignore[no-untyped-def]
    async def length() -> int:
        return (await fabric.inbox.measure()).length

    return length


@pytest.mark.spec("N9", "N13")
async def test_what_is_done_is_removed_later_where_its_read_failed(
    world: World, fabric: Fabric, other: Fabric
) -> None:
    await fabric.inbox.open()
    await other.inbox.send("one", b"x")
    (entry,) = await fabric.inbox.read(10, SECOND)
    reading = asyncio.create_task(fabric.inbox.read(10, 10 * SECOND, [entry.id]))
    reading.cancel()  # before anything was sent
    await asyncio.gather(reading, return_exceptions=True)
    await other.inbox.send("one", b"y")
    found: list[bytes] = []
    while not found:
        found = [one.body for one in await fabric.inbox.read(10, SECOND, [entry.id])]
    assert found == [b"y"]
    await eventually(other_length(fabric), lambda length: length == 1)
