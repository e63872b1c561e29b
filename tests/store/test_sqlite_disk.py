"""A disk that is full, that fails to sync, and proof that an answer waits for the sync. Real system
calls, by strace."""

import asyncio
import contextlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ksana.base.clock import SystemClock
from ksana.base.errors import StoreDownError
from ksana.store.sql import open_store
from ksana.store.sql.core.threads import COMMITS
from tests.conformance.store.checks import enter_key, event_types, key_names
from tests.ground.child import wait_for
from tests.store.disk import needs_strace, small_disk

ROOT = Path(__file__).parents[2]
ANSWERED = re.compile(r'write\(1<[^>]*>, "ack')
SYNCED = re.compile(r"f(?:data)?sync(?:\(\d+<[^>]*-wal>\)| resumed>\)).*= 0$")
FRESH_NAMES = (
    "import asyncio, sys; from tests.store.driver import write; "
    "asyncio.run(write(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), 'again'))"
)

AROUND_A_COPY = FRESH_NAMES.replace("write(", "write_around_a_copy(").replace(
    "import write;", "import write_around_a_copy;"
)


def drive(
    path: Path,
    count: int,
    callers: int = 1,
    *,
    tracer: list[str] | None = None,
    code: str | None = None,
) -> list[str]:
    """Run the driver, under strace if asked; the lines it printed."""
    program = ["-m", "tests.store.driver"] if code is None else ["-c", code]
    command = [*(tracer or []), sys.executable, *program, str(path), str(count), str(callers), "k"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()


def check_every_answer_follows_a_sync(folder: Path, code: str | None = None) -> None:
    """Between the answer before and this answer the write-ahead log was synced, for each of ten
    writes."""
    trace = folder / "trace"
    tracer = [
        needs_strace(),
        "-f",
        "-y",
        "-e",
        "trace=fsync,fdatasync,write",
        "-e",
        "signal=none",
        "-o",
        str(trace),
    ]
    lines = drive(folder / "k.db", 10, tracer=tracer, code=code)
    assert sum(line.startswith("ack") for line in lines) == 10
    syncs, answers = 0, 0
    for line in trace.read_text(errors="replace").splitlines():
        if ANSWERED.search(line):
            answers += 1
            assert syncs >= 1, f"answer {answers} was given without a sync since the one before"
            syncs = 0
        elif SYNCED.search(line):
            syncs += 1
    assert answers == 10


@pytest.mark.fault("F26")
def test_every_answer_follows_a_sync_of_the_log(tmp_path: Path) -> None:
    check_every_answer_follows_a_sync(tmp_path)


@pytest.mark.fault("F30")
@pytest.mark.parametrize("when", [1, 4])
def test_after_a_failed_sync_nothing_is_acknowledged(tmp_path: Path, when: int) -> None:
    path = tmp_path / "k.db"
    drive(path, 1)  # so that every sync below is one of a commit
    injection = [
        "-P",
        f"{path}-wal",
        "-e",
        "trace=fdatasync",
        "-e",
        f"inject=fdatasync:error=EIO:when={when}+",
    ]
    lines = drive(
        path,
        10,
        tracer=[needs_strace(), "-f", "-qq", "-o", os.devnull, *injection],
        code=FRESH_NAMES,
    )
    kinds = [line.split()[0] for line in lines[1:-1]]
    assert "down" in kinds
    first = kinds.index("down")
    assert "ack" not in kinds[first:], "a write was acknowledged after a sync had failed"
    assert "refused to make a write durable" in next(
        line for line in lines if line.startswith("down")
    )
    assert lines[-1].startswith("health False")


@pytest.mark.fault("F30")
def test_after_a_failed_sync_of_the_database_file_nothing_is_acknowledged(tmp_path: Path) -> None:
    """The checkpoint thread syncs the file itself; SQLite would hide the failure of its own."""
    path = tmp_path / "k.db"
    drive(path, 1)
    injection = [
        "-P",
        str(path),
        "-e",
        "trace=fsync,fdatasync",
        "-e",
        "inject=fsync,fdatasync:error=EIO:when=1+",
    ]
    lines = drive(
        path,
        COMMITS,
        10,
        tracer=[needs_strace(), "-f", "-qq", "-o", os.devnull, *injection],
        code=AROUND_A_COPY,
    )
    kinds = [line.split()[0] for line in lines[1:-1]]
    assert kinds == ["ack"] * COMMITS + ["down"] * 10
    assert lines[-1].startswith("health False the store refused to make a write durable")


@pytest.mark.fault("F33")
async def test_the_log_is_copied_back_beside_the_writer(tmp_path: Path) -> None:
    path = tmp_path / "k.db"
    store = await open_store(f"sqlite:///{path}", SystemClock())
    size = path.stat().st_size
    for n in range(COMMITS + 1):
        await store.transact(
            lambda tx, n=n: tx.events.append("TASK", n, "FILL", {"text": "y" * 5_000})
        )
    await asyncio.to_thread(
        wait_for, lambda: path.stat().st_size > size + 5_000 * COMMITS, "the log is copied back"
    )
    await store.close()


@pytest.mark.fault("F30")
@pytest.mark.parametrize("when", [1, 4])
async def test_a_failed_sync_leaves_whole_transactions_only(tmp_path: Path, when: int) -> None:
    path = tmp_path / "k.db"
    drive(path, 1)
    injection = [
        "-P",
        f"{path}-wal",
        "-e",
        "trace=fdatasync",
        "-e",
        f"inject=fdatasync:error=EIO:when={when}",
    ]
    lines = drive(
        path,
        10,
        tracer=[needs_strace(), "-f", "-qq", "-o", os.devnull, *injection],
        code=FRESH_NAMES,
    )
    acknowledged = {line.split()[1] for line in lines if line.startswith("ack")}
    store = await open_store(f"sqlite:///{path}", SystemClock())
    kept = await store.read(key_names)
    assert acknowledged <= kept
    assert {f"KEY_CREATED:{name}" for name in kept} == set(await store.read(event_types))
    await store.close()


@pytest.mark.fault("F31")
async def test_a_full_disk_is_told_leaves_nothing_half_written_and_heals(tmp_path: Path) -> None:
    with small_disk(tmp_path, 2048) as disk:
        store = await open_store(f"sqlite:///{disk}/k.db", SystemClock())
        await store.transact(enter_key, "before")
        ballast = disk / "ballast"
        with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as stream:
            while True:
                stream.write(b"x" * 4096)
        refusals: list[str] = []
        acknowledged = {"before"}
        for n in range(40):
            try:
                await store.transact(
                    lambda tx, n=n: tx.events.append("TASK", n, "FILL", {"text": "y" * 50_000})
                )
            except StoreDownError as error:
                refusals.append(error.message)
        assert len(refusals) >= 30
        assert all("room" in message for message in refusals)
        assert not store.health().ok
        assert await store.read(key_names) == acknowledged, "reads go on"
        ballast.unlink()
        assert await store.transact(enter_key, "after") == "after"
        assert store.health().ok
        assert await store.read(key_names) == {"before", "after"}
        fills = await store.read(lambda tx: tx.events.list_after(0, 100, event_type="FILL"))
        assert len(fills) == 40 - len(refusals)
        await store.close()


async def test_a_start_on_a_full_disk_is_refused_for_now_only(tmp_path: Path) -> None:
    with small_disk(tmp_path, 4096) as disk:
        ballast = disk / "ballast"
        with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as stream:
            while True:
                stream.write(b"x" * 4096)
        with pytest.raises(StoreDownError, match="full"):
            await open_store(f"sqlite:///{disk}/k.db", SystemClock())
        ballast.unlink()
        store = await open_store(f"sqlite:///{disk}/k.db", SystemClock())
        assert await store.transact(enter_key, "after") == "after"
        await store.close()
