"""What goes wrong beside a SQLite store while it is served: descriptors, damage."""

import asyncio
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from ksana.base.clock import SystemClock
from ksana.base.errors import SetupError, StoreDownError
from ksana.store.sql import SqlStore, check_schema, open_store
from ksana.store.sql.core import sqlite_file
from ksana.store.sql.core.dialects import SqliteDialect, Trouble
from ksana.store.sql.core.tally import Tally
from tests.conformance.store.checks import enter_key, key_names

ROOT = Path(__file__).parents[2]

OUT_OF_DESCRIPTORS = """
import asyncio, os, resource, sqlite3, sys, threading
from ksana.base.clock import SystemClock
from ksana.store.sql import open_store
from ksana.store.sql.core.threads import COMMITS
from tests.conformance.store.checks import enter_key, key_names

async def main(path):
    store = await open_store(f"sqlite:///{path}", SystemClock())
    await store.transact(enter_key, "first")  # the writer has its connection
    connect, failed = store.dialect.connect, threading.Event()

    def watched(read_only):
        try:
            return connect(read_only)
        except sqlite3.Error:
            failed.set()
            raise

    store.dialect.connect = watched
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    taken = []
    try:
        while True:
            taken.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        pass
    for n in range(COMMITS):  # after so many the log is copied back, by a connection of its own
        await store.transact(enter_key, f"k{n}")
    assert await asyncio.to_thread(failed.wait, 20), "nothing was tried"
    for one in taken:
        os.close(one)
    await store.transact(enter_key, "last")
    assert len(await store.read(key_names)) == COMMITS + 2
    health = store.health()
    assert health.ok, health
    await store.close()

asyncio.run(main(sys.argv[1]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits descriptors by rlimit")
def test_running_out_of_descriptors_is_over_when_there_are_some_again(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", OUT_OF_DESCRIPTORS, str(tmp_path / "k.db")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr


async def make_damaged(path: Path, replace: tuple[bytes, bytes]) -> SqlStore:
    """A store that is served while bytes of its file are not what was written."""
    store = await open_store(f"sqlite:///{path}", SystemClock())
    for n in range(200):
        await store.transact(enter_key, f"key-{n:03d}")
    await store.close()
    whole = path.read_bytes()
    assert replace[0] in whole
    path.write_bytes(whole.replace(*replace))
    return await open_store(f"sqlite:///{path}", SystemClock())


@pytest.mark.spec("X3", "X18")
async def test_a_damaged_row_found_by_a_read_is_told_and_nothing_more_is_written(
    tmp_path: Path,
) -> None:
    store = await make_damaged(tmp_path / "k.db", (b"key-077", b"key-\xff77"))
    with pytest.raises(StoreDownError, match=r"file is damaged .*: restore a backup") as caught:
        await store.read(key_names)
    assert "key-" not in str(caught.value), "what stood in the row is not shown"
    health = store.health()
    assert not health.ok and health.reason is not None and "damaged" in health.reason
    with pytest.raises(StoreDownError, match="damaged"):
        await store.transact(enter_key, "new")
    await store.close()


@pytest.mark.spec("X3", "X18")
@pytest.mark.parametrize("call", ["read", "transact"])
async def test_a_damaged_page_is_told_as_such(tmp_path: Path, call: str) -> None:
    path = tmp_path / "k.db"
    store = await open_store(f"sqlite:///{path}", SystemClock())
    for n in range(300):
        await store.transact(enter_key, f"key-{n:03d}")
    await store.close()
    whole = path.read_bytes()
    page = whole.rindex(b"key-250") // 4096 * 4096  # a leaf of some table
    path.write_bytes(whole[:page] + b"\x07" * 4096 + whole[page + 4096 :])
    store = await open_store(f"sqlite:///{path}", SystemClock())

    def look_everywhere(tx: object) -> None:
        tx._session.raw("SELECT COUNT(name), MAX(secret_hash) FROM api_keys")  # type: ignore[attr-defined]
        tx._session.raw("SELECT COUNT(data_json) FROM event_packs NOT INDEXED")  # type: ignore[attr-defined]
        tx._session.raw("SELECT COUNT(*) FROM api_keys WHERE id > ''")  # type: ignore[attr-defined]
        tx._session.raw("SELECT COUNT(*) FROM event_packs WHERE entity_id > ''")  # type: ignore[attr-defined]

    with pytest.raises(StoreDownError, match=r"file is damaged .*malformed.*: restore a backup"):
        await getattr(store, call)(look_everywhere)
    assert not store.health().ok
    await store.close()


async def test_damage_found_while_opening_is_told_as_such(tmp_path: Path) -> None:
    path = tmp_path / "k.db"
    store = await open_store(f"sqlite:///{path}", SystemClock())
    await store.close()
    whole = path.read_bytes()
    page = whole.rindex(b"queue_hours") // 4096 * 4096  # the list of migrations
    path.write_bytes(whole[:page] + b"\x07" * 4096 + whole[page + 4096 :])
    with pytest.raises(SetupError, match="is damaged"):
        await open_store(f"sqlite:///{path}", SystemClock())


async def test_a_file_that_is_written_at_this_moment_does_not_pass_for_damaged(
    tmp_path: Path,
) -> None:
    path = tmp_path / "k.db"
    store = await open_store(f"sqlite:///{path}", SystemClock())
    await store.close()
    whole = path.read_bytes()
    root = whole[:100] + b"\xff" * 8 + whole[108:4096]  # the list of tables, half written
    with path.open("r+b") as stream:
        stream.write(root)
    looked = []

    def finish(_: float) -> None:
        looked.append(path.read_bytes() == whole)
        with path.open("r+b") as stream:
            stream.write(whole[:4096])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sqlite_file.time, "sleep", finish)
        assert (await check_schema(f"sqlite:///{path}", SystemClock())).applied == ()
    assert looked == [False]


@pytest.mark.fault("F30")
@pytest.mark.parametrize(
    ("name", "trouble"),
    [
        ("IOERR_FSYNC", Trouble.BROKEN),
        ("IOERR_DIR_FSYNC", Trouble.BROKEN),
        ("IOERR_READ", Trouble.LOST),
        ("IOERR_SHMMAP", Trouble.LOST),
        ("IOERR_LOCK", Trouble.LOST),
        ("IOERR_NOMEM", Trouble.LOST),
        ("IOERR_WRITE", Trouble.FULL),
        ("FULL", Trouble.FULL),
        ("CANTOPEN", Trouble.LOST),
        ("READONLY", Trouble.LOST),
        ("NOMEM", Trouble.LOST),
        ("CORRUPT", Trouble.DAMAGED),
        ("BUSY", Trouble.RETRY),
        ("CONSTRAINT_UNIQUE", Trouble.OURS),
    ],
)
def test_only_a_failed_sync_closes_the_store(name: str, trouble: Trouble) -> None:
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = getattr(sqlite3, f"SQLITE_{name}")
    assert SqliteDialect("k.db", SystemClock()).classify(error) is trouble


@pytest.mark.spec("X10", "X18")
@pytest.mark.parametrize("how", ["removed", "replaced by another"])
async def test_nothing_is_acknowledged_into_a_file_that_is_gone(tmp_path: Path, how: str) -> None:
    path, aside = tmp_path / "k.db", tmp_path / "aside.db"
    store = await open_store(f"sqlite:///{path}", SystemClock())
    await store.transact(enter_key, "first")
    path.rename(aside)
    if how != "removed":
        path.write_bytes(aside.read_bytes())
    with pytest.raises(StoreDownError, match=f"k.db was {how} while the server runs"):
        for n in range(100):
            await store.transact(enter_key, f"k{n}")
            await asyncio.sleep(0.05)
    assert not store.health().ok
    with pytest.raises(StoreDownError):
        await store.transact(enter_key, "no")
    aside.rename(path)  # and back: it was only away
    await store.transact(enter_key, "last")
    assert store.health().ok
    names = await store.read(key_names)
    assert {"first", "last"} <= names and "no" not in names
    await store.close()


def test_a_store_reached_by_one_writer_is_not_away_for_the_others() -> None:
    tally = Tally()
    tally.mark_away(OSError("refused"), 60)
    assert tally.down_reason == "refused" and tally.down_until > 0
    tally.mark_reached()
    assert (tally.down_reason, tally.down_until) == (None, 0.0)
