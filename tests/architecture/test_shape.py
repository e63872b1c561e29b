"""The shape of the code: what a machine can check, no reader has to."""

import ast
import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from tests.ground.conformance import SpecCollector, unknown_items

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "ksana"
MAX_LINES = 400
TEXT_SUFFIXES = {
    "",
    ".py",
    ".md",
    ".sql",
    ".toml",
    ".txt",
    ".in",
    ".yml",
    ".yaml",
    ".sh",
    ".lua",
    ".ts",
    ".tsx",
    ".cfg",
}

# Put together from pieces, so that this file does not find itself.
UNFINISHED = re.compile(
    r"\b(" + "|".join(("TO" + "DO", "FIX" + "ME", "X" * 3, "HA" + "CK")) + r")\b"
)
MACHINE_PATH = re.compile(
    "(?<![\\w.}])("
    + "|".join(("/wo" + "rk/", "/ro" + "ot/", "/ho" + "me/[a-z]", "/Us" + "ers/[a-z]"))
    + ")"
)
BARE_TIME_TYPE = re.compile(r"\b(DATETIME|TIMESTAMP)\b(?!\s*\()", re.IGNORECASE)


def project_files() -> list[Path]:
    """Every file that is, or would be, in the repository."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    if listed.returncode == 0 and listed.stdout:
        found = [ROOT / line for line in listed.stdout.splitlines()]
    else:
        found = [
            path
            for folder in ("src", "tests", "docs", "scripts", "bench")
            for path in (ROOT / folder).rglob("*")
        ]
    return [path for path in found if path.is_file() and path.suffix in TEXT_SUFFIXES]


def source_files() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def test_files() -> list[Path]:
    return sorted((ROOT / "tests").rglob("test_*.py"))


test_files.__test__ = False  # type: ignore[attr-defined]


def named(paths: list[Path]) -> list[str]:
    return [str(path.relative_to(ROOT)) for path in paths]


def lines_matching(pattern: re.Pattern[str], paths: list[Path]) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in paths
        for number, line in enumerate(
            path.read_text(encoding="utf-8", errors="replace").splitlines(), 1
        )
        if pattern.search(line)
    ]


def assert_none(found: list[str]) -> None:
    """Fail with the whole list, one to a line."""
    assert not found, "\n  " + "\n  ".join(found)


def test_no_source_file_is_longer_than_four_hundred_lines() -> None:
    sizes = {path: len(path.read_text().splitlines()) for path in source_files()}
    assert sizes
    assert_none(named([path for path, size in sizes.items() if size > MAX_LINES]))


def test_every_module_says_in_its_first_lines_what_lives_there() -> None:
    assert_none(
        named(
            [path for path in source_files() if not ast.get_docstring(ast.parse(path.read_text()))]
        )
    )


def test_nothing_is_left_unfinished() -> None:
    assert_none(lines_matching(UNFINISHED, project_files()))


def test_no_statement_uses_a_time_type_that_drops_the_fraction() -> None:
    found = []
    for path in sorted(SOURCE.rglob("*.sql")):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if BARE_TIME_TYPE.search(line.partition("--")[0]):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()}")
    assert_none(found)


def test_no_file_names_a_path_of_the_machine_it_was_written_on() -> None:
    assert_none(lines_matching(MACHINE_PATH, project_files()))


def test_no_module_has_two_tests_of_one_name() -> None:
    doubled = []
    for path in test_files():
        tree = ast.parse(path.read_text())
        for scope in [tree, *(node for node in tree.body if isinstance(node, ast.ClassDef))]:
            names = [
                n.name for n in scope.body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)
            ]
            doubled += [
                f"{path.relative_to(ROOT)}: {name}"
                for name, count in Counter(names).items()
                if count > 1
            ]
    assert_none(doubled)


def test_every_folder_of_tests_is_a_package_so_that_file_names_may_repeat() -> None:
    folders = {path.parent for path in test_files()}
    assert_none(
        named(sorted(folder for folder in folders if not (folder / "__init__.py").exists()))
    )


def test_tests_name_only_items_that_the_contract_has(request: pytest.FixtureRequest) -> None:
    collector = SpecCollector()
    collector.pytest_collection_modifyitems(list(request.session.items))
    assert_none(unknown_items(collector.proofs))
