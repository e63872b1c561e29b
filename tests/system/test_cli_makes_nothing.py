"""Commands that read or change a store do not make one: a wrong folder is said, not filled."""

from pathlib import Path

import pytest

from tests.ground.mariadb import MariaDB
from tests.ground.postgres import Postgres
from tests.ground.process import Program, run_cli

COMMANDS = (
    ("key", "create", "--name", "k", "--scope", "*:admin"),
    ("key", "list"),
    ("key", "revoke", "abc"),
    ("audit", "verify"),
    ("audit", "export"),
    ("secret", "status"),
    ("doctor",),
)


CASES = [("sqlite", command) for command in COMMANDS] + [("json", COMMANDS[0])]


@pytest.mark.parametrize(("kind", "command"), CASES, ids=lambda one: " ".join(one[:2]))
def test_no_command_makes_a_file(tmp_path: Path, kind: str, command: tuple[str, ...]) -> None:
    folder = tmp_path / "typo"
    name = "ksana.db" if kind == "sqlite" else "jobs.json"
    env = {"KSANA_STORE": f"{kind}:///{folder / name}", "KSANA_DATA": str(folder), "PORT": "0"}
    code, text = run_cli(*command, env=env, cwd=tmp_path)
    assert not folder.exists(), text
    assert "Traceback" not in text
    if command != ("doctor",):
        assert code == 1
        assert f"there is no store at {folder / name} yet" in text


@pytest.mark.parametrize("server", ["postgres", "mariadb"])
def test_no_command_makes_tables(
    request: pytest.FixtureRequest, tmp_path: Path, server: str
) -> None:
    running: Postgres | MariaDB = request.getfixturevalue(server)
    url = running.url(running.create_database())
    code, text = run_cli("key", "list", env={"KSANA_STORE": url}, cwd=tmp_path)
    assert code == 1 and "holds no Ksana store yet: run ksana migrate" in text
    code, text = run_cli("migrate", env={"KSANA_STORE": url}, cwd=tmp_path)
    assert code == 0, text
    code, text = run_cli("key", "list", env={"KSANA_STORE": url}, cwd=tmp_path)
    assert (code, text) == (0, "")


def test_migrate_makes_a_store_in_which_a_key_can_be_made(tmp_path: Path) -> None:
    env = {"KSANA_DATA": str(tmp_path / "data")}
    assert run_cli("migrate", env=env, cwd=tmp_path)[0] == 0
    code, text = run_cli(
        "key", "create", "--name", "k", "--scope", "*:admin", env=env, cwd=tmp_path
    )
    assert code == 0 and text.startswith("ksana_")


@pytest.mark.spec("X19")
def test_the_first_key_binds_when_its_command_has_ended_and_a_revoked_one_no_more(
    program: Program,
) -> None:
    program.start()
    env = {"KSANA_DATA": str(program.data_dir)}
    assert program.get("/api/v1/tasks").status_code == 200
    for round_ in range(2):
        scope = ("--name", f"k{round_}", "--scope", "*:admin")
        code, text = run_cli("key", "create", *scope, env=env, cwd=program.data_dir)
        assert code == 0, text
        assert program.get("/api/v1/tasks").status_code == 401
        head = {"Authorization": f"Bearer {text.split()[-1]}"}
        assert program.get("/api/v1/tasks", headers=head).status_code == 200
        key_id = text.split()[-1].split("_")[1]
        code, text = run_cli("key", "revoke", key_id, env=env, cwd=program.data_dir)
        assert code == 0, text
        assert program.get("/api/v1/tasks", headers=head).status_code == 401
