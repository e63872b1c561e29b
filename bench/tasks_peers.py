"""APScheduler 3 beside us: date jobs due at one instant, each a POST from its thread pool, in memory and on SQLite.

    KSANA_BENCH_PEERS=/tmp/peers python -m bench.tasks_peers [jobs]

At its defaults, where what is more than a second late is dropped, and with nothing dropped and as many threads as we have
calls in flight. Installed into the folder named, on first use; passed over with a line if there is none.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.figure import Figure
from bench.ground import cores, report
from bench.queue_peers import SkippedError, install, telling

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


def measure(url: str, jobs: int) -> list[Figure]:
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


def measure_one(python: Path, name: str, url: str, jobs: int, store: str, grace: str, threads: int) -> list[Figure]:
    """One run in a process of its own, on the core that our server has in its turn."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder, cores.on(cores.FIRST):
        script = Path(folder, "peer_apscheduler.py")
        script.write_text(PEER)
        place = "memory" if store == "memory" else str(Path(folder, "jobs.db"))
        command = [str(python), str(script), url, str(jobs), place, grace, str(threads)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=WITHIN_SEC, check=False, cwd=folder)
        except subprocess.TimeoutExpired:
            raise SkippedError(f"not done after {WITHIN_SEC} s") from None
    if done.returncode:
        raise SkippedError(telling(done.stderr))
    said = json.loads(done.stdout.splitlines()[-1])
    if said["late"]:
        raise SkippedError("the jobs could not be added before their instant")
    what = f"{name}: {said['answered']:,} of {jobs:,} answered"
    note = f"{said['missed']:,} missed, {said['failed']:,} failed, {threads} threads"
    figures = [Figure("tasks_peers", what, said["answered"], jobs, unit="", note=note)]
    if said["last_ms"] is not None:
        figures.append(Figure("tasks_peers", f"{name}: last answer", said["last_ms"], unit="ms", note=note))
    return figures


def run() -> list[Figure]:
    """APScheduler alone, at full size."""
    with cores.target() as url:
        return measure(url, int(sys.argv[1]) if __name__ == "__main__" and len(sys.argv) > 1 else JOBS)


if __name__ == "__main__":
    report.show(run())
