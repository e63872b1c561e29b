"""Which lines of the program each test runs, and how long it takes: found out once for each file of
tests, and remembered until the file changes."""

import functools
import sys
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple

import pytest

from tests.ground.forks import in_a_fork, run_one
from tests.ground.mutants import ROOT, load, save, say
from tests.ground.python_faults import digest_of

FLOORS = ("domain", "engine", "service", "client")
_PREFIX = f"{ROOT}/src/"
_WITHIN = tuple(f"{_PREFIX}ksana/{floor}/" for floor in FLOORS)
RECORD_SECONDS = 1_800


class Known(NamedTuple):
    """What is known of a test."""

    cpu_seconds: float
    seconds: float
    lines: dict[str, int]
    """By module the lines it runs, as bits."""

    def runs(self, module: str, first: int, last: int) -> bool:
        """Whether it runs one of these lines."""
        return bool(self.way_through(module, first, last))

    def way_through(self, module: str, first: int, last: int) -> int:
        """Which of these lines it runs."""
        return self.lines.get(module, 0) >> first & ((1 << (last - first + 1)) - 1)


def record(path: Path, items: Iterable[pytest.Item]) -> dict[str, Known]:
    """What each test runs. A test that fails as it is proves nothing and is left out."""
    files: dict[str, Any] = load(path)
    by_file: dict[str, list[pytest.Item]] = {}
    for item in items:
        by_file.setdefault(item.nodeid.partition("::")[0], []).append(item)
    for file, of_file in by_file.items():
        changed_at = (ROOT / file).stat().st_mtime
        if files.get(file, {}).get("changed_at") == changed_at:
            continue
        rows = in_a_fork(partial(_record, of_file), RECORD_SECONDS).splitlines()
        tests = {row[0]: row[1:] for row in (line.split("\t") for line in rows) if len(row) > 2}
        sources = {word.partition("=")[0] for row in tests.values() for word in row[2:]}
        digests = {module: digest_of(module) for module in sorted(sources)}
        files[file] = {"changed_at": changed_at, "tests": tests, "sources": digests}
        save(path, files)
        say(f"looked at {file}: {len(tests)} of {len(of_file)} tests")
    return {
        name: Known(float(row[0]), float(row[1]), _read_lines(row[2:], files[file]["sources"]))
        for file in by_file
        for name, row in files[file]["tests"].items()
    }


def _record(items: list[pytest.Item]) -> str:
    """A row for each test that passes: its name, its seconds, the lines by module."""
    unseen: dict[CodeType, set[int]] = {}
    trace = _make_trace(unseen)
    rows = []
    for item, following in zip(items, [*items[1:], None], strict=True):
        unseen.clear()
        threading.settrace(trace)
        sys.settrace(trace)
        began, cpu_began = time.monotonic(), time.process_time()
        reports = run_one(item, following)
        cpu, wall = time.process_time() - cpu_began, time.monotonic() - began
        sys.settrace(None)
        threading.settrace(None)
        if all(not report.failed for report in reports):
            seen: dict[str, int] = {}
            for code, left in unseen.items():
                lines = _bits(_lines_of(code) - left)
                seen[code.co_filename] = seen.get(code.co_filename, 0) | lines
            words = [f"{_module_of(file)}={bits:x}" for file, bits in seen.items()]
            rows.append("\t".join([item.nodeid, f"{cpu:.4f}", f"{wall:.4f}", *words]))
    return "\n".join(rows) or "none"


def _make_trace(unseen: dict[CodeType, set[int]]) -> Callable[..., Any]:
    """A trace function that crosses out the lines of the program that are run. It steps over
    everything else, and over code of which no line is left."""

    def run(frame: Any, event: str, _: object) -> Any:
        if event == "line":
            unseen.setdefault(frame.f_code, set(_lines_of(frame.f_code))).discard(frame.f_lineno)
        return run

    def enter(frame: Any, event: str, _: object) -> Any:
        code = frame.f_code
        left = unseen.get(code)
        if left is None:
            if not code.co_filename.startswith(_WITHIN):
                return None
            left = unseen[code] = set(_lines_of(code))
        return run if left else None

    return enter


@functools.cache
def _lines_of(code: CodeType) -> frozenset[int]:
    return frozenset(line for _, _, line in code.co_lines() if line)


def _bits(lines: Iterable[int]) -> int:
    bits = 0
    for line in lines:
        bits |= 1 << line
    return bits


def _module_of(file: str) -> str:
    return file[len(_PREFIX) : -3].replace("/", ".").removesuffix(".__init__")


def _read_lines(words: Iterable[str], digests: dict[str, str]) -> dict[str, int]:
    """The lines by module. Of a module that has changed since, all of them: they have moved."""
    return {
        module: int(bits, 16) if digests.get(module) == digest_of(module) else -1
        for module, _, bits in (word.partition("=") for word in words)
    }
