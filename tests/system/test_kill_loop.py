"""kill -9 in a loop while writes are acknowledged: none of them may be missing afterwards.

Ten kills by default; `KSANA_FULL=1` makes it a hundred.
"""

import asyncio
import os
import random
import sqlite3
import subprocess
from pathlib import Path

import pytest

from ksana.base.clock import SystemClock
from ksana.store.sql import open_store
from tests.store.test_sqlite_file import read_until, start_driver

KILLS = 100 if os.environ.get("KSANA_FULL") == "1" else 10


def kill_after(driver: "subprocess.Popen[str]", count: int) -> list[str]:
    """Let it acknowledge so many, kill it -9, and read what it had said until then."""
    acknowledged = read_until(driver, count)
    driver.kill()
    assert driver.stdout is not None
    rest = driver.stdout.read()
    driver.stdout.close()
    driver.wait()
    # The last line may be cut in the middle: what was not said in full was not acknowledged.
    return acknowledged + [
        line.split()[1] for line in rest.split("\n")[:-1] if line.startswith("ack ")
    ]


@pytest.mark.fault("F26")
async def test_no_acknowledged_write_is_lost_to_kill_9(tmp_path: Path) -> None:
    path = tmp_path / "k.db"
    dice = random.Random(1)
    acknowledged: list[str] = []
    for kill in range(KILLS):
        driver = start_driver(path, f"{kill}-", callers=dice.choice((1, 8, 64)))
        acknowledged += await asyncio.to_thread(kill_after, driver, dice.randint(1, 300))
    store = await open_store(f"sqlite:///{path}", SystemClock(), serve=True)
    kept = await store.read(lambda tx: [key.name for key in tx.keys.list_keys()])
    counted = await store.read(
        lambda tx: sum(n for _, n, _ in tx.rollups.list_buckets("entered", "", 0, 2**53))
    )
    await store.close()
    missing = set(acknowledged) - set(kept)
    assert not missing, f"{len(missing)} of {len(acknowledged)} acknowledged writes are lost"
    assert len(acknowledged) >= KILLS
    assert counted == len(kept), "a count without its row, or a row without its count"
    with sqlite3.connect(path) as connection:
        events = connection.execute(
            "SELECT COUNT(*), COUNT(DISTINCT entity_id) FROM scheduler_events"
        ).fetchone()
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()
    assert events == (len(kept), len(kept))
