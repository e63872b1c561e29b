"""Builders and a driver for the JSON store: `python -m tests.store.timers URL COUNT CALLERS`
creates jobs and prints each answer as `ack JOB_ID`, `down MESSAGE` for one that was refused."""

import asyncio
import os
import sys
from collections.abc import Sequence
from typing import Any

from ksana.base.clock import Clock, SystemClock
from ksana.base.errors import StoreDownError
from ksana.base.instant import MINUTE, SECOND, Instant
from ksana.domain.schedule import make_every
from ksana.domain.tasks.records import Definition, RetryPolicy, Task
from ksana.service.tasks.definitions import NewTask, TaskService
from ksana.store.jsonfile import open_store
from ksana.store.sql import SqlStore


class NoHints:
    def due(self, at: Instant | None) -> None: ...

    def made(self, tasks: Sequence[Task]) -> None: ...

    def ready(self, host: str) -> None: ...

    def canceled(self, run_id: int) -> None: ...


def timer(now: Instant, **members: Any) -> Definition:
    """A plain timer, as T makes it."""
    plain: dict[str, Any] = {
        "name": "ping",
        "description": "",
        "schedule": make_every(5 * MINUTE, now=now),
        "target_url": "http://127.0.0.1:9/ping",
        "retry": RetryPolicy(3),
        "concurrency_policy": "SKIP",
        "misfire_policy": "SKIP",
    }
    return Definition(**{**plain, **members})


def task_service(store: SqlStore, clock: Clock) -> TaskService:
    return TaskService(store, clock, NoHints(), SECOND)


async def drive(url: str, count: int, callers: int) -> None:
    clock = SystemClock()
    store = await open_store(url, clock, serve=True)
    service = task_service(store, clock)
    os.write(1, b"ready\n")

    async def call() -> None:
        for _ in range(count):
            try:
                task = await service.create(NewTask("T", timer(clock.now())))
                os.write(1, f"ack {task.job_id}\n".encode())
            except StoreDownError as error:
                os.write(1, f"down {error.message}\n".encode())

    await asyncio.gather(*(call() for _ in range(callers)))
    health = store.health()
    os.write(1, f"health {health.ok} {health.reason}\n".encode())
    await store.close()


if __name__ == "__main__":
    asyncio.run(drive(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
