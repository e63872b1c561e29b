"""Three instances over one database, sixteen pullers over HTTP, one instance killed midway: each
job is acknowledged once, and the audit verifies.

A puller whose instance is gone goes to another. What it was handed in an answer that never came is
handed out again when its lease is over.
"""

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ksana.base.clock import SystemClock
from ksana.client import AckItem, ApiError, CallBackoff, ClientError, GovernanceClient
from ksana.domain.governance.jobs import NewGovernanceJob
from ksana.engine.governance.ending import new_job_ids
from ksana.service.governance.transactions import enqueue_job
from ksana.store.sql import open_store
from tests.ground.fleet import fleet
from tests.ground.governance import ME, SECOND, Governing
from tests.ground.process import Program, run_cli

PULLERS, BATCH, LEASE_SEC = 16, 20, 5

Ask = Callable[[str], list[Any]]


@pytest.fixture(params=["mariadb", "postgres"])
def shared(request: pytest.FixtureRequest) -> Iterator[tuple[str, Ask]]:
    """A fresh database that any number of instances may share: its URL, and a way to ask it."""
    server = request.getfixturevalue(request.param)
    name = server.create_database()

    def ask(statement: str) -> list[Any]:
        with (
            contextlib.closing(server.connect(name)) as connection,
            contextlib.closing(connection.cursor()) as cursor,
        ):
            cursor.execute(statement)
            return list(cursor.fetchall())

    yield server.url(name), ask
    server.heal()
    server.drop_database(name)


def enqueue_all(tx: Any, numbers: range, governing: Governing) -> None:
    for number, job_id in zip(numbers, new_job_ids(tx.now, len(numbers)), strict=True):
        new = NewGovernanceJob(
            job_id=job_id,
            object_type="memory",
            object_id=f"m{number}",
            action="decay",
            urgency=number % 3,
            run_at=tx.now - number % 7 * SECOND,
            is_past_allowed=True,
        )
        enqueue_job(tx, new, governing.service.rules, ME)


class Pullers:
    """Sixteen workers, and what they were told."""

    def __init__(self, programs: list[Program], jobs: int) -> None:
        self.programs = programs
        self.jobs = jobs
        self.acked: Counter[str] = Counter()
        self.tokens: set[str] = set()
        self.refused: list[str] = []
        self.moves = 0

    @property
    def is_done(self) -> bool:
        return len(self.acked) >= self.jobs

    async def work(self, number: int) -> None:
        at = number
        backoff = CallBackoff(first_sec=0.02, most_sec=0.2, tries=2)
        while not self.is_done:
            program = self.programs[at % len(self.programs)]
            async with GovernanceClient(
                program.url(), deadline_sec=10.0, backoff=backoff
            ) as client:
                try:
                    await self._work_at(client, f"w{number}")
                except ClientError:  # that instance does not answer: the next one
                    self.moves += 1
                    at += random.randrange(1, len(self.programs))

    async def _work_at(self, client: GovernanceClient, name: str) -> None:
        while not self.is_done:
            jobs = await client.pull(name, limit=BATCH, lease_sec=LEASE_SEC, wait_sec=0.5)
            tokens = {job.lease_token or "" for job in jobs}
            assert len(tokens) == len(jobs) and not tokens & self.tokens, "a token comes again"
            self.tokens |= tokens
            if jobs:
                acks = [
                    AckItem(job_id=job.job_id, lease_token=job.lease_token, worker_id=name)
                    for job in jobs
                ]
                await self._ack(client, acks)

    async def _ack(self, client: GovernanceClient, acks: list[AckItem]) -> None:
        """Until somebody answers, whichever instance that is."""
        try:
            answers = await client.ack_batch(acks)
        except ClientError:
            self.moves += 1
            survivor = self.programs[0].url()
            async with GovernanceClient(survivor, deadline_sec=30.0) as other:
                answers = await other.ack_batch(acks)
        for ack, answer in zip(acks, answers, strict=True):
            if isinstance(answer, ApiError):
                self.refused.append(answer.code)
            else:
                self.acked[ack.job_id] += 1


async def pull_and_kill(url: str, programs: list[Program], jobs: int) -> Pullers:
    store = await open_store(url, SystemClock())
    governing = Governing(store)
    for start in range(0, jobs, 500):
        numbers = range(start, min(start + 500, jobs))
        await store.transact(enqueue_all, numbers, governing)
    await store.close()
    pullers = Pullers(programs, jobs)
    tasks = [asyncio.create_task(pullers.work(number)) for number in range(PULLERS)]
    while len(pullers.acked) < jobs // 10:  # early: most of them are still to be pulled then
        await asyncio.sleep(0.002)
        for task in tasks:
            assert not task.done() or task.exception() is None, task.exception()
    await asyncio.to_thread(programs[1].kill9)
    await asyncio.gather(*tasks)
    return pullers


def check(pullers: Pullers, ask: Ask, jobs: int) -> None:
    assert set(pullers.acked.values()) == {1}
    assert pullers.moves > 0
    assert set(pullers.refused) <= {"LEASE_LOST"}
    statuses = ask("SELECT status, COUNT(*) FROM governance_jobs GROUP BY status")
    assert statuses == [("succeeded", jobs)]
    entries: dict[str, Counter[str]] = {}
    for job_id, kind, count in ask(
        "SELECT job_id, event_type, COUNT(*) FROM audit_events WHERE job_id IS NOT NULL"
        " GROUP BY job_id, event_type"
    ):
        entries.setdefault(job_id, Counter())[kind] = int(count)
    assert len(entries) == jobs
    for job_id, counts in entries.items():
        assert counts["job.enqueue"] == counts["job.ack"] == 1, job_id
        # Handed out again only after the lease of the one before was over.
        assert counts["job.pull"] == 1 + counts["job.expire"], job_id
    attempts = dict(ask("SELECT attempt, COUNT(*) FROM governance_jobs GROUP BY attempt"))
    expired = sum(counts["job.expire"] for counts in entries.values())
    assert sum(attempt * count for attempt, count in attempts.items()) == expired


def run_fleet(tmp_path: Path, shared: tuple[str, Ask], jobs: int) -> None:
    url, ask = shared
    with fleet(tmp_path, url, 3) as programs:
        pullers = asyncio.run(pull_and_kill(url, programs, jobs))
        assert programs[0].get("/readyz").status_code == 200
        check(pullers, ask, jobs)
        # Beside the two that live.
        code, printed = run_cli(
            "audit", "verify", env={"KSANA_STORE": url}, cwd=tmp_path, within_s=240
        )
        assert code == 0, printed
        assert "The audit is whole" in printed
        metrics = programs[2].get("/scheduler/metrics").json()
        assert (metrics["jobs_due_count"], metrics["dead_letter_count"]) == (0, 0)


@pytest.mark.fault("F09")
@pytest.mark.timeout(180)
@pytest.mark.spec("G2", "G3", "G5", "G12", "X4")
def test_each_job_is_acknowledged_once_although_an_instance_is_killed(
    tmp_path: Path, shared: tuple[str, Ask]
) -> None:
    run_fleet(tmp_path, shared, 1_000)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.spec("G2", "G3", "G5", "G12", "X4")
def test_twenty_thousand_jobs_are_acknowledged_once_although_an_instance_is_killed(
    tmp_path: Path, shared: tuple[str, Ask]
) -> None:
    run_fleet(tmp_path, shared, 20_000)
