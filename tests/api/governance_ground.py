"""Governance behind the real app, on a virtual clock and an inline store, with its sweep."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx

from ksana.api.governance.routes import Governance
from ksana.base.clock import VirtualClock
from ksana.base.instant import format_instant
from ksana.domain.governance.records import Rules
from ksana.service.governance.audit import AuditService
from ksana.service.governance.explain import GovernanceExplainer
from ksana.service.governance.figures import GovernanceStats
from ksana.service.governance.service import GovernanceService
from tests.api.ground import client_of, open_house

SECOND = 1_000_000


class GovernanceGround:
    """Governance to talk to."""

    def __init__(
        self,
        client: httpx.AsyncClient,
        clock: VirtualClock,
        service: GovernanceService,
        store: Any,
    ) -> None:
        self.http = client
        self.clock = clock
        self.service = service
        self.store = store
        self.audit = AuditService(store)

    def at(self, seconds: float = 0) -> str:
        """A time so many seconds from now."""
        return format_instant(self.clock.now() + round(seconds * SECOND))

    async def ask(self, method: str, path: str, status: int, body: Any = None) -> Any:
        sent = {} if body is None else {"json": body}
        reply = await self.http.request(method, f"/scheduler{path}", **sent)
        assert reply.status_code == status, reply.text
        return reply.json() if reply.content else None

    async def post(self, path: str, status: int = 200, /, **body: Any) -> Any:
        return await self.ask("POST", path, status, body)

    async def get(self, path: str, status: int = 200) -> Any:
        return await self.ask("GET", path, status)

    async def enqueue(self, object_id: str = "m1", status: int = 201, /, **more: Any) -> Any:
        body = {
            "object_type": "memory",
            "object_id": object_id,
            "action": "decay",
            "run_at": self.at(),
        }
        return await self.post("/jobs", status, **{**body, **more})

    async def pull(self, limit: int = 10, **more: Any) -> list[dict[str, Any]]:
        body = {"worker_id": "w1", "limit": limit, **more}
        jobs: list[dict[str, Any]] = (await self.post("/jobs/pull", 200, **body))["jobs"]
        return jobs

    async def ack(self, job: dict[str, Any], status: int = 200, /, **more: Any) -> Any:
        body = {"result": "succeeded", "lease_token": job["lease_token"], **more}
        return await self.post(f"/jobs/{job['job_id']}/ack", status, **body)

    async def put(self, path: str, status: int = 201, /, **body: Any) -> Any:
        return await self.ask("PUT", f"/objects/{path}", status, body)

    async def patch(self, path: str, status: int = 200, /, **body: Any) -> Any:
        return await self.ask("PATCH", f"/objects/{path}", status, body)

    async def gate(self, state: str, gate: str = "persona", **more: Any) -> Any:
        return await self.ask("PUT", f"/gates/{gate}", 200, {"state": state, **more})


@contextlib.asynccontextmanager
async def open_governance(
    tmp_path: Path, rules: Rules | None = None, *, has_sweep: bool = True
) -> AsyncIterator[GovernanceGround]:
    clock = VirtualClock()
    async with open_house(tmp_path, clock=clock) as core:
        rules = rules or Rules()
        service = GovernanceService(core.store, clock, rules)
        routes = Governance(
            service,
            GovernanceExplainer(core.store, rules),
            AuditService(core.store),
            GovernanceStats(core.store),
        ).routes()
        loops = [asyncio.create_task(service.sweep.pump.run())] if has_sweep else []
        async with client_of(core.app(*routes)) as client:
            try:
                yield GovernanceGround(client, clock, service, core.store)
            finally:
                for loop in loops:
                    loop.cancel()
                await asyncio.gather(*loops, return_exceptions=True)
