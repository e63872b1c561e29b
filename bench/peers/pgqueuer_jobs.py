"""PgQueuer on asyncpg. A batch of 100 is in flight at most."""

import asyncio
import os
from typing import Any

import asyncpg  # type: ignore[import-not-found, unused-ignore]
from counting import (  # type: ignore[import-not-found, unused-ignore]
    Counter,
    Starts,
    act,
    add_batches,
    add_one_by_one,
    tell,
)
from pgqueuer.db import AsyncpgPoolDriver  # type: ignore[import-not-found, unused-ignore]
from pgqueuer.qm import QueueManager  # type: ignore[import-not-found, unused-ignore]
from pgqueuer.queries import Queries  # type: ignore[import-not-found, unused-ignore]

STORE = os.environ["PEER_STORE"]


async def driver_of(*, install: bool = False) -> Any:
    driver = AsyncpgPoolDriver(await asyncpg.create_pool(STORE, min_size=4, max_size=20))
    if install:
        await Queries(driver).install()
    return driver


async def fill(jobs: int, batch: int) -> None:
    queries = Queries(await driver_of(install=True))
    await add_batches(
        jobs,
        batch,
        lambda size: queries.enqueue(["noop"] * size, [b'{"n":1}'] * size, [0] * size),
    )


async def add(seconds: float) -> None:
    queries = Queries(await driver_of(install=True))
    await add_one_by_one(seconds, lambda: queries.enqueue("noop", b'{"n":1}', 0))


async def drain(in_flight: int) -> None:
    manager, counter = QueueManager(Queries(await driver_of())), Counter()

    @manager.entrypoint("noop")
    async def noop(job: Any) -> None:
        counter.count()

    async with asyncio.TaskGroup() as group:
        group.create_task(counter.tell_often())
        group.create_task(manager.run(batch_size=in_flight))


async def latency(count: int) -> None:
    driver = await driver_of(install=True)
    queries, starts = Queries(driver), Starts(count)
    manager = QueueManager(queries)

    @manager.entrypoint("noop")
    async def noop(job: Any) -> None:
        starts.seen(int(job.payload))

    running = asyncio.create_task(manager.run(batch_size=10))
    await asyncio.sleep(0.5)
    await starts.time(lambda number: queries.enqueue("noop", str(number).encode(), 0))
    running.cancel()
    os._exit(0)


async def hold(in_flight: int) -> None:
    manager = QueueManager(Queries(await driver_of()))

    @manager.entrypoint("noop")
    async def noop(job: Any) -> None:
        await asyncio.Event().wait()

    tell(ready=True)
    await manager.run(batch_size=in_flight)


asyncio.run(act({"fill": fill, "add": add, "drain": drain, "latency": latency, "hold": hold}))
