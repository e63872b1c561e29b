"""The contracts of imports hold, and each contract of surfaces can fail.

A contract that cannot fail says nothing. So imports against them are planted in a copy of the
source, and each must be reported under the contract that forbids it.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SURFACES = ("tasks", "queue", "governance", "nodes")
FLOORS = ("api", "service", "engine", "store/sql")
BELOW = ("ports", "domain")
ONLY = {
    "tasks": "Only tasks know tasks",
    "queue": "Only the queue knows the queue",
    "governance": "Only governance knows governance",
    "nodes": "Only nodes know nodes",
}
INDEPENDENT = "Surfaces of a floor are independent"
INDEPENDENT_BELOW = "Surfaces of ports and domain are independent"


def lint(source: Path) -> str:
    """What the linter says of the package in this folder."""
    program = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    command = [sys.executable, "-c", program, "--no-cache", "--config", str(ROOT / ".importlinter")]
    run = subprocess.run(
        command, cwd=source, env={"PYTHONPATH": str(source)}, capture_output=True, text=True
    )
    return run.stdout + run.stderr


def module_of(place: str) -> str:
    return f"ksana.{place.replace('/', '.')}.planted"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy in which every surface is a package on every floor, each with a module `planted`."""
    folder = tmp_path_factory.mktemp("source")
    shutil.copytree(
        ROOT / "src" / "ksana", folder / "ksana", ignore=shutil.ignore_patterns("__pycache__")
    )
    for floor in (*FLOORS, *BELOW):
        for surface in SURFACES:
            package = folder / "ksana" / floor / surface
            package.mkdir(exist_ok=True)
            (package / "__init__.py").touch()
            (package / "planted.py").touch()
    return folder


def report_on(source: Path, plants: dict[str, str]) -> str:
    """What the linter says once each of these packages imports the other."""
    files = {source / "ksana" / importer / "planted.py": plants[importer] for importer in plants}
    try:
        for file, imported in files.items():
            file.write_text(f"import {module_of(imported)}\n")
        return lint(source)
    finally:
        for file in files:
            if file.parent.name in SURFACES:
                file.write_text("")
            else:
                file.unlink()


def sections(report: str) -> dict[str, str]:
    """What is reported under each broken contract."""
    broken = report.partition("Broken contracts")[2]
    parts = re.split(r"^(\S.*)\n-{5,}$", broken, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def assert_reported(report: str, contract: str, importer: str, imported: str) -> None:
    for name, text in sections(report).items():
        if name.startswith(contract):
            edge = f"{module_of(importer)} -> {module_of(imported)}"
            assert edge in text, f"{edge} is not reported under {name}"
            return
    pytest.fail(f"{contract!r} is kept although {importer} imports {imported}\n{report[-3000:]}")


def test_imports_run_in_the_directions_of_the_contracts() -> None:
    report = lint(ROOT / "src")
    assert " 0 broken" in report, report


def test_a_copy_in_which_nothing_is_planted_keeps_the_contracts(source: Path) -> None:
    report = lint(source)
    assert " 0 broken" in report, report


def test_a_surface_that_imports_another_is_reported_on_every_floor(source: Path) -> None:
    following = {"tasks": "queue", "queue": "governance", "governance": "nodes", "nodes": "tasks"}
    plants = {
        f"{floor}/{left}": f"{floor}/{right}"
        for floor in (*FLOORS, *BELOW)
        for left, right in following.items()
    }
    report = report_on(source, plants)
    for importer, imported in plants.items():
        floor, _, _ = importer.rpartition("/")
        contract = INDEPENDENT if floor in FLOORS else INDEPENDENT_BELOW
        assert_reported(report, contract, importer, imported)
        assert_reported(report, ONLY[imported.rpartition("/")[2]], importer, imported)


@pytest.mark.parametrize("surface", SURFACES)
def test_a_core_that_imports_a_surface_is_reported_on_every_floor(
    source: Path, surface: str
) -> None:
    plants = {f"{floor}/core": f"{floor}/{surface}" for floor in FLOORS}
    plants |= {floor: f"{floor}/{surface}" for floor in BELOW}
    report = report_on(source, plants)
    for importer, imported in plants.items():
        if importer.endswith("/core"):
            assert_reported(report, INDEPENDENT, importer, imported)
        assert_reported(report, ONLY[surface], importer, imported)


def test_a_core_that_imports_a_surface_of_a_lower_floor_is_reported(source: Path) -> None:
    plants = {"engine/core": "domain/queue", "api/core": "service/tasks"}
    report = report_on(source, plants)
    assert_reported(report, ONLY["queue"], "engine/core", "domain/queue")
    assert_reported(report, ONLY["tasks"], "api/core", "service/tasks")


def test_a_module_beside_the_surfaces_of_a_floor_has_to_be_placed(source: Path) -> None:
    stray = source / "ksana" / "engine" / "stray.py"
    stray.touch()
    try:
        assert any(name.startswith(INDEPENDENT) for name in sections(lint(source)))
    finally:
        stray.unlink()
