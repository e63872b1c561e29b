"""Small faults in the program's code, put in place one at a time.

    python -m tests.ground.code                          all rooms
    python -m tests.ground.code domain                   one room
    python -m tests.ground.code ksana.domain.retry       one module, or what begins so
    python -m tests.ground.code --sample 200 --seed 7    a random choice of all
    python -m tests.ground.code domain --tests tests/unit    ask the pure tests first
    python -m tests.ground.code domain --list            only name them
    python -m tests.ground.code domain --report          what is known, without running anything

For each fault the tests of the room that call its function run with it, the shortest first, until
one fails. The tests are collected once; each fault is a fork of that process, so that it costs as
long as its tests take, and whatever it breaks ends with it. Which tests call a function is found
out once and remembered until the test's file changes. A fault that was noticed is not tried again
until its function changes; one that was not, is. All this lies in build/mutants/, so a run that was
interrupted goes on where it was. Faults that change nothing one can see are in EXPLAINED. The exit
status is 1 if any other was unnoticed, or more than `--least` allows.
"""

import argparse
import hashlib
import os
import random
import resource
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

import pytest

from tests.ground import leash
from tests.ground.explained_faults import EXPLAINED
from tests.ground.mutants import ELSEWHERE, FOLDER, ROOT, WITHOUT_SERVERS, load, save, say
from tests.ground.python_faults import Fault, list_faults, list_modules, put_in_place

ROOMS: dict[str, tuple[str, ...]] = {
    "domain": ("tests/unit", "tests/properties/test_cron_oracle.py", "tests/engine", "tests/api"),
    "engine": ("tests/engine", "tests/api", "tests/nodes"),
    "service": ("tests/api", "tests/engine"),
    "client": ("tests/client",),
}
"""The tests that are asked, the nearest first."""

MOST_SECONDS = 12.0
"""The tests asked about one fault take at most this long together when nothing is wrong."""
SPARE_SECONDS = 5.0
"""What is waited beyond five times that: whoever takes longer does not end."""
MEMORY_BYTES = 6 * 2**30
SAVE_SECONDS = 5.0


class Known(NamedTuple):
    """What each test calls and how long it takes."""

    seconds: float
    calls: frozenset[str]


# In a fork


def in_a_fork(run: Callable[[], str], seconds: float) -> str:
    """What a function answers in a fork; "timeout" if it does not answer in time, "died" if it
    ends without an answer."""
    reads, writes = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.close(reads)
            leash.die_with_parent()
            os.setpgid(0, 0)
            nowhere = os.open(os.devnull, os.O_RDWR)
            for descriptor in (0, 1, 2):
                os.dup2(nowhere, descriptor)
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
            os.write(writes, run().encode())
        finally:
            os._exit(0)
    os.close(writes)
    answer, end = b"", time.monotonic() + seconds
    while True:
        ready = select.select([reads], [], [], max(0.0, end - time.monotonic()))[0]
        part = os.read(reads, 65_536) if ready else None
        if not part:
            break
        answer += part
    os.close(reads)
    if part is None:
        os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "timeout" if part is None else answer.decode() or "died"


def run_until_failure(items: list[pytest.Item]) -> str:
    """Run tests until one fails: its name, or "nobody"."""
    failed: list[str] = []

    class Watch:
        def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
            if report.failed:
                failed.append(report.nodeid)

    items[0].config.pluginmanager.register(Watch())
    for item, following in zip(items, [*items[1:], None], strict=True):
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if failed:
            return failed[0]
    return "nobody"


def record_calls(items: list[pytest.Item]) -> str:
    """Run tests and write down what of the rooms each calls: a line for each test that passes."""
    prefix = f"{ROOT}/src/"
    within = tuple(f"{prefix}ksana/{floor}/" for floor in ROOMS)
    calls: set[str] = set()
    seen: set[int] = set()

    def watch(frame: Any, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and id(code) not in seen:
            seen.add(id(code))
            if code.co_filename.startswith(within):
                module = code.co_filename[len(prefix) : -3].replace("/", ".")
                calls.add(f"{module}:{code.co_qualname.partition('.<locals>')[0]}")

    lines = []
    for item, following in zip(items, [*items[1:], None], strict=True):
        calls.clear()
        seen.clear()
        threading.setprofile(watch)
        sys.setprofile(watch)
        began = time.monotonic()
        reports = run_one(item, following)
        sys.setprofile(None)
        if all(not report.failed for report in reports):
            seconds = round(time.monotonic() - began, 3)
            lines.append("\t".join([item.nodeid, str(seconds), *sorted(calls)]))
    return "\n".join(lines) or "none"


def run_one(item: pytest.Item, following: pytest.Item | None) -> list[pytest.TestReport]:
    """Run one test, and tell how it went."""
    reports: list[pytest.TestReport] = []

    class Watch:
        def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
            reports.append(report)

    watch = Watch()
    item.config.pluginmanager.register(watch)
    item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
    item.config.pluginmanager.unregister(watch)
    return reports


# In the process that has collected the tests


class Judge:
    """A plugin that takes the place of pytest's loop over the tests."""

    def __init__(
        self, floor: str, rooms: tuple[str, ...], faults: list[Fault], seconds: float
    ) -> None:
        self._seconds = seconds
        self._rooms = rooms
        self._faults = faults
        self._items: dict[str, pytest.Item] = {}
        self._chosen: dict[str, list[str]] = {}
        self._map_path = FOLDER / "code-map.json"
        self._path = FOLDER / f"code-{floor}-noticed.json"

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self._items = {item.nodeid: item for item in session.items}
        known = self._record()
        noticed: dict[str, str] = load(self._path)
        saved_at = time.monotonic()
        for fault in self._faults:
            key = key_of(fault)
            if noticed.get(key):
                continue
            began = time.monotonic()
            noticed[key] = self._find_notice(fault, known)
            if not noticed[key]:
                say(f"UNNOTICED {time.monotonic() - began:5.1f} s  {fault}")
            if time.monotonic() - saved_at > SAVE_SECONDS:
                save(self._path, noticed)
                saved_at = time.monotonic()
        save(self._path, noticed)
        return True

    def _record(self) -> dict[str, Known]:
        """What each test calls; files that are new or have changed are run for it."""
        files: dict[str, Any] = load(self._map_path)
        by_file: dict[str, list[pytest.Item]] = {}
        for item in self._items.values():
            by_file.setdefault(item.nodeid.partition("::")[0], []).append(item)
        for file, items in by_file.items():
            changed_at = (ROOT / file).stat().st_mtime
            if files.get(file, {}).get("changed_at") == changed_at:
                continue
            answer = in_a_fork(partial(record_calls, items), 900)
            rows = [line.split("\t") for line in answer.splitlines() if "\t" in line]
            tests = {row[0]: [float(row[1]), row[2:]] for row in rows}
            files[file] = {"changed_at": changed_at, "tests": tests}
            save(self._map_path, files)
            say(f"looked at {file}: {len(tests)} of {len(items)} tests")
        return {
            name: Known(seconds, frozenset(calls))
            for file in by_file
            for name, (seconds, calls) in files[file]["tests"].items()
        }

    def _find_notice(self, fault: Fault, known: dict[str, Known]) -> str:
        """The test that fails with the fault, or nothing."""
        names = self._choose(fault.mark, known)
        items = [self._items[name] for name in names]
        if not items:
            return ""

        def run() -> str:
            try:
                put_in_place(fault)
            except (SyntaxError, ValueError) as error:
                return f"cannot be: {error}"
            return run_until_failure(items)

        usual = sum(known[name].seconds for name in names)
        answer = in_a_fork(run, SPARE_SECONDS + 5 * usual)
        return "" if answer == "nobody" else answer

    def _choose(self, mark: str, known: dict[str, Known]) -> list[str]:
        """The tests to ask about a function: those that pass together when nothing is wrong."""
        if mark not in self._chosen:
            known = {name: known[name] for name in self._items if name in known}
            names = choose(mark, known, self._rooms, self._seconds)
            while names:
                items = [self._items[name] for name in names]
                failed = in_a_fork(partial(run_until_failure, items), 600)
                if failed not in names:
                    break
                say(f"FAILS AS IT IS, left out for {mark}: {failed}")
                names.remove(failed)
            self._chosen[mark] = names
        return self._chosen[mark]


def choose(
    mark: str, known: dict[str, Known], rooms: tuple[str, ...], most_seconds: float = MOST_SECONDS
) -> list[str]:
    """The tests that call a function: the nearest room first, in it the shortest, as many as fit
    into so many seconds."""
    near = sorted(
        (place, test.seconds, name)
        for name, test in known.items()
        if mark in test.calls
        for place, room in enumerate(rooms)
        if name.startswith(room)
    )
    chosen: list[str] = []
    left = most_seconds
    for _, seconds, name in near:
        if seconds <= left:
            left -= seconds
            chosen.append(name)
    return chosen


def key_of(fault: Fault) -> str:
    """Under which a fault is remembered: its function's text is part of it."""
    digest = hashlib.blake2b(fault.source.encode(), digest_size=8).hexdigest()
    return f"{fault} | {digest}"


def judge(floor: str, rooms: tuple[str, ...], faults: list[Fault], seconds: float) -> None:
    """Collect the tests once, then try the faults."""
    os.chdir(ROOT)
    # Examples that are the same every time; a failing one is not made smaller.
    os.environ["HYPOTHESIS_PROFILE"] = "mutants"
    quiet = ["-q", "-s", "--timeout", "60", "-p", "no:xdist", "-p", "no:cacheprovider"]
    chosen = ["-k", WITHOUT_SERVERS, "-m", "not slow", "--no-header"]
    chosen += [f"--ignore={file}" for file in sorted(ELSEWHERE)]
    pytest.main([*rooms, *quiet, *chosen], plugins=[Judge(floor, rooms, faults, seconds)])


def report(floor: str, faults: Iterable[Fault]) -> tuple[int, int]:
    """Print the score and what nobody noticed: how many were tried, and how many of them are
    neither noticed nor explained."""
    noticed: dict[str, str] = load(FOLDER / f"code-{floor}-noticed.json")
    by = {fault: noticed[key_of(fault)] for fault in faults if key_of(fault) in noticed}
    tried = [fault for fault in by if not by[fault].startswith("cannot be")]
    unseen = [fault for fault in tried if not by[fault]]
    left = [fault for fault in unseen if str(fault) not in EXPLAINED]
    for fault in left:
        say(f"  line {fault.line}  {fault}")
    say(
        f"{floor}: {len(tried)} faults tried, {len(tried) - len(unseen)} noticed "
        f"({100 * (1 - len(unseen) / max(1, len(tried))):.1f} %), "
        f"{len(unseen) - len(left)} explained, {len(left)} unnoticed"
    )
    return len(tried), len(left)


def choose_faults(wanted: list[str], sample: int | None, seed: int) -> dict[str, list[Fault]]:
    """The faults of rooms, modules or whatever begins so, by floor; of all of them together a
    random choice, if one is asked for."""
    found: list[Fault] = []
    for name in wanted:
        floor = name.split(".")[1] if "." in name else name
        faults = [fault for module in list_modules(floor) for fault in list_faults(module)]
        found += [one for one in faults if name == floor or str(one).startswith(name)]
    if sample is not None:
        found = random.Random(seed).sample(found, min(sample, len(found)))
    by_floor: dict[str, list[Fault]] = {}
    for fault in found:
        by_floor.setdefault(fault.module.split(".")[1], []).append(fault)
    return by_floor


def main() -> int:
    """Try what was asked for; tell what nobody noticed."""
    parser = argparse.ArgumentParser(prog="python -m tests.ground.code")
    parser.add_argument("wanted", nargs="*", help="rooms or modules; all if none is named")
    parser.add_argument("--list", action="store_true", help="only name the faults")
    parser.add_argument("--report", action="store_true", help="only tell what is known")
    parser.add_argument("--tests", nargs="+", help="ask only these")
    parser.add_argument("--sample", type=int, help="a random choice of so many")
    parser.add_argument("--seed", type=int, default=1, help="which choice")
    parser.add_argument(
        "--seconds", type=float, default=MOST_SECONDS, help="of tests asked about one fault"
    )
    parser.add_argument("--least", type=float, default=100.0, help="percent that satisfy")
    options = parser.parse_args()
    chosen = choose_faults(options.wanted or list(ROOMS), options.sample, options.seed)
    tried = unnoticed = 0
    for floor, faults in chosen.items():
        if options.list:
            say("\n".join(map(str, faults)))
            continue
        if not options.report:
            judge(floor, tuple(options.tests or ROOMS[floor]), faults, options.seconds)
        counts = report(floor, faults)
        tried, unnoticed = tried + counts[0], unnoticed + counts[1]
    return 1 if 100 * (1 - unnoticed / max(1, tried)) < options.least else 0


if __name__ == "__main__":
    sys.exit(main())
