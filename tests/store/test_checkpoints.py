"""SQLite's log is copied back beside the writer, and begins anew before it is long."""

import asyncio
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from ksana.base.clock import SystemClock
from ksana.store.sql import SqlStore, open_store
from ksana.store.sql.core import checkpoints
from tests.conformance.store.checks import enter_key, key_names

COMMITS = 640


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "PAUSE_SECONDS", 0.001)
    monkeypatch.setattr(checkpoints, "ANEW_PAGES", 100)


async def open_file(folder: Path) -> SqlStore:
    return await open_store(f"sqlite:///{folder / 'ksana.db'}", SystemClock())


async def write(store: SqlStore, count: int = COMMITS) -> None:
    for number in range(count):
        await store.transact(enter_key, f"k{number}")


def size_of_log(folder: Path) -> int:
    return os.path.getsize(folder / "ksana.db-wal")


async def test_the_log_begins_anew_while_one_caller_never_pauses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await open_file(tmp_path)
    await write(store)
    assert await store.read(key_names) == {f"k{number}" for number in range(COMMITS)}
    kept_short = size_of_log(tmp_path)
    await store.close()
    other = tmp_path / "other"
    monkeypatch.setattr(checkpoints, "ANEW_PAGES", 1_000_000)
    store = await open_file(other)
    await write(store)
    assert size_of_log(other) > 2 * kept_short
    await store.close()


async def test_a_reader_in_the_log_is_waited_for_by_nobody_and_sees_what_it_saw(
    tmp_path: Path,
) -> None:
    store = await open_file(tmp_path)
    await store.transact(enter_key, "old")
    looked, written = threading.Event(), threading.Event()

    def look_twice(tx: Any) -> tuple[set[str], set[str]]:
        before = key_names(tx)
        looked.set()
        assert written.wait(30)
        return before, key_names(tx)

    reading = asyncio.ensure_future(store.read(look_twice))
    assert await asyncio.to_thread(looked.wait, 10)
    await write(store)
    written.set()
    assert await reading == ({"old"}, {"old"})
    assert await store.read(key_names) == {"old", *(f"k{number}" for number in range(COMMITS))}
    await store.close()


async def test_the_writer_stands_still_while_the_last_of_the_log_is_copied(
    tmp_path: Path,
) -> None:
    store = await open_file(tmp_path)
    await write(store, 10)
    assert store._checkpointer is not None
    with store._checkpointer.gate:
        waiting = asyncio.ensure_future(store.transact(enter_key, "held"))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        assert await store.read(key_names) == {f"k{number}" for number in range(10)}
    assert await waiting == "held"
    await store.close()
