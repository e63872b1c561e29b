"""How a node job ends: its outcome is recorded, its slot given back, its session told, once."""

from typing import Any

import msgspec
import pytest

from ksana.base.clock import VirtualClock
from ksana.base.instant import HOUR, MILLISECOND, MINUTE, SECOND
from ksana.domain.nodes.messages import Withdraw
from ksana.domain.nodes.moves import NodeJobChange
from ksana.domain.nodes.records import JobOutcome, JobProgress, NodeJob
from tests.engine.nodes_desk import FAILED, OUTCOME, Desk, finished, told
from tests.engine.nodes_world import NodesWorld, a_request, is_signalled

AGAIN = 250 * MILLISECOND


# ---- a node answered ----


@pytest.mark.spec("N7")
async def test_an_outcome_is_recorded_told_and_its_slot_is_free(desk: Desk) -> None:
    await desk.job()
    is_signalled(desk.one.home.watch.offer)
    await desk.endings.finished([finished()])
    assert desk.session.frames == [told()]
    record = await desk.record()
    assert (record.state, record.outcome, desk.one.home.jobs) == ("RELEASED", OUTCOME, {})
    assert (desk.one.held("n"), await desk.fabric.reservations.count("n")) == (0, 0)
    assert is_signalled(desk.one.home.watch.offer)
    assert await desk.one.take_events() == [
        ("j", "NODE_JOB_FINISHED", {"attempt": 1, "success": True, "node_id": "n"}),
        ("j", "NODE_JOB_RELEASED", {"attempt": 1}),
    ]
    (end,) = desk.fabric.last("jobs.settle")[0]
    assert (end.job_id, end.node_id) == ("j", "n")
    assert end.change == NodeJobChange(
        name="finish", attempt=1, keep_us=HOUR, node_id="n", outcome=OUTCOME
    )
    assert desk.endings.stale == 0


async def test_an_outcome_that_comes_twice_is_told_once(desk: Desk) -> None:
    await desk.job()
    for _ in range(2):
        await desk.endings.finished([finished()])
    assert (desk.session.frames, desk.one.held("n")) == ([told()], 0)


async def test_the_outcomes_of_several_jobs_are_recorded_on_one_way(desk: Desk) -> None:
    await desk.job("a")
    await desk.job("b")
    await desk.endings.finished([finished("a"), finished("unknown"), finished("b")])
    assert desk.session.frames == [told("a"), told("b")]
    assert (desk.fabric.count("jobs.settle"), desk.one.held("n")) == (1, 0)


async def test_an_outcome_of_an_attempt_that_is_over_is_counted_and_dropped(desk: Desk) -> None:
    job = await desk.job()
    job.attempt = 2
    await desk.endings.finished([finished()])
    assert (desk.session.frames, desk.endings.stale) == ([], 1)
    assert (desk.fabric.count("jobs.settle"), job.is_ending) == (0, False)


async def test_an_outcome_of_a_job_that_was_wiped_is_told_and_its_slot_given_back(
    desk: Desk, cluster: NodesWorld
) -> None:
    await desk.job()
    cluster.hub.jobs.clear()
    await desk.endings.finished([finished()])
    await desk.clock.settle()
    assert (desk.session.frames, desk.one.held("n")) == ([told()], 0)
    assert desk.fabric.last("reservations.release") == ("n", "j")
    assert desk.fabric.count("jobs.move") == 0
    assert desk.hints == [0, 0]  # with the outcome, and once the slot is free
    await desk.endings.strike()
    assert desk.fabric.last("jobs.strike_homed") == ("one", ["j"])


async def test_an_outcome_that_was_recorded_before_is_told_and_its_slot_not_counted_twice(
    desk: Desk,
) -> None:
    """The answer of the first try was lost on the way."""
    await desk.job("other")
    await desk.job()
    await desk.write("finish", outcome=OUTCOME, node_id="n")
    await desk.endings.finished([finished()])
    await desk.clock.settle()
    assert desk.session.frames == [told()]
    assert (desk.endings.stale, list(desk.one.home.jobs)) == (0, ["other"])
    assert desk.one.held("n") == 1


@pytest.mark.spec("N12")
async def test_an_outcome_that_lost_against_another_attempt_is_dropped(desk: Desk) -> None:
    await desk.job("other")
    job = await desk.job(wait_us=MINUTE)
    await desk.write("again", progress=JobProgress(tried=("n",)))
    await desk.endings.finished([finished()])
    await desk.clock.settle()
    assert desk.one.held("n") == 1
    assert (desk.session.frames, desk.endings.stale) == ([], 1)
    assert (job.attempt, job.node_id, job.is_ending) == (2, "", False)


# ---- while the fabric is away ----


@pytest.mark.spec("N15")
async def test_while_the_fabric_is_away_a_session_here_is_told_at_once_and_only_once(
    desk: Desk, clock: VirtualClock
) -> None:
    await desk.job()
    desk.fabric.is_away = True
    await desk.endings.finished([finished()])
    assert desk.session.frames == [told()]
    await clock.advance(AGAIN)
    desk.fabric.is_away = False
    assert (await desk.record()).outcome is None
    await clock.advance(AGAIN)
    assert ((await desk.record()).outcome, desk.session.frames) == (OUTCOME, [told()])
    assert (len(desk.one.engine.background), desk.one.held("n")) == (0, 0)
    calls = desk.fabric.count("jobs.settle")
    await clock.advance(SECOND)
    assert desk.fabric.count("jobs.settle") == calls == 3


async def test_a_session_elsewhere_is_told_when_the_outcome_is_recorded(
    desk: Desk, clock: VirtualClock
) -> None:
    session = await desk.two.session("elsewhere")
    await desk.job(session_id="elsewhere")
    desk.fabric.is_away = True
    await desk.endings.finished([finished()])
    await clock.advance(AGAIN - 1)
    desk.fabric.is_away = False
    assert await desk.two.take_messages() == []
    await clock.advance(1)
    await desk.two.read()
    assert session.frames == [told()]


async def test_an_outcome_that_can_not_be_recorded_for_a_minute_is_told_nevertheless(
    desk: Desk, clock: VirtualClock
) -> None:
    job = await desk.job(session_id="nowhere")
    desk.fabric.broken.add("jobs.settle")
    await desk.endings.finished([finished()])
    await clock.advance(MINUTE - 1)
    assert (job.is_ending, desk.fabric.count("owners.find")) == (True, 0)
    await clock.advance(1)
    assert (await desk.one.session("nowhere")).frames == [told()]
    assert (job.is_ending, desk.one.home.jobs) == (False, {})
    assert desk.fabric.count("jobs.settle") == 1 + 240


# ---- a job that is not ours ----


def elsewhere(home: str, outcome: JobOutcome | None = None) -> NodeJob:
    return NodeJob(
        request=a_request(),
        state="DISPATCHED" if outcome is None else "FINISHED",
        attempt=1,
        node_id="n",
        home=home,
        outcome=outcome,
    )


async def test_an_outcome_of_a_job_that_nobody_knows_is_dropped(desk: Desk) -> None:
    await desk.endings.finished([finished()])
    assert (desk.session.frames, desk.fabric.count("jobs.settle")) == ([], 0)


@pytest.mark.parametrize(("home", "is_told"), [("dead", True), ("one", False)])
async def test_an_outcome_that_is_recorded_already_is_told_unless_we_told_it(
    desk: Desk, home: str, is_told: bool
) -> None:
    recorded = JobOutcome(success=True, data=msgspec.Raw(b"8"))
    desk.fabric.answer("jobs.find", elsewhere(home, recorded))
    await desk.endings.finished([finished()])
    assert desk.session.frames == ([told(outcome=recorded)] if is_told else [])
    assert desk.fabric.count("jobs.settle") == 0


async def test_an_outcome_of_a_job_whose_home_lives_is_handed_on(desk: Desk) -> None:
    desk.fabric.answer("jobs.find", elsewhere("two"))
    await desk.endings.finished([finished()])
    assert await desk.two.take_messages() == [finished()]
    assert desk.fabric.count("jobs.settle") == 0


@pytest.mark.parametrize("home", ["dead", "one"])
async def test_an_outcome_of_a_job_that_nobody_is_in_charge_of_is_recorded_and_told_here(
    desk: Desk, home: str
) -> None:
    change = NodeJobChange(name="dispatch", attempt=1, keep_us=HOUR, node_id="n")
    await desk.fabric.jobs.create(a_request(), home, HOUR, change)
    for _ in range(2):
        await desk.endings.finished([finished()])
    assert desk.session.frames == [told()]
    assert (await desk.record()).state == "RELEASED"
    assert [name for _, name, _ in await desk.one.take_events("NODE_JOB")] == [
        "NODE_JOB_FINISHED",
        "NODE_JOB_RELEASED",
    ]


async def test_an_outcome_of_an_attempt_of_the_dead_that_is_over_is_dropped(desk: Desk) -> None:
    change = NodeJobChange(name="dispatch", attempt=1, keep_us=HOUR, node_id="other")
    await desk.fabric.jobs.create(a_request(), "dead", HOUR, change)
    await desk.endings.finished([finished()])
    assert (desk.session.frames, (await desk.record()).outcome) == ([], None)


# ---- hints that a slot is free ----


async def end(desk: Desk, job_id: str) -> bool:
    """End a job; answers whether a hint went along."""
    await desk.endings.finished([finished(job_id)])
    hint: bool = next(
        named["hint"] for name, _, named in reversed(desk.fabric.calls) if name == "jobs.settle"
    )
    return hint


async def test_hints_are_given_every_ten_milliseconds_and_none_is_swallowed(
    desk: Desk, clock: VirtualClock
) -> None:
    for number in range(4):
        await desk.job(str(number))
    sent = []
    for number, rest_us in enumerate((0, 4_000, 5_999)):
        await clock.advance(rest_us)
        sent.append(await end(desk, str(number)))
    assert (sent, desk.hints) == ([True, False, False], [0])
    await clock.advance(9_001)
    assert desk.hints == [0, 10_000]  # one for both that were held back
    assert not await end(desk, "3")
    await clock.advance(SECOND)
    assert desk.hints == [0, 10_000, 20_000]


async def test_after_a_late_hint_another_slot_that_is_free_is_hinted_at_too(
    desk: Desk, clock: VirtualClock
) -> None:
    for number in range(4):
        await desk.job(str(number))
    sent = []
    for number, step_us in enumerate((0, 4_000, 6_000, 3_000)):
        clock._move_to(clock.monotonic() + step_us)  # whoever sleeps wakes late
        sent.append(await end(desk, str(number)))
        await clock.settle()
    assert (sent, desk.hints) == ([True, False, True, False], [0, 10_000])
    await clock.advance(SECOND)
    assert desk.hints == [0, 10_000, 13_000]


# ---- we end it ----


async def test_a_job_that_we_end_is_withdrawn_from_its_node_and_told(desk: Desk) -> None:
    job = await desk.job()
    assert await desk.endings.end(job, FAILED, "canceled")
    await desk.clock.settle()
    assert desk.session.frames == [told(outcome=FAILED)]
    assert await desk.two.take_messages() == [
        Withdraw(node_id="n", job_id="j", attempt=1, reason="canceled")
    ]
    assert (desk.one.held("n"), desk.one.home.jobs) == (0, {})
    assert ((await desk.record()).state, desk.hints) == ("RELEASED", [0])
    assert [name for _, name, _ in await desk.one.take_events()] == [
        "NODE_JOB_FINISHED",
        "NODE_JOB_RELEASED",
    ]
    (made,) = desk.fabric.last("jobs.settle")[0]
    assert (made.node_id, made.change.node_id, made.change.attempt) == ("n", "", 1)


async def test_without_a_reason_the_node_is_told_that_the_job_has_ended(desk: Desk) -> None:
    assert await desk.endings.end(await desk.job(), FAILED)
    await desk.clock.settle()
    (message,) = await desk.two.take_messages()
    assert isinstance(message, Withdraw)
    assert message.reason == "the job has ended"


async def test_a_job_that_waits_leaves_the_line_when_we_end_it(desk: Desk) -> None:
    await desk.one.submit(a_request(model="other", wait_us=MINUTE))
    assert len(desk.one.home.watch.line) == 1
    assert await desk.endings.end(desk.one.home.jobs["j"], FAILED, "canceled")
    await desk.clock.settle()
    assert (len(desk.one.home.watch.line), await desk.two.take_messages()) == (0, [])
    assert desk.session.frames == [told(outcome=FAILED)]


async def test_a_job_that_is_being_ended_is_not_offered_a_node_any_more(desk: Desk) -> None:
    await desk.one.submit(a_request(model="other", wait_us=MINUTE))
    in_line: list[int] = []

    async def settle(*args: Any, **named: Any) -> Any:
        in_line.append(len(desk.one.home.watch.line))
        return await desk.two.fabric.jobs.settle(*args, **named)

    desk.fabric.answer("jobs.settle", settle)
    await desk.endings.end(desk.one.home.jobs["j"], FAILED, "canceled")
    assert in_line == [0]


async def test_a_job_that_ended_otherwise_meanwhile_is_not_ended_by_us(desk: Desk) -> None:
    job = await desk.job()
    await desk.write("finish", outcome=OUTCOME)
    assert await desk.endings.end(job, FAILED) is False
    assert desk.session.frames == [told()]


async def test_a_job_that_was_wiped_is_ended_by_us_all_the_same(
    desk: Desk, cluster: NodesWorld
) -> None:
    job = await desk.job()
    cluster.hub.jobs.clear()
    assert await desk.endings.end(job, FAILED)
    assert desk.session.frames == [told(outcome=FAILED)]
