"""The JSON file on a disk that is full or fails, and the order of system calls behind every answer.
Real ones, by strace."""

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ksana.base.clock import SystemClock
from ksana.base.errors import StoreDownError
from ksana.service.tasks.definitions import NewTask
from ksana.store.jsonfile import open_store
from tests.store.disk import fill, needs_strace, small_disk
from tests.store.timers import task_service, timer

ROOT = Path(__file__).parents[2]
STEPS = (
    ("write", re.compile(r"(?<![a-z])write\(\d+<[^>]*jobs\.json\.tmp>")),
    ("sync", re.compile(r"fsync\(\d+<[^>]*jobs\.json\.tmp>\)\s+= 0")),
    ("rename", re.compile(r'rename(?:at2?)?\(.*jobs\.json\.tmp".*jobs\.json".*= 0')),
    ("folder", re.compile(r"fsync\(\d+<[^>]*/data>\)\s+= 0")),
    ("answer", re.compile(r'(?<![a-z])write\(1<[^>]*>, "ack')),
)


def drive(folder: Path, count: int, *tracer: str) -> list[str]:
    """Create jobs in a process of its own, under strace if asked; the lines it printed."""
    command = [
        *tracer,
        sys.executable,
        "-m",
        "tests.store.timers",
        f"json:///{folder}",
        str(count),
        "1",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()


def job_ids(folder: Path) -> set[str]:
    return {job["id"] for job in json.loads((folder / "jobs.json").read_bytes())["jobs"]}


def acknowledged(lines: list[str]) -> set[str]:
    return {line.split()[1] for line in lines if line.startswith("ack")}


@pytest.mark.fault("F28", "F29")
@pytest.mark.spec("T20", "X10")
def test_every_answer_follows_write_sync_rename_and_sync_of_the_folder(tmp_path: Path) -> None:
    trace, folder = tmp_path / "trace", tmp_path / "data"
    calls = "trace=write,fsync,rename,renameat,renameat2"
    lines = drive(
        folder,
        5,
        needs_strace(),
        "-f",
        "-y",
        "-qq",
        "-e",
        calls,
        "-e",
        "signal=none",
        "-o",
        str(trace),
    )
    assert len(acknowledged(lines)) == 5
    seen: list[str] = []
    for line in whole_calls(trace):
        name = next((name for name, pattern in STEPS if pattern.search(line)), None)
        if name is not None and (not seen or seen[-1] != name):  # a long text takes several writes
            seen.append(name)
    for number, at in enumerate(at for at, name in enumerate(seen) if name == "answer"):
        assert seen[at - 4 : at] == ["write", "sync", "rename", "folder"], (
            f"before answer {number}: {seen[:at]}"
        )
    assert seen.count("answer") == 5


def whole_calls(trace: Path) -> Iterator[str]:
    """The traced calls, those cut in two by another thread's put together."""
    begun: dict[str, str] = {}
    for line in trace.read_text(errors="replace").splitlines():
        thread, _, call = line.partition(" ")
        call = call.strip()
        if call.endswith("<unfinished ...>"):
            begun[thread] = call.removesuffix("<unfinished ...>").rstrip()
        elif call.startswith("<..."):
            yield begun.pop(thread, "") + call.partition("resumed>")[2]
        else:
            yield call


@pytest.mark.spec("T20")
@pytest.mark.parametrize("when", [2, 4])
def test_a_sync_that_fails_is_a_refusal_and_the_old_file_stays(tmp_path: Path, when: int) -> None:
    folder = tmp_path / "data"
    before = acknowledged(drive(folder, 1))
    tracer = [needs_strace(), "-f", "-qq", "-o", os.devnull, "-P", str(folder / "jobs.json.tmp")]
    lines = drive(
        folder, 6, *tracer, "-e", "trace=fsync", "-e", f"inject=fsync:error=EIO:when={when}"
    )
    assert sum(line.startswith("down") for line in lines) == 1
    assert "could not be written: Input/output error" in next(
        line for line in lines if line.startswith("down")
    )
    assert job_ids(folder) == before | acknowledged(lines), "exactly what was answered"


@pytest.mark.fault("F28")
@pytest.mark.spec("T20")
def test_after_a_failed_sync_of_the_folder_nothing_is_acknowledged(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    before = acknowledged(drive(folder, 1))
    tracer = [needs_strace(), "-f", "-qq", "-o", os.devnull, "-P", str(folder)]
    lines = drive(folder, 6, *tracer, "-e", "trace=fsync", "-e", "inject=fsync:error=EIO:when=4+")
    kinds = [line.split()[0] for line in lines[1:-1]]
    assert kinds == ["ack"] * 3 + ["down"] * 3  # strace counts by thread
    assert lines[-1].startswith("health False")
    assert job_ids(folder) == before | acknowledged(lines)


async def until(fact: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not fact():
            await asyncio.sleep(0.01)


@pytest.mark.spec("T20")
async def test_a_full_disk_is_a_refusal_changes_nothing_and_heals(tmp_path: Path) -> None:
    with small_disk(tmp_path, 512) as disk:
        clock = SystemClock()
        store = await open_store(f"json:///{disk}", clock, serve=True)
        service = task_service(store, clock)
        kept = await service.create(NewTask("T", timer(clock.now())))
        ballast = fill(disk)
        before = (disk / "jobs.json").read_bytes()
        for _ in range(3):
            with pytest.raises(StoreDownError, match="No space left"):
                await service.create(NewTask("T", timer(clock.now(), body="y" * 9000)))
        with pytest.raises(StoreDownError, match="No space left"):
            await service.delete(kept.id)
        assert (disk / "jobs.json").read_bytes() == before
        assert not (disk / "jobs.json.tmp").exists()
        assert not store.health().ok
        assert [task.id for task in await store.read(lambda tx: tx.tasks.list_tasks())] == [
            kept.id
        ], "reads go on"
        ballast.unlink()
        made = await service.create(NewTask("T", timer(clock.now())))
        assert store.health().ok
        assert job_ids(disk) == {kept.job_id, made.job_id}
        assert made.id == 2, "a refused create took no number"
        await store.close()


@pytest.mark.spec("T20")
async def test_what_firings_left_is_written_when_there_is_room_again(tmp_path: Path) -> None:
    with small_disk(tmp_path, 512) as disk:
        clock = SystemClock()
        store = await open_store(f"json:///{disk}", clock, serve=True)
        task = await task_service(store, clock).create(NewTask("T", timer(clock.now())))
        ballast = fill(disk)
        await store.transact(lambda tx: tx.tasks.note_last([(task.id, "success", "")], clock.now()))
        await until(lambda: not store.health().ok)
        ballast.unlink()
        await until(lambda: store.health().ok)
        assert json.loads((disk / "jobs.json").read_bytes())["jobs"][0]["last_status"] == "success"
        await store.close()


@pytest.mark.spec("T20")
async def test_a_start_on_a_full_disk_is_refused_for_now_only(tmp_path: Path) -> None:
    with small_disk(tmp_path, 512) as disk:
        url = f"json:///{disk}"
        await (await open_store(url, SystemClock(), serve=True)).close()
        before = (disk / "jobs.json").read_bytes()
        ballast = fill(disk)
        with pytest.raises(StoreDownError, match="full"):
            await open_store(url, SystemClock(), serve=True)
        assert (disk / "jobs.json").read_bytes() == before
        ballast.unlink()
        await (await open_store(url, SystemClock(), serve=True)).close()


async def test_a_link_is_followed_and_the_file_behind_it_becomes_private(tmp_path: Path) -> None:
    real = tmp_path / "real.json"
    real.write_text('{"version": 1, "jobs": []}')
    real.chmod(0o640)
    (tmp_path / "jobs.json").symlink_to(real)
    clock = SystemClock()
    store = await open_store(f"json:///{tmp_path}", clock, serve=True)
    await task_service(store, clock).create(NewTask("T", timer(clock.now())))
    await store.close()
    assert (tmp_path / "jobs.json").is_symlink()
    assert real.stat().st_mode & 0o777 == 0o600
    assert len(json.loads(real.read_bytes())["jobs"]) == 1
