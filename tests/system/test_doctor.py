"""`ksana doctor`: finds what a start would stumble over, in words, and touches nothing."""

import hashlib
import json
import os
import sqlite3
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ksana.boot import doctor
from ksana.boot.settings.sources import load
from tests.ground.mariadb import MariaDB
from tests.ground.postgres import Postgres
from tests.ground.process import Program, run_cli
from tests.ground.target import Answer, Target
from tests.store.disk import fill, small_disk


async def examine(folder: Path, **env: str) -> dict[str, str]:
    """The findings that are bad, by the name of their line."""
    settings = load({}, {"KSANA_DATA": str(folder), "PORT": "0", **env}, None).settings
    return {one.name: one.text for one in await doctor.examine(settings) if not one.ok}


def contents(folder: Path) -> dict[str, str]:
    """What lies in a folder, to see that nothing changed."""
    return {
        str(path.relative_to(folder)): "folder"
        if path.is_dir()
        else f"{path.stat().st_mode} {hashlib.sha256(path.read_bytes()).hexdigest()}"
        for path in sorted(folder.rglob("*"))
    }


def make_foreign(folder: Path) -> None:
    (folder / "ksana.db").write_text("Dear diary, this is not a database at all." * 9)


def make_other_program(folder: Path) -> None:
    with sqlite3.connect(folder / "ksana.db") as connection:
        connection.execute("CREATE TABLE users (name TEXT)")
    connection.close()


def make_folder(folder: Path) -> None:
    (folder / "ksana.db").mkdir()


def make_cut(folder: Path) -> None:
    (folder / "ksana.db").write_bytes(b"SQLite format 3\x00" + b"\x10\x00")


def make_bad_job(folder: Path) -> None:
    jobs = [{"id": "good", "schedule": {"kind": "every", "every": "1h"}}, {"id": "bad"}]
    for job in jobs:
        job["request"] = {"method": "GET", "url": "http://127.0.0.1/"}
    (folder / "jobs.json").write_text(json.dumps({"version": 1, "jobs": jobs}))


CASES = {
    "a foreign file": (make_foreign, "store", "is not a SQLite database"),
    "another program's": (make_other_program, "store", "of another program: it holds the tables"),
    "a folder in its place": (make_folder, "files", "is a folder; the store is a file"),
    "a header cut short": (make_cut, "store", "its header is cut short"),
    "a bad job": (make_bad_job, "jobs.json", "the job 'bad' was not taken over"),
}


@pytest.mark.parametrize("case", CASES)
async def test_what_is_in_the_stores_place_is_found_and_left_alone(
    tmp_path: Path, case: str
) -> None:
    make, name, words = CASES[case]
    tmp_path.chmod(0o700)
    make(tmp_path)
    for path in tmp_path.iterdir():
        path.chmod(0o700 if path.is_dir() else 0o600)
    before = contents(tmp_path)
    bad = await examine(tmp_path)
    assert words in bad[name]
    assert contents(tmp_path) == before
    assert name == "jobs.json" or "jobs.json" not in bad


@pytest.mark.spec("T19")
async def test_a_bad_job_of_a_json_store_is_found(tmp_path: Path) -> None:
    make_bad_job(tmp_path)
    (tmp_path / "jobs.json").chmod(0o600)
    bad = await examine(tmp_path, KSANA_STORE=f"json:///{tmp_path}/jobs.json")
    assert "the job 'bad' is not armed" in bad["jobs.json"]
    assert "store" not in bad


async def test_a_folder_that_is_a_file_is_found(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("x")
    assert "is a file; the store needs a folder" in (await examine(tmp_path / "data"))["disk"]


async def test_a_file_system_without_room_for_files_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await examine(tmp_path) == {}
    real = os.statvfs(tmp_path)
    sizes = {"f_frsize": 1, "f_bsize": 1, "f_blocks": 1 << 40, "f_bfree": 1 << 39}
    used_up = SimpleNamespace(**sizes, f_bavail=1 << 39, f_files=real.f_files or 9, f_favail=0)
    monkeypatch.setattr(os, "statvfs", lambda _: used_up)
    assert "no room for another file" in (await examine(tmp_path))["disk"]


async def test_a_disk_that_is_really_full_is_found(tmp_path: Path) -> None:
    with small_disk(tmp_path, 512) as disk:
        fill(disk)
        for store in (f"sqlite:///{disk}/ksana.db", f"json:///{disk}/jobs.json"):
            found = (await examine(disk, KSANA_STORE=store))["disk"]
            assert found == f"{disk} has 0 MiB free; at least 256 are wanted"


async def test_a_check_that_fails_in_a_way_nobody_thought_of_is_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fall(*_: Any) -> str:
        raise KeyError("hush: Bearer abcdef123456")

    monkeypatch.setattr(doctor, "rules_version", fall)
    bad = await examine(tmp_path)
    assert bad == {"time zones": "KeyError: 'hush: Bearer ***'"}


@pytest.mark.spec("X2")
def test_our_own_server_on_its_port_and_store_is_no_trouble(program: Program) -> None:
    program.start()
    env = {"KSANA_DATA": str(program.data_dir), "PORT": str(program.port)}
    code, text = run_cli("doctor", env=env, cwd=program.data_dir)
    assert code == 0 and "BAD" not in text, text
    assert f"ok   address       our own server (pid {program.pid}) answers at" in text
    assert f"ok   server        our own server (pid {program.pid}) is on" in text
    assert program.get("/readyz").status_code == 200
    assert program.terminate() == 0
    code, text = run_cli("doctor", env=env, cwd=program.data_dir)
    assert code == 0, text
    assert "is free" in text and "no server is on the file" in text


@pytest.mark.spec("X2")
def test_a_server_beside_ours_is_not_taken_for_it(tmp_path: Path) -> None:
    with Program(tmp_path / "one") as one, Program(tmp_path / "two") as two:
        one.start()
        two.start()
        # The store of one, the port of the other: a start would be refused for both.
        env = {"KSANA_DATA": str(one.data_dir), "PORT": str(two.port)}
        code, text = run_cli("doctor", env=env, cwd=tmp_path)
        assert code == 1
        assert "BAD  address       Cannot listen on" in text
        assert f"BAD  server        ksana serve (pid {one.pid}) is on" in text


@pytest.mark.spec("X2")
def test_a_foreign_program_on_our_port_is_not_taken_for_our_server(tmp_path: Path) -> None:
    with Target() as target:
        target.on("/readyz", Answer(200, b'{"status":"ready","checks":{},"problems":[]}'))
        env = {"KSANA_DATA": str(tmp_path), "PORT": str(target.port)}
        code, text = run_cli("doctor", env=env, cwd=tmp_path)
        assert code == 1
        assert "BAD  address       Cannot listen on" in text


@pytest.mark.spec("X2")
def test_our_own_server_that_hangs_is_told_as_such(program: Program) -> None:
    program.start()
    program.pause()
    try:
        env = {"KSANA_DATA": str(program.data_dir), "PORT": str(program.port)}
        code, text = run_cli("doctor", env=env, cwd=program.data_dir)
    finally:
        program.resume()
    assert code == 1
    assert f"BAD  address       our own server (pid {program.pid}) is not ready: it did not" in text


@pytest.mark.spec("X2")
@pytest.mark.parametrize("server", ["postgres", "mariadb"])
def test_our_own_server_over_a_database_is_known_by_its_row(
    request: pytest.FixtureRequest, tmp_path: Path, server: str
) -> None:
    running: Postgres | MariaDB = request.getfixturevalue(server)
    url = running.url(running.create_database())
    with Program(tmp_path, store=url) as program:
        program.start()
        env = {"KSANA_DATA": str(tmp_path), "PORT": str(program.port), "KSANA_STORE": url}
        code, text = run_cli("doctor", env=env, cwd=tmp_path)
        assert code == 0, text
        assert f"our own server (pid {program.pid}) answers at" in text


@pytest.mark.parametrize("server", ["postgres", "mariadb"])
async def test_a_database_that_does_not_exist_is_found(
    request: pytest.FixtureRequest, tmp_path: Path, server: str
) -> None:
    running: Postgres | MariaDB = request.getfixturevalue(server)
    bad = await examine(tmp_path, KSANA_STORE=running.url("nowhere"))
    assert "make it (CREATE DATABASE)" in bad["store"]
    url = running.url(running.create_database())
    bad = await examine(tmp_path, KSANA_STORE=url)
    assert "holds no Ksana store yet: run ksana migrate" in bad["store"]


def test_the_command_never_shows_a_traceback(tmp_path: Path) -> None:
    make_foreign(tmp_path)
    code, text = run_cli("doctor", env={"KSANA_DATA": str(tmp_path), "PORT": "0"}, cwd=tmp_path)
    assert code == 1
    assert "BAD  store" in text and "Traceback" not in text
