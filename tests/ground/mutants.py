"""What the scripts share that break the program on purpose and look whether a test notices.

Which tests come near what is broken is found out once and remembered, file by file, until the file
changes: a test is run for a statement if it ran that statement, and for a move of the lifecycle if
it asked for that move. The test that noticed last time is tried first. So a mutant costs seconds,
and a run that was interrupted goes on where it was. Everything remembered lies in build/mutants/;
remove it after larger changes of the program, for what a test touches may have changed.

Every run of tests is a fork of one process, on SQLite and in memory: no server is started.
"""

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "build" / "mutants"

ELSEWHERE = frozenset({"tests/api/test_schema.py"})
"""Tests of a program in another process: what is broken here is whole there."""

WITHOUT_SERVERS = "not mariadb and not postgres and not redis and not mysql"


class Mutant(NamedTuple):
    """One thing to break, and the tests that could notice."""

    name: str
    text: str
    """What it is made from: another text makes another mutant."""
    mark: str
    """What a test must have touched, as the recorder writes it down."""
    apply: Callable[[], None]
    """Break it, in this process."""


def say(line: str) -> None:
    """Report at once: whoever waits sees how far it is."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


# Running tests


class _FirstFailure:
    """Notes which test failed."""

    def __init__(self) -> None:
        self.test = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and not self.test:
            self.test = report.nodeid


def run_tests(tests: list[str], apply: Callable[[], None] | None) -> tuple[int, str]:
    """Run tests in a fork until one fails: the exit status of pytest, and which test failed."""

    def run() -> str:
        if apply is not None:
            apply()
        first = _FirstFailure()
        status = int(pytest.main([*tests, "-x", *_arguments()], plugins=[first]))
        return f"{status} {first.test}"

    status, _, test = (in_a_fork(run) or "99 ").partition(" ")
    return int(status), test


def _arguments() -> list[str]:
    quick = ["-q", "--timeout", "60", "-p", "no:cacheprovider", "-p", "no:xdist", "--no-header"]
    folder = tempfile.mkdtemp(prefix="mutants-")
    return ["-k", WITHOUT_SERVERS, "-m", "not slow", *quick, "--basetemp", f"{folder}/tests"]


def in_a_fork(run: Callable[[], str]) -> str:
    """Run a function in a fork, silently; what it answers, or nothing if it died."""
    reads, writes = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.close(reads)
            with open(os.devnull, "w") as nowhere:  # the report is ours to write
                os.dup2(nowhere.fileno(), 1)
                os.dup2(nowhere.fileno(), 2)
            with os.fdopen(writes, "w") as answer:
                answer.write(run())
        finally:
            os._exit(0)
    os.close(writes)
    with os.fdopen(reads) as answer:
        text = answer.read()
    os.waitpid(child, 0)
    return text


# What each test touches


class Recorder:
    """A plugin that writes down, for each test, its length and what it touched."""

    def __init__(self) -> None:
        self.tests: dict[str, dict[str, Any]] = {}
        self.failed: list[str] = []
        self._touched: set[str] = set()

    def touch(self, mark: str) -> None:
        self._touched.add(mark)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        self._touched.clear()
        began = time.monotonic()
        result = yield
        seconds = round(time.monotonic() - began, 3)
        self.tests[item.nodeid] = {"seconds": seconds, "touched": sorted(self._touched)}
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.append(report.nodeid)


class TestMap:
    """What each test touches, remembered by file."""

    __test__ = False

    def __init__(self, name: str, watch: Callable[[Recorder], None]) -> None:
        self._path = FOLDER / f"{name}-map.json"
        self._watch = watch
        self._files: dict[str, Any] = load(self._path)

    def refresh(self, paths: Iterable[str]) -> None:
        """Run the files that are new or have changed. A test that fails as it is proves nothing and
        is left out."""
        for file in sorted(_list_files(paths)):
            changed_at = (ROOT / file).stat().st_mtime
            if self._files.get(file, {}).get("changed_at") == changed_at:
                continue
            tests, failed = self._record(file)
            for name in failed:
                tests.pop(name, None)
                say(f"FAILS AS IT IS, left out: {name}")
            self._files[file] = {"changed_at": changed_at, "tests": tests}
            save(self._path, self._files)
            say(f"looked at {file}: {len(tests)} tests")

    def tests_of(self, mark: str, paths: Iterable[str]) -> list[str]:
        """The tests in these files that touch something, the shortest first."""
        found = [
            (test["seconds"], name)
            for file in _list_files(paths)
            for name, test in self._files[file]["tests"].items()
            if mark in test["touched"]
        ]
        return [name for _, name in sorted(found)]

    def _record(self, file: str) -> tuple[dict[str, Any], list[str]]:
        def run() -> str:
            recorder = Recorder()
            self._watch(recorder)
            status = pytest.main([file, *_arguments()], plugins=[recorder])
            if status not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
                recorder.failed.append(f"{file}: status {int(status)}")
            return json.dumps([recorder.tests, recorder.failed])

        tests, failed = json.loads(in_a_fork(run) or f'[{{}}, ["{file} died"]]')
        return tests, failed


def _list_files(paths: Iterable[str]) -> set[str]:
    found: set[str] = set()
    for path in paths:
        whole = ROOT / path
        files = whole.rglob("test_*.py") if whole.is_dir() else [whole]
        found.update(str(file.relative_to(ROOT)) for file in files if file.exists())
    return found - ELSEWHERE


# Breaking


def judge(
    name: str,
    mutants: list[Mutant],
    tests: TestMap,
    paths: Iterable[str],
    explained: dict[str, str],
) -> int:
    """Break one after the other; report what nobody noticed. The exit status is 1 if anything of it
    is not explained, or something explained was noticed after all."""
    os.chdir(ROOT)
    paths = tuple(paths)
    tests.refresh(paths)
    path = FOLDER / f"{name}-noticed.json"
    noticed: dict[str, str] = load(path)
    unnoticed = []
    for mutant in mutants:
        began = time.monotonic()
        key = f"{mutant.name} | {mutant.text}"
        by = _find_notice(mutant, tests.tests_of(mutant.mark, paths), noticed.get(key))
        if by:
            noticed[key] = by
        else:
            unnoticed.append(mutant.name)
            noticed.pop(key, None)
        save(path, noticed)
        word = "noticed" if by else "explained" if mutant.name in explained else "UNNOTICED"
        why = by or explained.get(mutant.name, "")
        say(f"{word:10}{time.monotonic() - began:5.0f} s  {mutant.name}  {why}")
    left = [one for one in unnoticed if one not in explained]
    tried = {mutant.name for mutant in mutants}
    false = [one for one in explained if one in tried and one not in unnoticed]
    say(
        f"{len(mutants)} taken out one at a time, {len(unnoticed) - len(left)} explained, "
        f"{len(left)} unnoticed"
    )
    for one in left:
        say(f"  {one}")
    for one in false:
        say(f"  explained, but noticed: {one}")
    return 1 if left or false else 0


def _find_notice(mutant: Mutant, near: list[str], last: str | None) -> str:
    """The test that fails without it, or nothing."""
    for tests in ([last] if last in near else [], near):
        if not tests:
            continue
        status, test = run_tests([str(one) for one in tests], mutant.apply)
        if status == pytest.ExitCode.TESTS_FAILED:
            return test
        if status != pytest.ExitCode.OK:  # it does not even load
            return f"status {status}"
    return ""


def load(path: Path) -> dict[str, Any]:
    """What was remembered, or nothing."""
    try:
        loaded: dict[str, Any] = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    return loaded


def save(path: Path, data: dict[str, Any]) -> None:
    """Remember it, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".new")
    new.write_text(json.dumps(data, indent=1, sort_keys=True), "utf-8")
    new.replace(path)
