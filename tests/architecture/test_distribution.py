"""What is shipped: the wheel builds with the pinned tools, and carries what the program reads."""

import subprocess
import sys
import tomllib
from email.parser import HeaderParser
from pathlib import Path
from zipfile import ZipFile

import pytest

import ksana

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "ksana"

SERVER = """
import ksana, sys
from ksana.boot.server import KsanaServer
from ksana.boot.settings.table import Settings
from ksana.store.sql.core.packages import find_tables, list_statement_files
app = KsanaServer(Settings())
assert find_tables() and list_statement_files()
sys.stdout.write(ksana.__file__)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built with what is installed."""
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(out), "-t", "wheel"]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return next(out.glob("*.whl"))


def unpack(wheel: Path, folder: Path) -> Path:
    with ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def run_with(folder: Path, program: str) -> str:
    """Run it with the unpacked wheel in front of everything that is installed."""
    setup = f"import sys; sys.path.insert(0, {str(folder)!r})\n"
    run = subprocess.run(
        [sys.executable, "-c", setup + program], cwd=folder, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


def metadata_of(wheel: Path) -> dict[str, list[str]]:
    with ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        found = HeaderParser().parsestr(archive.read(name).decode())
    return {key: found.get_all(key, []) for key in found}


def test_the_wheel_carries_every_module_statement_and_static_file(wheel: Path) -> None:
    wanted = {
        str(path.relative_to(SOURCE.parent))
        for path in SOURCE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    with ZipFile(wheel) as archive:
        carried = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert carried == wanted
    assert any(name.endswith(".sql") for name in carried)
    assert any("/static/" in name for name in carried)


def test_the_wheel_makes_a_server_by_itself(wheel: Path, tmp_path: Path) -> None:
    folder = unpack(wheel, tmp_path)
    assert run_with(folder, SERVER) == str(folder / "ksana" / "__init__.py")


def test_the_version_has_one_source(wheel: Path) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert "version" not in project
    assert project["dynamic"] == ["version"]
    assert metadata_of(wheel)["Version"] == [ksana.__version__]


def test_the_package_says_what_it_is(wheel: Path) -> None:
    metadata = metadata_of(wheel)
    assert metadata["License-Expression"] == ["Apache-2.0"]
    names = {url.partition(",")[0] for url in metadata["Project-URL"]}
    assert {"Homepage", "Source", "Changelog", "Documentation"} <= names
    for version in ("3.11", "3.12", "3.13", "3.14"):
        assert f"Programming Language :: Python :: {version}" in metadata["Classifier"]
    uvicorn = next(line for line in metadata["Requires-Dist"] if line.startswith("uvicorn"))
    assert "<" in uvicorn, "its inside is used: a new version is tried before it is allowed"
