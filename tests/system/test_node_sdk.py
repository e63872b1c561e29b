"""The SDK's nodes and sessions on two real instances over one Redis: instances are killed and
stopped, nodes are stopped, and nobody is left without an answer."""

import asyncio
import contextlib
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from ksana.client import CallBackoff, Node, NodeJobContext, NodeSession
from tests.ground.child import wait_for
from tests.ground.process import Program, clean_environment
from tests.ground.redis import Redis
from tests.ground.server import obtain

QUICK = CallBackoff(first_sec=0.05, most_sec=0.5)


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Program, Program]]:
    redis = obtain(Redis)
    # A dead instance is found sooner than by default: 45 s.
    short = {"KSANA_NODES_PRESENCE_TTL": "6s", "KSANA_NODES_OWNER_TTL": "6s"}
    env = {"KSANA_COORDINATION": redis.url(), **short}
    folder = tmp_path_factory.mktemp("sdk")
    try:
        with Program(folder / "a", env=env) as a, Program(folder / "b", env=env) as b:
            yield a, b
    finally:
        redis.close()


@pytest.fixture
def pair(stage: tuple[Program, Program]) -> tuple[Program, Program]:
    """Two instances, started again where a test ended one."""
    for program in stage:
        if not program.is_running:
            program.start()
    return stage


class Crew:
    """Nodes of the SDK, and what their handlers did."""

    def __init__(self, work_sec: float = 0.02) -> None:
        self.work_sec = work_sec
        self.begun: Counter[str] = Counter()
        self.ended: Counter[str] = Counter()
        self.given_up: Counter[str] = Counter()
        self.nodes: list[Node] = []

    def make(self, urls: list[str], node_id: str, slots: int = 4) -> Node:
        node = Node(urls, node_id, slots=slots, backoff=QUICK, grace_sec=10)

        @node.model("echo")
        async def echo(ctx: NodeJobContext) -> Any:
            self.begun[ctx.job_id] += 1
            try:
                await asyncio.sleep(self.work_sec)
            except asyncio.CancelledError:
                self.given_up[ctx.job_id] += 1
                raise
            self.ended[ctx.job_id] += 1
            return ctx.payload

        self.nodes.append(node)
        return node

    @contextlib.asynccontextmanager
    async def at_work(self) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(node.run()) for node in self.nodes]
        try:
            for node in self.nodes:
                await asyncio.wait_for(node.wait_connected(), 20)
            yield
            for node in self.nodes:
                node.stop()
            await asyncio.wait_for(asyncio.gather(*tasks), 20)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def whereabouts(program: Program) -> dict[str, str]:
    """Which node is on which instance, as one instance sees it."""
    return {
        node["node_id"]: node["instance_id"]
        for node in program.get("/api/v1/nodes").json()["nodes"]
    }


def instance_of(program: Program) -> str:
    return str(program.get("/api/v1/cluster").json()["instance_id"])


async def see(program: Program, *node_ids: str) -> None:
    """Wait until an instance sees these nodes, and no others: those of an earlier test are gone."""
    async with asyncio.timeout(30):
        while set(await asyncio.to_thread(whereabouts, program)) != set(node_ids):
            await asyncio.sleep(0.05)


@pytest.mark.spec("N3", "N12")
async def test_nodes_of_a_killed_instance_go_to_another_and_all_results_come(
    pair: tuple[Program, Program],
) -> None:
    a, b = pair
    crew = Crew()
    for number in range(3):
        crew.make([a.url()], f"a{number}")
    crew.make([b.url()], "b0")
    async with crew.at_work(), NodeSession(b.url(), backoff=QUICK) as session:
        await see(b, "a0", "a1", "a2", "b0")
        for node in crew.nodes[:3]:
            node._address._urls.append(b.url().replace("http", "ws") + "/ws/node")
        jobs = [session.request("echo", n, wait_sec=60) for n in range(300)]
        async with asyncio.timeout(30):
            while sum(job.is_finished for job in jobs) < 60:
                await asyncio.sleep(0.01)
        a.kill9()
        results = await asyncio.wait_for(asyncio.gather(*jobs), 75)
        assert results == list(range(300))
        for node in crew.nodes[:3]:
            await asyncio.wait_for(node.wait_connected(), 20)
            assert node.stats.connections == 2
        assert await asyncio.to_thread(whereabouts, b) == dict.fromkeys(
            ["a0", "a1", "a2", "b0"], instance_of(b)
        )
    # What was given up was not told, begun or not; what was told ended somewhere.
    lost = sum(node.stats.lost for node in crew.nodes)
    assert lost >= sum(crew.given_up.values())
    assert all(crew.ended[job.job_id or ""] >= 1 for job in jobs)


@pytest.mark.spec("N4", "N12")
async def test_a_session_whose_instance_is_killed_goes_on_at_another_and_gets_every_result(
    pair: tuple[Program, Program],
) -> None:
    a, b = pair
    crew = Crew(work_sec=0.05)
    crew.make([b.url()], "n", slots=8)
    async with crew.at_work():
        await see(a, "n")
        session = NodeSession([a.url(), b.url()], backoff=QUICK, give_up_sec=100)
        session._address._turn = 0  # begin at the one that is killed
        async with session:
            jobs = [session.request("echo", n, wait_sec=100) for n in range(120)]
            async with asyncio.timeout(30):
                while sum(job.is_finished for job in jobs) < 20:
                    await asyncio.sleep(0.01)
            a.kill9()
            results = await asyncio.wait_for(asyncio.gather(*jobs), 100)
            assert results == list(range(120))
            assert session.connections == 2
    # The same request made the same job: nothing was done again that had ended well.
    assert len({job.job_id for job in jobs}) == 120


@pytest.mark.spec("N3", "X14")
async def test_an_instance_that_goes_down_in_order_lets_its_nodes_finish_and_go(
    pair: tuple[Program, Program],
) -> None:
    a, b = pair
    crew = Crew(work_sec=1.0)
    node = crew.make([a.url(), b.url()], "n")
    node._address._turn = 0
    async with crew.at_work(), NodeSession(b.url(), backoff=QUICK) as session:
        await see(b, "n")
        jobs = [session.request("echo", n) for n in range(4)]
        async with asyncio.timeout(10):
            while sum(crew.begun.values()) < 4:
                await asyncio.sleep(0.01)
        ending = asyncio.create_task(asyncio.to_thread(a.terminate))
        assert await asyncio.wait_for(asyncio.gather(*jobs), 20) == [0, 1, 2, 3]
        assert await ending == 0
        async with asyncio.timeout(20):
            while not node.is_connected or node.stats.connections < 2:
                await asyncio.sleep(0.01)
        assert await session.request("echo", "after", wait_sec=20) == "after"
    assert crew.given_up == Counter()
    assert set(crew.begun.values()) == {1}


NODE = """
import asyncio, sys
from ksana.client import Node
node = Node(sys.argv[1].split(","), sys.argv[2], slots=2, grace_sec=20)
@node.model("slow")
async def slow(ctx):
    print("begun", ctx.payload, flush=True)
    await asyncio.sleep(1.5)
    print("ended", ctx.payload, flush=True)
    return [sys.argv[2], ctx.payload]
node.serve()
"""


@contextlib.contextmanager
def a_program(urls: list[str], node_id: str, log: Path) -> Iterator["subprocess.Popen[bytes]"]:
    with log.open("wb") as output:
        child = subprocess.Popen(
            [sys.executable, "-c", NODE, ",".join(urls), node_id],
            env=clean_environment(),
            stdout=output,
            stderr=output,
        )
    try:
        yield child
    finally:
        child.kill()
        child.wait()


@pytest.mark.spec("N3", "N5")
async def test_a_node_program_told_to_end_finishes_what_it_has_and_gets_nothing_new(
    pair: tuple[Program, Program], tmp_path: Path
) -> None:
    a, b = pair
    urls, log = [a.url(), b.url()], tmp_path / "first.log"
    async with NodeSession(b.url(), backoff=QUICK) as session:
        with a_program(urls, "first", log) as first:
            await see(b, "first")
            running = [session.request("slow", n) for n in range(2)]
            await asyncio.to_thread(
                wait_for, lambda: log.read_text().count("begun") == 2, "both have begun"
            )
            first.send_signal(signal.SIGTERM)
            with a_program(urls, "second", tmp_path / "second.log"):
                later = session.request("slow", "later", wait_sec=20)
                results = await asyncio.wait_for(asyncio.gather(*running), 20)
                assert results == [["first", 0], ["first", 1]]
                assert await asyncio.to_thread(first.wait, 20) == 0
                assert await later == ["second", "later"]
    assert log.read_text().count("begun") == log.read_text().count("ended") == 2


@pytest.mark.spec("N3", "N12")
async def test_a_node_program_that_is_killed_leaves_its_jobs_to_others(
    pair: tuple[Program, Program], tmp_path: Path
) -> None:
    a, b = pair
    async with NodeSession(b.url(), backoff=QUICK) as session:
        with a_program([a.url()], "third", tmp_path / "first.log") as first:
            await see(b, "third")
            jobs = [session.request("slow", n, wait_sec=60) for n in range(2)]
            log = tmp_path / "first.log"
            await asyncio.to_thread(
                wait_for, lambda: log.read_text().count("begun") == 2, "both have begun"
            )
            first.kill()
            with a_program([b.url()], "fourth", tmp_path / "second.log"):
                results = await asyncio.wait_for(asyncio.gather(*jobs), 20)
                assert results == [["fourth", 0], ["fourth", 1]]
                assert {job.attempt for job in jobs} == {2}
