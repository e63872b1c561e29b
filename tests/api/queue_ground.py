"""The queue behind the real app, on a virtual clock and an inline store, with the sweep running."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from ksana.api.queue.routes import Queue
from ksana.base.clock import VirtualClock
from ksana.domain.queue.admission import Limits
from ksana.domain.queue.events import KINDS
from ksana.service.queue.explain import QueueExplainer
from ksana.service.queue.service import QueueService
from ksana.service.queue.stats import QueueStats
from tests.api.ground import client_of, open_house

SECOND = 1_000_000


class Ground:
    """A queue to talk to."""

    def __init__(
        self, client: httpx.AsyncClient, clock: VirtualClock, service: QueueService, store: Any
    ) -> None:
        self.http = client
        self.clock = clock
        self.service = service
        self.store = store

    async def post(self, path: str, status: int | None = None, /, **body: Any) -> Any:
        """POST under /api/scheduler; answer the JSON, or None where there is none."""
        reply = await self.http.post(f"/api/scheduler{path}", json=body)
        assert status is None or reply.status_code == status, reply.text
        return reply.json() if reply.content else None

    async def get(self, path: str, status: int = 200) -> Any:
        reply = await self.http.get(f"/api/scheduler{path}")
        assert reply.status_code == status, reply.text
        return reply.json()

    async def submit(self, **more: Any) -> dict[str, Any]:
        body = {"addon_id": "visuals", "job_type": "render", "cost_units": 10, **more}
        return (await self.post("/jobs/submit", 201, **body))["job"]

    async def claim(self, **more: Any) -> dict[str, Any] | None:
        answer = await self.post("/jobs/claim", None, **{"worker_id": "w1", **more})
        return None if answer is None else answer["job"]

    async def running(self, **more: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Submit, claim and lease one job."""
        await self.submit(**more)
        job = await self.claim()
        assert job is not None
        answer = await self.post("/lease/request", 200, job_id=job["job_id"], worker_id="w1")
        assert answer["approved"], answer
        return job, answer["lease"]

    async def job(self, job_id: str) -> dict[str, Any]:
        return (await self.get(f"/jobs/{job_id}"))["job"]

    async def events(self, job_id: str) -> list[str]:
        return [event["type"] for event in (await self.get(f"/jobs/{job_id}/events"))["events"]]

    async def used(self) -> int:
        return int((await self.get("/stats/snapshot"))["capacity"]["used"])


@contextlib.asynccontextmanager
async def open_queue(
    tmp_path: Path, limits: Limits | None = None, *, has_sweep: bool = True
) -> AsyncIterator[Ground]:
    clock = VirtualClock()
    async with open_house(tmp_path, clock=clock) as core:
        limits = limits or Limits()
        service = QueueService(core.store, clock, limits)
        queue = Queue(
            service,
            QueueStats(core.store, limits),
            QueueExplainer(core.store, limits, service.classes),
        )
        loops = [asyncio.create_task(service.leasing.pump.run())] if has_sweep else []
        async with client_of(core.app(*queue.routes())) as client:
            try:
                yield Ground(client, clock, service, core.store)
                await check_events(core.store)
            finally:
                for loop in loops:
                    loop.cancel()
                await asyncio.gather(*loops, return_exceptions=True)


async def check_events(store: Any) -> None:
    """Whatever a test did: each event of the queue has the members its kind says."""
    kinds = {(kind.entity, kind.name): kind for kind in KINDS}
    after = 0
    while events := await store.read(lambda tx: tx.events.list_after(after, 5000)):
        after = events[-1].id
        for event in events:
            if event.entity_type in ("JOB", "LEASE"):
                members = msgspec.json.decode(event.data)
                assert kinds[event.entity_type, event.type].allows(members), event


@pytest.fixture
async def queue(tmp_path: Path) -> AsyncIterator[Ground]:
    async with open_queue(tmp_path) as ground:
        yield ground


async def ask(queue: Ground, job_id: str, **more: Any) -> dict[str, Any]:
    answer: dict[str, Any] = await queue.post("/lease/request", 200, job_id=job_id, **more)
    return answer
