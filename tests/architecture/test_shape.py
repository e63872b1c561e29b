"""The shape of the code: what a machine can check, no reader has to."""

import ast
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from ksana.domain.lifecycle import ALL as LIFECYCLES
from tests.ground.conformance import SpecCollector, unknown_items
from tests.ground.pages import event_kinds

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "ksana"
MAX_LINES = 400
MAX_FUNCTION_LINES = 60
MAX_OPERATIONS = 12
ENTITIES = {
    *("TASK", "RUN", "JOB", "LEASE", "KEY", "STORE"),
    *("GOV_JOB", "OBJECT", "GATE", "NODE", "SESSION", "NODE_JOB"),
}
EVENT_NAME = re.compile(r"[A-Z]+(_[A-Z]+)+")
SQL_TEXT = re.compile(r"'([A-Z]+(?:_[A-Z]+)+)'")
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
    found = (ROOT / "tests").rglob("test_*.py")
    return sorted(path for path in found if ".venv" not in path.parts)


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


def test_no_file_of_code_or_tests_is_longer_than_four_hundred_lines() -> None:
    tests = [path for path in (ROOT / "tests").rglob("*.py") if ".venv" not in path.parts]
    files = (*source_files(), *sorted(tests))
    sizes = {path: len(path.read_text().splitlines()) for path in files}
    assert sizes
    assert_none(named([path for path, size in sizes.items() if size > MAX_LINES]))


def test_no_function_is_longer_than_sixty_lines() -> None:
    """A table that is returned at the end counts as one line: a list of routes, a row read."""
    found = []
    for path in source_files():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                last = node.body[-1]
                end = last.lineno if isinstance(last, ast.Return) else node.end_lineno
                if (length := (end or 0) - node.lineno + 1) > MAX_FUNCTION_LINES:
                    found.append(f"{path.relative_to(ROOT)}: {node.name} has {length} lines")
    assert_none(found)


def operations_of_ports(source: str) -> dict[str, list[str]]:
    """What each contract of a port can be asked to do; its properties are what it consists of."""
    return {
        node.name: [
            member.name
            for member in node.body
            if isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef)
            and "property" not in {ast.unparse(mark) for mark in member.decorator_list}
        ]
        for node in ast.parse(source).body
        if isinstance(node, ast.ClassDef)
        and "Protocol" in {ast.unparse(base) for base in node.bases}
    }


def test_no_port_has_more_than_twelve_operations() -> None:
    found = {
        f"{path.relative_to(SOURCE)}: {name}": names
        for path in sorted((SOURCE / "ports").rglob("*.py"))
        for name, names in operations_of_ports(path.read_text()).items()
    }
    assert sum(map(len, found.values())) > 100, "the ports were found"
    wide = {name: names for name, names in found.items() if len(names) > MAX_OPERATIONS}
    assert not wide


def test_operations_of_a_port_are_counted_without_its_properties() -> None:
    source = """
class Rows(Protocol):
    @property
    def now(self): ...
    def insert(self): ...
    async def find(self): ...
class Row(msgspec.Struct):
    def show(self): ...
"""
    assert operations_of_ports(source) == {"Rows": ["insert", "find"]}


def test_no_public_class_name_is_used_twice_outside_transfer_types() -> None:
    """Transfer types are those of the modules under `ksana.api` and `ksana.client`: what a request,
    an answer or a frame looks like may have the name of what it shows."""
    places: dict[str, list[str]] = {}
    for path in source_files():
        module = path.relative_to(SOURCE)
        if module.parts[0] in ("api", "client"):
            continue
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(str(module))
    assert_none([f"{name}: {', '.join(where)}" for name, where in places.items() if len(where) > 1])


def written_events(tree: ast.Module) -> Iterator[str]:
    """The names of events that a module writes: the third of `(entity, id, name, …)`, as a tuple or
    as the arguments of a call, and what is given as `event=`."""
    for node in ast.walk(tree):
        places: list[ast.expr] = []
        if isinstance(node, ast.Tuple | ast.Call):
            given = node.elts if isinstance(node, ast.Tuple) else node.args
            first = given[0] if len(given) >= 3 else None
            if isinstance(first, ast.Constant) and first.value in ENTITIES:
                places.append(given[2])
        if isinstance(node, ast.Call):
            places += [word.value for word in node.keywords if word.arg == "event"]
        for place in places:
            texts = [inner.value for inner in ast.walk(place) if isinstance(inner, ast.Constant)]
            yield from (text for text in texts if EVENT_NAME.fullmatch(str(text)))


def test_events_are_found_in_every_form_in_which_they_are_written() -> None:
    tree = ast.parse(
        """
tx.events.append("RUN", run.id, "RUN_A", {})
rows = [("JOB", job_id, "JOB_B", "{}"), ("JOB", job_id, "JOB_C" if done else "JOB_D", "{}")]
change = Change(state="RUNNING", event="RUN_E", reason="SLOT_CAME")
other = ("JOB", "LEASE_PENDING")
        """
    )
    assert set(written_events(tree)) == {"RUN_A", "JOB_B", "JOB_C", "JOB_D", "RUN_E"}


def test_every_event_that_is_written_is_in_a_catalogue() -> None:
    known = {kind.name for group in event_kinds().values() for kind in group}
    found = []
    for path in source_files():
        for name in written_events(ast.parse(path.read_text())):
            if name not in known:
                found.append(f"{path.relative_to(ROOT)}: {name}")
    assert_none(found)


def test_no_statement_writes_an_event_that_is_not_in_a_catalogue() -> None:
    known = {kind.name for group in event_kinds().values() for kind in group}
    known |= {state for each in LIFECYCLES for state in each.states}
    found = []
    for path in sorted(SOURCE.rglob("*.sql")):
        if path.parent.name != "migrations":
            for name in SQL_TEXT.findall(path.read_text()):
                if name not in known:
                    found.append(f"{path.relative_to(ROOT)}: {name}")
    assert_none(found)


def test_every_event_of_a_catalogue_is_written_somewhere_and_declared_once() -> None:
    kinds = [kind for group in event_kinds().values() for kind in group]
    assert len({kind.name for kind in kinds}) == len(kinds)
    texts = Counter(
        text
        for path in [*source_files(), *SOURCE.rglob("*.sql")]
        for text in re.findall(r"[\"']([A-Z]+(?:_[A-Z]+)+)[\"']", path.read_text())
    )
    assert_none([kind.name for kind in kinds if texts[kind.name] < 2])


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
