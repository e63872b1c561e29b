"""A queue on the virtual clock: short ways to submit, claim and look at what is kept."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from ksana.base.clock import VirtualClock
from ksana.base.instant import SECOND, Instant
from ksana.domain.leases import Proof
from ksana.domain.queue.admission import Limits
from ksana.domain.queue.attempt_ends import Release
from ksana.domain.queue.classes import Wants, class_of
from ksana.domain.queue.effects import METRICS
from ksana.domain.queue.jobs import Job, Lease, LeasedJob, NewJob
from ksana.service.queue.claims import Claim
from ksana.service.queue.service import QueueService
from ksana.store.sql import SqlStore, open_store

TTL = 30 * SECOND
TOTAL = 100


class Queueing:
    """The service, with what tests ask again and again."""

    def __init__(self, store: SqlStore, clock: VirtualClock) -> None:
        self.store = store
        self.clock = clock
        self.service = QueueService(store, clock, Limits(TOTAL))

    def new_job(self, **members: Any) -> NewJob:
        given: dict[str, Any] = {
            "job_id": self.service.new_id(),
            "priority": "NORMAL",
            "job_class": class_of("a", "t", members.pop("cost_units", 3), ()),
            "constraints_json": "{}",
            "payload_json": "{}",
            "client_request_id": None,
            "max_attempts": 1,
            "run_at": None,
            "fairness_key": None,
        }
        return NewJob(**given | members)

    async def submit(self, **members: Any) -> Job:
        return await self.service.submit(self.new_job(**members))

    async def claim(self, limit: int = 1) -> list[Job]:
        """Claim jobs without leases."""
        return (await self.service.claim(Claim("w", Wants(), limit))).jobs

    async def start(self, limit: int = 1) -> list[Lease]:
        """Claim jobs and lease them at once."""
        claim = Claim("w", Wants(), limit, True, TTL / SECOND)
        return (await self.service.claim(claim)).leases

    async def release(self, lease: Lease, status: str = "SUCCEEDED", **members: Any) -> LeasedJob:
        proof = Proof(token=lease.lease_token)
        return await self.service.release(Release(lease.lease_id, status, proof=proof, **members))

    async def job(self, job: Job | str) -> Job:
        return await self.service.get_job(job if isinstance(job, str) else job.job_id)

    async def events(self, job: Job | str) -> list[str]:
        job_id = job if isinstance(job, str) else job.job_id
        return [event.type for event in await self.service.list_events(job_id)]

    async def counts(self, since: Instant = 0) -> dict[str, int]:
        """Whatever was counted and is not 0, but histograms."""
        sums = {
            name: await self.store.read(lambda tx, of: tx.series.sum_since([of], since)[of], name)
            for name in METRICS
            if name not in ("queue.run", "queue.wait")
        }
        return {name.removeprefix("queue."): count for name, count in sums.items() if count}

    async def gauges(self) -> tuple[int, int, int]:
        """(queued, running, arrivals)."""
        read = await self.store.read(lambda tx: tx.gauges.read())
        return read.queued, read.running, read.arrivals

    async def used(self) -> tuple[int, int]:
        """(units, leases) that the capacity says are used."""
        capacity = await self.store.read(lambda tx: tx.capacity.read(TOTAL))
        return capacity.used, capacity.active


@asynccontextmanager
async def open_queue(tmp_path: Path, clock: VirtualClock) -> AsyncIterator[Queueing]:
    """A queue on a fresh store."""
    store = await open_store(f"sqlite:///{tmp_path / 'ksana.db'}", clock, inline=True)
    yield Queueing(store, clock)
    await store.close()
