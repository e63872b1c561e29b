"""Runs that are done by node jobs, one instance's loop alone: what it claims, how long it waits for
which end, and what it tells of it."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from ksana.base.clock import VirtualClock
from ksana.base.instant import MILLISECOND, SECOND
from ksana.domain.handover import HandedJob
from ksana.domain.tasks.job_runs import OVERDUE
from ksana.domain.tasks.records import NODE_PLACE
from ksana.engine.core.pump import AGAIN
from ksana.engine.tasks import node_runs
from ksana.engine.tasks.claimed_run import AttemptOver, reply_of
from ksana.engine.tasks.node_runs import (
    CANCELS_EVERY,
    MAX_CLAIM,
)
from ksana.ports.caller import NOT_OURS, Reply, Timing
from ksana.ports.handover import NodeOrder
from tests.engine.node_ground import ScriptedNodes
from tests.engine.node_runs_ground import DONE, Ground, job_of, node_run
from tests.unit.delivery_ground import is_signalled
from tests.unit.scripted_tx import ScriptedTx
from tests.unit.task_ground import a_task

pytestmark = pytest.mark.spec("B5")


@pytest.fixture
async def ground(clock: VirtualClock) -> AsyncIterator[Ground]:
    ground = Ground(clock)
    yield ground
    ground.runs.close()
    await clock.settle()


# Claiming


def test_its_loop_has_a_net(ground: Ground) -> None:
    assert (ground.runs.pump.name, ground.runs.pump._poll_us) == ("node-runs", 5 * SECOND)


async def test_ready_runs_are_claimed_and_their_jobs_submitted(ground: Ground) -> None:
    ground.store.answer("claim_ready", ([node_run(1)], 0))
    assert await ground.step() == ground.clock.now() + CANCELS_EVERY
    [(name, (place, me, tokens, soon, lease))] = ground.store.asked
    assert (name, place, me, soon, lease) == ("claim_ready", NODE_PLACE, "me", 0, 3)
    assert len(set(tokens)) == MAX_CLAIM
    await ground.clock.settle()
    assert [order.job_id for order in ground.nodes.orders] == [job_of(1)]
    assert ground.runs.known_runs() == {1}


async def test_after_all_were_claimed_the_poll_looks_whether_there_are_more(
    ground: Ground,
) -> None:
    ground.store.answer("claim_ready", ([], 0))
    assert await ground.step() is None
    assert await ground.step() is None
    ground.store.answer("_is_ready", True)
    assert await ground.step() is None
    assert ground.store.names() == ["claim_ready", "_is_ready", "_is_ready", "claim_ready"]
    ground.runs.ready()
    assert is_signalled(ground.runs.pump)
    await ground.step()
    assert ground.store.names() == ["claim_ready"], "who was told need not look"


async def test_no_more_are_waited_for_than_one_instance_may(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_runs, "MOST", 3)
    monkeypatch.setattr(node_runs, "MAX_CLAIM", 2)
    first, then = [node_run(1), node_run(2)], [node_run(3)]
    ground.store.answer("claim_ready", (first, 0), (then, 0), ([node_run(4)], 0))
    assert await ground.step() == AGAIN
    assert await ground.step() == ground.clock.now() + CANCELS_EVERY
    assert [len(args[2]) for _, args in ground.store.asked] == [2, 1]
    ground.store.asked.clear()
    await ground.step()
    assert ground.store.names() == [], "no room"
    await ground.clock.settle()
    assert not is_signalled(ground.runs.pump)
    ground.nodes.end(job_of(2), DONE)
    await ground.clock.settle()
    assert is_signalled(ground.runs.pump), "runs wait for that place"
    await ground.step()
    assert ground.runs.known_runs() == {1, 3, 4}


@pytest.mark.parametrize("why", ["stopped", "lease"])
async def test_nothing_is_claimed_once_it_stopped_or_while_the_lease_is_lost(
    ground: Ground, why: str
) -> None:
    ground.lease.held = why != "lease"
    if why == "stopped":
        ground.runs.close()
    assert await ground.step() is None
    assert ground.store.names() == []


@pytest.mark.parametrize("hosts", [[], [NODE_PLACE], ["a"]])
async def test_what_is_asked_of_the_store(ground: Ground, hosts: list[str]) -> None:
    tx = ScriptedTx(run_due_list_ready_hosts=hosts, run_due_list_void=[7])
    assert node_runs._is_ready(tx) is (hosts == [NODE_PLACE])
    assert node_runs._list_void(tx, [(7, 1)]) == [7]


# How an attempt ends


async def test_the_end_of_a_job_is_told_with_all_that_is_known_of_it(ground: Ground) -> None:
    run, began_at = node_run(1), ground.clock.now()
    await ground.begin(run)
    await ground.clock.advance(3 * SECOND)
    ground.nodes.end(job_of(1), DONE)
    await ground.clock.settle()
    ended_at = began_at + 3 * SECOND
    job = HandedJob(
        job_id=job_of(1),
        request_id=f"run:{run.uid}:1",
        state="done",
        payload='{"n":1}',
        created_at=began_at,
        ended_at=ended_at,
        end=DONE,
        has_begun=True,
    )
    reply = reply_of(DONE, began_at, ended_at)
    assert ground.overs == [AttemptOver(run, None, None, reply, began_at, ended_at, job)]
    assert ground.runs.known_runs() == set()
    assert not is_signalled(ground.runs.pump), "nothing waits for its place"


async def test_no_attempt_ends_before_it_began(ground: Ground) -> None:
    began_at = ground.clock.now()
    await ground.begin(node_run(1))
    ground.clock.step(-3 * SECOND)
    ground.nodes.end(job_of(1), DONE)
    await ground.clock.settle()
    assert ground.overs[0].ended_at == began_at


async def test_a_job_that_nobody_waits_for_may_end(ground: Ground) -> None:
    await ground.begin(node_run(1))
    ground.nodes._hear("another", DONE)
    await ground.clock.settle()
    assert ground.overs == []


async def test_a_run_of_an_older_lease_is_given_back_unsubmitted(ground: Ground) -> None:
    run, now = node_run(1, lease=2), ground.clock.now()
    await ground.begin(run)
    reply = Reply("aborted", Timing(), error=NOT_OURS, sends=0)
    assert ground.overs == [AttemptOver(run, None, None, reply, now, now)]
    assert ground.nodes.orders == []


async def test_a_run_whose_task_is_of_another_type_by_now_gives_up(ground: Ground) -> None:
    await ground.begin(node_run(1, task=a_task()))
    why = "the task is of type http since this run was made"
    assert ground.ends() == [(1, "gave_up", why)]
    assert ground.overs[0].job is not None
    assert ground.overs[0].job.payload == ""


@pytest.mark.parametrize(
    ("attribute", "value", "error"),
    [
        ("has_node", False, "NO_AVAILABLE_NODE: no node has the model echo"),
        ("is_away", True, "DEPENDENCY_UNAVAILABLE: Redis is away"),
    ],
)
async def test_a_job_that_cannot_be_submitted_fails_its_attempt(
    ground: Ground, attribute: str, value: bool, error: str
) -> None:
    setattr(ground.nodes, attribute, value)
    await ground.begin(node_run(1))
    assert [(run_id, kind) for run_id, kind, _ in ground.ends()] == [(1, "failed")]
    assert (ground.ends()[0][2] or "").endswith(error.partition(": ")[2])
    assert ": " in (ground.ends()[0][2] or "")


async def test_a_run_ends_when_its_time_is_over_and_its_job_with_it(ground: Ground) -> None:
    await ground.begin(node_run(1))
    await ground.clock.advance(60 * SECOND - 1)
    assert ground.overs == []
    await ground.clock.advance(1)
    assert ground.ends() == [(1, "timeout", OVERDUE)]
    assert ground.nodes.canceled == [job_of(1)]


async def test_an_abort_cancels_the_job_of_its_run_alone(ground: Ground) -> None:
    await ground.begin(node_run(1), node_run(2))
    ground.runs.abort(2)
    await ground.clock.settle()
    assert ground.ends() == [(2, "canceled", "the run was cancelled")]
    assert ground.nodes.canceled == [job_of(2)]
    assert ground.runs.known_runs() == {1}


async def test_runs_that_were_taken_away_are_not_waited_for_any_more(ground: Ground) -> None:
    await ground.begin(node_run(1))
    await ground.clock.advance(1)
    ground.runs.ready()
    await ground.begin(node_run(2))
    await ground.clock.advance(CANCELS_EVERY // 2)
    ground.store.answer("_list_void", [1])
    assert await ground.step() == ground.clock.now() + CANCELS_EVERY
    assert ground.store.asked[0] == ("_list_void", ([(1, 11)],)), "the second just began"
    ground.store.asked.clear()
    await ground.clock.advance(1)
    ground.store.answer("_list_void", [])
    ground.runs.abort(2)
    await ground.step()
    assert ground.store.names() == ["_is_ready"], "none is left to ask for"
    await ground.clock.settle()
    assert ground.nodes.canceled == [job_of(1), job_of(2)]


async def test_two_that_wait_are_asked_for_until_they_are_aborted(ground: Ground) -> None:
    await ground.begin(node_run(1), node_run(2))
    await ground.clock.advance(CANCELS_EVERY)
    ground.runs.abort(2)
    await ground.step()
    assert ground.store.asked[0] == ("_list_void", ([(1, 11)],))


# Stopping


async def test_a_drain_takes_nothing_more_and_waits_for_jobs(ground: Ground) -> None:
    await ground.begin(node_run(1))
    draining = asyncio.ensure_future(ground.runs.drain())
    await ground.clock.settle()
    ground.runs.ready()
    await ground.step()
    assert ground.store.names() == []
    ground.nodes.end(job_of(1), DONE)
    await ground.clock.advance(50 * MILLISECOND - 1)
    assert not draining.done()
    await ground.clock.advance(1)
    assert draining.done()
    assert ground.ends() == [(1, "done", None)]


async def test_once_closed_it_waits_for_nothing_and_says_nothing(ground: Ground) -> None:
    seen: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: seen.append(context))
    await ground.begin(node_run(1))
    ground.runs.close()
    await ground.clock.settle()
    assert (ground.runs.known_runs(), ground.overs, seen) == (set(), [], [])
    assert ground.nodes.canceled == [], "the rescue of orphans has it"


async def test_an_end_that_comes_while_it_closes_is_told_to_nobody(ground: Ground) -> None:
    await ground.begin(node_run(1))
    ground.nodes.end(job_of(1), DONE)
    ground.runs._is_closed = True
    await ground.clock.settle()
    assert ground.overs == []


@pytest.mark.parametrize("is_durable", [True, False])
def test_whether_jobs_are_kept_is_known(clock: VirtualClock, is_durable: bool) -> None:
    nodes = ScriptedNodes(clock, is_durable=is_durable)
    assert Ground(clock, nodes).runs.are_jobs_kept is is_durable


async def test_a_bug_of_ours_is_seen(ground: Ground) -> None:
    seen: list[Any] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: seen.append(context["exception"]))

    async def fall(order: NodeOrder) -> None:
        raise RuntimeError("a bug")

    ground.nodes.submit = fall  # type: ignore[method-assign]
    await ground.begin(node_run(1))
    assert [str(error) for error in seen] == ["a bug"]
    assert ground.runs.known_runs() == set()
