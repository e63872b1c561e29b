"""Files of the real process: for their owner alone, whatever the umask, never through a link."""

import json
import os
import pwd
import stat
from pathlib import Path

import pytest

from tests.ground.child import wait_for
from tests.ground.process import Program, run_cli

OPEN_HANDED = ("sh", "-c", 'umask 000; exec "$@"', "sh")


def modes(folder: Path) -> dict[str, str]:
    """The mode of everything in a folder, and of the folder."""
    found = {path.name: path for path in folder.iterdir() if not path.name.startswith("cli-")}
    found["."] = folder
    return {name: f"{stat.S_IMODE(path.stat().st_mode):o}" for name, path in found.items()}


def serve(tmp_path: Path, data: Path, **more: object) -> Program:
    """A server whose working folder and log are not in its data folder."""
    env = {"KSANA_DATA": str(data)}
    return Program(tmp_path / "work", prefix=OPEN_HANDED, env=env, **more)  # type: ignore[arg-type]


def make_timer(program: Program) -> None:
    schedule = {"kind": "every", "every": "1h"}
    http = {"url": "http://127.0.0.1:9/", "headers": {"Authorization": "Bearer s3cret"}}
    assert program.post("/jobs", {"schedule": schedule, "http": http}).status_code == 201


@pytest.mark.spec("X2")
def test_the_data_folder_and_every_file_in_it_are_for_the_owner_alone(tmp_path: Path) -> None:
    data = tmp_path / "new" / "data"
    with serve(tmp_path, data) as program:
        program.start()
        make_timer(program)
        wait_for(lambda: (data / "ksana.db-wal").stat().st_size > 0, "something is in the log")
        assert modes(data) == {
            ".": "700",
            "ksana.db": "600",
            "ksana.db-wal": "600",
            "ksana.db-shm": "600",
            "ksana.db.lock": "600",
        }
        program.terminate()
    assert set(modes(data).values()) == {"700", "600"}


@pytest.mark.spec("X2", "T20")
def test_a_json_store_is_for_its_owner_alone_while_it_is_rewritten_too(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir(mode=0o777)
    data.chmod(0o777)
    for name in ("jobs.json", "jobs.bad.json"):
        (data / name).write_text("torn")
        (data / name).chmod(0o666)
    with serve(tmp_path, data, store=f"json:///{data}/jobs.json") as program:
        program.start()
        make_timer(program)
        found = modes(data)
        assert {name: found[name] for name in found if name != "jobs.json.tmp"} == {
            ".": "700",
            "jobs.json": "600",
            "jobs.json.lock": "600",
            "jobs.bad.json": "600",
            "jobs.bad.1.json": "600",
        }
        program.terminate()
    assert "s3cret" in (data / "jobs.json").read_text()


@pytest.mark.spec("X2")
def test_files_that_an_earlier_version_left_readable_are_restricted_at_the_next_start(
    tmp_path: Path,
) -> None:
    data = tmp_path / "data"
    with serve(tmp_path, data) as program:
        program.start()
        make_timer(program)
        program.kill9()  # leaves the log and its index behind
        data.chmod(0o755)
        for path in data.iterdir():
            path.chmod(0o644)
        code, printed = run_cli("doctor", env={**program.env, "PORT": "0"}, cwd=tmp_path)
        assert code == 1
        assert "others can read" in printed
        assert str(data / "ksana.db-wal") in printed
        program.start()
        assert set(modes(data).values()) == {"700", "600"}
        code, printed = run_cli("doctor", env={**program.env, "PORT": "0"}, cwd=tmp_path)
        assert "is for its owner alone" in printed


def test_a_folder_that_is_made_for_a_url_is_for_its_owner_alone(tmp_path: Path) -> None:
    new = tmp_path / "above" / "new"
    with serve(tmp_path, tmp_path / "unused", store=f"sqlite:///{new}/k.db") as program:
        program.start()
        assert modes(new)["."] == "700"


def test_a_folder_that_only_the_url_names_keeps_its_mode(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o755)
    with serve(tmp_path, tmp_path / "unused", store=f"sqlite:///{shared}/k.db") as program:
        program.start()
        assert modes(shared) == {
            ".": "755",
            "k.db": "600",
            "k.db-wal": "600",
            "k.db-shm": "600",
            "k.db.lock": "600",
        }


@pytest.mark.parametrize("store", ["sqlite:///{}/ksana.db", "json:///{}/jobs.json"])
@pytest.mark.parametrize("kind", ["symbolic link", "second name"])
def test_the_lock_is_never_written_through_a_link(tmp_path: Path, store: str, kind: str) -> None:
    data, victim = tmp_path / "data", tmp_path / "victim"
    data.mkdir()
    victim.write_text("do not touch")
    lock = data / (store.rpartition("/")[2] + ".lock")
    if kind == "symbolic link":
        lock.symlink_to(victim)
    else:
        os.link(victim, lock)
    with serve(tmp_path, data, store=store.format(data)) as program:
        program.start(until=None)
        assert program.wait_for_end() == 1
        assert f"{lock} is a {kind}" in program.log_text()
        assert "Traceback" not in program.log_text()
    assert victim.read_text() == "do not touch"


def test_a_lock_that_links_to_nothing_makes_no_file_there(tmp_path: Path) -> None:
    data, victim = tmp_path / "data", tmp_path / "victim"
    data.mkdir()
    (data / "ksana.db.lock").symlink_to(victim)
    with serve(tmp_path, data) as program:
        program.start(until=None)
        assert program.wait_for_end() == 1
    assert not victim.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a file for somebody else")
@pytest.mark.parametrize("store", ["sqlite:///{}/ksana.db", "json:///{}/jobs.json"])
def test_what_root_makes_in_the_store_of_a_user_belongs_to_that_user(
    tmp_path: Path, store: str
) -> None:
    owner = pwd.getpwnam("nobody").pw_uid
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    os.chown(data, owner, -1)
    if store.startswith("json"):  # which `ksana migrate` does not make
        (data / "jobs.json").write_text('{"version": 1, "jobs": []}')
        os.chown(data / "jobs.json", owner, -1)
    env = {"KSANA_STORE": store.format(data), "KSANA_DATA": str(data)}
    for command in (("migrate",), ("key", "create", "--name", "a", "--scope", "*:read")):
        code, text = run_cli(*command, env=env, cwd=tmp_path)
        assert code == 0, text
    made = list(data.iterdir())
    assert made
    assert {path.name: path.stat().st_uid for path in made} == {p.name: owner for p in made}


def test_a_draft_planted_as_a_link_is_not_written_through(tmp_path: Path) -> None:
    data, victim = tmp_path / "data", tmp_path / "victim"
    data.mkdir()
    victim.write_text("do not touch")
    (data / "jobs.json.tmp").symlink_to(victim)
    with serve(tmp_path, data, store=f"json:///{data}/jobs.json") as program:
        program.start()
        make_timer(program)
        assert len(json.loads((data / "jobs.json").read_text())["jobs"]) == 1
    assert victim.read_text() == "do not touch"
