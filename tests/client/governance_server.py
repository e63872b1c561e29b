"""Governance behind the real server, on a thread of its own: a worker under test may block its own
event loop. A proxy in front of it fails on command."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

from ksana.api.governance.routes import Governance
from ksana.client import CallBackoff, GovernanceClient, Governor
from ksana.domain.governance.jobs import AttemptFailure
from ksana.domain.governance.records import GovernanceJob, Rules
from ksana.service.governance.explain import GovernanceExplainer
from ksana.service.governance.figures import GovernanceStats
from tests.api.ground import open_house
from tests.api.socket_ground import serving
from tests.ground.background import BackgroundLoop
from tests.ground.governance import ME, Governing
from tests.ground.proxy import FaultProxy

T = TypeVar("T")
QUICK = CallBackoff(first_sec=0.01, most_sec=0.05)


class GovernanceServer:
    """The server. `governing` asks it past the network, by `do`."""

    def __init__(self, folder: Path, rules: Rules | None = None) -> None:
        self._folder = folder
        self._rules = rules or Rules()
        self._background = BackgroundLoop("governance-server")
        self._stack = contextlib.AsyncExitStack()
        self.governing: Governing
        self._background.call(self._start(), 30)
        self.proxy = FaultProxy("127.0.0.1", self.port)

    async def _start(self) -> None:
        core = await self._stack.enter_async_context(open_house(self._folder))
        self.governing = Governing(core.store, core.clock, self._rules)
        service = self.governing.service
        routes = Governance(
            service,
            GovernanceExplainer(core.store, self._rules),
            self.governing.audit,
            GovernanceStats(core.store),
        ).routes()
        for run in (service.sweep.pump.run, service.waiting.watch):
            loop = asyncio.create_task(run())
            self._stack.callback(loop.cancel)
        server = await self._stack.enter_async_context(serving(core.app(*routes), core))
        self.port: int = server.servers[0].sockets[0].getsockname()[1]
        self._stack.callback(service.waiting.close)

    def close(self) -> None:
        self.proxy.close()
        self._background.call(self._stack.aclose(), 30)
        self._background.close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.proxy.port}"

    async def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Run something over there."""
        return await asyncio.to_thread(self._background.call, work)

    async def enqueue(self, object_id: str = "m1", **more: Any) -> GovernanceJob:
        return await self.do(self.governing.enqueue(object_id, **{"action": "verify", **more}))

    async def job(self, job: GovernanceJob) -> GovernanceJob:
        return await self.do(self.governing.job(job))

    async def object(self, object_id: str = "m1") -> Any:
        return await self.do(self.governing.object(object_id))

    async def take_away(self, job: GovernanceJob) -> None:
        """Somebody else ends the attempt, without a token."""
        failure = AttemptFailure(job_id=job.job_id, error="taken away", retry_delay_us=10**9)
        await self.do(self.governing.service.fail(failure, ME))


def make_governor(
    server: GovernanceServer, *, tries: int | None = None, **options: Any
) -> Governor:
    backoff = CallBackoff(first_sec=0.01, most_sec=0.05, tries=tries)
    given = {
        "worker_id": "w1",
        "concurrency": 4,
        "lease_sec": 3,
        "wait_sec": 0.2,
        "backoff": QUICK,
        **options,
    }
    return Governor(GovernanceClient(server.url, deadline_sec=5.0, backoff=backoff), **given)


async def until(is_so: Callable[[], object], within_sec: float = 15) -> None:
    """Wait for a fact."""
    async with asyncio.timeout(within_sec):
        while not is_so():
            await asyncio.sleep(0.005)


@contextlib.asynccontextmanager
async def at_work(governor: Governor) -> AsyncIterator[Governor]:
    """Run it; at the end stop it, and let its errors through."""
    running = asyncio.create_task(governor.run())
    try:
        yield governor
        governor.stop()
        await asyncio.wait_for(running, 20)
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
        await governor.client.close()


async def work_off(governor: Governor) -> Governor:
    await governor.run(burst=True)
    await governor.client.close()
    return governor
