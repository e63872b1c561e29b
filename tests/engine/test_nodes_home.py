"""The jobs in the charge of one instance: taken in, sent, put in line, tried again."""

from typing import Any

import msgspec
import pytest

from ksana.base.clock import VirtualClock
from ksana.base.errors import ConflictError, DependencyDownError
from ksana.base.instant import HOUR, MINUTE, SECOND, format_instant
from ksana.domain.nodes.frames import JobAssign, JobUpdate
from ksana.domain.nodes.messages import Assign, Failed, Message, Progressed, Withdraw
from ksana.domain.nodes.moves import Moved, NodeJobChange
from ksana.domain.nodes.records import JobError, JobOutcome, JobProgress
from ksana.engine.nodes.home import NoNodeError
from ksana.engine.nodes.job_watch import HomeJob
from ksana.engine.nodes.parameters import NodeParameters
from ksana.ports.fabric import Created
from tests.engine.nodes_desk import OUTCOME, Desk, finished, told
from tests.engine.nodes_world import Instance, NodesWorld, a_node, a_request, is_signalled, step

LIFE = 3 * MINUTE + HOUR


# ---- room ----


async def test_an_instance_takes_only_so_many_jobs(cluster: NodesWorld) -> None:
    one = await cluster.start("one", NodeParameters(max_jobs=2))
    for job_id in ("a", "b"):
        one.home.check_room(0)
        await one.submit(a_request(job_id, wait_us=SECOND))
    with pytest.raises(ConflictError) as caught:
        one.home.check_room(0)
    assert (caught.value.code, caught.value.extra) == ("QUEUE_FULL", {"current": {"jobs": 2}})


async def test_an_instance_takes_only_so_many_bytes_of_payloads(cluster: NodesWorld) -> None:
    one = await cluster.start("one", NodeParameters(max_job_bytes=20))
    await one.submit(a_request(wait_us=SECOND, payload=msgspec.Raw(b'"12345678"')))
    one.home.check_room(10)
    with pytest.raises(ConflictError) as caught:
        one.home.check_room(11)
    assert caught.value.code == "QUEUE_FULL"
    assert caught.value.extra == {"current": {"payload_bytes": 10}}


# ---- a new job ----


@pytest.mark.spec("N7", "N9")
async def test_a_job_for_a_node_elsewhere_is_recorded_and_sent_to_its_instance(
    desk: Desk, clock: VirtualClock
) -> None:
    one, request = desk.one, a_request()
    said: list[str] = []
    assert await one.home.submit(request, said.append) == "DISPATCHED"
    deadline_at = clock.now() + MINUTE
    assert await desk.two.take_messages() == [
        Assign(node_id="n", attempt=1, home="one", deadline_at=deadline_at, request=request)
    ]
    assert said == ["DISPATCHED"]
    record = await desk.record()
    assert (record.state, record.node_id, record.home, record.attempt) == (
        *("DISPATCHED", "n", "one"),
        1,
    )
    assert desk.fabric.last("jobs.create")[:3] == (request, "one", LIFE)
    assert one.home.jobs["j"].early is None
    assert await one.take_events() == [
        (
            "j",
            "NODE_JOB_CREATED",
            {
                "model": "echo",
                "priority": 5,
                "session_id": "s",
                "request_id": "r-j",
                "trace_id": "t",
            },
        ),
        (
            "j",
            "NODE_JOB_DISPATCHED",
            {"attempt": 1, "node_id": "n", "deadline": format_instant(deadline_at)},
        ),
    ]


async def test_a_job_for_a_node_here_is_handed_to_it_without_a_message(one: Instance) -> None:
    node = await one.node("n")
    assert await one.submit(a_request()) == "DISPATCHED"
    assert [frame.job_id for frame in node.frames if isinstance(frame, JobAssign)] == ["j"]
    assert (one.held("n"), one.engine.courier.sent) == (1, 0)
    assert len([name for name, _, _ in one.fabric.calls if name == "jobs.create"]) == 1


async def test_a_slot_that_is_held_already_is_not_asked_for_again(desk: Desk) -> None:
    held = desk.one.engine.view.get("n")
    await desk.one.home.submit(a_request(), lambda _: None, held)
    assert desk.fabric.count("reservations.reserve") == 0
    assert [type(one) for one in await desk.two.take_messages()] == [Assign]


@pytest.mark.spec("N5")
async def test_without_a_node_a_job_that_does_not_wait_is_refused(one: Instance) -> None:
    one.engine.view.put(a_node("n", "two", models=("other",)))
    said: list[str] = []
    with pytest.raises(NoNodeError) as caught:
        await one.home.submit(a_request(), said.append)
    reason = "no node can take a job for model 'echo': one node without the model"
    assert (caught.value.code, str(caught.value)) == ("NO_AVAILABLE_NODE", reason)
    assert caught.value.extra == {"current": {"NO_MODEL": 1}}
    data = {"reason": reason, "model": "echo", "session_id": "s", "request_id": "r-j"}
    assert await one.take_events() == [("j", "NODE_JOB_REFUSED", data)]
    assert (said, one.home.jobs, one.fabric.count("jobs.create")) == ([], {}, 0)


@pytest.mark.spec("N5")
async def test_without_a_node_a_job_that_waits_is_recorded_and_stands_in_line(
    one: Instance, clock: VirtualClock
) -> None:
    request = a_request(wait_us=1, priority=8, labels={"a": "b"})
    said: list[str] = []
    assert await one.home.submit(request, said.append) == "CREATED"
    assert said == ["CREATED"]
    record = await one.fabric.jobs.find("j")
    assert record is not None
    assert (record.state, record.home) == ("CREATED", "one")
    assert one.fabric.last("jobs.create") == (request, "one", 1 + LIFE)
    (waiting,) = one.home.watch.line.in_order()
    until = clock.now() + 1
    assert (waiting.job_id, waiting.priority, waiting.until) == ("j", 8, until)
    assert (waiting.wanted.model, waiting.wanted.labels) == ("echo", {"a": "b"})
    assert (waiting.wanted.tried, waiting.wanted.key) == ((), "j")
    assert [(name, data) for _, name, data in await one.take_events()][1:] == [
        ("NODE_JOB_WAITING", {"reason": "no node is connected", "until": format_instant(until)})
    ]


async def test_a_job_that_could_not_be_made_is_refused_and_what_is_there_of_it_undone(
    desk: Desk, clock: VirtualClock
) -> None:
    desk.fabric.broken.add("jobs.create")
    with pytest.raises(DependencyDownError):
        await desk.one.home.submit(a_request(), lambda _: None)
    assert desk.one.home.jobs == {}
    await clock.settle()
    assert desk.one.held("n") == 0
    assert await desk.two.take_messages() == [
        Withdraw(node_id="n", job_id="j", attempt=1, reason="the job could not be made")
    ]
    (end,) = desk.fabric.last("jobs.settle")[0]
    error = JobError(code="SCHEDULER_DEPENDENCY_DOWN", message="the job could not be made")
    assert (end.change.outcome, end.job_id) == (JobOutcome(success=False, error=error), "j")
    assert desk.session.frames == []


async def test_a_job_that_another_instance_made_is_left_to_it(
    desk: Desk, clock: VirtualClock
) -> None:
    said: list[str] = []
    desk.fabric.answer("jobs.create", Created(is_new=False, state="RUNNING", attempt=1))
    assert await desk.one.home.submit(a_request(), said.append) == "RUNNING"
    await clock.settle()
    assert (said, desk.one.home.jobs, desk.one.held("n")) == (["RUNNING"], {}, 0)
    assert await desk.two.take_messages() == [
        Withdraw(node_id="n", job_id="j", attempt=1, reason="another instance made the job")
    ]
    assert await desk.one.take_events() == []


async def test_a_job_whose_instance_is_gone_goes_to_another_node(
    one: Instance, clock: VirtualClock
) -> None:
    one.engine.view.put(a_node("n", "dead"))
    session = await one.session("s")
    assert await one.submit(a_request(wait_us=MINUTE)) == "DISPATCHED"
    job = one.home.jobs["j"]
    assert (job.attempt, job.node_id, job.progress.tried) == (2, "", ("n",))
    assert [job.job_id for job in one.home.watch.line.in_order()] == ["j"]
    assert session.frames == [
        JobUpdate(
            job_id="j", state="CREATED", attempt_id=2, request_id="r-j", reason="INSTANCE_GONE"
        )
    ]


EARLY: list[Message] = [
    Progressed(job_id="j", attempt=1, node_id="n", state="RUNNING", at=9),
    Failed(job_id="j", attempt=1, node_id="n", reason="JOB_FAILED", error=JobError(code="X")),
    finished(),
]


@pytest.mark.parametrize("message", EARLY)
async def test_what_a_node_says_before_the_job_was_announced_is_told_after_it(
    desk: Desk, message: Message
) -> None:
    order: list[Any] = []
    desk.session.frames = order

    async def create(*args: Any) -> Created:
        made: Created = await desk.two.fabric.jobs.create(*args)
        await desk.one.hear(message)
        return made

    desk.fabric.answer("jobs.create", create)
    assert await desk.one.home.submit(a_request(), order.append) == "DISPATCHED"
    assert [type(one).__name__ for one in order] == [
        "str",
        "JobUpdate" if isinstance(message, Progressed) else "SessionResult",
    ]


# ---- in line ----


async def wait_in_line(one: Instance, **changes: Any) -> HomeJob:
    await one.submit(a_request(**{"wait_us": MINUTE, **changes}))
    return one.home.jobs["j"]


@pytest.mark.spec("N5")
async def test_a_job_in_line_goes_to_the_first_node_that_is_free(desk: Desk) -> None:
    one = desk.one
    one.engine.view.remove("n")
    job = await wait_in_line(one)
    assert await one.home.place_waiting("j") is False
    assert len(one.home.watch.line) == 1
    one.engine.view.put(a_node("n", "two"))
    assert await one.home.place_waiting("j") is True
    assert (len(one.home.watch.line), job.node_id) == (0, "n")
    assert [type(message) for message in await desk.two.take_messages()] == [Assign]
    assert (await desk.record()).state == "DISPATCHED"
    assert [name for _, name, _ in await one.take_events()][-1] == "NODE_JOB_DISPATCHED"
    assert await step(one.home.watch.deadlines) == one.clock.now() + 10 * SECOND
    assert await one.home.place_waiting("j") is True  # it has a node
    assert await desk.two.take_messages() == []


@pytest.mark.parametrize("is_known", [True, False])
async def test_a_job_that_has_ended_or_has_a_node_leaves_the_line(
    desk: Desk, is_known: bool
) -> None:
    one = desk.one
    one.engine.view.remove("n")
    job = await wait_in_line(one)
    if is_known:
        job.node_id = "n"
    else:
        del one.home.jobs["j"]
    assert await one.home.place_waiting("j") is True
    assert len(one.home.watch.line) == 0


async def test_a_free_slot_anywhere_is_offered_to_the_line(
    one: Instance, two: Instance, clock: VirtualClock
) -> None:
    is_signalled(one.home.watch.offer)
    two.fabric.signals.publish("nodes.free")
    await clock.settle()
    assert is_signalled(one.home.watch.offer)


@pytest.mark.spec("N5")
async def test_a_job_that_waited_in_vain_ends_without_a_node(
    one: Instance, clock: VirtualClock
) -> None:
    session = await one.session("s")
    await wait_in_line(one)
    await clock.advance(MINUTE - 1)
    await step(one.home.watch.deadlines)
    await clock.settle()
    assert session.frames == []
    await clock.advance(1)
    await step(one.home.watch.deadlines)
    await clock.settle()
    error = JobError(code="NO_AVAILABLE_NODE", message="no node became free in time")
    assert session.frames == [told(outcome=JobOutcome(success=False, error=error))]
    await one.home.give_up_waiting("j")  # it is gone


async def test_a_job_that_waited_in_vain_after_a_failure_ends_with_that(one: Instance) -> None:
    session = await one.session("s")
    job = await wait_in_line(one)
    error = JobError(code="NO_ACK", message="silent")
    job.progress = JobProgress(tried=("n",), failures=1, last_error=error)
    await one.home.give_up_waiting("j")
    assert session.frames == [told(outcome=JobOutcome(success=False, error=error))]


async def test_a_job_that_found_a_node_at_the_last_moment_does_not_give_up(desk: Desk) -> None:
    await desk.job()
    await desk.one.home.give_up_waiting("j")
    assert (desk.session.frames, "j" in desk.one.home.jobs) == ([], True)


# ---- placing a job that was recorded before ----


async def test_an_attempt_of_which_nobody_knows_whether_it_was_written_is_watched(
    desk: Desk, clock: VirtualClock
) -> None:
    one = desk.one
    one.engine.view.remove("n")
    job = await wait_in_line(one)
    one.engine.view.put(a_node("n", "two"))
    desk.fabric.broken.add("jobs.move_and_post")
    assert await one.home.place_waiting("j") is True
    assert (job.node_id, len(one.home.watch.line)) == ("n", 0)
    assert await step(one.home.watch.deadlines) == clock.now() + 10 * SECOND


async def test_a_job_that_is_not_waiting_any_more_gives_the_slot_back_and_follows_its_record(
    desk: Desk, clock: VirtualClock
) -> None:
    one = desk.one
    one.engine.view.remove("n")
    job = await wait_in_line(one)
    one.engine.view.put(a_node("n", "two"))
    end = NodeJobChange(name="finish", attempt=1, keep_us=HOUR, outcome=OUTCOME)
    await desk.two.fabric.jobs.move("j", end)
    desk.fabric.answer("jobs.move_and_post", (Moved("illegal", "FINISHED", 1), "sent"))
    assert await one.home.place_waiting("j") is True
    await clock.settle()
    assert (one.held("n"), job.node_id, desk.session.frames) == (0, "", [told()])
    assert [one.reason for one in await desk.two.take_messages()] == [
        "the job is not waiting any more"
    ]


async def test_a_job_that_finds_no_node_waits_on_or_ends(
    one: Instance, clock: VirtualClock
) -> None:
    session = await one.session("s")
    job = await wait_in_line(one)
    one.home.watch.line.remove("j")
    await one.home.resume(job)
    assert len(one.home.watch.line) == 1
    events = await one.take_events()
    assert events[-1][2]["reason"] == "no node at the moment"
    await clock.advance(MINUTE)
    await one.home.resume(job)
    error = JobError(code="NO_AVAILABLE_NODE", message="no node is free")
    assert session.frames == [told(outcome=JobOutcome(success=False, error=error))]


async def test_a_job_that_finds_no_node_after_a_failure_ends_with_that(
    one: Instance, clock: VirtualClock
) -> None:
    session = await one.session("s")
    job = await wait_in_line(one)
    error = JobError(code="NO_ACK", message="silent")
    job.progress = JobProgress(last_error=error)
    await clock.advance(MINUTE)
    await one.home.resume(job)
    assert session.frames == [told(outcome=JobOutcome(success=False, error=error))]
