"""Killed between any two statements of any transaction: all of it happened or nothing did, and the
audit is whole."""

import sqlite3
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ksana.base.clock import VirtualClock
from ksana.base.instant import DAY, HOUR
from ksana.domain.governance.objects import ObjectFields
from ksana.domain.governance.records import GovernanceJob
from ksana.engine.governance.anchoring import purge_audit
from ksana.engine.governance.sweep import sweep
from ksana.engine.governance.worker import work_off
from ksana.ports.governance.tables import GovernanceJobFilter
from ksana.store.sql import open_store
from tests.ground.governance import ME, SECOND, Governing
from tests.ground.killing import Killed, Killer, killing

TABLES = (
    "governance_jobs",
    "governance_objects",
    "governance_gates",
    "audit_events",
    "audit_chains",
    "audit_anchors",
    "scheduler_events",
    "rollups",
)


@pytest.fixture
def killer() -> Iterator[Killer]:
    with killing() as killer:
        yield killer


def read_all(path: Path) -> dict[str, list[Any]]:
    """Everything that governance keeps."""
    with closing(sqlite3.connect(path)) as connection:
        return {table: list(connection.execute(f"SELECT * FROM {table}")) for table in TABLES}


class Case:
    """A transaction: what there must be before it, the call, and what it leaves."""

    def __init__(self, governing: Governing) -> None:
        self.governing = governing
        self.clock = governing.clock
        self.jobs: list[GovernanceJob] = []

    async def prepare(self) -> None:
        raise NotImplementedError

    async def call(self) -> None:
        raise NotImplementedError

    async def check(self) -> None:
        raise NotImplementedError

    async def pull_three(self, **more: Any) -> None:
        for number in range(3):
            await self.governing.enqueue(f"m{number}", **more)
        self.jobs = await self.governing.pull(3)


class AckWithFollowUps(Case):
    async def prepare(self) -> None:
        await self.pull_three()

    async def call(self) -> None:
        acks = [self.governing.ack_of(job, next_action_at=self.at) for job in self.jobs]
        await self.governing.service.ack_batch(acks, ME)

    @property
    def at(self) -> int:
        return self.jobs[0].run_at + HOUR

    async def check(self) -> None:
        for job in self.jobs:
            now = await self.governing.job(job)
            follow_up = await self.governing.job(now.follow_up_id or "")
            governed = await self.governing.object(job.object_id)
            assert (now.status, follow_up.status) == ("succeeded", "queued")
            assert governed.next_action_at == follow_up.run_at == self.at


class PullWithBudget(Case):
    async def prepare(self) -> None:
        await self.governing.put(
            "u", epistemic_state="uncertain", status="active", risk_tier="high"
        )
        self.jobs = [await self.governing.enqueue("u", action="verify")]

    async def call(self) -> None:
        await self.governing.pull()

    async def check(self) -> None:
        assert (await self.governing.job(self.jobs[0])).status == "running"
        assert (await self.governing.object("u")).auto_verify_budget == 1


class PullOverBudget(Case):
    async def prepare(self) -> None:
        await self.governing.put(
            "u",
            epistemic_state="uncertain",
            status="active",
            auto_verify_budget=0,
            next_action_at=self.clock.now(),
        )

    async def call(self) -> None:
        assert await self.governing.pull() == []

    async def check(self) -> None:
        governed = await self.governing.object("u")
        assert (governed.status, governed.next_action_at) == ("stale_uncertain", None)


class PullAtAClosedGate(Case):
    async def prepare(self) -> None:
        await self.governing.put("h", risk_tier="high")
        self.jobs = [await self.governing.enqueue("h")]
        await self.governing.close_gate()

    async def call(self) -> None:
        assert await self.governing.pull() == []

    async def check(self) -> None:
        job = await self.governing.job(self.jobs[0])
        assert (job.position, job.deferrals, job.attempt) == (1, 1, 0)


class OpenAGate(PullAtAClosedGate):
    async def prepare(self) -> None:
        await super().prepare()
        assert await self.governing.pull() == []

    async def call(self) -> None:
        await self.governing.open_gate()

    async def check(self) -> None:
        assert (await self.governing.job(self.jobs[0])).position == 0


class Fail(Case):
    async def prepare(self) -> None:
        await self.pull_three(max_attempts=1)

    async def call(self) -> None:
        await self.governing.fail(self.jobs[1])

    async def check(self) -> None:
        assert (await self.governing.job(self.jobs[1])).status == "dead_letter"


class RequeueAll(Fail):
    async def prepare(self) -> None:
        await super().prepare()
        for job in self.jobs:
            await self.governing.fail(job)

    async def call(self) -> None:
        await self.governing.service.requeue_all(GovernanceJobFilter(), ME)

    async def check(self) -> None:
        assert {(await self.governing.job(job)).status for job in self.jobs} == {"queued"}


class Expire(Case):
    async def prepare(self) -> None:
        await self.pull_three()
        assert isinstance(self.clock, VirtualClock)
        self.clock.step(DAY)

    async def call(self) -> None:
        await self.governing.store.transact(sweep, 100)

    async def check(self) -> None:
        for job in self.jobs:
            now = await self.governing.job(job)
            assert (now.status, now.attempt) == ("queued", 1)


class MoveAFollowUp(Case):
    async def prepare(self) -> None:
        await self.governing.put("m", status="active", next_action_at=self.clock.now() + HOUR)

    async def call(self) -> None:
        fields = ObjectFields(status="stale", next_action_at=self.clock.now() + DAY)
        await self.governing.service.patch_object("memory", "m", fields, ME)

    async def check(self) -> None:
        wanted = GovernanceJobFilter(object_id="m", status="queued")
        (job,) = (await self.governing.service.list_jobs(wanted, None, 10)).jobs
        governed = await self.governing.object("m")
        assert (governed.status, governed.next_action_at) == ("stale", job.run_at)


class WorkOff(Case):
    async def prepare(self) -> None:
        for number in range(3):
            await self.governing.put(
                f"m{number}",
                half_life_us=DAY,
                next_action_at=self.clock.now(),
                next_action="decay",
            )
        assert isinstance(self.clock, VirtualClock)
        self.clock.step(DAY)

    async def call(self) -> None:
        await self.governing.store.transact(work_off, 10, self.governing.service.rules)

    async def check(self) -> None:
        for number in range(3):
            assert (await self.governing.object(f"m{number}")).weight < 0.6


class PurgeTheAudit(Case):
    async def prepare(self) -> None:
        await self.pull_three()
        await self.governing.anchor()
        assert isinstance(self.clock, VirtualClock)
        self.clock.step(DAY)
        await self.governing.enqueue("late")

    async def call(self) -> None:
        await self.governing.store.transact(purge_audit, self.clock.now() - HOUR, 100)

    async def check(self) -> None:
        report = await self.governing.audit.verify()
        assert (report.ok, report.anchors) == (True, 0)


CASES = [*Case.__subclasses__(), OpenAGate, RequeueAll]


@pytest.mark.fault("F07")
@pytest.mark.spec("G2", "G3", "G4", "G5", "G9", "G10", "G12", "G13", "X10")
@pytest.mark.parametrize("kind", CASES, ids=lambda kind: kind.__name__)
async def test_killed_between_any_two_statements_all_of_it_happened_or_nothing(
    tmp_path: Path, clock: VirtualClock, killer: Killer, kind: Callable[[Governing], Case]
) -> None:
    path = tmp_path / "ksana.db"
    url = f"sqlite:///{path}"
    case = kind(Governing(await open_store(url, clock, inline=True), clock))
    await case.prepare()
    before = read_all(path)
    place = 0
    while read_all(path) == before:
        killer.left = place
        with pytest.raises(Killed):
            await case.call()
        await case.governing.store.close()
        case.governing = Governing(await open_store(url, clock, inline=True), clock)
        place += 1
    assert place > 5
    await case.check()
    await case.governing.assert_audit_is_whole()
    await case.governing.store.close()


@pytest.mark.spec("G3")
async def test_a_worker_whose_answer_was_lost_asks_again_and_is_told_the_same(
    tmp_path: Path, clock: VirtualClock, killer: Killer
) -> None:
    url = f"sqlite:///{tmp_path / 'ksana.db'}"
    governing = Governing(await open_store(url, clock, inline=True), clock)
    await governing.enqueue("m")
    (job,) = await governing.pull()
    ack = governing.ack_of(job, next_action_at=clock.now() + 60 * SECOND)

    async def send() -> GovernanceJob:
        return await governing.service.ack(ack, ME)

    await _kill_after_commit(killer, send)
    await governing.store.close()
    governing = Governing(await open_store(url, clock, inline=True), clock)
    told = await governing.service.ack(ack, ME)
    wanted = GovernanceJobFilter(object_id="m", status="queued")
    (follow_up,) = (await governing.service.list_jobs(wanted, None, 10)).jobs
    assert (told.status, told.follow_up_id) == ("succeeded", follow_up.job_id)
    await governing.store.close()


async def _kill_after_commit(killer: Killer, call: Callable[[], Awaitable[Any]]) -> None:
    killer.after_commit = True
    with pytest.raises(Killed):
        await call()
