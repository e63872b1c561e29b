"""What the SQLite store and the C allocator may keep in memory."""

import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from ksana.base.clock import SystemClock
from ksana.store.sql.core import sqlite_file
from ksana.store.sql.core.store import LIST_READERS, READERS

pytestmark = pytest.mark.spec("X13")


def test_all_connections_together_keep_less_than_100_mib_of_pages(tmp_path: Path) -> None:
    path, kept_kib = str(tmp_path / "a.db"), 0
    for read_only in (False, *[True] * (READERS + LIST_READERS)):
        with closing(sqlite_file.connect(path, SystemClock(), read_only)) as connection:
            kept_kib -= connection.execute("PRAGMA cache_size").fetchone()[0]
    assert 0 < kept_kib < 100 * 1024


CHURN = """
import os, threading
from pathlib import Path
from ksana.boot.allocator import set_allocator

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20

def churn(kept):
    for _ in range(3):
        pages = [bytes(1 << 20) for _ in range(60)]
        kept.append(bytes(1000))  # lies above them
        del pages

print(set_allocator())
kept = []
bytes(8 << 20)
before = resident()
for _ in range(4):
    thread = threading.Thread(target=churn, args=(kept,))
    thread.start()
    thread.join()
print(resident() - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's allocator")
@pytest.mark.parametrize("chosen_by", ["us", "the operator"])
def test_freed_pages_go_back_to_the_system(chosen_by: str) -> None:
    env = {} if chosen_by == "us" else {"MALLOC_ARENA_MAX": "8"}
    done = subprocess.run(
        [sys.executable, "-c", CHURN], env=env, capture_output=True, text=True, check=True
    )
    is_set, kept_mib = done.stdout.split()
    assert (is_set == "True") == (chosen_by == "us")
    if chosen_by == "us":
        assert int(kept_mib) < 10
