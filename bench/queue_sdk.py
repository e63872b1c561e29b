"""Jobs per second through the SDK: claim + lease + release of no-op jobs, one server process and
one worker process.

    python bench/queue_sdk.py [--jobs 60000] [--concurrency 1000] [--only sdk|batch|single|latency]

Prints one JSON line per measurement. `sdk` runs the worker against a server that only recites
answers: what the SDK itself costs. The others start the real server on an empty SQLite store, and
count in it afterwards what was done. See scale.py for other queues beside it.
"""

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import resource
import socket
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httptools
import msgspec
import uvloop

from ksana.client import JobContext, NewJob, QueueClient, TransportError, Worker

sys.path.insert(0, str(Path(__file__).parents[1]))  # a script finds only what lies beside it

from bench.ground import cores, disk
from bench.ground.served import Served, serve

NAME = "queue_sdk"
BATCHES = {100: 30_000, 500: None}
"""Jobs in one submit-batch, and the goal in jobs per second."""
WITHIN_SEC = 120
SETTINGS = {"KSANA_CAPACITY_TOTAL": "100000", "LOG_LEVEL": "warning"}


def say(
    what: str,
    ours: float,
    *,
    unit: str = "/s",
    goal: float | None = None,
    less_is_better: bool = False,
    **more: Any,
) -> None:
    row: dict[str, Any] = {"bench": NAME, "what": what, "ours": ours, "unit": unit, **more}
    if goal is not None:
        row |= {
            "goal": goal,
            "less_is_better": less_is_better,
            "is_met": ours <= goal if less_is_better else ours >= goal,
        }
    print(json.dumps(row), flush=True)


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


# ------------------------------------------------------------------------------------------------ a server that recites


class Reciter(asyncio.Protocol):
    """Answers claims with jobs until none are left and every release with yes."""

    left = 0

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.parser = httptools.HttpRequestParser(self)
        self.chunks: list[bytes] = []

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        self.url = url

    def on_body(self, body: bytes) -> None:
        self.chunks.append(body)

    def on_message_complete(self) -> None:
        body = msgspec.json.decode(b"".join(self.chunks)) if self.chunks else {}
        self.chunks = []
        if b"claim" in self.url:
            count = min(Reciter.left, body["limit"])
            Reciter.left -= count
            answer = (
                b'{"jobs":['
                + b",".join(recited_job(body["worker_id"], Reciter.left + n) for n in range(count))
                + b"]}"
            )
        else:
            answer = (
                b'{"results":['
                + b",".join([recited_release()] * len(body.get("items", ())))
                + b"]}"
            )
        self.transport.write(
            b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(answer) + answer
        )


TIMES = '"created_at":"2026-01-01T00:00:00.123456Z","updated_at":"2026-01-01T00:00:00.123456Z"'
JOB = (
    '"addon_id":"bench","job_type":"noop","priority":"NORMAL","cost_units":1,"constraints":{},"payload":{"n":1},'
    + TIMES
    + ',"claim_expires_at":null,"attempts":1,"max_attempts":1,"next_retry_at":null,"cancel_requested":false'
)


def recited_job(worker_id: str, number: int) -> bytes:
    ids = f'"job_id":"00000000-0000-4000-8000-{number:012d}","lease_id":"00000000-0000-4000-9000-{number:012d}"'
    return f'{{{ids},"state":"RUNNING","claimed_by":"{worker_id}",{JOB}}}'.encode()


def recited_release() -> bytes:
    ids = '"job_id":"00000000-0000-4000-8000-000000000000","lease_id":"00000000-0000-4000-9000-000000000000"'
    result = f'{{{ids},"status":"SUCCEEDED","result_data":null,"error":null}}'
    return f'{{"lease":{{{ids},"state":"RELEASED"}},"job":{{{ids},"state":"DONE",{JOB}}},"result":{result}}}'.encode()


def recite(port: int, jobs: int) -> None:
    async def main() -> None:
        Reciter.left = jobs
        server = await asyncio.get_running_loop().create_server(Reciter, "127.0.0.1", port)
        await server.serve_forever()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


def wait_for_port(port: int, is_alive: Callable[[], bool], within_sec: float = 30.0) -> None:
    ends_at = time.monotonic() + within_sec
    while is_alive() and time.monotonic() < ends_at:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.02)
    raise SystemExit(f"nothing listens on port {port}")


@contextlib.contextmanager
def serve_recited(jobs: int) -> Iterator[str]:
    port = free_port()
    process = multiprocessing.get_context("spawn").Process(
        target=recite, args=(port, jobs), daemon=True
    )
    process.start()
    try:
        wait_for_port(port, process.is_alive)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.join()


# ------------------------------------------------------------------------------------------------ the real server


@contextlib.contextmanager
def serve_ksana() -> Iterator[Served]:
    """`ksana serve` on an empty store, with room for all jobs at once; it and the worker share the
    machine as they like."""
    with disk.folder() as folder, serve(folder, env=SETTINGS, on=cores.ALL) as served:
        disk.check_synced(served.file)
        yield served


def check(served: Served, addon_id: str, wanted: dict[str, int]) -> None:
    """What the store has of an addon's jobs must be what should be."""
    if (found := disk.count_states(served.file, addon_id)) != wanted:
        raise SystemExit(f"the store has {found} of {addon_id} and should have {wanted}")


async def submit(url: str, jobs: int, batch: int) -> float:
    """Enter jobs by submit-batch, four batches at a time; jobs per second."""
    left = jobs
    async with QueueClient(url) as client:
        await client.snapshot()

        async def feed() -> None:
            nonlocal left
            while left > 0:
                count = min(batch, left)
                left -= count
                await client.submit_batch(
                    [
                        NewJob(addon_id="bench", job_type="noop", payload={"n": 1})
                        for _ in range(count)
                    ]
                )

        began = time.perf_counter()
        await asyncio.gather(*(feed() for _ in range(4)))
        return jobs / (time.perf_counter() - began)


def make_worker(url: str, concurrency: int) -> Worker:
    worker = Worker(url, "bench", concurrency=concurrency)

    @worker.job("noop")
    async def noop(ctx: JobContext) -> None:
        return None

    return worker


async def drain(url: str, jobs: int, concurrency: int) -> tuple[float, float]:
    """Run all jobs; the wall and CPU seconds of the worker."""
    worker = make_worker(url, concurrency)
    began, used = time.perf_counter(), cpu_seconds()
    try:
        stats = await asyncio.wait_for(worker.run(burst=True), WITHIN_SEC)
    except TimeoutError:
        raise SystemExit(f"{jobs} jobs were not done after {WITHIN_SEC} s") from None
    if stats.succeeded != jobs or stats.lost:
        raise SystemExit(f"{stats.succeeded} of {jobs} jobs succeeded, {stats.lost} were lost")
    return time.perf_counter() - began, cpu_seconds() - used


async def one_by_one(url: str, seconds: float) -> int:
    """Submit, claim with lease, release: one job, three calls, one after the other."""
    count, ends_at = 0, time.perf_counter() + seconds
    async with QueueClient(url) as client:
        while time.perf_counter() < ends_at:
            await client.submit("single", "noop")
            [job] = await client.claim("single", "bench", lease=True, ttl_sec=30)
            assert job.lease_id is not None
            await client.release(job.lease_id, job_id=job.job_id, worker_id="bench")
            count += 1
    return count


async def measure_latency(url: str, count: int) -> list[float]:
    """Submit at light load, one job every 10 ms; milliseconds from before the submit to the
    handler's first line."""
    worker, began, waits = Worker(url, "light", concurrency=10), {}, []  # type: ignore[var-annotated]
    over = asyncio.Event()

    @worker.job("noop")
    async def noop(ctx: JobContext) -> None:
        waits.append((time.perf_counter() - began[ctx.payload]) * 1000)
        if len(waits) == count:
            over.set()

    running = asyncio.create_task(worker.run())
    async with QueueClient(url) as client:
        for number in range(count):
            await asyncio.sleep(0.01)
            began[number] = time.perf_counter()
            await client.submit("light", "noop", number)
        await asyncio.wait_for(over.wait(), 30)
    worker.stop()
    await running
    return waits


def run(main: Any) -> Any:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)


def bench_sdk(options: argparse.Namespace) -> float:
    with serve_recited(options.jobs) as url:
        wall, cpu = run(drain(url, options.jobs, options.concurrency))
    say("SDK alone, answers recited", round(options.jobs / wall), jobs=options.jobs)
    say("CPU of the SDK alone per job", round(cpu / options.jobs * 1e6, 1), unit="us")
    return float(options.jobs / wall)


def bench_batches(served: Served, options: argparse.Namespace, alone: float | None) -> None:
    done, drained = 0, []
    for batch, goal in BATCHES.items():
        rate = run(submit(served.program.url(), options.jobs, batch))
        say(f"submit-batch of {batch} through the SDK", round(rate), goal=goal, jobs=options.jobs)
        check(served, "bench", {"QUEUED": options.jobs} | ({"DONE": done} if done else {}))
        drained.append(run(drain(served.program.url(), options.jobs, options.concurrency)))
        done += options.jobs
        check(served, "bench", {"DONE": done})
    wall, cpu = min(drained)
    rate = round(options.jobs / wall)
    say(
        "claim + lease + release in batches, SQLite FULL",
        rate,
        goal=20_000,
        jobs=options.jobs,
        note="best of 2",
    )
    if alone is not None:
        say(
            "claim + lease + release in batches ÷ the SDK alone",
            rate,
            floor=round(alone),
            ratio=rate / alone,
        )
    say("CPU of the worker per job", round(cpu / options.jobs * 1e6, 1), unit="us")


def bench_real(options: argparse.Namespace, alone: float | None) -> None:
    try:
        with serve_ksana() as served:
            if options.only in {None, "batch"}:
                bench_batches(served, options, alone)
            if options.only in {None, "single"}:
                count = run(one_by_one(served.program.url(), 3.0))
                check(served, "single", {"DONE": count})
                say("submit, claim + lease, release one by one", round(count / 3.0))
            if options.only in {None, "latency"}:
                cuts = statistics.quantiles(run(measure_latency(served.program.url(), 500)), n=100)
                check(served, "light", {"DONE": 500})
                say(
                    "submit to start, light load, p50",
                    round(cuts[49], 2),
                    unit="ms",
                    goal=5,
                    less_is_better=True,
                )
                say(
                    "submit to start, light load, p99",
                    round(cuts[98], 2),
                    unit="ms",
                    goal=20,
                    less_is_better=True,
                )
    except TransportError as error:
        raise SystemExit(f"the server does not answer: {error}") from None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--jobs", type=int, default=60_000)
    parser.add_argument("--concurrency", type=int, default=1_000)
    parser.add_argument("--only", choices=("sdk", "batch", "single", "latency"))
    options = parser.parse_args()
    alone = bench_sdk(options) if options.only in {None, "sdk"} else None
    if options.only != "sdk":
        bench_real(options, alone)


if __name__ == "__main__":
    main()
