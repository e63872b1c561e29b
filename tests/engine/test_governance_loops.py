"""Governance's loops on the virtual clock: expiry, gates, the built-in worker, anchors."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ksana.base.clock import VirtualClock
from ksana.base.instant import DAY, HOUR
from ksana.domain.governance.decay import FLOOR
from ksana.domain.governance.objects import ObjectFields
from ksana.domain.governance.records import GovernanceJob, GovernedObject
from ksana.engine.governance.anchoring import EVERY, AuditAnchors
from ksana.engine.governance.performing import Performed
from ksana.engine.governance.webhook import perform_by_webhook, read_reply
from ksana.engine.governance.worker import PERFORM_US, GovernanceWorker
from ksana.ports.caller import Reply, Timing
from ksana.store.sql import open_store
from tests.engine.tasks_world import ScriptedCaller
from tests.ground.governance import SECOND, Governing


@pytest.fixture
async def governing(tmp_path: Path, clock: VirtualClock) -> AsyncIterator[Governing]:
    store = await open_store(f"sqlite:///{tmp_path / 'ksana.db'}", clock, inline=True)
    yield Governing(store, clock)
    await store.close()


async def run_beside(run: Callable[[], Awaitable[None]], clock: VirtualClock, span: int) -> None:
    """Let a loop run for a while."""
    loop = asyncio.ensure_future(run())
    await clock.advance(span)
    loop.cancel()
    await asyncio.gather(loop, return_exceptions=True)


@pytest.mark.spec("G5")
async def test_the_sweep_wakes_at_the_end_of_a_lease_and_not_before(
    governing: Governing, clock: VirtualClock
) -> None:
    loop = asyncio.ensure_future(governing.service.sweep.pump.run())
    await governing.enqueue()
    await clock.settle()
    (job,) = await governing.pull(lease_us=10 * SECOND)
    await clock.advance(9 * SECOND)
    assert (await governing.job(job)).status == "running"
    await clock.advance(SECOND + 1)
    back = await governing.job(job)
    assert (back.status, back.attempt) == ("queued", 1)
    loop.cancel()
    await asyncio.gather(loop, return_exceptions=True)


@pytest.mark.spec("G13")
async def test_the_built_in_worker_fades_weights_until_the_floor(
    governing: Governing, clock: VirtualClock
) -> None:
    await governing.put(
        "m1",
        status="active",
        half_life_us=4 * HOUR,
        next_action_at=clock.now() + HOUR,
        next_action="decay",
    )
    worker = GovernanceWorker(governing.store, clock, governing.service.rules, HOUR // 12)
    await run_beside(worker.pump.run, clock, 4 * HOUR + HOUR // 12)
    half = await governing.object()
    assert half.weight == pytest.approx(FLOOR + (1 - FLOOR) / 2, abs=0.01)
    await run_beside(worker.pump.run, clock, 10 * DAY)
    gone = await governing.object()
    assert gone.weight == pytest.approx(FLOOR, abs=1e-5)
    assert gone.next_action_at is None
    await governing.assert_audit_is_whole()


@pytest.mark.spec("G13")
async def test_the_built_in_worker_archives_or_ends_what_it_may_not(
    governing: Governing, clock: VirtualClock
) -> None:
    for object_id, status in (("old", "stale"), ("young", "active")):
        await governing.put(object_id, status=status)
        await governing.enqueue(object_id, action="archive")
    worker = GovernanceWorker(governing.store, clock, governing.service.rules, 5 * SECOND)
    await run_beside(worker.pump.run, clock, SECOND)
    assert (await governing.object("old")).status == "archived"
    assert (await governing.object("young")).status == "active"


@pytest.mark.spec("G13")
async def test_the_built_in_worker_has_others_verify(
    governing: Governing, clock: VirtualClock
) -> None:
    asked: list[tuple[str, str | None]] = []

    async def perform(job: GovernanceJob, governed: GovernedObject | None) -> Performed:
        asked.append((job.object_id, None if governed is None else governed.status))
        if job.object_id == "bad":
            raise RuntimeError("no evidence")
        if job.object_id == "slow":
            await clock.sleep_until(clock.now() + DAY)
        return Performed(next_action_at=clock.now() + DAY, fields=ObjectFields(status="verified"))

    await governing.put("good", status="candidate")
    jobs = {
        name: await governing.enqueue(name, action="verify") for name in ("good", "bad", "slow")
    }
    worker = GovernanceWorker(governing.store, clock, governing.service.rules, 5 * SECOND, perform)
    await run_beside(worker.asking.run, clock, 90 * SECOND)
    assert sorted(asked)[:3] == [("bad", None), ("good", "candidate"), ("slow", None)]
    good = await governing.object("good")
    assert (good.status, good.next_action) == ("verified", "verify")
    for name, error in (("bad", "RuntimeError: no evidence"), ("slow", "not done within 1m")):
        failed = await governing.job(jobs[name])
        assert (failed.status, failed.attempt, failed.last_error) == ("queued", 1, error)


@pytest.mark.spec("G13")
async def test_a_webhook_is_not_called_after_a_freeze_in_which_another_may_have_got_the_job(
    governing: Governing, clock: VirtualClock
) -> None:
    caller = ScriptedCaller(clock)
    caller.connects = False
    perform = perform_by_webhook("http://hook/", lambda: caller, clock, PERFORM_US)
    await governing.enqueue("m1", action="verify")
    worker = GovernanceWorker(governing.store, clock, governing.service.rules, DAY, perform)
    loop = asyncio.ensure_future(worker.asking.run())
    await clock.settle()
    assert len(caller.connecting) == 1
    clock.suspend(PERFORM_US)
    caller.connect()
    await clock.settle()
    assert caller.sent == []
    loop.cancel()
    await asyncio.gather(loop, return_exceptions=True)


@pytest.mark.spec("G13")
async def test_jobs_that_came_too_late_from_the_store_are_not_performed(
    governing: Governing, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    performed: list[str] = []

    async def perform(job: GovernanceJob, governed: GovernedObject | None) -> Performed:
        performed.append(job.object_id)
        return Performed()

    read = governing.store.read

    async def freeze_and_read(*args: Any) -> Any:
        clock.suspend(PERFORM_US)
        return await read(*args)

    await governing.enqueue("m1", action="verify")
    worker = GovernanceWorker(governing.store, clock, governing.service.rules, DAY, perform)
    monkeypatch.setattr(governing.store, "read", freeze_and_read)
    loop = asyncio.ensure_future(worker.asking.run())
    await clock.settle()
    assert performed == []
    loop.cancel()
    await asyncio.gather(loop, return_exceptions=True)


@pytest.mark.spec("G13")
@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (Reply(kind="answered", timing=Timing(), status=204), None),
        (Reply(kind="answered", timing=Timing(), status=200, body=b'{"result":"no"}'), "no"),
        (Reply(kind="answered", timing=Timing(), status=500), "the webhook answered 500"),
        (Reply(kind="timeout", timing=Timing(), error="too slow"), "too slow"),
    ],
)
def test_what_a_webhook_answers_is_what_became_of_the_job(reply: Reply, error: str | None) -> None:
    assert read_reply(reply).error == error


@pytest.mark.spec("G13")
def test_a_webhook_may_change_the_object_and_plan_the_next_action() -> None:
    body = msgspec.json.encode(
        {
            "result": "succeeded",
            "next_action_at": "2026-02-01T00:00:00Z",
            "next_action": "decay",
            "object": {"status": "active", "colour": "red"},
        }
    )
    read = read_reply(Reply(kind="answered", timing=Timing(), status=200, body=body))
    assert (read.error, read.next_action, read.fields.status) == (None, "decay", "active")
    assert read.next_action_at == 1_769_904_000_000_000


@pytest.mark.spec("G13")
@pytest.mark.parametrize(
    "body",
    [
        b"<html>",
        b"[]",
        b"null",
        b'{"result":7}',
        b'{"next_action":"dance"}',
        b'{"next_action_at":"tomorrow"}',
        b'{"next_action_at":"2026-01-01T00:00:00"}',
        b'{"object":{"status":7}}',
        b'{"object":{"status":"' + b"x" * 25 + b'"}}',
        b'{"object":{"epistemic_state":"confused"}}',
        b'{"object":{"weight":-1}}',
        b'{"object":{"weight":1e999}}',
        b'{"object":{"reinforcement_count":-1}}',
        b'{"object":[]}',
        b"[" * 100_000,
    ],
)
def test_an_answer_that_the_api_would_refuse_is_a_failure(body: bytes) -> None:
    read = read_reply(Reply(kind="answered", timing=Timing(), status=200, body=body))
    assert (read.error or "").startswith("the webhook's answer cannot be read")


@pytest.mark.spec("G13")
async def test_a_move_that_is_not_legal_fails_the_attempt(
    governing: Governing, clock: VirtualClock
) -> None:
    await governing.put("m1", status="active")
    job = await governing.enqueue("m1", action="verify")

    async def perform(*_: Any) -> Performed:
        return Performed(fields=ObjectFields(status="candidate"))

    worker = GovernanceWorker(governing.store, clock, governing.service.rules, 5 * SECOND, perform)
    await run_beside(worker.asking.run, clock, SECOND)
    failed = await governing.job(job)
    assert (failed.status, failed.attempt) == ("queued", 1)
    assert "cannot go from active to candidate" in (failed.last_error or "")


@pytest.mark.spec("G13")
async def test_what_others_take_their_time_for_holds_up_no_decay(
    governing: Governing, clock: VirtualClock
) -> None:
    await governing.enqueue("slow", action="verify")
    await governing.put(
        "m1", half_life_us=HOUR, next_action_at=clock.now() + 20 * SECOND, next_action="decay"
    )

    async def perform(*_: Any) -> Performed:
        await clock.sleep_until(clock.now() + DAY)
        return Performed()

    worker = GovernanceWorker(governing.store, clock, governing.service.rules, 5 * SECOND, perform)

    async def both() -> None:
        await asyncio.gather(worker.pump.run(), worker.asking.run())

    await run_beside(both, clock, 40 * SECOND)
    assert (await governing.object("m1")).weight < 1.0


@pytest.mark.spec("G12")
async def test_anchors_are_written_only_when_there_is_news(
    governing: Governing, clock: VirtualClock
) -> None:
    anchors = AuditAnchors(governing.store, clock, "me")
    await governing.enqueue()
    await run_beside(anchors.pump.run, clock, 3 * EVERY + SECOND)
    report = await governing.audit.verify()
    assert (report.ok, report.anchors) == (True, 1)
    await governing.enqueue("m2")
    await run_beside(anchors.pump.run, clock, EVERY + SECOND)
    assert (await governing.audit.verify()).anchors == 2
