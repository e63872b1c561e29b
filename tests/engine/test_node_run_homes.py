"""Node jobs that may be another instance's: who may cancel one, and how its end is found."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from ksana.base.clock import VirtualClock
from ksana.base.errors import StoreDownError
from ksana.base.instant import SECOND
from ksana.domain.tasks.job_runs import GONE
from ksana.domain.tasks.records import Run
from ksana.engine.tasks import node_runs
from ksana.engine.tasks.node_runs import (
    ELSEWHERE_EVERY,
    HERE_EVERY,
)
from tests.engine.node_runs_ground import DONE, Ground, job_of, node_run
from tests.unit.scripted_tx import ScriptedTx
from tests.unit.task_ground import a_claimed_run, a_run

pytestmark = pytest.mark.spec("B5")


@pytest.fixture
async def ground(clock: VirtualClock) -> AsyncIterator[Ground]:
    ground = Ground(clock)
    yield ground
    ground.runs.close()
    await clock.settle()


# Jobs of runs that may be another's


@pytest.mark.parametrize(
    ("why", "answer", "is_canceled"),
    [
        ("nobody has it", False, True),
        ("another has it", True, False),
        ("nobody knows", StoreDownError("away"), False),
    ],
)
@pytest.mark.parametrize("how", ["abort", "time"])
async def test_a_job_is_cancelled_after_our_lease_was_lost_if_no_other_took_it_up(
    ground: Ground, why: str, answer: Any, is_canceled: bool, how: str
) -> None:
    await ground.begin(run := node_run(1))
    ground.lease.generation += 1
    ground.store.answer("_is_taken_up", answer)
    if how == "abort":
        ground.runs.abort(1)
    await ground.clock.advance(60 * SECOND)
    assert ground.nodes.canceled == ([job_of(1)] if is_canceled else []), why
    assert [over.held for over in ground.overs] == [run], "its result will find the token void"
    assert ("_is_taken_up", (run,)) in ground.store.asked


async def test_a_run_that_we_took_up_again_is_waited_for_once(ground: Ground) -> None:
    await ground.begin(node_run(1))
    ground.lease.generation += 1
    ground.store.answer("_is_taken_up", True)
    ground.runs.ready()
    await ground.begin(again := node_run(1, token=99, lease=4))
    await ground.step()
    assert ground.store.names() == ["_is_ready"], "which is ours is plain"
    await ground.clock.settle()
    assert [over.held.token for over in ground.overs] == [11]
    ground.nodes.end(job_of(1), DONE)
    await ground.clock.settle()
    assert ground.overs[1].held == again
    assert (ground.nodes.canceled, ground.runs.known_runs()) == ([], set())


@pytest.mark.parametrize(
    ("run", "is_taken"), [(None, False), (a_run(token=9), True), (a_run(token=5), False)]
)
def test_whether_another_took_it_up_is_read_from_the_run(run: Run | None, is_taken: bool) -> None:
    tx = ScriptedTx(runs_find=run)
    assert node_runs._is_taken_up(tx, a_claimed_run()) is is_taken
    assert tx.args_of("runs.find") == [(60,)]


# A job that another instance is in charge of


async def test_a_job_that_went_elsewhere_is_asked_for_each_second(ground: Ground) -> None:
    await ground.begin(node_run(1))
    ground.nodes.here.clear()
    await ground.clock.advance(HERE_EVERY - 1)
    ground.nodes.end(job_of(1), DONE)
    assert ground.overs == [], "nobody tells us"
    await ground.clock.advance(1)
    assert ground.ends() == [(1, "done", None)], "it is looked whether ours still is"


async def test_once_it_is_known_to_be_elsewhere_its_end_is_found_within_a_second(
    ground: Ground,
) -> None:
    await ground.begin(node_run(1))
    ground.nodes.here.clear()
    await ground.clock.advance(HERE_EVERY)
    ground.nodes.end(job_of(1), DONE)
    await ground.clock.advance(ELSEWHERE_EVERY - 1)
    assert ground.overs == []
    await ground.clock.advance(1)
    assert ground.ends() == [(1, "done", None)]


async def test_a_job_that_is_ours_is_not_asked_for(ground: Ground) -> None:
    await ground.begin(node_run(1))
    del ground.nodes.jobs[job_of(1)]
    await ground.clock.advance(3 * HERE_EVERY)
    assert ground.overs == []


async def test_a_job_that_is_gone_is_lost(ground: Ground) -> None:
    await ground.begin(node_run(1))
    ground.nodes.here.clear()
    ground.nodes.jobs.clear()
    await ground.clock.advance(HERE_EVERY)
    assert ground.ends() == [(1, "lost", GONE)]


async def test_while_nobody_can_be_asked_it_is_waited_on(ground: Ground) -> None:
    await ground.begin(node_run(1))
    ground.nodes.here.clear()
    ground.nodes.is_away = True
    await ground.clock.advance(30 * SECOND)
    assert ground.overs == []
    ground.nodes.end(job_of(1), DONE)
    ground.nodes.is_away = False
    await ground.clock.advance(ELSEWHERE_EVERY)
    assert ground.ends() == [(1, "done", None)]
