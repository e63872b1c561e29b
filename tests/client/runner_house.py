"""The jobs a worker holds, with heartbeats and results that are only noted, on virtual time."""

import asyncio
from typing import Any

from ksana.base.clock import VirtualClock
from ksana.base.instant import SECOND
from ksana.client.context import JobContext
from ksana.client.handlers import Registered
from ksana.client.job_runner import JobRunner
from ksana.client.shapes import Job, ReleaseItem
from ksana.client.stats import WorkerStats
from ksana.client.transport import CallBackoff

TTL = 30 * SECOND


class Beats:
    """The heartbeats, as far as the runner asks them."""

    def __init__(self) -> None:
        self.kept: dict[str, int] = {}
        self.wakes = 0

    def wake(self) -> None:
        self.wakes += 1


class Sent:
    """Where results go."""

    def __init__(self) -> None:
        self.items: list[ReleaseItem] = []
        self.is_drained = True
        self.length = 0

    def __len__(self) -> int:
        return self.length

    def add(self, held: Any, item: ReleaseItem) -> None:
        self.items.append(item)

    async def drain(self, within_sec: float) -> bool:
        return self.is_drained

    async def abandon(self) -> list[Any]:
        return [1, 2]


class House:
    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.stats = WorkerStats()
        self.lost: list[tuple[str, str]] = []
        self.gate = asyncio.Event()
        self.seen: list[JobContext] = []
        self.beats, self.sent = Beats(), Sent()
        self.jobs = JobRunner(
            None,  # type: ignore[arg-type]
            "w",
            {"t": Registered("t", self.handler, None, True, None)},
            self.stats,
            clock,
            concurrency=2,
            ttl_us=TTL,
            backoff=CallBackoff(),
            on_lost=lambda job, why: self.lost.append((job.job_id, why)),
        )
        self.jobs.start(None, self.beats)  # type: ignore[arg-type]
        self.jobs._releases = self.sent  # type: ignore[assignment]

    async def handler(self, ctx: JobContext) -> str:
        self.seen.append(ctx)
        await self.gate.wait()
        return "done"

    def begin(self, name: str = "j", job_type: str = "t", **more: Any) -> Any:
        members = {"lease_id": f"l{name}", "lease_token": "k", **more}
        job = Job(job_id=name, addon_id="a", job_type=job_type, state="RUNNING", **members)
        self.jobs.begin(job, self.clock.monotonic())
        return self.jobs.held.get(f"l{name}")
