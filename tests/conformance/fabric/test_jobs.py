"""Request bindings and the moves of node jobs."""

import asyncio
from typing import Any

import msgspec
import pytest

from ksana.domain.lifecycle import NODE_JOB
from ksana.domain.nodes.moves import MOVES, judge
from ksana.domain.nodes.records import STATES, Binding, JobError, JobOutcome, JobProgress
from ksana.ports.fabric import Fabric
from tests.conformance.fabric.world import LONG, SHORT, World, a_job, change, eventually


@pytest.mark.spec("N8")
async def test_thirty_two_instances_that_bind_one_request_agree_on_one_job(world: World) -> None:
    instances = [world.join() for _ in range(32)]
    bound = await asyncio.gather(
        *(
            one.requests.bind("r", Binding(job_id=f"job-{n}", instance_id=one.instance_id), LONG)
            for n, one in enumerate(instances)
        )
    )
    assert len({binding.job_id for binding in bound}) == 1
    winners = [n for n, binding in enumerate(bound) if binding.job_id == f"job-{n}"]
    assert len(winners) == 1
    assert await instances[0].requests.find("r") == bound[0]


@pytest.mark.spec("N8")
async def test_a_binding_runs_out_and_can_be_taken_back(fabric: Fabric, other: Fabric) -> None:
    await fabric.requests.bind("r", Binding(job_id="a", digest="d"), LONG)
    assert not await other.requests.unbind_if("r", "b")
    assert await other.requests.unbind_if("r", "a")
    assert await fabric.requests.find("r") is None
    await fabric.requests.bind("r", Binding(job_id="b"), SHORT)
    await eventually(lambda: fabric.requests.find("r"), lambda found: found is None)
    assert (await other.requests.bind("r", Binding(job_id="c"), LONG)).job_id == "c"


@pytest.mark.spec("N8")
async def test_one_instance_at_a_time_makes_the_job_of_a_request(
    fabric: Fabric, other: Fabric
) -> None:
    assert await fabric.requests.lock("r", SHORT)
    assert await fabric.requests.lock("r", SHORT)
    await eventually(lambda: other.requests.lock("r", LONG))
    assert not await fabric.requests.lock("r", LONG)


@pytest.mark.spec("N7")
async def test_a_job_is_created_once(fabric: Fabric, other: Fabric) -> None:
    request = a_job("j", payload=msgspec.Raw(b'{"a":1}'), labels={"x": "y"}, created_at=1)
    created = await fabric.jobs.create(request, "one", LONG)
    assert (created.is_new, created.state, created.attempt) == (True, "CREATED", 1)
    again = await other.jobs.create(request, "two", LONG)
    assert (again.is_new, again.state) == (False, "CREATED")
    job = await other.jobs.find("j")
    assert job is not None
    assert job.home == "one"
    assert bytes(job.request.payload) == b'{"a":1}'
    assert job.request.labels == {"x": "y"}
    assert await other.jobs.find("unknown") is None


@pytest.mark.spec("N7")
async def test_a_job_goes_through_all_its_states(fabric: Fabric, other: Fabric) -> None:
    await fabric.jobs.create(a_job("j"), "one", LONG)
    outcome = JobOutcome(success=True, data=msgspec.Raw(b"[1]"), finished_at=5)
    steps = [
        ("dispatch", "DISPATCHED", {"progress": JobProgress(tried=("n",))}),
        ("ack", "ACCEPTED", {}),
        ("start", "RUNNING", {}),
        ("finish", "FINISHED", {"outcome": outcome}),
        ("release", "RELEASED", {}),
    ]
    for turn, (name, state, members) in enumerate(steps):
        mover = (fabric, other)[turn % 2]
        step = change(name, 1, "n", **members)  # type: ignore[arg-type]
        moved = await mover.jobs.move("j", step)
        assert (moved.result, moved.state, moved.attempt) == ("moved", state, 1)
        again = await mover.jobs.move("j", step)
        assert (again.result, again.state) == ("repeat", state)
    job = await other.jobs.find("j")
    assert job is not None
    assert job.node_id == "n"
    assert job.progress.tried == ("n",)
    assert job.outcome is not None
    assert bytes(job.outcome.data) == b"[1]"


@pytest.mark.spec("N7")
async def test_create_and_dispatch_are_one_step_where_the_node_is_known(fabric: Fabric) -> None:
    dispatch = change("dispatch", 1, "n", progress=JobProgress(tried=("n",), dispatched_at=7))
    created = await fabric.jobs.create(a_job("j"), "one", LONG, dispatch)
    assert (created.is_new, created.state) == (True, "DISPATCHED")
    job = await fabric.jobs.find("j")
    assert job is not None
    assert (job.node_id, job.progress.dispatched_at) == ("n", 7)


@pytest.mark.spec("N7")
async def test_another_attempt_makes_the_former_one_stale(fabric: Fabric, other: Fabric) -> None:
    await fabric.jobs.create(a_job("j"), "one", LONG, change("dispatch", 1, "n"))
    again = await fabric.jobs.move("j", change("again", 1))
    assert (again.result, again.state, again.attempt) == ("moved", "CREATED", 2)
    assert (await fabric.jobs.move("j", change("again", 1))).result == "stale"
    for name in ("ack", "start", "finish"):
        late = await other.jobs.move("j", change(name, 1, "n"))  # type: ignore[arg-type]
        assert (late.result, late.state, late.attempt) == ("stale", "CREATED", 2)
    assert (await fabric.jobs.move("j", change("dispatch", 2, "m"))).result == "moved"
    job = await fabric.jobs.find("j")
    assert job is not None
    assert (job.attempt, job.node_id) == (2, "m")


@pytest.mark.spec("N7", "X12")
@pytest.mark.parametrize("way", [["ack"], ["start"], ["ack", "start"]], ids=" ".join)
async def test_another_attempt_is_made_however_far_the_former_one_came(
    fabric: Fabric, way: list[str]
) -> None:
    await fabric.jobs.create(a_job("j"), "one", LONG, change("dispatch", 1, "n"))
    for name in way:
        moved = await fabric.jobs.move("j", change(name, 1, "n"))  # type: ignore[arg-type]
        assert moved.result == "moved"
    again = await fabric.jobs.move("j", change("again", 1))
    assert (again.result, again.state, again.attempt) == ("moved", "CREATED", 2)


@pytest.mark.spec("N7", "X12")
@pytest.mark.parametrize("way", [[], ["ack"], ["start"], ["ack", "start"]], ids=" ".join)
async def test_a_result_ends_a_job_however_far_it_was_said_to_be(
    fabric: Fabric, way: list[str]
) -> None:
    """What a node says on the way may be lost; its result counts."""
    await fabric.jobs.create(a_job("j"), "one", LONG, change("dispatch", 1, "n"))
    for name in way:
        await fabric.jobs.move("j", change(name, 1, "n"))  # type: ignore[arg-type]
    done = change("finish", 1, "n", outcome=JobOutcome(success=True))
    ended = await fabric.jobs.move("j", done)
    assert (ended.result, ended.state) == ("moved", "FINISHED")


@pytest.mark.spec("N7")
async def test_a_node_cannot_move_the_job_of_another(fabric: Fabric) -> None:
    await fabric.jobs.create(a_job("j"), "one", LONG, change("dispatch", 1, "n"))
    for name in ("ack", "start", "finish", "dispatch"):
        moved = await fabric.jobs.move("j", change(name, 1, "thief"))  # type: ignore[arg-type]
        assert (moved.result, moved.state) == ("stale", "DISPATCHED")
    assert (await fabric.jobs.move("j", change("finish", 1))).result == "moved"  # its home may


@pytest.mark.fault("F12")
@pytest.mark.spec("N7")
async def test_of_many_results_of_one_attempt_one_is_kept(world: World) -> None:
    instances = [world.join() for _ in range(8)]
    await instances[0].jobs.create(a_job("j"), "one", LONG, change("dispatch", 1, "n"))

    async def finish(number: int) -> str:
        outcome = JobOutcome(success=False, error=JobError(code=str(number)))
        step = change("finish", 1, "n", outcome=outcome)
        return (await instances[number % 8].jobs.move("j", step)).result

    results = await asyncio.gather(*(finish(n) for n in range(32)))
    assert sorted(results) == ["moved"] + ["repeat"] * 31
    job = await instances[0].jobs.find("j")
    assert job is not None
    assert job.outcome is not None
    assert job.outcome.error is not None
    assert job.outcome.error.code == str(results.index("moved"))


@pytest.mark.spec("N7")
async def test_a_result_and_a_new_attempt_at_once_leave_one_of_them(world: World) -> None:
    one, two = world.join(), world.join()
    for turn in range(20):
        job_id = f"j{turn}"
        await one.jobs.create(a_job(job_id), "one", LONG, change("dispatch", 1, "n"))
        finish, again = await asyncio.gather(
            one.jobs.move(job_id, change("finish", 1, "n")),
            two.jobs.move(job_id, change("again", 1)),
        )
        assert sorted([finish.result == "moved", again.result == "moved"]) == [False, True]


@pytest.mark.spec("N7", "X12")
async def test_moves_are_judged_the_same_by_every_fabric(fabric: Fabric) -> None:
    paths: dict[str, list[Any]] = {
        "CREATED": [],
        "DISPATCHED": ["dispatch"],
        "ACCEPTED": ["dispatch", "ack"],
        "RUNNING": ["dispatch", "start"],
        "FINISHED": ["finish"],
        "RELEASED": ["finish", "release"],
    }
    for state in STATES:
        for name in MOVES:
            for attempt, node_id in ((1, ""), (1, "n"), (1, "other"), (2, "n")):
                request = a_job()
                await fabric.jobs.create(request, "one", LONG)
                for step in paths[state]:
                    node = "n" if step == "dispatch" else ""
                    assert (await fabric.jobs.move(request.job_id, change(step, 1, node))).holds
                before = await fabric.jobs.find(request.job_id)
                assert before is not None
                tried = change(name, attempt, node_id)
                moved = await fabric.jobs.move(request.job_id, tried)
                expected = judge(state, 1, before.node_id, tried)
                assert moved.result == expected, (state, tried)
                if expected == "moved":
                    assert NODE_JOB.allows(state, moved.state)
                else:
                    assert await fabric.jobs.find(request.job_id) == before


@pytest.mark.spec("N7")
async def test_a_job_is_forgotten_after_its_time(fabric: Fabric) -> None:
    await fabric.jobs.create(a_job("j"), "one", SHORT)
    await eventually(lambda: fabric.jobs.find("j"), lambda found: found is None)
    assert (await fabric.jobs.move("j", change("finish"))).result == "missing"


@pytest.mark.spec("N12")
async def test_jobs_of_a_dead_instance_are_found_and_adopted_by_one(
    world: World, fabric: Fabric, other: Fabric
) -> None:
    await fabric.jobs.create(a_job("a", created_at=1_000), "dead", LONG)
    await fabric.jobs.create(a_job("b", created_at=2_000), "dead", LONG)
    await fabric.jobs.create(a_job("c", created_at=3_000), "dead", LONG)
    await fabric.jobs.move("c", change("finish"))
    await fabric.jobs.move("c", change("release"))
    assert await other.jobs.list_homed("dead", 10) == ["a", "b"]
    assert await other.jobs.list_homed("dead", 1) == ["a"]
    took = await asyncio.gather(
        fabric.jobs.adopt_if("a", "dead", LONG), other.jobs.adopt_if("a", "dead", LONG)
    )
    assert sorted(took) == [False, True]
    winner = fabric if took[0] else other
    assert await winner.jobs.adopt_if("a", "dead", LONG)  # again: the same
    job = await fabric.jobs.find("a")
    assert job is not None
    assert job.home == winner.instance_id
    assert "a" in await fabric.jobs.list_homed(winner.instance_id, 10)
    await fabric.jobs.strike_homed("dead", ["a", "b"])
    assert await fabric.jobs.list_homed("dead", 10) == []


@pytest.mark.spec("N12")
async def test_a_job_that_ended_is_not_adopted(fabric: Fabric) -> None:
    await fabric.jobs.create(a_job("a"), "dead", LONG)
    await fabric.jobs.move("a", change("finish"))
    assert not await fabric.jobs.adopt_if("a", "dead", LONG)
    assert await fabric.jobs.list_homed("one", 10) == []
    assert not await fabric.jobs.adopt_if("unknown", "dead", LONG)
