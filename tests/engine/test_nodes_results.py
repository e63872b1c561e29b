"""A result on its way from the node's instance to the home of its job."""

import msgspec
import pytest

from ksana.base.clock import VirtualClock
from ksana.base.instant import HOUR, MILLISECOND, MINUTE
from ksana.domain.nodes.frames import SessionResult
from ksana.domain.nodes.messages import Drain, Failed, Finished
from ksana.domain.nodes.moves import NodeJobChange
from ksana.domain.nodes.records import JobError, JobOutcome, JobProgress
from ksana.engine.nodes.assignments import Assignment
from ksana.engine.nodes.results import result_frame
from tests.engine.nodes_world import Instance, a_request
from tests.ground.logs import capture_logs

OUTCOME = JobOutcome(success=True, data=msgspec.Raw(b"7"), finished_at=5)
ERROR = JobError(code="BROKEN", message="no")
AGAIN = 250 * MILLISECOND
TOLD = SessionResult(
    job_id="j", attempt_id=1, success=True, request_id="r-j", data=msgspec.Raw(b"7")
)
FINISHED = Finished(
    request=a_request(payload=msgspec.Raw(b"{}")), attempt=1, node_id="n", outcome=OUTCOME
)


def an_attempt(home: str) -> Assignment:
    return Assignment(a_request(), 1, home)


async def dispatch(instance: Instance, home: str) -> None:
    """The record of the attempt, and its slot."""
    change = NodeJobChange(name="dispatch", attempt=1, keep_us=HOUR, node_id="n")
    await instance.fabric.jobs.create(a_request(), home, HOUR, change)
    await instance.fabric.reservations.reserve("n", "j", 1, "echo", HOUR)


def test_a_session_sees_the_outcome_with_its_own_request_id() -> None:
    outcome = JobOutcome(success=False, data=msgspec.Raw(b"[]"), error=ERROR, finished_at=9)
    assert result_frame(a_request(), 3, outcome) == SessionResult(
        job_id="j",
        attempt_id=3,
        success=False,
        request_id="r-j",
        data=msgspec.Raw(b"[]"),
        error=ERROR,
    )


@pytest.mark.spec("N7")
async def test_a_result_is_told_to_the_home_of_its_job_without_the_payload(
    one: Instance, two: Instance
) -> None:
    await one.engine.results.finish("n", an_attempt("two"), OUTCOME)
    assert await two.take_messages() == [FINISHED]
    assert len(one.engine.background) == 0


async def test_an_attempt_that_came_to_nothing_is_told_with_its_reason(
    one: Instance, two: Instance
) -> None:
    await one.engine.results.tell_failed("n", an_attempt("two"), "NODE_GONE", ERROR)
    assert await two.take_messages() == [
        Failed(job_id="j", attempt=1, node_id="n", reason="NODE_GONE", error=ERROR)
    ]


async def test_a_home_that_cannot_be_told_is_logged_with_what_stands_in_the_way(
    one: Instance, two: Instance
) -> None:
    tell = one.engine.results.tell
    with capture_logs() as logs:
        told = [await tell("two", Drain(node_id="n")), await tell("dead", Drain(node_id="n"))]
        one.fabric.is_away = True
        told.append(await tell("two", Drain(node_id="n")))
    assert told == [True, False, False]
    assert [(line["instance"], line["err"], line["log_level"]) for line in logs] == [
        ("dead", "gone", "warning"),
        ("two", "the fabric is away", "warning"),
    ]


async def test_a_result_whose_home_is_gone_is_told_to_whoever_took_the_job_over(
    one: Instance, two: Instance, clock: VirtualClock
) -> None:
    await dispatch(one, "dead")
    with capture_logs():
        await one.engine.results.finish("n", an_attempt("dead"), OUTCOME)
        await clock.advance(AGAIN)
        await two.fabric.jobs.adopt_if("j", "dead", HOUR)
        await clock.advance(AGAIN - 1)
        assert await two.take_messages() == []
        await clock.advance(1)
    assert await two.take_messages() == [FINISHED]
    assert len(one.engine.background) == 0


async def test_a_result_waits_until_the_fabric_is_back(
    one: Instance, two: Instance, clock: VirtualClock
) -> None:
    one.fabric.is_away = True
    with capture_logs():
        await one.engine.results.finish("n", an_attempt("two"), OUTCOME)
        await clock.advance(10 * AGAIN - 1)
        one.fabric.is_away = False
        assert await two.take_messages() == []
        await clock.advance(1)  # it has no record: the home itself may know the job
    assert await two.take_messages() == [FINISHED]


async def test_a_result_of_a_job_that_has_ended_meanwhile_is_not_told_any_more(
    one: Instance, two: Instance, clock: VirtualClock
) -> None:
    await dispatch(one, "two")
    one.fabric.broken.add("inbox.send")
    with capture_logs():
        await one.engine.results.finish("n", an_attempt("two"), OUTCOME)
        end = NodeJobChange(name="finish", attempt=1, keep_us=HOUR, outcome=OUTCOME)
        await two.fabric.jobs.move("j", end)
        one.fabric.broken.clear()
        await clock.advance(AGAIN)
    assert (await two.take_messages(), len(one.engine.background)) == ([], 0)


@pytest.mark.parametrize("is_wiped", [False, True])
async def test_a_result_that_nobody_takes_for_a_minute_is_recorded_and_told_from_here(
    one: Instance, clock: VirtualClock, is_wiped: bool
) -> None:
    session = await one.session("s")
    if not is_wiped:
        await dispatch(one, "dead")
    with capture_logs():
        await one.engine.results.finish("n", an_attempt("dead"), OUTCOME)
        await clock.advance(MINUTE - 1)
        assert session.frames == []
        await clock.advance(1)
    assert session.frames == [TOLD]
    record = await one.fabric.jobs.find("j")
    assert (None if record is None else record.outcome) == (None if is_wiped else OUTCOME)
    assert one.fabric.last("reservations.release") == ("n", "j")
    (end,) = one.fabric.last("jobs.settle")[0]
    assert (end.node_id, end.change) == (
        "n",
        NodeJobChange(name="finish", attempt=1, keep_us=HOUR, node_id="n", outcome=OUTCOME),
    )


async def test_a_result_that_nobody_takes_waits_for_a_session_that_comes_back(
    one: Instance, clock: VirtualClock
) -> None:
    await dispatch(one, "dead")
    with capture_logs():
        await one.engine.results.finish("n", an_attempt("dead"), OUTCOME)
        await clock.advance(MINUTE)
    assert (await one.session("s")).frames == [TOLD]


async def test_a_result_of_an_attempt_that_is_over_is_told_to_nobody_and_frees_its_slot(
    one: Instance, clock: VirtualClock
) -> None:
    session = await one.session("s")
    await dispatch(one, "dead")
    again = NodeJobChange(name="again", attempt=1, keep_us=HOUR, progress=JobProgress())
    await one.fabric.jobs.move("j", again)
    with capture_logs():
        await one.engine.results.finish("n", an_attempt("dead"), OUTCOME)
        await clock.advance(2 * MINUTE)
    assert (session.frames, await one.fabric.reservations.count("n")) == ([], 0)
    record = await one.fabric.jobs.find("j")
    assert record is not None
    assert record.outcome is None
