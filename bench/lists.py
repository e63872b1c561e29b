"""Pages of lists at a million rows: first, deep, filtered, and those that find nothing.

python -m bench.lists [--rows 1000000] [--store sqlite|postgres|mariadb] [--rounds 40]

A store is filled past our code, by statements of the database itself, with so many runs of 1,000
tasks, queue jobs, and timers; then each kind of page is read through the services, on the
connections that lists use, some forty times over different places. Times are of the read and of
putting the rows together, without HTTP. The goal is of the p99: 20 ms (DESIGN.md).
"""

import argparse
import asyncio
import contextlib
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Literal

from tests.conformance.store.ground import Database

from bench.figure import Figure
from bench.ground import report
from ksana.base.clock import SystemClock
from ksana.base.errors import StoreDownError
from ksana.base.instant import SECOND, Instant
from ksana.ports.pages import MAX_DEPTH
from ksana.ports.queue.tables import JobFilter
from ksana.ports.store import Store
from ksana.ports.tasks.runs import RunFilter
from ksana.ports.tasks.tables import TaskFilter
from ksana.service.tasks import reading
from ksana.store.sql import open_store

NAME = "lists"
ROWS, ROUNDS = 1_000_000, 40
GOAL_MS = 20.0
TASKS = 1_000
"""Tasks that have runs: each has a thousandth of them, but the first, which has a tenth."""
PAGE = 50

Kind = Literal["sqlite", "postgres", "mariadb"]
Read = Callable[[int], Awaitable[Any]]
"""Reads a page of one kind; the number of the round chooses which."""

_SERIES = {
    "sqlite": "WITH RECURSIVE n(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < {rows}) ",
    "postgresql": "WITH n(n) AS (SELECT generate_series(1, {rows})) ",
    "mysql": "",
}
_FROM = {"sqlite": "n", "postgresql": "n", "mysql": "(SELECT seq AS n FROM seq_1_to_{rows}) AS n"}

_RUNS = """
INSERT INTO task_runs (uid, task_id, open_task, slot_at, scheduled_time, start_time, end_time, status, attempt, trigger_kind,
  exec_type, is_counted, host, token, request_headers, response_code, response_body, trace_id, attempts, created_at, updated_at)
{series} SELECT {uid}, CASE WHEN n % 10 = 0 THEN 1 ELSE 1 + n % {tasks} END, NULL, {first} + n * 1000, {first} + n * 1000,
  {first} + n * 1000, {first} + n * 1000 + 500, CASE WHEN n % 5000 = 0 THEN 'FAILED' WHEN n % 100 = 0 THEN 'TIMEOUT' ELSE 'SUCCESS' END,
  1, 'schedule', 'SYNC', 1, 'http://127.0.0.1:9', n, '{{"content-type":"application/json"}}', 200, '{{"ok":true,"order":12345}}',
  'trace', '[{{"attempt":1,"status":"SUCCESS","response_code":200,"error":null}}]', {first} + n * 1000, {first} + n * 1000
FROM {source}
"""
_TASKS = """
INSERT INTO tasks (job_id, dialect, name, description, timezone, schedule_json, exec_type, http_method, target_url, headers_json,
  body_template, timeout_seconds, retry_policy_json, max_concurrency, concurrency_policy, misfire_policy, catchup_limit,
  callback_method, callback_timeout_sec, tags, options_json, status, version, created_at, updated_at, deleted, next_slot_at,
  runs_fired, last_status, last_error)
{series} SELECT {number}, 'T', {name}, '', 'UTC', '{{"kind":"once","run_at":9000000000000000}}', 'SYNC', 'POST',
  'http://127.0.0.1:9/hook', '{{}}', '{{"order":1}}', 10, '{{}}', 1, 'SKIP', 'SKIP', 0, 'POST', 300,
  CASE WHEN n % 1000 = 0 THEN ',rare,' ELSE ',bench,' END, '{{}}', CASE WHEN n % 1000 = 0 THEN 'DISABLED' ELSE 'ENABLED' END, 1,
  {first} + n, {first} + n, 0, NULL, 0, '', ''
FROM {source}
"""
_JOBS = """
INSERT INTO scheduler_job_runs (job_id, addon_id, job_type, priority, cost_units, constraints_json, payload_json, state, attempts,
  max_attempts, created_at, updated_at, finished_at, cancel_requested, position, urgency, class_id, turn, due_at, claims,
  claim_token)
{series} SELECT {number}, CASE WHEN n % 10 = 0 THEN 'small' ELSE 'large' END, CASE WHEN n % 5000 = 0 THEN 'rare' ELSE 'usual' END,
  'NORMAL', 1, '{{}}', '{{"order":12345}}', CASE WHEN n % 1000 = 0 THEN 'FAILED' ELSE 'DONE' END, 1, 1, {first} + n * 1000,
  {first} + n * 1000, {first} + n * 1000, 0, NULL, 1, 1, n, 0, 1, 0
FROM {source}
"""


def fill(url: str, rows: int, first: Instant) -> None:
    """Write the rows, and the counts of them, by the database's own means."""
    database = Database(url)
    kind = database.kind
    number = "CAST(n AS CHAR)" if kind == "mysql" else "CAST(n AS TEXT)"
    uid = {
        "sqlite": "printf('%032x', n)",
        "postgresql": "lpad(to_hex(n), 32, '0')",
        "mysql": "LPAD(HEX(n), 32, '0')",
    }[kind]
    name = "'order ' || n" if kind != "mysql" else "CONCAT('order ', n)"
    with closing(database.connect()) as connection:
        cursor = connection.cursor()
        for text in (_TASKS, _RUNS, _JOBS):
            parts = {"rows": rows, "tasks": TASKS, "first": first, "number": number, "uid": uid}
            cursor.execute(
                text.format(
                    series=_SERIES[kind].format(rows=rows),
                    source=_FROM[kind].format(rows=rows),
                    name=name,
                    **parts,
                )
            )
        cursor.execute("DELETE FROM row_counts")
        for table, kept, where in (
            ("tasks", "tasks", "deleted = 0"),
            ("task_runs", "runs", "id > 0"),
        ):
            cursor.execute(
                f"INSERT INTO row_counts (kind, entry, shard, n) SELECT '{kept}', status, 0, "
                f"COUNT(*) FROM {table} WHERE {where} GROUP BY status"
            )


def pages_of(store: Store, rows: int, first: Instant) -> dict[str, Read]:
    """Every kind of page."""
    step = rows // (ROUNDS + 1)

    def place(n: int) -> int:
        return (n % ROUNDS + 1) * step

    def at(n: int) -> Instant:
        return first + place(n) * 1000

    def runs(page: Callable[[int], int] = lambda n: 1, **wanted: Any) -> Read:
        def read(n: int) -> Awaitable[Any]:
            given = {name: one(n) if callable(one) else one for name, one in wanted.items()}
            cursor = given.pop("after", None)
            return store.read_list(reading.list_runs, RunFilter(**given), page(n), PAGE, cursor)

        return read

    def tasks(
        page: int = 1, after: Callable[[int], int | None] = lambda n: None, **wanted: Any
    ) -> Read:
        return lambda n: store.read_list(
            reading.list_tasks, TaskFilter(**wanted), page, PAGE, after(n)
        )

    def jobs(before: Callable[[int], int | None] = lambda n: None, **wanted: Any) -> Read:
        def read(n: int) -> Awaitable[Any]:
            given = {name: one(n) if callable(one) else one for name, one in wanted.items()}
            return store.read_list(
                lambda tx: tx.job_lists.list_page(JobFilter(**given), before(n), PAGE)
            )

        return read

    deepest = MAX_DEPTH // PAGE
    return {
        "runs: first page": runs(),
        "runs: deepest page by number": runs(lambda n: deepest),
        "runs: by cursor, all over": runs(after=lambda n: (place(n),)),
        "runs: status that is rare": runs(status="FAILED"),
        "runs: status that is common": runs(status="SUCCESS"),
        "runs: status without any": runs(status="CANCELED"),
        "runs: status, deepest page by number": runs(lambda n: deepest, status="SUCCESS"),
        "runs: a task": runs(task_id=7),
        "runs: a task with 100,000, deepest page": runs(lambda n: deepest, task_id=1),
        "runs: a task and a rare status": runs(task_id=1, status="FAILED"),
        "runs: a task and a span": runs(task_id=1, since=at, until=lambda n: at(n) + SECOND),
        "runs: a span": runs(since=at, until=lambda n: at(n) + 10 * SECOND),
        "runs: up to an instant": runs(until=at),
        "runs: a span and a rare status": runs(status="FAILED", until=at),
        "tasks: first page": tasks(),
        "tasks: deepest page by number": tasks(deepest),
        "tasks: by cursor, all over": tasks(after=place),
        "tasks: status that is rare": tasks(status="DISABLED"),
        "tasks: status that is common": tasks(status="ENABLED"),
        "tasks: a part of the name that many have": tasks(name="order 1"),
        "tasks: a part of the name that none has": tasks(name="nothing"),
        "tasks: a tag that is rare": tasks(tag="rare"),
        "timers: a page of 500": lambda n: store.read_list(reading.list_timers, place(n), 500),
        "jobs: first page": jobs(),
        "jobs: by cursor, all over": jobs(place),
        "jobs: state that is rare": jobs(state="FAILED"),
        "jobs: state that is common": jobs(state="DONE"),
        "jobs: an addon": jobs(addon_id="small"),
        "jobs: a job type that is rare": jobs(job_type="rare"),
        "jobs: state and addon": jobs(state="FAILED", addon_id="small"),
        "jobs: submitted before an instant": jobs(created_before=at),
        "jobs: a span and a state": jobs(
            state="DONE", created_after=at, created_before=lambda n: at(n) + SECOND
        ),
    }


async def time_pages(url: str, rows: int, rounds: int, first: Instant) -> list[Figure]:
    """Each kind of page, some rounds after a few to warm up."""
    store = await open_store(url, SystemClock())
    figures = []
    try:
        for what, read in pages_of(store, rows, first).items():
            times = []
            for n in range(-3, rounds):
                began = time.perf_counter()
                with contextlib.suppress(StoreDownError):  # stopped: its time counts all the same
                    await read(n)
                if n >= 0:
                    times.append((time.perf_counter() - began) * 1000)
            times.sort()
            p50, p99 = times[len(times) // 2], times[min(len(times) - 1, int(len(times) * 0.99))]
            figures.append(
                Figure(
                    NAME,
                    f"{Database(url).kind}, {rows:,} rows, {what}: p99",
                    p99,
                    unit="ms",
                    goal=GOAL_MS,
                    less_is_better=True,
                    note=f"p50 {p50:.1f} ms, least {times[0]:.1f} ms",
                )
            )
    finally:
        await store.close()
    return figures


@contextmanager
def database_of(kind: Kind) -> Iterator[str]:
    """The URL of an empty database."""
    if kind == "sqlite":
        with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
            yield f"sqlite:///{Path(folder, 'lists.db')}"
        return
    from bench.ground import databases

    with databases.postgres() if kind == "postgres" else databases.mariadb() as server:
        yield server.url(server.create_database())


def measure(kind: Kind, rows: int, rounds: int) -> list[Figure]:
    """Fill, then read."""
    clock = SystemClock()
    first = clock.now() - rows * 1000

    async def make(url: str) -> None:
        await (await open_store(url, clock)).close()

    with database_of(kind) as url:
        asyncio.run(make(url))
        fill(url, rows, first)
        return asyncio.run(time_pages(url, rows, rounds, first))


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--store", choices=("sqlite", "postgres", "mariadb"), default="sqlite")
    return parser.parse_args(arguments)


def run() -> list[Figure]:
    """All three stores at full size."""
    kinds: tuple[Kind, ...] = ("sqlite", "postgres", "mariadb")
    return [figure for kind in kinds for figure in measure(kind, ROWS, ROUNDS)]


if __name__ == "__main__":
    options = parse()
    report.show(measure(options.store, options.rows, options.rounds))
