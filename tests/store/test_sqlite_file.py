"""The SQLite file: ours and whole, or refused with what was found and left as it is. One server per
file. kill -9."""

import asyncio
import hashlib
import os
import re
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from ksana.base.clock import SystemClock
from ksana.base.errors import SetupError
from ksana.store.sql import open_store
from tests.conformance.store.checks import enter_key, key_names

ROOT = Path(__file__).parents[2]


async def make_store(path: Path, *names: str) -> None:
    store = await open_store(f"sqlite:///{path}", SystemClock())
    for name in names:
        await store.transact(enter_key, name)
    await store.close()


async def refused(path: Path, *, serve: bool = True) -> str:
    """Try to open; the sentence it was refused with. The file must be as it was."""
    before = fingerprint(path)
    with pytest.raises(SetupError) as caught:
        await open_store(f"sqlite:///{path}", SystemClock(), serve=serve)
    assert fingerprint(path) == before, "the file was touched"
    return str(caught.value)


def fingerprint(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "no file"


async def test_a_text_file_is_refused_with_its_first_bytes(tmp_path: Path) -> None:
    path = tmp_path / "k.db"
    path.write_text("dear diary, today I was nearly a database\n" * 100)
    message = await refused(path)
    assert "not a SQLite database" in message
    assert "dear diary, toda" in message


async def test_a_database_of_another_program_is_refused_with_its_tables(tmp_path: Path) -> None:
    path = tmp_path / "k.db"
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE django_migrations (id INTEGER)")
        other.execute("CREATE TABLE auth_user (id INTEGER)")
    other.close()
    message = await refused(path)
    assert "another program" in message
    assert "auth_user, django_migrations" in message


async def test_a_truncated_file_is_refused_with_its_sizes(tmp_path: Path) -> None:
    path = tmp_path / "k.db"
    await make_store(path, "a")
    size = path.stat().st_size
    os.truncate(path, size // 2)
    message = await refused(path)
    assert f"should have {size} bytes and has {size // 2}" in message
    os.truncate(path, 60)
    assert "cut short" in await refused(path)


async def test_a_damaged_header_is_refused_or_harmless_never_repaired(tmp_path: Path) -> None:
    path = tmp_path / "k.db"
    await make_store(path, "a")
    whole = path.read_bytes()
    refusals: list[str] = []
    for at in range(100):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0xA5]) + whole[at + 1 :])
        for beside in ("-wal", "-shm"):
            path.with_name(path.name + beside).unlink(missing_ok=True)
        before = fingerprint(path)
        try:
            store = await open_store(f"sqlite:///{path}", SystemClock(), inline=True)
        except SetupError as error:
            refusals.append(str(error))
            assert fingerprint(path) == before, f"byte {at}: refused, yet touched"
        else:
            assert await store.read(key_names) == {"a"}, f"byte {at} was let in and lost something"
            await store.close()
    assert len(refusals) >= 30
    assert all(str(path) in message for message in refusals)


async def test_a_damaged_schema_page_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "k.db"
    await make_store(path, "a")
    whole = path.read_bytes()
    path.write_bytes(whole[:100] + b"\xff" * 200 + whole[300:])
    assert "damaged" in await refused(path)


async def test_a_directory_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "k.db"
    path.mkdir()
    assert "is a folder; the store is a file" in await refused(path)
    assert "is a folder; the store is a file" in await refused(path, serve=False)


async def test_a_folder_that_cannot_be_made_or_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for serve in (True, False):
        assert "its folder is a file" in await refused(tmp_path / "file" / "k.db", serve=serve)
        message = await refused(Path("/proc/ksana/k.db"), serve=serve)
        assert "cannot use /proc/ksana/k.db" in message


async def test_an_empty_file_becomes_a_store(tmp_path: Path) -> None:
    path = tmp_path / "k.db"
    path.touch()
    await make_store(path, "a")
    assert path.read_bytes()[68:72] == b"KSAN"


async def vanish(path: Path, how: str) -> None:
    """A store that was served, and of whose database nothing is left."""
    store = await open_store(f"sqlite:///{path}", SystemClock(), serve=True)
    await store.transact(enter_key, "a")
    await store.close()
    path.unlink()
    if "empty" in how:
        path.touch()
    if "log" in how:
        path.with_name("k.db-wal").write_bytes(b"x" * 4152)
    if "no note" in how:
        path.with_name("k.db.lock").write_text("123")


@pytest.mark.parametrize(
    ("how", "told"),
    [
        (
            "missing",
            [r"is missing", r"k\.db\.lock, which says: opened 20\S+Z, with \d+ rows of events"],
        ),
        ("empty", [r"is empty", r"k\.db\.lock, which says: opened"]),
        ("empty, log left", [r"is empty", r"k\.db-wal with 4152 bytes, k\.db\.lock"]),
        ("missing, log left, no note", [r"is missing", r"here: k\.db-wal with 4152 bytes\. No"]),
    ],
)
@pytest.mark.parametrize("serve", [True, False])
async def test_a_store_that_vanished_is_refused_with_what_it_left(
    tmp_path: Path, how: str, told: list[str], serve: bool
) -> None:
    path = tmp_path / "k.db"
    await vanish(path, how)
    for _ in range(2):  # a refusal takes nothing of the evidence away
        message = await refused(path, serve=serve)
        assert all(re.search(one, message) for one in told), message
        assert "restore a backup (docs/operate/backup.md" in message
    assert ("log" in how) == path.with_name("k.db-wal").exists()


@pytest.mark.fault("F40")
async def test_a_first_start_that_was_cut_short_is_made_up_for(tmp_path: Path) -> None:
    path = tmp_path / "k.db"
    path.touch()
    path.with_name("k.db.lock").write_text("123")  # the lock is taken before the store is made
    await make_store(path, "a")
    assert path.read_bytes()[68:72] == b"KSAN"


async def test_who_moves_the_remains_away_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "k.db"
    await vanish(path, "missing, log left")
    for beside in (".lock", "-wal"):
        path.with_name("k.db" + beside).unlink()
    await make_store(path, "a")


async def test_many_who_make_the_same_new_store_at_once_all_succeed(tmp_path: Path) -> None:
    for attempt in range(5):
        url = f"sqlite:///{tmp_path}/k{attempt}.db"
        stores = await asyncio.gather(*(open_store(url, SystemClock()) for _ in range(6)))
        for number, store in enumerate(stores):
            await store.transact(enter_key, f"k{number}")
        assert await stores[0].read(key_names) == {f"k{number}" for number in range(6)}
        for store in stores:
            await store.close()


@pytest.mark.parametrize(
    "url", ["sqlite://", "sqlite:///", "sqlite", "oracle://x/y", "mysql://host"]
)
async def test_a_bad_url_is_refused(url: str) -> None:
    with pytest.raises(SetupError):
        await open_store(url, SystemClock())


def start_driver(path: Path, prefix: str, callers: int = 4) -> "subprocess.Popen[str]":
    command = [
        sys.executable,
        "-m",
        "tests.store.driver",
        str(path),
        "1000000",
        str(callers),
        prefix,
    ]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def read_until(process: "subprocess.Popen[str]", count: int) -> list[str]:
    """Read the driver's lines until it has acknowledged so many."""
    assert process.stdout is not None
    acknowledged: list[str] = []
    while len(acknowledged) < count:
        line = process.stdout.readline()
        assert line, "the driver ended"
        if line.startswith("ack "):
            acknowledged.append(line.split()[1])
    return acknowledged


async def test_a_second_server_on_the_same_file_is_refused_naming_the_first(tmp_path: Path) -> None:
    path = tmp_path / "k.db"
    driver = start_driver(path, "k")
    try:
        read_until(driver, 1)
        with pytest.raises(SetupError, match=rf"pid {driver.pid}\b.*{path}"):
            await open_store(f"sqlite:///{path}", SystemClock(), serve=True)
        beside = await open_store(f"sqlite:///{path}", SystemClock())
        assert await beside.transact(enter_key, "by-the-cli") == "by-the-cli"
        await beside.close()
    finally:
        driver.kill()
        driver.communicate()
    store = await open_store(f"sqlite:///{path}", SystemClock(), serve=True)
    assert "by-the-cli" in await store.read(key_names)
    await store.close()


@pytest.mark.fault("F40")
async def test_the_log_left_by_a_kill_is_recovered(tmp_path: Path) -> None:
    path = tmp_path / "k.db"
    driver = start_driver(path, "k")
    acknowledged = await asyncio.to_thread(read_until, driver, 50)
    driver.send_signal(signal.SIGKILL)
    assert driver.stdout is not None
    acknowledged += [
        line.split()[1] for line in driver.stdout if line.startswith("ack ") and line.endswith("\n")
    ]
    driver.wait()
    driver.stdout.close()
    assert path.with_name("k.db-wal").stat().st_size > 0, (
        "nothing was left to recover: this proves nothing"
    )
    store = await open_store(f"sqlite:///{path}", SystemClock(), serve=True)
    assert set(acknowledged) <= await store.read(key_names)
    await store.close()


async def test_no_log_is_left_by_a_store_that_was_closed(tmp_path: Path) -> None:
    for n in range(100):
        store = await open_store(f"sqlite:///{tmp_path / 'k.db'}", SystemClock(), serve=True)
        await store.transact(enter_key, f"k{n}")
        await asyncio.gather(*(store.read(key_names) for _ in range(8)))  # every reader is open
        await store.close()
        assert not (tmp_path / "k.db-wal").exists(), f"left by close number {n}"
