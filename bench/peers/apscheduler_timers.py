"""APScheduler 3 on asyncio, in memory: each job a POST by aiohttp to an address of its own, nothing
dropped for being late."""

import asyncio
import datetime
import os
import time
from typing import Any

import aiohttp  # type: ignore[import-not-found, unused-ignore]
from apscheduler.schedulers.asyncio import (  # type: ignore[import-not-found, unused-ignore, import-untyped]
    AsyncIOScheduler,
)
from counting import act, tell  # type: ignore[import-not-found, unused-ignore]

TARGET = os.environ["PEER_TARGET"]


class Calls:
    """The calls of all jobs, over kept connections."""

    def __init__(self, in_flight: int) -> None:
        self.session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=in_flight))
        self.answered = self.failed = 0

    async def call(self, number: int) -> None:
        try:
            async with self.session.post(f"{TARGET}/{number}", json={"order": number}) as answer:
                assert answer.status == 200
                await answer.read()
            self.answered += 1
        except Exception:
            self.failed += 1


def scheduler_of() -> Any:
    return AsyncIOScheduler(
        timezone=datetime.UTC, job_defaults={"misfire_grace_time": None, "coalesce": True}
    )


async def burst(tasks: int, lead_sec: float, in_flight: int) -> None:
    calls, scheduler = Calls(in_flight), scheduler_of()
    at = int(time.time() + lead_sec) + 1
    when = datetime.datetime.fromtimestamp(at, datetime.UTC)
    for number in range(tasks):
        scheduler.add_job(calls.call, "date", run_date=when, args=[number])
    scheduler.start()
    late = time.time() > at - 0.2
    while calls.answered + calls.failed < tasks:
        await asyncio.sleep(0.005)
    tell(answered=calls.answered, failed=calls.failed, late=late, sec=time.time() - at)


async def recurring(tasks: int, step: int, seconds: int, in_flight: int) -> None:
    calls, scheduler, by_second = Calls(in_flight), scheduler_of(), dict[int, int]()
    first = int(time.time()) + 4 + tasks // 2000

    async def call(number: int) -> None:
        await calls.call(number)
        second = int(time.time()) - first
        by_second[second] = by_second.get(second, 0) + 1

    for number in range(tasks):
        start = datetime.datetime.fromtimestamp(first + number // step, datetime.UTC)
        scheduler.add_job(call, "cron", second="*", start_date=start, args=[number])
    scheduler.start()
    await asyncio.sleep(first + seconds - time.time())
    tell(by_second=by_second)
    os._exit(0)


async def main() -> None:
    await act({"burst": burst, "recurring": recurring})


asyncio.run(main())
