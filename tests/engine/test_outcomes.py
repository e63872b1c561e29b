"""What is written of attempts that ended: the run, its last call, its events; and what is refused
because the run is another's by now. And the claim that comes before."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ksana.base.clock import VirtualClock
from ksana.base.instant import SECOND, format_instant
from ksana.domain.handover import HandedEnd, HandedJob
from ksana.domain.secrets import Secrets
from ksana.domain.tasks.call_records import read_attempts
from ksana.domain.tasks.records import ClaimedRun, RetryPolicy
from ksana.engine.tasks.claimer import claim_ready
from ksana.engine.tasks.recorder import Recorded, record_outcomes
from ksana.ports.caller import NOT_OURS, Reply, Request, Timing
from tests.engine.held_ground import (
    ME,
    add_task,
    ended,
    events_since,
    hold,
    last_event,
    make_ready,
    read_run,
)
from tests.engine.tasks_world import World, answer, open_world


@pytest.fixture
async def world(tmp_path: Path, clock: VirtualClock) -> AsyncIterator[World]:
    """The store of an instance whose loops stand still."""
    world = await open_world(tmp_path, clock)
    await world.die()
    yield world
    await world.check_events()
    await world.store.close()


async def record(world: World, *overs: Any, sole: bool = True, watermark: int = 0) -> Recorded:
    return await world.store.transact(record_outcomes, list(overs), sole, ME, watermark)


async def watermark_of(world: World) -> int | None:
    return await world.store.read(lambda tx: tx.instances.find_begun_to(ME))


# The claim


@pytest.mark.parametrize(
    ("soon", "covered"), [(-1, None), (0, None), (1, 0), (2, 1), (3, 1)], ids=str
)
async def test_the_oldest_ready_runs_are_claimed_with_the_watermark_of_those_sent_soon(
    world: World, soon: int, covered: int | None
) -> None:
    task = await add_task(world)
    ready = await make_ready(world, task, 3)
    claimed, watermark = await world.store.transact(claim_ready, "target", ME, [11, 12], soon, 7)
    runs = [await read_run(world, run_id) for run_id in ready]
    assert [(run.status, run.held_by, run.token) for run in runs[:2]] == [
        ("RUNNING", ME, 11),
        ("RUNNING", ME, 12),
    ]
    assert (runs[2].status, runs[2].held_by) == ("SCHEDULED", None)
    assert claimed == [
        ClaimedRun(
            run_id=run.id,
            uid=run.uid,
            task=await world.tasks.get(task.id),
            token=run.token,
            attempt=1,
            scheduled_time=run.scheduled_time,
            exec_type="SYNC",
            trace_id=run.trace_id,
            host="target",
            is_counted=False,
            held_by=ME,
            lease=7,
        )
        for run in runs[:2]
    ]
    assert watermark == (0 if covered is None else ready[covered])
    assert await watermark_of(world) == watermark


async def test_fewer_ready_runs_than_slots_are_all_claimed(world: World) -> None:
    task = await add_task(world)
    ready = await make_ready(world, task)
    claimed, watermark = await world.store.transact(claim_ready, "target", ME, [1, 2, 3], 1)
    assert ([run.run_id for run in claimed], watermark) == (ready, ready[0])
    assert claimed[0].lease == 0
    assert await world.store.transact(claim_ready, "elsewhere", ME, [1], 1) == ([], 0)


# Outcomes


async def test_an_answer_ends_its_run_and_is_kept_with_it(world: World) -> None:
    held = await hold(world, await add_task(world))
    over = ended(held, answer(200, b"well"), body=b"sent")
    before = await last_event(world)
    assert await record(world, over) == Recorded(set(), False, [(over, "SUCCESS")], 0)
    run = await read_run(world, held.run_id)
    assert (run.status, run.held_by, run.request_headers, run.request_body) == (
        "SUCCESS",
        None,
        '["ksana/9",1,{"X-A":"1"}]',
        "sent",
    )
    assert (run.response_code, run.response_body, run.response_encoding) == (200, "well", None)
    assert (run.start_time, run.end_time) == (over.started_at, over.ended_at)
    assert read_attempts(run.attempts) == [
        {
            "attempt": 1,
            "started_at": format_instant(over.started_at),
            "ended_at": format_instant(over.ended_at),
            "status": "SUCCESS",
            "response_code": 200,
            "error": None,
            "instance": ME,
            "timing": {
                "dns_ms": 0.0,
                "connect_ms": 0.0,
                "tls_ms": 0.0,
                "first_byte_ms": 0.0,
                "total_ms": 1.0,
            },
        }
    ]
    [(entity, entity_id, kind, _)] = await events_since(world, before)
    assert (entity, entity_id, kind) == ("RUN", str(held.run_id), "RUN_SUCCESS")


@pytest.mark.spec("X2")
async def test_a_secret_body_is_not_kept(world: World) -> None:
    held = await hold(world, await add_task(world))
    secrets = Secrets(frozenset(), (), is_body_secret=True)
    request = Request("POST", "http://target/", body=b"secret", secrets=secrets)
    await record(world, ended(held, request=request))
    assert (await read_run(world, held.run_id)).request_body == "***"


async def test_a_request_that_could_not_be_made_fails_its_run_without_a_call(world: World) -> None:
    held = await hold(world, await add_task(world))
    reply = Reply("refused", Timing(), error="the request cannot be made: why", sends=0)
    await record(world, ended(held, reply, request=None, kept_headers=None))
    run = await read_run(world, held.run_id)
    assert (run.status, run.request_headers, run.request_body) == ("FAILED", None, None)
    assert run.error_message == "the request cannot be made: why"


async def test_an_attempt_that_will_be_made_again_wakes_its_run_later(world: World) -> None:
    task = await add_task(world, retry=RetryPolicy(max_retries=1, initial_delay_us=5 * SECOND))
    held = await hold(world, task)
    over = ended(held, answer(503))
    assert await record(world, over) == Recorded(set(), True, [(over, "RETRYING")], 0)


async def test_a_run_that_ends_lets_the_next_of_its_task_start(world: World) -> None:
    task = await add_task(world)
    await world.tasks.trigger(task.id)
    [held], _ = await world.store.transact(claim_ready, "target", ME, [5], 0)
    waiting = (await world.tasks.trigger(task.id)).run_id
    over = ended(held)
    assert await record(world, over) == Recorded({"target"}, False, [(over, "SUCCESS")], 0)
    assert (await read_run(world, waiting)).ready_host == "target"


@pytest.mark.parametrize(("sole", "order"), [(True, [1, 0]), (False, [0, 1])])
async def test_where_others_write_too_outcomes_go_in_the_order_of_their_tasks(
    world: World, sole: bool, order: list[int]
) -> None:
    held = [await hold(world, await add_task(world, name)) for name in "ab"]
    recorded = await record(world, ended(held[1]), ended(held[0]), sole=sole)
    assert recorded.statuses == [(ended(held[n]), "SUCCESS") for n in order]


async def test_the_watermark_is_moved_with_the_outcomes(world: World) -> None:
    assert await record(world, watermark=77) == Recorded(set(), False, [], 0, 77)
    assert await watermark_of(world) == 77
    await record(world)
    assert await watermark_of(world) == 77


async def test_the_result_of_a_run_that_is_anothers_is_refused_with_an_event(world: World) -> None:
    task = await add_task(world)
    mine, taken = await hold(world, task), await hold(world, task, token=6)
    late = ended(msgspec.structs.replace(taken, token=1), answer(204))
    before = await last_event(world)
    recorded = await record(world, late, ended(mine))
    assert recorded == Recorded(set(), False, [(ended(mine), "SUCCESS")], 1)
    assert (await read_run(world, taken.run_id)).status == "RUNNING"
    [refused] = [one for one in await events_since(world, before) if one[2] != "RUN_SUCCESS"]
    assert refused == (
        "RUN",
        str(taken.run_id),
        "RUN_RESULT_REFUSED",
        {
            "task_id": task.id,
            "attempt": 1,
            "reason": "TOKEN_VOID",
            "kind": "answered",
            "response_code": 204,
        },
    )


# Never sent

HELD_BACK = Reply("aborted", Timing(), error=NOT_OURS, sends=0)


async def test_a_run_that_was_never_sent_is_given_back_and_has_lost_no_attempt(
    world: World,
) -> None:
    held = await hold(world, await add_task(world))
    over = ended(held, HELD_BACK, request=None, kept_headers=None)
    assert await record(world, over) == Recorded(set(), True, [(over, "RETRYING")], 0)
    run = await read_run(world, held.run_id)
    assert (run.status, run.attempt, run.reason) == ("RETRYING", 0, "HELD_NEVER_BEGUN")
    assert run.token != held.token


async def test_a_call_that_was_aborted_after_it_was_sent_was_an_attempt(world: World) -> None:
    held = await hold(world, await add_task(world))
    over = ended(held, Reply("aborted", Timing(), error="aborted"))
    assert (await record(world, over)).statuses == [(over, "FAILED")]
    assert (await read_run(world, held.run_id)).attempt == 1


async def test_only_a_run_that_is_still_ours_is_given_back(world: World) -> None:
    task = await add_task(world)
    other, over, gone = [await hold(world, task, token) for token in (5, 6, 7)]
    await record(world, ended(over))
    overs = [
        ended(held, HELD_BACK, request=None)
        for held in (
            msgspec.structs.replace(other, token=1),
            over,
            msgspec.structs.replace(gone, run_id=9999),
        )
    ]
    assert await record(world, *overs) == Recorded(set(), False, [], 3)
    statuses = [(await read_run(world, held.run_id)).status for held in (other, over)]
    assert statuses == ["RUNNING", "SUCCESS"]


# Jobs


@pytest.mark.parametrize(
    ("end", "status", "body"),
    [
        (HandedEnd("done", result='{"n":1}'), "SUCCESS", '{"n":1}'),
        (HandedEnd("gave_up", "why"), "FAILED", None),
    ],
)
async def test_the_end_of_a_job_ends_its_run(
    world: World, end: HandedEnd, status: str, body: str | None
) -> None:
    held = await hold(world, await add_task(world))
    job = HandedJob("job", "r", "DONE", '{"in":1}', held.scheduled_time, end=end, has_begun=True)
    over = ended(held, HELD_BACK, request=None, job=job)
    assert (await record(world, over)).statuses == [(over, status)]
    run = await read_run(world, held.run_id)
    assert (run.status, run.request_body, run.response_body) == (status, '{"in":1}', body)
    assert run.error_message == end.error
