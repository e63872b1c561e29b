"""Node jobs from the request to the result, on one instance and across two."""

import asyncio

import msgspec
import pytest

from ksana.base.errors import ConflictError, KsanaError
from ksana.base.instant import MILLISECOND
from ksana.domain.nodes import frames
from ksana.engine.nodes.home import NoNodeError
from ksana.engine.nodes.parameters import NodeParameters
from tests.nodes.world import FAST, World, until

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
