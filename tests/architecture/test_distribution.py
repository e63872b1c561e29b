"""What is shipped: the wheels build with the pinned tools, and carry all that the program reads."""

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
CLIENT = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        known = {"ksana", "msgspec", "httptools", *sys.stdlib_module_names}
        if top not in known:
            raise ImportError(f"{name} is not part of the SDK")
sys.meta_path.insert(0, Refuse())
from ksana.client import QueueClient, Worker
import pkgutil, importlib, ksana
for found in pkgutil.walk_packages(ksana.__path__, "ksana."):
    importlib.import_module(found.name)
tops = {name.split(".")[1] for name in sys.modules if name.startswith("ksana.")}
sys.stdout.write(" ".join(sorted(tops)))
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Both wheels by the name of their project, built with what is installed."""
    out = tmp_path_factory.mktemp("dist")
    for folder in (ROOT, ROOT / "packaging" / "client"):
        command = [sys.executable, "-m", "hatchling", "build", "-d", str(out), "-t", "wheel"]
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return {path.name.partition("-")[0]: path for path in out.glob("*.whl")}


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


def test_the_wheel_carries_every_module_statement_and_static_file(built: dict[str, Path]) -> None:
    wanted = {
        str(path.relative_to(SOURCE.parent))
        for path in SOURCE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    with ZipFile(built["ksana"]) as archive:
        carried = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert carried == wanted
    assert any(name.endswith(".sql") for name in carried)
    assert any("/static/" in name for name in carried)


def test_the_wheel_makes_a_server_by_itself(built: dict[str, Path], tmp_path: Path) -> None:
    folder = unpack(built["ksana"], tmp_path)
    assert run_with(folder, SERVER) == str(folder / "ksana" / "__init__.py")


def test_the_version_has_one_source(built: dict[str, Path]) -> None:
    for folder in (ROOT, ROOT / "packaging" / "client"):
        project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
        assert "version" not in project
        assert project["dynamic"] == ["version"]
    for wheel in built.values():
        assert metadata_of(wheel)["Version"] == [ksana.__version__]


def test_the_package_says_what_it_is(built: dict[str, Path]) -> None:
    metadata = metadata_of(built["ksana"])
    assert metadata["License-Expression"] == ["Apache-2.0"]
    names = {url.partition(",")[0] for url in metadata["Project-URL"]}
    assert {"Homepage", "Source", "Changelog", "Documentation"} <= names
    for version in ("3.11", "3.12", "3.13", "3.14"):
        assert f"Programming Language :: Python :: {version}" in metadata["Classifier"]
    uvicorn = next(line for line in metadata["Requires-Dist"] if line.startswith("uvicorn"))
    assert "<" in uvicorn, "its inside is used: a new version is tried before it is allowed"


def test_the_sdk_alone_needs_nothing_of_the_server(built: dict[str, Path], tmp_path: Path) -> None:
    folder = unpack(built["ksana_client"], tmp_path)
    assert run_with(folder, CLIENT) == "base client"
    needs = {line.partition(">")[0] for line in metadata_of(built["ksana_client"])["Requires-Dist"]}
    assert needs == {"msgspec", "httptools"}
