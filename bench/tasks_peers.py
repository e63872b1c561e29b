"""Jobs due at one instant, each a POST to the same local nginx: ours on SQLite FULL, APScheduler 3
in memory and on SQLite.

    KSANA_BENCH_PEERS=/tmp/peers python -m bench.tasks_peers [--jobs 10000]

Ours is the real server, as in bench.tasks, with its default limits and with 64 calls in flight;
what it did is counted in its store. APScheduler calls from its thread pool: at its defaults, where
what is more than a second late is dropped, and with nothing dropped and 64 threads. Each has the
first core, nginx the last. APScheduler is installed into the folder named, on first use, and passed
over with a line if there is none.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

from bench.figure import Figure
from bench.ground import cores, disk, report
from bench.queue_peers import SkippedError, install, telling
from bench.tasks import LIMITS, burst

NAME = "tasks_peers"
JOBS = 10_000
WITHIN_SEC = 300
PACKAGES = ("apscheduler>=3,<4", "sqlalchemy", "requests")

# Args: target, jobs, store (memory or a file), grace ("default" or "none"), threads.
PEER = """
import datetime, json, logging, sys, threading, time
from apscheduler.events import EVENT_JOB_ERROR, EVENT_JOB_EXECUTED, EVENT_JOB_MAX_INSTANCES, EVENT_JOB_MISSED
from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.jobstores.memory import MemoryJobStore
from apscheduler.jobstores.sqlalchemy import SQLAlchemyJobStore
from apscheduler.schedulers.background import BackgroundScheduler
from sqlalchemy import create_engine, event
import requests
URL, JOBS, STORE, GRACE, THREADS = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4], int(sys.argv[5])
LOOKED_FOR_SEC = 120
here, answers = threading.local(), []
def call(number):
    if not hasattr(here, "session"):
        here.session = requests.Session()
        here.session.trust_env = False
    began = time.time()
    assert here.session.post(URL, data='{"order":%d}' % number).status_code == 200
    answers.append((began, time.time()))
missed, failed = [0], [0]
def heard(event):
    (missed if event.code == EVENT_JOB_MISSED else failed)[0] += 1
def when(at):
    return datetime.datetime.fromtimestamp(at, datetime.timezone.utc)
if __name__ == "__main__":
    import peer_apscheduler
    logging.disable(logging.CRITICAL)
    engine, sync = create_engine("sqlite:///" + ("" if STORE == "memory" else STORE)), ["OFF"]
    # Adding the jobs is not measured: it need not wait for the disk.
    event.listen(engine, "connect", lambda connection, _: connection.execute("PRAGMA synchronous = " + sync[0]).close())
    store = MemoryJobStore() if STORE == "memory" else SQLAlchemyJobStore(engine=engine)
    scheduler = BackgroundScheduler(
        jobstores={"default": store}, executors={"default": ThreadPoolExecutor(THREADS)}, timezone=datetime.timezone.utc,
        job_defaults={} if GRACE == "default" else {"misfire_grace_time": None},
    )
    scheduler.add_listener(peer_apscheduler.heard, EVENT_JOB_ERROR | EVENT_JOB_MAX_INSTANCES | EVENT_JOB_MISSED)
    scheduler.start(paused=True)
    began = time.time()
    for number in range(100):  # how long adding takes decides how far ahead the instant must lie
        scheduler.add_job(peer_apscheduler.call, "date", run_date=when(began + 86400), args=[number], id="try-%d" % number)
    each = (time.time() - began) / 100
    for number in range(100):
        scheduler.remove_job("try-%d" % number)
    at = int(time.time() + 3 + 2 * JOBS * each) + 1
    for number in range(JOBS):
        scheduler.add_job(peer_apscheduler.call, "date", run_date=when(at), args=[number])
    sync[0] = "FULL"
    engine.dispose()
    with engine.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2, "FULL"
    added_late = time.time() > at - 0.2
    scheduler.resume()
    done, missed, failed = peer_apscheduler.answers, peer_apscheduler.missed, peer_apscheduler.failed
    while time.time() < at + LOOKED_FOR_SEC and len(done) + missed[0] + failed[0] < JOBS:
        time.sleep(0.05)
    print(json.dumps({"answered": len(done), "missed": missed[0], "failed": failed[0],
        "late": added_late, "last_ms": (max(end for _, end in done) - at) * 1000 if done else None,
        "early": sum(began < at for began, _ in done)}), flush=True)
    import os
    os._exit(0)
"""


def measure_ours(url: str, jobs: int, label: str) -> list[Figure]:
    """The real server under one setting of its limits."""
    in_flight, env = LIMITS[label]
    one = burst(url, jobs, env, cores.FIRST)
    answered = sum(ran.is_answered for ran in one.runs)
    early = sum(
        min(ran.started_at or ran.slot_at, ran.sent_at or ran.slot_at) < ran.slot_at
        for ran in one.runs
    )
    failed = len(one.runs) - answered
    note = f"{in_flight} calls in flight, recorded after {one.recorded_sec:.2f} s"
    last_ms = one.answered_sec * 1000 if answered else None
    return tell(
        f"Ksana, SQLite, {label}",
        jobs,
        answered,
        jobs - answered - failed,
        failed,
        early,
        last_ms,
        note,
    )


def tell(
    name: str,
    jobs: int,
    answered: int,
    missed: int,
    failed: int,
    early: int,
    last_ms: float | None,
    note: str,
) -> list[Figure]:
    """The same of everybody."""
    note = f"{missed:,} missed, {failed:,} failed, {early:,} early, {note}"
    figures = [Figure(NAME, f"{name}: answered", answered, jobs, unit="", note=note)]
    if last_ms is not None:
        what = "all answered in" if answered == jobs else "the last of those answered in"
        figures.insert(0, Figure(NAME, f"{name}: {what}", last_ms / 1000, unit=" s"))
    return figures


def measure_peers(url: str, jobs: int) -> list[Figure]:
    """Each store, at its defaults and tuned; nothing and a line if there is no folder for peers."""
    figures: list[Figure] = []
    try:
        python = prepare()
    except SkippedError as reason:
        print(f"APScheduler 3: passed over, {reason}", file=sys.stderr, flush=True)
        return figures
    for store in ("memory", "SQLite"):
        for grace, threads in (("default", 10), ("none", 64)):
            name = f"APScheduler 3, {store}, {'defaults' if grace == 'default' else 'tuned'}"
            try:
                figures += measure_one(python, name, url, jobs, store, grace, threads)
            except SkippedError as reason:
                print(f"{name}: passed over, {reason}", file=sys.stderr, flush=True)
    return figures


def prepare() -> Path:
    folder = os.environ.get("KSANA_BENCH_PEERS")
    if not folder:
        raise SkippedError("set KSANA_BENCH_PEERS to a folder where peers may be installed")
    return install(Path(folder), *PACKAGES)


def measure_one(
    python: Path, name: str, url: str, jobs: int, store: str, grace: str, threads: int
) -> list[Figure]:
    """One run in a process of its own, on the core that our server has in its turn."""
    with disk.folder() as folder, cores.on(cores.FIRST):
        script = folder / "peer_apscheduler.py"
        script.write_text(PEER)
        place = "memory" if store == "memory" else str(folder / "jobs.db")
        command = [str(python), str(script), url, str(jobs), place, grace, str(threads)]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=WITHIN_SEC, check=False, cwd=folder
            )
        except subprocess.TimeoutExpired:
            raise SkippedError(f"not done after {WITHIN_SEC} s") from None
    if done.returncode:
        raise SkippedError(telling(done.stderr))
    said = json.loads(done.stdout.splitlines()[-1])
    if said["late"]:
        raise SkippedError("the jobs could not be added before their instant")
    return tell(
        name,
        jobs,
        said["answered"],
        said["missed"],
        said["failed"],
        said["early"],
        said["last_ms"],
        f"{threads} threads",
    )


def measure(jobs: int) -> list[Figure]:
    """Ours and theirs, one after the other, on one target."""
    with cores.target() as url:
        return [one for label in LIMITS for one in measure_ours(url, jobs, label)] + measure_peers(
            url, jobs
        )


def run() -> list[Figure]:
    """All figures at their full size."""
    return measure(JOBS)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--jobs", type=int, default=JOBS)
    report.show(measure(parser.parse_args().jobs))
