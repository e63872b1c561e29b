"""Hand-outs and the sweep of governance: who gets what, what a gate keeps, and what time brings
back."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from ksana.base.clock import VirtualClock
from ksana.base.instant import HOUR
from ksana.domain.governance.audit import SYSTEM
from ksana.domain.governance.records import URGENCY, Gate, GovernanceJob, Who
from ksana.engine.core.pump import AGAIN
from ksana.engine.governance.pulling import Pull, pull_jobs
from ksana.engine.governance.sweep import (
    BATCH,
    POLL,
    GovernanceSweep,
    GovernanceSwept,
    sweep,
    wake_deferred,
)
from ksana.ports.governance.tables import AuditFilter
from ksana.store.sql import open_store
from tests.ground.governance import ME, SECOND, Governing

LEASE_US = 120 * SECOND


@pytest.fixture
async def governing(tmp_path: Path, clock: VirtualClock) -> AsyncIterator[Governing]:
    await clock.advance(HOUR)
    store = await open_store(f"sqlite:///{tmp_path / 'ksana.db'}", clock, inline=True)
    yield Governing(store, clock)
    await store.close()


async def pull(governing: Governing, limit: int, **more: Any) -> Any:
    wanted = Pull(worker_id="w1", limit=limit, lease_us=LEASE_US, **more)
    return await governing.store.transact(pull_jobs, wanted, governing.service.rules, ME)


def names(pulled: Any) -> list[str]:
    return [one.job.job.object_id for one in pulled.handed]


async def set_gate(governing: Governing, state: str, gate: str = "persona") -> None:
    """Set a gate and wake nobody, as an instance does that dies then."""
    setting = Gate(gate, "", state, None, governing.clock.now())
    await governing.store.transact(lambda tx: tx.gates.set_gate(setting))


async def defer(governing: Governing, *objects: str, gate: str = "persona") -> list[GovernanceJob]:
    """Jobs of objects of high risk that a closed gate keeps."""
    await set_gate(governing, "closed", gate)
    jobs = []
    for name in objects:
        await governing.put(name, risk_tier="high")
        jobs.append(await governing.enqueue(name))
    assert names(await pull(governing, len(objects))) == []
    assert [(await governing.job(job)).position for job in jobs] == [1] * len(jobs)
    return jobs


# Pulls


@pytest.mark.spec("G2")
async def test_a_pull_hands_out_what_is_due_in_order_with_a_lease(
    governing: Governing, clock: VirtualClock
) -> None:
    now = clock.now()
    for name, run_at, priority in (("late", -1, "low"), ("old", -2, "medium"), ("new", 0, "high")):
        await governing.enqueue(name, run_at=now + run_at * SECOND, priority=priority)
    await governing.enqueue("later", run_at=now + 1)
    first = await pull(governing, 2)
    assert (names(first), first.next_due_at) == (["old", "late"], None)
    held = first.handed[0].job.job
    assert (held.status, held.worker_id, held.lease_expires_at) == (
        "running",
        "w1",
        now + LEASE_US,
    )
    tokens = {one.job.job.lease_token for one in first.handed}
    assert len(tokens) == 2 and 0 not in tokens
    assert names(await pull(governing, 2)) == ["new"]
    nothing = await pull(governing, 2)
    assert (names(nothing), nothing.next_due_at) == ([], now + 1)
    await clock.advance(1)
    assert names(await pull(governing, 2)) == ["later"]
    assert (await pull(governing, 2)).next_due_at is None


@pytest.mark.spec("G2")
async def test_a_pull_by_priority_takes_the_urgent_first(governing: Governing) -> None:
    now = governing.clock.now()
    for age, priority in enumerate(URGENCY):
        await governing.enqueue(priority, run_at=now + (age - 10) * SECOND, priority=priority)
    await governing.enqueue("oldest", run_at=now - 20 * SECOND, priority="low")
    assert names(await pull(governing, 3, order="priority")) == ["high", "medium", "oldest"]


@pytest.mark.spec("G2")
async def test_a_pull_as_of_another_time_takes_what_is_due_then(
    governing: Governing, clock: VirtualClock
) -> None:
    await governing.enqueue("m1", run_at=clock.now() + HOUR)
    assert names(await pull(governing, 1, now=clock.now() + HOUR - 1)) == []
    pulled = await pull(governing, 1, now=clock.now() + HOUR)
    assert pulled.handed[0].job.job.lease_expires_at == clock.now() + LEASE_US


@pytest.mark.spec("G2", "G9")
async def test_a_pull_looks_for_more_in_place_of_what_a_gate_keeps(governing: Governing) -> None:
    await set_gate(governing, "closed")
    tiers = {"a": "high", "b": "high", "c": "high", "d": "low", "e": "low", "f": "low"}
    for name, tier in tiers.items():
        await governing.put(name, risk_tier=tier)
        await governing.enqueue(name)
    assert names(await pull(governing, 2)) == ["d", "e"]
    assert names(await pull(governing, 2)) == ["f"]


@pytest.mark.spec("G9")
@pytest.mark.parametrize("action", ["decay", "verify"])
async def test_a_gate_has_a_say_about_objects_of_high_risk_alone(
    governing: Governing, action: str
) -> None:
    await set_gate(governing, "closed")
    for name, tier in (("low", "low"), ("high", "high")):
        await governing.put(name, risk_tier=tier)
        await governing.enqueue(name, action=action)
    assert names(await pull(governing, 2)) == ["low"]


@pytest.mark.spec("G10")
async def test_a_second_verification_in_one_pull_is_judged_by_what_the_first_left(
    governing: Governing,
) -> None:
    await governing.put(
        "u", epistemic_state="uncertain", status="active", auto_verify_budget=1, verify_count=0
    )
    jobs = [await governing.enqueue("u", action=action) for action in ("verify", "revalidate")]
    pulled = await pull(governing, 2)
    assert [one.job.job.job_id for one in pulled.handed] == [jobs[0].job_id]
    assert (await governing.job(jobs[1])).reason == "BUDGET_SPENT"
    governed = await governing.object("u")
    assert (governed.auto_verify_budget, governed.verify_count) == (0, 1)


# The sweep


@pytest.mark.spec("G5")
@pytest.mark.parametrize(
    ("max_attempts", "requeued", "status"), [(3, 1, "queued"), (1, 0, "dead_letter")]
)
async def test_a_sweep_writes_down_leases_that_ran_out(
    governing: Governing, clock: VirtualClock, max_attempts: int, requeued: int, status: str
) -> None:
    job = await governing.enqueue(max_attempts=max_attempts)
    await governing.enqueue("m2")
    await governing.pull(lease_us=LEASE_US)
    await clock.advance(SECOND)
    await governing.pull(lease_us=LEASE_US)
    await clock.advance(LEASE_US - SECOND)
    swept = await governing.store.transact(sweep, 10)
    assert swept == GovernanceSwept(
        requeued=requeued, woken=0, is_full=False, next_lease_at=clock.now() + SECOND
    )
    assert (await governing.job(job)).status == status


@pytest.mark.spec("G9")
@pytest.mark.parametrize(
    ("limit", "woken", "is_full"), [(1, 1, True), (2, 2, True), (3, 3, True), (4, 3, False)]
)
async def test_a_sweep_wakes_what_waited_for_gates_that_are_not_closed_any_more(
    governing: Governing, limit: int, woken: int, is_full: bool
) -> None:
    await defer(governing, "a", "b")
    await set_gate(governing, "open")
    await defer(governing, "c", gate="cognition")
    await set_gate(governing, "degraded", "cognition")
    swept = await governing.store.transact(sweep, limit)
    assert swept == GovernanceSwept(requeued=0, woken=woken, is_full=is_full, next_lease_at=None)


@pytest.mark.spec("G9")
async def test_a_gate_that_is_closed_keeps_what_waits_for_it(governing: Governing) -> None:
    (job,) = await defer(governing, "a")
    assert await governing.store.transact(wake_deferred, 10) == 0
    assert (await governing.job(job)).position == 1


@pytest.mark.spec("G5", "G9")
@pytest.mark.parametrize(("limit", "is_full"), [(1, True), (2, False)])
async def test_a_sweep_is_full_if_leases_alone_fill_it(
    governing: Governing, clock: VirtualClock, limit: int, is_full: bool
) -> None:
    await governing.enqueue()
    await governing.pull(lease_us=LEASE_US)
    await clock.advance(LEASE_US)
    assert (await governing.store.transact(sweep, limit)).is_full is is_full


@pytest.mark.spec("G9", "G12")
@pytest.mark.parametrize(("who", "actor"), [(None, SYSTEM), (Who(actor="opener"), "opener")])
async def test_who_woke_a_job_is_in_the_audit(
    governing: Governing, who: Who | None, actor: str
) -> None:
    (job,) = await defer(governing, "a")
    await set_gate(governing, "open")
    assert await governing.store.transact(wake_deferred, 10, who) == 1
    entries = await governing.store.read(
        lambda tx: tx.audit.list_entries(AuditFilter(event_type="job.wake"), None, 10)
    )
    assert [(entry.job_id, entry.actor) for entry in entries] == [(job.job_id, actor)]


class Loop:
    """The loop of the sweep, and how often it told of jobs that became due."""

    def __init__(self, governing: Governing) -> None:
        self.told = 0
        assert isinstance(governing.clock, VirtualClock)
        self.clock = governing.clock
        self.sweep = GovernanceSweep(governing.store, self.clock, self._tell)

    def _tell(self) -> None:
        self.told += 1

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        loop = asyncio.ensure_future(self.sweep.pump.run())
        await self.clock.settle()
        yield
        loop.cancel()
        await asyncio.gather(loop, return_exceptions=True)


@pytest.mark.spec("G5")
async def test_the_loop_parks_until_the_next_lease_ends_and_tells_of_it(
    governing: Governing, clock: VirtualClock
) -> None:
    loop = Loop(governing)
    assert await loop.sweep._step() is None
    await governing.enqueue()
    await governing.pull(lease_us=LEASE_US)
    ends_at = clock.now() + LEASE_US
    assert await loop.sweep._step() == ends_at
    await clock.advance(LEASE_US - 1)
    assert (await loop.sweep._step(), loop.told) == (ends_at, 0)
    await clock.advance(1)
    assert (await loop.sweep._step(), loop.told) == (None, 1)
    assert loop.sweep.pump.name == "governance-sweep"


@pytest.mark.spec("G5")
async def test_a_job_that_is_given_up_is_told_to_nobody(
    governing: Governing, clock: VirtualClock
) -> None:
    loop = Loop(governing)
    await governing.enqueue(max_attempts=1)
    await governing.pull(lease_us=LEASE_US)
    await clock.advance(LEASE_US)
    assert (await loop.sweep._step(), loop.told) == (None, 0)


@pytest.mark.spec("G9")
async def test_the_loop_wakes_what_waited_for_any_gate_and_tells_of_it(
    governing: Governing,
) -> None:
    loop = Loop(governing)
    (job,) = await defer(governing, "a")
    assert (await loop.sweep._step(), loop.told) == (None, 0)
    await set_gate(governing, "open")
    await set_gate(governing, "open", "cognition")
    assert (await loop.sweep._step(), loop.told) == (None, 1)
    assert (await governing.job(job)).position == 0


async def test_a_backlog_is_swept_in_portions(
    governing: Governing, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ksana.engine.governance.sweep.BATCH", 2)
    assert BATCH == 500
    for number in range(3):
        await governing.enqueue(f"m{number}")
    await governing.pull(3, lease_us=LEASE_US)
    await clock.advance(LEASE_US)
    loop = Loop(governing)
    assert [await loop.sweep._step() for _ in range(2)] == [AGAIN, None]
    assert loop.told == 2


@pytest.mark.parametrize(
    ("is_sole", "lease_us", "next_us"),
    [
        (True, LEASE_US, LEASE_US),
        (True, None, None),
        (False, LEASE_US, POLL),
        (False, POLL // 2, POLL // 2),
        (False, None, POLL),
    ],
)
async def test_on_a_shared_store_it_looks_for_what_others_did_too(
    governing: Governing,
    monkeypatch: pytest.MonkeyPatch,
    is_sole: bool,
    lease_us: int | None,
    next_us: int | None,
) -> None:
    if lease_us is not None:
        await governing.enqueue()
        await governing.pull(lease_us=lease_us)
    monkeypatch.setattr(governing.store, "sole", is_sole)
    now = governing.clock.now()
    assert await Loop(governing).sweep._step() == (None if next_us is None else now + next_us)


async def test_a_lease_that_ends_before_all_that_is_known_wakes_the_loop(
    governing: Governing, clock: VirtualClock
) -> None:
    await governing.enqueue()
    await governing.pull(lease_us=LEASE_US)
    loop, known_at = Loop(governing), clock.now() + LEASE_US
    steps = []
    async with loop.running():
        for at in (known_at, known_at - 1):
            loop.sweep.note_lease(at)
            await clock.settle()
            steps.append(loop.sweep.pump.steps)
    assert steps == [1, 2]


async def test_a_loop_that_knows_of_no_lease_is_woken_by_any_and_looks_every_ten_seconds(
    governing: Governing, clock: VirtualClock
) -> None:
    loop = Loop(governing)
    async with loop.running():
        loop.sweep.note_lease(clock.now() + HOUR)
        await clock.settle()
        assert loop.sweep.pump.steps == 2
        await clock.advance(90 * SECOND)
        assert loop.sweep.pump.steps == 11
