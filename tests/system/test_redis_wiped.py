"""Redis is emptied, stopped and killed while all surfaces work on two instances over one database:
no task, run, queue job or governance job is lost or done twice (X3)."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.ground.child import wait_for
from tests.ground.node_peers import EchoNode, PlainSession
from tests.ground.postgres import Postgres
from tests.ground.process import Program
from tests.ground.redis import Redis
from tests.ground.target import Target

EVERY = timedelta(milliseconds=200)
CLIENT = {"timeout": 20, "trust_env": False}


@pytest.fixture
def pair(tmp_path: Path, redis: Redis, postgres: Postgres) -> Iterator[tuple[Program, Program]]:
    name = postgres.create_database()
    env = {"KSANA_COORDINATION": redis.url()}
    with (
        Program(tmp_path / "a", store=postgres.url(name), env=env) as a,
        Program(tmp_path / "b", store=postgres.url(name), env=env) as b,
    ):
        a.start()
        b.start()
        yield a, b
    postgres.drop_database(name)


class Work:
    """Callers and workers of every surface: what was promised, and what was done."""

    def __init__(self, a: Program, b: Program) -> None:
        self.a = a
        self.b = b
        self.is_over = False
        self.queued: list[str] = []
        self.done: Counter[str] = Counter()
        self.governed: list[str] = []
        self.acked: Counter[str] = Counter()

    async def submit(self, client: httpx.AsyncClient) -> None:
        while not self.is_over:
            body = {"addon_id": "a", "job_type": "t", "cost_units": 1}
            answer = await client.post("/api/scheduler/jobs/submit", json=body)
            assert answer.status_code == 201, answer.text
            self.queued.append(answer.json()["job"]["job_id"])

    async def claim(self, client: httpx.AsyncClient) -> None:
        ask = {"worker_id": "w", "limit": 20, "lease": True, "wait_sec": 1, "ttl_sec": 60}
        while not self.is_over or len(self.done) < len(self.queued):
            answer = await client.post("/api/scheduler/jobs/claim", json=ask)
            assert answer.status_code in (200, 204), answer.text
            found = answer.json() if answer.content else {}
            for job, lease in zip(found.get("jobs", []), found.get("leases", []), strict=True):
                released = await client.post(
                    f"/api/scheduler/lease/{lease['lease_id']}/release",
                    json={
                        "job_id": job["job_id"],
                        "lease_token": lease["lease_token"],
                        "status": "SUCCEEDED",
                    },
                )
                assert released.status_code == 200, released.text
                self.done[job["job_id"]] += 1

    async def enqueue(self, client: httpx.AsyncClient) -> None:
        while not self.is_over:
            body = {
                "object_type": "memory",
                "object_id": f"m{len(self.governed)}",
                "action": "decay",
                "run_at": "2026-01-01T00:00:00Z",
                "allow_past": True,
            }
            answer = await client.post("/scheduler/jobs", json=body)
            assert answer.status_code == 201, answer.text
            self.governed.append(answer.json()["job_id"])

    async def pull(self, client: httpx.AsyncClient) -> None:
        ask = {"worker_id": "w", "limit": 20, "lease_sec": 60, "wait_sec": 1}
        while not self.is_over or len(self.acked) < len(self.governed):
            answer = await client.post("/scheduler/jobs/pull", json=ask)
            assert answer.status_code == 200, answer.text
            for job in answer.json()["jobs"]:
                acked = await client.post(
                    f"/scheduler/jobs/{job['job_id']}/ack", json={"lease_token": job["lease_token"]}
                )
                assert acked.status_code == 200, acked.text
                self.acked[job["job_id"]] += 1

    async def run(self, harm: Callable[[], Awaitable[None]]) -> None:
        async with (
            httpx.AsyncClient(base_url=self.a.url(), **CLIENT) as a,
            httpx.AsyncClient(base_url=self.b.url(), **CLIENT) as b,
            asyncio.TaskGroup() as group,
        ):
            for work in (self.submit(a), self.claim(b), self.enqueue(b), self.pull(a)):
                group.create_task(work)
            await harm()
            self.is_over = True


def start_timer(program: Program, url: str) -> tuple[str, int]:
    made = program.post(
        "/jobs", {"http": {"url": url}, "schedule": {"kind": "every", "every": "200ms"}}
    )
    assert made.status_code == 201, made.text
    return str(made.json()["id"]), int(made.json()["task_id"])


def list_runs(program: Program, task_id: int) -> list[dict[str, Any]]:
    runs: list[dict[str, Any]] = []
    while len(runs) % 200 == 0:
        page = len(runs) // 200 + 1
        answer = program.get(f"/api/v1/tasks/{task_id}/runs?page={page}&page_size=200")
        found = answer.json()["items"]
        runs += found
        if not found:
            break
    return runs


def check_timer(program: Program, task_id: int, target: Target) -> None:
    """Every slot from the first to the last has one run, in order, and no run was called twice."""

    def is_at_rest() -> bool:
        return all(run["end_time"] is not None for run in list_runs(program, task_id))

    wait_for(is_at_rest, "the runs that were under way when the timer was paused are over")
    runs = list_runs(program, task_id)
    slots = sorted(datetime.fromisoformat(run["scheduled_time"]) for run in runs)
    assert len(slots) > 10
    assert {after - before for before, after in pairwise(slots)} == {EVERY}
    called = Counter(one.headers["x-ksana-run-id"] for one in target.requests("/tick"))
    good = [run["uid"] for run in runs if run["status"] == "SUCCESS"]
    assert [called[uid] for uid in good] == [1] * len(good)
    # A busy machine may be late for a slot; nothing may fail.
    assert {run["status"] for run in runs} <= {"SUCCESS", "SKIPPED"}
    assert len(good) > len(runs) // 2


async def live_through(
    pair: tuple[Program, Program], target: Target, harm: Callable[[], Awaitable[None]]
) -> None:
    a, b = pair
    node = EchoNode(lambda: a.port, "n", 8, work_sec=0.01)
    node.start()
    await asyncio.wait_for(node.is_ready.wait(), 20)
    timer, task_id = start_timer(a, target.url("/tick"))
    work = Work(a, b)
    asked = 0

    async def all_of_it() -> None:
        nonlocal asked
        asking = asyncio.create_task(ask_on(session))
        try:
            await harm()
        finally:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)

    async def ask_on(session: PlainSession) -> None:
        nonlocal asked
        while True:
            await session.ask(f"r{asked}", wait_sec=20)
            asked += 1
            await asyncio.sleep(0.02)

    try:
        async with PlainSession(b.port) as session:
            await work.run(all_of_it)
            await session.wait(asked, 60)  # each ended, or was refused
            assert all(len(told) == 1 for told in session.results.values())
            await session.ask("after", wait_sec=30)
            await session.wait(asked + 1, 40)
            assert session.results["after"][0]["success"] is True
    finally:
        await node.stop()
    assert a.post(f"/jobs/{timer}/pause").status_code == 200
    check_timer(a, task_id, target)
    assert work.done == Counter(work.queued)  # each once
    assert work.acked == Counter(work.governed)
    for program in (a, b):
        assert program.is_running


@pytest.mark.fault("F45")
@pytest.mark.spec("X3")
async def test_wiping_redis_under_load_loses_nothing_of_the_other_surfaces(
    pair: tuple[Program, Program], redis: Redis, target: Target
) -> None:
    async def harm() -> None:
        for _ in range(12):
            await asyncio.sleep(0.25)
            await asyncio.to_thread(redis.wipe)

    await live_through(pair, target, harm)


@pytest.mark.fault("F45")
@pytest.mark.spec("X3", "N15")
@pytest.mark.slow
async def test_redis_stopped_and_killed_under_load_loses_nothing_of_the_other_surfaces(
    pair: tuple[Program, Program], redis: Redis, target: Target
) -> None:
    async def harm() -> None:
        await asyncio.sleep(0.5)
        await asyncio.to_thread(redis.pause)
        await asyncio.sleep(10)
        await asyncio.to_thread(redis.resume)
        await asyncio.sleep(1)
        await asyncio.to_thread(redis.kill)
        await asyncio.sleep(10)
        await asyncio.to_thread(redis.heal)
        await asyncio.sleep(1)

    await live_through(pair, target, harm)
