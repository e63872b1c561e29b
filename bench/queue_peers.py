"""No-op jobs per second, one worker process each, in one run on this machine: Celery, taskiq,
pgqueuer, BullMQ, and ours.

    KSANA_BENCH_PEERS=/tmp/peers python bench/queue_peers.py [jobs]

The folder named by KSANA_BENCH_PEERS holds a virtual environment and node modules, made there on
first use; nothing is installed into the project. A peer that cannot be installed or run is passed
over with a line that says why. Ours is measured by queue_sdk, every commit synced and every job
counted in the store; a peer from its worker's first job to its last.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

WITHIN_SEC = 180
JOBS = 10_000
KEPT = {
    "Celery on Redis": "nothing on disk",
    "taskiq on Redis": "nothing on disk",
    "BullMQ on Redis": "nothing on disk",
    "pgqueuer on PostgreSQL": "fsync on",
    "Ksana": "SQLite FULL",
}
"""What is left of a job after a power cut."""

COUNTING = """
import json, os, time
JOBS, OUT = int(os.environ["JOBS"]), os.environ["OUT"]
done, began = 0, 0.0
def count():
    global done, began
    done += 1
    if done == 1:
        began = time.perf_counter()
    if done == JOBS:
        with open(OUT + ".part", "w") as out:
            json.dump((JOBS - 1) / (time.perf_counter() - began), out)
        os.replace(OUT + ".part", OUT)
"""

CELERY = """
from celery import Celery
app = Celery("peer", broker=os.environ["REDIS"])
app.conf.update(task_ignore_result=True, worker_prefetch_multiplier=100)
@app.task
def noop(n):
    count()
if __name__ == "__main__":
    import peer_celery
    for n in range(JOBS):
        peer_celery.noop.delay(n)
"""

TASKIQ = """
from taskiq_redis import ListQueueBroker
broker = ListQueueBroker(os.environ["REDIS"])
@broker.task
async def noop(n: int) -> None:
    count()
if __name__ == "__main__":
    import asyncio, peer_taskiq
    async def main():
        await peer_taskiq.broker.startup()
        for start in range(0, JOBS, 100):
            await asyncio.gather(*(peer_taskiq.noop.kiq(n) for n in range(start, min(start + 100, JOBS))))
        await peer_taskiq.broker.shutdown()
    asyncio.run(main())
"""

PGQUEUER = """
import asyncio, sys
import asyncpg
from pgqueuer.db import AsyncpgDriver
from pgqueuer.qm import QueueManager
from pgqueuer.queries import Queries
async def main():
    driver = AsyncpgDriver(await asyncpg.connect(os.environ["PG"]))
    if sys.argv[1:] == ["fill"]:
        queries = Queries(driver)
        await queries.install()
        for start in range(0, JOBS, 1000):
            size = min(1000, JOBS - start)
            await queries.enqueue(["noop"] * size, [None] * size, [0] * size)
        return
    manager = QueueManager(Queries(driver))
    @manager.entrypoint("noop")
    async def noop(job):
        count()
    await manager.run(batch_size=100)
asyncio.run(main())
"""

BULLMQ = """
const { Queue, Worker } = require("bullmq");
const fs = require("fs");
const jobs = Number(process.env.JOBS), url = new URL(process.env.REDIS);
const connection = { host: url.hostname, port: Number(url.port), maxRetriesPerRequest: null };
(async () => {
  const queue = new Queue("peer", { connection });
  for (let at = 0; at < jobs; at += 1000)
    await queue.addBulk(Array.from({ length: Math.min(1000, jobs - at) }, (_, n) => ({ name: "noop", data: { n: at + n } })));
  let done = 0, began = 0;
  const worker = new Worker("peer", async () => {
    done += 1;
    if (done === 1) began = performance.now();
    if (done === jobs) fs.writeFileSync(process.env.OUT, JSON.stringify((jobs - 1) / (performance.now() - began) * 1000));
  }, { connection, concurrency: 100, removeOnComplete: { count: 0 } });
})();
"""


class SkippedError(Exception):
    """This peer cannot be measured here, and why."""


def say(what: str, **figures: Any) -> None:
    print(json.dumps({"bench": "queue_peers", "what": what, **figures}), flush=True)


def measure_all(jobs: int) -> None:
    """Measure every peer that can be."""
    peers = {
        "Celery on Redis": celery,
        "taskiq on Redis": taskiq,
        "pgqueuer on PostgreSQL": pgqueuer,
        "BullMQ on Redis": bullmq,
    }
    folder, best = os.environ.get("KSANA_BENCH_PEERS"), 0.0
    for name, measure in peers.items():
        try:
            if folder is None:
                raise SkippedError("set KSANA_BENCH_PEERS to a folder where peers may be installed")
            with tempfile.TemporaryDirectory(prefix="ksana-peer-", dir="/var/tmp") as work:
                rate = measure(Path(folder), Path(work), jobs)
            say(name, ours=round(rate), jobs=jobs, note=KEPT[name])
            best = max(best, rate)
        except SkippedError as reason:
            say(f"{name}: passed over, {reason}")
    rate = measure_ours(jobs)
    if best:
        say(
            "Ksana on SQLite ÷ the best of them",
            ours=rate,
            floor=round(best),
            ratio=rate / best,
            note=KEPT["Ksana"],
        )
    else:
        say("Ksana on SQLite", ours=rate, note=KEPT["Ksana"])


def measure_ours(jobs: int) -> int:
    """The figure of queue_sdk, from a process of its own."""
    command = [
        sys.executable,
        str(Path(__file__).with_name("queue_sdk.py")),
        "--only",
        "batch",
        "--jobs",
        str(jobs),
    ]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, timeout=WITHIN_SEC, check=True
    )
    for row in map(json.loads, done.stdout.splitlines()):
        if row["what"].startswith("claim + lease + release"):
            return int(row["ours"])
    raise SystemExit(f"queue_sdk told no figure: {done.stdout}")


def celery(folder: Path, work: Path, jobs: int) -> float:
    python = install(folder, "celery", "redis", "packaging")
    (work / "peer_celery.py").write_text(COUNTING + CELERY)
    command = [
        str(python),
        "-m",
        "celery",
        "-A",
        "peer_celery",
        "worker",
        "-c",
        "1",
        "--loglevel",
        "ERROR",
        "--without-gossip",
        "--without-mingle",
        "--without-heartbeat",
    ]
    with Redis(work) as url:
        return time_worker(work, jobs, {"REDIS": url}, [str(python), "peer_celery.py"], command)


def taskiq(folder: Path, work: Path, jobs: int) -> float:
    python = install(folder, "taskiq", "taskiq-redis")
    (work / "peer_taskiq.py").write_text(COUNTING + TASKIQ)
    command = [
        str(python),
        "-m",
        "taskiq",
        "worker",
        "peer_taskiq:broker",
        "--workers",
        "1",
        "--log-level",
        "ERROR",
    ]
    with Redis(work) as url:
        return time_worker(work, jobs, {"REDIS": url}, [str(python), "peer_taskiq.py"], command)


def pgqueuer(folder: Path, work: Path, jobs: int) -> float:
    python = install(folder, "pgqueuer", "asyncpg")
    sys.path.insert(0, str(Path(__file__).parents[1]))
    try:
        from tests.ground.postgres import Postgres
    except ImportError as error:
        raise SkippedError(f"no private PostgreSQL: {error}") from None
    (work / "peer_pgqueuer.py").write_text(COUNTING + PGQUEUER)
    try:
        server = Postgres()
        server.start()
    except Exception as error:
        raise SkippedError(f"no private PostgreSQL: {error}") from None
    try:
        env = {"PG": server.url(server.create_database())}
        script = [str(python), "peer_pgqueuer.py"]
        return time_worker(work, jobs, env, [*script, "fill"], script)
    finally:
        server.close()


def bullmq(folder: Path, work: Path, jobs: int) -> float:
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        raise SkippedError("node is not installed")
    modules = folder / "node"
    if not (modules / "node_modules" / "ioredis").exists():
        modules.mkdir(parents=True, exist_ok=True)
        command = [
            npm,
            "install",
            "--no-audit",
            "--no-fund",
            "--prefix",
            str(modules),
            "bullmq",
            "ioredis",
        ]
        run_or_skip(command, "npm install bullmq")
    script = work / "peer_bullmq.js"
    script.write_text(BULLMQ)
    with Redis(work) as url:
        env = {"REDIS": url, "NODE_PATH": str(modules / "node_modules")}
        return time_worker(work, jobs, env, None, [node, str(script)])


def install(folder: Path, *packages: str) -> Path:
    """Make the virtual environment and put the packages there, once."""
    python = folder / "venv" / "bin" / "python"
    if not python.exists():
        run_or_skip(
            [sys.executable, "-m", "venv", str(folder / "venv")], "making a virtual environment"
        )
    mark = folder / f"installed-{packages[0]}"
    if not mark.exists():
        run_or_skip(
            [str(python), "-m", "pip", "install", "--quiet", *packages],
            f"pip install {packages[0]}",
        )
        mark.touch()
    return python


def run_or_skip(command: list[str], what: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=WITHIN_SEC, check=False)
    if done.returncode:
        raise SkippedError(f"{what} failed: {telling(done.stderr or done.stdout)}")


def telling(text: str) -> str:
    """The line of an output that says most: the last one with an error in it, or the last."""
    lines = text.strip().splitlines() or ["no message"]
    return next((line for line in reversed(lines) if "rror" in line), lines[-1]).strip()[:200]


def time_worker(
    work: Path, jobs: int, env: dict[str, str], fill: list[str] | None, worker: list[str]
) -> float:
    """Fill the queue, start one worker, and read the rate it measured from its first job to its
    last."""
    out = work / "rate.json"
    full: dict[str, Any] = {
        **os.environ,
        **env,
        "JOBS": str(jobs),
        "OUT": str(out),
        "PYTHONPATH": str(work),
    }
    if fill is not None:
        filled = subprocess.run(
            fill,
            cwd=work,
            env=full,
            capture_output=True,
            text=True,
            timeout=WITHIN_SEC,
            check=False,
        )
        if filled.returncode:
            raise SkippedError(f"filling failed: {telling(filled.stderr)}")
    with (work / "worker.log").open("wb") as log:
        process = subprocess.Popen(
            worker, cwd=work, env=full, stdout=log, stderr=log, start_new_session=True
        )
    try:
        ends_at = time.monotonic() + WITHIN_SEC
        while not out.exists():
            if process.poll() is not None or time.monotonic() > ends_at:
                raise SkippedError(
                    f"the worker did not finish: {telling((work / 'worker.log').read_text(errors='replace'))}"
                )
            time.sleep(0.05)
        return float(json.loads(out.read_text()))
    finally:
        if process.poll() is None:
            os.killpg(
                process.pid, signal.SIGKILL
            )  # its own session: the worker and its children, nothing else
        process.wait()


class Redis:
    """A private Redis without persistence."""

    def __init__(self, work: Path) -> None:
        self.work = work

    def __enter__(self) -> str:
        program = shutil.which("redis-server")
        if program is None:
            raise SkippedError("redis-server is not installed")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        command = [
            program,
            "--port",
            str(port),
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--appendonly",
            "no",
            "--dir",
            str(self.work),
        ]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        for _ in range(200):
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                time.sleep(0.02)
        return f"redis://127.0.0.1:{port}"

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait()


if __name__ == "__main__":
    measure_all(int(sys.argv[1]) if len(sys.argv) > 1 else JOBS)
