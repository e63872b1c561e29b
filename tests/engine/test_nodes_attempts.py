"""What happens to an attempt in our charge: progress, deadlines, failures, nodes that go."""

from typing import Any

import pytest

from ksana.base.clock import VirtualClock
from ksana.base.instant import HOUR, MINUTE, SECOND
from ksana.domain.nodes.attempts import AttemptTimes, FailureKind
from ksana.domain.nodes.frames import JobUpdate
from ksana.domain.nodes.messages import Assign, Failed, Progressed, Withdraw
from ksana.domain.nodes.moves import NodeJobChange
from ksana.domain.nodes.records import JobError, JobOutcome, JobProgress, NodeJob
from tests.engine.nodes_desk import OUTCOME, Desk, finished, told
from tests.engine.nodes_world import Instance, NodesWorld, a_node, a_request, step

SILENT = JobError(code="NO_ACK", message="the node did not acknowledge the job in time")


def updated(state: str, attempt: int = 1, node_id: str = "n", reason: str = "") -> JobUpdate:
    return JobUpdate(
        job_id="j",
        state=state,
        attempt_id=attempt,
        request_id="r-j",
        node_id=node_id,
        reason=reason,
    )


async def look(desk: Desk) -> int | None:
    """Let the loop of deadlines look, and what follows from it happen."""
    due_at = await step(desk.one.home.watch.deadlines)
    await desk.clock.settle()
    return due_at


# ---- progress ----


@pytest.mark.spec("N12")
async def test_an_acknowledgement_and_a_start_are_told_and_move_the_deadline(
    desk: Desk, clock: VirtualClock
) -> None:
    job = await desk.job()
    began = clock.now()
    assert await look(desk) == began + 10 * SECOND
    await clock.advance(SECOND)
    await desk.one.home.progressed("j", 1, "ACCEPTED", began + 5)
    assert job.times == AttemptTimes(dispatched_at=began, acked_at=began + 5)
    await desk.one.home.progressed("j", 1, "RUNNING", began + 9)
    assert job.times == AttemptTimes(dispatched_at=began, acked_at=began + 5, started_at=began + 9)
    assert desk.session.frames == [updated("ACCEPTED"), updated("RUNNING")]
    deadlines = sorted(at - began for at, _, _ in desk.one.home.watch._deadlines)
    assert deadlines == [10 * SECOND, 30 * SECOND + 5, 60 * SECOND]


async def test_a_start_without_an_acknowledgement_is_both(desk: Desk) -> None:
    job = await desk.job()
    began = job.times.dispatched_at
    await desk.one.home.progressed("j", 1, "RUNNING", began + 9)
    assert job.times == AttemptTimes(dispatched_at=began, acked_at=began + 9, started_at=began + 9)


@pytest.mark.parametrize(("job_id", "attempt"), [("other", 1), ("j", 2)])
async def test_progress_of_an_attempt_that_is_not_the_present_one_says_nothing(
    desk: Desk, job_id: str, attempt: int
) -> None:
    job = await desk.job()
    await desk.one.home.progressed(job_id, attempt, "RUNNING", 9)
    assert (job.times.started_at, desk.session.frames) == (0, [])


# ---- deadlines ----


@pytest.mark.spec("N12")
async def test_an_attempt_that_is_overdue_goes_to_another_node(
    desk: Desk, clock: VirtualClock
) -> None:
    job = await desk.job(wait_us=MINUTE)
    await desk.one.node("m")
    await clock.advance(10 * SECOND - 1)
    await look(desk)
    assert job.attempt == 1
    await clock.advance(1)
    await look(desk)
    assert (job.attempt, job.node_id, job.progress.tried) == (2, "m", ("n", "m"))
    assert (job.progress.failures, job.progress.last_error) == (1, SILENT)
    assert await desk.two.take_messages() == [
        Withdraw(node_id="n", job_id="j", attempt=1, reason="NO_ACK")
    ]
    assert desk.session.frames == [updated("CREATED", 2, "", "NO_ACK")]
    assert (desk.one.held("n"), desk.one.held("m")) == (0, 1)
    events = {name: data for _, name, data in await desk.one.take_events("NODE_JOB")}
    assert events["NODE_JOB_RETRIED"] == {
        "attempt": 1,
        "node_id": "n",
        "reason": "NO_ACK",
        "error": SILENT.message,
    }
    record = await desk.record()
    assert (record.attempt, record.node_id, record.progress.failures) == (2, "m", 1)


async def test_a_deadline_that_was_moved_meanwhile_is_watched_anew(
    desk: Desk, clock: VirtualClock
) -> None:
    job = await desk.job()
    began = clock.now()
    job.times = AttemptTimes(dispatched_at=began, acked_at=began + SECOND)
    await clock.advance(10 * SECOND)
    await look(desk)
    assert (job.attempt, await look(desk)) == (1, began + 31 * SECOND)


async def test_right_after_the_fabric_was_away_nothing_is_overdue_yet(
    desk: Desk, clock: VirtualClock
) -> None:
    job = await desk.job(wait_us=HOUR)
    desk.fabric.ok_us = 3 * SECOND - 1
    await clock.advance(10 * SECOND)
    await look(desk)
    assert (job.attempt, await look(desk)) == (1, clock.now() + SECOND)  # looked at again
    desk.fabric.ok_us = 3 * SECOND
    await clock.advance(SECOND)
    await look(desk)
    assert job.attempt == 2


@pytest.mark.parametrize("case", ["ended", "older attempt", "no node"])
async def test_a_deadline_that_nobody_needs_any_more_does_no_harm(
    desk: Desk, clock: VirtualClock, case: str
) -> None:
    job = await desk.job()
    await clock.advance(MINUTE)
    if case == "ended":
        del desk.one.home.jobs["j"]
    elif case == "older attempt":
        job.attempt = 2
    else:
        job.node_id = ""
    await desk.one.home.overdue("j", 1)
    assert (desk.fabric.count("jobs.settle"), desk.fabric.count("jobs.move")) == (0, 0)
    assert [at for at, _, attempt in desk.one.home.watch._deadlines if at > clock.now()] == []


# ---- failures ----


@pytest.mark.spec("N12")
async def test_the_last_attempt_that_fails_ends_the_job_with_its_error(desk: Desk) -> None:
    job = await desk.job()
    job.progress = JobProgress(tried=("a", "b", "n"), failures=2)
    await desk.one.home.fail("j", 1, "NO_ACK")
    await desk.clock.settle()
    assert desk.session.frames == [told(outcome=JobOutcome(success=False, error=SILENT))]
    assert await desk.two.take_messages() == [
        Withdraw(node_id="n", job_id="j", attempt=1, reason="NO_ACK")
    ]
    assert (desk.one.home.jobs, desk.fabric.count("jobs.move")) == ({}, 0)


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("NODE_GONE", "NODE_GONE"),
        ("INSTANCE_GONE", "INSTANCE_GONE"),
        ("MODEL_NOT_AVAILABLE", "MODEL_NOT_AVAILABLE"),
    ],
)
async def test_an_attempt_that_its_instance_reports_as_failed_is_made_again(
    desk: Desk, reason: str, kind: FailureKind
) -> None:
    job = await desk.job(wait_us=MINUTE)
    error = JobError(code="E", message="told")
    failed = Failed(job_id="j", attempt=1, node_id="n", reason=reason, error=error)
    await desk.one.hear(failed)
    assert (job.attempt, job.node_id, job.progress.last_error) == (2, "", error)
    assert desk.session.frames == [updated("CREATED", 2, "", kind)]
    assert job.progress.failures == (0 if kind == "MODEL_NOT_AVAILABLE" else 1)
    assert not job.is_moving
    change = desk.fabric.last("jobs.move")[1]
    assert change == NodeJobChange(
        name="again", attempt=1, keep_us=4 * MINUTE + HOUR, progress=job.progress
    )


async def test_an_attempt_that_failed_for_another_reason_is_the_end(desk: Desk) -> None:
    await desk.job(wait_us=MINUTE)
    error = JobError(code="E", message="told")
    await desk.one.hear(Failed(job_id="j", attempt=1, node_id="n", reason="ODD", error=error))
    assert desk.session.frames == [told(outcome=JobOutcome(success=False, error=error))]


async def test_a_failure_of_a_job_whose_record_was_wiped_leads_to_another_attempt(
    desk: Desk, cluster: NodesWorld
) -> None:
    job = await desk.job(wait_us=MINUTE)
    cluster.hub.jobs.clear()
    await desk.one.home.fail("j", 1, "NO_ACK")
    assert (job.attempt, job.node_id) == (2, "")
    assert desk.session.frames == [updated("CREATED", 2, "", "NO_ACK")]


async def test_a_failure_of_a_job_that_ended_meanwhile_follows_the_record(desk: Desk) -> None:
    job = await desk.job(wait_us=MINUTE)
    await desk.write("finish", outcome=OUTCOME, node_id="n")
    await desk.one.home.fail("j", 1, "NO_ACK")
    assert (desk.session.frames, job.attempt, job.is_moving) == ([told()], 1, False)


@pytest.mark.parametrize("case", ["unknown", "older attempt", "no node", "moving", "ending"])
async def test_a_failure_that_is_not_of_the_present_attempt_changes_nothing(
    desk: Desk, case: str
) -> None:
    job = await desk.job(wait_us=MINUTE)
    if case == "no node":
        job.node_id = ""
    job.is_moving, job.is_ending = case == "moving", case == "ending"
    await desk.one.home.fail(
        "other" if case == "unknown" else "j", 2 if case == "older attempt" else 1, "NO_ACK"
    )
    assert (job.attempt, desk.session.frames) == (1, [])
    assert (desk.fabric.count("jobs.move"), desk.fabric.count("jobs.settle")) == (0, 0)


async def test_an_attempt_of_which_two_failures_are_told_at_once_is_made_again_once(
    desk: Desk,
) -> None:
    job = await desk.job(wait_us=MINUTE)
    again = desk.one.home.fail("j", 1, "NODE_GONE")

    async def move(*args: Any) -> Any:
        await again
        return await desk.two.fabric.jobs.move(*args)

    desk.fabric.answer("jobs.move", move)
    await desk.one.home.fail("j", 1, "NO_ACK")
    assert (job.attempt, job.progress.failures, len(desk.session.frames)) == (2, 1, 1)
    assert desk.fabric.count("jobs.move") == 1


# ---- nodes that go ----


async def test_the_jobs_of_a_node_that_left_the_view_go_to_others(desk: Desk) -> None:
    job = await desk.job(wait_us=MINUTE)
    desk.one.engine.view.put(a_node("m", "two"))
    desk.one.home.node_gone("other")
    await desk.clock.settle()
    assert job.node_id == "n"
    desk.one.home.node_gone("n")
    await desk.clock.settle()
    assert (job.attempt, job.node_id) == (2, "m")
    assert job.progress.last_error is not None
    assert job.progress.last_error.code == "INSTANCE_GONE"


@pytest.mark.spec("X3")
async def test_after_a_wipe_the_slots_of_all_attempts_that_run_are_held_again(
    desk: Desk, cluster: NodesWorld
) -> None:
    desk.one.engine.view.put(a_node("n", "two", slots=100))
    for number in range(70):
        await desk.one.home.submit(a_request(str(number)), lambda _: None)
    await desk.one.home.submit(a_request("waits", model="other", wait_us=MINUTE), lambda _: None)
    desk.one.home.jobs["0"].is_ending = True
    cluster.hub.reserved.clear()
    await desk.one.home.hold_again()
    assert await desk.fabric.reservations.count("n") == 69


async def test_a_job_that_was_another_instances_is_taken_as_its_record_says(
    one: Instance, clock: VirtualClock
) -> None:
    request = a_request(created_at=clock.now() - SECOND, wait_us=MINUTE)
    progress = JobProgress(tried=("n",), failures=1)
    record = NodeJob(
        request=request, state="RUNNING", attempt=3, node_id="n", home="dead", progress=progress
    )
    job = one.home.take_in(record)
    assert one.home.jobs == {"j": job}
    assert (job.attempt, job.node_id, job.progress) == (3, "n", progress)
    assert job.wait_until == clock.now() + 59 * SECOND
    assert job.times == AttemptTimes(clock.now(), clock.now(), clock.now())


# ---- messages to a home ----


async def test_progress_that_is_told_by_message_reaches_the_session(desk: Desk) -> None:
    job = await desk.job()
    await desk.one.hear(Progressed(job_id="j", attempt=1, node_id="n", state="RUNNING", at=9))
    assert (job.times.started_at, desk.session.frames) == (9, [updated("RUNNING")])


async def test_a_result_that_is_told_by_message_reaches_the_session(desk: Desk) -> None:
    await desk.job()
    await desk.one.hear(finished())
    assert desk.session.frames == [told()]


async def test_each_new_attempt_is_sent_with_its_number(desk: Desk) -> None:
    await desk.job(wait_us=MINUTE)
    desk.one.engine.view.put(a_node("m", "two"))
    await desk.one.home.fail("j", 1, "NO_ACK")
    sent = [one for one in await desk.two.take_messages() if isinstance(one, Assign)]
    assert [(one.node_id, one.attempt) for one in sent] == [("m", 2)]
