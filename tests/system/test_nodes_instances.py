"""Two real processes on one Redis: a node on one, a session on the other, and what a kill does."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ground.node_peers import EchoNode, PlainSession
from tests.ground.process import Program
from tests.ground.redis import Redis

JOBS = int(os.environ.get("KSANA_NODE_JOBS", "10000"))
"""As many as the contract asks for."""


FEW = 150
"""For the twin that runs with every change; dead instances are found sooner there."""

SIZES = [FEW, pytest.param(JOBS, marks=pytest.mark.slow)]


@pytest.fixture
def pair(tmp_path: Path, redis: Redis) -> Iterator[tuple[Program, Program]]:
    with Program(tmp_path / "a") as a, Program(tmp_path / "b") as b:
        for program in (a, b):
            program.env["KSANA_COORDINATION"] = redis.url()
        yield a, b


def start(pair: tuple[Program, Program], jobs: int) -> tuple[Program, Program]:
    for program in pair:
        if jobs == FEW:
            program.env |= {"KSANA_NODES_PRESENCE_TTL": "6s", "KSANA_NODES_OWNER_TTL": "6s"}
        program.start()
    return pair


async def check_slots(redis: Redis, nodes: dict[str, int], over: asyncio.Event) -> dict[str, int]:
    """Read how many slots are held, all the time; answers the most that was seen."""
    most: dict[str, int] = {}
    with redis.connect() as client:
        while not over.is_set():
            for node_id in nodes:
                key = f"ksana:v1:nodes:{{node:{node_id}}}:reserved"
                held = await asyncio.to_thread(client.zcard, key)
                most[node_id] = max(most.get(node_id, 0), int(held))
            await asyncio.sleep(0.002)
    return most


async def see(program: Program, count: int) -> None:
    async with asyncio.timeout(20):
        while True:
            answer = await asyncio.to_thread(program.get, "/api/v1/nodes")
            if len(answer.json()["nodes"]) == count:
                return
            await asyncio.sleep(0.05)


@pytest.mark.spec("N6", "N9", "N10")
@pytest.mark.parametrize("jobs", SIZES)
async def test_a_node_on_one_and_a_session_on_the_other_each_result_once(
    pair: tuple[Program, Program], redis: Redis, jobs: int
) -> None:
    a, b = start(pair, jobs)
    slots = {"n0": 16, "n1": 16}
    nodes = [EchoNode(lambda: a.port, node_id, slots[node_id]) for node_id in slots]
    for node in nodes:
        node.start()
    over = asyncio.Event()
    checking = asyncio.create_task(check_slots(redis, slots, over))
    await see(b, 2)
    async with PlainSession(b.port) as session:
        for n in range(jobs):
            await session.ask(f"r{n}", wait_sec=60, payload=n)
        await session.wait(jobs, 120)
        assert session.errors == []
        assert len(session.results) == jobs
        for n in range(jobs):
            (result,) = session.results[f"r{n}"]
            assert (result["success"], result["data"]) == (True, n)
    over.set()
    most = await checking
    for node in nodes:
        await node.stop()
        assert 0 < most[node.node_id] <= slots[node.node_id]
        assert node.most_at_once <= slots[node.node_id]
    with redis.connect() as client:
        left = [key for key in client.scan_iter("ksana:*reserved") if client.zcard(key)]
        assert left == []
        assert b.get("/metrics").text.count("scheduler_phase2_redis_op_total{") > 5


@pytest.mark.fault("F09")
@pytest.mark.spec("N1", "N6", "N9", "N12")
@pytest.mark.parametrize("jobs", SIZES)
@pytest.mark.timeout(180)
async def test_a_kill_of_the_nodes_instance_midway_ends_every_job_within_a_minute(
    pair: tuple[Program, Program], redis: Redis, jobs: int
) -> None:
    a, b = start(pair, jobs)
    home = a.port
    nodes = [EchoNode(lambda: home, f"n{n}", 8, work_sec=0.005) for n in range(3)]
    for node in nodes:
        node.start()
    await see(b, 3)
    over = asyncio.Event()
    slots = {node.node_id: 8 for node in nodes}
    checking = asyncio.create_task(check_slots(redis, slots, over))
    async with PlainSession(b.port) as session:
        for n in range(jobs):
            await session.ask(f"r{n}", wait_sec=100, payload=n)
        await session.wait(jobs // 4, 60)
        a.kill9()
        home = b.port  # the nodes find another instance
        began = asyncio.get_running_loop().time()
        await session.wait(jobs, 75)
        spent = asyncio.get_running_loop().time() - began
        assert spent <= 60, f"{spent:.0f} s"
        told = [result for results in session.results.values() for result in results]
        assert len(told) == jobs  # each once
        lost = [result for result in told if not result["success"]]
        assert len(lost) <= 24  # at most what ran there at the time, and only without another node
    over.set()
    most = await checking
    for node in nodes:
        await node.stop()
        assert most[node.node_id] <= 8
    with redis.connect() as client:
        assert [key for key in client.scan_iter("ksana:*reserved") if client.zcard(key)] == []
