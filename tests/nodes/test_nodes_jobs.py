"""Node jobs from the request to the result, on one instance and across two."""

import asyncio

import msgspec
import pytest

from ksana.base.errors import ConflictError, KsanaError
from ksana.base.instant import MILLISECOND, SECOND
from ksana.domain.nodes import frames
from ksana.domain.nodes.attempts import AttemptLimits
from ksana.domain.nodes.records import InstanceInfo
from ksana.engine.nodes.home import NoNodeError
from ksana.engine.nodes.parameters import NodeParameters
from tests.nodes.load import slots_are_free
from tests.nodes.world import NodeTalker, World, until

FAST = NodeParameters(
    refresh_us=100 * MILLISECOND,
    progress_us=10 * MILLISECOND,
    probe_us=300 * MILLISECOND,
    limits=AttemptLimits(
        ack_us=300 * MILLISECOND, start_us=300 * MILLISECOND, result_us=600 * MILLISECOND
    ),
)
SLOW = NodeParameters(refresh_us=100 * MILLISECOND, progress_us=10 * MILLISECOND)


@pytest.mark.spec("N3", "N4", "N7")
async def test_a_job_goes_to_a_node_and_its_result_to_the_session(world: World) -> None:
    one = await world.start("one", SLOW)
    await one.node("n")
    session = await one.session("s")
    created = await session.ask(b'{"a":1}', request_id="r")
    (result,) = await session.wait(frames.SessionResult)
    assert [type(frame) for frame in session.heard][:1] == [frames.JobCreated]
    assert (result.job_id, result.request_id, result.success) == (created.job_id, "r", True)
    assert bytes(result.data) == b'{"a":1}'
    assert created.durable is one.fabric.durable
    await until(lambda: not len(one.engine.background))
    assert await one.fabric.reservations.count("n") == 0
    job = await one.fabric.jobs.find(created.job_id)
    assert job is not None
    assert job.state == "RELEASED"
    names = [row[2] for row in one.store.events.rows if row[0] == "NODE_JOB"]
    await one.engine.recorder.flush()
    names = [row[2] for row in one.store.events.rows if row[0] == "NODE_JOB"]
    assert names[0] == "NODE_JOB_CREATED"
    assert names[-1] == "NODE_JOB_RELEASED"
    assert {"NODE_JOB_DISPATCHED", "NODE_JOB_FINISHED"} < set(names)


@pytest.mark.spec("N9", "N10")
async def test_a_node_on_one_instance_serves_a_session_on_another(world: World) -> None:
    one, two = await world.start("one", SLOW), await world.start("two", SLOW)
    await one.node("n", slots=50)
    session = await two.session("s")
    await two.sees("n")
    made = await asyncio.gather(*(session.ask(b"%d" % n, wait_sec=20.0) for n in range(200)))
    results = await session.wait(frames.SessionResult, 200)
    assert len(results) == 200
    assert {result.job_id for result in results} == {created.job_id for created in made}
    assert all(result.success for result in results)
    assert sorted(int(bytes(result.data)) for result in results) == list(range(200))


@pytest.mark.spec("N6")
async def test_slots_are_never_exceeded_and_none_is_left_over(world: World) -> None:
    instances = [await world.start(f"i{n}", SLOW) for n in range(3)]
    nodes = []
    for number, slots in enumerate((1, 2, 3)):
        node = await instances[number].node(f"n{number}", slots=slots)
        nodes.append((node, slots))
    sessions = [await instance.session(f"s{n}") for n, instance in enumerate(instances)]
    for instance in instances:
        for number in range(3):
            await instance.sees(f"n{number}")
    await asyncio.gather(*(sessions[n % 3].ask(wait_sec=30.0) for n in range(150)))
    for session in sessions:
        await session.wait(frames.SessionResult, 50)
        assert all(result.success for result in session.all(frames.SessionResult))
    for node, slots in nodes:
        assert 0 < node.most_at_once <= slots
    for instance in instances:
        await until(lambda: not len(instance.engine.background))
    for number in range(3):
        assert await instances[0].fabric.reservations.count(f"n{number}") == 0


@pytest.mark.spec("N5")
async def test_without_a_node_the_request_is_refused_and_may_be_made_again(world: World) -> None:
    one = await world.start("one", SLOW)
    session = await one.session("s")
    with pytest.raises(NoNodeError) as caught:
        await session.ask(request_id="r")
    assert caught.value.code == "NO_AVAILABLE_NODE"
    await until(lambda: not len(one.engine.background))
    await one.node("n")
    assert not (await session.ask(request_id="r")).is_repeat
    await session.wait(frames.SessionResult)


@pytest.mark.spec("N5")
async def test_requests_that_wait_are_served_by_priority(world: World) -> None:
    one = await world.start("one", SLOW)
    session = await one.session("s")
    for priority in (1, 9, 5):
        created = await session.ask(b"%d" % priority, priority=priority, wait_sec=20.0)
        assert created.state == "CREATED"
    await one.node("n")
    results = await session.wait(frames.SessionResult, 3)
    assert [bytes(result.data) for result in results] == [b"9", b"5", b"1"]


@pytest.mark.spec("N5")
async def test_a_request_that_waits_in_vain_fails_after_its_time(world: World) -> None:
    one = await world.start("one", FAST)
    session = await one.session("s")
    await session.ask(wait_sec=0.2)
    (result,) = await session.wait(frames.SessionResult)
    assert result.error is not None
    assert result.error.code == "NO_AVAILABLE_NODE"


@pytest.mark.spec("N8")
async def test_one_request_id_on_many_instances_at_once_makes_one_job(world: World) -> None:
    settings = NodeParameters(refresh_us=500 * MILLISECOND, progress_us=10 * MILLISECOND)
    instances = await asyncio.gather(*(world.start(f"i{n}", settings) for n in range(32)))
    node = await instances[0].node("n", slots=2)
    sessions = [await instance.session(f"s{n}") for n, instance in enumerate(instances)]
    for instance in instances:
        await instance.sees("n")
    for turn in range(3):
        # Without waiting: nobody may be told that there is no slot because of the others' repeats.
        made = await asyncio.gather(*(one.ask(request_id=f"same-{turn}") for one in sessions))
        assert len({created.job_id for created in made}) == 1
        assert sum(1 for created in made if not created.is_repeat) == 1
        await until(lambda turn=turn: len(node.all(frames.JobAssign)) == turn + 1)
        winner = next(n for n, created in enumerate(made) if not created.is_repeat)
        await sessions[winner].wait(frames.SessionResult)
        sessions[winner].heard.clear()
    assert len(node.all(frames.JobAssign)) == 3


@pytest.mark.spec("N8")
async def test_another_request_under_the_same_id_is_refused(world: World) -> None:
    one = await world.start("one", SLOW)
    await one.node("n", slots=2)
    session = await one.session("s")
    await session.ask(b"1", request_id="r")
    with pytest.raises(ConflictError) as caught:
        await session.ask(b"2", request_id="r")
    assert caught.value.code == "IDEMPOTENCY_MISMATCH"


@pytest.mark.spec("N8")
async def test_a_repeat_after_the_end_is_told_the_result_again(world: World) -> None:
    one = await world.start("one", SLOW)
    await one.node("n")
    session = await one.session("s")
    first = await session.ask(request_id="r")
    await session.wait(frames.SessionResult)
    again = await session.ask(request_id="r")
    assert (again.job_id, again.is_repeat) == (first.job_id, True)
    await session.wait(frames.SessionResult, 2)


@pytest.mark.spec("N12")
@pytest.mark.parametrize("mode", ["silent", "hold"])
async def test_a_node_that_falls_silent_loses_the_job_to_another(world: World, mode: str) -> None:
    one = await world.start("one", FAST)
    silent = await one.node("a-silent")
    silent.mode = mode
    session = await one.session("s")
    created = await session.ask()
    await until(lambda: silent.all(frames.JobAssign))
    await one.node("b")
    (result,) = await session.wait(frames.SessionResult)
    assert result.success
    assert result.attempt_id == 2
    await until(lambda: silent.all(frames.NodeJobCancel))
    silent.finish(silent.all(frames.JobAssign)[0])  # late: dropped and counted
    await until(lambda: one.engine.hosting.stale + one.engine.home.endings.stale > 0)
    assert len(session.all(frames.SessionResult)) == 1
    assert (await one.service.get_job(created.job_id)).attempt == 2


@pytest.mark.spec("N12")
async def test_without_another_node_the_failure_is_told(world: World) -> None:
    one = await world.start("one", FAST)
    silent = await one.node("n")
    silent.mode = "silent"
    session = await one.session("s")
    await session.ask()
    (result,) = await session.wait(frames.SessionResult)
    assert not result.success
    assert result.error is not None
    assert result.error.code == "NO_ACK"
    await until(lambda: not len(one.engine.background))
    assert await one.fabric.reservations.count("n") == 0


@pytest.mark.spec("N12")
async def test_a_node_that_disconnects_gives_its_jobs_to_others(world: World) -> None:
    one, two = await world.start("one", SLOW), await world.start("two", SLOW)
    leaving = await one.node("a")
    leaving.mode = "hold"
    session = await two.session("s")
    await two.sees("a")
    await session.ask(wait_sec=20.0)
    await until(lambda: leaving.all(frames.JobAssign))
    await two.node("b")
    await leaving.disconnect()
    (result,) = await session.wait(frames.SessionResult)
    assert (result.success, result.attempt_id) == (True, 2)


@pytest.mark.spec("N11")
async def test_a_model_that_is_not_available_moves_the_job_and_marks_the_node(
    world: World,
) -> None:
    one = await world.start("one", SLOW)
    away = await one.node("a", slots=10)
    away.mode = "away"
    session = await one.session("s")
    await session.ask(wait_sec=20.0)
    await until(lambda: away.all(frames.JobAssign))
    await one.node("b", slots=10)
    (result,) = await session.wait(frames.SessionResult)
    assert result.success
    assert set(await one.fabric.marks.list_away("a")) == {"echo"}
    for _ in range(5):
        await session.ask()
    await session.wait(frames.SessionResult, 6)
    assert len(away.all(frames.JobAssign)) == 1  # it is not asked again


@pytest.mark.spec("N7")
async def test_a_failure_that_a_node_reports_is_told_and_not_tried_again(world: World) -> None:
    one = await world.start("one", SLOW)
    node = await one.node("n", slots=2)
    node.mode = "silent"
    session = await one.session("s")
    await session.ask()
    await until(lambda: node.all(frames.JobAssign))
    frame = node.all(frames.JobAssign)[0]
    from ksana.domain.nodes.records import JobError

    node.finish(frame, JobError(code="BROKEN", message="no"))
    (result,) = await session.wait(frames.SessionResult)
    assert result.error == JobError(code="BROKEN", message="no")
    node.finish(frame)  # a second answer
    await until(lambda: one.engine.hosting.stale > 0)
    assert len(session.all(frames.SessionResult)) == 1


@pytest.mark.spec("N7")
async def test_a_node_that_answers_for_the_job_of_another_is_ignored(world: World) -> None:
    one = await world.start("one", SLOW)
    node = await one.node("n")
    node.mode = "silent"
    thief = await one.node("t", model="other")
    session = await one.session("s")
    await session.ask()
    await until(lambda: node.all(frames.JobAssign))
    thief.finish(node.all(frames.JobAssign)[0])
    await until(lambda: one.engine.hosting.stale > 0)
    assert session.all(frames.SessionResult) == []
    node.finish(node.all(frames.JobAssign)[0])
    await session.wait(frames.SessionResult)


@pytest.mark.spec("N4")
async def test_a_job_can_be_canceled_from_any_instance(world: World) -> None:
    one, two = await world.start("one", SLOW), await world.start("two", SLOW)
    node = await one.node("n")
    node.mode = "hold"
    session = await one.session("s")
    created = await session.ask()
    await until(lambda: node.all(frames.JobAssign))
    await two.service.cancel_job(created.job_id)
    (result,) = await session.wait(frames.SessionResult)
    assert result.error is not None
    assert result.error.code == "CANCELED"
    await until(lambda: node.all(frames.NodeJobCancel))
    with pytest.raises(KsanaError) as caught:
        await two.service.cancel_job(created.job_id)
    assert caught.value.code == "ILLEGAL_TRANSITION"


@pytest.mark.spec("N4", "N5")
async def test_a_job_that_waits_can_be_canceled(world: World) -> None:
    one = await world.start("one", SLOW)
    session = await one.session("s")
    created = await session.ask(wait_sec=60.0)
    await one.service.cancel_job(created.job_id, session_id="s")
    await session.wait(frames.SessionResult)
    assert len(one.engine.home.watch.line) == 0
    with pytest.raises(KsanaError):
        await one.service.cancel_job(created.job_id, session_id="another")


@pytest.mark.spec("N3")
async def test_partials_reach_the_session_and_count_as_a_start(world: World) -> None:
    one, two = await world.start("one", SLOW), await world.start("two", SLOW)
    node = await one.node("n")
    node.mode = "silent"
    session = await two.session("s")
    await two.sees("n")
    created = await session.ask(wait_sec=10.0)
    await until(lambda: node.all(frames.JobAssign))
    assert node.hosted is not None
    partial = frames.JobPartial(job_id=created.job_id, attempt_id=1, data=msgspec.Raw(b'"a"'))
    await one.engine.hosting.on_partial(node.hosted, partial)
    (told,) = await session.wait(frames.SessionPartial)
    assert bytes(told.data) == b'"a"'
    await until(lambda: any(update.state == "RUNNING" for update in session.all(frames.JobUpdate)))
    job = await one.fabric.jobs.find(created.job_id)
    assert job is not None
    assert job.state == "RUNNING"


@pytest.mark.spec("N3")
async def test_a_second_live_node_with_the_same_id_is_refused_here_and_elsewhere(
    world: World,
) -> None:
    one, two = await world.start("one", FAST), await world.start("two", FAST)
    first = await one.node("n")
    for instance in (one, two):
        with pytest.raises(ConflictError) as caught:
            await instance.node("n")
        assert caught.value.code == "NODE_ID_CONFLICT"
    assert first.closed is None


@pytest.mark.spec("N3")
async def test_a_node_that_does_not_answer_is_replaced_by_the_new_one(world: World) -> None:
    one, two = await world.start("one", FAST), await world.start("two", FAST)
    first = await one.node("n")
    first.mode = "dead"
    second = await one.node("n")
    assert first.closed is not None
    second.mode = "dead"
    await two.node("n")
    assert second.closed is not None
    assert await one.fabric.owners.find("node", "n") == "two"
    assert "n" not in one.engine.hosting.nodes


@pytest.mark.spec("N14", "N5")
async def test_a_draining_node_gets_no_jobs_until_it_is_undrained(world: World) -> None:
    one, two = await world.start("one", SLOW), await world.start("two", SLOW)
    await one.node("n")
    await two.sees("n")
    session = await one.session("s")
    await two.engine.registration.set_draining("n", True, "one")
    await until(lambda: one.engine.hosting.nodes["n"].record.is_draining)
    with pytest.raises(NoNodeError):
        await session.ask()
    await two.engine.registration.set_draining("n", False, "one")
    await until(lambda: not one.engine.hosting.nodes["n"].record.is_draining)
    await session.ask()
    await session.wait(frames.SessionResult)


@pytest.mark.spec("N4")
async def test_a_result_waits_for_a_session_that_comes_back_elsewhere(world: World) -> None:
    one, two = await world.start("one", SLOW), await world.start("two", SLOW)
    node = await one.node("n")
    node.mode = "hold"
    session = await one.session("s")
    await session.ask(b"7")
    await until(lambda: node.all(frames.JobAssign))
    await session.disconnect()
    node.finish(node.all(frames.JobAssign)[0])
    await until(lambda: not one.engine.home.jobs)
    back = await two.session("s")
    (result,) = await back.wait(frames.SessionResult)
    assert bytes(result.data) == b"7"


@pytest.mark.fault("F50")
@pytest.mark.spec("N3")
async def test_a_silent_socket_is_pinged_and_then_closed(world: World) -> None:
    settings = NodeParameters(
        heartbeat_us=200 * MILLISECOND, dead_after_us=1500 * MILLISECOND, refresh_us=SECOND
    )
    one = await world.start("one", settings)
    node = NodeTalker(one.engine, "dead")
    await node.register("n", 1, "echo")
    await node.wait(frames.Ping)
    await until(lambda: node.closed is not None)


@pytest.mark.spec("N1", "N9", "N12")
async def test_what_a_dead_instance_left_is_taken_over(world: World) -> None:
    brief = NodeParameters(
        refresh_us=100 * MILLISECOND,
        progress_us=10 * MILLISECOND,
        presence_ttl_us=1500 * MILLISECOND,
        owner_ttl_us=1500 * MILLISECOND,
    )
    dead, one = await world.start("dead", brief), await world.start("one", brief)
    held, lost = await one.node("held", slots=5), await dead.node("lost", slots=5)
    held.mode = lost.mode = "hold"
    session = await one.session("s")
    await until(lambda: len(dead.engine.view) == 2 and len(one.engine.view) == 2)
    # Jobs whose home is the dead instance, for a session that comes back elsewhere.
    orphan = await dead.session("orphan")
    theirs = [await orphan.ask(b"1") for _ in range(4)]
    ours = [await session.ask(b"2") for _ in range(4)]
    await until(lambda: len(held.all(frames.JobAssign)) + len(lost.all(frames.JobAssign)) == 8)
    assert lost.all(frames.JobAssign)
    await dead.die()
    back = await one.session("orphan")
    held.mode = "echo"
    for frame in held.all(frames.JobAssign):
        held.finish(frame)
    mine = await session.wait(frames.SessionResult, len(ours))
    others = await back.wait(frames.SessionResult, len(theirs))
    assert {result.job_id for result in mine} == {created.job_id for created in ours}
    assert {result.job_id for result in others} == {created.job_id for created in theirs}
    await until(lambda: not one.engine.home.jobs)

    async def is_forgotten() -> bool:
        return await one.fabric.presence.list_dead() == []

    async with asyncio.timeout(20):
        while not await is_forgotten():
            await asyncio.sleep(0.05)
    assert await one.fabric.inbox.send("dead", b"x") == "gone"
    assert [info.instance_id for info in await one.fabric.presence.list_living()] == ["one"]


@pytest.mark.spec("N9", "N12")
async def test_an_outcome_in_the_inbox_of_a_dead_home_is_told_and_nothing_is_done_again(
    world: World,
) -> None:
    brief = NodeParameters(
        refresh_us=100 * MILLISECOND,
        progress_us=10 * MILLISECOND,
        presence_ttl_us=1500 * MILLISECOND,
        owner_ttl_us=1500 * MILLISECOND,
        limits=AttemptLimits(ack_us=500 * MILLISECOND),
    )
    dead, one = await world.start("dead", brief), await world.start("one", brief)
    node = await one.node("n", slots=5)
    node.mode = "silent"  # it takes jobs, and answers once their home is dead
    await dead.sees("n")
    orphan = await dead.session("orphan")
    made = [await orphan.ask(b"%d" % number) for number in range(5)]
    await until(lambda: len(node.all(frames.JobAssign)) == 5)
    await dead.die()
    for frame in node.all(frames.JobAssign):
        node.finish(frame)
    back = await one.session("orphan")
    told = await back.wait(frames.SessionResult, 5)
    assert {one.job_id for one in told} == {created.job_id for created in made}
    assert {(one.success, one.attempt_id) for one in told} == {(True, 1)}
    assert len(node.all(frames.JobAssign)) == 5
    await slots_are_free(one, "n")


@pytest.mark.spec("N1")
async def test_an_instance_that_closes_in_order_tells_its_peers(world: World) -> None:
    one, two = await world.start("one", SLOW), await world.start("two", SLOW)
    node = await one.node("n")
    await two.sees("n")
    await one.engine.close()
    assert node.closed is not None
    await until(lambda: two.engine.view.get("n") is None)

    def is_listed(infos: list[InstanceInfo]) -> bool:
        return any(info.instance_id == "one" for info in infos)

    assert not is_listed(await two.fabric.presence.list_living())
