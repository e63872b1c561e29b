"""Node jobs per second and how long one takes: an echo node and a session on real sockets.

    python bench/nodes.py [--jobs 20000] [--only memory|redis|cluster|idle|reconnect]

`memory`: node and session on one instance. `redis`: node on A, session on B, through one Redis.
`cluster`: the same through three masters. `idle`: CPU and memory of a server with 1,000 nodes that
do nothing. `reconnect`: 5,000 nodes that come back at once after the server was killed and started
again, and how long other calls take meanwhile, with memory and with Redis. Prints one JSON line per
measurement. Redis is started here, on loopback.
"""

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import os
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import uvloop
from websockets.asyncio.client import connect

sys.path.insert(0, str(Path(__file__).parents[1]))  # a script finds only what lies beside it

from tests.ground.node_swarm import NodeSwarm
from tests.ground.process import Program
from tests.ground.redis import Redis, RedisCluster

NAME = "nodes"
LONE_JOBS = 1_000
IN_FLIGHT = 256
IDLE_NODES = 1_000
IDLE_SEC = 10.0
IDLE_WAYS_SEC = 3.0
SWARM_NODES = 5_000
SWARM_PROCESSES = 2


def say(what: str, ours: float, *, unit: str = "/s", **more: Any) -> None:
    row: dict[str, Any] = {"bench": NAME, "what": what, "ours": ours, "unit": unit, **more}
    goal = more.get("goal")
    if goal is not None:
        less = bool(more.get("less_is_better"))
        row["is_met"] = ours <= goal if less else ours >= goal
    print(json.dumps(row), flush=True)


def run_node(port: int, slots: int) -> None:
    """A process that answers every job with its payload."""

    async def serve() -> None:
        async with connect(f"ws://127.0.0.1:{port}/ws/node", max_queue=None) as socket:
            register = {"type": "node_register", "slots": slots, "models": ["echo"]}
            await socket.send(json.dumps({**register, "node_id": f"echo-{os.getpid()}"}))
            async for text in socket:
                frame = json.loads(text)
                if frame["type"] == "job_assign":
                    about = f'"job_id":"{frame["job_id"]}","attempt_id":{frame["attempt_id"]}'
                    await socket.send('{"type":"job_ack",' + about + "}")
                    await socket.send('{"type":"job_result",' + about + ',"success":true,"data":1}')
                elif frame["type"] == "ping":
                    await socket.send(json.dumps({"type": "pong", "id": frame["id"]}))

    uvloop.run(serve())


async def ask(port: int, jobs: int, in_flight: int) -> tuple[float, list[float]]:
    """Ask for jobs, so many at a time; seconds in all, and for each."""
    began: dict[str, float] = {}
    took: list[float] = []
    sent = 0
    async with connect(f"ws://127.0.0.1:{port}/ws/session", max_queue=None) as socket:
        await socket.send('{"type":"session_init"}')
        await socket.recv()
        start = time.perf_counter()
        while sent < min(in_flight, jobs):
            began[f"r{start}-{sent}"] = time.perf_counter()
            await socket.send(
                f'{{"type":"job_request","request_id":"r{start}-{sent}","model":"echo",'
                '"wait_sec":30,"payload":{}}'
            )
            sent += 1
        while len(took) < jobs:
            frame = json.loads(await socket.recv())
            if frame["type"] == "error":
                raise SystemExit(f"refused: {frame}")
            if frame["type"] != "job_result":
                continue
            took.append(time.perf_counter() - began.pop(frame["request_id"]))
            if sent < jobs:
                began[f"r{start}-{sent}"] = time.perf_counter()
                await socket.send(
                    f'{{"type":"job_request","request_id":"r{start}-{sent}","model":"echo",'
                    '"wait_sec":30,"payload":{}}'
                )
                sent += 1
        return time.perf_counter() - start, took


@contextlib.contextmanager
def a_node(port: int, slots: int = 512) -> Iterator[None]:
    process = multiprocessing.get_context("spawn").Process(target=run_node, args=(port, slots))
    process.start()
    try:
        yield
    finally:
        process.kill()
        process.join()


def wait_for_node(program: Program) -> None:
    give_up_at = time.monotonic() + 20
    while not program.get("/api/v1/nodes").json()["nodes"]:
        if time.monotonic() > give_up_at:
            raise SystemExit("the node did not come")
        time.sleep(0.05)


def cpu_sec(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


_OP = re.compile(r'scheduler_phase2_redis_op_total\{op="(\w+)",result="ok"\}')


class Ways:
    """Round trips and operations of all programs together, since the last look."""

    def __init__(self, programs: list[Program]) -> None:
        self._programs = programs
        self.trips = 0
        self.ops: dict[str, int] = {}
        self._seen: tuple[int, dict[str, int]] = (0, {})
        self.look()

    def look(self) -> None:
        trips, ops = 0, {}
        for program in self._programs:
            # Not the page of the cluster: that asks Redis itself.
            for line in program.get("/metrics").text.splitlines():
                name, _, value = line.rpartition(" ")
                if name == "ksana_redis_round_trips_total":
                    trips += int(float(value))
                elif found := _OP.fullmatch(name):
                    ops[found[1]] = ops.get(found[1], 0) + int(float(value))
        self.trips = trips - self._seen[0]
        self.ops = {op: count - self._seen[1].get(op, 0) for op, count in ops.items()}
        self._seen = trips, ops

    def by_op(self, jobs: int) -> str:
        """Operations a job, those of the background left out where they round to nothing."""
        each = {op: count / jobs for op, count in self.ops.items()}
        shown = sorted(each.items(), key=lambda one: -one[1])
        return ", ".join(f"{op} {count:.2f}" for op, count in shown if count >= 0.05)


def measure(
    name: str,
    programs: list[Program],
    jobs: int,
    *,
    rate: float,
    p50_ms: float,
    most_trips: float | None = None,
) -> None:
    """The node on the first, the session on the last."""
    with a_node(programs[0].port):
        wait_for_node(programs[-1])
        port = programs[-1].port
        uvloop.run(ask(port, LONE_JOBS, 1))  # warm
        ways = Ways(programs)
        time.sleep(IDLE_WAYS_SEC)
        ways.look()
        idle = ways.trips / IDLE_WAYS_SEC
        spent, took = uvloop.run(ask(port, LONE_JOBS, 1))
        ways.look()
        lone = (ways.trips - idle * spent) / LONE_JOBS
        say(
            f"{name}: one job at a time, p50",
            statistics.median(took) * 1000,
            unit=" ms",
            goal=p50_ms,
            less_is_better=True,
            note=f"p99 {sorted(took)[int(len(took) * 0.99)] * 1000:.1f} ms",
        )
        if ways.trips:
            say(
                f"{name}: Redis round trips a job, one at a time, blocking reads included",
                round(lone, 1),
                unit="",
                goal=most_trips,
                less_is_better=True,
                note=f"{lone:.2f} without the {idle:.0f} a second of idle instances; by operation: "
                + ways.by_op(LONE_JOBS),
            )
        cpu = [cpu_sec(program.pid) for program in programs]
        spent, took = uvloop.run(ask(port, jobs, IN_FLIGHT))
        used = [cpu_sec(p.pid) - c for p, c in zip(programs, cpu, strict=True)]
        ways.look()
        say(
            f"{name}: jobs, {IN_FLIGHT} in flight",
            jobs / spent,
            goal=rate,
            note=f"p50 {statistics.median(took) * 1000:.0f} ms, "
            f"{ways.trips / jobs:.2f} round trips a job, server CPU "
            f"{' + '.join(f'{one / jobs * 1e6:.0f}' for one in used)} µs a job",
        )


def measure_idle(program: Program) -> None:
    async def sit() -> tuple[float, float]:
        def memory_kb() -> int:
            text = Path(f"/proc/{program.pid}/status").read_text()
            return int(text.partition("VmRSS:")[2].split()[0])

        before_kb = memory_kb()
        sockets = []
        for number in range(IDLE_NODES):
            socket = await connect(f"ws://127.0.0.1:{program.port}/ws/node")
            frame = {"type": "node_register", "slots": 4, "models": ["echo"]}
            await socket.send(json.dumps({**frame, "node_id": f"idle-{number}"}))
            await socket.recv()
            sockets.append(socket)
        after_kb = memory_kb()

        async def beat() -> None:
            while True:
                for socket in sockets:
                    await socket.send('{"type":"node_heartbeat","running":0,"load":0.1}')
                    await asyncio.sleep(15 / IDLE_NODES)

        beating = asyncio.create_task(beat())
        await asyncio.sleep(2)
        cpu = cpu_sec(program.pid)
        await asyncio.sleep(IDLE_SEC)
        cpu = cpu_sec(program.pid) - cpu
        beating.cancel()
        return cpu / IDLE_SEC, (after_kb - before_kb) / IDLE_NODES

    share, each_kb = uvloop.run(sit())
    what = f"{IDLE_NODES} idle nodes"
    say(f"{what}: CPU", share * 100, unit=" %", goal=2, less_is_better=True)
    say(f"{what}: memory a node", each_kb, unit=" KB", goal=40, less_is_better=True)


def run_swarm(port: int, count: int, first: int, told: Any) -> None:
    """A process with a part of the swarm; it tells how many are registered."""

    async def live() -> None:
        swarm = NodeSwarm(port, count, first)
        swarm.start()
        while True:
            told[first // count] = swarm.count
            await asyncio.sleep(0.05)

    uvloop.run(live())


async def probe(program: Program, over: asyncio.Event) -> list[float]:
    """Call something else again and again; how long each call took."""
    took = []
    limits = {"timeout": 60, "trust_env": False}
    while not over.is_set():
        began = time.perf_counter()
        # A connection of its own for each call: after a restart everybody has to make one.
        async with httpx.AsyncClient(base_url=program.url(), **limits) as client:
            answer = await client.get("/api/v1/tasks?page_size=1")
        assert answer.status_code == 200, answer.text
        took.append(time.perf_counter() - began)
        await asyncio.sleep(0.02)
    return took


def measure_reconnect(name: str, program: Program) -> None:
    context = multiprocessing.get_context("spawn")
    share = SWARM_NODES // SWARM_PROCESSES
    told = context.Array("i", SWARM_PROCESSES)
    processes = [
        context.Process(target=run_swarm, args=(program.port, share, n * share, told))
        for n in range(SWARM_PROCESSES)
    ]
    for process in processes:
        process.start()

    async def wait_for_all() -> None:
        async with asyncio.timeout(120):
            while sum(told) < SWARM_NODES:
                await asyncio.sleep(0.05)

    async def come_back() -> tuple[float, list[float]]:
        await wait_for_all()
        program.kill9()
        while sum(told):
            await asyncio.sleep(0.05)
        await asyncio.to_thread(program.start)
        began = time.perf_counter()
        over = asyncio.Event()
        probing = asyncio.create_task(probe(program, over))
        await wait_for_all()
        spent = time.perf_counter() - began
        over.set()
        return spent, await probing

    try:
        spent, took = uvloop.run(come_back())
    finally:
        for process in processes:
            process.kill()
            process.join()
    what = f"{name}: {SWARM_NODES} nodes come back at once"
    say(f"{what}, all registered", spent, unit=" s", goal=30, less_is_better=True)
    say(
        f"{what}, the slowest other call",
        max(took),
        unit=" s",
        goal=1,
        less_is_better=True,
        note=f"of {len(took)}, p50 {statistics.median(took) * 1000:.0f} ms",
    )


def main() -> None:
    words = argparse.ArgumentParser()
    words.add_argument("--jobs", type=int, default=20_000)
    words.add_argument("--only", choices=("memory", "redis", "cluster", "idle", "reconnect"))
    asked = words.parse_args()

    def is_wanted(name: str) -> bool:
        return asked.only in (None, name)

    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:

        def start(name: str, coordination: str) -> Program:
            program = stack.enter_context(Program(Path(folder, name)))
            program.env |= {"KSANA_COORDINATION": coordination, "LOG_LEVEL": "warning"}
            return program.start()

        if is_wanted("memory"):
            measure(
                "memory, one instance", [start("m", "memory")], asked.jobs, rate=5_000, p50_ms=3
            )
        if is_wanted("redis"):
            redis = Redis()
            stack.callback(redis.close)
            redis.start()
            pair = [start("ra", redis.url()), start("rb", redis.url())]
            measure(
                "Redis, node on A, session on B",
                pair,
                asked.jobs,
                rate=2_000,
                p50_ms=8,
                most_trips=6,
            )
        if is_wanted("cluster"):
            cluster = RedisCluster()
            stack.callback(cluster.close)
            cluster.start()
            pair = [start("ca", cluster.url()), start("cb", cluster.url())]
            measure(
                "Cluster of 3, node on A, session on B", pair, asked.jobs, rate=1_000, p50_ms=12
            )
        if is_wanted("idle"):
            measure_idle(start("idle", "memory"))
        if is_wanted("reconnect"):
            measure_reconnect("memory", start("swarm", "memory"))
            redis = Redis()
            stack.callback(redis.close)
            redis.start()
            measure_reconnect("Redis", start("swarm-redis", redis.url()))


if __name__ == "__main__":
    main()
