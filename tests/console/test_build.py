"""The built console: made of the sources beside it, small, and of nothing from elsewhere."""

import gzip
import hashlib
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.ground.server import MissingServerError, skip_missing

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "console"
BUILT = ROOT / "src" / "ksana" / "api" / "console" / "static"
AROUND = ("index.html", "package.json", "package-lock.json", "tsconfig.json", "vite.config.ts")
MOST_BYTES = 120_000
MAX_LINES = 400


def list_sources() -> list[str]:
    inside = [path for path in (SOURCES / "src").rglob("*") if path.is_file()]
    return sorted([path.relative_to(SOURCES).as_posix() for path in inside] + list(AROUND))


def sum_of_sources() -> str:
    """As vite.config.ts works it out."""
    found = hashlib.sha256()
    for name in list_sources():
        found.update(name.encode() + b"\0" + (SOURCES / name).read_bytes() + b"\0")
    return found.hexdigest()


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_built_files_are_made_of_these_sources() -> None:
    recorded = (BUILT / "sources.sha256").read_text().strip()
    assert recorded == sum_of_sources(), "the console's sources changed: run make console"


def test_what_a_browser_loads_is_small() -> None:
    packed = sum(len(gzip.compress(body)) for body in files_of(BUILT).values())
    assert 10_000 < packed <= MOST_BYTES


def test_the_page_loads_files_of_the_build_alone() -> None:
    page = (BUILT / "index.html").read_text()
    loaded = re.findall(r'(?:src|href)="([^"]+)"', page)
    assert len(loaded) == 3
    assert {name.removeprefix("./") for name in loaded} == set(files_of(BUILT)) - {
        "index.html",
        "sources.sha256",
    }
    assert "<style" not in page and "<script>" not in page, "the policy forbids both"


def test_the_lock_file_has_hashes_and_names_no_registry() -> None:
    text = (SOURCES / "package-lock.json").read_text()
    assert '"resolved"' not in text
    assert "registry" not in text
    assert text.count('"integrity"') > 10


def test_no_source_of_the_console_is_longer_than_four_hundred_lines() -> None:
    long = [
        name
        for name in list_sources()
        if name.endswith((".ts", ".tsx"))
        and len((SOURCES / name).read_text().splitlines()) > MAX_LINES
    ]
    assert not long


def test_a_build_of_the_sources_is_what_was_committed(tmp_path: Path) -> None:
    node = shutil.which("node")
    vite = SOURCES / "node_modules" / "vite" / "bin" / "vite.js"
    if node is None or not vite.exists():
        skip_missing(MissingServerError("the console's packages (scripts/console): not installed"))
    version = subprocess.run([node, "--version"], capture_output=True, text=True, check=True)
    if tuple(int(part) for part in version.stdout.strip("v\n").split(".")[:2]) < (20, 19):
        pytest.skip("Vite needs Node 20.19 or newer")
    env = {**os.environ, "KSANA_CONSOLE_OUT": str(tmp_path / "built")}
    for command in (["typescript/bin/tsc"], ["vite/bin/vite.js", "build", "--logLevel", "warn"]):
        program = str(SOURCES / "node_modules" / command[0])
        made = subprocess.run(
            [node, program, *command[1:]], cwd=SOURCES, env=env, capture_output=True, text=True
        )
        assert made.returncode == 0, made.stdout + made.stderr
    assert files_of(tmp_path / "built") == files_of(BUILT)
