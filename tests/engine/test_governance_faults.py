"""Killed between any two statements: a job, its object, its follow-up and the audit agree."""

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ksana.base.clock import VirtualClock
from ksana.ports.governance.tables import GovernanceJobFilter
from ksana.store.sql import open_store
from ksana.store.sql.core.session import Session
from tests.ground.governance import ME, SECOND, Governing


class _Killed(BaseException):
    """The process ends here, as far as the database can tell."""


class Killer:
    """Ends the process before the n-th statement from now on."""

    def __init__(self) -> None:
        self.left: int | None = None
        self.count = 0

    def step(self) -> None:
        self.count += 1
        if self.left is not None:
            if self.left == 0:
                self.left = None
                raise _Killed
            self.left -= 1


@pytest.fixture
def killer(monkeypatch: pytest.MonkeyPatch) -> Iterator[Killer]:
    killer = Killer()
    for name in ("run", "insert", "run_rows", "run_each", "one", "all", "all_as", "raw"):
        original = getattr(Session, name)

        def stepped(self: Any, *args: Any, _original: Any = original, **more: Any) -> Any:
            killer.step()
            return _original(self, *args, **more)

        monkeypatch.setattr(Session, name, stepped)
    return killer


async def reopen(governing: Governing, url: str) -> Governing:
    """The same store in a new process. What the old one held open goes with it."""
    await governing.store.close()
    gc.collect()
    clock = governing.clock
    return Governing(await open_store(url, clock, inline=True), clock)


async def check_agreement(governing: Governing, jobs: list[Any], at: int) -> int:
    """A job that succeeded has its object and one follow-up; any other has neither. Answer how many
    succeeded."""
    done = 0
    for job in jobs:
        now = await governing.job(job)
        wanted = GovernanceJobFilter(object_id=job.object_id, status="queued")
        queued = (await governing.service.list_jobs(wanted, None, 10)).jobs
        found = await governing.store.read(lambda tx, key=job.key: tx.objects.find(key))
        if now.status == "succeeded":
            done += 1
            assert found is not None
            assert found.next_action_at == at
            assert [one.run_at for one in queued] == [at]
            assert queued[0].job_id == now.follow_up_id
        else:
            assert now.status == "running"
            assert found is None
            assert queued == []
    return done


@pytest.mark.spec("G3", "X10")
async def test_killed_between_any_two_statements_of_an_ack_all_of_it_agrees(
    tmp_path: Path, clock: VirtualClock, killer: Killer
) -> None:
    url = f"sqlite:///{tmp_path / 'ksana.db'}"
    governing = Governing(await open_store(url, clock, inline=True), clock)
    for number in range(3):
        await governing.enqueue(f"m{number}")
    jobs = await governing.pull(3)
    at = clock.now() + 3600 * SECOND
    acks = [governing.ack_of(job, next_action_at=at) for job in jobs]
    place = 0
    while True:
        killer.left = place
        try:
            await governing.service.ack_batch(acks, ME)
            break
        except _Killed:
            pass
        governing = await reopen(governing, url)
        assert await check_agreement(governing, jobs, at) == 0
        await governing.assert_audit_is_whole()
        place += 1
    killer.left = None
    assert place > 8
    assert await check_agreement(governing, jobs, at) == 3
    await governing.assert_audit_is_whole()
    await governing.store.close()


@pytest.mark.spec("G2", "G10")
async def test_killed_between_any_two_statements_of_a_pull_no_budget_is_lost(
    tmp_path: Path, clock: VirtualClock, killer: Killer
) -> None:
    url = f"sqlite:///{tmp_path / 'ksana.db'}"
    governing = Governing(await open_store(url, clock, inline=True), clock)
    await governing.put("u", epistemic_state="uncertain", status="active", risk_tier="high")
    job = await governing.enqueue("u", action="verify")
    place = 0
    while True:
        killer.left = place
        try:
            handed = await governing.pull()
            break
        except _Killed:
            pass
        governing = await reopen(governing, url)
        assert (await governing.job(job)).status == "queued"
        assert (await governing.object("u")).auto_verify_budget == 2
        place += 1
    killer.left = None
    assert place > 6
    assert [one.job_id for one in handed] == [job.job_id]
    assert (await governing.object("u")).auto_verify_budget == 1
    await governing.assert_audit_is_whole()
    await governing.store.close()
