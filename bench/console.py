"""The console before a large store: how soon each page can be used, in a real browser.

python -m bench.console [--tasks 100000] [--runs 1000000] [--rounds 5]

A SQLite store is filled past our code, by statements of the database itself. Then the server runs
on it, and Chromium opens each page afresh, some times. A page can be used when everything it loads
is there. The goal of all is that of the overview: 1 s.
"""

import argparse
import asyncio
import tempfile
import time
from contextlib import closing
from pathlib import Path

from playwright.sync_api import expect
from tests.conformance.store.ground import Database
from tests.console.browser import BrowserThread, open_tab
from tests.ground.process import Program

from bench import lists
from bench.figure import Figure
from bench.ground import report
from ksana.base.clock import SystemClock
from ksana.base.instant import HOUR, Instant
from ksana.store.sql import open_store

NAME = "console"
TASKS, RUNS, ROUNDS = 100_000, 1_000_000, 5
GOAL_MS = 1000.0
PAGES = {
    "overview": ".charts canvas",
    "tasks": "tbody tr",
    "tasks/1": ".facts",
    "runs": "tbody tr",
    "ledger": "tbody tr",
    "ledger?window=month": "tbody tr",
    "calendar": ".heat",
    "calendar?view=week": ".heat",
    "what-if": ".lanes",
}
_ARM = """
UPDATE tasks SET next_slot_at = {due} + id, fire_at = {due} + id,
  target_url = 'http://host-' || (id % 200) || '.test/',
  schedule_json = '{{"kind":"every","every_us":' || (60000000 * (1 + id % 60)) ||
    ',"anchor_at":' || {now} || ',"anchor_given":false}}'
"""


def fill(url: str, tasks: int, runs: int, now: Instant) -> None:
    """Tasks that are due in an hour, and runs of the last hours."""
    first = now - runs * 1000
    with closing(Database(url).connect()) as connection:
        cursor = connection.cursor()
        for text, rows in ((lists._TASKS, tasks), (lists._RUNS, runs)):
            cursor.execute(
                text.format(
                    series=lists._SERIES["sqlite"].format(rows=rows),
                    source="n",
                    name="'order ' || n",
                    number="CAST(n AS TEXT)",
                    uid="printf('%032x', n)",
                    tasks=tasks,
                    first=first,
                    rows=rows,
                )
            )
        cursor.execute(_ARM.format(now=now - HOUR, due=now + HOUR))
        cursor.execute("DELETE FROM row_counts")
        for table, kept in (("tasks", "tasks"), ("task_runs", "runs")):
            cursor.execute(
                f"INSERT INTO row_counts (kind, entry, shard, n) SELECT '{kept}', status, 0, "
                f"COUNT(*) FROM {table} GROUP BY status"
            )
        connection.commit()


def time_pages(program: Program, rounds: int, tasks: int, runs: int) -> list[Figure]:
    """Each page in a browser that has not seen it."""
    browser = BrowserThread()

    def look(page: str, sign: str) -> float:
        tab = open_tab(browser.browser, program.url())
        tab.context.set_default_timeout(120_000)
        tab.page.goto("about:blank")
        began = time.perf_counter()
        tab.page.goto(f"{program.url()}/ui/#/{page}")
        tab.page.locator(sign).first.wait_for()
        expect(tab.page.locator(".loading")).to_have_count(0, timeout=120_000)
        took = (time.perf_counter() - began) * 1000
        tab.context.close()
        return took

    figures = []
    try:
        for page, sign in PAGES.items():
            first, *times = [browser.run(look, page, sign) for _ in range(rounds + 1)]
            times.sort()
            figures.append(
                Figure(
                    NAME,
                    f"{page}, {tasks:,} tasks and {runs:,} runs: usable after",
                    times[len(times) // 2],
                    unit="ms",
                    goal=GOAL_MS,
                    less_is_better=True,
                    note=f"the first {first:.0f} ms, the longest {max(times):.0f} ms",
                )
            )
    finally:
        browser.close()
    return figures


def run(tasks: int = TASKS, runs: int = RUNS, rounds: int = ROUNDS) -> list[Figure]:
    """Fill, serve, look."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        url = f"sqlite:///{Path(folder, 'ksana.db')}"

        async def migrate() -> None:
            await (await open_store(url, SystemClock())).close()

        asyncio.run(migrate())
        fill(url, tasks, runs, SystemClock().now())
        with Program(Path(folder), store=url) as program:
            program.start()
            return time_pages(program, rounds, tasks, runs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=TASKS)
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    chosen = parser.parse_args()
    report.show(run(chosen.tasks, chosen.runs, chosen.rounds))


if __name__ == "__main__":
    main()
