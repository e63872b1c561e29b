"""Node jobs: following a record that stands elsewhere, letting go, and what is done after the
end."""

from typing import Any

import pytest

from ksana.base.clock import VirtualClock
from ksana.base.errors import DependencyDownError
from ksana.base.instant import HOUR, MILLISECOND, MINUTE
from ksana.domain.nodes.messages import Withdraw
from ksana.domain.nodes.moves import Moved, NodeJobChange
from ksana.domain.nodes.records import JobError, JobOutcome, JobProgress, JobRequest
from ksana.engine.nodes.job_watch import HomeJob
from tests.engine.nodes_desk import FAILED, OUTCOME, Desk, finished, told
from tests.engine.nodes_world import NodesWorld, a_node, a_request
from tests.ground.logs import capture_logs

AGAIN = 250 * MILLISECOND
STALE = Moved("stale")


async def follow(desk: Desk, job: HomeJob, *, is_logged: bool = False) -> list[Any]:
    """Follow the record; answers what the instance of the node was told."""
    with capture_logs() as logs:
        await desk.endings.follow(job, STALE)
    seen = [(line["job_id"], line["result"]) for line in logs]
    assert seen == ([("j", "stale")] if is_logged else [])
    await desk.clock.settle()
    return await desk.two.take_messages()


def withdrawn(reason: str, attempt: int = 1) -> Withdraw:
    return Withdraw(node_id="n", job_id="j", attempt=attempt, reason=reason)


# ---- the record is right ----


async def test_a_job_that_ended_by_its_record_is_told_so(desk: Desk) -> None:
    job = await desk.job()
    await desk.write("finish", outcome=OUTCOME, node_id="n")
    assert await follow(desk, job) == [withdrawn("the job has ended")]
    assert (desk.session.frames, desk.one.home.jobs) == ([told()], {})
    assert (desk.one.held("n"), desk.hints) == (0, [0])
    assert await follow(desk, job) == []  # it is not ours any more
    assert desk.session.frames == [told()]


async def test_a_job_whose_record_was_lost_ends_as_lost(desk: Desk, cluster: NodesWorld) -> None:
    job = await desk.job()
    cluster.hub.jobs.clear()
    assert await follow(desk, job) == [withdrawn("the job was lost")]
    error = JobError(code="JOB_LOST", message="the record of the job was lost")
    lost = JobOutcome(success=False, error=error)
    assert (desk.session.frames, desk.one.held("n")) == ([told(outcome=lost)], 0)
    assert await desk.one.take_events() == [
        (
            "j",
            "NODE_JOB_FINISHED",
            {
                "attempt": 1,
                "success": False,
                "node_id": "n",
                "error": {"code": "JOB_LOST", "message": "the record of the job was lost"},
            },
        )
    ]


async def test_a_job_that_another_instance_is_in_charge_of_is_let_go_in_silence(desk: Desk) -> None:
    job = await desk.job()
    await desk.two.fabric.jobs.adopt_if("j", "one", HOUR)
    assert await follow(desk, job) == []
    assert (desk.one.home.jobs, desk.session.frames, desk.one.held("n")) == ({}, [], 1)


async def test_a_job_whose_record_is_at_the_next_attempt_goes_on_from_there(desk: Desk) -> None:
    job = await desk.job(wait_us=MINUTE)
    progress = JobProgress(tried=("n",), failures=1)
    await desk.write("again", progress=progress)
    desk.one.engine.view.put(a_node("m", "two"))
    messages = await follow(desk, job, is_logged=True)
    assert withdrawn("another attempt is made") in messages
    assert [one.node_id for one in messages] == ["m", "n"]
    assert (job.attempt, job.node_id, job.progress.tried) == (2, "m", ("n", "m"))
    assert job.progress.failures == 1
    assert (desk.one.held("n"), desk.one.held("m"), desk.session.frames) == (0, 1, [])


async def test_a_job_whose_record_has_another_node_is_taken_to_be_there(desk: Desk) -> None:
    job = await desk.job(wait_us=MINUTE)
    await desk.write("again", progress=JobProgress(tried=("n",)))
    change = NodeJobChange(name="dispatch", attempt=2, keep_us=HOUR, node_id="m")
    await desk.two.fabric.jobs.move("j", change)
    assert await follow(desk, job, is_logged=True) == [withdrawn("another attempt is made")]
    assert (job.attempt, job.node_id) == (2, "m")
    assert job.progress == JobProgress(tried=("n",))


async def test_a_job_that_stands_where_it_was_thought_to_be_is_left_alone(desk: Desk) -> None:
    job = await desk.job()
    assert await follow(desk, job) == []
    assert (job.attempt, job.node_id, desk.one.held("n")) == (1, "n", 1)


async def test_a_job_that_is_not_ours_any_more_follows_nothing(desk: Desk) -> None:
    job = await desk.job(wait_us=MINUTE)
    await desk.write("again", progress=JobProgress(tried=("n",)))
    del desk.one.home.jobs["j"]
    assert await follow(desk, job) == []
    assert (job.attempt, job.node_id) == (1, "n")


# ---- telling, once ----


async def test_a_job_that_a_run_waits_for_tells_the_run_too(desk: Desk) -> None:
    heard: list[tuple[JobRequest, JobOutcome]] = []
    desk.endings.on_handed_over = lambda request, outcome: heard.append((request, outcome))
    handed = "01234567-89ab-8def-0123-456789abcdef"
    for job_id in (handed, "j"):
        await desk.job(job_id)
        await desk.endings.finished([finished(job_id)])
        await desk.endings.finished([finished(job_id)])
    assert heard == [(a_request(handed), OUTCOME)]


async def test_without_a_run_a_job_of_that_kind_just_ends(desk: Desk) -> None:
    handed = "01234567-89ab-8def-0123-456789abcdef"
    await desk.job(handed)
    await desk.endings.finished([finished(handed)])
    assert desk.session.frames == [told(handed)]


async def test_a_job_in_line_that_is_told_leaves_the_line(desk: Desk) -> None:
    await desk.one.submit(a_request(model="other", wait_us=MINUTE))
    await desk.endings.deliver(a_request(), 1, "", OUTCOME)
    assert (len(desk.one.home.watch.line), desk.one.home.jobs) == (0, {})


async def test_a_result_for_a_session_that_is_nowhere_is_kept_for_it(desk: Desk) -> None:
    await desk.job(session_id="later")
    await desk.endings.finished([finished()])
    assert (await desk.one.session("later")).frames == [told()]


# ---- letting go ----


async def test_a_slot_that_is_let_go_is_free_for_others_who_are_told(desk: Desk) -> None:
    job = await desk.job()
    desk.endings.let_go(job, "NO_ACK")
    await desk.clock.settle()
    assert await desk.two.take_messages() == [withdrawn("NO_ACK")]
    assert (desk.one.held("n"), await desk.fabric.reservations.count("n")) == (0, 0)
    assert desk.hints == [0]


async def test_a_job_without_a_node_has_nothing_to_let_go(desk: Desk) -> None:
    desk.endings.let_go(HomeJob(a_request(), 0), "NO_ACK")
    assert len(desk.one.engine.background) == 0


# ---- a job that could not be made ----


async def test_what_is_there_of_a_job_that_could_not_be_made_ends_when_the_fabric_is_back(
    desk: Desk, clock: VirtualClock
) -> None:
    job = await desk.job()
    desk.fabric.is_away = True
    desk.one.engine.background.spawn(desk.endings.write_off(job, FAILED))
    await clock.advance(2 * AGAIN - 1)
    desk.fabric.is_away = False
    assert (await desk.record()).outcome is None
    await clock.advance(1)
    record = await desk.record()
    assert (record.outcome, desk.session.frames) == (FAILED, [])
    (end,) = desk.fabric.last("jobs.settle")[0]
    assert (end.job_id, end.node_id, end.change.attempt) == ("j", "n", 1)
    assert desk.fabric.count("jobs.settle") == 3
    await desk.endings.strike()
    assert await desk.fabric.jobs.list_homed("one", 10) == []


async def test_after_a_minute_such_a_job_is_left_to_run_out(
    desk: Desk, clock: VirtualClock
) -> None:
    job = await desk.job()
    desk.fabric.broken.add("jobs.settle")
    desk.one.engine.background.spawn(desk.endings.write_off(job, FAILED))
    await clock.advance(MINUTE - 1)
    assert len(desk.one.engine.background) == 1
    await clock.advance(1)
    assert len(desk.one.engine.background) == 0
    assert desk.fabric.count("jobs.settle") == 240
    await desk.endings.strike()
    assert desk.fabric.last("jobs.strike_homed") == ("one", [])


# ---- off the list ----


async def test_ended_jobs_are_taken_off_the_list_of_their_home(desk: Desk) -> None:
    for job_id in ("a", "b"):
        await desk.job(job_id)
    await desk.endings.finished([finished("a")])
    assert await desk.fabric.jobs.list_homed("one", 10) == ["a", "b"]
    await desk.endings.strike()
    assert await desk.fabric.jobs.list_homed("one", 10) == ["b"]
    await desk.endings.strike()
    assert desk.fabric.last("jobs.strike_homed") == ("one", [])


async def test_ended_jobs_stay_noted_while_the_fabric_is_away(desk: Desk) -> None:
    await desk.job()
    await desk.endings.finished([finished()])
    desk.fabric.is_away = True
    with pytest.raises(DependencyDownError):
        await desk.endings.strike()
    desk.fabric.is_away = False
    await desk.endings.strike()
    assert await desk.fabric.jobs.list_homed("one", 10) == []


async def test_many_ended_jobs_are_taken_off_the_list_without_waiting(
    desk: Desk, clock: VirtualClock
) -> None:
    desk.one.engine.view.put(a_node("n", "two", slots=100))
    for number in range(64):
        await desk.one.home.submit(a_request(str(number)), lambda _: None)
    await desk.endings.finished([finished(str(number)) for number in range(63)])
    await clock.settle()
    assert desk.fabric.count("jobs.strike_homed") == 0
    await desk.endings.finished([finished("63")])
    await clock.settle()
    assert desk.fabric.last("jobs.strike_homed") == ("one", [str(n) for n in range(64)])
    assert await desk.fabric.jobs.list_homed("one", 100) == []


# ---- where slot and record do not share a way ----


async def test_a_slot_that_was_not_given_back_with_the_record_is_given_back_after_it(
    desk: Desk,
) -> None:
    job = await desk.job()
    await desk.write("finish", outcome=OUTCOME, node_id="n")
    desk.fabric.answer("jobs.settle", [Moved("moved", "FINISHED", 1)])
    await desk.endings.finished([finished()])
    assert desk.session.frames == [told()]
    await desk.clock.settle()
    assert desk.fabric.last("reservations.release") == ("n", "j")
    assert (await desk.record()).state == "RELEASED"
    assert desk.fabric.last("jobs.move") == (
        "j",
        NodeJobChange(name="release", attempt=1, keep_us=HOUR),
    )
    assert (desk.hints, job.node_id, desk.one.held("n")) == ([0], "n", 0)
    assert [name for _, name, _ in await desk.one.take_events()] == [
        "NODE_JOB_FINISHED",
        "NODE_JOB_RELEASED",
    ]


async def test_a_job_that_held_no_slot_gives_none_back(desk: Desk) -> None:
    await desk.one.submit(a_request(model="other", wait_us=MINUTE))
    desk.fabric.answer("jobs.settle", [Moved("moved", "FINISHED", 1)])
    await desk.endings.end(desk.one.home.jobs["j"], FAILED)
    await desk.clock.settle()
    assert (desk.fabric.count("reservations.release"), desk.hints) == (0, [])
    assert desk.fabric.count("jobs.move") == 1


async def test_a_record_that_is_not_released_is_not_noted_as_released(desk: Desk) -> None:
    await desk.job()
    await desk.endings.release_record("j", 1)  # it has not ended
    assert await desk.one.take_events() == []
