"""Workers for tests: quick to repeat, run beside the test, on a clock that can be pushed."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from ksana.base.clock import SystemClock
from ksana.client import CallBackoff, QueueClient, Worker
from tests.client.fake_queue import FakeQueue

QUICK = CallBackoff(first_sec=0.01, most_sec=0.05, tries=2)


def make_worker(server: FakeQueue, **options: Any) -> Worker:
    given = {
        "concurrency": 8,
        "ttl_sec": 30,
        "wait_sec": 0.2,
        "backoff": QUICK,
        "worker_id": "w1",
        **options,
    }
    return Worker(QueueClient(server.url, deadline_sec=5.0, backoff=QUICK), "shop", **given)


@contextlib.asynccontextmanager
async def at_work(worker: Worker) -> AsyncIterator[Worker]:
    """Run the worker; at the end stop it, and let its errors through."""
    running = asyncio.create_task(worker.run())
    try:
        yield worker
        worker.stop()
        await asyncio.wait_for(running, 20)
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
        await worker.client.close()


class SteppingClock(SystemClock):
    """The real clock, whose monotonic time a test can push ahead, as if the process had paused."""

    def __init__(self) -> None:
        self.ahead_us = 0

    def monotonic(self) -> int:
        return super().monotonic() + self.ahead_us
