"""A governor on a loop whose time jumps, over a server that answers as told."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

from ksana.client.governance_context import GovernanceContext
from ksana.client.governance_shapes import AckItem, FailItem, GovernanceJob, RenewItem
from ksana.client.governor import Governor
from ksana.client.stats import WorkerStats
from tests.client.fake_socket import EvenBackoff
from tests.ground.jumping import LoopClock, loop_time

LEASE_SEC = 60


def job(name: str = "j", **more: Any) -> GovernanceJob:
    members = {
        "job_id": name,
        "object_type": "memory",
        "object_id": f"o{name}",
        "action": "verify",
        "run_at": datetime(2026, 1, 1, tzinfo=UTC),
        "status": "running",
        "lease_token": f"k{name}",
        **more,
    }
    return GovernanceJob(**members)


class FakeGovernance:
    """The part of a GovernanceClient that a governor uses. A pull without an answer told
    beforehand waits as long as it was asked to; acks and failures are taken unless told."""

    base_url = "http://h"
    deadline_sec = 10.0

    def __init__(self) -> None:
        self.pulls: list[dict[str, Any]] = []
        self.pulled_at: list[float] = []
        self.jobs: list[Any] = []
        self.acked: list[list[AckItem]] = []
        self.failed: list[list[FailItem]] = []
        self.renewed: list[tuple[list[RenewItem], float]] = []
        self.ack_answers: list[Any] = []
        self.fail_answers: list[Any] = []
        self.renew_answers: list[Any] = []
        self.is_closed = False

    async def pull(self, worker_id: str, **how: Any) -> list[GovernanceJob]:
        self.pulls.append({"worker_id": worker_id, **how})
        self.pulled_at.append(loop_time())
        if not self.jobs:
            await asyncio.sleep(how["wait_sec"])
            return []
        answer = self.jobs.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return list(answer)

    async def ack_batch_briefly(self, items: list[AckItem]) -> list[Any]:
        self.acked.append(list(items))
        return _answer(self.ack_answers, items)

    async def fail_batch(self, items: list[FailItem]) -> list[Any]:
        self.failed.append(list(items))
        return _answer(self.fail_answers, items)

    async def renew_batch(self, items: list[RenewItem], *, lease_sec: float) -> list[Any]:
        self.renewed.append((list(items), lease_sec))
        return _answer(self.renew_answers, items)

    async def close(self) -> None:
        self.is_closed = True


def _answer(told: list[Any], items: list[Any]) -> list[Any]:
    answer = told.pop(0) if told else [None] * len(items)
    if isinstance(answer, Exception):
        raise answer
    return list(answer)


class NoRenewals:
    """Takes the place of the thread that renews."""

    def __init__(self) -> None:
        self.life: list[str] = []

    def start(self) -> None:
        self.life.append("started")

    async def stop(self) -> None:
        self.life.append("stopped")


class QuietGovernor(Governor):
    """A governor whose leases nobody renews."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.thread = NoRenewals()

    def _start_renewals(self, executor: Any) -> Any:
        self.jobs.start(executor)
        return self.thread


class GovernorHouse:
    """A governor whose handler waits for the gate and answers what it is told."""

    def __init__(self, **options: Any) -> None:
        self.server = FakeGovernance()
        self.lost: list[tuple[str, str]] = []
        given = {
            "worker_id": "w",
            "concurrency": 4,
            "lease_sec": LEASE_SEC,
            "backoff": EvenBackoff(),
            "clock": LoopClock(),
            "on_lost": lambda job, why: self.lost.append((job.job_id, why)),
            **options,
        }
        self.governor = QuietGovernor(self.server, **given)
        self.gate = asyncio.Event()
        self.seen: list[GovernanceContext] = []
        self.answer: Any = None
        self.governor.add_action("verify", self.verify)
        self.running: asyncio.Task[WorkerStats] | None = None

    async def verify(self, ctx: GovernanceContext) -> Any:
        self.seen.append(ctx)
        await self.gate.wait()
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer

    def start(self, *, burst: bool = False) -> None:
        self.running = asyncio.create_task(self.governor.run(burst=burst))

    async def end(self) -> WorkerStats:
        assert self.running is not None
        return await self.running

    @property
    def counts(self) -> dict[str, int]:
        """What was counted, without the zeros."""
        stats = self.governor.stats
        counts = {name: getattr(stats, name) for name in WorkerStats.__slots__}
        return {name: count for name, count in counts.items() if count}


@contextlib.asynccontextmanager
async def at_work(**options: Any) -> AsyncIterator[GovernorHouse]:
    """A governor that pulls; in the end it is stopped."""
    house = GovernorHouse(**options)
    house.start()
    yield house
    house.governor.stop()
    await house.end()
