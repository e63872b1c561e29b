"""Clients generated from the description of a real server, in two languages: they compile under
strict checks and read a run from that server."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn

import pytest

from tests.ground.child import wait_for
from tests.ground.pages import ROOT
from tests.ground.process import Program, clean_environment, run_cli
from tests.ground.server import is_ci
from tests.ground.target import Target

FOLDER = ROOT / "tests" / "clients"
MODULES = FOLDER / "node_modules"
PYTHON = FOLDER / ".venv" / "bin" / "python"
READ = "SUCCESS|1|True|every|NOT_FOUND"


def lacks(what: str) -> NoReturn:
    """Skip on a laptop, fail in CI, so that nothing goes untested in silence."""
    if is_ci():
        pytest.fail(f"MISSING: {what}, and CI=true forbids to skip", pytrace=False)
    pytest.skip(f"MISSING: {what} (scripts/examples installs it)")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    with Program(tmp_path_factory.mktemp("clients")) as program:
        yield program.start()


@pytest.fixture(scope="module")
def key(server: Program, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A key, without which nobody may read."""
    folder = tmp_path_factory.mktemp("key")
    code, text = run_cli(
        *("key", "create", "--name", "reader", "--scope", "*:write"), env=server.env, cwd=folder
    )
    assert code == 0, text
    (found,) = re.findall(r"ksana_[A-Za-z0-9_-]{20,}", text)
    server.client.headers["X-API-Key"] = found
    return str(found)


@pytest.fixture(scope="module")
def document(server: Program, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("document") / "openapi.json"
    file.write_bytes(server.get("/openapi.json").content)
    return file


@pytest.fixture(scope="module")
def run_id(server: Program, key: str) -> str:
    """A run that ended well."""
    with Target() as target:
        task = {"name": "hourly", "target_url": target.url("/"), "schedule": {"kind": "every"}}
        task["schedule"]["every"] = "1h"  # type: ignore[index]
        made = server.post("/api/v1/tasks", task).json()
        run = server.post(f"/api/v1/tasks/{made['id']}/trigger").json()
        run_id = str(run["run_id"])

        def has_ended() -> bool:
            return bool(server.get(f"/api/v1/runs/{run_id}").json()["end_time"])

        wait_for(has_ended, "the run has ended")
    return run_id


def run(command: Sequence[object], folder: Path, **env: str) -> str:
    done = subprocess.run(
        [str(part) for part in command],
        cwd=folder,
        env={**clean_environment(), **env},
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.spec("X8")
def test_a_generated_python_client_compiles_and_reads_a_run(
    server: Program, document: Path, key: str, run_id: str, tmp_path: Path
) -> None:
    generator = PYTHON.with_name("openapi-python-client")
    if not generator.exists():
        lacks("openapi-python-client")
    # Without formatting: it takes longer than all the rest, and changes nothing.
    (tmp_path / "config.yml").write_text("post_hooks: []\n")
    options = ["--meta", "none", "--output-path", "ksana_generated", "--fail-on-warning"]
    said = run(
        [generator, "generate", "--path", document, "--config", "config.yml", *options],
        tmp_path,
    )
    assert "warning" not in said.lower(), said
    shutil.copy(FOLDER / "read.py", tmp_path)
    checks = ["--strict", "--disable-error-code", "redundant-cast", "--python-executable", PYTHON]
    cache = ["--cache-dir", tmp_path / "cache", "--config-file", os.devnull]
    run([sys.executable, "-m", "mypy", *checks, *cache, "read.py", "ksana_generated"], tmp_path)
    assert run([PYTHON, "read.py", server.url(), key, run_id], tmp_path).strip() == READ


@pytest.mark.spec("X8")
def test_a_generated_typescript_client_compiles_and_reads_a_run(
    server: Program, document: Path, key: str, run_id: str, tmp_path: Path
) -> None:
    node = shutil.which("node")
    if node is None:
        lacks("Node.js")
    if not (MODULES / "openapi-typescript").is_dir():
        lacks("the modules of tests/clients")
    for name in ("package.json", "tsconfig.json", "read.ts"):
        shutil.copy(FOLDER / name, tmp_path)
    (tmp_path / "node_modules").symlink_to(MODULES)
    generator = MODULES / "openapi-typescript" / "bin" / "cli.js"
    run([node, generator, document, "-o", "schema.ts"], tmp_path)
    compiler = MODULES / "typescript" / "bin" / "tsc"
    run([node, compiler, "-p", "tsconfig.json"], tmp_path)
    read = run([node, "read.js", server.url(), key, run_id], tmp_path)
    assert read.strip().lower() == READ.lower()
