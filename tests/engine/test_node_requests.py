"""Requests for node jobs on the virtual clock: made once for each request id, found and
cancelled."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from ksana.base.clock import VirtualClock
from ksana.base.errors import ConflictError, DependencyDownError, KsanaError, NotFoundError
from ksana.base.instant import HOUR, MILLISECOND, SECOND
from ksana.domain.nodes import frames
from ksana.domain.nodes.records import Binding, JobError, JobRequest
from ksana.engine.nodes.home import NoNodeError
from ksana.engine.nodes.parameters import NodeParameters
from ksana.service.nodes.jobs import NodeJobService
from tests.nodes.world import Instance, NodeTalker, World

SETTINGS = NodeParameters(refresh_us=100 * MILLISECOND, progress_us=10 * MILLISECOND)


@pytest.fixture
async def world(clock: VirtualClock) -> AsyncIterator[World]:
    await clock.advance(HOUR)
    world = World(clock=clock)
    yield world
    await world.close()


@pytest.fixture
async def one(world: World) -> Instance:
    """An instance without a node."""
    return await world.start("one", SETTINGS)


async def add_node(instance: Instance, mode: str = "hold", slots: int = 4) -> NodeTalker:
    node = await instance.node("n", slots=slots)
    node.mode = mode
    await settle(instance)
    return node


async def settle(instance: Instance, us: int = SECOND) -> None:
    clock: Any = instance.clock
    await clock.advance(us)


async def ask(
    instance: Instance, session_id: str = "", caller: str = "", trace_id: str = "", **members: Any
) -> tuple[frames.JobCreated, list[frames.JobCreated]]:
    """Ask for a job: what was answered, and what was announced before."""
    announced: list[frames.JobCreated] = []
    payload = msgspec.Raw(members.pop("payload", b"{}"))
    frame = frames.AskJob(model=members.pop("model", "echo"), payload=payload, **members)
    created = await instance.service.request(frame, announced.append, session_id, caller, trace_id)
    return created, announced


async def refused(instance: Instance, **members: Any) -> KsanaError:
    with pytest.raises(KsanaError) as raised:
        await ask(instance, **members)
    return raised.value


# A request


@pytest.mark.spec("N4")
async def test_a_request_becomes_a_job_with_all_that_was_asked(one: Instance) -> None:
    await add_node(one)
    await one.session("s")
    created, announced = await ask(
        one,
        "s",
        "key-1",
        "trace-1",
        request_id="r",
        priority=7,
        payload=b'{"a":1}',
        wait_sec=1.5,
        timeout_sec=2.5,
    )
    assert announced == [created]
    assert created == frames.JobCreated(
        request_id="r", job_id=created.job_id, state="DISPATCHED", durable=False, is_repeat=False
    )
    job = await one.service.get_job(created.job_id)
    assert job.request == JobRequest(
        job_id=created.job_id,
        model="echo",
        request_id="r",
        session_id="s",
        labels={},
        priority=7,
        payload=job.request.payload,
        wait_us=1_500_000,
        timeout_us=2_500_000,
        trace_id="trace-1",
        caller="key-1",
        created_at=job.request.created_at,
    )
    assert bytes(job.request.payload) == b'{"a":1}'
    assert (job.request.created_at, job.home) == (one.clock.now(), "one")
    assert one.service.durable is False


@pytest.mark.spec("N4")
@pytest.mark.parametrize(
    ("timeout_sec", "timeout_us"), [(None, None), (2.0, 2_000_000), (1e-9, 1), (1.4e-6, 1)]
)
async def test_a_timeout_is_at_least_a_microsecond(
    one: Instance, timeout_sec: float | None, timeout_us: int | None
) -> None:
    created, _ = await ask(one, wait_sec=5.0, timeout_sec=timeout_sec)
    request = (await one.service.get_job(created.job_id)).request
    assert (request.timeout_us, request.wait_us, created.state) == (
        timeout_us,
        5 * SECOND,
        "CREATED",
    )
    assert (len(request.trace_id), request.request_id) == (32, "")


@pytest.mark.spec("N5")
async def test_a_request_that_came_to_nothing_may_be_made_again(one: Instance) -> None:
    error = await refused(one, request_id="r", caller="k")
    assert isinstance(error, NoNodeError)
    await settle(one)
    assert await one.fabric.requests.find("k/r") is None
    await add_node(one)
    created, _ = await ask(one, request_id="r", caller="k")
    assert not created.is_repeat


# The same request again


@pytest.mark.spec("N8")
async def test_the_same_request_again_is_the_same_job(one: Instance) -> None:
    await add_node(one)
    first, _ = await ask(one, request_id="r")
    again, announced = await ask(one, request_id="r")
    state = (await one.service.get_job(first.job_id)).state
    assert again == frames.JobCreated(
        request_id="r", job_id=first.job_id, state=state, durable=False, is_repeat=True
    )
    assert announced == [again]
    bound = await one.fabric.requests.find("r")
    assert bound is not None
    assert (bound.job_id, bound.instance_id) == (first.job_id, "one")


@pytest.mark.spec("N8")
@pytest.mark.parametrize(
    "members",
    [
        {"payload": b'{"a":2}'},
        {"model": "other"},
        {"priority": 6},
        {"wait_sec": 6.0},
        {"timeout_sec": 7.0},
        {"labels": {"zone": "b"}},
    ],
    ids=lambda members: next(iter(members)),
)
async def test_another_request_under_the_same_id_is_refused(
    one: Instance, members: dict[str, Any]
) -> None:
    asked: dict[str, Any] = {
        "request_id": "r",
        "payload": b'{"a":1}',
        "wait_sec": 5.0,
        "labels": {"zone": "a"},
    }
    first, _ = await ask(one, **asked)
    error = await refused(one, **asked | members)
    assert (error.code, error.extra["current"]) == (
        "IDEMPOTENCY_MISMATCH",
        {"job_id": first.job_id},
    )


@pytest.mark.spec("N8")
async def test_the_order_of_labels_makes_no_other_request(one: Instance) -> None:
    first, _ = await ask(one, request_id="r", wait_sec=5.0, labels={"a": "1", "b": "2"})
    again, _ = await ask(one, request_id="r", wait_sec=5.0, labels={"b": "2", "a": "1"})
    assert (again.job_id, again.is_repeat) == (first.job_id, True)


@pytest.mark.spec("N8")
async def test_request_ids_of_two_callers_are_two_requests(one: Instance) -> None:
    jobs = {
        (await ask(one, request_id="r", wait_sec=5.0, caller=caller))[0].job_id
        for caller in ("", "k", "l")
    }
    assert len(jobs) == 3


@pytest.mark.spec("N8")
async def test_a_repeat_after_the_end_is_told_the_result_again(one: Instance) -> None:
    await add_node(one, "echo")
    session = await one.session("s")
    first, _ = await ask(one, "s", request_id="r", payload=b"7")
    await settle(one)
    assert len(session.all(frames.SessionResult)) == 1
    again, _ = await ask(one, "s", request_id="r", payload=b"7")
    await settle(one)
    told = session.all(frames.SessionResult)
    assert (again.state, again.is_repeat, len(told)) == ("RELEASED", True, 2)
    assert [(one.job_id, one.request_id, bytes(one.data)) for one in told] == [
        (first.job_id, "r", b"7")
    ] * 2


async def bind_elsewhere(instance: Instance) -> None:
    """Have the request "r" bound to a job that another instance is about to make."""
    await ask(instance, request_id="alike", wait_sec=5.0)
    alike = await instance.fabric.requests.find("alike")
    assert alike is not None
    binding = Binding(job_id="the-first", digest=alike.digest, instance_id="two")
    await instance.fabric.requests.bind("r", binding, HOUR)


class Repeats:
    """Requests under the id "r" that are made at once: their answers, and how long each took."""

    def __init__(self, instance: Instance, count: int) -> None:
        self.instance = instance
        self.began_at = instance.clock.now()
        self.answers: list[frames.JobCreated] = []
        self.took_us: list[int] = []
        self.tasks = [asyncio.ensure_future(self._repeat()) for _ in range(count)]

    async def _repeat(self) -> None:
        created, announced = await ask(self.instance, request_id="r", wait_sec=5.0)
        assert announced == [created]
        self.answers.append(created)
        self.took_us.append(self.instance.clock.now() - self.began_at)


@pytest.mark.spec("N8")
async def test_a_request_whose_job_was_never_made_is_made_by_one_who_repeats_it(
    one: Instance,
) -> None:
    clock: Any = one.clock
    await bind_elsewhere(one)
    repeats = Repeats(one, 2)
    await clock.advance(SECOND - 1)
    assert repeats.answers == []
    await clock.advance(1)
    assert repeats.took_us == [SECOND, SECOND]
    assert {created.job_id for created in repeats.answers} == {"the-first"}
    assert sorted(created.is_repeat for created in repeats.answers) == [False, True]
    assert (await one.service.get_job("the-first")).request.request_id == "r"


@pytest.mark.spec("N8")
async def test_a_job_that_somebody_else_is_making_is_announced_before_it_is_there(
    world: World, one: Instance
) -> None:
    clock: Any = one.clock
    await bind_elsewhere(one)
    other = await world.start("two", SETTINGS)
    assert await other.fabric.requests.lock("r", HOUR)
    repeats = Repeats(one, 1)
    await clock.advance(SECOND)
    assert [(one.state, one.is_repeat) for one in repeats.answers] == [("CREATED", True)]
    assert await one.fabric.jobs.find("the-first") is None


@pytest.mark.spec("N8")
async def test_a_job_that_another_instance_makes_this_moment_is_waited_for(
    one: Instance,
) -> None:
    clock: Any = one.clock
    await bind_elsewhere(one)
    repeats = Repeats(one, 1)
    await clock.advance(50 * MILLISECOND)
    await one.fabric.jobs.create(JobRequest("the-first", "echo"), "two", HOUR)
    await clock.advance(50 * MILLISECOND)
    assert [(one.state, one.is_repeat) for one in repeats.answers] == [("CREATED", True)]
    assert repeats.took_us == [60 * MILLISECOND], "it looks every 20 ms"


@pytest.mark.spec("N8")
async def test_what_tells_requests_apart_is_the_same_for_instances_of_every_version(
    one: Instance,
) -> None:
    asked: dict[str, Any] = {"payload": b'{"a":1}', "labels": {"zone": "a"}, "timeout_sec": 2.0}
    await ask(one, request_id="r", wait_sec=5.0, **asked)
    bound = await one.fabric.requests.find("r")
    assert bound is not None
    assert bound.digest == "39828f4818c2874b89c9dbe1"


# Where nodes cannot be served


@pytest.mark.spec("X3")
async def test_where_nodes_cannot_be_served_every_request_says_why(one: Instance) -> None:
    reasons: list[str | None] = ["no link", None]
    service = NodeJobService(one.engine, lambda: reasons[0])
    with pytest.raises(DependencyDownError, match="no link") as raised:
        service.check_served()
    assert raised.value.retry_after_sec == 10
    reasons.pop(0)
    service.check_served()
    one.engine.is_closing = True
    with pytest.raises(DependencyDownError, match="going down"):
        service.check_served()
    with pytest.raises(DependencyDownError, match="going down"):
        await service.cancel_job("j")
    assert isinstance(await refused(one), DependencyDownError)
    one.engine.is_closing = False


@pytest.mark.spec("N4")
@pytest.mark.parametrize(
    ("limits", "current"),
    [({"max_jobs": 1}, {"jobs": 1}), ({"max_job_bytes": 13}, {"payload_bytes": 7})],
)
async def test_an_instance_takes_no_more_than_it_has_room_for(
    world: World, limits: dict[str, int], current: dict[str, int]
) -> None:
    small = await world.start("small", NodeParameters(**limits))
    await ask(small, wait_sec=5.0, payload=b'{"a":1}')
    error = await refused(small, wait_sec=5.0, payload=b'{"a":1}')
    assert (error.code, error.extra["current"]) == ("QUEUE_FULL", current)


# Look and cancel


@pytest.mark.spec("N4")
async def test_a_job_that_is_not_there_is_named(one: Instance) -> None:
    for look in (one.service.get_job, one.service.cancel_job):
        with pytest.raises(NotFoundError, match=f"no node job '{'x' * 64}'"):
            await look("x" * 100)


@pytest.mark.spec("N4")
async def test_a_job_is_cancelled_by_its_session_or_by_an_operator(one: Instance) -> None:
    await add_node(one)
    for session_id in ("s", None):
        created, _ = await ask(one, "s")
        with pytest.raises(NotFoundError, match="this session has no job"):
            await one.service.cancel_job(created.job_id, "other")
        job = await one.service.cancel_job(created.job_id, session_id, "enough")
        assert job.has_ended
        assert job.outcome is not None
        assert job.outcome.error == JobError(code="CANCELED", message="enough")
        with pytest.raises(ConflictError) as raised:
            await one.service.cancel_job(created.job_id)
        assert raised.value.code == "ILLEGAL_TRANSITION"
        assert raised.value.extra["current"]["requested"] == "FINISHED"


@pytest.mark.spec("N9")
async def test_a_job_of_another_instance_is_cancelled_there(world: World, one: Instance) -> None:
    two = await world.start("two", SETTINGS)
    await add_node(one)
    created, _ = await ask(one)
    assert not (await two.service.cancel_job(created.job_id, reason="enough")).has_ended
    await settle(one)
    job = await two.service.get_job(created.job_id)
    assert job.outcome is not None
    assert job.outcome.error == JobError(code="CANCELED", message="enough")


@pytest.mark.spec("N9")
async def test_a_job_whose_instance_cannot_be_reached_is_not_cancelled(one: Instance) -> None:
    await one.fabric.jobs.create(JobRequest("far", "echo"), "gone", HOUR)
    with pytest.raises(DependencyDownError, match="cannot be reached"):
        await one.service.cancel_job("far")


async def test_a_job_that_ends_at_this_moment_is_not_cancelled(one: Instance) -> None:
    await one.fabric.jobs.create(JobRequest("near", "echo"), "one", HOUR)
    with pytest.raises(ConflictError, match="ending at this moment") as raised:
        await one.service.cancel_job("near")
    assert raised.value.extra["current"] == {"state": "CREATED"}
