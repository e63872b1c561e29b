"""Runs that are done by node jobs, in real processes that are killed: none is lost or stuck, no
attempt is submitted twice, and what was lost is written down.

Two kills by default; KSANA_FULL=1 makes it twenty.
"""

import asyncio
import json
import random
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.ground.mariadb import MariaDB
from tests.ground.node_peers import EchoNode
from tests.ground.postgres import Postgres
from tests.ground.process import Program
from tests.ground.redis import Redis
from tests.ground.tasks import FULL, disable, get_run, list_runs, trigger

KILLS = 20 if FULL else 2
RUNS_A_KILL = 15
OPEN = ("SCHEDULED", "RUNNING", "RETRYING")

Json = dict[str, Any]


def make_task(program: Program, name: str, every: str = "24h", **members: Any) -> Json:
    answer = program.post(
        "/api/v1/tasks",
        {
            "name": name,
            "schedule": {"kind": "every", "every": every},
            "type": "node",
            "node": {"model": "echo", "payload": {"run": "{{run_uid}}"}, "wait_sec": 30},
            "concurrency_policy": "PARALLEL",
            "misfire_policy": "SKIP",
            **members,
        },
    )
    assert answer.status_code == 201, answer.text
    made: Json = answer.json()
    return made


async def until(is_so: Any, what: str, within_s: float = 60.0) -> None:
    async with asyncio.timeout(within_s):
        while not await asyncio.to_thread(is_so):
            await asyncio.sleep(0.1)


def count_runs(program: Program) -> int:
    return int(program.get("/api/v1/runs", params={"page_size": 1}).json()["total"])


def list_created(program: Program) -> list[str]:
    """The ids of all node jobs that were ever made."""
    ids: list[str] = []
    after = 0
    while True:
        params = {"type": "NODE_JOB_CREATED", "after": after, "limit": 500}
        page = program.get("/api/v1/events", params=params).json()
        ids += [event["entity_id"] for event in page["events"]]
        if len(page["events"]) < 500:
            return ids
        after = page["next_after"]


@pytest.mark.timeout(600)
@pytest.mark.spec("B5", "C19", "X10")
async def test_kill_9_while_runs_wait_for_node_jobs_leaves_none_stuck(program: Program) -> None:
    await asyncio.to_thread(program.start)
    nodes = [EchoNode(lambda: program.port, f"n{n}", slots=16, work_sec=0.15) for n in range(2)]
    for node in nodes:
        node.start()
        await node.is_ready.wait()
    retry = {"max_retries": 5, "initial_delay": 0.1}
    tasks = [
        await asyncio.to_thread(make_task, program, f"t{n}", "200ms", retry_policy=retry)
        for n in range(3)
    ]
    dice = random.Random(3)
    for _ in range(KILLS):
        seen = await asyncio.to_thread(count_runs, program)
        await until(lambda: count_runs(program) >= seen + RUNS_A_KILL, "runs were made")
        await asyncio.sleep(dice.random() * 0.1)
        await asyncio.to_thread(program.kill9)
        await asyncio.to_thread(program.start)
    await asyncio.to_thread(disable, program, tasks)
    await until(
        lambda: not any(list_runs(program, status=state) for state in OPEN), "no run is open"
    )
    runs = [
        run for run in await asyncio.to_thread(list_runs, program) if run["status"] != "SKIPPED"
    ]
    for run in runs:
        assert run["status"] == "SUCCESS", run
        assert json.loads(run["response_body"]) == {"run": run["uid"]}
        numbers = [one["attempt"] for one in run["attempts"]]
        assert numbers == list(range(1, run["attempt"] + 1))
    lost = sum(one["status"] == "LOST" for run in runs for one in run["attempts"])
    assert lost > 0, "a kill in the middle of a job costs its attempt"
    created = Counter(await asyncio.to_thread(list_created, program))
    assert max(created.values()) == 1, "no attempt is submitted twice"
    for node in nodes:
        await node.stop()
    assert await asyncio.to_thread(program.terminate) == 0


@pytest.fixture(params=["mariadb", "postgres"])
def shared_url(request: pytest.FixtureRequest) -> Iterator[str]:
    server: MariaDB | Postgres = request.getfixturevalue(request.param)
    name = server.create_database()
    yield server.url(name)
    server.drop_database(name)


async def take_over(tmp_path: Path, store: str, redis: Redis, end_it: Any, within_s: float) -> None:
    """Runs wait on one instance for jobs of a node on the other; the one ends in the middle."""
    env = {
        "KSANA_COORDINATION": redis.url(),
        "KSANA_SERVER_GRACEFUL_TIMEOUT": "1s",
        "KSANA_NODES_PRESENCE_TTL": "4s",
    }
    with (
        Program(tmp_path / "a", store=store, env=env) as a,
        Program(tmp_path / "b", store=store, env=env) as b,
    ):
        await asyncio.to_thread(a.start)
        node = EchoNode(lambda: a.port, "n", slots=32, work_sec=4.0)
        node.start()
        await node.is_ready.wait()
        task = await asyncio.to_thread(make_task, a, "t")
        await asyncio.to_thread(a.pause)  # only the other one takes the runs
        await asyncio.to_thread(b.start)
        ids = [await asyncio.to_thread(trigger, b, task) for _ in range(20)]
        held = [(await asyncio.to_thread(get_run, b, run_id))["status"] for run_id in ids]
        await asyncio.to_thread(a.resume)
        await until(lambda: all_running(b, ids), f"all are handed over, not {held}", 30)
        await until(lambda: len(node.running) + node.done >= 20, "all have begun", 30)
        await asyncio.to_thread(end_it, b)
        await until(lambda: all_ended(a, ids), "all have ended", within_s)
        runs = [await asyncio.to_thread(get_run, a, run_id) for run_id in ids]
        assert [run["status"] for run in runs] == ["SUCCESS"] * 20
        assert {run["attempt"] for run in runs} == {1}
        created = Counter(await asyncio.to_thread(list_created, a))
        assert sorted(created) == sorted(run["handed_to"]["job_id"] for run in runs)
        assert set(created.values()) == {1}
        assert node.done == 20, "each was done once"
        await node.stop()


def all_running(program: Program, ids: list[int]) -> bool:
    return all(get_run(program, run_id)["status"] == "RUNNING" for run_id in ids)


def all_ended(program: Program, ids: list[int]) -> bool:
    return all(get_run(program, run_id)["final_status"] is not None for run_id in ids)


@pytest.mark.timeout(300)
@pytest.mark.slow
@pytest.mark.spec("B5", "C19", "X3", "X4")
async def test_after_kill_9_another_instance_waits_for_the_same_node_jobs(
    tmp_path: Path, shared_url: str, redis: Redis
) -> None:
    await take_over(tmp_path, shared_url, redis, lambda program: program.kill9(), 60)


@pytest.mark.timeout(300)
@pytest.mark.slow
@pytest.mark.spec("B5", "X3", "X4", "X14")
async def test_after_a_shutdown_another_instance_waits_for_the_same_node_jobs(
    tmp_path: Path, postgres: Postgres, redis: Redis
) -> None:
    name = postgres.create_database()
    await take_over(
        tmp_path,
        postgres.url(name),
        redis,
        lambda program: program.send(signal.SIGTERM),
        30,
    )
    postgres.drop_database(name)
